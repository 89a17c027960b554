"""Made-up worker processes: Works of several batches, begun on a board, lost in a death.

As the real ones, they and the engine know only what they have told each other: the engine sees a
batch begin when it looks at the board, and a worker skips what was taken back if it finds that out
before it begins. Messages arrive a turn later than they were sent, but before news of the death.
"""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import TYPE_CHECKING

from penstock.errors import InferenceFailed
from penstock.executors.executor import Finished, Work
from penstock.executors.processes.restarts import LONGEST, Restarts
from penstock.executors.work import broken
from penstock.ops.failures import worker_died
from penstock.request import Batch, CloseReason, Outcome
from penstock.testing.workers import Workers

if TYPE_CHECKING:
    from penstock.testing.world import World


class ProcessWorkers(Workers):
    """One op's fake executor of processes; each may have Works waiting behind the one it runs."""

    def __init__(self, world: World, op: int) -> None:
        super().__init__(world, op, "process")
        random = world.random
        self.retry_on_crash = random.random() < 0.5
        self.ahead = random.choice((0, 1, 1, 2))
        self.given_up: set[int] = set()
        self.gave_up = self.took_up = 0
        self._kills = random.random() < 0.5  # a call that is given up, with its worker
        self.fails = random.choice((0.0, 0.0, 0.2, 0.9))  # to start
        self.next_start = self.rested = 0.0
        self._restarts = [Restarts() for _ in range(self.workers)]
        self._alive = [Process(self, slot) for slot in range(self.workers)]
        self._at: dict[Work, Process] = {}
        self._waiting: deque[tuple[Work, Finished]] = deque()

    def __repr__(self) -> str:
        again = ", run again" if self.retry_on_crash else ""
        return f"{self.workers} process of {self.seconds} s, {self.ahead} Works ahead{again}"

    @property
    def alive(self) -> bool:
        """See Executor."""
        return bool(self._alive)

    def submit(self, work: Work, finished: Finished) -> None:
        """See Executor."""
        self.take(work)
        for batch in work.pending:
            self.world.inspect(self.op, batch)
        self.deaths.hand_over(work.pending, self.world.clock.now())
        if len(self.given_up) == self.places and not self._alive:
            self._refuse(work, finished)
            return
        process = next((each for each in self._alive if not each.works), None)
        if process is None:
            self._waiting.append((work, finished))
        else:
            self._hand(process, work, finished)

    @property
    def room(self) -> bool:
        """See Executor."""
        return bool(self._roomy())

    def submit_ahead(self, work: Work, finished: Finished) -> bool:
        """See Executor; some are too large."""
        if self.world.random.random() < 0.1:
            return False
        (batch,) = work.pending
        self.world.inspect(self.op, batch)
        policy = self.world.engine.stages[self.op].batcher.policy
        if batch.rows < policy.max_rows and batch.reason is not CloseReason.SHAPE:
            self.world.problems.append(f"op{self.op} got {batch} ahead, which company could join")
        if any(not each.works for each in self._alive):
            self.world.problems.append(f"op{self.op} got {batch} ahead beside an idle worker")
        self.deaths.hand_over(work.pending, self.world.clock.now())
        process = self.world.random.choice(self._roomy())
        last = list(process.works)[-1]
        last.following = work
        self._hand(process, work, finished)
        return True

    def keeps(self) -> bool:
        """See Workers."""
        return any(work.ahead and work.pending for work in self._at)

    def _roomy(self) -> list[Process]:
        if self._waiting:
            return []
        return [each for each in self._alive if 0 < len(each.works) <= self.ahead]

    def look(self, work: Work) -> None:
        """See Executor."""
        if work in self._at:
            self._at[work].look()

    def take_back(self, work: Work) -> list[Batch]:
        """See Executor."""
        process = self._at.get(work)
        return work.take_back() if process is None else process.take_back(work)

    def abandon(self, work: Work) -> None:
        """See Executor."""
        process = self._at.get(work)
        if process is not None and self._kills:
            process.abandoned = True
            process.die()

    def kill_any(self) -> str | None:
        """One of the processes is killed from outside, whatever it does."""
        if not self._alive:
            return None
        process = self.world.random.choice(self._alive)
        process.die()
        return repr(process)

    def unstick(self) -> None:
        """Processes that hang go on, idle ones too."""
        for process in self._alive:
            process.stuck = False

    def done(self, process: Process, work: Work, finished: Finished) -> None:
        """A process has answered all of a Work."""
        del self._at[work]
        work.current = None
        if self._waiting and process in self._alive and not process.works:
            self._hand(process, *self._waiting.popleft())
        self.report(work, finished, work.take_results())

    def bury(self, process: Process) -> None:
        """A process is no more: tell what it had begun, give the rest back, start another."""
        self._alive.remove(process)
        lost = process.lost()
        works, process.works = process.works, {}
        for work in works:
            del self._at[work]
            work.current = None
        for work, finished in works.items():
            if lost is not None and lost[0] is work:
                work.add_result(lost[1], self._fate(process, lost[1]))
            self.report(work, finished, work.take_results())
        self._restart(process.slot, had_worked=process.has_worked)

    def _fate(self, process: Process, batch: Batch) -> list[Outcome]:
        if process.abandoned:
            return broken(batch)
        batch.started = None
        self.deaths.lost(batch, self.world.clock.now())
        error = worker_died(f"op{self.op}", 0)
        return [Outcome(None, error) for _ in batch.samples]

    def _restart(self, slot: int, *, had_worked: bool) -> None:
        clock = self.world.clock
        wait = self._restarts[slot].died(clock.now(), had_worked=had_worked)
        if wait is None:
            self.gave_up += slot not in self.given_up
            self.given_up.add(slot)
            self.workers = max(1, self.places - len(self.given_up))
            wait = LONGEST
            while self._waiting and len(self.given_up) == self.places and not self._alive:
                self._refuse(*self._waiting.popleft())
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
            self.workers = self.places - len(self.given_up)
        process = Process(self, slot)
        self._alive.append(process)
        if self._waiting:
            self._hand(process, *self._waiting.popleft())
        if missing:
            self.grown()

    def _hand(self, process: Process, work: Work, finished: Finished) -> None:
        self._at[work] = process
        process.take(work, finished)

    def _refuse(self, work: Work, finished: Finished) -> None:
        error = InferenceFailed("no worker")
        while (batch := work.begin_next()) is not None:
            work.add_result(batch, [Outcome(None, error) for _ in batch.samples])
        self.report(work, finished, work.take_results())


