"""Functions that yield, asked by real clients over HTTP/1.1, HTTP/1.0 and HTTP/2."""

from __future__ import annotations

import functools
import json
import os
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from http.client import HTTPConnection, IncompleteRead
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.services.process import KEPT, ServiceProcess, running

pytestmark = pytest.mark.real

SCRIPT = Path(__file__).with_name("streams.py")
EVENTS, LINES, LIST = "text/event-stream", "application/x-ndjson", "application/json"


@dataclass(frozen=True)
class Streams:
    """The running service, a client of it, and the folder of its notes."""

    server: ServiceProcess
    client: httpx.Client
    folder: Path
    executor: str

    def noted(self, key: str, what: str) -> int:
        """The number of a key's pieces, or ends."""
        file = self.folder / f"{key}.{what}"
        return file.stat().st_size if file.exists() else 0

    def wait_for(self, right: Callable[[], bool]) -> None:
        """Ask for something else until this is right."""
        deadline = time.monotonic() + 30
        while not right():
            assert time.monotonic() < deadline
            self.client.post("/count", json={"upto": 1}).raise_for_status()


@pytest.fixture(scope="module", params=["thread", "process"])
def streams(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Streams]:
    executor, folder = request.param, tmp_path_factory.mktemp("streams")
    environment = {"EXECUTOR": executor, "FOLDER": str(folder)}
    with (
        running(SCRIPT, environment=environment) as server,
        httpx.Client(
            base_url=server.http_url, timeout=30.0, limits=httpx.Limits(keepalive_expiry=KEPT)
        ) as client,
    ):
        yield Streams(server, client, folder, executor)


def events(text: str) -> list[tuple[str, Any]]:
    """The type and the data of each event; comments are no events."""
    found = []
    for block in text.split("\n\n")[:-1]:
        fields = dict(line.split(": ", 1) for line in block.split("\n") if not line.startswith(":"))
        if fields:
            found.append((fields.get("event", "message"), json.loads(fields["data"])))
    return found


def tokens(upto: int) -> list[dict[str, object]]:
    return [{"text": f"é{n}", "n": n} for n in range(upto)]


def test_pieces_are_events_by_default_and_no_proxy_holds_them_back(streams: Streams) -> None:
    answer = streams.client.post("/count", json={"upto": 3})
    assert answer.status_code == 200
    assert events(answer.text) == [("message", each) for each in tokens(3)]
    fields = answer.headers
    assert fields["content-type"] == EVENTS
    assert fields["cache-control"] == "no-store, no-transform"
    assert fields["x-accel-buffering"] == "no"
    assert "content-encoding" not in fields


@pytest.mark.parametrize("path", ["/count", "/numbers"])
@pytest.mark.parametrize("upto", [0, 1, 40])
def test_pieces_are_events_or_lines_or_a_list_as_the_caller_accepts(
    streams: Streams, path: str, upto: int
) -> None:
    ask = functools.partial(streams.client.post, path, json={"upto": upto})
    assert events(ask().text) == [("message", each) for each in tokens(upto)]
    lines = ask(headers={"accept": LINES})
    assert [json.loads(each) for each in lines.text.splitlines()] == tokens(upto)
    assert ask(headers={"accept": LIST}).json() == tokens(upto)


def test_bytes_are_sent_as_they_are(streams: Streams) -> None:
    answer = streams.client.post("/bytes", json={"size": 70_000, "times": 5})
    assert answer.headers["content-type"] == "application/octet-stream"
    assert answer.content == b"".join(bytes([n]) * 70_000 for n in range(5))


def test_a_class_with_state_may_yield(streams: Streams) -> None:
    answer = streams.client.post("/words", json={"k": 2}, headers={"accept": LIST})
    assert answer.json() == ["one", "two"]


def test_each_piece_is_sent_when_it_is_made(streams: Streams) -> None:
    os.mkfifo(streams.folder / "each")
    with streams.client.stream("POST", "/gated", json={"key": "each", "upto": 3}) as answer:
        pieces = answer.iter_lines()
        assert next(pieces) == "data: 0"
        (streams.folder / "each").write_bytes(b"")  # only now the others are made
        assert [each for each in pieces if each] == ["data: 1", "data: 2"]


def test_an_error_before_the_first_piece_has_its_own_status(streams: Streams) -> None:
    answer = streams.client.post("/count", json={"upto": 3, "fail_at": 0})
    assert answer.status_code == 418
    assert answer.json()["message"] == "there is no 0"
    assert streams.client.post("/numbers", json={"fail_at": 0}).status_code == 418
    assert streams.client.post("/count", json={"upto": "x"}).status_code == 422
    assert streams.client.post("/wrong", json={"after": 0}).status_code == 500


