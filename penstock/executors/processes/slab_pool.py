"""Large arrays on their way to another process: copied once, by who sends them, or not at all.

They are copied last, when everything else that there is to do before the frame is sent has been
done: what runs behind a large copy finds the processor's caches empty.

A draft is a slab in the hands of who writes one array there, which need not be copied then. It can
be sent once; after that it is for reading only.

Guarantees: whatever the receiver claims, no slab is used again that it has not given back; none is
that somebody here still holds.
"""

from __future__ import annotations

import os
import weakref
from collections import deque
from operator import attrgetter
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from penstock.executors.processes.frame import FrameError, Ref
from penstock.executors.processes.slab import (
    ALIGNMENT,
    LAST_GENERATION,
    MOST_SLABS,
    Draft,
    Slab,
    aligned,
    size_for,
)
from penstock.executors.processes.views import distance, owner_of

MOST_DRAFTS: Final = 8
"""Here and at the receiver. Each is a slab, of which an engine lends 16 to others (upkeep.py), and
more than these do not stay idle; copies share theirs."""

_MOST_IDLE: Final = 8  # a guess: two batches each way and some to spare
_IDLE_SHARE: Final = 2  # of the limit, the most that stays idle
_DRAFT_SHARE: Final = 2  # of the limit, the most that is in drafts
_OCTET: Final = np.dtype(np.uint8)


