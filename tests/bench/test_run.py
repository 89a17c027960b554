"""Load on controlled servers: the requests sent, and each one's outcome."""

from __future__ import annotations

import asyncio
import json
import re
import time

import pytest

from penstock.bench import BadTarget, Load, Step, run, target_of
from tests.bench.server import Server, answer, serving


def load(*steps: Step, duration: float = 0.3, warm_up: float = 0.1, timeout: float = 5.0) -> Load:
    return Load(
        steps=steps, duration=duration, warm_up=warm_up, timeout=timeout, arrivals="constant"
    )


def test_requests_are_sent_in_turn_with_different_ids():
    with serving() as server:
        target = target_of(server.url("/x?y=1"), data='[{"a": 1}, {"a": 2}]', headers=["A: b"])
        (result,) = run(target, load(Step(concurrency=1)))
    assert result.failed == 0
    assert result.good == result.requests > 10
    assert result.rate == pytest.approx(result.good / 0.3, rel=0.1)
    # the first one is sent before the step
    bodies = [json.loads(body)["a"] for _, body in server.requests[1:]]
    assert bodies[:4] == [1, 2, 1, 2]
    heads = [head.decode() for head, _ in server.requests]
    assert all(head.startswith("POST /x?y=1 HTTP/1.1\r\n") for head in heads)
    assert all("\r\na: b\r\n" in head for head in heads)
    for pattern in (r"traceparent: 00-[0-9a-f]{32}-[0-9a-f]{16}-00\r\n", r"x-request-id: (\S+)\r"):
        found = [re.search(pattern, head) for head in heads]
        assert len({match[0] for match in found if match}) == len(heads)


def test_an_open_loop_keeps_its_rate_and_a_closed_loop_its_requests_in_flight():
    most = 0
    inside = 0

    async def answer_slowly(server: Server, head: bytes) -> bytes:
        nonlocal most, inside
        inside += 1
        most = max(most, inside)
        await asyncio.sleep(0.03)
        inside -= 1
        return answer()

    with serving(answer_slowly) as server:
        target = target_of(server.url(), data="{}")
        steps = load(Step(rate=100), Step(concurrency=3), duration=0.6)
        open_loop, closed = run(target, steps)
    assert open_loop.requests == pytest.approx(60, abs=1)
    assert open_loop.latency.p50 > 0.03
    assert most >= 3
    assert closed.rate == pytest.approx(100, rel=0.2)


def test_latencies_of_an_open_loop_include_the_wait_during_a_stall():
    """Coordinated omission: a waiting client sees one of 300 requests slow; 100 were late."""
    stall: list[float] = []

    async def stall_once(server: Server, head: bytes) -> bytes:
        if len(server.requests) == 150:
            stall.append(time.monotonic())
            await asyncio.sleep(0.5)
        return answer()

    with serving(stall_once) as server:
        target = target_of(server.url(), data="{}")
        (result,) = run(target, load(Step(rate=200, concurrency=1), duration=1.5))
    assert stall
    assert result.failed == 0
    assert result.from_sending.p99 < 0.2 < 0.3 < result.latency.p99
    assert result.latency.max == pytest.approx(0.5, abs=0.2)
    assert result.latency.p50 < 0.2


async def refuse_every_other(server: Server, head: bytes) -> bytes:
    return answer(b"busy", 503) if len(server.requests) % 2 == 0 else answer()


async def answer_errors(server: Server, head: bytes) -> bytes:
    if len(server.requests) % 2 == 0:
        return answer(b'{"err_no":3004,"err_msg":"queue is full","key":[]}')
    return answer(b'{"err_no":0,"err_msg":"","key":[]}')


@pytest.mark.parametrize(
    ("behaviour", "kind", "text"),
    [(refuse_every_other, "HTTP 503", "busy"), (answer_errors, "err_no 3004", "queue is full")],
)
def test_errors_are_counted_by_kind(behaviour, kind: str, text: str):
    with serving(behaviour) as server:
        (result,) = run(target_of(server.url(), data="{}"), load(Step(concurrency=1)))
    assert set(result.errors) == {kind}
    assert result.texts[kind] == text
    assert result.errors[kind] == pytest.approx(result.good, abs=1)


