"""Ops with seats, in threads and in worker processes: steps, seats, ends."""

from __future__ import annotations

import asyncio
import os
import random
from collections import deque
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import HttpError, OpTimeout
from penstock.executors.seats.steps import Steps
from penstock.executors.stream import MOST_PIECES
from penstock.executors.work import WorkOptions
from penstock.observe.counters import of_steps
from penstock.ops.seats import Done
from tests.executors.seats.harness import (
    PATIENCE,
    Fitting,
    Leaving,
    Reader,
    SeatHarness,
    nothing,
    piece_each,
)

Start = Callable[..., SeatHarness]


@pytest.fixture(params=["threads", pytest.param("processes", marks=pytest.mark.real)])
def start(request: pytest.FixtureRequest, tmp_path: Path) -> Start:
    return partial(SeatHarness, folder=None if request.param == "threads" else tmp_path)


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers wait longer for those who may take free seats: this machine may be under load."""
    usual = Steps.wait_for_others
    monkeypatch.setattr(Steps, "wait_for_others", lambda self: PATIENCE * bool(usual(self)))


def ends(*names: str) -> Callable[[list[Any]], list[Any]]:
    """A step that ends these requests, and has a piece for the others."""
    return lambda running: [Done("last") if each["name"] in names else "piece" for each in running]


async def test_requests_join_a_running_batch_and_leave_it_between_steps(start: Start) -> None:
    async with start(3) as h:
        a = h.ask("a")
        assert await h.begun() == ["a"]
        b = h.ask("b")
        await h.dispatched(2)
        h.let_go(piece_each)
        assert await h.begun() == ["a", "b"]
        h.let_go(ends("a"))
        assert (await a.end()).error is None
        assert a.got == ["piece", "last"]
        assert await h.begun() == ["b"]
        h.let_go(ends("b"))
        assert (await b.end()).error is None
        assert b.got == ["piece", "last"]
        await h.at_rest()
        await h.until(lambda: h.made.joins == h.made.left == ["a", "b"])
        assert not h.verdict()


@pytest.mark.parametrize("result", [Done(), Done, Done(None)])
async def test_a_request_may_end_without_a_last_piece(start: Start, result: Any) -> None:
    async with start(2) as h:
        a = h.ask("a")
        await h.begun()
        h.let_go(lambda _: [result])
        assert (await a.end()).error is None
        assert a.got == []


@pytest.mark.usefixtures("patient")
async def test_a_seat_that_is_given_back_is_taken_in_the_next_step(start: Start) -> None:
    async with start(2) as h:
        await h.seated("a", "b")
        h.ask("c")
        await asyncio.sleep(0.02)  # a step of some milliseconds
        h.let_go(ends("a"))
        assert await h.begun() == ["b", "c"]


@pytest.mark.usefixtures("patient")
async def test_no_seat_is_free_beside_one_who_waits(start: Start) -> None:
    """Against a model, for random arrivals, ends and cancellations during each step."""

    choose = random.Random(1)
    async with start(4) as h:
        seated: list[Reader] = []  # they have joined, or join before the next step
        waiting: deque[Reader] = deque()
        asked = given = 0

        def arrive() -> None:
            nonlocal asked
            waiting.append(h.ask(f"{asked}"))
            asked += 1

        async def seat() -> None:
            nonlocal given
            while waiting and len(seated) < 4:
                seated.append(waiting.popleft())
                given += 1
            await h.dispatched(given)

        for _ in range(150):
            if not seated:
                arrive()
                await seat()
            assert await h.begun() == [each.feed_name for each in seated]
            runs = [*seated]
            for _ in range(choose.randrange(4)):
                arrive()
            await seat()
            for each in [one for one in (*seated, *waiting) if choose.random() < 0.1]:
                each.cancel()
                (seated if each in seated else waiting).remove(each)
            done = [one for one in runs if one in seated and choose.random() < 0.2]
            await asyncio.sleep(0.002)  # a step that takes so long waits for others
            h.let_go(ends(*(one.feed_name for one in done)))
            for one in done:
                seated.remove(one)
                assert (await one.end()).error is None
            await seat()
    assert not h.verdict()
    await h.until(lambda: sorted(h.made.left) == sorted(h.made.joins))


@pytest.mark.usefixtures("patient")
async def test_a_cancelled_request_gives_its_seat_back_before_the_next_step(start: Start) -> None:
    async with start(2) as h:
        a, _ = await h.seated("a", "b")
        h.ask("c")
        a.cancel()
        await asyncio.sleep(0.02)
        h.let_go(piece_each)
        assert await h.begun() == ["b", "c"]
        await h.until(lambda: h.made.left == ["a"])


async def test_a_request_that_is_cancelled_before_it_joins_never_does(start: Start) -> None:
    async with start(2) as h:
        h.ask("a")
        assert await h.begun() == ["a"]
        b = h.ask("b")
        await h.dispatched(2)
        b.cancel()
        h.let_go(piece_each)
        assert await h.begun() == ["a"]
        assert h.made.joins == ["a"]
        h.ask("c")
        await h.dispatched(3)
        h.let_go(piece_each)
        assert await h.begun() == ["a", "c"]
        assert not h.made.left


async def test_a_slow_reader_is_left_out_of_steps_and_nobody_else_notices(start: Start) -> None:
    async with start(2) as h:
        slow, quick = await h.seated("slow", "quick")
        slow.reads = False
        for n in range(MOST_PIECES + 4):
            h.let_go(piece_each)
            while len(quick.got) <= n:
                await asyncio.sleep(0)
            running = await h.begun()
            assert running == (["slow", "quick"] if n < MOST_PIECES - 1 else ["quick"])
        assert len(slow.got) == MOST_PIECES
        slow.resume()
        h.let_go(piece_each)
        assert await h.begun() == ["slow", "quick"]


async def test_a_worker_without_a_request_that_can_run_waits_for_an_event() -> None:
    async with SeatHarness(1) as h:
        slow = h.ask("slow", reads=False)
        for _ in range(MOST_PIECES):
            await h.begun()
            h.let_go(piece_each)
        while len(slow.got) < MOST_PIECES:
            await asyncio.sleep(0)
        (thread,) = h.executor._threads
        turns = 0
        admit = thread._steps.admit

        def counted() -> None:
            nonlocal turns
            turns += 1
            admit()

        thread._steps.admit = counted
        while not thread._sleeps:
            await asyncio.sleep(0)
        before = turns
        for _ in range(1000):
            await asyncio.sleep(0)
        assert turns == before
        slow.resume()
        assert await h.begun() == ["slow"]


async def test_a_join_that_raises_fails_its_own_request_only(start: Start) -> None:
    async with start(2) as h:
        a = h.ask("a")
        await h.begun()
        b = h.ask("b", status=404)
        await h.dispatched(2)
        h.let_go(piece_each)
        outcome = await b.end()
        assert isinstance(outcome.error, HttpError)
        assert outcome.error.status == 404
        assert await h.begun() == ["a"]
        h.let_go(ends("a"))
        assert (await a.end()).error is None
        await h.until(lambda: h.made.left == ["a"])  # what did not join does not leave


async def test_a_step_that_raises_fails_all_that_have_joined_each_once(
    start: Start,
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with start(3) as h:
        slow = h.ask("slow", reads=False)
        for _ in range(MOST_PIECES):
            await h.begun()
            h.let_go(piece_each)
        a, b = await h.seated("a", "b")

        def fail(running: list[Any]) -> Any:
            raise HttpError(503, "out of memory")

        h.let_go(fail)
        for reader in (slow, a, b):
            outcome = await reader.end()
            assert isinstance(outcome.error, HttpError)
            assert outcome.error.status == 503
        await h.until(lambda: sorted(h.made.left) == ["a", "b", "slow"])
        c = h.ask("c")
        assert await h.begun() == ["c"]
        h.let_go(ends("c"))
        assert (await c.end()).error is None
        assert not h.verdict()
    if h.processes is not None:  # it is in its log
        return
    (record,) = [each for each in caplog.records if each.levelname == "WARNING"]
    assert "step: out of memory (data_ids=[0, 1, 2]" in record.getMessage()


@pytest.mark.parametrize(
    ("results", "words"),
    [
        (["piece"], "a list of 2 results, one for each running request, got 1 of them"),
        (["piece"] * 3, "a list of 2 results, one for each running request, got 3 of them"),
        ("ab", "a list of 2 results, one for each running request, got one str"),
        (None, "a list of 2 results, one for each running request, got one NoneType"),
    ],
)
async def test_a_step_with_the_wrong_number_of_results_fails_its_requests_once(
    start: Start, results: Any, words: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with start(2) as h:
        a, b = await h.seated("a", "b")
        h.let_go(lambda _: results)
        for reader in (a, b):
            outcome = await reader.end()
            assert outcome.error is not None
            assert words in str(outcome.error)
        c = h.ask("c")
        assert await h.begun() == ["c"]
        h.let_go(ends("c"))
        assert (await c.end()).error is None
        await h.until(lambda: h.made.left == ["a", "b", "c"])
    assert h.processes is not None or words in caplog.text


@pytest.mark.parametrize("result", [ValueError("no"), 7.5], ids=["error", "no piece"])
async def test_an_error_or_an_invalid_piece_fails_its_own_request_only(
    start: Start, result: Any
) -> None:
    async with start(2) as h:
        a, b = await h.seated("a", "b")
        h.let_go(lambda _: [result, "piece"])
        assert (await a.end()).error is not None
        assert await h.begun() == ["b"]
        h.let_go(ends("b"))
        assert (await b.end()).error is None
        assert b.got == ["piece", "last"]


async def test_a_step_over_the_timeout_fails_its_requests_and_the_seats_are_free_after_it(
    start: Start,
) -> None:
    async with start(2, options=WorkOptions(timeout=0.05)) as h:
        a, b = await h.seated("a", "b")
        for reader in (a, b):
            assert isinstance((await reader.end()).error, OpTimeout)
        c = h.ask("c")
        h.let_go(piece_each)
        assert await h.begun() == ["c"]
        h.let_go(ends("c"))
        assert (await c.end()).error is None
        await h.until(lambda: h.made.left == ["a", "b", "c"])


async def test_a_join_over_the_timeout_is_named_in_the_log(
    start: Start, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    async with start(2, options=WorkOptions(timeout=0.05)) as h:
        a = h.ask("a", gate=str(gate))
        with await asyncio.to_thread(gate.open, "wb"):
            assert isinstance((await a.end()).error, OpTimeout)
        await h.until(lambda: h.made.left == ["a"])
        b = h.ask("b")
        await h.begun()
        assert isinstance((await b.end()).error, OpTimeout)
        h.let_go(nothing)
    found = [each.getMessage() for each in caplog.records if "took longer" in each.getMessage()]
    assert [line.split()[2] for line in found] == ["join", "process"]


async def test_requests_beyond_the_seats_of_all_threads_wait(start: Start) -> None:
    async with start(2, workers=2) as h:
        for name in "abcde":
            h.ask(name)
        first = sorted([*await h.begun(), *await h.begun()])
        assert len(first) >= 2
        assert h.stage.statistics().waiting == 1
        assert h.executor.workers == 4


async def test_those_that_have_joined_leave_once_at_the_end(start: Start) -> None:
    async with start(3) as h:
        h.ask("a")
        await h.begun()
        h.ask("b")
        await h.dispatched(2)
        h.let_go(nothing)
        assert await h.begun() == ["a", "b"]
    await h.until(lambda: sorted(h.made.left) == ["a", "b"])


async def test_a_leave_that_raises_costs_nobody_anything(
    start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    async with start(2, Leaving) as h:
        a = h.ask("a")
        await h.begun()
        h.let_go(ends("a"))
        assert (await a.end()).error is None
        b = h.ask("b")
        assert await h.begun() == ["b"]
        h.let_go(ends("b"))
        assert (await b.end()).error is None
    assert h.processes is not None or "leave raised" in caplog.text


async def test_one_that_does_not_fit_waits_and_none_overtakes_it(start: Start) -> None:
    async with start(4, Fitting) as h:
        h.ask("a", size=6)
        assert await h.begun() == ["a"]
        h.ask("b", size=6)
        h.ask("c", size=1)
        await h.dispatched(3)
        h.let_go(piece_each)
        assert await h.begun() == ["a"]
        h.let_go(ends("a"))
        assert await h.begun() == ["b", "c"]
        h.let_go(ends("b", "c"))
        await h.at_rest()
        assert getattr(h.made, "used", 0) == 0


async def test_one_that_does_not_fit_alone_fails_and_the_log_says_so(
    start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    async with start(4, Fitting) as h:
        a = h.ask("a", size=11)
        outcome = await a.end()
        assert "fits refused it while nothing else ran" in str(outcome.error)
        await h.until(lambda: h.made.left == ["a"])
    if h.processes is None:  # else it is in the log of the process
        (record,) = [each for each in caplog.records if each.levelname == "WARNING"]
        assert record.getMessage().startswith("op op: fits refused it while nothing else ran")
        assert "(data_ids=[0]" in record.getMessage()


async def test_fits_may_refuse_for_good_what_can_never_fit(start: Start) -> None:
    async with start(4, Fitting) as h:
        outcome = await h.ask("a", size=101).end()
        assert isinstance(outcome.error, HttpError)
        assert outcome.error.status == 413
        await h.until(lambda: h.made.left == ["a"])


async def test_those_that_are_cancelled_while_others_join_run_in_no_step(
    start: Start, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    async with start(5) as h:
        _, b = await h.seated("a", "b")
        others = b, h.ask("c", gate=str(gate)), h.ask("d")
        await h.dispatched(4)
        h.let_go(piece_each)
        with await asyncio.to_thread(gate.open, "wb"):  # c joins
            for each in others:
                each.cancel()
            await asyncio.sleep(0)
        assert await h.begun() == ["a"]
        h.let_go(ends("a"))
        await h.until(lambda: sorted(h.made.left) == ["a", "b", "c"])
        assert h.made.joins == ["a", "b", "c"]


async def test_one_that_is_cancelled_while_it_does_not_fit_leaves(start: Start) -> None:
    async with start(4, Fitting) as h:
        h.ask("a", size=6)
        await h.begun()
        b, _ = h.ask("b", size=6), h.ask("c", size=1)
        await h.dispatched(3)
        h.let_go(piece_each)
        assert await h.begun() == ["a"]
        b.cancel()
        h.let_go(piece_each)
        assert await h.begun() == ["a", "c"]
        await h.until(lambda: h.made.left == ["b"])


async def test_a_request_whose_deadline_passes_while_it_runs_leaves(start: Start) -> None:
    async with start(2) as h:
        a = h.ask("a", life=0.2)
        await h.begun()
        b = h.ask("b")
        await h.dispatched(2)
        h.let_go(piece_each)
        assert await h.begun() == ["a", "b"]
        assert (await a.end()).error is not None
        h.let_go(piece_each)
        assert await h.begun() == ["b"]
        await h.until(lambda: h.made.left == ["a"])
        assert not b.outcome.done()


@pytest.mark.parametrize("workers", [1, 2])
async def test_steps_are_counted_by_the_requests_that_ran(start: Start, workers: int) -> None:
    async with start(4, workers=workers) as h:
        assert of_steps(h.executor.step_counts)["count"] == 0
        for names in ("abc", "d"):
            readers = [h.ask(name) for name in names]
            running: set[str] = set()
            while running != {*names}:  # of one worker, or of two
                running |= {*await h.begun()}
                h.let_go(ends(*names))
            for reader in readers:
                await reader.end()
        seen = of_steps(h.executor.step_counts)
        assert seen["running"]["sum"] == 4
        assert 2 <= seen["count"] <= 4
        assert sum(seen["seconds"]["classes"].values()) == seen["count"]