class SlabPool:
    """The slabs of one sender, for one receiver.

    ``place`` the arrays of a frame; then ``commit``, which copies them, and send what that gives
    with the frame; or ``rollback``, when there will be no such frame.

    Args:
        limit_bytes: the most that all slabs together have. Beyond it ``place`` says None.

    Attributes:
        touched: whether there is anything for ``commit`` to do.

    Thread:
        one at a time.
    """

    def __init__(self, limit_bytes: int) -> None:
        self._limit = limit_bytes
        self._most = MOST_SLABS
        self._idle: dict[int, Slab] = {}  # the longest idle first
        self._filling: list[Slab] = []  # of the frame that is being written
        self._copies: list[tuple[NDArray[Any], NDArray[Any]]] = []  # to make, and of what
        self._out: dict[int, Slab] = {}  # at the receiver
        self._drafts: dict[int, Slab] = {}  # held here, and not at the receiver
        self._let_go: deque[Slab] = deque()  # whose drafts are held no more
        self._told: list[int] = []  # descriptors that the caller may still be sending
        self.touched = False
        self._placed = 0
        self._last_frame = 0  # bytes of the frame before: what the next one is likely to need
        self._size = 0
        self._numbers = 0

    def __repr__(self) -> str:
        drafts = f", {len(self._drafts)} drafts" if self._drafts else ""
        return (
            f"<SlabPool {self._size >> 20} MiB, {len(self._idle)} idle,"
            f" {len(self._filling)} filling, {len(self._out)} out{drafts}>"
        )

    @property
    def size(self) -> int:
        """Bytes of all slabs, idle ones included."""
        return self._size

    def place(self, array: NDArray[Any]) -> Ref | None:
        """Find room for an array, of any layout, which will stand there in C order.

        It is kept, and not to be changed, until it is copied.

        Returns:
            Where it will be; None when there is no room, or its bytes alone do not make it.
        """
        nbytes = array.nbytes
        if array.dtype.hasobject or not nbytes:
            return None
        if self._told:
            self._close_told()
        self.touched = True
        slab = self._with_room(nbytes)
        if slab is None:
            return None
        offset = slab.used
        # Of a view that nobody else can give another shape before it is copied.
        copy = np.ndarray(array.shape, array.dtype, slab.memory, offset)
        self._copies.append((copy, array[...]))
        slab.used = aligned(offset + nbytes)
        self._placed += nbytes + ALIGNMENT
        return Ref(slab.number, slab.generation, offset, nbytes)

    def draft(self, nbytes: int) -> Draft | None:
        """Memory for an array that is written by the caller, who may let go of it in any thread.

        Returns:
            None when there is none to be had, or when it is better spared for copies.
        """
        self._take_back()
        need = nbytes + ALIGNMENT
        size = size_for(need)
        in_use = (*self._drafts.values(), *self._filling, *self._out.values())
        drafts = [slab.size for slab in in_use if slab.draft is not None]
        if len(drafts) >= MOST_DRAFTS or sum(drafts, size) > self._limit // _DRAFT_SHARE:
            return None
        slab = self._taken(need, need, size)
        if slab is None:
            return None
        slab.used = slab.size  # it is alone there
        draft = Draft((nbytes,), _OCTET, slab.memory, ALIGNMENT)
        draft.slab = slab
        let_go = self._let_go
        slab.draft = weakref.ref(draft, lambda _: let_go.append(slab))
        self._drafts[slab.number] = slab
        return draft

    def find(self, array: NDArray[Any]) -> Ref | None:
        """Where the array stands, if it is of a draft that was in no frame before this one.

        It can but be read from then on.
        """
        draft = None if array.base is None else owner_of(array, Draft)
        offset = None if draft is None else distance(draft, array)
        if draft is None or offset is None or offset % ALIGNMENT or not hasattr(draft, "slab"):
            return None
        slab = draft.slab
        if slab not in self._filling:
            if slab.sent or self._drafts.get(slab.number) is not slab:
                return None
            del self._drafts[slab.number]
            self._filling.append(slab)
            slab.sent = self.touched = True
        _freeze(array)
        return Ref(slab.number, slab.generation, ALIGNMENT + offset, array.nbytes)

    def fresh(self) -> list[tuple[int, int]]:
        """Number and descriptor of each slab of the frame that the receiver does not know."""
        return [
            (slab.number, slab.descriptor) for slab in self._filling if slab.descriptor is not None
        ]

    def tell(self, slab: int) -> None:
        """The receiver knows this one of them now, whatever becomes of the frame."""
        (found,) = [each for each in self._filling if each.number == slab]
        assert found.descriptor is not None
        self._told.append(found.descriptor)
        found.descriptor = None

    def commit(self) -> list[tuple[int, int]]:
        """The frame is to be sent: copy what was placed for it.

        Returns:
            Number and descriptor of each slab that it needs and the receiver does not know. The
            descriptors are the pool's, and stay open until the next ``place``, ``commit`` or
            ``close``.
        """
        if self._told:
            self._close_told()
        self.touched = bool(self._filling)  # if so, what follows is to be looked at as well
        fresh = []
        for slab in self._filling:
            self._out[slab.number] = slab
            if slab.descriptor is not None:
                fresh.append((slab.number, slab.descriptor))
                self._told.append(slab.descriptor)
                slab.descriptor = None
        self._filling.clear()
        self._last_frame, self._placed = self._placed, 0
        copies, self._copies = self._copies, []
        for copy, array in copies:
            np.copyto(copy, array)
        return fresh

    def rollback(self) -> None:
        """There will be no frame with what was placed since the last ``commit``."""
        filling, self._filling = self._filling, []
        self._placed = 0
        self._copies.clear()
        for slab in filling:
            slab.sent = False
            self._rest_or_keep(slab)

    def release(self, slab: int, generation: int) -> None:
        """The receiver reads this generation no longer.

        Raises:
            FrameError: it has not got it.
        """
        found = self._out.get(slab)
        if found is None or found.generation != generation:
            raise FrameError(f"slab {slab}, generation {generation}, is given back out of turn")
        del self._out[slab]
        self._rest_or_keep(found)

    def trim(self) -> None:
        """Give up what has not been used since the last ``trim``; to be called now and then."""
        self._take_back()
        for slab in list(self._idle.values()):
            if slab.stale:
                self._drop(slab)
            slab.stale = True

    def reserve(self, size: int) -> bool:
        """Leave so much room to a slab of somebody else's that the receiver is to map as well.

        Returns:
            Whether there was so much.
        """
        if not self._has_room(size):
            return False
        self._limit -= size
        self._most -= 1
        return True

    def unreserve(self, size: int) -> None:
        """The receiver does not map that one any more."""
        self._limit += size
        self._most += 1

    def close(self) -> None:
        """Unmap everything; the receiver can go on reading what it has got."""
        self._close_told()
        self._copies.clear()
        kept = (*self._idle.values(), *self._drafts.values())
        for slab in (*kept, *self._filling, *self._out.values()):
            if slab.descriptor is not None:
                os.close(slab.descriptor)
        self._idle.clear()
        self._drafts.clear()
        self._let_go.clear()
        self._filling.clear()
        self._out.clear()
        self._size = self._limit = 0

    def _close_told(self) -> None:
        while self._told:
            os.close(self._told.pop())

    def _with_room(self, nbytes: int) -> Slab | None:
        for slab in self._filling:
            if slab.size - slab.used >= nbytes:
                return slab
        # As much as the frame before had, or twice what there is: few slabs for a frame.
        wish = max(nbytes, self._last_frame - self._placed, self._placed) + ALIGNMENT
        taken = self._taken(nbytes + ALIGNMENT, wish)
        if taken is not None:
            self._filling.append(taken)
        return taken

    def _taken(self, need: int, wish: int, most: int | None = None) -> Slab | None:
        """One that is of use to nobody else, of at most so many bytes, in its next generation."""
        self._take_back()
        # Of those of a size the one that was used last: it may be in the processor's cache yet.
        fitting = [slab for slab in reversed(self._idle.values()) if slab.size >= need]
        if most is not None:
            fitting = [slab for slab in fitting if slab.size <= most]
        if fitting:
            best = fitting[0]
            if len(fitting) > 1:
                fitting.sort(key=attrgetter("size"))
                best = next((slab for slab in fitting if slab.size >= wish), fitting[-1])
            slab = self._idle.pop(best.number)
        else:
            made = self._made(size_for(wish)) or self._made(size_for(need))
            if made is None:
                return None
            slab = made
        slab.begin()
        return slab

    def _made(self, size: int) -> Slab | None:
        if not self._has_room(size):
            return None
        try:
            slab = Slab(self._numbers, size)
        except OSError:  # no descriptors, or no memory, are left: frames can do without
            return None
        self._numbers += 1
        self._size += size
        return slab

    def _has_room(self, size: int) -> bool:
        """Whether the receiver can map so much more; idle slabs make way for it."""
        busy = len(self._filling) + len(self._out) + len(self._drafts)
        if self._size - self._idle_bytes() + size > self._limit or busy >= self._most:
            return False
        while self._size + size > self._limit or busy + len(self._idle) >= self._most:
            self._drop(next(iter(self._idle.values())))
        return True

    def _take_back(self) -> None:
        """What was let go of, and is not at the receiver."""
        while self._let_go:
            slab = self._let_go.popleft()
            if self._drafts.get(slab.number) is slab and not slab.held:  # as another draft, perhaps
                del self._drafts[slab.number]
                self._rest(slab)

    def _rest_or_keep(self, slab: Slab) -> None:
        if slab.held:
            self._drafts[slab.number] = slab
        else:
            self._rest(slab)

    def _rest(self, slab: Slab) -> None:
        slab.draft = None
        self._idle[slab.number] = slab
        if slab.generation == LAST_GENERATION:
            self._drop(slab)
            return
        while len(self._idle) > _MOST_IDLE or self._idle_bytes() > self._limit // _IDLE_SHARE:
            self._drop(next(iter(self._idle.values())))

    def _idle_bytes(self) -> int:
        return sum([slab.size for slab in self._idle.values()])

    def _drop(self, slab: Slab) -> None:
        del self._idle[slab.number]
        self._size -= slab.size
        if slab.descriptor is not None:
            os.close(slab.descriptor)
        slab.give_up()


def _freeze(array: NDArray[Any]) -> None:
    """Let nobody write there by this array, nor by those that it is a view of."""
    each: Any = array
    while isinstance(each, np.ndarray | memoryview):
        if type(each) is memoryview:
            each = each.obj
        else:
            each.flags.writeable = False
            each = each.base
