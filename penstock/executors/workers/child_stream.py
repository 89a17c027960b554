"""ChildStream: the worker's end of a stream whose engine is at the other end of a link."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from penstock.executors.stream import MOST_BYTES, MOST_PIECES, size_of
from penstock.request import Feed


class ChildStream:
    """The pieces of one sample's answer; see ``Stream``, whose limits it keeps.

    Args:
        number: of the batch.
        send: sends a piece; returns False when the engine has ended.
        read: reads the engine's frames: waits for one if its argument says so; returns False when
            the engine has ended.

    Attributes:
        cancelled: no further piece is wanted.
    """

    def __init__(
        self, number: int, send: Callable[[int, Feed], None], read: Callable[[bool], bool]
    ) -> None:
        self.number = number
        self.cancelled = False
        self._send = send
        self._read = read
        self._made = 0
        self._uncredited: deque[int] = deque()  # the sizes of pieces without credit
        self._bytes = 0  # their sum

    def put(self, piece: Feed) -> bool:
        """Send a piece, and wait for credit; returns whether a further one is wanted.

        Raises:
            RequestError: it cannot be sent.
        """
        self.add(piece)
        alive = self._read(False)
        while alive and not self.cancelled and self.is_full:
            alive = self._read(True)
        return alive and not self.cancelled

    def add(self, piece: Feed) -> None:
        """Send a piece, without waiting.

        Raises:
            RequestError: it cannot be sent.
        """
        self._send(self.number, piece)
        size = size_of(piece)
        self._made += 1
        self._uncredited.append(size)
        self._bytes += size

    @property
    def is_full(self) -> bool:
        """Whether the worker must wait for credit."""
        return len(self._uncredited) >= MOST_PIECES or self._bytes >= MOST_BYTES

    def credit(self, count: int) -> None:
        """The caller has got the first ``count`` pieces."""
        uncredited = self._uncredited
        while uncredited and self._made - len(uncredited) < count:
            self._bytes -= uncredited.popleft()
