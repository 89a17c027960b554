"""Passes on what workers write to standard error, without anybody waiting for who reads it."""

from __future__ import annotations

import os
import select
import threading
from collections import deque
from typing import Final

MOST_WAITING: Final = 1 << 20
"""Bytes that wait to be written; a guess at what a burst of tracebacks makes."""


class Relay:
    """Writes whole lines in a thread of its own, in the order in which they came.

    What does not fit, and what cannot be written, is dropped and counted; one line tells how much
    when writing works again.

    Args:
        descriptor: where to; the service's own standard error.
    """

    def __init__(self, descriptor: int = 2) -> None:
        self._descriptor = descriptor
        self._changed = threading.Condition()
        self._waiting: deque[bytes] = deque()
        self._size = 0
        self._dropped = 0
        self._writing = False
        self._thread: threading.Thread | None = None

    def pass_on(self, lines: bytes) -> None:
        """Queue whole lines; never blocks on who reads them."""
        with self._changed:
            if self._size + len(lines) > MOST_WAITING:
                self._dropped += lines.count(b"\n")
                return
            self._waiting.append(lines)
            self._size += len(lines)
            self._changed.notify_all()
            if self._thread is None:
                # A daemon, because a reader who never comes must not keep the process from ending.
                thread = threading.Thread(target=self._write, name="relay", daemon=True)
                try:
                    thread.start()
                except RuntimeError:  # no thread is to be had: the next line asks again
                    return
                self._thread = thread

    def flush(self, timeout: float) -> bool:
        """Wait until everything is written; whether it was, in time."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._waiting and not self._writing, timeout)

    def _write(self) -> None:
        while True:
            with self._changed:
                self._writing = False
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._waiting)
                lines = self._waiting.popleft()
                self._size -= len(lines)
                self._writing = True
                dropped = self._dropped
            try:
                if dropped:
                    self._write_all(b"WARNING %d lines of workers were dropped\n" % dropped)
                    with self._changed:
                        self._dropped -= dropped
                self._write_all(lines)
            except OSError:  # the disk is full; nobody can be told now
                with self._changed:
                    self._dropped += lines.count(b"\n")

    def _write_all(self, data: bytes) -> None:
        rest = memoryview(data)
        while rest:
            try:
                rest = rest[os.write(self._descriptor, rest) :]
            except BlockingIOError:  # whoever shares it with us has made it so
                ready = select.poll()
                ready.register(self._descriptor, select.POLLOUT)
                ready.poll()
