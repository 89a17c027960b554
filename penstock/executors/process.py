"""Runs batches in processes of their own: a fault in native code costs one batch, not the service.

Each worker has one socket, over which all batches of a Work go out together and their outcomes come
back. What it is doing stands on its board. When it dies, the batch that ran is answered, those that
had not begun go to another worker, and a new one is asked for. Nothing that it says is trusted:
a worker that breaks the rules is killed.
"""

from __future__ import annotations

import asyncio
import logging
import os
import pickle
import signal
import socket
from collections import deque
from collections.abc import Callable
from typing import Any, Final, Protocol

from penstock.errors import InferenceFailed, StartupError
from penstock.executors.board import Board
from penstock.executors.crossing import outcomes_in, samples_out
from penstock.executors.executor import Finished, Work
from penstock.executors.frame import Frame, FrameError, Kind, decode, encode, header
from penstock.executors.link import Link
from penstock.executors.restarts import Restarts
from penstock.executors.slab import SlabPool, SlabReader
from penstock.ops.failures import worker_died
from penstock.request import Batch, Outcome

_log = logging.getLogger(__name__)

SLAB_BYTES: Final = 512 << 20
"""Most bytes of large arrays on the way to one worker, and as many on the way back; what does not
fit goes through the socket."""

_MOST_FRAME: Final = 1 << 30
_KILL: Final = signal.SIGKILL


class Spawned(Protocol):
    """A process that was started; its descriptors are ours to close."""

    @property
    def pid(self) -> int:
        """Its number."""

    @property
    def pidfd(self) -> int:
        """What it is signalled by."""

    @property
    def socket(self) -> socket.socket:
        """Our end of its socket."""


class Spawner(Protocol):
    """Starts worker processes."""

    async def spawn(self, op: str, index: int) -> Spawned:
        """Start one; its model is not open yet."""

    async def exited(self, pid: int) -> int:
        """Its status as ``os.waitpid`` gives it, when it has ended; asked once for each."""


class _Sent:
    """A batch at a worker. ``wanted`` is False once the engine has taken it back."""

    __slots__ = ("batch", "begun", "number", "wanted")

    def __init__(self, number: int, batch: Batch) -> None:
        self.number = number
        self.batch = batch
        self.begun = False
        self.wanted = True


