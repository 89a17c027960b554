"""Large arrays between processes: in memory that both map, copied once, by who sends them.

A slab is an anonymous file in memory. Its sender owns it, writes the arrays of one frame into it,
and may use it again when the receiver has given that generation back; the receiver maps it, for
reading only. Nothing has a name, so nothing is left when a process dies.

    generation, 4 octets | unused up to 64 | arrays, each at a multiple of 64

A generation of 0 says that its owner has given the slab up.

Guarantees, for the receiver: whatever the sender writes, truncates, seals or claims, a view that
was handed out can be read, to its end (what it holds may change, if the sender breaks the rules);
no more than ``limit_bytes`` are mapped for slabs. For the sender: whatever the receiver claims, no
slab is used again that it has not given back. The seals are what the first of these rests on: who
reads behind the end of a file that has become shorter is killed by the system.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import weakref
from collections import deque
from collections.abc import Callable
from functools import partial
from operator import attrgetter
from struct import Struct
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from penstock.executors.processes.frame import FrameError, Ref
from penstock.executors.processes.passing import unusable

SMALLEST_BYTES: Final = 1 << 20
MOST_SLABS: Final = 64
"""Each costs its receiver a descriptor and a mapping."""

_ALIGNMENT: Final = 64  # a line of cache, and more than any instruction on vectors asks for
_MOST_IDLE: Final = 8  # a guess: two batches each way and some to spare
_IDLE_SHARE: Final = 2  # of the limit, the most that stays idle
_GENERATION: Final = Struct("<I")
_LAST_GENERATION: Final = 2**32 - 1
_GIVEN_UP: Final = 0
_SEALS: Final = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


def _aligned(offset: int) -> int:
    return -(-offset // _ALIGNMENT) * _ALIGNMENT


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
            fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _SEALS)
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
        _GENERATION.pack_into(self.memory, 0, self.generation)
        self.used = _ALIGNMENT
        self.stale = False

    def give_up(self) -> None:
        """Tell the receiver, and give the memory back at once: it may keep its mapping a while."""
        _GENERATION.pack_into(self.memory, 0, _GIVEN_UP)
        self.memory.madvise(mmap.MADV_REMOVE)


class SlabPool:
    """The slabs of one sender, for one receiver.

    ``place`` the arrays of a frame; then ``commit``, and send what that gives with the frame; or
    ``rollback``, when there will be no such frame.

    Args:
        limit_bytes: the most that all slabs together have. Beyond it ``place`` says None.

    Thread:
        one at a time.
    """

    def __init__(self, limit_bytes: int) -> None:
        self._limit = limit_bytes
        self._idle: dict[int, _Slab] = {}  # the longest idle first
        self._filling: list[_Slab] = []  # of the frame that is being written
        self._out: dict[int, _Slab] = {}  # at the receiver
        self._told: list[int] = []  # descriptors that the caller may still be sending
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
        """Copy an array, of any layout, so that it stands in C order; it is not kept.

        Returns:
            Where it is; None when there is no room, or its bytes alone do not make it.
        """
        if array.dtype.hasobject or not array.nbytes:
            return None
        self._close_told()
        nbytes = array.nbytes
        slab = self._with_room(nbytes)
        if slab is None:
            return None
        offset = slab.used
        np.copyto(np.ndarray(array.shape, array.dtype, slab.memory, offset), array)
        slab.used = _aligned(offset + nbytes)
        self._placed += nbytes + _ALIGNMENT
        return Ref(slab.number, slab.generation, offset, nbytes)

    def commit(self) -> list[tuple[int, int]]:
        """The frame is to be sent.

        Returns:
            Number and descriptor of each slab that it needs and the receiver does not know. The
            descriptors are the pool's, and stay open until the next ``place``, ``commit`` or
            ``close``.
        """
        self._close_told()
        fresh = []
        for slab in self._filling:
            self._out[slab.number] = slab
            if slab.descriptor is not None:
                fresh.append((slab.number, slab.descriptor))
                self._told.append(slab.descriptor)
                slab.descriptor = None
        self._filling.clear()
        self._last_frame, self._placed = self._placed, 0
        return fresh

    def rollback(self) -> None:
        """There will be no frame with what was placed since the last ``commit``."""
        filling, self._filling = self._filling, []
        self._placed = 0
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

    def close(self) -> None:
        """Unmap everything; the receiver can go on reading what it has got."""
        self._close_told()
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
        wish = max(nbytes, self._last_frame - self._placed, self._placed) + _ALIGNMENT
        need = nbytes + _ALIGNMENT
        # Of those of a size the one that was used last: it may be in the processor's cache yet.
        fitting = [slab for slab in reversed(self._idle.values()) if slab.size >= need]
        fitting.sort(key=attrgetter("size"))
        if fitting:
            ample = (slab for slab in fitting if slab.size >= wish)
            slab = self._idle.pop(next(ample, fitting[-1]).number)
        else:
            made = self._made(_size_for(wish)) or self._made(_size_for(need))
            if made is None:
                return None
            slab = made
        slab.begin()
        self._filling.append(slab)
        return slab

    def _made(self, size: int) -> _Slab | None:
        busy = len(self._filling) + len(self._out)
        if self._size - self._idle_bytes() + size > self._limit or busy >= MOST_SLABS:
            return None
        while self._size + size > self._limit or busy + len(self._idle) >= MOST_SLABS:
            self._drop(next(iter(self._idle.values())))
        try:
            slab = _Slab(self._numbers, size)
        except OSError:  # no descriptors, or no memory, are left: frames can do without
            return None
        self._numbers += 1
        self._size += size
        return slab

    def _rest(self, slab: _Slab) -> None:
        self._idle[slab.number] = slab
        if slab.generation == _LAST_GENERATION:
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


class _Mapped:
    """One slab, on its receiver's side.

    Attributes:
        generation: the last that was read.
        lease: the array that all views of that generation hang on; it goes with the last of them.
    """

    __slots__ = ("generation", "lease", "memory", "size")

    def __init__(self, memory: mmap.mmap, size: int) -> None:
        self.memory = memory
        self.size = size
        self.generation = 0
        self.lease: weakref.ref[NDArray[np.uint8]] | None = None

    def held(self) -> NDArray[np.uint8] | None:
        return self.lease() if self.lease is not None else None

    def written(self) -> int:
        """The generation that the sender says it has."""
        generation: int = _GENERATION.unpack_from(self.memory)[0]
        return generation


class SlabReader:
    """The slabs of one sender, on the side of their receiver.

    A generation is given back when the last view of it has gone. All arrays of a frame are to be
    fetched while one of them is alive, as ``decode`` does; a frame with arrays that nobody decodes
    keeps its slabs for good.

    Args:
        limit_bytes: the sender's limit.
        on_freed: called when ``freed`` has something new, in whichever thread that happened, which
            may be at any line of it: it may ring a bell, and little else.

    Thread:
        one at a time; the views may be read, and may go, in any.
    """

    def __init__(self, limit_bytes: int, on_freed: Callable[[], None] | None = None) -> None:
        self._limit = limit_bytes
        self._on_freed = on_freed
        self._slabs: dict[int, _Mapped] = {}
        self._size = 0
        self._freed: deque[tuple[int, int]] = deque()

    def __repr__(self) -> str:
        held = sum(mapped.held() is not None for mapped in self._slabs.values())
        return f"<SlabReader {self._size >> 20} MiB, {len(self._slabs)} slabs, {held} held>"

    def accept(self, slab: int, descriptor: int) -> None:
        """Take a slab that has come; the descriptor is closed in every case.

        Raises:
            FrameError: it could become shorter while it is read, or it is too large, or none.
        """
        try:
            self._sweep()
            if slab in self._slabs or len(self._slabs) >= MOST_SLABS:
                raise FrameError(f"slab {slab} is one too many")
            size = self._checked_size(descriptor)
            memory = mmap.mmap(descriptor, size, prot=mmap.PROT_READ)
        except (OSError, ValueError) as error:  # no file in memory, or one that cannot be mapped
            raise unusable(f"slab {slab} cannot be mapped", error) from error
        finally:
            os.close(descriptor)
        self._slabs[slab] = _Mapped(memory, size)
        self._size += size

    def fetch(self, ref: Ref) -> memoryview:
        """The bytes of an array: a view, for reading only.

        Raises:
            FrameError: there are no such bytes, or no longer.
        """
        slab, generation, offset, nbytes = ref
        mapped = self._slabs.get(slab)
        if mapped is None:
            raise FrameError(f"slab {slab} is not known")
        if offset < _ALIGNMENT or offset % _ALIGNMENT or not 0 < nbytes <= mapped.size - offset:
            raise FrameError(f"slab {slab} has no {nbytes} bytes at {offset}")
        if generation != mapped.written() or generation < max(mapped.generation, 1):
            raise FrameError(f"slab {slab} is not of generation {generation}")
        lease = mapped.held()
        if generation != mapped.generation:
            if lease is not None:
                raise FrameError(f"slab {slab} is used again while it is read")
            lease = np.frombuffer(mapped.memory, np.uint8)
            mapped.generation = generation
            mapped.lease = weakref.ref(lease, partial(self._gone, slab, generation))
        elif lease is None:
            raise FrameError(f"slab {slab}, generation {generation}, was given back")
        return lease.data[offset : offset + nbytes]

    def freed(self) -> list[tuple[int, int]]:
        """Slab and generation of what can be given back since the last call."""
        return [self._freed.popleft() for _ in range(len(self._freed))]

    def close(self) -> None:
        """Forget all slabs. Views that are alive keep what they read; nothing is freed any more."""
        self._slabs.clear()
        self._freed.clear()
        self._size = 0
        self._on_freed = None

    def _checked_size(self, descriptor: int) -> int:
        seals = fcntl.fcntl(descriptor, fcntl.F_GET_SEALS)
        if seals & _SEALS != _SEALS:
            raise FrameError("a slab is not sealed")
        # A file of huge pages can be sealed too, and yet lack the pages when it is read.
        if os.fstatvfs(descriptor).f_bsize != mmap.PAGESIZE:
            raise FrameError("a slab is not of usual pages")
        size = os.fstat(descriptor).st_size
        if not _ALIGNMENT < size <= self._limit - self._size:
            raise FrameError(f"a slab of {size} bytes is over what is left")
        return size

    def _sweep(self) -> None:
        """Unmap what its owner has given up, as soon as nobody reads it."""
        for slab, mapped in list(self._slabs.items()):
            if mapped.generation and mapped.held() is None and mapped.written() == _GIVEN_UP:
                del self._slabs[slab]
                self._size -= mapped.size

    def _gone(self, slab: int, generation: int, _: object) -> None:
        self._freed.append((slab, generation))
        on_freed = self._on_freed
        if on_freed is not None:
            on_freed()
