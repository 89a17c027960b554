"""SIGTERM and SIGINT until the service's loop takes them: they end the start, not the process."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Stopped(BaseException):
    """A signal asked to stop. No Exception, so that an op's ``except`` does not catch it."""


@contextmanager
def signals_stop_the_start() -> Iterator[None]:
    """Raise ``Stopped`` where the main thread is when SIGTERM or SIGINT comes.

    Main thread only. On leaving, the handlers from before are back.

    Raises:
        Stopped: a signal came, even if what ran here caught the first one.
    """
    told = False

    def stop(number: int, frame: FrameType | None) -> None:
        nonlocal told
        told = True
        raise Stopped

    before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if told:
        raise Stopped
