"""Answers in pieces: what counts, their times, and failures in their middle."""

from __future__ import annotations

import asyncio
import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from penstock.bench import BadTarget, Load, PieceTimes, Step, StepResult, run, target_of
from penstock.bench.generator import Attempt, Failure, Generator
from penstock.bench.pieces import between_pieces, has_content
from penstock.bench.results import Percentiles, result_of
from penstock.cli import app
from penstock.protocols.pieces import OF_EVENTS
from tests.bench.server import Server, answer, serving

LOAD = Load(steps=(Step(concurrency=2),), duration=0.3, warm_up=0.1, timeout=5.0)
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


def events(*bodies: bytes, end: bytes = b"0\r\n\r\n") -> bytes:
    parts = [OF_EVENTS.piece(body, first=False) for body in bodies]
    return HEAD + b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts) + end


def chunk(**delta: object) -> str:
    choices = [{"index": 0, "delta": delta, "finish_reason": None}]
    return json.dumps({"object": "chat.completion.chunk", "choices": choices})


@pytest.mark.parametrize(
    ("piece", "counts"),
    [
        ('"a"', True),
        ("0", True),
        ("false", True),
        ('{"text":""}', True),
        ("some text", True),
        (b"\x00", True),
        ('""', False),
        ("", False),
        ("null", False),
        ("{}", False),
        (b"", False),
        (chunk(role="assistant", content="a"), True),
        (chunk(tool_calls=[{"index": 0}]), True),
        (chunk(reasoning_content="a"), True),
        (chunk(role="assistant", content=""), False),
        (chunk(), False),
        ('{"object":"chat.completion.chunk","choices":[],"usage":{"total_tokens":9}}', False),
        ('{"object":"text_completion","choices":[{"text":"a"}]}', True),
        ('{"object":"text_completion","choices":[{"text":"","finish_reason":"stop"}]}', False),
        ('{"choices":["a","b"]}', True),
        ('{"object":1,"choices":[1]}', False),
        ('{"choices": no json', True),
    ],
)
def test_a_piece_counts_if_it_has_content(piece: str | bytes, counts: bool) -> None:
    assert has_content(piece) is counts


def test_the_time_between_pieces_is_that_of_aiperf() -> None:
    assert between_pieces(0.1, 1.1, 11) == pytest.approx(0.1)
    assert between_pieces(0.1, 0.1, 1) is None


def test_times_count_from_when_a_request_was_due_and_only_those_of_good_answers() -> None:
    class Sender:
        def __init__(self, ended: Callable[..., object], arrived: Callable[..., object]) -> None:
            self.ended, self.arrived, self.number = ended, arrived, 0

        def send(self, attempt: Attempt) -> None:
            self.number += 1
            self.arrived(attempt, 1, attempt.due + 0.001)
            self.arrived(attempt, 3, attempt.due + 0.002)
            failure = Failure("cut off") if self.number % 2 else None
            asyncio.get_running_loop().call_soon(self.ended, attempt, failure)

        async def close(self) -> None:
            pass

    async def measure() -> Any:
        loop = asyncio.get_running_loop()
        generator = Generator(Step(concurrency=1), LOAD, loop.time(), lambda: False)
        return await generator.run(Sender)

    measured = asyncio.run(measure())
    assert measured.good > 2
    assert [*measured.first_pieces] == pytest.approx([0.001] * measured.good)
    assert measured.of_good == 4 * measured.good
    assert len(measured.between_pieces) == measured.good
    assert [*measured.between_pieces] == pytest.approx([0.001 / 3] * measured.good)
    found = result_of(Step(concurrency=1), [measured, measured], in_pieces=True).pieces
    assert found is not None
    assert found.mean == 4
    assert found.rate == pytest.approx(2 * measured.pieces / measured.seconds)
    assert result_of(Step(concurrency=1), [measured]).pieces is None