class _Sent:
    """A batch at a process. The engine knows ``begun`` and ``wanted``, the worker ``skipped``."""

    __slots__ = ("batch", "begun", "skipped", "wanted", "work")

    def __init__(self, work: Work, batch: Batch) -> None:
        self.work = work
        self.batch = batch
        self.begun = False
        self.wanted = True
        self.skipped = False


class Process:
    """One worker process, both its own side and what the engine knows of it.

    Attributes:
        stuck: it hangs for now.
        works: what it was given and the engine has not got back.
        slot: the place that it fills.
        has_worked: it has finished a batch, as far as the engine knows.
        abandoned: the engine ends it.
    """

    def __init__(self, workers: ProcessWorkers, slot: int) -> None:
        self.slot = slot
        self.stuck = False
        self.works: dict[Work, Finished] = {}
        self.has_worked = False
        self.abandoned = False
        self._workers = workers
        self._world = workers.world
        self._sent: deque[_Sent] = deque()  # the engine's: not answered, as far as it has heard
        self._queue: deque[_Sent] = deque()  # the worker's: not begun
        self._board: _Sent | None = None  # what runs, or ran last
        self._entered: float | None = None  # when its ``process`` began
        self._runs = False  # what is on the board has not ended
        self._dead = False

    def __repr__(self) -> str:
        return f"<Process of {len(self.works)} Works, {len(self._queue)} batches not begun>"

    # The worker's side.

    def begin(self) -> list[int] | None:
        """One step towards a ``process`` call: onto the board, then past what was taken back."""
        if not self._runs:
            if not self._queue:
                return None
            self._board = self._queue.popleft()
            self._runs, self._entered = True, None
        elif self._entered is not None:
            return None
        elif self._board is not None and self._board.skipped:
            self._answer(self._board, None)
            return None
        else:
            self._enter()
        assert self._board is not None
        return self._board.batch.data_ids

    def advance(self) -> list[int]:
        """See Doer."""
        while self._entered is None:
            if not self._runs and not self._queue:
                return []
            self.begin()
        sent = self._board
        assert sent is not None
        ids = sent.batch.data_ids
        if self._world.is_poisoned(self._workers.op, sent.batch):
            self.die()
        else:
            outcomes = self._world.outcomes(self._workers.op, sent.batch, copies=True)
            self._answer(sent, outcomes)
        return ids

    def end(self) -> list[int]:
        """See Doer."""
        ids: list[int] = []
        while not self._dead and (self._runs or self._queue):
            ids += self.advance()
        return ids

    def die(self) -> list[int] | None:
        """See Doer; the board stays as it is."""
        if self._dead:
            return None
        self._dead = True
        self._rest()
        self._world.clock.soon(partial(self._workers.bury, self))
        if self._board is None or not self._runs:
            return []
        self._workers.deaths.held(self._board.batch)
        return self._board.batch.data_ids

    def _enter(self) -> None:
        """The ``process`` call begins."""
        sent = self._board
        assert sent is not None
        self._entered = self._world.clock.now()
        self._workers.deaths.run(sent.batch, again=self._workers.retry_on_crash)

    def _answer(self, sent: _Sent, outcomes: list[Outcome] | None) -> None:
        self._runs, self._entered = False, None
        self._world.clock.soon(partial(self._hear, sent, outcomes))
        if not self._queue:
            self._rest()

    def _rest(self) -> None:
        if self in self._world.calls:
            self._world.calls.remove(self)

    # The engine's side.

    def take(self, work: Work, finished: Finished) -> None:
        """It is sent a Work's batches."""
        self.works[work] = finished
        sent = [_Sent(work, batch) for batch in work.pending]
        if not sent:  # all was taken back while there was no process
            self._workers.done(self, work, self.works.pop(work))
            return
        self._sent += sent
        if self._dead:  # the engine does not know yet
            return
        self._queue += sent
        if self not in self._world.calls:
            self._world.calls.append(self)

    def look(self) -> None:
        """What stands on the board has begun."""
        board = self._board
        if board is None or board not in self._sent:
            return
        for sent in self._sent:
            if sent.wanted:
                self._learn(sent)
            if sent is board:
                break
        current = board.work.current
        if current is board.batch:
            current.started = self._entered

    def take_back(self, work: Work) -> list[Batch]:
        """What has not begun there, and now will not."""
        waiting = [each for each in self._sent if each.work is work and not each.begun]
        waiting = [each for each in waiting if each.wanted]
        for sent in waiting:
            sent.skipped = True
        if not (self._dead or self.stuck or self._runs) and self._world.random.random() < 0.5:
            self.begin()  # in the same moment: it is on the board, and will be skipped
        self.look()
        taken = [sent for sent in waiting if not sent.begun]
        for sent in taken:
            sent.wanted = False
            work.pending.remove(sent.batch)
        return [sent.batch for sent in taken]

    def lost(self) -> tuple[Work, Batch] | None:
        """What it had begun when it died."""
        self.look()
        if self._sent and self._sent[0].begun:
            return self._sent[0].work, self._sent[0].batch
        return None

    def _learn(self, sent: _Sent) -> None:
        if not sent.begun:
            sent.begun = True
            begun = sent.work.begin_next()
            assert begun is sent.batch

    def _hear(self, sent: _Sent, outcomes: list[Outcome] | None) -> None:
        work, batch = sent.work, sent.batch
        assert self._sent.popleft() is sent
        if outcomes is not None:
            self._learn(sent)
            batch.started = None
            batch.ran = self._workers.seconds
            self.has_worked = True
            self._workers.deaths.back(batch)
            work.add_result(batch, outcomes)
        elif sent.wanted and sent.begun:
            work.pending.appendleft(batch)
            work.current = None
            batch.started = None
        if not any(each.work is work for each in self._sent):
            self._workers.done(self, work, self.works.pop(work))
