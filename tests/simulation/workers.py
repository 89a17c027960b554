"""Simulated workers: inline, in threads, or killed when their call is abandoned.

Such a worker shares its Work with the engine, as threads do. Processes are in
``tests.simulation.processes``. Their next steps are chosen by ``tests.simulation.simulate``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from penstock.executors.executor import Finished, LocalExecutor, Result, Work
from penstock.executors.work import broken
from penstock.request import Batch
from tests.simulation.deaths import Deaths

if TYPE_CHECKING:
    from tests.simulation.graphs import RandomGraph


class RunningWork(Protocol):
    """A worker with batches that can continue.

    Attributes:
        stuck: it hangs at present.
    """

    stuck: bool

    def begin(self) -> list[int] | None:
        """Begins a ``process`` call, if none runs."""

    def advance(self) -> list[int]:
        """Ends one batch and continues with the next."""

    def end(self) -> list[int]:
        """Ends all batches."""

    def die(self) -> list[int] | None:
        """Ends during a batch."""


class Workers(LocalExecutor):
    """The fake executor of one op. Its ``kind`` is drawn by the world.

    Attributes:
        places: the number of workers at the start.
    """

    retry_on_crash = False

    def __init__(self, graph: RandomGraph, op: int, kind: str) -> None:
        world = graph.world
        self.kind = kind
        self.places = self.workers = 1 if kind == "inline" else world.random.choice((1, 1, 2, 3))
        self.takes_several = world.random.random() < 0.8
        self.seconds = world.random.choice((0.0, 1e-6, 1e-4, 0.01))
        self.running = 0
        self.deaths = Deaths(op, world.problems)
        self.graph = graph
        self.world = world
        self.op = op

    def __repr__(self) -> str:
        return f"{self.workers} {self.kind} of {self.seconds} s"

    def submit(self, work: Work, finished: Finished) -> None:
        """Takes a Work; the first batch's ``process`` call is about to begin."""
        world = self.world
        self.take(work)
        for batch in work.pending:
            self.graph.inspect(self.op, batch)
        work.begin_next()
        call = self._call(work, finished)
        world.calls.append(call)
        if self.kind == "inline":
            call.take_turn()

    def _call(self, work: Work, finished: Finished) -> Call:
        return Call(self, work, finished)

    def abandon(self, work: Work) -> None:
        """Handles an abandoned batch."""
        world = self.world
        if self.kind == "killed":
            (call,) = (call for call in world.calls if isinstance(call, Call) and call.work is work)
            world.clock.soon(call.die)

    async def close(self, timeout: float) -> bool:
        """Nothing needs to be stopped."""
        return True

    def take(self, work: Work) -> None:
        """Counts a Work that is handed over."""
        self.running += 1
        if self.running > self.workers:
            problem = f"op{self.op} has {self.workers} workers and got one Work more"
            self.world.problems.append(problem)

    def report(self, work: Work, finished: Finished, results: list[Result]) -> None:
        """Reports a Work."""
        self.running -= 1
        self.world.remember(work, finished, results)
        finished(work, results)


class Call:
    """One Work at one worker."""

    __slots__ = ("_finished", "_results", "_workers", "stuck", "work")

    def __init__(self, workers: Workers, work: Work, finished: Finished) -> None:
        self.work = work
        self.stuck = False
        self._workers = workers
        self._finished = finished
        self._results: list[Result] = []

    def begin(self) -> list[int] | None:
        """See RunningWork."""
        batch = self.work.current
        if batch is None or batch.started is not None:
            return None
        batch.started = self._workers.world.clock.now()
        return batch.data_ids

    def advance(self) -> list[int]:
        """See RunningWork."""
        batch = self._run()
        if self.work.begin_next() is None:
            self._report()
        return batch.data_ids

    def take_turn(self) -> None:
        """Ends some of the batches; the turn was too short for the rest."""
        self._run()
        random = self._workers.world.random
        while random.random() < 0.9 and self.work.begin_next() is not None:
            self._run()
        self.work.current = None
        self._report()

    def end(self) -> list[int]:
        """See RunningWork."""
        ids: list[int] = []
        while self.work.current is not None:
            ids += self.advance()
        return ids

    def die(self) -> list[int] | None:
        """See RunningWork; batches that had not begun have not run."""
        batch = self.work.current
        if batch is None or self not in self._workers.world.calls:
            return None
        self._results.append((batch, broken(batch)))
        self.work.current = None
        self._report()
        return batch.data_ids

    def _run(self) -> Batch:
        workers = self._workers
        batch = self.work.current
        assert batch is not None
        workers.deaths.run(batch)
        batch.started = None
        batch.ran = workers.seconds
        self._results.append((batch, workers.graph.outcomes(workers.op, batch)))
        return batch

    def _report(self) -> None:
        world = self._workers.world
        world.calls.remove(self)
        if len(self._results) > 1 and world.random.random() < 0.3:
            world.random.shuffle(self._results)
        self._workers.report(self.work, self._finished, self._results)
