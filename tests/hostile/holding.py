"""Holds a request in the op until the test releases it."""

from __future__ import annotations

import errno
import os
import select
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from tests.kit.http1 import TIMEOUT

START: Final = 60.0
"""Seconds for the start of a service's process, as of ``ServiceProcess.wait_ready``."""

_READERS = 64
"""More than ever wait at a time; each reads one byte."""


@contextmanager
def held(pipe: Path, timeout: float = TIMEOUT) -> Iterator[None]:
    """During the block, the op waits in ``process`` for the earlier request with ``do=hold``.

    Args:
        pipe: that the op reads.
        timeout: seconds until the op has opened it; with ``START``, its process starts first.

    Raises:
        TimeoutError: the op has not opened the pipe.
    """
    deadline = time.monotonic() + timeout
    while True:
        try:
            end = os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
            break
        except OSError as error:
            # No reader yet. There is no event for it with a timeout.
            if error.errno != errno.ENXIO:
                raise
            if time.monotonic() > deadline:
                raise TimeoutError(f"no op has opened the pipe within {timeout} s") from error
            time.sleep(0.002)
    try:
        yield
    finally:
        _release(end)


def _release(end: int) -> None:
    try:
        with suppress(BrokenPipeError):  # the op's process has ended
            os.write(end, b"x" * _READERS)
        # Wait until the op has closed the pipe, or the next ``held`` would find this reader.
        poll = select.poll()
        poll.register(end, 0)
        if not poll.poll(TIMEOUT * 1000):
            raise TimeoutError("the op still waits")
    finally:
        os.close(end)