def raw_answer(streams: Streams, path: str, body: dict[str, Any], accept: str) -> bytes:
    connection = HTTPConnection("127.0.0.1", streams.server.http_port, timeout=30)
    connection.request("POST", path, json.dumps(body), {"Accept": accept})
    response = connection.getresponse()
    assert response.status == 200
    try:
        text = response.read()
    except IncompleteRead as error:
        return error.partial
    finally:
        connection.close()
    raise AssertionError(f"it looks complete: {text!r}")


@pytest.mark.parametrize("accept", [EVENTS, LINES, LIST])
@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/count", {"upto": 9, "fail_at": 2}),
        ("/numbers", {"upto": 9, "fail_at": 2}),
        ("/wrong", {"after": 2}),
    ],
    ids=["raises", "an op raises", "wrong type"],
)
def test_an_error_after_pieces_never_looks_like_the_end(
    streams: Streams, path: str, body: dict[str, Any], accept: str
) -> None:
    text = raw_answer(streams, path, body, accept).decode()
    if accept == EVENTS:
        *pieces, (kind, error) = events(text)
        assert kind == "error"
        assert error["error"] == ("hook_failed" if path == "/wrong" else "im_a_teapot")
        assert [each["n"] for _, each in pieces] == [0, 1]
    elif accept == LINES:
        assert [json.loads(each)["n"] for each in text.splitlines()] == [0, 1]
    else:
        with pytest.raises(json.JSONDecodeError):
            json.loads(text)


def test_an_answer_over_http_1_0_has_its_length(streams: Streams) -> None:
    body = b'{"upto": 2}'
    address = "127.0.0.1", streams.server.http_port
    with socket.create_connection(address, timeout=30) as connection:
        head = (
            b"POST /count HTTP/1.0\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
        )
        connection.sendall(head % len(body) + body)
        answer = b"".join(iter(lambda: connection.recv(65536), b""))
    head, _, text = answer.partition(b"\r\n\r\n")
    assert b"content-length: %d" % len(text) in head
    assert events(text.decode()) == [("message", each) for each in tokens(2)]


def test_curl_reads_a_stream_over_http_2(streams: Streams) -> None:
    command = ["curl", "-sS", "--http2-prior-knowledge", f"{streams.server.http_url}/count"]
    done = subprocess.run(
        [*command, "--json", '{"upto": 3}', "-H", f"accept: {LINES}", "-w", "%{http_version}"],
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )
    *lines, version = done.stdout.split("\n")
    assert version == "2"
    assert [json.loads(each) for each in lines] == tokens(3)


@pytest.mark.parametrize("path", ["/endless", "/endless_on_loop", "/endless_op"])
@pytest.mark.parametrize("read_first", [True, False])
def test_a_caller_that_disconnects_stops_its_generator_and_no_other(
    streams: Streams, path: str, read_first: bool
) -> None:
    key = f"leaves-{path[1:]}-{read_first}"
    connection = HTTPConnection("127.0.0.1", streams.server.http_port, timeout=30)
    connection.request("POST", path, json.dumps({"key": key}))
    response = connection.getresponse() if read_first else None
    if response is not None:
        assert response.readline().startswith(b"data: ")
    streams.wait_for(lambda: streams.noted(key, "made") > 0)
    if response is not None:
        response.close()
    connection.close()
    streams.wait_for(lambda: streams.noted(key, "closed") == 1)
    made = streams.noted(key, "made")
    streams.client.post("/count", json={"upto": 1}).raise_for_status()
    assert streams.noted(key, "made") == made


@pytest.mark.parametrize("accept", [EVENTS, LINES, LIST])
def test_a_caller_that_leaves_while_the_generator_waits_is_noticed(
    streams: Streams, accept: str
) -> None:
    key = f"waits-{accept.rpartition('/')[2]}"
    connection = HTTPConnection("127.0.0.1", streams.server.http_port, timeout=30)
    connection.request("POST", "/waits", json.dumps({"key": key}), {"Accept": accept})
    response = connection.getresponse()
    assert b"0" in response.read1()
    response.close()
    connection.close()
    streams.wait_for(lambda: streams.noted(key, "closed") == 1)


