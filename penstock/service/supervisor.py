"""Starts the engine and, when it asks, its workers; replaces an engine that dies.

The supervisor is the process that has run the user's script. It has one thread, no loop and no
model, so it can be forked at any moment: what the script has imported need not be imported again.

Guarantees: no child outlives the supervisor; no worker outlives its engine; a child that ends is
reaped at once, and its engine told; children hold nothing of their siblings', so that everybody's
end of file is seen. Only own children are waited for.

An engine that dies is replaced, after it was ready once: before that, its status is the service's.
"""

from __future__ import annotations

import gc
import logging
import os
import select
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from typing import Final, TypeAlias

from penstock.errors import StartupError
from penstock.executors.processes.control import (
    ControlError,
    Exited,
    Forked,
    Ready,
    Refused,
    Spawn,
)
from penstock.executors.processes.restarts import WITHIN, Restarts
from penstock.service.engine_process import EngineProcess
from penstock.service.forking import Child, fork
from penstock.service.signals import StopSignals

_log = logging.getLogger(__name__)

EngineMain: TypeAlias = Callable[[socket.socket], int]
WorkerMain: TypeAlias = Callable[[str, int, socket.socket], int]

_GIVEN_UP: Final = 1
_LAST_WAIT: Final = 5.0  # for killed children; a guess at what a driver needs to let go of one


