"""Shared memory for large arrays between the engine and worker processes.

A slab is an anonymous file in memory (memfd), which the engine owns, and which it and the workers
map. The engine copies the large input arrays of a batch into one slab, and grants another with the
batch, into which the worker copies the large outputs. The engine and other workers read the outputs
in place: between two processes an array is copied once. Slabs have no names, so nothing is left
when a process dies.

A slab is reused when no batch that uses it is in flight, and the engine has no view of it. If an op
keeps a view after its batch, the worker reports it, and the slab then belongs to the worker.

Guarantees: whatever a worker writes, truncates or claims, a view can be read to its end (its
content may change, if the worker breaks the rules). File seals ensure this: reading beyond the end
of a truncated file would kill the reader (SIGBUS).
"""

from __future__ import annotations

import fcntl
import itertools
import mmap
import os
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any, Final, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from penstock.executors.transport.frames import FrameError
from penstock.executors.transport.values import LARGE, Array, Ref

ALIGNMENT: Final = 64
"""A cache line, and more than any vector instruction requires."""

_SMALLEST_BYTES: Final = 1 << 20
_MOST_SLABS: Final = 64  # most slabs of one op; each costs a descriptor and a mapping
_MOST_IDLE: Final = 8
_SEALS: Final = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
_OCTET: Final = np.dtype(np.uint8)
_numbers = itertools.count(1)  # unique among the slabs of an engine


class Lease(np.ndarray[Any, np.dtype[np.uint8]]):
    """All bytes of a slab as an array; every array in the slab is a view of this.

    Attributes:
        slab: the engine's slab; None in a worker.
    """

    slab: Slab | None = None


Share: TypeAlias = Callable[["Slab", bool], bool]
"""Sends a slab to a worker, before frames that refer to it, for reading or for writing; returns
whether the worker has it now."""


class Reader(Protocol):
    """A worker that maps slabs."""

    def drop(self, slab: Slab) -> None:
        """Unmap a slab that will not be used again."""


class Slab:
    """One slab, in the engine.

    Attributes:
        users: batches in flight that use it.
        readers: workers that map it, and whether for writing as well.
    """

    def __init__(self, pool: SlabPool, size: int) -> None:
        descriptor = os.memfd_create("penstock-slab", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(descriptor, size)
            fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _SEALS)
            self.memory = mmap.mmap(descriptor, size)
        except BaseException:
            os.close(descriptor)
            raise
        self.pool = pool
        self.descriptor = descriptor
        self.number = next(_numbers)
        self.size = size
        self.users = 0
        self.readers: dict[Reader, bool] = {}
        self._lease: weakref.ref[Lease] | None = None

    @property
    def is_read(self) -> bool:
        """Whether the engine has a view of it."""
        return self._lease is not None and self._lease() is not None

    def lease(self) -> Lease:
        """The lease that read-only views refer to."""
        lease = self._lease() if self._lease is not None else None
        if lease is None:
            lease = Lease((self.size,), _OCTET, self.memory)
            lease.slab = self
            lease.flags.writeable = False
            returned = self.pool.returned  # may run in any thread at any point: no more than this
            self._lease = weakref.ref(lease, lambda _: returned.append(self))
        return lease

    def descriptor_for(self, *, writing: bool) -> int:
        """A new descriptor, which the caller closes."""
        if writing:
            return os.dup(self.descriptor)
        return os.open(f"/proc/self/fd/{self.descriptor}", os.O_RDONLY | os.O_CLOEXEC)


