"""Runs batches in processes of their own: a fault in native code costs one batch, not the service.

Each worker has one socket, over which all batches of a Work go out together and their outcomes come
back. What it is doing stands on its board. When it dies, the batch that ran is answered, those that
had not begun go to another worker, and a new one is asked for.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import Final

from penstock.errors import InferenceFailed, StartupError
from penstock.executors.executor import Finished, Work
from penstock.executors.processes.control import Exited
from penstock.executors.processes.crashes import Crashes
from penstock.executors.processes.passing import NoDescriptorError
from penstock.executors.processes.patrol import Patrol, stays
from penstock.executors.processes.recycling import why_replaced
from penstock.executors.processes.relay import Relay
from penstock.executors.processes.restarts import LONGEST, Restarts
from penstock.executors.processes.spawner import Spawner
from penstock.executors.processes.starting import NoRoomError, Starter
from penstock.executors.processes.supervision import Supervision
from penstock.executors.processes.worker import Worker
from penstock.executors.work import broken
from penstock.ops.failures import worker_died
from penstock.request import Batch, Outcome

_log = logging.getLogger(__name__)

PREFETCH: Final = 1
"""Works that stand behind the one that a worker runs. A second one gained nothing."""

_LAST_LINES: Final = 1.0  # seconds that what workers wrote last is given at the end


class ProcessExecutor:
    """``count`` worker processes of one op.

    Args:
        name: the op's.
        count: workers.
        spawner: starts them.
        loop: the engine's.
        supervision: how they are looked after.
        only_plain: whether somebody reads its outputs who is no worker process.
        ahead: see Executor.
    """

    takes_several = True
    grown: Callable[[], None] = staticmethod(lambda: None)

    def __init__(
        self,
        name: str,
        count: int,
        spawner: Spawner,
        loop: asyncio.AbstractEventLoop,
        *,
        supervision: Supervision | None = None,
        only_plain: bool = False,
        ahead: int = 0,
    ) -> None:
        self.workers = count
        self.ahead = ahead
        self._name = name
        self._loop = loop
        self._supervision = supervision or Supervision()
        self._relay = Relay()
        self._starter = Starter(
            name, spawner, loop, self._relay, self._supervision, only_plain=only_plain
        )
        self._idle: deque[Worker] = deque()
        self._busy: dict[Work, Worker] = {}
        self._waiting: deque[tuple[Work, Finished]] = deque()  # for a worker to be there again
        self._alive: set[Worker] = set()
        self._leaving: Worker | None = None  # asked to, and not gone yet
        self._too_large = False  # to go ahead, was what was sent last, or was to be
        self._count = count
        self._restarts = [Restarts() for _ in range(count)]  # by slot
        self._given_up: set[int] = set()  # slots whose workers are not waited for
        self._closing = False
        self._keepers: list[asyncio.Task[None]] = []
        self._crashes = Crashes(name, self._supervision.crash_dir)
        self._patrol = Patrol(name, self._busy_workers, loop)

    def __repr__(self) -> str:
        return f"<ProcessExecutor {self._name!r} {len(self._alive)} of {self.workers}>"

    @property
    def alive(self) -> bool:
        """Whether some worker is there that has not yet to prove that it survives a batch."""
        now = self._loop.time()
        return any(
            worker.batches or not self._restarts[worker.index].is_doubtful(now)
            for worker in self._alive
        )

    async def start(self) -> None:
        """Start every worker; returns when all can work.

        Raises:
            StartupError: one cannot, with what it said; the others are ended, ready or not.
        """
        starts = [self._loop.create_task(self._start(index)) for index in range(self.workers)]
        try:
            await asyncio.gather(*starts)  # whichever fails first is told of at once
        except BaseException as error:
            for start in starts:
                start.cancel()
            await asyncio.gather(*starts, return_exceptions=True)
            if isinstance(error, Exception):
                await self.close(0.0)
            raise
        for worker in list(self._alive):
            self._keepers.append(self._loop.create_task(self._keep(worker)))

    def submit(self, work: Work, finished: Finished) -> None:
        """Give the Work to an idle worker, or to the next one that is started."""
        if len(self._given_up) == self._count and not self._alive:
            self._refuse(work, finished)
        elif self._idle:
            self._hand(self._next_idle(), work, finished)
        else:
            self._waiting.append((work, finished))

    @property
    def room(self) -> bool:
        """See Executor."""
        return not self._too_large and self._roomy() is not None

    def submit_ahead(self, work: Work, finished: Finished) -> bool:
        """See Executor."""
        worker = self._roomy()
        assert worker is not None
        self._too_large = not worker.run_next(work, finished)
        if self._too_large:
            return False
        self._busy[work] = worker
        return True

    def look(self, work: Work) -> None:
        """See Executor."""
        worker = self._busy.get(work)
        if worker is not None:
            worker.look()

    def take_back(self, work: Work) -> list[Batch]:
        """See Executor."""
        worker = self._busy.get(work)
        return work.take_back() if worker is None else worker.take_back(work)

    def abandon(self, work: Work) -> None:
        """A call beyond its time-out is left to return, or ended with its worker, which tells where
        it was.

        One that merely nobody waits for is left: callers who come and go must not cost workers.
        """
        worker, batch = self._busy.get(work), work.current
        if worker is None or batch is None or not batch.settled or worker.condemned:
            return
        if self._supervision.kill_late and stays(worker):
            _log.warning(
                "op %s: worker %s (pid %s) is ended: its call is beyond the time-out, with"
                " data_ids=%s",
                self._name,
                worker.index,
                worker.pid,
                batch.data_ids,
            )
            worker.late = worker.sent_away = True
            worker.abort()

    async def close(self, timeout: float) -> bool:
        """Let the workers end after what they run, and end those that do not."""
        self._closing = True
        self._patrol.end()
        workers = list(self._alive)
        for worker in workers:
            worker.ask_to_stop()
        exits = [each.exit for each in workers]
        left: set[asyncio.Task[Exited]] = set()
        if exits:
            _, left = await asyncio.wait(exits, timeout=timeout)
        for worker in workers:
            if worker.exit in left:
                if timeout > 0:
                    told = "op %s: worker %s is killed: it does not end"
                    _log.warning(told, self._name, worker.index)
                worker.kill()
        if left:
            await asyncio.wait(left)
        for task in self._keepers:
            task.cancel()
        await asyncio.gather(*self._keepers, return_exceptions=True)
        late = [each for each in self._alive if each not in workers]  # were just being started
        for worker in late:
            worker.kill()
            await worker.exit
        for worker in workers + late:
            worker.hear_out()
            self._bury(worker)
            worker.stderr.close()
        await asyncio.to_thread(self._relay.flush, _LAST_LINES)
        await asyncio.to_thread(self._crashes.wait, _LAST_LINES)
        return not left

    async def _start(self, index: int) -> Worker:
        worker = await self._starter.start(index)
        worker.done = self._done
        self._alive.add(worker)
        self._take_up(worker)
        return worker

    async def _keep(self, worker: Worker) -> None:
        """Wait for a worker's end and replace it, for as long as the service runs."""
        following: Worker | None = worker
        while following is not None:
            worker = following
            try:
                await self._see_off(worker)
            except Exception:  # noqa: BLE001 - a mistake of ours must not leave its place empty
                _log.exception("op %s: a worker's end failed; please report this", self._name)
                worker.kill()
                worker.stderr.close()
            following = None if self._closing else await self._replace(worker)

    async def _see_off(self, worker: Worker) -> None:
        """Wait for a worker's end, give back what it had, and tell of it."""
        # What it has started may hold its socket open beyond its end.
        await asyncio.wait((worker.ended, worker.exit), return_when=asyncio.FIRST_COMPLETED)
        fault = worker.ended.result() if worker.ended.done() else None
        if fault is None:
            worker.hear_out()
        else:
            _log.error("op %s: worker %s is ended: %s", self._name, worker.index, fault)
        if not self._closing:
            worker.kill()  # it may have hung up and live on
        lost = next(iter(self._bury(worker)), None)
        end = await worker.exit
        if self._closing:
            return
        worker.stderr.close()
        if worker.late or not worker.sent_away:
            self._crashes.tell(worker, end, lost)

    async def _replace(self, worker: Worker) -> Worker | None:
        """A new worker in the place of one that died; None when the service ends before that."""
        restarts, index = self._restarts[worker.index], worker.index
        wait: float | None = 0.0
        if not worker.sent_away:
            wait = restarts.died(
                self._loop.time(), had_worked=worker.batches > 0, had_begun=worker.has_begun
            )
        elif worker.ended.done() and isinstance(worker.ended.result(), NoDescriptorError):
            wait = restarts.lacked(self._loop.time())
        while not self._closing:
            if wait is None or index in self._given_up:
                self._give_up(index)
                wait = LONGEST
            await asyncio.sleep(wait)
            try:
                started = await self._start(index)
            except NoRoomError as error:
                wait = restarts.refused()
                _log.error(
                    "op %s: worker %s cannot be started, and is tried again in %g s: %s",
                    self._name,
                    worker.index,
                    wait,
                    error,
                )
            except StartupError as error:
                _log.error("op %s: worker %s: %s", self._name, index, error)
                wait = restarts.died(self._loop.time(), had_worked=False)
            except Exception:  # noqa: BLE001 - see above
                wait = restarts.refused()
                _log.exception(
                    "op %s: worker %s cannot be started, and is tried again in %g s; please report"
                    " this",
                    self._name,
                    worker.index,
                    wait,
                )
            else:
                self._take_up_again(index)
                return started
        return None

    def _take_up(self, worker: Worker) -> None:
        """It can work."""
        if self._waiting:
            self._hand(worker, *self._waiting.popleft())
        else:
            self._idle.append(worker)

    def _next_idle(self) -> Worker:
        """One that has finished a batch, if there is: another may die of its first."""
        for worker in self._idle:
            if worker.batches:
                self._idle.remove(worker)
                return worker
        return self._idle.popleft()

    def _hand(self, worker: Worker, work: Work, finished: Finished) -> None:
        self._busy[work] = worker
        self._too_large = not worker.run(self._name, work, finished)
        self._patrol.begin()

    def _busy_workers(self) -> dict[Worker, None]:
        """Each once, the longest at work first."""
        return dict.fromkeys(self._busy.values())

    def _roomy(self) -> Worker | None:
        """Who is to get what goes ahead: who is likely to be done first, unless somebody waits."""
        workers = () if self._closing or self._waiting else self._busy_workers()
        return next((worker for worker in workers if worker.has_room(self.ahead)), None)

    def _done(self, worker: Worker, work: Work, finished: Finished) -> None:
        """It has answered everything of a Work."""
        del self._busy[work]
        work.current = None
        leaves = worker.condemned or (self._supervision.recycles and self._lets_go(worker))
        if not leaves and not worker.works:
            self._take_up(worker)
        finished(work, work.take_results())

    def _lets_go(self, worker: Worker) -> bool:
        """Whether the worker leaves to be replaced, as it is idle; else it does when it will be.

        One at a time, so that the others go on working meanwhile, however like they are.
        """
        if self._leaving is not None or len(self._alive) < self.workers:
            return False
        if self._given_up or self._closing:  # nobody would come in its place
            return False
        why = why_replaced(self._supervision, worker.batches, worker.resident())
        worker.spent = why is not None
        if why is None or worker.works:
            return False
        _log.info(
            "op %s: worker %s (pid %s) is replaced: %s", self._name, worker.index, worker.pid, why
        )
        self._leaving = worker
        worker.leave()
        return True

    def _bury(self, worker: Worker) -> list[Batch]:
        """It is no more: answer for what it ran, give the rest back. Gives what it had begun."""
        if worker not in self._alive:
            return []
        self._alive.discard(worker)
        if worker is self._leaving:
            self._leaving = None
        if worker in self._idle:
            self._idle.remove(worker)
        lost = worker.lost()
        works = list(worker.works)
        worker.works.clear()
        worker.close()
        for work, batch in lost[:1]:
            work.add_result(batch, self._fate(worker, batch))
        for work, batch in lost[1:]:  # it cannot have died of these, too; but they may have run
            work.add_result(batch, broken(batch))
        for work, _ in works:
            del self._busy[work]
            work.current = None
        for work, finished in works:
            finished(work, work.take_results())
        return [batch for _, batch in lost]

    def _fate(self, worker: Worker, lost: Batch) -> list[Outcome]:
        """What is answered for the batch that a worker ended with."""
        if worker.sent_away or self._closing:  # it did not die of the batch: we ended it
            return broken(lost)
        lost.started = None
        error = worker_died(self._name, worker.index)
        return [Outcome(None, error) for _ in lost.samples]

    def _give_up(self, index: int) -> None:
        """A worker is not waited for. Its slot goes with it, or a Work would always wait for it."""
        if index not in self._given_up:
            self._given_up.add(index)
            self.workers = max(1, self._count - len(self._given_up))
            _log.error(
                "op %s: the workers of slot %s die too soon; it is given up, and a start is tried"
                " every %g s",
                self._name,
                index,
                LONGEST,
            )
        if len(self._given_up) == self._count and not self._alive:
            while self._waiting:
                self._refuse(*self._waiting.popleft())

    def _take_up_again(self, index: int) -> None:
        """A worker came after all; it gets its slot back."""
        if index in self._given_up:
            self._given_up.discard(index)
            self.workers = self._count - len(self._given_up)
            _log.warning("op %s: worker %s could be started again after all", self._name, index)
            self.grown()

    def _refuse(self, work: Work, finished: Finished) -> None:
        error = InferenceFailed(f"op {self._name!r} has no worker: they die too soon")
        while (batch := work.begin_next()) is not None:
            work.add_result(batch, [Outcome(None, error) for _ in batch.samples])
        finished(work, work.take_results())
