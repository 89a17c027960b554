"""The supervisor's child processes: fork, signals, reaping; children die with the supervisor.

Guarantees: a child never returns to the caller's frames; it ends with the supervisor, whatever it
is doing; it leads a process group, so that a Ctrl-C in the terminal reaches only the supervisor; it
never handles signals with the supervisor's handlers, or blocks them; its random seeds are its own.
"""

from __future__ import annotations

import ctypes
import fcntl
import gc
import logging
import math
import os
import random
import select
import signal
import sys
import time
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Final, NoReturn

from penstock.executors.processes.crash_report import signal_name
from penstock.supervisor.signals import leave_hangup_to_supervisor

_log = logging.getLogger(__name__)


def as_shell(status: int) -> int:
    """The exit status as a shell shows it: 128 plus the signal's number."""
    return status if status >= 0 else 128 - status


def status_text(status: int) -> str:
    """A wait status as text."""
    return f"killed by {signal_name(-status)}" if status < 0 else f"exit status {status}"


class ParentDeath:
    """The pipe by which a child detects the supervisor's death; created before the fork.

    Args:
        reader: for a child that was forked elsewhere: the descriptor that it was sent.
    """

    def __init__(self, reader: int | None = None) -> None:
        self._writer: int | None = None
        if reader is None:
            reader, self._writer = os.pipe2(os.O_CLOEXEC)
        self.reader = reader

    def hold(self, *, passed_on: bool = False) -> None:
        """For the child, as leader of its process group: from now on the group dies with the
        supervisor.

        The descriptor stays open until the process ends.

        Args:
            passed_on: whether it stays open across exec.
        """
        if self._writer is not None:
            os.close(self._writer)
        reader = self.reader
        os.set_inheritable(reader, passed_on)
        fcntl.fcntl(reader, fcntl.F_SETOWN, -os.getpgrp())
        fcntl.fcntl(reader, fcntl.F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(reader, fcntl.F_SETFL, fcntl.fcntl(reader, fcntl.F_GETFL) | os.O_ASYNC)
        poll = select.poll()
        poll.register(reader, select.POLLIN)
        if poll.poll(0):  # the supervisor ended before the request to the kernel
            os.killpg(0, signal.SIGKILL)

    def keep(self) -> None:
        """For the supervisor, after the fork."""
        os.close(self.reader)

    def close(self) -> None:
        """For the supervisor, once the child has ended; and for the child's younger siblings."""
        assert self._writer is not None
        os.close(self._writer)


_STOPPING: Final = (signal.SIGTERM, signal.SIGINT)
_FAILED: Final = 1
_PR_SET_CHILD_SUBREAPER: Final = 36  # Source: prctl(2)


class Child:
    """A child as the supervisor sees it.

    Args:
        name: of what it runs, for logs.
        parent_death: the pipe that it got, or will get.
        pid: its process id; 0 if another process starts it, and has yet to report it.

    Attributes:
        pidfd: readable when it has ended; -1 as long as ``pid`` is 0.
        peak: the most memory it ever had, in bytes; known once it is reaped.

    Raises:
        OSError: no descriptor is available.
    """

    def __init__(self, name: str, parent_death: ParentDeath, pid: int = 0) -> None:
        self.name = name
        self.pid = 0
        self.pidfd = -1
        self.peak = 0
        self._parent_death = parent_death
        self._early: list[signal.Signals] = []
        if pid:
            self.started(pid)

    def started(self, pid: int) -> None:
        """Its start is reported: it is the child with this id, and gets the signals that were sent
        to it before.

        Raises:
            OSError: no descriptor is available.
        """
        self.pidfd = os.pidfd_open(pid)
        self.pid = pid
        for number in self._early:
            self.signal(number)

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal; no effect if it has ended."""
        if not self.pid:
            self._early.append(number)
            return
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.pidfd, number)

    def kill(self) -> None:
        """Kill it and its process group. Its pid is not reused until it is reaped."""
        self.signal(signal.SIGKILL)
        if self.pid:
            with suppress(ProcessLookupError, PermissionError):  # it has left its process group
                os.killpg(self.pid, signal.SIGKILL)

    def has_ended(self) -> bool:
        """Whether it has ended, and waits to be reaped."""
        return self.pid > 0 and ends_within(self.pidfd, 0.0)

    def reap(self) -> int:
        """Wait for its end, and kill the rest of its process group; returns its wait status. One
        whose start has not been reported never comes: should it exist, it is killed.
        """
        if not self.pid:
            self.close()
            return _FAILED << 8
        ends_within(self.pidfd, None)
        self.kill()
        _, status, used = os.wait4(self.pid, 0)
        self.peak = used.ru_maxrss * 1024
        self.close()
        return status

    def close(self) -> None:
        """Close the supervisor's descriptors of it; its siblings also do so after their fork."""
        if self.pid:
            os.close(self.pidfd)
        self._parent_death.close()


def end_all(children: Sequence[Child], timeout: float) -> None:
    """Kill and reap them; those that have not ended after ``timeout`` seconds are logged."""
    for child in children:
        child.kill()
    deadline = time.monotonic() + timeout
    for child in children:
        if not child.pid or ends_within(child.pidfd, max(0.0, deadline - time.monotonic())):
            child.reap()
        else:
            _log.error("%s (pid %d) does not end though it was killed", child.name, child.pid)
            child.close()


def ends_within(pidfd: int, seconds: float | None) -> bool:
    """Wait for the end of a process; returns whether it ended. None is no limit."""
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    return bool(poll.poll(None if seconds is None else seconds * 1000))


@contextmanager
def spared_pages() -> Iterator[None]:
    """Keep the children's garbage collection from copying pages shared with this process."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def fork(
    name: str,
    main: Callable[[], int],
    leave: Callable[[], None],
    *,
    stoppable: bool,
    spawns: bool = False,
) -> Child:
    """Start a child that runs ``main`` and exits with the status that it returns.

    Args:
        name: of what it runs, for logs.
        main: the child's code; ``SystemExit`` also ends it, other exceptions are logged.
        leave: called in the child to close descriptors of the supervisor and the siblings.
        stoppable: whether SIGTERM and SIGINT have their default action; otherwise the child ignores
            them, but programs that it starts do not.
        spawns: ``main`` calls exec; the new program ends with the supervisor like a child, and
            continues with ``take_over``. Only then may this process have threads.

    Raises:
        OSError: no process or descriptor is available.
    """
    _flush()  # otherwise the child would write it again
    parent_death = ParentDeath()

    try:
        with _stopping_blocked() as before:
            pid = os.fork()
            if pid == 0:
                _run(name, partial(_live, main, leave, parent_death, before, stoppable=stoppable,
                                   spawns=spawns))  # fmt: skip
    except OSError:
        parent_death.keep()
        parent_death.close()
        raise
    parent_death.keep()
    # Parent and child both do it, because either may come first.
    with suppress(PermissionError):  # the child has done it, and called exec
        os.setpgid(pid, pid)
    try:
        return Child(name, parent_death, pid)
    except OSError:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        parent_death.close()
        raise


def fork_for(
    name: str, main: Callable[[], int], leave: Callable[[], None], reader: int, *, stoppable: bool
) -> int:
    """Start a child of the supervisor in another process, of which it is no child: its parent ends
    at once, and the supervisor adopts it.

    Args:
        name: as for ``fork``, like the following ones.
        main: likewise.
        leave: likewise.
        reader: of the supervisor's ``ParentDeath``.
        stoppable: as for ``fork``.

    Returns:
        Its process id.

    Raises:
        OSError: no process or descriptor is available.
    """
    _flush()
    ours, theirs = os.pipe2(os.O_CLOEXEC)
    try:
        with _stopping_blocked() as before:
            parent = os.fork()
            if parent == 0:
                _run(name, partial(_bear, name, main, leave, reader, before, theirs,
                                   stoppable=stoppable))  # fmt: skip
        os.close(theirs)
        theirs = -1
        _, status = os.waitpid(parent, 0)
        if status:
            raise OSError(f"a process cannot be started: {status_text(status)}")
        return int(os.read(ours, 32))
    finally:
        for fd in (ours, theirs):
            if fd >= 0:
                os.close(fd)


def _bear(
    name: str,
    main: Callable[[], int],
    leave: Callable[[], None],
    reader: int,
    before: Iterable[int],
    tell: int,
    *,
    stoppable: bool,
) -> int:
    """The code of the process in between: starts the child, and ends."""
    pid = os.fork()
    if pid == 0:
        os.close(tell)
        death = ParentDeath(reader)
        _run(name, partial(_live, main, leave, death, before, stoppable=stoppable, spawns=False))
    os.setpgid(pid, pid)
    os.write(tell, str(pid).encode())
    return 0


def adopt_orphans() -> None:
    """Become the parent of descendants whose parents end, as process 1 is anyhow.

    Raises:
        OSError: the system does not allow it.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


@contextmanager
def _stopping_blocked() -> Iterator[Iterable[int]]:
    """Block the signals that stop, around a fork: one that comes before the child has installed its
    handlers would run its parent's. Yields the mask, which the child restores.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _STOPPING)
    try:
        yield before
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _live(
    main: Callable[[], int],
    leave: Callable[[], None],
    parent_death: ParentDeath,
    before: Iterable[int],
    *,
    stoppable: bool,
    spawns: bool,
) -> int:
    """The code of a child."""
    os.setpgid(0, 0)
    parent_death.hold(passed_on=spawns)
    signal.set_wakeup_fd(-1)
    _take_signals()
    if not stoppable and not spawns:
        _ignore_signals()
    leave()
    _close_input()
    if not spawns:  # and other threads may hold the locks of random generators
        _reseed()
    signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return main()


def take_over(name: str, main: Callable[[], int], *, stoppable: bool) -> NoReturn:
    """The steps of ``fork`` in a child, for a child that has called exec."""
    _take_signals()
    if not stoppable:
        _ignore_signals()
    leave_hangup_to_supervisor()
    random.seed()  # which a fork does by itself
    _reseed()
    _run(name, main)


def _run(name: str, main: Callable[[], int]) -> NoReturn:
    status = _FAILED
    try:
        status = main()
    except SystemExit as error:
        status = _status_of(error)
    except BaseException:  # noqa: BLE001 - it must not reach the caller's frames
        _log.exception("%s ended with an exception", name)
    finally:
        end_now(status & 0xFF if isinstance(status, int) else _FAILED)


def _take_signals() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)


def _ignore_signals() -> None:
    """Not by SIG_IGN, which started programs would inherit: they could not be terminated."""
    for number in _STOPPING:
        signal.signal(number, _ignore)
    os.register_at_fork(after_in_child=_take_signals)


def _ignore(number: int, frame: FrameType | None) -> None:
    """A handler that does nothing: the engine ends its workers."""


def _status_of(error: SystemExit) -> int:
    """The exit status for a SystemExit, as of the interpreter."""
    if error.code is None:
        return 0
    if isinstance(error.code, int):
        return error.code
    _log.error("%s", error.code)
    return _FAILED


def _close_input() -> None:
    """Outside of the terminal's process group, a read from it would stop the process."""
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)


