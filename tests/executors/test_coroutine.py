"""Coroutines: calls on the loop can really be ended, and end when they like."""

import asyncio
import time
from typing import Any

import pytest

from penstock.errors import DeadlineExceeded, HookFailed, OpTimeout
from penstock.executors.work import WorkOptions
from tests.executors.house import AsyncDoing, Desk, House, batch_of, executor_of


@pytest.mark.parametrize(("limit", "life"), [(0.02, 10.0), (None, 0.05)])
async def test_a_call_that_nobody_waits_for_is_ended_and_frees_its_slot(
    limit: float | None, life: float
) -> None:
    ended: list[str] = []

    async def hangs_at_first(feed: dict[str, Any]) -> dict[str, Any]:
        if feed["hangs"]:
            try:
                await asyncio.Event().wait()
            finally:
                ended.append("the call")
        return feed

    house = House("coroutine", AsyncDoing(hangs_at_first), options=WorkOptions(timeout=limit))
    slow, quick = await asyncio.gather(house.ask(life, hangs=True), house.ask(hangs=False))
    assert isinstance(slow.error, OpTimeout if limit else DeadlineExceeded)
    assert quick.error is None, "the only slot was free again"
    assert ended == ["the call"]
    assert house.verdict() == []


async def test_a_call_is_told_only_once_to_end() -> None:
    story: list[str] = []
    begun, may_end = asyncio.Event(), asyncio.Event()

    async def clears_up(feed: dict[str, Any]) -> dict[str, Any]:
        try:
            begun.set()
            await asyncio.Event().wait()
        finally:
            await may_end.wait()
            story.append("cleared up")
        return feed

    desk = Desk(executor_of("coroutine", AsyncDoing(clears_up)))
    work = desk.submit([batch_of(1)])
    await begun.wait()
    for _ in range(3):
        desk.executor.abandon(work)
        await asyncio.sleep(0)
    may_end.set()
    await desk.results(work)
    assert story == ["cleared up"]


async def test_a_call_that_ends_slowly_after_its_time_out_keeps_its_slot_until_then() -> None:
    story: list[str] = []
    may_end = asyncio.Event()

    async def stubborn(feed: dict[str, Any]) -> dict[str, Any]:
        story.append(f"{feed['n']} begins")
        if feed["n"] == 0:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                await may_end.wait()
                story.append("0 ends")
        return feed

    house = House("coroutine", AsyncDoing(stubborn), options=WorkOptions(timeout=0.02))
    slow = asyncio.create_task(house.ask())
    quick = asyncio.create_task(house.ask())
    assert isinstance((await slow).error, OpTimeout)
    assert not quick.done()
    may_end.set()
    assert (await quick).error is None
    assert story == ["0 begins", "0 ends", "1 begins"]
    assert house.verdict() == []


async def test_what_a_hook_waits_for_may_be_cancelled_and_only_its_own_batch_fails() -> None:
    async def nobody() -> None:
        await asyncio.Event().wait()

    async def cancels_its_helper(feed: dict[str, Any]) -> dict[str, Any]:
        if feed["n"] == 2:
            helper = asyncio.create_task(nobody())
            asyncio.get_running_loop().call_soon(helper.cancel)
            await helper
        return {"n": feed["n"]}

    desk = Desk(executor_of("coroutine", AsyncDoing(cancels_its_helper)))
    results = await desk.run(*[batch_of(n) for n in (1, 2, 3)])
    one, two, three = (outcomes[0] for _, outcomes in results)
    assert (one.value, three.value) == ({"n": 1}, {"n": 3})
    assert isinstance(two.error, HookFailed)
    assert "CancelledError" in str(two.error)


async def test_a_hooks_own_time_limit_is_its_own_affair() -> None:
    async def gives_up(feed: dict[str, Any]) -> dict[str, Any]:
        try:
            async with asyncio.timeout(0.001):
                await asyncio.Event().wait()
        except TimeoutError:
            return {"n": feed["n"], "gave up": True}
        raise AssertionError("the limit did not hold")

    desk = Desk(executor_of("coroutine", AsyncDoing(gives_up)))
    for _, (outcome,) in await desk.run(batch_of(1), batch_of(2)):
        assert outcome.value is not None
        assert outcome.value["gave up"]


async def test_closing_over_a_call_that_ignores_its_cancellation_is_bounded_and_says_where(
    caplog: pytest.LogCaptureFixture,
) -> None:
    over = asyncio.Event()

    async def deaf(feed: dict[str, Any]) -> dict[str, Any]:
        while not over.is_set():
            try:
                await over.wait()
            except asyncio.CancelledError:
                continue
        return feed

    desk = Desk(executor_of("coroutine", AsyncDoing(deaf)))
    work = desk.submit([batch_of(1)])
    await asyncio.sleep(0)
    began = time.monotonic()
    assert await desk.executor.close(0.1) is False
    assert time.monotonic() - began < 4.0
    assert "op op: 1 calls did not return in time" in caplog.text
    over.set()
    await desk.results(work)
