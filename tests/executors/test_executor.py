"""The executor's contract: one report per Work, no batch lost or run twice, for every kind."""

import asyncio
import random
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from penstock.errors import HookFailed, InferenceFailed, OpTimeout
from penstock.executors.executor import Work
from penstock.executors.work import WorkOptions
from penstock.ops.op import Op
from penstock.request import Outcome
from tests.executors.harness import (
    KINDS,
    EngineHarness,
    ExecutorHarness,
    batch_of,
    body_op,
    executor_of,
)

SLOTTED = ("thread", "coroutine")


def echo(feed: dict[str, Any]) -> dict[str, Any]:
    return {"n": feed["n"]}


def numbers(outcomes: list[Outcome]) -> list[Any]:
    return [outcome.value and outcome.value["n"] for outcome in outcomes]


@pytest.fixture
def frequent_switching() -> Iterator[None]:
    """Makes threads switch as often as the interpreter allows, to provoke races."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.parametrize("kind", KINDS)
async def test_the_batches_of_a_work_are_reported_together_once_and_in_order(kind: str) -> None:
    harness = ExecutorHarness(executor_of(kind, body_op(kind, echo)))
    batches = [batch_of(n) for n in range(5)]
    results = await harness.run(*batches)
    assert [batch for batch, _ in results] == batches
    assert [numbers(outcomes) for _, outcomes in results] == [[n] for n in range(5)]
    assert await harness.executor.close(5.0)
    assert len(harness.reports) == 1


@pytest.mark.parametrize("kind", KINDS)
async def test_reports_arrive_on_the_loop_s_thread(kind: str) -> None:
    executor = executor_of(kind, body_op(kind, echo))
    reported_on: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    executor.submit(Work([batch_of(1)]), lambda *_: reported_on.set_result(threading.get_ident()))
    assert await asyncio.wait_for(reported_on, 10.0) == threading.get_ident()
    assert await executor.close(5.0)


@pytest.mark.parametrize("kind", KINDS)
async def test_a_work_without_batches_is_reported(kind: str) -> None:
    harness = ExecutorHarness(executor_of(kind, body_op(kind, echo)))
    work = harness.submit([batch_of(1)])
    taken = work.take_back()
    results = await harness.results(work)
    assert len(taken) + len(results) == 1
    assert await harness.executor.close(5.0)


@pytest.mark.parametrize("kind", KINDS)
async def test_work_submitted_before_the_close_is_reported(kind: str) -> None:
    harness = ExecutorHarness(executor_of(kind, body_op(kind, echo), workers=2))
    works = [harness.submit([batch_of(n)]) for n in range(2)]
    assert await harness.executor.close(5.0)
    assert {work for work, _ in harness.reports} == set(works)
    assert all(results[0][1][0].error is None for _, results in harness.reports)


@pytest.mark.parametrize("kind", KINDS)
async def test_the_duration_of_a_batch_is_recorded_in_it(kind: str) -> None:
    def slow(feed: dict[str, Any]) -> dict[str, Any]:
        time.sleep(0.01)
        return feed

    harness = ExecutorHarness(executor_of(kind, body_op(kind, slow)))
    batch = batch_of(1)
    await harness.run(batch)
    assert 0.01 <= batch.ran < 5.0
    assert batch.started is None
    assert await harness.executor.close(5.0)


# GeneratorExit and CancelledError have a meaning for coroutines, and are the likeliest to be
# missed.
EXCEPTIONS: tuple[type[BaseException], ...] = (
    ValueError,
    SystemExit,
    KeyboardInterrupt,
    MemoryError,
    RecursionError,
    GeneratorExit,
    asyncio.CancelledError,
    StopIteration,
)


class Raising(Op):
    """Raises in the hook that the request names."""

    def __init__(self, error: type[BaseException]) -> None:
        super().__init__(name="op")
        self.error = error

    def preprocess(self, input_dicts: Any, data_id: int = 0, log_id: int = 0) -> Any:
        (feed,) = input_dicts.values()
        self._raise_if_requested("preprocess", feed)
        return feed

    def process(self, feed_batch: Any, typical_logid: int = 0) -> Any:
        self._raise_if_requested("process", feed_batch[0])
        return feed_batch[0]

    def postprocess(
        self, input_data: Any, fetch_data: Any, data_id: int = 0, log_id: int = 0
    ) -> Any:
        (feed,) = input_data.values()
        self._raise_if_requested("postprocess", feed)
        return {"n": feed["n"]}

    def _raise_if_requested(self, hook: str, feed: dict[str, Any]) -> None:
        if feed.get("in") == hook:
            raise self.error


class AsyncRaising(Raising):
    async def process(self, feed_batch: Any, typical_logid: int = 0) -> Any:
        self._raise_if_requested("process", feed_batch[0])
        return feed_batch[0]


@pytest.mark.parametrize("error", EXCEPTIONS)
@pytest.mark.parametrize("hook", ["preprocess", "process", "postprocess"])
@pytest.mark.parametrize("kind", KINDS)
async def test_no_exception_of_a_hook_ends_the_worker_or_loses_a_batch(
    kind: str, hook: str, error: type[BaseException]
) -> None:
    op = AsyncRaising(error) if kind == "coroutine" else Raising(error)
    harness = ExecutorHarness(executor_of(kind, op))
    results = await harness.run(batch_of(1), batch_of(2, **{"in": hook}), batch_of(3))
    assert [batch.data_ids for batch, _ in results] == [[1], [2], [3]]
    first, second, third = (outcomes[0] for _, outcomes in results)
    assert numbers([first]) == [1]
    assert isinstance(second.error, HookFailed | InferenceFailed)
    assert isinstance(second.error, HookFailed) or kind == "coroutine"
    if error is not GeneratorExit or kind != "coroutine":
        # There it looks like the end of the loop, which ends the rest of the Work.
        assert numbers([third]) == [3]
    ((_, again),) = await harness.run(batch_of(4))
    assert numbers(again) == [4]
    assert await harness.executor.close(5.0)


@pytest.mark.parametrize("kind", KINDS)
async def test_an_endless_recursion_only_fails_its_own_batch(kind: str) -> None:
    def forever(feed: dict[str, Any]) -> dict[str, Any]:
        return forever(feed) if feed["n"] == 1 else echo(feed)

    harness = ExecutorHarness(executor_of(kind, body_op(kind, forever)))
    (_, deep), (_, flat) = await harness.run(batch_of(1), batch_of(2))
    assert isinstance(deep[0].error, HookFailed)
    assert numbers(flat) == [2]
    assert await harness.executor.close(5.0)


@pytest.mark.usefixtures("frequent_switching")
@pytest.mark.parametrize("workers", [1, 2])
async def test_taking_back_while_the_worker_runs_loses_no_batch_and_runs_none_twice(
    workers: int,
) -> None:
    chance = random.Random(workers)
    ran: list[int] = []

    def record(feed: dict[str, Any]) -> dict[str, Any]:
        ran.append(feed["n"])
        if chance.random() < 0.3:
            time.sleep(0)  # releases the GIL; otherwise eight batches run in one go
        return echo(feed)

    harness = ExecutorHarness(executor_of("thread", body_op("thread", record), workers))
    races = 0
    for _ in range(3000):
        ran.clear()
        work = harness.submit([batch_of(n) for n in range(8)])
        begin_by = time.monotonic() + 0.01
        while work.current is None and work.pending and time.monotonic() < begin_by:
            pass
        for _ in range(chance.choice((0, 0, 1, 5, 25, 100, 400, 1600))):
            pass  # a head start of varying length
        early = work.take_results()
        taken = [batch.data_ids[0] for batch in work.take_back()]
        early += work.take_results()
        results = early + await harness.results(work)
        began = [batch.data_ids[0] for batch, _ in results]
        assert began == ran
        assert [*began, *taken] == list(range(8))
        races += 0 < len(began) < 8
    assert races > 10, "hardly any round was a race"
    assert await harness.executor.close(5.0)


class Overlaps:
    """Counts the calls that run at once."""

    def __init__(self) -> None:
        self.running = 0
        self.most = 0
        self.total = 0
        self._lock = threading.Lock()

    def __enter__(self) -> None:
        with self._lock:
            self.running += 1
            self.total += 1
            self.most = max(self.most, self.running)

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self.running -= 1


@pytest.mark.parametrize("kind", SLOTTED)
async def test_abandoned_calls_keep_their_workers_so_that_no_more_run_than_there_are(
    kind: str,
) -> None:
    overlaps = Overlaps()
    slow_calls = 0

    def in_a_thread(feed: dict[str, Any]) -> dict[str, Any]:
        with overlaps:
            if feed["slow"]:
                assert feed["slow"].wait(10.0), "it was given up"
                time.sleep(0.015)  # takes some time to end
            return echo(feed)

    async def on_the_loop(feed: dict[str, Any]) -> dict[str, Any]:
        with overlaps:
            if feed["slow"]:
                try:
                    await asyncio.sleep(0.025)
                except asyncio.CancelledError:
                    await asyncio.sleep(0.005)  # takes some time to end
                    raise
            return echo(feed)

    harness = EngineHarness(
        kind,
        body_op(kind, on_the_loop if kind == "coroutine" else in_a_thread),
        workers=4,
        options=WorkOptions(timeout=0.01),
    )
    chance = random.Random(7)

    async def call_slowly() -> Outcome:
        done = threading.Event()
        outcome = await harness.request(slow=done)
        done.set()
        return outcome

    calls = []
    for _ in range(1000):
        slow = chance.random() < 0.1
        slow_calls += slow
        calls.append(call_slowly() if slow else harness.request(slow=None))
    outcomes = await asyncio.wait_for(asyncio.gather(*calls), 30.0)
    await harness.at_rest()
    timed_out = sum(isinstance(outcome.error, OpTimeout) for outcome in outcomes)
    assert timed_out >= slow_calls > 50
    assert overlaps.total == 1000
    assert overlaps.running == 0
    assert overlaps.most == 4, "all slots were in use, and never one more"
    assert harness.verdict() == []
    await harness.close()


@pytest.mark.parametrize("kind", SLOTTED)
async def test_a_request_that_timed_out_is_retried_with_its_own_inputs(
    kind: str,
) -> None:
    edits: list[Any] = []
    gate = threading.Event()

    def in_a_thread(feed: dict[str, Any]) -> dict[str, Any]:
        edits.append(feed.pop("edited", None))
        if len(edits) == 1:
            gate.wait(10.0)
            feed["n"] = "of the first attempt"
        return echo(feed)

    async def on_the_loop(feed: dict[str, Any]) -> dict[str, Any]:
        edits.append(feed.pop("edited", None))
        if len(edits) == 1:
            await asyncio.Event().wait()
        return echo(feed)

    body = on_the_loop if kind == "coroutine" else in_a_thread
    harness = EngineHarness(
        kind, body_op(kind, body), workers=2, options=WorkOptions(timeout=0.02, retry=2)
    )
    outcome = await harness.request(edited="not yet")
    gate.set()
    assert numbers([outcome]) == [0]
    assert edits == ["not yet", "not yet"]
    await harness.at_rest()
    assert harness.verdict() == []
    await harness.close()


class Hanging:
    """A body that hangs on request until ``let_go``, in a thread or on the loop."""

    def __init__(self) -> None:
        self._gate = threading.Event()
        self._loop_gate = asyncio.Event()

    def let_go(self) -> None:
        self._gate.set()
        self._loop_gate.set()

    def of(self, kind: str) -> Any:
        return self.on_the_loop if kind == "coroutine" else self.in_a_thread

    def in_a_thread(self, feed: dict[str, Any]) -> dict[str, Any]:
        if feed.get("hangs"):
            self._gate.wait(10.0)
        return echo(feed)

    async def on_the_loop(self, feed: dict[str, Any]) -> dict[str, Any]:
        if feed.get("hangs"):
            await self._loop_gate.wait()
        return echo(feed)


@pytest.mark.parametrize("limit", [0.05, None])
@pytest.mark.parametrize("kind", SLOTTED)
async def test_a_hanging_call_does_not_delay_others_of_its_hand_over(
    kind: str, limit: float | None
) -> None:
    body = Hanging()
    harness = EngineHarness(
        kind, body_op(kind, body.of(kind)), workers=2, options=WorkOptions(timeout=limit)
    )
    for _ in range(50):  # so that a hand-over carries several batches
        assert (await harness.request()).error is None
    calls = [asyncio.create_task(harness.request(hangs=n == 10)) for n in range(100)]
    _, unfinished = await asyncio.wait([*calls[:10], *calls[11:]], timeout=2.0)
    if limit:
        await calls[10]
    body.let_go()
    outcomes = await asyncio.wait_for(asyncio.gather(*calls), 10.0)
    assert not unfinished
    failed = [n for n, outcome in enumerate(outcomes) if outcome.error is not None]
    assert failed == ([10] if limit else [])
    await harness.at_rest()
    assert harness.verdict() == []
    await harness.close()


@pytest.mark.parametrize("kind", SLOTTED)
async def test_with_one_worker_results_before_a_hanging_call_are_reported_at_once(
    kind: str,
) -> None:
    body = Hanging()
    harness = EngineHarness(kind, body_op(kind, body.of(kind)))
    for _ in range(50):
        assert (await harness.request()).error is None
    calls = [asyncio.create_task(harness.request(hangs=n == 10)) for n in range(30)]
    done, _ = await asyncio.wait(calls, timeout=1.0)
    body.let_go()
    assert done >= set(calls[:10])
    await asyncio.wait_for(asyncio.gather(*calls), 10.0)
    assert harness.verdict() == []
    await harness.close()


@pytest.mark.parametrize("kind", SLOTTED)
async def test_the_number_of_attempts_is_limited(kind: str) -> None:
    body = Hanging()
    options = WorkOptions(timeout=0.02, retry=3)
    harness = EngineHarness(kind, body_op(kind, body.of(kind)), workers=3, options=options)
    outcome = await harness.request(hangs=True)
    assert isinstance(outcome.error, OpTimeout)
    body.let_go()
    await harness.at_rest()
    assert harness.stage.statistics().batches == 3
    assert harness.verdict() == []
    await harness.close()
