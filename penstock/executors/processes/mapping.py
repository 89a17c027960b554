"""The receiver's side of slabs: maps them, and knows when nobody reads them any more.

Guarantees: whatever the sender writes, truncates, seals or claims, a view that was handed out can
be read, to its end (what it holds may change, if the sender breaks the rules); no more than
``limit_bytes`` are mapped for slabs. The seals are what the first of these rests on: who reads
behind the end of a file that has become shorter is killed by the system.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any, Final

import numpy as np

from penstock.executors.processes.frame import FrameError, Ref
from penstock.executors.processes.passing import unusable
from penstock.executors.processes.slab import ALIGNMENT, GENERATION, GIVEN_UP, MOST_SLABS, SEALS

_OCTET: Final = np.dtype(np.uint8)


class Lease(np.ndarray[Any, np.dtype[np.uint8]]):
    """All bytes of a slab in one generation; every view of it hangs on this.

    Attributes:
        mapped: the slab.
        slab: its number.
        generation: which.
        loans: how often it is lent (lending.py).
    """

    __slots__ = ("generation", "loans", "mapped", "slab")
    mapped: Mapped
    slab: int
    generation: int
    loans: int


class Part(np.ndarray[Any, np.dtype[np.uint8]]):
    """The bytes of one array in a slab, between the array and its lease.

    Attributes:
        offset: where in the slab they begin.
    """

    __slots__ = ("offset",)
    base: Lease  # of what part_of makes; copies and pieces of that have others
    offset: int


class Mapped:
    """One slab, on its receiver's side.

    Attributes:
        descriptor: what can be sent on to others, who can but read it; None where there is none.
        generation: the last that was read.
        reader: whose it is.
    """

    __slots__ = ("__weakref__", "_lease", "descriptor", "generation", "memory", "reader", "size")

    def __init__(self, memory: mmap.mmap, size: int, reader: SlabReader) -> None:
        self.memory = memory
        self.size = size
        self.reader = reader
        self.descriptor: int | None = None
        self.generation = 0
        self._lease: weakref.ref[Lease] | None = None

    def held(self) -> Lease | None:
        """What there is of it that is still read."""
        return self._lease() if self._lease is not None else None

    def check(self, ref: Ref) -> None:
        """See whether there are such bytes.

        Raises:
            FrameError: there are none.
        """
        slab, _, offset, nbytes = ref
        if offset < ALIGNMENT or offset % ALIGNMENT or not 0 < nbytes <= self.size - offset:
            raise FrameError(f"slab {slab} has no {nbytes} bytes at {offset}")

    def given_up(self) -> bool:
        """Whether its owner will not use it again, and nobody reads it."""
        return bool(self.generation) and self.held() is None and self.written() == GIVEN_UP

    def lease(self, slab: int, generation: int, gone: Callable[[int, int], None]) -> Lease:
        """All of it, as it is in a generation.

        Args:
            slab: its number.
            generation: which.
            gone: called with both when it is not read any more.

        Raises:
            FrameError: it is not of that generation.
        """
        if generation != self.written() or generation < self.generation:
            raise FrameError(f"slab {slab} is not of generation {generation}")
        held = self._lease
        lease = None if held is None else held()
        if generation != self.generation:
            if lease is not None:
                raise FrameError(f"slab {slab} is used again while it is read")
            lease = self.whole(slab, generation)
            self.generation = generation
            self._lease = weakref.ref(lease, lambda _: gone(slab, generation))
        elif lease is None:
            raise FrameError(f"slab {slab}, generation {generation}, was given back")
        return lease

    def whole(self, slab: int, generation: int) -> Lease:
        """All bytes, as a lease of their own."""
        lease = Lease((self.size,), _OCTET, self.memory)
        lease.mapped = self
        lease.slab = slab
        lease.generation = generation
        lease.loans = 0
        return lease

    def close(self) -> None:
        """It is not sent on any more."""
        if self.descriptor is not None:
            os.close(self.descriptor)
            self.descriptor = None

    def written(self) -> int:
        """The generation that the sender says it has."""
        generation: int = GENERATION.unpack_from(self.memory)[0]
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
        most_lendable: of how many slabs the descriptor is kept, so that they can be lent.

    Attributes:
        limit: the sender's limit.
        returned: what ``freed`` gives next.
        lent: the slabs that others read now.

    Thread:
        one at a time; the views may be read, and may go, in any.
    """

    def __init__(
        self,
        limit_bytes: int,
        on_freed: Callable[[], None] | None = None,
        most_lendable: int = 0,
    ) -> None:
        self.limit = limit_bytes
        self.lent: set[Mapped] = set()
        self._on_freed = on_freed
        self._most_lendable = most_lendable
        self._slabs: dict[int, Mapped] = {}
        self._size = 0
        self.returned: deque[tuple[int, int]] = deque()

    def __repr__(self) -> str:
        held = sum(mapped.held() is not None for mapped in self._slabs.values())
        kind, size = type(self).__name__, self._size >> 20
        return f"<{kind} {size} MiB, {len(self._slabs)} slabs, {held} held>"

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
            mapped = self._mapped(slab, mmap.mmap(descriptor, size, prot=mmap.PROT_READ), size)
            if self._lendable() < self._most_lendable:
                mapped.descriptor = _for_reading(descriptor)
            self._slabs[slab] = mapped
            self._size += size
        except (OSError, ValueError) as error:  # no file in memory, or one that cannot be mapped
            raise unusable(f"slab {slab} cannot be mapped", error) from error
        finally:
            os.close(descriptor)

    def fetch(self, ref: Ref) -> Part:
        """The bytes of an array: a view, for reading only.

        Raises:
            FrameError: there are no such bytes, or no longer.
        """
        mapped = self._slabs.get(ref.slab)
        if mapped is None:
            raise FrameError(f"slab {ref.slab} is not known")
        mapped.check(ref)
        return part_of(mapped.lease(ref.slab, ref.generation, self._gone), ref)

    def freed(self) -> list[tuple[int, int]]:
        """Slab and generation of what can be given back since the last call."""
        return [self.returned.popleft() for _ in range(len(self.returned))]

    def close(self) -> None:
        """Forget all slabs. Views that are alive keep what they read; nothing is freed any more."""
        for mapped in self._slabs.values():
            mapped.close()
        self._slabs.clear()
        self.returned.clear()
        self._size = 0
        self._on_freed = None

    def _mapped(self, slab: int, memory: mmap.mmap, size: int) -> Mapped:
        return Mapped(memory, size, self)

    def _checked_size(self, descriptor: int) -> int:
        seals = fcntl.fcntl(descriptor, fcntl.F_GET_SEALS)
        if seals & SEALS != SEALS:
            raise FrameError("a slab is not sealed")
        # A file of huge pages can be sealed too, and yet lack the pages when it is read.
        if os.fstatvfs(descriptor).f_bsize != mmap.PAGESIZE:
            raise FrameError("a slab is not of usual pages")
        size = os.fstat(descriptor).st_size
        if not ALIGNMENT < size <= self.limit - self._size:
            raise FrameError(f"a slab of {size} bytes is over what is left")
        return size

    def _lendable(self) -> int:
        return sum(mapped.descriptor is not None for mapped in self._slabs.values())

    def _sweep(self) -> None:
        """Unmap what its owner has given up, as soon as nobody reads it."""
        for slab, mapped in list(self._slabs.items()):
            if mapped.given_up():
                self._drop(slab)

    def _drop(self, slab: int) -> None:
        mapped = self._slabs.pop(slab)
        self._size -= mapped.size
        mapped.close()

    def _gone(self, slab: int, generation: int) -> None:
        self.returned.append((slab, generation))
        on_freed = self._on_freed
        if on_freed is not None:
            on_freed()


def part_of(lease: Lease, ref: Ref) -> Part:
    """The bytes of an array, which are there."""
    _, _, offset, nbytes = ref
    part = Part((nbytes,), _OCTET, lease, offset)
    part.offset = offset
    return part


def _for_reading(descriptor: int) -> int | None:
    """The same file, for who may not write to it; None where that cannot be had."""
    try:
        return os.open(f"/proc/self/fd/{descriptor}", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
