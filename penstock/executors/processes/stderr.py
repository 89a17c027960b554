"""What one worker writes to standard error: the engine passes it on, and keeps the last of it."""

from __future__ import annotations

import asyncio
import os
from collections import deque
from typing import Final

from penstock.executors.processes.relay import Relay
from penstock.executors.processes.stack import without_our_way

_AT_ONCE: Final = 64 << 10
_MOST_LINE: Final = 8 << 10
_KEPT_LINES: Final = 200
_KEPT_BYTES: Final = 32 << 10
_PAUSE: Final = 0.01  # seconds after so much at once
_MOST_REST: Final = 1 << 20
"""Bytes that are read after a worker's end: what it has started may still write."""


class Stderr:
    """See the module.

    Args:
        loop: the engine's.
        relay: gets every line.

    Attributes:
        writer: the worker's end, to be sent to it.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, relay: Relay) -> None:
        self._loop = loop
        self._relay = relay
        self._reader, self.writer = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(self._reader, False)
        self._part = b""
        self._last: deque[bytes] = deque()
        self._kept = 0
        self._open = True
        loop.add_reader(self._reader, self._read)

    def sent(self) -> None:
        """The worker has its end."""
        os.close(self.writer)
        self.writer = -1

    def close(self) -> None:
        """It has ended: take what it has still written, and listen no more."""
        if not self._open:
            return
        most = _MOST_REST
        while self._open and most > 0 and (taken := self._read()):
            most -= taken
        self._end()

    def last(self, lines: int, size: int) -> list[str]:
        """The last lines, oldest first; no more than so many, nor than so many bytes. Of a stack
        only what is the op's own.
        """
        chosen: list[str] = []
        for line in reversed([*filter(None, without_our_way(self.kept()))]):
            size -= len(line)
            if len(chosen) == lines or size < 0:
                break
            chosen.append(line)
        return chosen[::-1]

    def kept(self) -> list[str]:
        """All that is remembered."""
        return [line.decode(errors="replace") for line in self._last]

    def _read(self) -> int:
        try:
            data = os.read(self._reader, _AT_ONCE)
        except BlockingIOError:
            return 0
        except OSError:
            data = b""
        if not data:
            self._end()
            return 0
        whole, end, part = (self._part + data).rpartition(b"\n")
        if end:
            self._take(whole + end)
        self._part = part
        if len(part) > _MOST_LINE:
            self._take_part()
        if len(data) == _AT_ONCE:
            self._pause()
        return len(data)

    def _pause(self) -> None:
        """A worker that writes without end waits for us, not we for it."""
        self._loop.remove_reader(self._reader)
        self._loop.call_later(_PAUSE, self._go_on)

    def _go_on(self) -> None:
        if self._open:
            self._loop.add_reader(self._reader, self._read)

    def _take_part(self) -> None:
        if self._part:
            self._take(self._part + b"\n")
            self._part = b""

    def _take(self, lines: bytes) -> None:
        self._relay.pass_on(lines)
        for line in lines[-_KEPT_BYTES:].splitlines()[-_KEPT_LINES:]:
            self._last.append(line)
            self._kept += len(line)
        while self._last and (len(self._last) > _KEPT_LINES or self._kept > _KEPT_BYTES):
            self._kept -= len(self._last.popleft())

    def _end(self) -> None:
        if self._open:
            self._open = False
            self._take_part()
            self._loop.remove_reader(self._reader)
            os.close(self._reader)
            if self.writer >= 0:
                self.sent()
