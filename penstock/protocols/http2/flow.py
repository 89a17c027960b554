"""What waits behind the peer's windows, and whose turn it is when they open.

A stream with queued data is either *ready* (its own window is open; it stands in the line for the
connection's window) or *parked* (only its own WINDOW_UPDATE helps). The line moves frame by frame:
who has sent one goes to its end, so that no stream waits for a large one.

Source: RFC 9113, section 5.2.
"""

from __future__ import annotations

from collections import deque
from typing import Final

LOW_MARK: Final = 64 << 10
"""A stream is told to go on when no more than this is queued; the port of exchanges says so."""

SMALL: Final = 4096
"""Pieces are joined up to this size: each takes some 200 bytes more than it holds, and a stream of
small messages would hold many times what it counts."""


class Outbox:
    """The rest of a message that the peer's windows do not let out.

    Attributes:
        size: bytes of data in it.
        end: the stream ends behind the data.
        trailers: a header block that ends the stream behind the data.
        ready: whether its stream stands in the line.
        taken: bytes that have gone out of it.
    """

    __slots__ = ("_gone", "_pieces", "end", "ready", "size", "taken", "trailers")

    def __init__(self) -> None:
        self._pieces: deque[memoryview] = deque()
        self.size = 0
        self._gone = 0  # bytes of the first piece
        self.taken = 0
        self.end = False
        self.trailers: bytes | None = None
        self.ready = False

    @property
    def held(self) -> int:
        """Bytes that are kept for them: of a long piece all, until all of it has gone."""
        return self.size + self._gone

    def put(self, data: bytes) -> None:
        """Add data behind what waits; long pieces are kept by reference."""
        if not data:
            return
        self.size += len(data)
        pieces = self._pieces
        if pieces and len(pieces[-1]) + len(data) <= SMALL:
            if len(pieces) == 1:
                self._gone = 0
            pieces[-1] = memoryview(b"".join((pieces[-1], data)))
        else:
            pieces.append(memoryview(data))

    def take(self, most: int) -> list[memoryview]:
        """Take exactly ``min(most, size)`` bytes from the front."""
        taken: list[memoryview] = []
        pieces = self._pieces
        before = self.size
        while most and pieces:
            piece = pieces[0]
            if len(piece) <= most:
                pieces.popleft()
                self._gone = 0
            else:
                self._gone += most
                pieces[0] = piece[most:]
                piece = piece[:most]
            taken.append(piece)
            most -= len(piece)
            self.size -= len(piece)
        self.taken += before - self.size
        return taken
