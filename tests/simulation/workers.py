"""Made-up workers of a made-up world: inline, in threads, or ended when their call is given up.

Such a worker shares its Work with the engine, as threads do. Those that are processes stand in
``tests.simulation.processes``. What they do next is ``tests.simulation.simulate``'s choice.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from penstock.executors.executor import Finished, LocalExecutor, Result, Work
from penstock.executors.work import broken
from penstock.request import Batch
from tests.simulation.deaths import Deaths

if TYPE_CHECKING:
    from tests.simulation.graphs import MadeGraph


class Doer(Protocol):
    """Whoever has a batch and can go on with it.

    Attributes:
        stuck: it hangs for now.
    """

    stuck: bool

    def begin(self) -> list[int] | None:
        """A ``process`` call begins, if none runs."""

    def advance(self) -> list[int]:
        """End one batch and go on to the next."""

    def end(self) -> list[int]:
        """End everything that was given."""

    def die(self) -> list[int] | None:
        """End in the middle."""


class Workers(LocalExecutor):
    """One op's fake executor. Its ``kind`` is drawn by the world.

    Attributes:
        places: how many workers it had at first.
    """

    retry_on_crash = False

    def __init__(self, graph: MadeGraph, op: int, kind: str) -> None:
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
        """Take a Work; its first batch stands before its ``process`` call."""
        world = self.world
        self.take(work)
        for batch in work.pending:
            self.graph.inspect(self.op, batch)
        work.begin_next()
        call = Call(self, work, finished)
        world.calls.append(call)
        if self.kind == "inline":
            call.take_turn()

    def abandon(self, work: Work) -> None:
        """The running batch was given up."""
        world = self.world
        if self.kind == "killed":
            (call,) = (call for call in world.calls if isinstance(call, Call) and call.work is work)
            world.clock.soon(call.die)

    async def close(self, timeout: float) -> bool:
        """There is nothing to stop."""
        return True

    def take(self, work: Work) -> None:
        """One Work more is out."""
        self.running += 1
        if self.running > self.workers:
            problem = f"op{self.op} has {self.workers} workers and got one Work more"
            self.world.problems.append(problem)

    def report(self, work: Work, finished: Finished, results: list[Result]) -> None:
        """A Work is back."""
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
        """See Doer."""
        batch = self.work.current
        if batch is None or batch.started is not None:
            return None
        batch.started = self._workers.world.clock.now()
        return batch.data_ids

    def advance(self) -> list[int]:
        """See Doer."""
        batch = self._run()
        if self.work.begin_next() is None:
            self._report()
        return batch.data_ids

    def take_turn(self) -> None:
        """End some of what was given; for the rest the turn was too short."""
        self._run()
        random = self._workers.world.random
        while random.random() < 0.9 and self.work.begin_next() is not None:
            self._run()
        self.work.current = None
        self._report()

    def end(self) -> list[int]:
        """See Doer."""
        ids: list[int] = []
        while self.work.current is not None:
            ids += self.advance()
        return ids

    def die(self) -> list[int] | None:
        """See Doer; what had not begun has not run."""
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
