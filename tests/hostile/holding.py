"""Holds a request inside the op until the test lets it go."""

from __future__ import annotations

import errno
import os
import select
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.kit.http1 import TIMEOUT

_READERS = 64
"""Each reads one byte; more than ever wait at a time."""


@contextmanager
def held(pipe: Path) -> Iterator[None]:
    """Inside of the block, the op that was sent ``do=hold`` before is waiting in ``process``."""
    deadline = time.monotonic() + TIMEOUT
    while True:
        try:
            end = os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
            break
        except OSError as error:
            # Nobody reads yet. There is no event for it that would not wait for ever.
            if error.errno != errno.ENXIO or time.monotonic() > deadline:
                raise
            time.sleep(0.002)
    try:
        yield
    finally:
        _let_go(end)


def _let_go(end: int) -> None:
    try:
        with suppress(BrokenPipeError):  # then its process has ended
            os.write(end, b"x" * _READERS)
        # Until it has closed the pipe, or whoever holds next would take it for his own.
        poll = select.poll()
        poll.register(end, 0)
        if not poll.poll(TIMEOUT * 1000):
            raise TimeoutError("the op still waits")
    finally:
        os.close(end)