class Supervisor:
    """The parent of one service's processes.

    Args:
        engine_main: run in the engine, with its end of the control line (see
            ``executors/processes/zygote.py``); gives its exit status.
        worker_main: run in a worker, with the op's name, the worker's index and its end of the
            socket pair; gives its exit status. It is to end when that socket does.
        listeners: of the engine alone: workers close them, and so does the supervisor when it is
            told to stop; until then, connections wait for the next engine.

    Threads: the main thread only, and there may be no other.
    """

    def __init__(
        self,
        engine_main: EngineMain,
        worker_main: WorkerMain,
        listeners: Sequence[socket.socket] = (),
    ) -> None:
        self._engine_main = engine_main
        self._worker_main = worker_main
        self._listeners = tuple(listeners)
        self._restarts = Restarts()
        self._told = 0
        self._forwarded = 0
        self._was_ready = False
        self._engine: EngineProcess | None = None
        self._workers: dict[int, Child] = {}
        self._start_at: float | None = None
        self._status: int | None = None
        # Signals write here, so that a wait hears of them.
        self._woken: socket.socket
        self._waker: socket.socket

    def __repr__(self) -> str:
        return f"<Supervisor engine={self._engine} workers={len(self._workers)}>"

    def run(self, signals: StopSignals) -> int:
        """Serve until the engine has ended for good; its exit status, 128 and more for a signal.

        SIGTERM and SIGINT are each passed on to the engine as SIGTERM.

        Raises:
            StartupError: the first engine cannot be forked.
            Stopped: a signal came before this.
        """
        signals.hand_to(self._tell)
        try:
            with ExitStack() as stack:
                stack.enter_context(_spared_pages())
                self._woken, self._waker = socket.socketpair()
                for each in (self._woken, self._waker):
                    stack.enter_context(each)
                    each.setblocking(False)
                stack.enter_context(_woken_by_signals(self._waker))
                stack.callback(self._end_children)
                _log_native_threads()
                self._start_engine()
                while self._status is None:
                    self._step()
        finally:
            signals.pause()
        if self._status == 0:
            signals.end()
        return self._status

    def _tell(self) -> None:
        self._told += 1

    def _step(self) -> None:
        """Wait for the next thing to happen, and see to everything that has."""
        wake_up = partial(self._woken.recv, 4096)
        waiting: dict[int, Callable[[], object]] = {self._woken.fileno(): wake_up}
        poll = select.poll()
        poll.register(self._woken, select.POLLIN)
        engine = self._engine
        if engine is not None:
            if engine.events:
                poll.register(engine.control, engine.events)
                waiting[engine.control.fileno()] = partial(self._converse, engine)
            poll.register(engine.child.pidfd, select.POLLIN)
            waiting[engine.child.pidfd] = partial(self._engine_died, engine)
        for worker in self._workers.values():
            poll.register(worker.pidfd, select.POLLIN)
            waiting[worker.pidfd] = partial(self._worker_died, worker)
        for fd, _ in poll.poll(self._patience()):
            waiting[fd]()
        self._forward_signals()
        if self._start_at is not None and time.monotonic() >= self._start_at:
            self._restart_engine()

    def _patience(self) -> float | None:
        """In milliseconds."""
        if self._start_at is None:
            return None
        return max(0.0, self._start_at - time.monotonic()) * 1000 + 1

    def _forward_signals(self) -> None:
        while self._forwarded < self._told:
            self._forwarded += 1
            for each in self._listeners:  # or the engine, closing them, would not close the ports
                each.close()
            if self._engine is not None:
                self._engine.child.signal(signal.SIGTERM)
            elif self._status is None:  # between a death and a restart
                self._status = 0

    def _start_engine(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        with theirs:
            try:
                child = fork(
                    "engine", partial(self._engine_main, theirs), partial(self._leave, ours),
                    stoppable=True,
                )  # fmt: skip
            except BaseException:
                ours.close()
                raise
        self._engine = EngineProcess(child, ours)

    def _restart_engine(self) -> None:
        self._start_at = None
        try:
            self._start_engine()
        except (OSError, StartupError) as error:
            _log.error("the engine cannot be started again: %s", error)
            self._plan_restart(lived=0.0)

    def _plan_restart(self, lived: float) -> None:
        now = time.monotonic()
        delay = self._restarts.died(now, had_worked=lived >= WITHIN)
        if delay is None:
            _log.critical("the engine has died too often: given up")
            self._status = _GIVEN_UP
        else:
            self._start_at = now + delay

    def _engine_died(self, engine: EngineProcess) -> None:
        with suppress(ControlError):
            if any(isinstance(message, Ready) for message in engine.messages()):
                self._was_ready = True
        status = os.waitstatus_to_exitcode(engine.child.reap())
        engine.close()
        self._engine = None
        for worker in self._workers.values():
            worker.kill()  # reaped when they have ended, which a driver may delay
        if self._told and status in (0, -signal.SIGTERM):
            self._status = 0  # perhaps before it could take signals
        elif self._told or not self._was_ready:
            self._status = status if status >= 0 else 128 - status
        else:
            _log.error("the engine (pid %d) died: %s", engine.child.pid, told_of(status))
            self._plan_restart(time.monotonic() - engine.since)

    def _worker_died(self, worker: Child) -> None:
        status = worker.reap()
        del self._workers[worker.pid]
        if self._engine is not None:
            self._engine.say(Exited(worker.pid, status, worker.peak))

    def _converse(self, engine: EngineProcess) -> None:
        engine.send_waiting()
        try:
            for message in engine.messages():
                match message:
                    case Ready():
                        self._was_ready = True
                    case Spawn():
                        self._spawn(engine, message)
                    case _:
                        raise ControlError(f"the engine says {message}")
        except ControlError as error:
            _log.error("the engine is not understood, and killed: %s", error)
            engine.child.kill()

    def _spawn(self, engine: EngineProcess, wanted: Spawn) -> None:
        ours, theirs = socket.socketpair()
        with ours, theirs:
            main = partial(self._worker_main, wanted.op, wanted.index, theirs)
            leave = partial(self._leave, ours, *self._listeners)
            try:
                child = fork(f"{wanted.op}|{wanted.index}", main, leave, stoppable=False)
            except (OSError, StartupError) as error:
                engine.say(Refused(wanted.number, str(error)))
                return
            self._workers[child.pid] = child
            try:
                engine.say(Forked(wanted.number, child.pid), ours.fileno(), child.pidfd)
            except OSError as error:  # no descriptor is left for one that has to wait
                child.kill()
                engine.say(Refused(wanted.number, str(error)))

    def _leave(self, *others: socket.socket) -> None:
        """A child's step: close what is the supervisor's and the siblings'."""
        for each in (self._woken, self._waker, *others):
            each.close()
        if self._engine is not None:
            self._engine.child.close()
            self._engine.close()
        for worker in self._workers.values():
            worker.close()

    def _end_children(self) -> None:
        """Kill and reap whatever still lives."""
        left = list(self._workers.values())
        if self._engine is not None:
            left.append(self._engine.child)
            self._engine.close()
        for child in left:
            child.kill()
        deadline = time.monotonic() + _LAST_WAIT
        for child in left:
            poll = select.poll()
            poll.register(child.pidfd, select.POLLIN)
            if poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
                child.reap()
            else:
                _log.error("%s (pid %d) does not end though it was killed", child.name, child.pid)
                child.close()


def told_of(status: int) -> str:
    """An exit status in words; below 0 it is a signal's number."""
    if status >= 0:
        return f"exit status {status}"
    try:
        return f"killed by {signal.Signals(-status).name}"
    except ValueError:
        return f"killed by signal {-status}"


@contextmanager
def _spared_pages() -> Iterator[None]:
    """Keep the children's collectors away from what they share with this process."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


@contextmanager
def _woken_by_signals(waker: socket.socket) -> Iterator[None]:
    """Have signals end a wait; and children wait to be reaped, which ignoring SIGCHLD prevents."""
    before = signal.getsignal(signal.SIGCHLD)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    fd = signal.set_wakeup_fd(waker.fileno(), warn_on_full_buffer=False)
    try:
        yield
    finally:
        signal.set_wakeup_fd(fd)
        if before is not None:
            signal.signal(signal.SIGCHLD, before)


def _log_native_threads() -> None:
    """Such pools are started by libraries on import, and have handlers of their own for forks."""
    try:
        native = len(os.listdir("/proc/self/task")) - threading.active_count()
    except OSError:
        return
    if native > 0:
        _log.info("%d threads of native libraries run in the supervisor", native)
