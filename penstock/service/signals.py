"""SIGTERM and SIGINT, from the start of a service until the interpreter exits; and SIGHUP.

The first two end the start, then the service; and once that is over they must not spoil the exit
status. So at no moment between is the default action in force, which would kill the process.
"""

from __future__ import annotations

import atexit
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

_BOTH = (signal.SIGTERM, signal.SIGINT)
_DEFAULTS = (signal.SIG_DFL, signal.default_int_handler)


class Stopped(BaseException):
    """A signal asked to stop. No Exception, so that an op's ``except`` does not catch it."""


class StopSignals:
    """What SIGTERM and SIGINT do now: at first they raise ``Stopped`` in the main thread."""

    def __init__(self) -> None:
        self._told = False
        self._ended = False
        self._tell: Callable[[], object] = self._stop

    def stop_if_told(self) -> None:
        """For use after code that may have caught the first ``Stopped``.

        Raises:
            Stopped: a signal has come that nobody took.
        """
        if self._told and not self._ended:
            raise Stopped

    def hand_to(self, tell: Callable[[], object]) -> None:
        """From now on each signal calls this, in the main thread, whatever that does.

        Raises:
            Stopped: one has come already.
        """
        self._tell = tell
        self.stop_if_told()

    def pause(self) -> None:
        """From now on signals are only noted."""
        self._tell = self._note

    def end(self) -> None:
        """The service is over: what signals can still stop is what its script does next."""
        self._ended = True
        self._tell = _ignore

    def heard(self, number: int, frame: FrameType | None) -> None:
        """The handler."""
        self._tell()

    def hand_back(self, before: dict[signal.Signals, Any]) -> None:
        """Put the handlers from before back, or what has to follow in place of default ones."""
        if not self._ended:
            self.pause()
        for number, handler in before.items():
            if self._ended and handler in _DEFAULTS:
                signal.signal(number, _leave)
                # The interpreter's exit brings the default action back in place of functions.
                atexit.register(signal.signal, number, signal.SIG_IGN)
            elif handler is not None:  # None: not set from Python, so not ours to set back
                signal.signal(number, handler)

    def _stop(self) -> None:
        self._told = True
        raise Stopped

    def _note(self) -> None:
        self._told = True


@contextmanager
def signals_stop_the_start() -> Iterator[StopSignals]:
    """Raise ``Stopped`` where the main thread is when SIGTERM or SIGINT comes.

    Main thread only. On leaving, the handlers from before are back. Only in place of default ones,
    once ``end`` was called, a signal is ``SystemExit(0)`` in what the script does next, and nothing
    at all while the interpreter exits.

    Raises:
        Stopped: a signal came, and nobody was told to take it.
    """
    signals = StopSignals()
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _BOTH)  # whoever started us may have blocked them
    before: dict[signal.Signals, Any] = {
        number: signal.signal(number, signals.heard) for number in _BOTH
    }
    try:
        yield signals
    finally:
        signals.hand_back(before)
    signals.stop_if_told()


@contextmanager
def waits_are_woken(waker: socket.socket) -> Iterator[None]:
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


class _HangUp:
    """Our handler, which is known again in a child."""

    def __init__(self, tell: Callable[[], object]) -> None:
        self._tell = tell

    def __call__(self, number: int, frame: FrameType | None) -> None:
        self._tell()


@contextmanager
def hangups_tell(tell: Callable[[], object]) -> Iterator[None]:
    """Call this when SIGHUP comes, unless the script or ``nohup`` has decided otherwise."""
    before = signal.getsignal(signal.SIGHUP)
    if before is not signal.SIG_DFL and not isinstance(before, _HangUp):
        yield
        return
    signal.signal(signal.SIGHUP, _HangUp(tell))
    try:
        yield
    finally:
        signal.signal(signal.SIGHUP, before)


def hang_up_as_before() -> None:
    """A child's step: SIGHUP ends it again, if it told its parent something."""
    if isinstance(signal.getsignal(signal.SIGHUP), _HangUp):
        signal.signal(signal.SIGHUP, signal.SIG_DFL)


def _ignore() -> None:
    """What a signal asks for is being done already."""


def _leave(number: int, frame: FrameType | None) -> None:
    raise SystemExit(0)
