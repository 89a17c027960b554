"""Large arrays between processes: in memory that both map, copied once, by who sends them.

They are copied last, when everything else that there is to do before the frame is sent has been
done: what runs behind a large copy finds the processor's caches empty.

A slab is an anonymous file in memory. Its sender owns it, writes the arrays of one frame into it,
and may use it again when the receiver has given that generation back; the receiver maps it, for
reading only (mapping.py). Nothing has a name, so nothing is left when a process dies.

    generation, 4 octets | unused up to 64 | arrays, each at a multiple of 64

A generation of 0 says that its owner has given the slab up.

Guarantee: whatever the receiver claims, no slab is used again that it has not given back.
"""

from __future__ import annotations

import fcntl
import mmap
import os
from operator import attrgetter
from struct import Struct
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from penstock.executors.processes.frame import FrameError, Ref

SMALLEST_BYTES: Final = 1 << 20
MOST_SLABS: Final = 64
"""Each costs its receiver a descriptor and a mapping."""

ALIGNMENT: Final = 64
"""A line of cache, and more than any instruction on vectors asks for."""
GENERATION: Final = Struct("<I")
LAST_GENERATION: Final = 2**32 - 1
GIVEN_UP: Final = 0
SEALS: Final = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL

_MOST_IDLE: Final = 8  # a guess: two batches each way and some to spare
_IDLE_SHARE: Final = 2  # of the limit, the most that stays idle


def _aligned(offset: int) -> int:
    return -(-offset // ALIGNMENT) * ALIGNMENT


def _size_for(nbytes: int) -> int:
    """A power of two, so that slabs of a few sizes serve all frames."""
    return max(SMALLEST_BYTES, 1 << (nbytes - 1).bit_length())


class _Slab:
    """One slab, on its owner's side.

    Attributes:
        descriptor: until the peer has been told; None afterwards.
        used: bytes that are taken in this generation.
        stale: whether nobody has wanted it since the last ``trim``.
    """

    __slots__ = ("descriptor", "generation", "memory", "number", "size", "stale", "used")

    def __init__(self, number: int, size: int) -> None:
        descriptor = os.memfd_create("penstock-slab", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(descriptor, size)
            fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, SEALS)
            self.memory = mmap.mmap(descriptor, size)
        except BaseException:
            os.close(descriptor)
            raise
        self.descriptor: int | None = descriptor
        self.number = number
        self.size = size
        self.generation = 0
        self.used = 0
        self.stale = False

    def begin(self) -> None:
        """The next generation, empty."""
        self.generation += 1
        GENERATION.pack_into(self.memory, 0, self.generation)
        self.used = ALIGNMENT
        self.stale = False

    def give_up(self) -> None:
        """Tell the receiver, and give the memory back at once: it may keep its mapping a while."""
        GENERATION.pack_into(self.memory, 0, GIVEN_UP)
        self.memory.madvise(mmap.MADV_REMOVE)


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
        self._idle: dict[int, _Slab] = {}  # the longest idle first
        self._filling: list[_Slab] = []  # of the frame that is being written
        self._copies: list[tuple[NDArray[Any], NDArray[Any]]] = []  # to make, and of what
        self._out: dict[int, _Slab] = {}  # at the receiver
        self._told: list[int] = []  # descriptors that the caller may still be sending
        self.touched = False
        self._placed = 0
        self._last_frame = 0  # bytes of the frame before: what the next one is likely to need
        self._size = 0
        self._numbers = 0

    def __repr__(self) -> str:
        return (
            f"<SlabPool {self._size >> 20} MiB, {len(self._idle)} idle,"
            f" {len(self._filling)} filling, {len(self._out)} out>"
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
        slab.used = _aligned(offset + nbytes)
        self._placed += nbytes + ALIGNMENT
        return Ref(slab.number, slab.generation, offset, nbytes)

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
            self._rest(slab)

    def release(self, slab: int, generation: int) -> None:
        """The receiver reads this generation no longer.

        Raises:
            FrameError: it has not got it.
        """
        found = self._out.get(slab)
        if found is None or found.generation != generation:
            raise FrameError(f"slab {slab}, generation {generation}, is given back out of turn")
        del self._out[slab]
        self._rest(found)

    def trim(self) -> None:
        """Give up what has not been used since the last ``trim``; to be called now and then."""
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
        for slab in (*self._idle.values(), *self._filling, *self._out.values()):
            if slab.descriptor is not None:
                os.close(slab.descriptor)
        self._idle.clear()
        self._filling.clear()
        self._out.clear()
        self._size = self._limit = 0

    def _close_told(self) -> None:
        while self._told:
            os.close(self._told.pop())

    def _with_room(self, nbytes: int) -> _Slab | None:
        for slab in self._filling:
            if slab.size - slab.used >= nbytes:
                return slab
        # As much as the frame before had, or twice what there is: few slabs for a frame.
        wish = max(nbytes, self._last_frame - self._placed, self._placed) + ALIGNMENT
        need = nbytes + ALIGNMENT
        # Of those of a size the one that was used last: it may be in the processor's cache yet.
        fitting = [slab for slab in reversed(self._idle.values()) if slab.size >= need]
        if fitting:
            best = fitting[0]
            if len(fitting) > 1:
                fitting.sort(key=attrgetter("size"))
                best = next((slab for slab in fitting if slab.size >= wish), fitting[-1])
            slab = self._idle.pop(best.number)
        else:
            made = self._made(_size_for(wish)) or self._made(_size_for(need))
            if made is None:
                return None
            slab = made
        slab.begin()
        self._filling.append(slab)
        return slab

    def _made(self, size: int) -> _Slab | None:
        if not self._has_room(size):
            return None
        try:
            slab = _Slab(self._numbers, size)
        except OSError:  # no descriptors, or no memory, are left: frames can do without
            return None
        self._numbers += 1
        self._size += size
        return slab

    def _has_room(self, size: int) -> bool:
        """Whether the receiver can map so much more; idle slabs make way for it."""
        busy = len(self._filling) + len(self._out)
        if self._size - self._idle_bytes() + size > self._limit or busy >= self._most:
            return False
        while self._size + size > self._limit or busy + len(self._idle) >= self._most:
            self._drop(next(iter(self._idle.values())))
        return True

    def _rest(self, slab: _Slab) -> None:
        self._idle[slab.number] = slab
        if slab.generation == LAST_GENERATION:
            self._drop(slab)
            return
        while len(self._idle) > _MOST_IDLE or self._idle_bytes() > self._limit // _IDLE_SHARE:
            self._drop(next(iter(self._idle.values())))

    def _idle_bytes(self) -> int:
        return sum([slab.size for slab in self._idle.values()])

    def _drop(self, slab: _Slab) -> None:
        del self._idle[slab.number]
        self._size -= slab.size
        if slab.descriptor is not None:
            os.close(slab.descriptor)
        slab.give_up()
