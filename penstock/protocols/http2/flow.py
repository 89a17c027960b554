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
    """

    __slots__ = ("_pieces", "end", "ready", "size", "trailers")

    def __init__(self) -> None:
        self._pieces: deque[memoryview] = deque()
        self.size = 0
        self.end = False
        self.trailers: bytes | None = None
        self.ready = False

    def put(self, data: bytes) -> None:
        """Add data behind what waits; long pieces are kept by reference."""
        if not data:
            return
        self.size += len(data)
        pieces = self._pieces
        if pieces and len(pieces[-1]) + len(data) <= SMALL:
            pieces[-1] = memoryview(b"".join((pieces[-1], data)))
        else:
            pieces.append(memoryview(data))

    def take(self, most: int) -> list[memoryview]:
        """Take exactly ``min(most, size)`` bytes from the front."""
        taken: list[memoryview] = []
        pieces = self._pieces
        while most and pieces:
            piece = pieces[0]
            if len(piece) <= most:
                pieces.popleft()
            else:
                pieces[0] = piece[most:]
                piece = piece[:most]
            taken.append(piece)
            most -= len(piece)
            self.size -= len(piece)
        return taken
