"""Both ends of slabs in one process, and a sender that keeps to no rule."""

from __future__ import annotations

import fcntl
import mmap
import os
from typing import Any

import numpy as np

from penstock.executors.processes.frame import decode, encode
from penstock.executors.processes.mapping import SlabReader
from penstock.executors.processes.slab_pool import SlabPool

MIB = 1 << 20
LIMIT = 64 * MIB
SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


class Ends:
    """A sender and its receiver, as one process."""

    def __init__(self, limit: int = LIMIT) -> None:
        self.pool = SlabPool(limit)
        self.reader = SlabReader(limit)

    def send(self, value: Any) -> Any:
        body = b"".join(encode(value, place=self.pool.place))
        for slab, descriptor in self.pool.commit():
            self.reader.accept(slab, os.dup(descriptor))
        return decode(body, fetch=self.reader.fetch)

    def give_back(self) -> list[tuple[int, int]]:
        freed = self.reader.freed()
        for slab, generation in freed:
            self.pool.release(slab, generation)
        return freed

    def close(self) -> None:
        self.pool.close()
        self.reader.close()


def large(number: float = 1, nbytes: int = 100_000) -> np.ndarray[Any, Any]:
    return np.full(nbytes // 8, float(number))


def memfd(size: int, seals: int = SEALS, flags: int = 0) -> int:
    descriptor = os.memfd_create("test", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING | flags)
    os.ftruncate(descriptor, size)
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)
    return descriptor


class Hostile:
    """A sender that writes what it likes into a slab that a reader has accepted."""

    def __init__(self, reader: SlabReader, size: int = MIB) -> None:
        descriptor = memfd(size)
        self.memory = mmap.mmap(descriptor, size)
        self.write(1)
        reader.accept(0, descriptor)

    def write(self, generation: int) -> None:
        self.memory[:4] = generation.to_bytes(4, "little")
