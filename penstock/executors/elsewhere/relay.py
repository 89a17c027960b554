"""Copies what a worker writes to its engine, from the process that started the worker.

The worker writes to a pipe that is always read, so that it never waits for the network. Of what the
engine does not take fast enough, the newest part is kept. What cannot be sent goes to the standard
error of this process.
"""

from __future__ import annotations

import os
import socket
import sys
import threading
from collections import deque
from contextlib import suppress
from typing import Final

from penstock.executors.elsewhere.keepalive import keep_alive
from penstock.executors.elsewhere.opening import Opening

CONNECT_TIMEOUT: Final = 10.0  # seconds
MOST_UNSENT: Final = 128 << 10  # bytes that are kept for the engine
_AT_ONCE: Final = 4 << 10  # bytes of one read, and of what is dropped together
_LAST: Final = 0.5
"""Seconds after a worker's end for the pipe's end: programs that it started may hold it open."""


class Newest:
    """Bytes that wait to be sent: the newest, and how many before them were dropped.

    Args:
        most: bytes.
    """

    def __init__(self, most: int = MOST_UNSENT) -> None:
        self._most = most
        self._chunks: deque[bytes] = deque()
        self._bytes = self._dropped = 0

    def add(self, data: bytes) -> None:
        """Add the newest."""
        self._chunks.append(data)
        self._bytes += len(data)
        while self._bytes > self._most and len(self._chunks) > 1:
            gone = len(self._chunks.popleft())
            self._bytes -= gone
            self._dropped += gone

    def take(self) -> bytes:
        """The oldest chunk, after a line about those that were dropped before it; empty if there is
        none.
        """
        if not self._chunks:
            return b""
        data = self._chunks.popleft()
        self._bytes -= len(data)
        if self._dropped:
            data = b"\n(%d bytes of output were dropped here)\n%b" % (self._dropped, data)
            self._dropped = 0
        return data


class Relay:
    """See the module. Its threads are daemons.

    Args:
        opening: the worker's; has the token for its output.

    Raises:
        OSError: the engine cannot be reached.
    """

    def __init__(self, opening: Opening) -> None:
        self._link = socket.create_connection((opening.host, opening.port), CONNECT_TIMEOUT)
        self._link.settimeout(None)
        # What is in the kernel's buffers cannot be dropped for something newer.
        self._link.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, MOST_UNSENT)
        keep_alive(self._link)
        self._link.sendall(opening.output_token.encode())
        self._unsent = Newest()
        self._changed = threading.Condition()
        self._at_end = False  # nothing will be added
        self._sending = threading.Thread(target=self._send, daemon=True)
        self._reading: threading.Thread | None = None

    def begin(self, where: str, pipe: int) -> None:
        """Begin to copy.

        Args:
            where: where the worker runs, for the engine's messages.
            pipe: a descriptor from which its output can be read; closed at its end.
        """
        self._unsent.add(" ".join(where.splitlines()).encode() + b"\n")
        self._reading = threading.Thread(target=self._read, args=(pipe,), daemon=True)
        self._reading.start()
        self._sending.start()

    def finish(self, timeout: float) -> None:
        """After the worker's end: send the rest, within so many seconds, and close the
        connection.
        """
        if self._reading is not None:
            self._reading.join(_LAST)
        with self._changed:
            self._at_end = True
            self._changed.notify()
        if self._reading is not None:
            self._sending.join(timeout)
        self._link.close()

    def _read(self, pipe: int) -> None:
        with suppress(OSError):
            while data := os.read(pipe, _AT_ONCE):
                with self._changed:
                    self._unsent.add(data)
                    self._changed.notify()
        os.close(pipe)

    def _send(self) -> None:
        is_there = True
        while data := self._next():
            if is_there:
                try:
                    self._link.sendall(data)
                    continue
                except OSError:
                    is_there = False
            with suppress(OSError, ValueError):
                sys.stderr.buffer.write(data)
                sys.stderr.buffer.flush()
        with suppress(OSError):
            self._link.shutdown(socket.SHUT_WR)

    def _next(self) -> bytes:
        """Wait for something to send; empty at the end."""
        with self._changed:
            while not (data := self._unsent.take()) and not self._at_end:
                self._changed.wait()
            return data
