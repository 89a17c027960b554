"""Inline: the loop itself runs the op, so a timeout is detected afterwards."""

import asyncio
import time
from typing import Any

from penstock.errors import OpTimeout
from penstock.executors.work import WorkOptions
from tests.executors.harness import BodyOp, EngineHarness

LIMIT = 0.02


def slow_on_request(feed: dict[str, Any]) -> dict[str, Any]:
    if feed.get("slow"):
        time.sleep(LIMIT * 1.5)
    return {"n": feed["n"]}


async def test_a_call_over_its_timeout_is_answered_with_an_error_once_it_returns() -> None:
    harness = EngineHarness("inline", BodyOp(slow_on_request), options=WorkOptions(timeout=LIMIT))
    outcome = await harness.request(slow=True)
    assert isinstance(outcome.error, OpTimeout)
    assert "[op|0] Failed to process(batch: [0]): exceeded retry count." in str(outcome.error)
    assert (await harness.request()).error is None
    assert harness.verdict() == []


async def test_a_request_that_timed_out_is_retried() -> None:
    calls = 0

    def slow_at_first(feed: dict[str, Any]) -> dict[str, Any]:
        nonlocal calls
        calls += 1
        feed.pop("word")
        if calls == 1:
            time.sleep(LIMIT * 1.5)
        return {"n": feed["n"]}

    harness = EngineHarness(
        "inline", BodyOp(slow_at_first), options=WorkOptions(timeout=LIMIT, retry=9)
    )
    outcome = await harness.request(word="edited in place")
    assert outcome.value == {"n": 0}
    assert calls >= 2
    assert harness.verdict() == []


async def test_many_queued_requests_run_in_order_without_recursion() -> None:
    harness = EngineHarness("inline", BodyOp(slow_on_request))
    outcomes = await asyncio.gather(*(harness.request() for _ in range(5000)))
    assert [outcome.value for outcome in outcomes] == [{"n": n} for n in range(5000)]
    assert harness.verdict() == []


async def test_a_long_queue_of_slow_calls_does_not_block_the_loop() -> None:
    def slow(feed: dict[str, Any]) -> dict[str, Any]:
        time.sleep(0.002)
        return {"n": feed["n"]}

    harness = EngineHarness("inline", BodyOp(slow))
    longest = 0.0

    async def measure() -> None:
        nonlocal longest
        while True:
            before = time.monotonic()
            await asyncio.sleep(0)
            longest = max(longest, time.monotonic() - before)

    measuring = asyncio.create_task(measure())
    await asyncio.gather(*(harness.request() for _ in range(150)))
    measuring.cancel()
    assert longest < 0.1, "a third of what all of them take"


async def test_batches_left_for_a_later_turn_run_once_each() -> None:
    calls: list[int] = []

    def slow_at_times(feed: dict[str, Any]) -> dict[str, Any]:
        calls.append(feed["n"])
        if feed["n"] % 50 == 49:
            time.sleep(0.003)  # much longer than the estimate from earlier calls
        return {"n": feed["n"]}

    harness = EngineHarness("inline", BodyOp(slow_at_times))
    outcomes = await asyncio.gather(*(harness.request() for _ in range(500)))
    assert [outcome.value for outcome in outcomes] == [{"n": n} for n in range(500)]
    assert calls == list(range(500))
    assert harness.verdict() == []
