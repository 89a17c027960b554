"""One piece of memory that two processes map: large arrays, written by its owner.

A slab is an anonymous file in memory. Its sender owns it, writes the arrays of one frame into it
(slab_pool.py), and may use it again when the receiver has given that generation back; the receiver
maps it, for reading only (mapping.py). Nothing has a name, so nothing is left when a process dies.

    generation, 4 octets | unused up to 64 | arrays, each at a multiple of 64

A generation of 0 says that its owner has given the slab up.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import weakref
from struct import Struct
from typing import Any, Final

import numpy as np

SMALLEST_BYTES: Final = 1 << 20
MOST_SLABS: Final = 64
"""Each costs its receiver a descriptor and a mapping."""

ALIGNMENT: Final = 64
"""A line of cache, and more than any instruction on vectors asks for."""
GENERATION: Final = Struct("<I")
LAST_GENERATION: Final = 2**32 - 1
GIVEN_UP: Final = 0
SEALS: Final = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


def aligned(offset: int) -> int:
    """The next place where an array may begin."""
    return -(-offset // ALIGNMENT) * ALIGNMENT


def size_for(nbytes: int) -> int:
    """A power of two, so that slabs of a few sizes serve all frames."""
    return max(SMALLEST_BYTES, 1 << (nbytes - 1).bit_length())


class Draft(np.ndarray[Any, np.dtype[np.uint8]]):
    """The bytes of one array, which may be written until it is sent.

    Attributes:
        slab: where they stand; only what ``SlabPool.draft`` gives has one, no piece or copy of it.
    """

    __slots__ = ("slab",)
    slab: Slab


class Slab:
    """One slab, on its owner's side.

    Attributes:
        descriptor: until the peer has been told; None afterwards.
        used: bytes that are taken in this generation.
        stale: whether nobody has wanted it since the last ``trim``.
        draft: what it was given away as in this generation, if it was.
        sent: whether that was sent.
    """

    __slots__ = (
        "descriptor", "draft", "generation", "memory", "number", "sent", "size", "stale", "used",
    )  # fmt: skip

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
        self.draft: weakref.ref[Draft] | None = None
        self.sent = False

    def begin(self) -> None:
        """The next generation, empty."""
        self.generation += 1
        GENERATION.pack_into(self.memory, 0, self.generation)
        self.used = ALIGNMENT
        self.stale = False
        self.draft = None
        self.sent = False

    @property
    def held(self) -> bool:
        """Whether its draft is in somebody's hands."""
        return self.draft is not None and self.draft() is not None

    def give_up(self) -> None:
        """Tell the receiver, and give the memory back at once: it may keep its mapping a while."""
        GENERATION.pack_into(self.memory, 0, GIVEN_UP)
        self.memory.madvise(mmap.MADV_REMOVE)