@pytest.mark.parametrize("accept", [EVENTS, LIST])
def test_a_caller_that_only_sends_nothing_more_gets_all_pieces(
    streams: Streams, accept: str
) -> None:
    key = f"half-{accept.rpartition('/')[2]}"
    os.mkfifo(streams.folder / key)
    body = json.dumps({"key": key, "upto": 2}).encode()
    head = b"POST /gated HTTP/1.1\r\nHost: localhost\r\nAccept: %b\r\nContent-Length: %d\r\n\r\n"
    address = "127.0.0.1", streams.server.http_port
    with socket.create_connection(address, timeout=30) as connection:
        connection.sendall(head % (accept.encode(), len(body)) + body)
        answer = b""
        while b"0" not in answer.partition(b"\r\n\r\n")[2].partition(b"\r\n")[2]:
            answer += connection.recv(65536)
        connection.shutdown(socket.SHUT_WR)
        filler = b": keep-alive" if accept == EVENTS else b"\r\n \r\n"
        while filler not in answer:
            answer += connection.recv(65536)
        (streams.folder / key).write_bytes(b"")
        answer += b"".join(iter(lambda: connection.recv(65536), b""))
    assert answer.endswith(b"0\r\n\r\n")
    assert (b"data: 1" if accept == EVENTS else b",1") in answer


@pytest.mark.parametrize("path", ["/endless", "/endless_on_loop", "/endless_op"])
def test_a_reader_that_stops_holds_up_its_own_generator_only(streams: Streams, path: str) -> None:
    key = f"stops-{path[1:]}"
    body = json.dumps({"key": key}).encode()
    head = b"POST %b HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n"
    seen = -1

    def stands() -> bool:
        nonlocal seen
        before, seen = seen, streams.noted(key, "made")
        return before == seen > 0

    address = "127.0.0.1", streams.server.http_port
    with socket.create_connection(address, timeout=30) as connection:
        connection.sendall(head % (path.encode(), len(body)) + body)
        # What the kernel takes, 64 KiB unsent, and 64 KiB on their way.
        streams.wait_for(stands)
        made = seen
        assert made < 20_000
        five = streams.client.post("/count", json={"upto": 5}, headers={"accept": LIST})
        assert five.json() == tokens(5)
        read = 0
        while read < made * 1000 + 2_000_000:  # it goes on where it stood
            read += len(connection.recv(1 << 20))
    streams.wait_for(lambda: streams.noted(key, "closed") == 1)


def test_a_worker_that_dies_ends_its_stream_with_an_error_and_is_replaced(
    streams: Streams,
) -> None:
    if streams.executor == "thread":
        pytest.skip("a thread cannot end without its service")
    *pieces, (kind, error) = events(raw_answer(streams, "/dies", {"after": 3}, EVENTS).decode())
    assert [each for _, each in pieces] == [0, 1, 2]
    assert (kind, error["error"]) == ("error", "worker_died")
    assert streams.client.post("/count", json={"upto": 1}).status_code == 200


def test_the_caller_s_time_limit_ends_a_stream_in_the_middle(streams: Streams) -> None:
    connection = HTTPConnection("127.0.0.1", streams.server.http_port, timeout=30)
    os.mkfifo(streams.folder / "never")
    fields = {"penstock-timeout": "0.5"}
    connection.request("POST", "/gated", json.dumps({"key": "never", "upto": 2}), fields)
    response = connection.getresponse()
    assert response.status == 200
    with pytest.raises(IncompleteRead) as incomplete:
        response.read()
    connection.close()
    (first, (kind, error)) = events(incomplete.value.partial.decode())
    (streams.folder / "never").write_bytes(b"")
    assert first == ("message", 0)
    assert (kind, error["error"]) == ("error", "deadline")


def by_pipeline(streams: Streams, route: str, **members: object) -> dict[str, Any]:
    body = {"key": [*members], "value": [str(each) for each in members.values()]}
    found: dict[str, Any] = streams.client.post(f"/{route}/prediction", json=body).json()
    return found


def test_the_pipeline_protocol_gets_all_pieces_under_their_names(streams: Streams) -> None:
    answer = by_pipeline(streams, "count", upto=3)
    assert answer["err_no"] == 0, answer
    assert dict(zip(answer["key"], answer["value"], strict=True)) == {
        "text": "['é0', 'é1', 'é2']",
        "n": "array([0, 1, 2])",
    }
    assert by_pipeline(streams, "count", upto=0)["key"] == []
    error = by_pipeline(streams, "count", upto=3, fail_at=2)
    assert error["err_no"] != 0
    assert "there is no 2" in error["err_msg"]


def test_the_description_has_every_format(streams: Streams) -> None:
    paths = streams.client.get("/openapi.json").json()["paths"]
    for path in ("/count", "/numbers", "/endless_op"):
        described = paths[path]["post"]["responses"]["200"]["content"]
        assert list(described) == [EVENTS, LINES, LIST]
        assert described[LIST]["schema"]["type"] == "array"
