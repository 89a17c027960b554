"""The port's contract: one report per Work, no batch lost or run twice, whoever runs it."""

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
from tests.executors.house import (
    KINDS,
    Desk,
    House,
    batch_of,
    doing,
    executor_of,
)

SLOTTED = ("thread", "coroutine")


def echo(feed: dict[str, Any]) -> dict[str, Any]:
    return {"n": feed["n"]}


def numbers(outcomes: list[Outcome]) -> list[Any]:
    return [outcome.value and outcome.value["n"] for outcome in outcomes]


@pytest.fixture
def eager_switching() -> Iterator[None]:
    """Threads take turns as often as the interpreter allows, so that races have their chance."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.parametrize("kind", KINDS)
async def test_the_batches_of_a_work_come_back_together_once_and_in_order(kind: str) -> None:
    desk = Desk(executor_of(kind, doing(kind, echo)))
    batches = [batch_of(n) for n in range(5)]
    results = await desk.run(*batches)
    assert [batch for batch, _ in results] == batches
    assert [numbers(outcomes) for _, outcomes in results] == [[n] for n in range(5)]
    assert await desk.executor.close(5.0)
    assert len(desk.reports) == 1


@pytest.mark.parametrize("kind", KINDS)
async def test_reports_come_on_the_loops_own_thread(kind: str) -> None:
    executor = executor_of(kind, doing(kind, echo))
    told: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    executor.submit(Work([batch_of(1)]), lambda *_: told.set_result(threading.get_ident()))
    assert await asyncio.wait_for(told, 10.0) == threading.get_ident()
    assert await executor.close(5.0)


@pytest.mark.parametrize("kind", KINDS)
async def test_a_work_without_batches_is_reported_too(kind: str) -> None:
    desk = Desk(executor_of(kind, doing(kind, echo)))
    work = desk.submit([batch_of(1)])
    taken = work.take_back()
    results = await desk.results(work)
    assert len(taken) + len(results) == 1
    assert await desk.executor.close(5.0)


@pytest.mark.parametrize("kind", KINDS)
async def test_what_was_submitted_before_the_end_is_still_reported(kind: str) -> None:
    desk = Desk(executor_of(kind, doing(kind, echo), workers=2))
    works = [desk.submit([batch_of(n)]) for n in range(2)]
    assert await desk.executor.close(5.0)
    assert {work for work, _ in desk.reports} == set(works)
    assert all(results[0][1][0].error is None for _, results in desk.reports)


@pytest.mark.parametrize("kind", KINDS)
async def test_how_long_a_batch_ran_is_noted_on_it(kind: str) -> None:
    def slow(feed: dict[str, Any]) -> dict[str, Any]:
        time.sleep(0.01)
        return feed

    desk = Desk(executor_of(kind, doing(kind, slow)))
    batch = batch_of(1)
    await desk.run(batch)
    assert 0.01 <= batch.ran < 5.0
    assert batch.started is None
    assert await desk.executor.close(5.0)


# GeneratorExit and CancelledError belong to the machinery of coroutines, so that they are the
# likeliest to slip through.
LAST_STRAWS: tuple[type[BaseException], ...] = (
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
        self._reached("preprocess", feed)
        return feed

    def process(self, feed_batch: Any, typical_logid: int = 0) -> Any:
        self._reached("process", feed_batch[0])
        return feed_batch[0]

    def postprocess(
        self, input_data: Any, fetch_data: Any, data_id: int = 0, log_id: int = 0
    ) -> Any:
        (feed,) = input_data.values()
        self._reached("postprocess", feed)
        return {"n": feed["n"]}

    def _reached(self, hook: str, feed: dict[str, Any]) -> None:
        if feed.get("in") == hook:
            raise self.error


class AsyncRaising(Raising):
    async def process(self, feed_batch: Any, typical_logid: int = 0) -> Any:
        self._reached("process", feed_batch[0])
        return feed_batch[0]


@pytest.mark.parametrize("error", LAST_STRAWS)
@pytest.mark.parametrize("hook", ["preprocess", "process", "postprocess"])
@pytest.mark.parametrize("kind", KINDS)
async def test_no_exception_of_a_hook_ends_the_worker_or_loses_a_batch(
    kind: str, hook: str, error: type[BaseException]
) -> None:
    op = AsyncRaising(error) if kind == "coroutine" else Raising(error)
    desk = Desk(executor_of(kind, op))
    results = await desk.run(batch_of(1), batch_of(2, **{"in": hook}), batch_of(3))
    assert [batch.data_ids for batch, _ in results] == [[1], [2], [3]]
    first, second, third = (outcomes[0] for _, outcomes in results)
    assert numbers([first]) == [1]
    assert isinstance(second.error, HookFailed | InferenceFailed)
    assert isinstance(second.error, HookFailed) or kind == "coroutine"
    if error is not GeneratorExit or kind != "coroutine":
        # There it cannot be told from the end of the loop, which takes the rest of the Work along.
        assert numbers([third]) == [3]
    ((_, again),) = await desk.run(batch_of(4))
    assert numbers(again) == [4]
    assert await desk.executor.close(5.0)


@pytest.mark.parametrize("kind", KINDS)
async def test_a_recursion_without_end_fails_its_batch_only(kind: str) -> None:
    def forever(feed: dict[str, Any]) -> dict[str, Any]:
        return forever(feed) if feed["n"] == 1 else echo(feed)

    desk = Desk(executor_of(kind, doing(kind, forever)))
    (_, deep), (_, flat) = await desk.run(batch_of(1), batch_of(2))
    assert isinstance(deep[0].error, HookFailed)
    assert numbers(flat) == [2]
    assert await desk.executor.close(5.0)


@pytest.mark.usefixtures("eager_switching")
@pytest.mark.parametrize("workers", [1, 2])
async def test_taking_back_races_with_the_worker_and_no_batch_is_lost_or_run_twice(
    workers: int,
) -> None:
    chance = random.Random(workers)
    ran: list[int] = []

    def note(feed: dict[str, Any]) -> dict[str, Any]:
        ran.append(feed["n"])
        if chance.random() < 0.3:
            time.sleep(0)  # give the interpreter's lock away: else eight batches run in one go
        return echo(feed)

    desk = Desk(executor_of("thread", doing("thread", note), workers))
    races = 0
    for _ in range(3000):
        ran.clear()
        work = desk.submit([batch_of(n) for n in range(8)])
        begin_by = time.monotonic() + 0.01
        while work.current is None and work.pending and time.monotonic() < begin_by:
            pass
        for _ in range(chance.choice((0, 0, 1, 5, 25, 100, 400, 1600))):
            pass  # a head start of a varying length
        early = work.take_results()
        taken = [batch.data_ids[0] for batch in work.take_back()]
        early += work.take_results()
        results = early + await desk.results(work)
        began = [batch.data_ids[0] for batch, _ in results]
        assert began == ran
        assert [*began, *taken] == list(range(8))
        races += 0 < len(began) < 8
    assert races > 10, "hardly any round was a race"
    assert await desk.executor.close(5.0)


class Overlaps:
    """How many calls run at once, whoever asked for them."""

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
async def test_given_up_calls_keep_their_slots_so_that_no_more_run_than_there_are_workers(
    kind: str,
) -> None:
    overlaps = Overlaps()
    slow_calls = 0

    def in_a_thread(feed: dict[str, Any]) -> dict[str, Any]:
        with overlaps:
            if feed["slow"]:
                assert feed["slow"].wait(10.0), "it was given up"
                time.sleep(0.015)  # takes its time to end
            return echo(feed)

    async def on_the_loop(feed: dict[str, Any]) -> dict[str, Any]:
        with overlaps:
            if feed["slow"]:
                try:
                    await asyncio.sleep(0.025)
                except asyncio.CancelledError:
                    await asyncio.sleep(0.005)  # takes its time to end
                    raise
            return echo(feed)

    house = House(
        kind,
        doing(kind, on_the_loop if kind == "coroutine" else in_a_thread),
        workers=4,
        options=WorkOptions(timeout=0.01),
    )
    chance = random.Random(7)

    async def ask_slowly() -> Outcome:
        given_up = threading.Event()
        outcome = await house.ask(slow=given_up)
        given_up.set()
        return outcome

    asked = []
    for _ in range(1000):
        slow = chance.random() < 0.1
        slow_calls += slow
        asked.append(ask_slowly() if slow else house.ask(slow=None))
    outcomes = await asyncio.wait_for(asyncio.gather(*asked), 30.0)
    await house.at_rest()
    timed_out = sum(isinstance(outcome.error, OpTimeout) for outcome in outcomes)
    assert timed_out >= slow_calls > 50
    assert overlaps.total == 1000
    assert overlaps.running == 0
    assert overlaps.most == 4, "all slots were in use, and never one more"
    assert house.verdict() == []
    await house.close()


@pytest.mark.parametrize("kind", SLOTTED)
async def test_after_a_time_out_the_request_is_tried_again_with_inputs_of_its_own(
    kind: str,
) -> None:
    seen: list[Any] = []
    gate = threading.Event()

    def in_a_thread(feed: dict[str, Any]) -> dict[str, Any]:
        seen.append(feed.pop("edited", None))
        if len(seen) == 1:
            gate.wait(10.0)
            feed["n"] = "of the first attempt"
        return echo(feed)

    async def on_the_loop(feed: dict[str, Any]) -> dict[str, Any]:
        seen.append(feed.pop("edited", None))
        if len(seen) == 1:
            await asyncio.Event().wait()
        return echo(feed)

    body = on_the_loop if kind == "coroutine" else in_a_thread
    house = House(kind, doing(kind, body), workers=2, options=WorkOptions(timeout=0.02, retry=2))
    outcome = await house.ask(edited="not yet")
    gate.set()
    assert numbers([outcome]) == [0]
    assert seen == ["not yet", "not yet"]
    await house.at_rest()
    assert house.verdict() == []
    await house.close()


class Hanging:
    """A body that hangs when told to, until ``let_go``; the kind decides how."""

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
async def test_a_hanging_call_delays_nobody_else_who_was_handed_over_with_it(
    kind: str, limit: float | None
) -> None:
    body = Hanging()
    house = House(kind, doing(kind, body.of(kind)), workers=2, options=WorkOptions(timeout=limit))
    for _ in range(50):  # so that a hand-over carries several batches
        assert (await house.ask()).error is None
    asked = [asyncio.create_task(house.ask(hangs=n == 10)) for n in range(100)]
    _, left = await asyncio.wait([*asked[:10], *asked[11:]], timeout=2.0)
    if limit:
        await asked[10]
    body.let_go()
    outcomes = await asyncio.wait_for(asyncio.gather(*asked), 10.0)
    assert not left
    failed = [n for n, outcome in enumerate(outcomes) if outcome.error is not None]
    assert failed == ([10] if limit else [])
    await house.at_rest()
    assert house.verdict() == []
    await house.close()


@pytest.mark.parametrize("kind", SLOTTED)
async def test_with_a_single_worker_those_before_a_hanging_call_are_answered_at_once(
    kind: str,
) -> None:
    body = Hanging()
    house = House(kind, doing(kind, body.of(kind)))
    for _ in range(50):
        assert (await house.ask()).error is None
    asked = [asyncio.create_task(house.ask(hangs=n == 10)) for n in range(30)]
    done, _ = await asyncio.wait(asked, timeout=1.0)
    body.let_go()
    assert done >= set(asked[:10])
    await asyncio.wait_for(asyncio.gather(*asked), 10.0)
    assert house.verdict() == []
    await house.close()


@pytest.mark.parametrize("kind", SLOTTED)
async def test_attempts_end_at_the_number_that_was_allowed(kind: str) -> None:
    body = Hanging()
    options = WorkOptions(timeout=0.02, retry=3)
    house = House(kind, doing(kind, body.of(kind)), workers=3, options=options)
    outcome = await house.ask(hangs=True)
    assert isinstance(outcome.error, OpTimeout)
    body.let_go()
    await house.at_rest()
    assert house.stage.statistics().batches == 3
    assert house.verdict() == []
    await house.close()
