"""Ops with seats in threads: steps, seats, ends."""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from penstock.errors import HttpError, OpTimeout
from penstock.executors.seats.steps import Steps
from penstock.executors.stream import MOST_PIECES
from penstock.executors.work import WorkOptions
from penstock.ops.seats import Done
from tests.executors.seats.harness import (
    PATIENCE,
    Reader,
    SeatHarness,
    Served,
    nothing,
    piece_each,
)


def run(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(test())


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers wait longer for those who may take free seats: this machine may be under load."""
    usual = Steps.wait_for_others
    monkeypatch.setattr(Steps, "wait_for_others", lambda self: PATIENCE * bool(usual(self)))


def ends(*names: str) -> Callable[[list[Any]], list[Any]]:
    """A step that ends these requests, and has a piece for the others."""
    return lambda running: [Done("last") if each["name"] in names else "piece" for each in running]


def test_requests_join_a_running_batch_and_leave_it_between_steps() -> None:
    async def test() -> None:
        async with SeatHarness(3) as h:
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
            assert h.made.joins == h.made.left == ["a", "b"]
            assert not h.verdict()

    run(test)


@pytest.mark.parametrize("result", [Done(), Done, Done(None)])
def test_a_request_may_end_without_a_last_piece(result: Any) -> None:
    async def test() -> None:
        async with SeatHarness(2) as h:
            a = h.ask("a")
            await h.begun()
            h.let_go(lambda _: [result])
            assert (await a.end()).error is None
            assert a.got == []

    run(test)


@pytest.mark.usefixtures("patient")
def test_a_seat_that_is_given_back_is_taken_in_the_next_step() -> None:
    async def test() -> None:
        async with SeatHarness(2) as h:
            await h.seated("a", "b")
            h.ask("c")
            await asyncio.sleep(0.02)  # a step of some milliseconds
            h.let_go(ends("a"))
            assert await h.begun() == ["b", "c"]

    run(test)


@pytest.mark.usefixtures("patient")
def test_no_seat_is_free_beside_one_who_waits() -> None:
    """Against a model, for random arrivals, ends and cancellations during each step."""

    async def test() -> None:
        choose = random.Random(1)
        async with SeatHarness(4) as h:
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
        assert sorted(h.made.left) == sorted(h.made.joins)

    run(test)


@pytest.mark.usefixtures("patient")
def test_a_cancelled_request_gives_its_seat_back_before_the_next_step() -> None:
    async def test() -> None:
        async with SeatHarness(2) as h:
            a, _ = await h.seated("a", "b")
            h.ask("c")
            a.cancel()
            await asyncio.sleep(0.02)
            h.let_go(piece_each)
            assert await h.begun() == ["b", "c"]
            assert h.made.left == ["a"]

    run(test)


def test_a_slow_reader_is_left_out_of_steps_and_nobody_else_notices() -> None:
    async def test() -> None:
        async with SeatHarness(2) as h:
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

    run(test)


def test_a_worker_without_a_request_that_can_run_waits_for_an_event() -> None:
    async def test() -> None:
        async with SeatHarness(1) as h:
            slow = h.ask("slow", reads=False)
            for _ in range(MOST_PIECES):
                await h.begun()
                h.let_go(piece_each)
            while len(slow.got) < MOST_PIECES:
                await asyncio.sleep(0)
            (thread,) = h.executor._threads  # type: ignore[attr-defined]
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

    run(test)


def test_a_join_that_raises_fails_its_own_request_only() -> None:
    async def test() -> None:
        async with SeatHarness(2) as h:
            a = h.ask("a")
            await h.begun()
            b = h.ask("b", error=HttpError(404, "no such prompt"))
            await h.dispatched(2)
            h.let_go(piece_each)
            outcome = await b.end()
            assert isinstance(outcome.error, HttpError)
            assert outcome.error.status == 404
            assert await h.begun() == ["a"]
            h.let_go(ends("a"))
            assert (await a.end()).error is None
            assert h.made.left == ["a"], "what did not join does not leave"

    run(test)


def test_a_step_that_raises_fails_all_that_have_joined_each_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def test() -> None:
        async with SeatHarness(3) as h:
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
            assert sorted(h.made.left) == ["a", "b", "slow"]
            c = h.ask("c")
            assert await h.begun() == ["c"]
            h.let_go(ends("c"))
            assert (await c.end()).error is None
            assert not h.verdict()

    run(test)
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
def test_a_step_with_the_wrong_number_of_results_fails_its_requests_once(
    results: Any, words: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def test() -> None:
        async with SeatHarness(2) as h:
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
            assert h.made.left == ["a", "b", "c"]

    run(test)
    assert words in caplog.text


@pytest.mark.parametrize("result", [ValueError("no"), object()], ids=["error", "no piece"])
def test_an_error_or_an_invalid_piece_fails_its_own_request_only(result: Any) -> None:
    async def test() -> None:
        async with SeatHarness(2) as h:
            a, b = await h.seated("a", "b")
            h.let_go(lambda _: [result, "piece"])
            assert (await a.end()).error is not None
            assert await h.begun() == ["b"]
            h.let_go(ends("b"))
            assert (await b.end()).error is None
            assert b.got == ["piece", "last"]

    run(test)


def test_a_step_over_the_timeout_fails_its_requests_and_the_seats_are_free_after_it() -> None:
    async def test() -> None:
        async with SeatHarness(2, options=WorkOptions(timeout=0.05)) as h:
            a, b = await h.seated("a", "b")
            for reader in (a, b):
                assert isinstance((await reader.end()).error, OpTimeout)
            c = h.ask("c")
            h.let_go(piece_each)
            assert await h.begun() == ["c"]
            h.let_go(ends("c"))
            assert (await c.end()).error is None
            assert h.made.left == ["a", "b", "c"]

    run(test)


def test_requests_beyond_the_seats_of_all_threads_wait() -> None:
    async def test() -> None:
        async with SeatHarness(2, workers=2) as h:
            for name in "abcde":
                h.ask(name)
            first = sorted([*await h.begun(), *await h.begun()])
            assert len(first) >= 2
            assert h.stage.statistics().waiting == 1
            assert h.executor.workers == 4

    run(test)


def test_those_that_have_joined_leave_once_at_the_end() -> None:
    async def test() -> None:
        async with SeatHarness(3) as h:
            h.ask("a")
            await h.begun()
            h.ask("b")
            await h.dispatched(2)
            h.let_go(nothing)
            assert await h.begun() == ["a", "b"]
        assert sorted(h.made.left) == ["a", "b"]

    run(test)


def test_a_leave_that_raises_costs_nobody_anything(caplog: pytest.LogCaptureFixture) -> None:
    class Leaving(Served):
        def leave(self, state: dict[str, Any]) -> None:
            super().leave(state)
            raise RuntimeError("it cannot")

    async def test() -> None:
        async with SeatHarness(2, Leaving()) as h:
            a = h.ask("a")
            await h.begun()
            h.let_go(ends("a"))
            assert (await a.end()).error is None
            b = h.ask("b")
            assert await h.begun() == ["b"]
            h.let_go(ends("b"))
            assert (await b.end()).error is None

    run(test)
    assert "leave raised" in caplog.text


class Fitting(Served):
    """It has memory for requests of ``size`` up to 10."""

    used = 0

    def fits(self, state: dict[str, Any]) -> bool:
        if self.used + state["size"] > 10:
            return False
        self.used += state["size"]
        state["runs"] = True
        return True

    def leave(self, state: dict[str, Any]) -> None:
        super().leave(state)
        self.used -= state["size"] if state.get("runs") else 0


def test_one_that_does_not_fit_waits_and_none_overtakes_it() -> None:
    async def test() -> None:
        async with SeatHarness(4, Fitting()) as h:
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
            assert h.made.used == 0

    run(test)


def test_one_that_does_not_fit_alone_fails() -> None:
    async def test() -> None:
        async with SeatHarness(4, Fitting()) as h:
            a = h.ask("a", size=11)
            outcome = await a.end()
            assert "fits refused it while nothing else ran" in str(outcome.error)
            assert h.made.left == ["a"]

    run(test)


def test_one_that_is_cancelled_while_it_does_not_fit_leaves() -> None:
    async def test() -> None:
        async with SeatHarness(4, Fitting()) as h:
            h.ask("a", size=6)
            await h.begun()
            b, _ = h.ask("b", size=6), h.ask("c", size=1)
            await h.dispatched(3)
            h.let_go(piece_each)
            assert await h.begun() == ["a"]
            b.cancel()
            h.let_go(piece_each)
            assert await h.begun() == ["a", "c"]
            assert h.made.left == ["b"]

    run(test)


def test_a_request_whose_deadline_passes_while_it_runs_leaves() -> None:
    async def test() -> None:
        async with SeatHarness(2) as h:
            a = h.ask("a", life=0.2)
            await h.begun()
            b = h.ask("b")
            await h.dispatched(2)
            h.let_go(piece_each)
            assert await h.begun() == ["a", "b"]
            assert (await a.end()).error is not None
            h.let_go(piece_each)
            assert await h.begun() == ["b"]
            assert h.made.left == ["a"]
            assert not b.outcome.done()

    run(test)
