"""Our own clients of answers in pieces, against functions that yield: the command and the SDK."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.request import urlopen

import pytest

from penstock.bench import Load, Step, target_of
from penstock.bench import run as run_load
from penstock.client import (
    AsyncPipelineClient,
    CallFailed,
    PipelineClient,
    stream,
    stream_async,
)
from tests.observe.test_metrics import samples
from tests.services.process import ServiceProcess, running

pytestmark = pytest.mark.real

SCRIPT = Path(__file__).with_name("streams.py")


@dataclass(frozen=True)
class Streams:
    """The running service, and the folder of its notes."""

    server: ServiceProcess
    folder: Path

    def url(self, path: str) -> str:
        return self.server.http_url + path

    def wait_for(self, right: Callable[[], bool]) -> None:
        """Ask for something else until this is right."""
        deadline = time.monotonic() + 30
        while not right():
            assert time.monotonic() < deadline
            assert len([*stream(self.url("/count"), {"upto": 1})]) == 1


@pytest.fixture(scope="module", params=["thread", pytest.param("process", marks=pytest.mark.long)])
def streams(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Streams]:
    folder = tmp_path_factory.mktemp("streams")
    environment = {"EXECUTOR": request.param, "FOLDER": str(folder)}
    with running(SCRIPT, environment=environment) as server:
        yield Streams(server, folder)


def command(streams: Streams, path: str, *arguments: str) -> list[str]:
    address = f"127.0.0.1:{streams.server.http_port}{path}"
    return [sys.executable, "-m", "penstock", "client", address, "--stream", *arguments]


def run(streams: Streams, path: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(streams, path, *arguments), capture_output=True, text=True, timeout=60
    )


def tokens(upto: int) -> list[dict[str, object]]:
    return [{"text": f"é{n}", "n": n} for n in range(upto)]


def test_the_command_prints_each_piece_when_it_arrives(streams: Streams) -> None:
    os.mkfifo(streams.folder / "command")
    arguments = command(streams, "/gated", "key=command", "upto:=3")
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) as client:
        assert client.stdout is not None
        assert client.stdout.readline() == "0\n"
        (streams.folder / "command").write_bytes(b"")  # only now the others are made
        assert client.stdout.read() == "1\n2\n"
    assert client.returncode == 0


@pytest.mark.parametrize(
    "arguments",
    [["upto:=3"], ["-d", '{"upto": 3}'], ["-F", "upto=3"]],
    ids=["items", "data", "form"],
)
@pytest.mark.parametrize("accept", ["*/*", "application/x-ndjson"])
def test_the_command_sends_what_it_sends_elsewhere(
    streams: Streams, arguments: list[str], accept: str
) -> None:
    done = run(streams, "/count", *arguments, "-H", f"accept: {accept}")
    assert [json.loads(line) for line in done.stdout.splitlines()] == tokens(3)
    assert (done.stderr, done.returncode) == ("", 0)


def test_the_command_writes_bytes_as_they_are(streams: Streams, tmp_path: Path) -> None:
    file = tmp_path / "pieces"
    done = run(streams, "/bytes", "size:=70000", "times:=3", "-o", str(file))
    assert (done.stdout, done.returncode) == ("", 0)
    assert file.read_bytes() == b"".join(bytes([n]) * 70_000 for n in range(3))


@pytest.mark.parametrize(
    ("path", "arguments", "pieces", "words"),
    [
        ("/count", ["upto:=9", "fail_at:=2"], 2, "after 2 pieces: there is no 2 (im_a_teapot"),
        ("/count", ["upto:=9", "fail_at:=0"], 0, "HTTP 418: there is no 0"),
        ("/wrong", ["after:=1"], 1, "after 1 piece: "),
        (
            "/v2/models/count/generate_stream",
            ["upto:=9", "fail_at:=2"],
            2,
            "after 2 pieces: there is no 2",
        ),
        (
            "/count",
            ["upto:=9", "fail_at:=2", "-H", "accept: application/x-ndjson"],
            2,
            "after 2 pieces: the answer was cut off",
        ),
        ("/count", ["upto:=2", "-H", "accept: application/json"], 0, "does not come in pieces"),
        ("/waits", ["key=late", "--timeout", "0.5"], 1, "no piece came within 0.5 s"),
        ("/nowhere", [], 0, "HTTP 404"),
    ],
)
def test_an_answer_that_is_not_complete_ends_the_command_with_its_error(
    streams: Streams, path: str, arguments: list[str], pieces: int, words: str
) -> None:
    done = run(streams, path, *arguments)
    assert len(done.stdout.splitlines()) == pieces
    assert done.stderr.startswith("error: ")
    assert words in done.stderr
    assert done.returncode == 1


def test_the_sdk_gets_values(streams: Streams) -> None:
    with stream(streams.url("/count"), {"upto": 40}) as pieces:
        assert [*pieces] == tokens(40)
    assert b"".join(stream(streams.url("/bytes"), {"size": 3, "times": 2})) == b"\0\0\0\1\1\1"

    async def read() -> list[object]:
        return [each async for each in stream_async(streams.url("/count"), {"upto": 40})]

    assert asyncio.run(read()) == tokens(40)


@pytest.mark.parametrize("asynchronous", [False, True])
def test_closing_the_sdks_iterator_closes_the_generator(
    streams: Streams, asynchronous: bool
) -> None:
    key = f"sdk-{asynchronous}"
    if asynchronous:

        async def first() -> object:
            async with stream_async(streams.url("/endless"), {"key": key}) as pieces:
                return await anext(pieces)

        assert asyncio.run(first()) == "x" * 1000
    else:
        with stream(streams.url("/endless"), {"key": key}) as pieces:
            assert next(pieces) == "x" * 1000
    closed = streams.folder / f"{key}.closed"
    streams.wait_for(closed.exists)


def test_a_thread_that_waits_for_a_piece_is_woken_by_close(streams: Streams) -> None:
    pieces = stream(streams.url("/waits"), {"key": "woken"}, timeout=None)
    assert next(pieces) == 0
    closer = threading.Thread(target=pieces.close)
    closer.start()
    with pytest.raises(CallFailed, match="cancelled by the caller"):
        next(pieces)
    closer.join()
    streams.wait_for((streams.folder / "woken.closed").exists)


def test_the_pipeline_client_gets_pieces_of_a_typed_function(streams: Streams) -> None:
    endpoint = f"127.0.0.1:{streams.server.http_port}"
    with PipelineClient() as client:
        client.connect([endpoint])
        with client.stream({"upto": 3, "fail_at": -1}, name="count") as pieces:
            assert [(each["text"].tolist(), each["n"].tolist()) for each in pieces] == [
                ([f"é{n}"], [n]) for n in range(3)
            ]
        pieces = client.stream({"upto": 9, "fail_at": 2}, name="count")
        assert [next(pieces)["n"].item(), next(pieces)["n"].item()] == [0, 1]
        with pytest.raises(CallFailed, match="there is no 2"):
            next(pieces)
        with pytest.raises(CallFailed, match="nothing"):
            next(client.stream({}, name="nothing"))
        with client.stream({"key": "pipeline"}, name="endless") as endless:
            assert next(endless)["result"].tolist() == ["x" * 1000]
    streams.wait_for((streams.folder / "pipeline.closed").exists)

    async def read() -> list[int]:
        async with AsyncPipelineClient() as client:
            await client.connect([endpoint])
            pieces = client.stream({"upto": 40, "fail_at": -1}, name="count")
            return [each["n"].item() async for each in pieces]

    assert asyncio.run(read()) == [*range(40)]


def test_the_load_generator_measures_pieces(streams: Streams) -> None:
    target = target_of(streams.url("/count"), data='{"upto": 20}', in_pieces=True)
    (result,) = run_load(target, Load(steps=(Step(concurrency=2),), duration=0.5, warm_up=0.1))
    assert result.errors == {}
    assert result.pieces is not None
    assert result.pieces.mean == 20
    assert 0 < result.pieces.first.p50 < result.latency.p50
    assert 0 <= result.pieces.between.p50 < result.latency.p50  # 0: they arrived together
    requests = '[{"upto": 2}, {"upto": 9, "fail_at": 2}]'
    (limited,) = run_load(
        target_of(streams.url("/count"), data=requests, in_pieces=True),
        Load(steps=(Step(concurrency=1),), duration=0.5, warm_up=0.0),
    )
    assert {*limited.errors} == {"error in the answer"}
    assert "there is no 2" in limited.texts["error in the answer"]


def test_metrics_the_live_page_and_a_trace_have_the_pieces(
    streams: Streams, tmp_path: Path
) -> None:
    def seen() -> dict[tuple[str, tuple[str, ...]], float]:
        text = urlopen(f"{streams.server.http_url}/metrics", timeout=30).read()
        found = samples(text)
        return {key: value for key, value in found.items() if "count" in key[1]}

    before = seen()
    url = streams.url("/count")
    assert len([*stream(url, {"upto": 3})]) == 3
    with stream(url, {"upto": 2}) as pieces:
        assert len([*pieces]) == 2
    after = seen()
    labels = ("count", "1")
    change = {key[0]: after[key] - before.get(key, 0) for key in after if key[1] == labels}
    assert change["penstock_pieces_total"] == 5
    assert change["penstock_first_piece_seconds_count"] == 2
    assert change["penstock_between_pieces_seconds_count"] == 2
    assert change["penstock_streams_open"] == 0
    ended = "penstock_streams_ended_total", ("count", "1", "ok")
    assert after[ended] - before[ended] == 2
    lists = json.loads(urlopen(f"{streams.server.http_url}/ui/requests", timeout=30).read())
    told = [each["stream"] for each in lists["latest"] if each["route"] == "/count"]
    assert [each["pieces"] for each in told[:2]] == [2, 3]
    assert all(each["first"] > 0 for each in told)
    file = tmp_path / "trace.json"
    address = f"127.0.0.1:{streams.server.http_port}"
    arguments = ["trace", address, "--requests", "1", "-o", str(file)]
    with subprocess.Popen([sys.executable, "-m", "penstock", *arguments]) as tracing:
        while tracing.poll() is None:
            assert len([*stream(url, {"upto": 3})]) == 3
    events = json.loads(file.read_bytes())["traceEvents"]
    assert [each["args"]["pieces"] for each in events if each["name"] == "pieces"] == [3]