class SlabPool:
    """The slabs of one op.

    Args:
        limit_bytes: the most bytes of all slabs together.
        grown: called when a slab was made.

    Attributes:
        reply_bytes: recent size of a batch's large outputs.
        returned: slabs of which the engine has no view any more.

    Thread: the loop's; the views may go in any.
    """

    def __init__(self, limit_bytes: int, grown: Callable[[], None] = lambda: None) -> None:
        self.reply_bytes = 0
        self.returned: deque[Slab] = deque()
        self._limit = limit_bytes
        self._grown = grown
        self._all: set[Slab] = set()
        self._idle: dict[Slab, None] = {}  # idle for longest first
        self._size = 0
        self._wanted = True  # whether a slab was taken since the last ``trim``

    def __len__(self) -> int:
        return len(self._all)

    def take(self, nbytes: int) -> Slab | None:
        """Take a slab of at least ``nbytes`` bytes, with one user; None if none is available."""
        self._collect()
        self._wanted = True
        size = max(_SMALLEST_BYTES, 1 << (nbytes - 1).bit_length())
        slab = next((each for each in reversed(self._idle) if size <= each.size <= 4 * size), None)
        if slab is None:
            while self._idle and (self._size + size > self._limit or len(self._all) >= _MOST_SLABS):
                self.forget(next(iter(self._idle)))
            if self._size + size > self._limit or len(self._all) >= _MOST_SLABS:
                return None
            try:
                slab = Slab(self, size)
            except OSError:  # no descriptor or no memory is left
                return None
            self._all.add(slab)
            self._size += size
            self._grown()
        else:
            del self._idle[slab]
        slab.users = 1
        return slab

    def release(self, slab: Slab) -> None:
        """A batch that used it is no longer in flight."""
        slab.users -= 1
        if not slab.users and not slab.is_read:
            self.returned.append(slab)

    def forget(self, slab: Slab) -> None:
        """Remove it from the pool; views of it may live on."""
        if slab not in self._all:
            return
        self._all.discard(slab)
        self._idle.pop(slab, None)
        self._size -= slab.size
        os.close(slab.descriptor)
        for reader in list(slab.readers):
            reader.drop(slab)
        slab.readers.clear()

    def trim(self) -> None:
        """Free the idle slabs, if none was taken since the last call."""
        self._collect()
        if not self._wanted:
            for slab in list(self._idle):
                slab.memory.madvise(mmap.MADV_REMOVE)  # workers may keep their mapping a while
                self.forget(slab)
        self._wanted = False

    def close(self) -> None:
        """Forget all."""
        for slab in list(self._all):
            self.forget(slab)
        self.returned.clear()

    def _collect(self) -> None:
        while self.returned:
            slab = self.returned.popleft()
            if slab in self._all and not slab.users and not slab.is_read:
                self._idle[slab] = None
        while len(self._idle) > _MOST_IDLE:
            self.forget(next(iter(self._idle)))


class Loan:
    """The slabs that one hand-over to a worker uses.

    Args:
        pool: the op's slabs.
        share: see Share.

    Attributes:
        granted: the slabs for the outputs, by number.
        fetched: bytes of outputs that were read from them.
    """

    def __init__(self, pool: SlabPool, share: Share) -> None:
        self.granted: dict[int, Slab] = {}
        self.fetched = 0
        self._pool = pool
        self._share = share
        self._slabs: dict[int, Slab] = {}
        self._filling: Slab | None = None
        self._used = 0

    def place(self, array: Array) -> Ref | None:
        """Put an array into a slab, unless it is in one, and return its place."""
        found = _found(array)
        if found is not None:
            slab, offset = found
            if slab.number not in self._slabs:
                if not self._share(slab, False):
                    return None
                slab.users += 1
                self._slabs[slab.number] = slab
            return Ref(slab.number, offset, array.nbytes)
        filling = self._filling
        if filling is None or self._used + array.nbytes > filling.size:
            filling = self._take(array.nbytes, writing=False)
            if filling is None:
                return None
            self._filling, self._used = filling, 0
        ref = Ref(filling.number, self._used, array.nbytes)
        self._used = _copy(array, filling.memory, self._used)
        return ref

    def grant(self, nbytes: int | None = None) -> int:
        """The number of a slab for the outputs; 0 if none is needed or available.

        Args:
            nbytes: the bytes that the worker needs; None if unknown.
        """
        if nbytes is None:
            nbytes = self._pool.reply_bytes
        slab = self._take(nbytes, writing=True) if nbytes >= LARGE else None
        if slab is None:
            return 0
        self.granted[slab.number] = slab
        return slab.number

    def fetch(self, ref: Ref) -> tuple[Lease, int]:
        """The memory of an array of the outputs.

        Raises:
            FrameError: the reference is invalid.
        """
        slab = self.granted.get(ref.slab)
        if slab is None or not 0 < ref.nbytes <= slab.size - ref.offset:
            raise FrameError("an array is not in the memory that was granted for it")
        self.fetched += ref.nbytes + ALIGNMENT
        return slab.lease(), ref.offset

    def kept(self, number: int) -> None:
        """The worker's op still holds arrays in this slab: do not reuse it.

        Raises:
            FrameError: it was not granted.
        """
        slab = self._slabs.pop(number, None)
        if slab is None:
            raise FrameError("the worker keeps memory that it was not granted")
        slab.users -= 1
        slab.pool.forget(slab)

    def end(self) -> None:
        """The worker has answered, or has died."""
        for slab in self._slabs.values():
            slab.pool.release(slab)
        self._slabs.clear()
        self.granted.clear()
        self._filling = None

    def _take(self, nbytes: int, *, writing: bool) -> Slab | None:
        slab = self._pool.take(nbytes)
        if slab is None:
            return None
        self._slabs[slab.number] = slab
        return slab if self._share(slab, writing) else None