class _Worker:
    """One process, from its start to its end.

    Attributes:
        ready: done when it has said that it can work; fails with what it said otherwise.
        exit: done with its status when it has ended.
        ended: done when it has hung up or was cut off, with the rule that it broke, if any.
        work: what it runs now.
        sent: the batches of that, until each is answered.
        has_worked: it has finished a batch.
    """

    def __init__(
        self,
        index: int,
        spawned: Spawned,
        exit: asyncio.Task[int],
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self.index = index
        self.pid = spawned.pid
        self.exit = exit
        self.ready: asyncio.Future[None] = loop.create_future()
        self.ended: asyncio.Future[FrameError | None] = loop.create_future()
        self.work: tuple[Work, Finished] | None = None
        self.sent: deque[_Sent] = deque()
        self.has_worked = False
        self.done: Callable[[_Worker], None] = _nobody
        self._pidfd = spawned.pidfd
        self._board: Board | None = None
        self._out = SlabPool(SLAB_BYTES)
        self._in = SlabReader(SLAB_BYTES)
        self._link = Link(spawned.socket, loop, _MOST_FRAME, self._hear, self._hung_up)

    def run(self, number: int, work: Work, finished: Finished) -> int:
        """Send a Work's batches; gives the next free number."""
        self.work = (work, finished)
        for batch in work.pending:
            self.sent.append(_Sent(number, batch))
            body = encode(samples_out(batch.samples), place=self._out.place, pickle=_pickled)
            for slab, descriptor in self._out.commit():
                self._link.send([header(Kind.SLAB, slab, 0)], [descriptor])
            self._link.send([header(Kind.RUN, number, sum(map(len, body))), *body])
            number += 1
        return number

    def look(self) -> None:
        """Bring the Work up to date with what the board says."""
        assert self._board is not None
        at = self._board.batch
        for sent in self.sent:
            if sent.number <= at and sent.wanted:
                self._begin(sent)
        if self.work is not None:
            current = self.work[0].current
            running = self.sent and self.sent[0].number == at and self.sent[0].batch is current
            if current is not None:
                current.started = self._board.started if running else None

    def take_back(self) -> list[Batch]:
        """What it has not begun, and now will not begin."""
        waiting = [sent for sent in self.sent if not sent.begun and sent.wanted]
        if not waiting:
            return []
        last = encode(waiting[-1].number)
        self._link.send([header(Kind.SKIP, waiting[0].number, sum(map(len, last))), *last])
        self.look()  # in this order; see child.py
        taken = [sent for sent in waiting if not sent.begun]
        assert self.work is not None
        for sent in taken:
            sent.wanted = False
            self.work[0].pending.remove(sent.batch)
        return [sent.batch for sent in taken]

    def ask_to_stop(self) -> None:
        """It ends after what it runs."""
        self._link.send([header(Kind.STOP, 0, 0)])

    def kill(self) -> None:
        """End it now."""
        try:
            signal.pidfd_send_signal(self._pidfd, _KILL)
        except ProcessLookupError:
            return

    def close(self) -> None:
        """Give back what belongs to it; it has ended."""
        self._link.close()
        self._out.close()
        self._in.close()
        os.close(self._pidfd)
        if self._board is not None:
            self._board.close()

    def lost(self) -> Batch | None:
        """The batch that it died of; the others have not begun."""
        if self._board is not None and self.sent:
            self.look()
            if self.sent[0].begun:
                return self.sent[0].batch
        return None

    def _begin(self, sent: _Sent) -> None:
        if not sent.begun:
            sent.begun = True
            assert self.work is not None
            begun = self.work[0].begin_next()
            assert begun is sent.batch

    def _hear(self, frame: Frame) -> None:
        match frame.kind:
            case Kind.DONE:
                self._answered(frame)
            case Kind.SLAB:
                self._in.accept(frame.number, self._link.take_descriptor())
            case Kind.FREE:
                self._out.release(frame.number >> 32, frame.number & 0xFFFFFFFF)
            case Kind.READY if self._board is None:
                self._board = Board.attach(self._link.take_descriptor())
                self.ready.set_result(None)
            case Kind.FAILED if not self.ready.done():
                self.ready.set_exception(StartupError(str(decode(frame.body))))
            case _:
                raise FrameError(f"a worker does not say {frame.kind.name} here")
        for slab, generation in self._in.freed():
            self._link.send([header(Kind.FREE, slab << 32 | generation, 0)])

    def _answered(self, frame: Frame) -> None:
        if not self.sent or self.sent[0].number != frame.number or self.work is None:
            raise FrameError("the worker answers what it was not asked")
        value = decode(frame.body, fetch=self._in.fetch)
        sent = self.sent[0]
        work, _ = self.work
        if value is None:  # it was taken back
            self.sent.popleft()
            if sent.wanted:  # not by us, in the end
                if sent.begun:
                    work.pending.appendleft(sent.batch)
                    work.current = None
                    sent.batch.started = None
        elif not sent.wanted:
            raise FrameError("the worker ran what was taken back")
        else:
            outcomes = _outcomes(value, sent.batch)
            self.sent.popleft()
            self._begin(sent)
            sent.batch.worker = self.index
            sent.batch.started = None
            self.has_worked = True
            work.add_result(sent.batch, outcomes)
        if not self.sent:
            self.done(self)

    def _hung_up(self, broken: FrameError | None) -> None:
        if not self.ended.done():
            self.ended.set_result(broken)


class ProcessExecutor:
    """``count`` worker processes of one op.

    Args:
        name: the op's.
        count: workers.
        spawner: starts them.
        loop: the engine's.
        kill_late: whether a call that was given up is ended with its worker, rather than left to
            return.
    """

    takes_several = True

    def __init__(
        self,
        name: str,
        count: int,
        spawner: Spawner,
        loop: asyncio.AbstractEventLoop,
        *,
        kill_late: bool = False,
    ) -> None:
        self.workers = count
        self._name = name
        self._spawner = spawner
        self._loop = loop
        self._kill_late = kill_late
        self._number = 1
        self._idle: deque[_Worker] = deque()
        self._busy: dict[Work, _Worker] = {}
        self._waiting: deque[tuple[Work, Finished]] = deque()  # for a worker to be there again
        self._alive: set[_Worker] = set()
        self._restarts = Restarts()
        self._given_up = False
        self._closing = False
        self._keepers: list[asyncio.Task[None]] = []

    def __repr__(self) -> str:
        return f"<ProcessExecutor {self._name!r} {len(self._alive)} of {self.workers}>"

    @property
    def alive(self) -> bool:
        """Whether there is a worker at all."""
        return bool(self._alive)

    async def start(self) -> None:
        """Start every worker; returns when all can work.

        Raises:
            StartupError: one cannot, with what it said; the others are ended.
        """
        starts = [self._start(index) for index in range(self.workers)]
        results = await asyncio.gather(*starts, return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                await self.close(0.0)
                raise result
        for worker in list(self._alive):
            self._keepers.append(self._loop.create_task(self._keep(worker)))

    def submit(self, work: Work, finished: Finished) -> None:
        """Give the Work to an idle worker, or to the next one that is started."""
        if self._given_up and not self._alive:
            self._refuse(work, finished)
        elif self._idle:
            self._hand(self._idle.popleft(), work, finished)
        else:
            self._waiting.append((work, finished))

    def look(self, work: Work) -> None:
        """See Executor."""
        worker = self._busy.get(work)
        if worker is not None:
            worker.look()

    def take_back(self, work: Work) -> list[Batch]:
        """See Executor."""
        worker = self._busy.get(work)
        return work.take_back() if worker is None else worker.take_back()

    def abandon(self, work: Work) -> None:
        """A call that was given up is left to return, or ended with its worker."""
        worker = self._busy.get(work)
        if worker is not None and self._kill_late:
            _log.warning("op %s: worker %s is ended: time-out", self._name, worker.index)
            worker.kill()

    async def close(self, timeout: float) -> bool:
        """Let the workers end after what they run, and end those that do not."""
        self._closing = True
        workers = list(self._alive)
        for worker in workers:
            worker.ask_to_stop()
        exits = [each.exit for each in workers]
        left: set[asyncio.Task[int]] = set()
        if exits:
            _, left = await asyncio.wait(exits, timeout=timeout)
        for worker in workers:
            if worker.exit in left:
                _log.warning("op %s: worker %s does not end and is killed", self._name, worker.index)
                worker.kill()
        if left:
            await asyncio.wait(left)
        for task in self._keepers:
            task.cancel()
        await asyncio.gather(*self._keepers, return_exceptions=True)
        for worker in workers:
            self._bury(worker, None)
        return not left

    async def _start(self, index: int) -> _Worker:
        spawned = await self._spawner.spawn(self._name, index)
        exit = self._loop.create_task(self._spawner.exited(spawned.pid))
        worker = _Worker(index, spawned, exit, self._loop)
        worker.done = self._done
        try:
            await asyncio.wait((worker.ready, worker.ended), return_when=asyncio.FIRST_COMPLETED)
            if not worker.ready.done():
                status = await worker.exit
                raise StartupError(
                    f"op {self._name!r}: worker {index} ended before it was ready"
                    f" ({how_it_ended(status)})"
                )
            worker.ready.result()
        except BaseException:
            worker.kill()
            worker.close()
            await worker.exit
            raise
        self._alive.add(worker)
        self._take_up(worker)
        return worker

    async def _keep(self, worker: _Worker) -> None:
        """Wait for a worker's end and replace it, for as long as the service runs."""
        while True:
            broken = await worker.ended
            if broken is not None:
                _log.error("op %s: worker %s is ended: %s", self._name, worker.index, broken)
                worker.kill()
            lost = self._bury(worker, broken)
            status = await worker.exit
            if self._closing:
                return
            _log.error(
                "op %s: worker %s (pid %s) died: %s%s",
                self._name,
                worker.index,
                worker.pid,
                how_it_ended(status),
                f", with data_ids={lost.data_ids}" if lost is not None else "",
            )
            following = await self._replace(worker)
            if following is None:
                return
            worker = following

    async def _replace(self, worker: _Worker) -> _Worker | None:
        """A new worker in the place of one that died; None when there will be none."""
        had_worked = worker.has_worked
        while not self._closing:
            wait = self._restarts.died(self._loop.time(), had_worked=had_worked)
            if wait is None or self._given_up:
                self._give_up()
                return None
            await asyncio.sleep(wait)
            try:
                return await self._start(worker.index)
            except StartupError as error:
                _log.error("op %s: worker %s: %s", self._name, worker.index, error)  # noqa: TRY400
                had_worked = False
        return None

    def _take_up(self, worker: _Worker) -> None:
        """It can work."""
        if self._waiting:
            self._hand(worker, *self._waiting.popleft())
        else:
            self._idle.append(worker)

    def _hand(self, worker: _Worker, work: Work, finished: Finished) -> None:
        self._busy[work] = worker
        self._number = worker.run(self._number, work, finished)

    def _done(self, worker: _Worker) -> None:
        """It has answered everything of its Work."""
        assert worker.work is not None
        work, finished = worker.work
        worker.work = None
        del self._busy[work]
        work.current = None
        self._take_up(worker)
        finished(work, work.take_results())

    def _bury(self, worker: _Worker, broken: FrameError | None) -> Batch | None:
        """It is no more: answer for what it ran, give the rest back. Gives the batch it had."""
        if worker not in self._alive:
            return None
        self._alive.discard(worker)
        if worker in self._idle:
            self._idle.remove(worker)
        lost = worker.lost()
        taken, worker.work = worker.work, None
        if taken is not None:
            work, finished = taken
            del self._busy[work]
            work.current = None
            if lost is not None:
                lost.started = None
                error = worker_died(self._name, worker.index)
                work.add_result(lost, [Outcome(None, error) for _ in lost.samples])
            finished(work, work.take_results())
        worker.close()
        return lost

    def _give_up(self) -> None:
        if not self._given_up:
            self._given_up = True
            _log.error(
                "op %s: its workers die before they have finished anything; it is given up, and"
                " its requests fail until the service is started again",
                self._name,
            )
        while self._waiting and not self._alive:
            self._refuse(*self._waiting.popleft())

    def _refuse(self, work: Work, finished: Finished) -> None:
        error = InferenceFailed(f"op {self._name!r} has no worker: they die as they are started")
        while (batch := work.begin_next()) is not None:
            work.add_result(batch, [Outcome(None, error) for _ in batch.samples])
        finished(work, work.take_results())


def how_it_ended(status: int) -> str:
    """A status of ``os.waitpid`` in words."""
    code = os.waitstatus_to_exitcode(status)
    if code >= 0:
        return f"exit status {code}"
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"


def _outcomes(value: Any, batch: Batch) -> list[Outcome]:
    if type(value) is not list or len(value) != 2 or type(value[0]) is not float:
        raise FrameError("the worker's answer is none")
    batch.ran = value[0]
    return outcomes_in(value[1], len(batch.samples))


def _pickled(value: Any) -> bytes:
    """What an op in this process made, for the user's code in the worker; opened only there."""
    return pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)


def _nobody(worker: _Worker) -> None:
    """Before the executor listens there is no Work."""
