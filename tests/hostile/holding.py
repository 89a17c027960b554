"""Holds a request inside the op until the test lets it go."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.hostile.raw import PATIENCE


@contextmanager
def held(pipe: Path) -> Iterator[None]:
    """Inside of the block, the op that was sent ``do=hold`` before is waiting in ``process``."""
    deadline = time.monotonic() + PATIENCE
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
        os.close(end)