class WorkerSlabs:
    """The worker's side: maps slabs, reads inputs from them, and writes outputs into granted ones.

    Args:
        need: requests a slab of at least this many bytes from the engine; returns its number, or 0.
    """

    def __init__(self, need: Callable[[int], int] = lambda _: 0) -> None:
        self._need = need
        self._mapped: dict[int, mmap.mmap] = {}
        self._leases: dict[int, Lease] = {}  # of the current batches
        self._granted: mmap.mmap | None = None
        self._grant = 0
        self._used = 0

    def accept(self, number: int, descriptor: int) -> None:
        """Map a slab, and close the descriptor."""
        try:
            writes = fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDWR
            protection = mmap.PROT_READ | (mmap.PROT_WRITE if writes else 0)
            size = os.fstat(descriptor).st_size
            self._mapped[number] = mmap.mmap(descriptor, size, mmap.MAP_SHARED, protection)
        finally:
            os.close(descriptor)

    def drop(self, number: int) -> None:
        """Unmap a slab; arrays that the op holds there stay valid."""
        self._mapped.pop(number, None)

    def begin(self, grant: int) -> None:
        """Begin a hand-over, with a slab for the outputs; 0 is none."""
        self._grant, self._granted, self._used = grant, self._mapped.get(grant), 0

    def fetch(self, ref: Ref) -> tuple[Lease, int]:
        """The memory of an input array, read-only."""
        lease = self._leases.get(ref.slab)
        if lease is None:
            memory = self._mapped[ref.slab]
            lease = Lease((len(memory),), _OCTET, memory)
            lease.flags.writeable = False
            self._leases[ref.slab] = lease
        return lease, ref.offset

    def place(self, array: Array) -> Ref | None:
        """Copy an output array into a granted slab; None if it does not fit."""
        if self._granted is None or self._used + array.nbytes > len(self._granted):
            grant = self._need(array.nbytes)
            if not grant:
                return None
            self.begin(grant)
            assert self._granted is not None
        ref = Ref(self._grant, self._used, array.nbytes)
        self._used = _copy(array, self._granted, self._used)
        return ref

    def end(self) -> list[int]:
        """End a hand-over; returns the slabs in which the op still holds arrays, which now belong
        to it.
        """
        held: list[int] = []
        while self._leases:
            number, lease = self._leases.popitem()
            watch = weakref.ref(lease)
            del lease
            if watch() is not None:
                held.append(number)
                self._mapped.pop(number, None)
        return held


def _copy(array: Array, memory: mmap.mmap, offset: int) -> int:
    """Copy an array, of any layout, in C order; returns the next free offset."""
    np.ndarray(array.shape, array.dtype, memory, offset)[...] = array
    return -(-(offset + array.nbytes) // ALIGNMENT) * ALIGNMENT


def _found(array: NDArray[Any]) -> tuple[Slab, int] | None:
    """The slab that contains the whole array, and its offset; None if there is none."""
    lease: Any = array.base
    while type(lease) is np.ndarray:
        lease = lease.base
    if type(lease) is not Lease or lease.slab is None or not array.flags.c_contiguous:
        return None
    offset = _address(array) - _address(lease)
    # With another alignment native code may sum in another order, and change the last bits.
    return None if offset % ALIGNMENT else (lease.slab, offset)


def _address(array: NDArray[Any]) -> int:
    address: int = array.__array_interface__["data"][0]
    return address
