"""Stream: the pieces of one sample's answer, on their way from its worker to the engine.

A worker puts pieces in, the engine's loop takes them out, and gives the worker credit for those
that the caller has got. A worker without credit waits, and nobody else does.

Guarantees:
    - pieces arrive in order, each once, and all of them before the sample's outcome;
    - at most ``MOST_PIECES`` pieces, or ``MOST_BYTES`` and one more piece, are without credit;
    - after ``cancel`` every ``put`` returns False.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from typing import Final

import numpy as np

from penstock.request import Feed

MOST_PIECES: Final = 16
MOST_BYTES: Final = 64 << 10
TOLD_AFTER: Final = MOST_PIECES // 2
TOLD_AFTER_BYTES: Final = MOST_BYTES // 2
"""Pieces, or bytes, with credit after which a worker elsewhere is told: not after each one."""
_OF_AN_ITEM: Final = 32
"""Bytes of an item of a list or dict; a guess."""
_MOST_LEVELS: Final = 8
"""Of lists and dicts in each other whose items count."""


class Stream:
    """See the module. ``put`` and ``wait`` are the worker's; all else belongs to the loop.

    Args:
        arrived: called on the loop when there are pieces to take.

    Attributes:
        notify: set by the executor before its worker begins: called by the worker, in its thread,
            with the stream; lets the loop call ``arrive``.
        changed: set by an executor whose workers are elsewhere: called on the loop when there is
            credit, or the stream is cancelled.
        credited, credited_bytes: the pieces for which there is credit.
        cancelled: no further piece is wanted.
    """

    __slots__ = (
        "_arrived",
        "_made",
        "_made_bytes",
        "_notified",
        "_pieces",
        "_room",
        "_taken",
        "_taken_bytes",
        "_waiter",
        "cancelled",
        "changed",
        "credited",
        "credited_bytes",
        "notify",
    )

    notify: Callable[[Stream], None]

    def __init__(self, arrived: Callable[[], None]) -> None:
        self._arrived = arrived
        self._pieces: deque[tuple[Feed, int]] = deque()
        # Written by the worker.
        self._made = self._made_bytes = 0
        # Written by the loop.
        self._taken = self._taken_bytes = 0
        self.credited = self.credited_bytes = 0
        self._notified = False
        self._room: threading.Lock | None = None  # a thread that waits for credit acquires it
        self._waiter: asyncio.Future[None] | None = None
        self.changed: Callable[[Stream], None] | None = None
        self.cancelled = False

    @property
    def made(self) -> int:
        """The number of pieces so far."""
        return self._made

    @property
    def taken(self) -> int:
        """The number of pieces that were taken."""
        return self._taken

    @property
    def has_begun(self) -> bool:
        """Whether a piece was taken."""
        return self._taken > 0

    @property
    def is_full(self) -> bool:
        """Whether the worker must wait for credit."""
        return (
            self._made - self.credited >= MOST_PIECES
            or self._made_bytes - self.credited_bytes >= MOST_BYTES
        )

    def add(self, piece: Feed) -> bool:
        """For the worker: add a piece, without waiting; returns whether a further one is wanted,
        once there is credit for it.
        """
        if self.cancelled:
            return False
        size = size_of(piece)
        self._made += 1
        self._made_bytes += size
        self._pieces.append((piece, size))
        if not self._notified:
            self._notified = True
            self.notify(self)
        return not self.cancelled

    def put(self, piece: Feed) -> bool:
        """For a worker thread: add a piece, and wait for credit; returns whether a further one is
        wanted.
        """
        if not self.add(piece):
            return False
        if self.is_full:
            if self._room is None:
                self._room = threading.Lock()
                self._room.acquire()
            while self.is_full and not self.cancelled:
                self._room.acquire()
        return not self.cancelled

    async def wait(self) -> bool:
        """For a coroutine on the loop: wait for credit; returns whether a further piece is
        wanted.
        """
        while self.is_full and not self.cancelled:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        return not self.cancelled

    def arrive(self) -> None:
        """The worker has called ``notify``."""
        self._notified = False
        if self._pieces:
            self._arrived()

    def take(self) -> list[Feed]:
        """The pieces that have arrived."""
        taken = []
        pieces = self._pieces
        while pieces:
            piece, size = pieces.popleft()
            self._taken += 1
            self._taken_bytes += size
            taken.append(piece)
        return taken

    def credit(self) -> None:
        """Give credit for all pieces that were taken: the caller has got them."""
        self.credited, self.credited_bytes = self._taken, self._taken_bytes
        self._wake()

    def cancel(self) -> None:
        """No further piece is wanted; those that were not taken are dropped."""
        self.cancelled = True
        self._pieces.clear()
        self._wake()

    def _wake(self) -> None:
        room, waiter = self._room, self._waiter
        if room is not None and room.locked():
            room.release()
        if waiter is not None:
            self._waiter = None
            if not waiter.done():
                waiter.set_result(None)
        if self.changed is not None:
            self.changed(self)


def size_of(piece: Feed) -> int:
    """The bytes of a piece's texts, bytes and arrays, also of those in its lists and dicts."""
    size = 0
    for each in dict.values(piece):
        size += len(each) if type(each) in _TEXTS else _size(each, _MOST_LEVELS)
    return size


_TEXTS: Final = (bytes, str)


def _size(value: object, levels: int) -> int:
    if isinstance(value, bytes | str):
        return len(value)
    if isinstance(value, np.ndarray):
        return value.nbytes
    if not levels or not isinstance(value, list | tuple | dict):
        return 0
    items = dict.values(value) if isinstance(value, dict) else value
    return sum([_OF_AN_ITEM + _size(each, levels - 1) for each in items])
