"""Coroutines: calls on the loop are cancelled, and may take time to end."""

import asyncio
import time
from typing import Any

import pytest

from penstock.errors import DeadlineExceeded, HookFailed, OpTimeout
from penstock.executors.work import WorkOptions
from tests.executors.harness import (
    AsyncBodyOp,
    EngineHarness,
    ExecutorHarness,
    batch_of,
    executor_of,
)


@pytest.mark.parametrize(("limit", "deadline"), [(0.02, 10.0), (None, 0.05)])
async def test_an_abandoned_call_is_cancelled_and_frees_its_worker(
    limit: float | None, deadline: float
) -> None:
    ended: list[str] = []

    async def hangs_at_first(feed: dict[str, Any]) -> dict[str, Any]:
        if feed["hangs"]:
            try:
                await asyncio.Event().wait()
            finally:
                ended.append("the call")
        return feed

    harness = EngineHarness(
        "coroutine", AsyncBodyOp(hangs_at_first), options=WorkOptions(timeout=limit)
    )
    slow, quick = await asyncio.gather(
        harness.request(deadline, hangs=True), harness.request(hangs=False)
    )
    assert isinstance(slow.error, OpTimeout if limit else DeadlineExceeded)
    assert quick.error is None, "the only slot was free again"
    assert ended == ["the call"]
    assert harness.verdict() == []


async def test_a_call_is_cancelled_only_once() -> None:
    events: list[str] = []
    begun, may_end = asyncio.Event(), asyncio.Event()

    async def clean_up(feed: dict[str, Any]) -> dict[str, Any]:
        try:
            begun.set()
            await asyncio.Event().wait()
        finally:
            await may_end.wait()
            events.append("cleared up")
        return feed

    harness = ExecutorHarness(executor_of("coroutine", AsyncBodyOp(clean_up)))
    work = harness.submit([batch_of(1)])
    await begun.wait()
    for _ in range(3):
        harness.executor.abandon(work)
        await asyncio.sleep(0)
    may_end.set()
    await harness.results(work)
    assert events == ["cleared up"]


async def test_a_cancelled_call_that_ends_slowly_keeps_its_worker_until_it_ends() -> None:
    events: list[str] = []
    may_end = asyncio.Event()

    async def slow_to_end(feed: dict[str, Any]) -> dict[str, Any]:
        events.append(f"{feed['n']} begins")
        if feed["n"] == 0:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                await may_end.wait()
                events.append("0 ends")
        return feed

    harness = EngineHarness(
        "coroutine", AsyncBodyOp(slow_to_end), options=WorkOptions(timeout=0.02)
    )
    slow = asyncio.create_task(harness.request())
    quick = asyncio.create_task(harness.request())
    assert isinstance((await slow).error, OpTimeout)
    assert not quick.done()
    may_end.set()
    assert (await quick).error is None
    assert events == ["0 begins", "0 ends", "1 begins"]
    assert harness.verdict() == []


async def test_the_cancellation_of_a_hook_s_helper_task_only_fails_its_own_batch() -> None:
    async def wait_forever() -> None:
        await asyncio.Event().wait()

    async def cancels_its_helper(feed: dict[str, Any]) -> dict[str, Any]:
        if feed["n"] == 2:
            helper = asyncio.create_task(wait_forever())
            asyncio.get_running_loop().call_soon(helper.cancel)
            await helper
        return {"n": feed["n"]}

    harness = ExecutorHarness(executor_of("coroutine", AsyncBodyOp(cancels_its_helper)))
    results = await harness.run(*[batch_of(n) for n in (1, 2, 3)])
    one, two, three = (outcomes[0] for _, outcomes in results)
    assert (one.value, three.value) == ({"n": 1}, {"n": 3})
    assert isinstance(two.error, HookFailed)
    assert "CancelledError" in str(two.error)


async def test_a_hook_s_own_timeout_is_its_own_matter() -> None:
    async def gives_up(feed: dict[str, Any]) -> dict[str, Any]:
        try:
            async with asyncio.timeout(0.001):
                await asyncio.Event().wait()
        except TimeoutError:
            return {"n": feed["n"], "gave up": True}
        raise AssertionError("the limit did not hold")

    harness = ExecutorHarness(executor_of("coroutine", AsyncBodyOp(gives_up)))
    for _, (outcome,) in await harness.run(batch_of(1), batch_of(2)):
        assert outcome.value is not None
        assert outcome.value["gave up"]


async def test_closing_with_a_call_that_ignores_cancellation_is_bounded_and_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    released = asyncio.Event()

    async def ignore_cancellation(feed: dict[str, Any]) -> dict[str, Any]:
        while not released.is_set():
            try:
                await released.wait()
            except asyncio.CancelledError:
                continue
        return feed

    harness = ExecutorHarness(executor_of("coroutine", AsyncBodyOp(ignore_cancellation)))
    work = harness.submit([batch_of(1)])
    await asyncio.sleep(0)
    began = time.monotonic()
    assert await harness.executor.close(0.1) is False
    assert time.monotonic() - began < 4.0
    assert "op op: 1 calls did not return in time" in caplog.text
    released.set()
    await harness.results(work)