def bench(reply: bytes) -> StepResult:
    async def behave(server: Server, head: bytes) -> bytes:
        return reply

    with serving(behave) as server:
        target = target_of(server.url("/x"), data="{}", in_pieces=True)
        (result,) = run(target, LOAD)
    return result


def test_the_pieces_of_answers_are_counted() -> None:
    result = bench(events(b'""', b'"a"', b'"b"', b'"c"'))
    assert result.errors == {}
    assert result.pieces is not None
    assert result.pieces.mean == 3
    assert result.pieces.rate == pytest.approx(3 * result.rate, rel=0.2)
    assert 0 < result.pieces.first.p50 <= result.latency.max


def test_an_answer_without_pieces_is_good_and_has_no_times() -> None:
    result = bench(events())
    assert result.good > 0
    assert result.pieces == PieceTimes(
        first=Percentiles(), between=Percentiles(), rate=0.0, mean=0.0
    )


@pytest.mark.parametrize(
    ("reply", "kind"),
    [
        (answer(b'{"error":"busy","message":"full"}', 503), "HTTP 503: full"),
        (
            answer(b"[1]").replace(b" X\r\n", b" X\r\ncontent-type: application/json\r\n"),
            "no answer",
        ),
        (events(b"1", end=b"zz\r\n"), "error in the answer: no HTTP answer"),
        (
            events(b"1", b'{"error":"no memory"}'),
            "error in the answer: after 1 piece: no memory",
        ),
        (
            events(b"1", end=b'1d\r\nevent: error\ndata: {"a": 1}\n\n\r\n'),
            "error in the answer: after 1 piece",
        ),
    ],
)
def test_an_answer_that_does_not_end_well_is_a_failure(reply: bytes, kind: str) -> None:
    with pytest.raises(BadTarget, match=f"/x: {kind}"):
        bench(reply)


def test_a_truncated_answer_is_a_failure() -> None:
    number = 0

    async def cut_off(server: Server, head: bytes) -> bytes | None:
        nonlocal number
        number += 1
        return events(b"1", b"2") if number == 1 else None

    with serving(cut_off) as server:
        (result,) = run(target_of(server.url("/x"), data="{}", in_pieces=True), LOAD)
    assert {*result.errors} == {"connection lost"}


def test_pieces_are_measured_over_http_only() -> None:
    for url in ("grpc://127.0.0.1:1/a/b", "http://127.0.0.1:1/v2/models/m"):
        with pytest.raises(BadTarget, match="generate_stream"):
            target_of(url, data="{}", in_pieces=True)
    generated = target_of("http://h/v2/models/m/generate_stream", data="{}", in_pieces=True)
    assert generated.path == "/v2/models/m/generate_stream"


def test_table_csv_and_json_have_the_times_of_pieces(tmp_path: Path) -> None:
    async def behave(server: Server, head: bytes) -> bytes:
        return events(b"1", b"2")

    files = [tmp_path / "r.csv", tmp_path / "r.json"]
    with serving(behave) as server:
        arguments = [server.url("/x"), "--data", "{}", "--stream", "-c", "1"]
        limits = ["--duration", "300ms", "--warm-up", "100ms"]
        outputs = [each for file in files for each in ("-o", str(file))]
        done = CliRunner().invoke(app, ["bench", *arguments, *limits, *outputs])
    assert done.exit_code == 0, done.output
    (line,) = [each for each in done.stdout.splitlines() if "pieces:" in each]
    assert "/s, 2.0 an answer; first " in line
    (row,) = csv.DictReader(files[0].read_text().splitlines())
    (step,) = json.loads(files[1].read_bytes())["steps"]
    assert float(row["first_piece_p99"]) == step["pieces"]["first"]["p99"] > 0
    assert float(row["between_pieces_p50"]) == step["pieces"]["between"]["p50"]
    assert float(row["pieces_mean"]) == step["pieces"]["mean"] == 2
    assert float(row["piece_rate"]) == step["pieces"]["rate"] > 0
