"""SIGTERM and SIGINT until the service's loop takes them: they end the start, not the process."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


class Stopped(BaseException):
    """A signal asked to stop. No Exception, so that an op's ``except`` does not catch it."""


@contextmanager
def signals_stop_the_start() -> Iterator[Callable[[], None]]:
    """Raise ``Stopped`` where the main thread is when SIGTERM or SIGINT comes.

    Gives a function that raises it again, for use after code that may have caught the first one.
    Main thread only. On leaving, the handlers from before are back.

    Raises:
        Stopped: a signal came.
    """
    told = False

    def stop(number: int, frame: FrameType | None) -> None:
        nonlocal told
        told = True
        raise Stopped

    def stop_if_told() -> None:
        if told:
            raise Stopped

    before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield stop_if_told
    finally:
        for number, handler in before.items():
            if handler is not None:  # None: not set from Python, so not ours to set back
                signal.signal(number, handler)
                signal.signal(number, handler)
    stop_if_told()
