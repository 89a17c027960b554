"""The bytes of decoded pictures in this process, and their limit.

A picture's file says nothing about its size in memory: a kilobyte may have 64 million pixels. So
its bytes are counted before it is decoded, until its array is freed. In an engine they count as
bytes in flight (``max_inflight_bytes``) together with bodies and answers; a worker process has a
part of that limit.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import RLock
from typing import Any, Final

import numpy as np

from penstock.errors import ServiceBusy


class NeverFits(ValueError):
    """A picture takes more bytes than may be in flight at all."""


class DecodedBytes:
    """The count and the limit of these bytes. Any thread.

    Attributes:
        used: bytes of pictures that are being decoded, and of arrays that exist.
    """

    def __init__(self) -> None:
        self.used = 0
        self._limit: int | None = None
        self._others: Callable[[], int] = int
        # A thread may free an array while it holds the lock.
        self._lock = RLock()

    def share(self, limit: int, others: Callable[[], int] = int) -> None:
        """Set the limit.

        Args:
            limit: bytes.
            others: returns the bytes of other things that count within this limit.
        """
        self._limit = limit
        self._others = others

    @contextmanager
    def decoding(self, count: int) -> Iterator[None]:
        """Reserve bytes for the time of the context, in which a picture is decoded.

        Raises:
            ServiceBusy: they do not fit now; a later retry may succeed.
            NeverFits: they never fit.
        """
        with self._lock:
            limit = self._limit
            if limit is not None and count > limit:
                raise NeverFits(
                    f"an image takes {count} bytes while it is decoded, of {limit} that may be"
                    f" in flight (max_inflight_bytes)"
                )
            if limit is not None and self._others() + self.used + count > limit:
                raise ServiceBusy("too many bytes of decoded images in flight; try again later")
            self.used += count
        try:
            yield
        finally:
            self._add(-count)

    def keep(self, array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Count an array until it is freed; returns it."""
        size = array.nbytes
        self._add(size)
        weakref.finalize(array, self._add, -size).atexit = False
        return array

    def _add(self, count: int) -> None:
        with self._lock:
            self.used += count


DECODED: Final = DecodedBytes()
"""Those of this process."""
