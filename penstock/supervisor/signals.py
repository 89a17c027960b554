"""SIGTERM and SIGINT, from the start of a service until the interpreter exits; and SIGHUP.

The first two end the start, then the service; afterwards they must not change the exit status. So
the default action, which would kill the process, is never active in between.
"""

from __future__ import annotations

import atexit
import os
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, NoReturn

_BOTH = (signal.SIGTERM, signal.SIGINT)


def end_at_once(number: int, frame: FrameType | None) -> NoReturn:
    """A handler with the effect of the default action, which process 1 of a container lacks."""
    os._exit(128 + number)


_DEFAULTS = (signal.SIG_DFL, signal.default_int_handler, end_at_once)


class Stopped(BaseException):
    """The service got a signal to stop. Not an Exception, so that ``except`` in an op does not
    catch it.
    """


class StopSignals:
    """The current action of SIGTERM and SIGINT: at first they raise ``Stopped`` in the main
    thread.
    """

    def __init__(self) -> None:
        self._signalled = False
        self._ended = False
        self._action: Callable[[], object] = self._stop

    def raise_if_stopped(self) -> None:
        """For use after code that may have caught the first ``Stopped``.

        Raises:
            Stopped: a signal came and was not handled.
        """
        if self._signalled and not self._ended:
            raise Stopped

    def forward_to(self, action: Callable[[], object]) -> None:
        """From now on each signal calls ``action``, in the main thread.

        Raises:
            Stopped: a signal has already come.
        """
        self._action = action
        self.raise_if_stopped()

    def pause(self) -> None:
        """From now on signals are only recorded."""
        self._action = self._note

    def end(self) -> None:
        """The service has ended: signals can now only stop the rest of the script."""
        self._ended = True
        self._action = _ignore

    def received(self, number: int, frame: FrameType | None) -> None:
        """The signal handler."""
        self._action()

    def restore(self, before: dict[signal.Signals, Any]) -> None:
        """Restore the previous handlers, or replace default ones."""
        if not self._ended:
            self.pause()
        for number, handler in before.items():
            if self._ended and handler in _DEFAULTS:
                signal.signal(number, _leave)
                # The interpreter's exit replaces functions by the default action.
                atexit.register(signal.signal, number, signal.SIG_IGN)
            elif handler is not None:  # None: not set from Python, so not ours to set back
                signal.signal(number, handler)

    def _stop(self) -> None:
        self._signalled = True
        raise Stopped

    def _note(self) -> None:
        self._signalled = True


@contextmanager
def signals_stop_the_start() -> Iterator[StopSignals]:
    """Raise ``Stopped`` in the main thread on SIGTERM or SIGINT.

    Main thread only. At the end, the previous handlers are restored. Where these were the default
    and ``end`` was called, a signal raises ``SystemExit(0)`` in the rest of the script, and is
    ignored while the interpreter exits.

    Raises:
        Stopped: a signal came, and no handler was set.
    """
    signals = StopSignals()
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _BOTH)  # the parent process may have blocked them
    before: dict[signal.Signals, Any] = {
        number: signal.signal(number, signals.received) for number in _BOTH
    }
    try:
        yield signals
    finally:
        signals.restore(before)
    signals.raise_if_stopped()


@contextmanager
def signals_wake_waits(waker: socket.socket) -> Iterator[None]:
    """Make signals wake waits; and keep ended children as zombies, which ignoring SIGCHLD
    prevents.
    """
    before = signal.getsignal(signal.SIGCHLD)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    fd = signal.set_wakeup_fd(waker.fileno(), warn_on_full_buffer=False)
    try:
        yield
    finally:
        signal.set_wakeup_fd(fd)
        if before is not None:
            signal.signal(signal.SIGCHLD, before)


class _HangupHandler:
    """Our handler, which a child can recognise."""

    def __init__(self, action: Callable[[], object]) -> None:
        self._action = action

    def __call__(self, number: int, frame: FrameType | None) -> None:
        self._action()


@contextmanager
def on_hangup(action: Callable[[], object]) -> Iterator[bool]:
    """Call ``action`` on SIGHUP, unless the script or ``nohup`` has set another action. Yields
    whether it does.
    """
    before = signal.getsignal(signal.SIGHUP)
    if before is not signal.SIG_DFL and not isinstance(before, _HangupHandler):
        yield False
        return
    signal.signal(signal.SIGHUP, _HangupHandler(action))
    try:
        yield True
    finally:
        signal.signal(signal.SIGHUP, before)


def leave_hangup_to_supervisor() -> None:
    """For a child: SIGHUP does nothing here, unless the script or ``nohup`` has set an action.

    ``systemctl kill -s HUP`` sends it to every process of a unit; its default action would end an
    engine with all of its requests. A function, not SIG_IGN, which started programs would inherit.
    """
    before = signal.getsignal(signal.SIGHUP)
    if before is signal.SIG_DFL or isinstance(before, _HangupHandler):
        signal.signal(signal.SIGHUP, _HangupHandler(_ignore))


def _ignore() -> None:
    """An action that does nothing."""


def _leave(number: int, frame: FrameType | None) -> None:
    raise SystemExit(0)
