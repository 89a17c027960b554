"""A pool of workers behind links: starts them, hands Works to idle ones, replaces ended ones.

When a worker dies, its running batch fails, batches that it had not begun go to another worker, and
it is replaced, with back-off. How a worker is started, and what its link is, say the subclasses.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, Final, Generic, TypeVar

from penstock.batching.decision import Batching
from penstock.errors import NoProcess, StartupError
from penstock.executors.executor import Finished, Work
from penstock.executors.probing import VERIFYING
from penstock.executors.work import broken
from penstock.executors.workers.places import Places, Report
from penstock.executors.workers.restarts import LONGEST, Restarts
from penstock.executors.workers.watchdog import Supervision, Watchdog, why_replaced
from penstock.executors.workers.worker import Worker
from penstock.instrument import Instruments
from penstock.ops.failures import worker_died
from penstock.request import Batch, Outcome

_log = logging.getLogger(__name__)

LOG_AFTER: Final = 30.0
"""Seconds after which a slow start is logged for the first time."""

W = TypeVar("W", bound=Worker)


class NoWorkerError(StartupError):
    """A worker could not be started, for lack of resources; it is tried again."""


class WorkerPool(ABC, Generic[W]):
    """An executor with ``count`` workers of one op; see the module.

    Args:
        supervision: limits of the workers.
        streams: whether the op's answers come in pieces.
        seats: the number of Works that a worker has at once.

    Attributes:
        loaded: by slot, its worker's report of its model and memory; None before.
        passed: called with each step of a worker's start that is over, if somebody wants to know.
    """

    takes_several: bool
    grown: Callable[[], None] = staticmethod(lambda: None)

    def __init__(
        self,
        name: str,
        count: int,
        loop: asyncio.AbstractEventLoop,
        supervision: Supervision,
        *,
        streams: bool = False,
        seats: int = 1,
    ) -> None:
        self.workers = count * seats
        self.op = name
        self.instruments = Instruments()
        self.loaded: list[dict[str, Any] | None] = [None] * count
        self.passed: Callable[[str], object] | None = None
        self._loop = loop
        self._supervision = supervision
        self._streams = streams
        self._seats = seats
        self._idle: deque[W] = deque()
        self._busy: dict[Work, W] = {}
        self._waiting: deque[tuple[Work, Finished]] = deque()  # Works that wait for a worker
        self._alive: set[W] = set()
        self._leaving: W | None = None  # ending to be replaced
        self._restarts = [Restarts() for _ in range(count)]  # by slot
        self._places = Places(count, loop.time())
        self._given_up: set[int] = set()  # disabled slots
        self._closing = False
        self._batching: Any = None  # as the first worker decided
        self._keep_tasks: list[asyncio.Task[None]] = []
        self._watchdog = Watchdog(name, self._supervision, self._busy_workers, loop)

    def _busy_workers(self) -> Iterable[W]:
        return {*self._busy.values()}

    @property
    def places(self) -> tuple[list[Report], list[Report]]:
        """Where its workers are, and which were lost; see Places."""
        return self._places.plain(self._loop.time())

    @property
    def ready(self) -> int:
        """How many of ``workers`` have a process that is there, and not still starting."""
        return len(self._alive) * self._seats

    @property
    def alive(self) -> bool:
        """Whether there is a worker that is not on probation."""
        now = self._loop.time()
        return any(self._is_trusted(worker, now) for worker in self._alive)

    async def start(self) -> None:
        """Start every worker; returns when all are ready.

        Raises:
            StartupError: a worker failed to start, with its reason; the others are ended.
        """
        starts = [
            self._loop.create_task(self._start(index)) for index in range(len(self._restarts))
        ]
        try:
            await asyncio.gather(*starts)  # the first failure is raised at once
        except BaseException as error:
            for start in starts:
                start.cancel()
            await asyncio.gather(*starts, return_exceptions=True)
            if isinstance(error, Exception):
                await self.close(0.0)
            raise
        for worker in list(self._alive):
            if self._batching is not None:
                worker.batch_by(self._batching)
            self._keep_tasks.append(self._loop.create_task(self._keep(worker)))

    def submit(self, work: Work, finished: Finished) -> None:
        """Give the Work to an idle worker, or to the next one that starts."""
        if self._idle:
            self._dispatch(self._next_idle(), work, finished)
        elif len(self._given_up) == len(self._restarts) and not self._alive:
            self._refuse(work, finished)
        else:
            self._waiting.append((work, finished))

    def look(self, work: Work) -> None:
        worker = self._busy.get(work)
        if worker is not None:
            worker.look()

    def take_back(self, work: Work) -> list[Batch]:
        """See Executor: batches that were sent to a worker stay there; it is told which of them are
        useless.
        """
        worker = self._busy.get(work)
        if worker is None:
            return work.take_back()
        worker.tell_useless()
        return []

    def abandon(self, work: Work) -> None:
        """Kill the worker of a call that exceeded its timeout, with its stack in the log, if
        ``on_timeout`` says so or other batches wait behind it; otherwise let the call return.

        A call whose requests were only cancelled may run on: disconnecting clients must not cost
        workers. But its worker is told, and makes no further call for them.
        """
        worker, batch = self._busy.get(work), work.current
        if worker is None or batch is None or worker.ending:
            return
        if not batch.settled:
            worker.tell_useless()
            return
        if self._supervision.kill_late or work.pending:
            _log.warning(
                "op %s: worker %s (%s) is killed: its call exceeded the timeout, with data_ids=%s",
                self.op,
                worker.index,
                worker.where,
                batch.data_ids,
            )
            worker.late = worker.replacing = True
            worker.abort()

    async def close(self, timeout: float) -> bool:
        """Let the workers end after their running batches, and kill those that do not."""
        self._closing = True
        self._watchdog.end()
        workers = list(self._alive)
        for worker in workers:
            worker.ask_to_stop()
        left: set[asyncio.Future[Any]] = set()
        if workers:
            _, left = await asyncio.wait([each.exit for each in workers], timeout=timeout)
        for worker in workers:
            if worker.exit in left:
                if timeout > 0:
                    text = "op %s: worker %s is killed: it does not end"
                    _log.warning(text, self.op, worker.index)
                worker.kill()
        if left:
            await asyncio.wait(left)
        for task in self._keep_tasks:
            task.cancel()
        await asyncio.gather(*self._keep_tasks, return_exceptions=True)
        for worker in list(self._alive):
            worker.kill()  # some were still starting
            await worker.exit
            self._release(worker)
            worker.close()
        return not left

    async def _start(self, index: int) -> W:
        """Start a worker, and wait until it is ready.

        Raises:
            NoWorkerError: none could be started.
            StartupError: it failed to start, with its reason; it has ended.
        """
        decides = index == 0 and self._batching is None
        self._places.begins(index)
        worker = await self._begin(index, decides=decides)
        self._places.placed(index, worker.where, worker.node)
        worker.streams = self._streams
        if self.passed is not None:
            worker.passed = self.passed
        try:
            loaded = await self._ready(worker)
        except BaseException as error:
            worker.kill()
            while not worker.exit.done():
                with suppress(asyncio.CancelledError):  # it has been killed, and is ending
                    await asyncio.wait((worker.exit,))
            worker.close()
            if decides and worker.step == VERIFYING and not worker.has_failed:
                return await self._start_without_probe(index, error)
            raise
        if decides:
            self._batching = loaded.get("batching")
        elif self._batching is not None:
            loaded["batching"] = self._batching
            worker.batch_by(self._batching)
        self.loaded[index] = loaded
        self._alive.add(worker)
        now = self._loop.time()
        self._places.runs(index, loaded.get("pid"), now)
        notify = self.instruments.worker_started
        if notify is not None:
            notify(self.op, index, now)
        self._make_idle(worker)
        return worker

    @abstractmethod
    async def _begin(self, index: int, *, decides: bool) -> W:
        """Begin to start a worker, which has yet to open its model.

        Args:
            index: its slot.
            decides: whether it decides how requests are batched, and reports it.

        Raises:
            NoWorkerError: none can be started now.
        """

    async def _start_without_probe(self, index: int, error: BaseException) -> W:
        """The same after a worker that ended while it compared batches and single runs."""
        if not isinstance(error, StartupError):
            raise error
        why = f"the model ended its process on the inputs of the probe ({error})"
        text = "op %s: its requests run one at a time: %s; see the keys rows and examples"
        _log.warning(text, self.op, why)
        self._batching = Batching(by=None, why=why).plain()
        return await self._start(index)

    async def _ready(self, worker: W) -> dict[str, Any]:
        """Wait until it is ready; returns its report of what it has loaded.

        Raises:
            StartupError: it failed, or exceeded ``start_timeout``.
        """
        limit, began, log_at = self._supervision.start_timeout, self._loop.time(), LOG_AFTER
        who = (self.op, worker.index, worker.where)
        events = (worker.ready, worker.broken, worker.exit)
        done: set[Any] = set()
        while not done:
            taken = self._loop.time() - began
            if limit is not None and taken >= limit:
                worker.abort()
                await asyncio.shield(worker.exit)
                raise StartupError(
                    f"op {self.op!r}: worker {worker.index} was not ready within {limit:g} s"
                    f" (start_timeout): {worker.step}{self._log_hang(worker)}"
                )
            if taken >= log_at:
                log_at *= 2
                _log.warning(
                    "op %s: worker %s (%s) has not become ready for %.0f s: %s",
                    *who,
                    taken,
                    worker.step,
                )
            wait = (log_at if limit is None else min(log_at, limit)) - taken
            done, _ = await asyncio.wait(events, timeout=wait, return_when=asyncio.FIRST_COMPLETED)
        worker.look()  # it may have sent a reason before it ended
        if not worker.ready.done():
            if worker.broken.done():
                fault = worker.broken.result()
                raise StartupError(f"op {self.op!r}: worker {worker.index}: {fault}")
            await asyncio.shield(worker.exit)
            raise StartupError(
                f"op {self.op!r}: worker {worker.index} ended before it was ready"
                f" ({worker.how_it_ended}); standard error may have more"
            )
        loaded, memory = worker.ready.result(), self._supervision.memory_limit
        resident = None if memory is None else worker.memory
        if memory is not None and resident is not None and resident > memory:
            raise StartupError(
                f"op {self.op!r}: worker {worker.index} has {resident >> 20} MiB of memory before"
                f" its first batch, over its memory_limit_mib of {memory >> 20}"
            )
        return loaded

    def _log_hang(self, worker: W) -> str:
        """Log what is known of a worker that hung during its start; returns an addition to its
        error.
        """
        return ""

    async def _keep(self, worker: W) -> None:
        """Replace a worker whenever it ends, for as long as the service runs."""
        following: W | None = worker
        while following is not None:
            worker = following
            await self._await_end(worker)
            following = None if self._closing else await self._replace(worker)

    async def _await_end(self, worker: W) -> None:
        """Wait for a worker's end, report its Work, and log it."""
        await asyncio.wait((worker.broken, worker.exit), return_when=asyncio.FIRST_COMPLETED)
        if worker.broken.done():
            fault = worker.broken.result()
            _log.error("op %s: worker %s is ended: %s", self.op, worker.index, fault)
            worker.kill()
        await worker.exit
        if self._closing:
            return
        self._release(worker)
        now = self._loop.time()
        if worker.replacing:
            notify = self.instruments.worker_replaced
        else:
            notify = self.instruments.worker_died
        how = worker.how_it_ended
        if notify is not None:
            notify(self.op, worker.index, "late" if worker.late else how, now)
        lost = worker.late or not worker.replacing
        how = f"{how} at its time-out" if worker.late else how
        self._places.ended(worker.index, how, now, lost=lost)
        if lost:
            self._report(worker, how, worker.lost)
        worker.close()

    @abstractmethod
    def _report(self, worker: W, how: str, data_ids: list[int]) -> None:
        """Report a worker's death; ``data_ids`` are those of the batch that it ran, if any."""

    async def _replace(self, worker: W) -> W | None:
        """Start a replacement, with back-off; None if the service ends before that."""
        restarts, index = self._restarts[worker.index], worker.index
        wait: float | None = 0.0
        if not worker.replacing:
            wait = restarts.died(
                self._loop.time(), had_worked=worker.batches > 0, had_begun=worker.has_begun
            )
        while not self._closing:
            if wait is None or index in self._given_up:
                self._give_up(index)
                wait = LONGEST
            await asyncio.sleep(wait)
            try:
                started = await self._start(index)
            except NoWorkerError as error:
                self._places.refused(index, self._reason(index, error))
                wait = restarts.refused()
                _log.error(
                    "op %s: worker %s cannot be started, and is tried again in %g s: %s",
                    self.op,
                    index,
                    wait,
                    error,
                )
            except StartupError as error:
                _log.error("op %s: worker %s: %s", self.op, index, error)
                self._places.failed(index, self._reason(index, error))
                wait = restarts.died(self._loop.time(), had_worked=False)
            else:
                self._enable(index)
                return started
        return None

    def _reason(self, index: int, error: StartupError) -> str:
        """The text of an error without the worker's name."""
        text = str(error).removeprefix(f"op {self.op!r}: worker {index}").removeprefix(":").lstrip()
        return text.removeprefix("cannot be started: ")

    def _make_idle(self, worker: W) -> None:
        """Add a ready worker."""
        if self._waiting:
            self._dispatch(worker, *self._waiting.popleft())
        else:
            self._idle.append(worker)

    def _next_idle(self) -> W:
        """The worker that has been idle for longest; one on probation only if there is no other."""
        now = self._loop.time()
        for worker in self._idle:
            if self._is_trusted(worker, now):
                self._idle.remove(worker)
                return worker
        return self._idle.popleft()

    def _is_trusted(self, worker: W, now: float) -> bool:
        """Whether it has finished a batch, or its slot is not on probation."""
        return bool(worker.batches) or not self._restarts[worker.index].is_doubtful(now)

    def _dispatch(self, worker: W, work: Work, finished: Finished) -> None:
        self._busy[work] = worker
        worker.run(work, finished)
        self._watchdog.begin()

    def _done(self, worker: W, work: Work, finished: Finished) -> None:
        """It has answered all batches of a Work, or will not run the rest."""
        del self._busy[work]
        work.current = None
        if not worker.ending and not self._end_to_replace(worker):
            self._make_idle(worker)
        finished(work, work.take_results())

    def _end_to_replace(self, worker: W) -> bool:
        """End the idle worker if it must be replaced; returns whether it does.

        One at a time, so that the others serve meanwhile; and none if no replacement would be
        started.
        """
        if self._leaving is not None or self._given_up or self._closing:
            return False
        if len(self._alive) < len(self._restarts):
            return False
        why = why_replaced(self._supervision, worker)
        if why is None:
            return False
        who = (self.op, worker.index, worker.where)
        _log.info("op %s: worker %s (%s) is replaced: %s", *who, why)
        self._leaving = worker
        worker.leave()
        return True

    def _release(self, worker: W) -> None:
        """Forget a dead worker, and report its Work."""
        self._alive.discard(worker)
        self.loaded[worker.index] = None
        if worker is self._leaving:
            self._leaving = None
        self._report_lost(worker)

    def _report_lost(self, worker: W) -> None:
        """Report the Work of a worker that will not answer it: its running batch fails, others are
        returned.
        """
        if worker in self._idle:
            self._idle.remove(worker)
        left = worker.release()
        if left is None:
            return
        work, finished, lost = left
        for batch in lost[:1]:
            worker.lost = batch.data_ids
            work.add_result(batch, self._lost_outcomes(worker, batch))
        for batch in lost[1:]:  # it cannot have died in these; but they may have run
            work.add_result(batch, broken(batch))
        del self._busy[work]
        work.current = None
        finished(work, work.take_results())

    def _lost_outcomes(self, worker: W, lost: Batch) -> list[Outcome]:
        """The error for the batch with which a worker ended."""
        if worker.replacing or self._closing:  # the batch did not kill it: we ended it
            return broken(lost)
        lost.started = None
        error = worker_died(self.op, worker.index)
        return [Outcome(None, error) for _ in lost.samples]

    def _give_up(self, index: int) -> None:
        """Disable a slot, so that no Work waits for its worker."""
        if index not in self._given_up:
            self._given_up.add(index)
            self.workers = max(1, len(self._restarts) - len(self._given_up)) * self._seats
            _log.error(
                "op %s: the workers of slot %s die repeatedly at the start; it is disabled, and a"
                " start is tried every %g s",
                self.op,
                index,
                LONGEST,
            )
        if len(self._given_up) == len(self._restarts) and not self._alive:
            while self._waiting:
                self._refuse(*self._waiting.popleft())

    def _enable(self, index: int) -> None:
        """A worker started after all: enable its slot."""
        if index in self._given_up:
            self._given_up.discard(index)
            self.workers = (len(self._restarts) - len(self._given_up)) * self._seats
            _log.warning("op %s: worker %s has started again", self.op, index)
            self.grown()

    def _refuse(self, work: Work, finished: Finished) -> None:
        error = NoProcess(f"op {self.op!r} has no worker: its workers die repeatedly at the start")
        while (batch := work.begin_next()) is not None:
            work.add_result(batch, [Outcome(None, error) for _ in batch.samples])
        finished(work, work.take_results())
