"""Worker processes with seats: their deaths, and who runs again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import WorkerDied
from penstock.executors.work import WorkOptions
from penstock.executors.workers.watchdog import Supervision
from penstock.observe.counters import of_steps
from penstock.ops.seats import Done
from tests.executors.seats.harness import SeatHarness, nothing, piece_each

pytestmark = pytest.mark.real

Start = Callable[..., SeatHarness]


@pytest.fixture
def start(tmp_path: Path) -> Start:
    return partial(SeatHarness, folder=tmp_path)


def die(running: list[Any]) -> Any:
    """A step of which the process dies."""
    return "die"


def end_all(running: list[Any]) -> list[Any]:
    return [Done("last") for _ in running]


async def test_a_death_is_told_to_all_seats_once_and_the_worker_is_replaced(start: Start) -> None:
    async with start(3) as h:
        a, b = await h.seated("a", "b")
        h.let_go(die)
        for reader in (a, b):
            assert isinstance((await reader.end()).error, WorkerDied)
        c = h.ask("c")
        assert await h.begun() == ["c"]
        h.let_go(end_all)
        assert (await c.end()).error is None
        assert c.got == ["last"]
        # One step of a, and one of c in the next worker; the one that killed it never ended.
        assert of_steps(h.executor.step_counts)["running"] == {"sum": 2, "classes": {"<= 1": 2}}
    assert of_steps(h.executor.step_counts)["count"] == 2
    assert not h.verdict()


async def test_those_without_a_piece_run_again_alone_and_no_other(start: Start) -> None:
    async with start(3, options=WorkOptions(retry_on_crash=True)) as h:
        (a,) = await h.seated("a")
        h.let_go(piece_each)
        assert await h.begun() == ["a"]
        asked = h.stage.statistics().samples
        b, c = h.ask("b"), h.ask("c")
        await h.dispatched(asked + 2)
        h.let_go(nothing)
        assert await h.begun() == ["a", "b", "c"]
        h.let_go(die)
        assert isinstance((await a.end()).error, WorkerDied), "a piece of it has been sent"
        assert a.got == ["piece"]
        assert await h.begun() == ["b"], "it is under suspicion, as any of them is"
        d = h.ask("d")
        h.let_go(nothing)
        assert await h.begun() == ["b"], "alone"
        h.let_go(end_all)
        assert (await b.end()).error is None
        left = {*"cd"}
        while left:
            running = await h.begun()
            assert running in (["c"], ["d"])
            left -= {*running}
            h.let_go(end_all)
        assert (await c.end()).error is None
        assert (await d.end()).error is None


async def test_inputs_of_which_two_workers_die_are_refused(start: Start) -> None:
    async with start(2, options=WorkOptions(retry_on_crash=True)) as h:
        a = h.ask("a", dies=True)
        outcome = await a.end()
        assert "two workers have died of this request" in str(outcome.error)


async def test_a_request_that_a_dead_worker_had_not_taken_in_runs_in_the_next(start: Start) -> None:
    async with start(3) as h:
        (a,) = await h.seated("a")
        b = h.ask("b")
        await h.dispatched(2)
        h.let_go(die)
        assert isinstance((await a.end()).error, WorkerDied)
        assert await h.begun() == ["b"]
        h.let_go(end_all)
        assert (await b.end()).error is None


async def test_a_step_over_the_timeout_ends_its_worker_if_it_is_to_be_killed(start: Start) -> None:
    limits = Supervision(kill_late=True)
    async with start(2, options=WorkOptions(timeout=1.0), supervision=limits) as h:
        a, b = await h.seated("a", "b")
        for reader in (a, b):
            assert (await reader.end()).error is not None
        c = h.ask("c")
        h.let_go(nothing)  # of the process that is killed
        assert await h.begun() == ["c"]
        h.let_go(end_all)
        assert (await c.end()).error is None


async def test_a_call_that_runs_on_after_its_requests_is_a_hang(start: Start) -> None:
    async with start(2, supervision=Supervision(hang_limit=0.5)) as h:
        (pid,) = h.processes.pids  # type: ignore[union-attr]
        a, b = await h.seated("a", "b")
        a.cancel()
        b.cancel()
        await h.until(lambda: len(h.processes.pids) == 2)  # type: ignore[union-attr]
        h.let_go(nothing)
        c = h.ask("c")
        assert await h.begun() == ["c"]
        h.let_go(end_all)
        assert (await c.end()).error is None
        assert pid != h.processes.pids[1]  # type: ignore[union-attr]


async def test_a_worker_that_is_to_be_replaced_gets_no_further_requests_and_ends_without_any(
    start: Start,
) -> None:
    async with start(2, supervision=Supervision(max_batches=1)) as h:
        _, b = await h.seated("a", "b")
        c = h.ask("c")
        h.let_go(lambda running: [Done(), None])
        assert await h.begun() == ["b"], "c waits for the next worker"
        h.let_go(end_all)
        assert (await b.end()).error is None
        assert await h.begun() == ["c"]
        h.let_go(end_all)
        assert (await c.end()).error is None
        assert len(h.processes.pids) >= 2  # type: ignore[union-attr]


@pytest.mark.parametrize("again", [False, True])
async def test_a_caller_that_leaves_while_there_is_no_worker_holds_up_nobody(
    start: Start, again: bool
) -> None:
    async with start(2, options=WorkOptions(retry_on_crash=again)) as h:
        (a,) = await h.seated("a")
        asked = h.stage.statistics().samples
        h.let_go(die)
        if again:  # it waits to run alone
            await h.dispatched(asked + 1)
        else:
            assert isinstance((await a.end()).error, WorkerDied)
            a = h.ask("b")
            await h.dispatched(asked + 1)
        a.cancel()
        await asyncio.sleep(0)
        c = h.ask("c")
        assert await h.begun() == ["c"]
        h.let_go(end_all)
        assert (await c.end()).error is None
        await h.at_rest()
