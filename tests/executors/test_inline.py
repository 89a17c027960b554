"""Inline: the loop itself runs the op, so a time-out can only be judged afterwards."""

import asyncio
import time
from typing import Any

from penstock.errors import OpTimeout
from penstock.executors.work import WorkOptions
from tests.executors.house import Doing, House

LIMIT = 0.02


def slow_when_told(feed: dict[str, Any]) -> dict[str, Any]:
    if feed.get("slow"):
        time.sleep(LIMIT * 1.5)
    return {"n": feed["n"]}


async def test_a_call_over_its_limit_is_answered_with_the_time_out_once_it_has_returned() -> None:
    house = House("inline", Doing(slow_when_told), options=WorkOptions(timeout=LIMIT))
    outcome = await house.ask(slow=True)
    assert isinstance(outcome.error, OpTimeout)
    assert "[op|0] Failed to process(batch: [0]): exceeded retry count." in str(outcome.error)
    assert (await house.ask()).error is None
    assert house.verdict() == []


async def test_after_a_time_out_the_request_is_tried_again() -> None:
    calls = 0

    def slow_at_first(feed: dict[str, Any]) -> dict[str, Any]:
        nonlocal calls
        calls += 1
        feed.pop("word")
        if calls == 1:
            time.sleep(LIMIT * 1.5)
        return {"n": feed["n"]}

    house = House("inline", Doing(slow_at_first), options=WorkOptions(timeout=LIMIT, retry=9))
    outcome = await house.ask(word="edited in place")
    assert outcome.value == {"n": 0}
    assert calls >= 2
    assert house.verdict() == []


async def test_many_waiting_requests_are_run_in_turn_without_growing_the_stack() -> None:
    house = House("inline", Doing(slow_when_told))
    outcomes = await asyncio.gather(*(house.ask() for _ in range(5000)))
    assert [outcome.value for outcome in outcomes] == [{"n": n} for n in range(5000)]
    assert house.verdict() == []


async def test_a_long_queue_of_slowish_calls_lets_the_loop_breathe() -> None:
    def slowish(feed: dict[str, Any]) -> dict[str, Any]:
        time.sleep(0.002)
        return {"n": feed["n"]}

    house = House("inline", Doing(slowish))
    longest = 0.0

    async def another() -> None:
        nonlocal longest
        while True:
            before = time.monotonic()
            await asyncio.sleep(0)
            longest = max(longest, time.monotonic() - before)

    other = asyncio.create_task(another())
    await asyncio.gather(*(house.ask() for _ in range(150)))
    other.cancel()
    assert longest < 0.1, "a third of what all of them take"


async def test_what_was_left_off_runs_in_a_later_turn_each_batch_once() -> None:
    calls: list[int] = []

    def slow_at_times(feed: dict[str, Any]) -> dict[str, Any]:
        calls.append(feed["n"])
        if feed["n"] % 50 == 49:
            time.sleep(0.003)  # far beyond what was learned from those before
        return {"n": feed["n"]}

    house = House("inline", Doing(slow_at_times))
    outcomes = await asyncio.gather(*(house.ask() for _ in range(500)))
    assert [outcome.value for outcome in outcomes] == [{"n": n} for n in range(500)]
    assert calls == list(range(500))
    assert house.verdict() == []