def test_an_unanswered_request_ends_at_its_timeout_and_counts_as_latency():
    async def lose_some(server: Server, head: bytes) -> bytes:
        if len(server.requests) % 5 == 0:
            await asyncio.sleep(30)
        return answer()

    with serving(lose_some) as server:
        began = time.monotonic()
        (result,) = run(
            target_of(server.url(), data="{}"),
            load(Step(rate=50), duration=0.6, timeout=0.3),
        )
        assert time.monotonic() - began < 5
    assert set(result.errors) == {"timeout"}
    assert result.errors["timeout"] == pytest.approx(6, abs=1)
    assert result.latency.max == pytest.approx(0.3, abs=0.15)


def test_requests_not_sent_are_counted_and_their_wait_is_a_latency():
    async def answer_slowly(server: Server, head: bytes) -> bytes:
        await asyncio.sleep(0.2)
        return answer()

    with serving(answer_slowly) as server:
        (result,) = run(
            target_of(server.url(), data="{}"),
            load(Step(rate=100, concurrency=1), duration=0.5, warm_up=0, timeout=1),
        )
    assert result.requests == pytest.approx(50, abs=1)
    assert result.errors["not sent"] == result.failed > 40
    assert result.latency.max > 1
    assert "the service did not keep up with 100/s" in result.remarks


def test_lost_connections_are_errors_and_the_run_ends():
    async def disconnect(server: Server, head: bytes) -> bytes | None:
        return answer() if len(server.requests) < 40 else None

    with serving(disconnect) as server:
        results = run(
            target_of(server.url(), data="{}"),
            load(Step(concurrency=2), Step(concurrency=3), duration=0.4, warm_up=0),
        )
    first, *rest = results
    assert first.good > 10
    assert set(first.errors) == {"connection lost"}
    assert first.failed < 50  # clients wait a little after a failed connection
    assert [each.good for each in rest] == [0]


def test_nothing_is_measured_without_a_good_first_answer():
    async def answer_never(server: Server, head: bytes) -> bytes:
        return answer(b"no such route", 404)

    with serving(answer_never) as server:
        with pytest.raises(BadTarget, match="HTTP 404: no such route"):
            run(target_of(server.url(), data="{}"), load(Step(concurrency=1)))
        assert len(server.requests) == 1
    with pytest.raises(BadTarget, match="cannot connect"):
        run(target_of(server.url(), data="{}"), load(Step(concurrency=1)))


def test_a_run_can_be_interrupted_with_the_results_so_far():
    async def answer_slowly(server: Server, head: bytes) -> bytes:
        await asyncio.sleep(0.05 if len(server.requests) < 12 else 30)
        return answer()

    with serving(answer_slowly) as server:
        began = time.monotonic()
        (result,) = run(
            target_of(server.url(), data="{}"),
            load(Step(concurrency=2), Step(concurrency=4), duration=60, warm_up=0),
            on_tick=lambda number, seconds: seconds > 1,
        )
        assert time.monotonic() - began < 10
    assert result.interrupted
    assert result.seconds == pytest.approx(1, abs=0.5)
    assert result.errors == {"not finished": 2}
    assert result.requests == result.good + 2


@pytest.mark.real
def test_several_processes_share_the_load():
    with serving() as server:
        (result,) = run(
            target_of(server.url(), data="{}"),
            Load(steps=(Step(rate=100),), duration=0.5, warm_up=0.1, processes=2),
        )
    assert result.failed == 0
    assert 20 < result.requests < 90
    runs = {re.search(rb"x-request-id: ([0-9a-f]+)-", head)[1] for head, _ in server.requests}
    assert len(runs) == 3  # that of the first request, and one for each process


STATUS = {
    "engines": 1,
    "graphs": [
        {
            "name": "t",
            "version": "1",
            "ops": [
                {
                    "name": "op",
                    "batches": 0,
                    "samples": 0,
                    "waiting": 0,
                    "queue": {"sum": 0.0, "classes": {}},
                    "seconds": {"preprocess": 0.0, "process": 0.0, "postprocess": 0.0},
                }
            ],
        }
    ],
}


@pytest.mark.parametrize(
    ("status", "message"),
    [
        (None, "has no status: HTTP 404"),
        (b"{}", "the server has no readable status"),
        (json.dumps(STATUS).encode(), ""),
    ],
)
def test_a_server_without_a_status_is_measured(status: bytes | None, message: str):
    with serving(status=status) as server:
        (result,) = run(target_of(server.url(), data="{}"), load(Step(concurrency=1)))
    assert result.good
    assert result.ops == ()
    assert message in result.server_note