def _reseed() -> None:
    """Give each child its own random seeds. ``random`` does so itself."""
    numpy_random = sys.modules.get("numpy.random")
    if numpy_random is not None:
        kind = type(numpy_random.get_bit_generator())
        numpy_random.set_bit_generator(kind())
    torch = sys.modules.get("torch")
    if torch is not None:  # the CPU's generator: those of GPUs are created after the fork
        torch.default_generator.seed()
    # Not by paddle.seed(), which counts the GPUs: the child has not selected its own yet.
    paddle = getattr(sys.modules.get("paddle.framework.random"), "core", None)
    if paddle is not None:
        paddle.default_cpu_generator().manual_seed(int.from_bytes(os.urandom(8)))


def end_now(status: int) -> NoReturn:
    """End this process at once, whatever its threads do, without unwinding."""
    try:
        _flush()
    finally:
        os._exit(status)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            try:
                stream.flush()
            except (OSError, ValueError):  # it has no reader, or the script closed it
                continue


_ADOPTED: Final = 10.0
"""Interval in seconds at which adopted processes are checked."""


class Reaper:
    """Reaps orphaned processes, as process 1 of a container must.

    Args:
        adopts: whether orphaned processes become children of this one.

    Attributes:
        poll_interval: seconds until the next call of ``reap`` without another event.
    """

    def __init__(self, *, adopts: bool) -> None:
        self._adopts = False
        self._scripts = frozenset[int]()
        self.poll_interval = math.inf
        if adopts:
            self.adopt(())

    def adopt(self, known: Iterable[int]) -> None:
        """From now on orphaned processes become children of this one.

        Args:
            known: its children that are none of the script, which may wait for its own.
        """
        if not self._adopts:
            self._adopts = True
            self._scripts = frozenset(_children()).difference(known)
            self.poll_interval = _ADOPTED

    def reap(self, known: Container[int]) -> None:
        """Reap all ended children except the known ones."""
        for pid in _children() if self._adopts else ():
            if pid not in known and pid not in self._scripts:
                with suppress(ChildProcessError):
                    os.waitpid(pid, os.WNOHANG)


def _children() -> Iterable[int]:
    """The children of the main thread, which adopts orphans; empty if the system does not list
    them.
    """
    with suppress(OSError):
        return map(int, Path(f"/proc/self/task/{os.getpid()}/children").read_text().split())
    return ()
