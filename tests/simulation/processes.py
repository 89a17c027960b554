"""Simulated worker processes: hand-overs of several batches, begun one by one, lost in a death.

As with real ones, they and the engine only know each other's messages: the engine sees that a batch
has begun when it reads the status page, and messages arrive one turn after they were sent, but
before the report of a death."""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import TYPE_CHECKING

from penstock.errors import InferenceFailed
from penstock.executors.executor import Finished, Work
from penstock.executors.work import broken
from penstock.executors.workers.restarts import LONGEST, Restarts
from penstock.ops.failures import worker_died
from penstock.request import Batch, Outcome
from tests.simulation.workers import Workers

if TYPE_CHECKING:
    from tests.simulation.graphs import RandomGraph


class ProcessWorkers(Workers):
    """The fake process executor of one op; each process has ``seats`` Works at once."""

    def __init__(self, graph: RandomGraph, op: int, seats: int = 1) -> None:
        super().__init__(graph, op, "process")
        random = self.world.random
        self.retry_on_crash = random.random() < 0.5
        self.given_up: set[int] = set()
        self.gave_up = self.took_up = 0
        self.kills = random.random() < 0.5  # an abandoned call's worker is killed
        self.fails = random.choice((0.0, 0.0, 0.2, 0.9))  # the probability of a failed start
        self.next_start = self.rested = 0.0
        self._slots, self._seats_each = self.places, seats
        self.places = self.workers = self._slots * seats
        self._restarts = [Restarts() for _ in range(self._slots)]
        self._at: dict[Work, Process] = {}
        self._waiting: deque[tuple[Work, Finished]] = deque()
        self._alive = [self._new_process(slot) for slot in range(self._slots)]

    def __repr__(self) -> str:
        again = ", run again" if self.retry_on_crash else ""
        return f"{self._slots} process of {self.seconds} s{again}"

    @property
    def alive(self) -> bool:
        """See Executor."""
        return bool(self._alive)

    def submit(self, work: Work, finished: Finished) -> None:
        """See Executor."""
        self.take(work)
        for batch in work.pending:
            self.graph.inspect(self.op, batch)
        self.deaths.hand_over(work.pending, self.world.clock.now())
        if self._is_given_up:
            self._refuse(work, finished)
            return
        process = next((each for each in self._alive if each.work is None), None)
        if process is None:
            self._waiting.append((work, finished))
        else:
            self._hand(process, work, finished)

    def look(self, work: Work) -> None:
        """See Executor."""
        if work in self._at:
            self._at[work].look()

    def take_back(self, work: Work) -> list[Batch]:
        """See Executor: batches sent to a process are not taken back."""
        return [] if work in self._at else work.take_back()

    def abandon(self, work: Work) -> None:
        """See Executor."""
        process, batch = self._at.get(work), work.current
        if process is None or batch is None or not batch.settled:
            return
        if self.kills or work.pending:
            process.abandoned = True
            process.die()

    def kill_any(self) -> str | None:
        """Kills one of the processes from outside, whatever it does."""
        if not self._alive:
            return None
        process = self.world.random.choice(self._alive)
        process.die()
        return repr(process)

    def unstick(self) -> None:
        """Lets hanging processes continue, idle ones too."""
        for process in self._alive:
            process.stuck = False

    def done(self, process: Process, work: Work, finished: Finished) -> None:
        """Handles a process that has answered all of a Work, or will not run the rest."""
        del self._at[work]
        work.current = None
        if process in self._alive:
            self._next_work(process)
        self.report(work, finished, work.take_results())

    def handle_death(self, process: Process) -> None:
        """Handles a dead process: reports the begun batch, returns the rest, starts another
        process."""
        self._alive.remove(process)
        lost = process.lost()
        work, finished = process.work, process.finished
        if work is not None and finished is not None:
            del self._at[work]
            work.current = None
            if lost is not None:
                work.add_result(lost, self._outcomes_of_lost(process, lost))
            self.report(work, finished, work.take_results())
        self._restart(process.slot, had_worked=process.has_worked)

    def _outcomes_of_lost(
        self, process: Process, batch: Batch, *, alone: bool = True
    ) -> list[Outcome]:
        if process.abandoned:
            return broken(batch)
        batch.started = None
        self.deaths.lost(batch, self.world.clock.now(), alone=alone)
        error = worker_died(f"op{self.op}", 0)
        return [Outcome(None, error) for _ in batch.samples]

    def _restart(self, slot: int, *, had_worked: bool) -> None:
        clock = self.world.clock
        wait = self._restarts[slot].died(clock.now(), had_worked=had_worked)
        if wait is None:
            self.gave_up += slot not in self.given_up
            self.given_up.add(slot)
            self.workers = max(1, self._slots - len(self.given_up)) * self._seats_each
            wait = LONGEST
            if self._is_given_up:
                self._refuse_waiting()
        self.rested += wait
        self.next_start = max(self.next_start, clock.now() + wait)
        clock.at(clock.now() + wait, partial(self._start, slot))

    def _start(self, slot: int) -> None:
        if self.world.random.random() < self.fails:
            self._restart(slot, had_worked=False)
            return
        missing = slot in self.given_up
        if missing:
            self.took_up += 1
            self.given_up.discard(slot)
            self.workers = (self._slots - len(self.given_up)) * self._seats_each
        process = self._new_process(slot)
        self._alive.append(process)
        self._next_work(process)
        if missing:
            self.grown()

    @property
    def _is_given_up(self) -> bool:
        """Whether there is no process, and none will come soon."""
        return len(self.given_up) == self._slots and not self._alive

    def _next_work(self, process: Process) -> None:
        """Handles a process without Work."""
        if self._waiting:
            self._hand(process, *self._waiting.popleft())

    def _refuse_waiting(self) -> None:
        while self._waiting:
            self._refuse(*self._waiting.popleft())

    def _new_process(self, slot: int) -> Process:
        return Process(self, slot)

    def _hand(self, process: Process, work: Work, finished: Finished) -> None:
        self._at[work] = process
        process.take(work, finished)

    def _refuse(self, work: Work, finished: Finished) -> None:
        error = InferenceFailed("no worker")
        while (batch := work.begin_next()) is not None:
            work.add_result(batch, [Outcome(None, error) for _ in batch.samples])
        self.report(work, finished, work.take_results())


