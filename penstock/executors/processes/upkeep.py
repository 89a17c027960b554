"""The memory for large arrays at an engine's end: given back in good time, without being asked.

What the worker sent and nobody here reads any more goes back with the next frame, or after a short
while when there is none. Slabs that nothing was sent in for a longer while are given up, our own as
well as those that were lent to it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from penstock.executors.processes.frame import Kind, Ref, header
from penstock.executors.processes.lending import FIRST_LENT, Lender
from penstock.executors.processes.mapping import Part, SlabReader
from penstock.executors.processes.slab_pool import SlabPool

FREED_AFTER: Final = 0.05
"""Seconds: word of memory that can be used again waits so long for a frame to go with, since it
would wake the worker."""
TRIM_EVERY: Final = 10.0
"""Seconds from one look at the idle slabs to the next; what nobody has wanted between two of them
is given up."""
MOST_LENDABLE: Final = 16
"""Slabs of a worker's that can be lent to others: each costs us one more descriptor. A worker uses
few, the last one first, unless many of its outputs wait at a time."""


class Upkeep:
    """The slabs that an engine shares with one worker, in both directions.

    Args:
        loop: the engine's.
        limit_bytes: most bytes of slabs in each direction.
        send: sends frames to the worker.

    Attributes:
        pool: for arrays to the worker, or where others have put them.
        reader: of arrays from it.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        limit_bytes: int,
        send: Callable[[Sequence[bytes]], None],
    ) -> None:
        self.pool = Lender(SlabPool(limit_bytes), self._recall, self._freed)
        self.reader = SlabReader(limit_bytes, self._freed, MOST_LENDABLE)
        self._loop = loop
        self._send = send
        self._rung = False
        self._telling: asyncio.TimerHandle | None = None
        self._trimming: asyncio.TimerHandle | None = None

    def fetch(self, ref: Ref) -> Part:
        """The bytes of an array that the worker gave: its own, or one that it was lent.

        Raises:
            FrameError: there are no such bytes, or no longer.
        """
        return self.pool.fetch(ref) if ref.slab >= FIRST_LENT else self.reader.fetch(ref)

    def frees(self) -> list[bytes]:
        """What is to be said now of memory that is not read any more, as frames."""
        if self.pool.gone:
            self.pool.settle()
        return frees(self.reader)

    def committed(self) -> None:
        """A frame has gone out; there may be slabs to look after."""
        if self._trimming is None and self.pool.size:
            self._trimming = self._loop.call_later(TRIM_EVERY, self._trim)

    def close(self) -> None:
        """Give everything back."""
        self.pool.close()
        self.reader.close()
        for timer in (self._telling, self._trimming):
            if timer is not None:
                timer.cancel()

    def _recall(self, slab: int) -> None:
        self._send([header(Kind.RECALL, slab, 0)])

    def _freed(self) -> None:
        # In any thread, at any line of it.
        if not self._rung:
            self._rung = True
            self._loop.call_soon_threadsafe(self._tell_later)

    def _tell_later(self) -> None:
        self._rung = False
        if self._telling is None:
            self._telling = self._loop.call_later(FREED_AFTER, self._tell)

    def _tell(self) -> None:
        self._telling = None
        frames = self.frees()
        if frames:
            self._send(frames)

    def _trim(self) -> None:
        self._trimming = None
        self.pool.trim()
        self.committed()


def frees(reader: SlabReader) -> list[bytes]:
    """Frames that give back what a reader has freed."""
    if not reader.returned:
        return []
    return [header(Kind.FREE, slab << 32 | past, 0) for slab, past in reader.freed()]