class Process:
    """One worker process, both its own state and what the engine knows of it.

    Attributes:
        stuck: it hangs at present.
        slot: its worker's index.
        work: the Work that it was given and has not reported.
        finished: the callback of that Work.
        has_worked: whether the engine knows that it has finished a batch.
        abandoned: whether the engine killed it.
    """

    def __init__(self, workers: ProcessWorkers, slot: int) -> None:
        self.slot = slot
        self.stuck = False
        self.work: Work | None = None
        self.finished: Finished | None = None
        self.has_worked = False
        self.abandoned = False
        self._workers = workers
        self._world = workers.world
        self._in_flight: deque[Batch] = deque()  # the engine's view: batches without results
        self._queue: deque[Batch] = deque()  # the worker's view: batches not begun
        self._running: Batch | None = None  # on the status page, and not ended
        self._started: float | None = None
        self._dead = False

    def __repr__(self) -> str:
        return f"<Process with {len(self._queue)} batches not begun>"

    # The worker's side.

    def begin(self) -> list[int] | None:
        """One step towards a ``process`` call: first to the status page, then into the call."""
        if self._running is None:
            if not self._queue:
                return None
            self._running = self._queue.popleft()
        elif self._started is None:
            self._started = self._world.clock.now()
            self._workers.deaths.run(self._running, again=self._workers.retry_on_crash)
        else:
            return None
        return self._running.data_ids

    def advance(self) -> list[int]:
        """See RunningWork."""
        while self._started is None:
            if self.begin() is None:
                return []
        batch = self._running
        assert batch is not None
        if self._workers.graph.is_poisoned(self._workers.op, batch):
            self.die()
            return batch.data_ids
        self._running = self._started = None
        outcomes = self._workers.graph.outcomes(self._workers.op, batch, copies=True)
        self._world.clock.soon(partial(self._receive, batch, outcomes))
        if self._queue and self._world.random.random() < 0.2:  # the turn was too short
            self._queue.clear()
            self._world.clock.soon(self._receive_rest)
        if not self._queue:
            self._leave_calls()
        return batch.data_ids

    def end(self) -> list[int]:
        """See RunningWork."""
        ids: list[int] = []
        while not self._dead and (self._running is not None or self._queue):
            ids += self.advance()
        return ids

    def die(self) -> list[int] | None:
        """See RunningWork; the status page is unchanged."""
        if self._dead:
            return None
        self._dead = True
        self._leave_calls()
        self._world.clock.soon(partial(self._workers.handle_death, self))
        if self._running is None:
            return []
        self._workers.deaths.ended_with(self._running)
        return self._running.data_ids

    def _leave_calls(self) -> None:
        if self in self._world.calls:
            self._world.calls.remove(self)

    # The engine's side.

    def take(self, work: Work, finished: Finished) -> None:
        """Sends the process a Work's batches."""
        self.work, self.finished = work, finished
        self._in_flight.extend(work.pending)
        if not self._in_flight:  # all was taken back while there was no process
            self._done()
        elif not self._dead:  # otherwise the engine does not know yet
            self._queue.extend(work.pending)
            self._world.calls.append(self)

    def look(self) -> None:
        """Reads the status page: the batch on it has begun."""
        if self._running is not None and self._in_flight[0] is self._running:
            self._begun(self._running)
            self._running.started = self._started

    def lost(self) -> Batch | None:
        """The batch that had begun when the process died."""
        self.look()
        return self._running

    def _begun(self, batch: Batch) -> None:
        work = self.work
        assert work is not None
        if work.pending and work.pending[0] is batch:
            work.begin_next()

    def _receive(self, batch: Batch, outcomes: list[Outcome]) -> None:
        assert self._in_flight[0] is batch
        self._begun(batch)
        self._in_flight.popleft()
        batch.started = None
        batch.ran = self._workers.seconds
        self.has_worked = True
        self._workers.deaths.ran(batch)
        assert self.work is not None
        self.work.add_result(batch, outcomes)
        if not self._in_flight:
            self._done()

    def _receive_rest(self) -> None:
        self._in_flight.clear()
        self._done()

    def _done(self) -> None:
        work, finished = self.work, self.finished
        assert work is not None
        assert finished is not None
        self.work = self.finished = None
        self._workers.done(self, work, finished)
