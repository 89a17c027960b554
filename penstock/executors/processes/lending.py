"""Arrays that go from one worker process to another without being copied in between.

What a worker has put into its slab is read there by the next worker as well: the engine lends it
that slab, under a number of its own and for one frame at a time. All that the engine places for a
worker goes through its Lender; what it does not find in another worker's slab, or may not lend, is
copied to a slab of ours.

A loan is what a generation is for other slabs: each frame has one of its own for each slab that it
needs, which is given back as a generation is. While there is one the engine holds on to what its
owner has sent, which therefore gets nothing back and does not use that slab again. What the owner
itself writes about generations says nothing to whom it is lent: nobody has to believe it but the
engine, which looks when it is told of the array.

What a worker gives on as it was lent it, it need not copy either: it names the loan and the place,
and the engine looks up what that is.

Guarantees: a slab is lent only where its owner has given that generation out and not got it back;
no more than half of an owner's memory is lent, so that who keeps it for ever leaves the owner some;
the receiver maps no more than its limit, whosever that is. It is told in time of what it is not to
expect again, and when it ends all its loans do.
"""

from __future__ import annotations

import mmap
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any, Final

from numpy.typing import NDArray

from penstock.executors.processes.frame import FrameError, Ref
from penstock.executors.processes.mapping import Lease, Mapped, Part, SlabReader, part_of
from penstock.executors.processes.slab import ALIGNMENT, LAST_GENERATION, MOST_SLABS
from penstock.executors.processes.slab_pool import SlabPool
from penstock.executors.processes.views import distance, owner_of

FIRST_LENT: Final = 2**31
"""Slabs with this number, or a higher one, are lent."""

_SHARE: Final = 2  # of an owner's slabs and bytes, the most that is lent


class _Lent:
    """A slab of another worker's, as one that it is lent to knows it.

    Attributes:
        number: what it is called there.
        key: which it is.
        loans: of frames that were sent and not given back, and of the one being written.
        last: the number of the last one.
        filling: whether the frame being written needs it.
        told: whether the receiver knows it.
        stale: whether nobody has wanted it since the last ``trim``.
    """

    __slots__ = ("filling", "key", "last", "loans", "number", "size", "stale", "told")

    def __init__(self, number: int, key: weakref.ref[Mapped], size: int) -> None:
        self.number = number
        self.key = key
        self.size = size
        self.loans: dict[int, Lease] = {}
        self.last = 0
        self.filling = False
        self.told = False
        self.stale = False


class Lender:
    """Places arrays for one worker; as a SlabPool, whose place it takes.

    Args:
        pool: for what is copied.
        recall: tells the worker at once of the number of a slab that it is lent no more.
        on_gone: called when ``settle`` has something to do; see SlabReader's ``on_freed``.

    Attributes:
        touched: whether there is anything for ``commit`` to do.
        gone: what ``settle`` is to look at.

    Thread:
        one at a time.
    """

    def __init__(
        self, pool: SlabPool, recall: Callable[[int], None], on_gone: Callable[[], None]
    ) -> None:
        self._pool = pool
        self._tell_recall = recall
        self._on_gone = on_gone
        self._known: dict[weakref.ref[Mapped], _Lent] = {}
        self._numbered: dict[int, _Lent] = {}
        self._filling: list[_Lent] = []
        self.gone: deque[weakref.ref[Mapped]] = deque()
        self._numbers = FIRST_LENT
        self.touched = False

    def __repr__(self) -> str:
        loans = sum(len(lent.loans) for lent in self._numbered.values())
        return f"<Lender {len(self._numbered)} slabs, {loans} loans, {self._pool!r}>"

    @property
    def size(self) -> int:
        """Bytes of all slabs that the worker maps, or may still map, for what it was sent."""
        return self._pool.size + sum([lent.size for lent in self._numbered.values()])

    def place(self, array: NDArray[Any]) -> Ref | None:
        """Where the worker finds an array, or a copy of it; None when there is no room."""
        self.touched = True
        ref = self._lend(array) or self._pool.place(array)
        if ref is None and self._recall_idle():
            ref = self._pool.place(array)
        return ref

    def commit(self) -> list[tuple[int, int]]:
        """See SlabPool."""
        fresh = []
        for lent in self._filling:
            lent.filling = False
            mapped = lent.key()
            if not lent.told and mapped is not None and mapped.descriptor is not None:
                fresh.append((lent.number, mapped.descriptor))
                lent.told = True
        self._filling.clear()
        fresh += self._pool.commit()
        self.touched = self._pool.touched
        return fresh

    def rollback(self) -> None:
        """See SlabPool."""
        for lent in self._filling:
            lent.filling = False
            _end(lent.loans.pop(lent.last))
            lent.last -= 1
        self._filling.clear()
        self._pool.rollback()

    def release(self, slab: int, generation: int) -> None:
        """The worker reads this generation, or by this loan, no longer.

        Raises:
            FrameError: it has not got it.
        """
        lent = self._numbered.get(slab)
        if lent is None:
            self._pool.release(slab, generation)
            return
        lease = lent.loans.pop(generation, None)
        if lease is None:
            raise FrameError(f"slab {slab}, loan {generation}, is given back out of turn")
        _end(lease)

    def fetch(self, ref: Ref) -> Part:
        """The bytes of an array that the worker gives on as it was lent it.

        Raises:
            FrameError: it was not lent it, or has given it back.
        """
        lent = self._numbered.get(ref.slab)
        lease = None if lent is None else lent.loans.get(ref.generation)
        if lease is None:
            raise FrameError(f"slab {ref.slab}, loan {ref.generation}, is not with this worker")
        lease.mapped.check(ref)
        return part_of(lease, ref)

    def settle(self) -> None:
        """Recall what nobody has any more, not even its owner."""
        while self.gone:
            lent = self._known.get(self.gone.popleft())
            if lent is not None:
                self._recall(lent)

    def trim(self) -> None:
        """Give up what has not been used since the last ``trim``; to be called now and then."""
        self.settle()
        for lent in list(self._numbered.values()):
            if lent.stale and not lent.loans:
                self._recall(lent)
            lent.stale = True
        self._pool.trim()

    def close(self) -> None:
        """The worker has ended: nothing is lent to it any more."""
        for lent in self._numbered.values():
            for lease in lent.loans.values():
                _end(lease)
        self._known.clear()
        self._numbered.clear()
        self._filling.clear()
        self._pool.close()

    def _lend(self, array: NDArray[Any]) -> Ref | None:
        lease, offset = _found(array)
        if lease is None:
            return None
        lent = self._lent_for(lease.mapped)
        if lent is None or not (lent.filling or self._begin(lent, lease)):
            return None
        return Ref(lent.number, lent.last, offset, array.nbytes)

    def _begin(self, lent: _Lent, lease: Lease) -> bool:
        """One more loan, for the frame that is being written."""
        if lent.last == LAST_GENERATION or not _may_lend(lease):
            return False
        lease.loans += 1
        lease.mapped.reader.lent.add(lease.mapped)
        lent.last += 1
        lent.loans[lent.last] = lease
        lent.filling = True
        lent.stale = False
        self._filling.append(lent)
        return True

    def _lent_for(self, mapped: Mapped) -> _Lent | None:
        """What the receiver knows it as, or will."""
        lent = self._known.get(weakref.ref(mapped))
        if (lent is None or not lent.told) and mapped.descriptor is None:
            return None
        if lent is None and self._has_room(mapped.size):
            key = weakref.ref(mapped, self._mapping_gone)
            lent = self._known[key] = _Lent(self._numbers, key, mapped.size)
            self._numbered[lent.number] = lent
            self._numbers += 1
        return lent

    def _has_room(self, size: int) -> bool:
        return self._pool.reserve(size) or (self._recall_idle() and self._pool.reserve(size))

    def _recall_idle(self) -> bool:
        """Whether there were any."""
        idle = [lent for lent in self._numbered.values() if not lent.loans]
        for lent in idle:
            self._recall(lent)
        return bool(idle)

    def _recall(self, lent: _Lent) -> None:
        del self._known[lent.key]
        del self._numbered[lent.number]
        self._pool.unreserve(lent.size)
        if lent.told:
            self._tell_recall(lent.number)

    def _mapping_gone(self, key: weakref.ref[Mapped]) -> None:
        # In any thread, at any line of it.
        self.gone.append(key)
        self._on_gone()


class Borrower(SlabReader):
    """The slabs that an engine sends to a worker: its own, and those that it lends."""

    def find(self, array: NDArray[Any]) -> Ref | None:
        """Where an array that was lent stands, for the engine, which knows; None for others."""
        lease, offset = _found(array)
        if lease is None or not isinstance(lease.mapped, _Borrowed):
            return None
        return Ref(lease.slab, lease.generation, offset, array.nbytes)

    def recall(self, slab: int) -> None:
        """It is not lent again.

        Raises:
            FrameError: it never was.
        """
        if not isinstance(self._slabs.get(slab), _Borrowed):
            raise FrameError(f"slab {slab} is not lent")
        self._drop(slab)

    def _mapped(self, slab: int, memory: mmap.mmap, size: int) -> Mapped:
        kind = Mapped if slab < FIRST_LENT else _Borrowed
        return kind(memory, size, self)


class _Borrowed(Mapped):
    """A slab that is lent, where it is read: several loans at a time, each by the engine's word."""

    __slots__ = ("_loans",)

    def __init__(self, memory: mmap.mmap, size: int, reader: SlabReader) -> None:
        super().__init__(memory, size, reader)
        self._loans: dict[int, weakref.ref[Lease]] = {}

    def held(self) -> Lease | None:
        """See Mapped."""
        leases = [each() for each in list(self._loans.values())]
        return next((lease for lease in leases if lease is not None), None)

    def given_up(self) -> bool:
        """See Mapped: the engine will tell."""
        return False

    def lease(self, slab: int, generation: int, gone: Callable[[int, int], None]) -> Lease:
        """See Mapped; a generation is a loan here."""

        def ended(_: weakref.ref[Lease]) -> None:
            self._loans.pop(generation, None)
            gone(slab, generation)

        known = self._loans.get(generation)
        lease = None if known is None else known()
        if lease is None:
            if generation <= self.generation:
                raise FrameError(f"slab {slab}, loan {generation}, was given back")
            lease = self.whole(slab, generation)
            self.generation = generation
            self._loans[generation] = weakref.ref(lease, ended)
        return lease


def _found(array: NDArray[Any]) -> tuple[Lease, int] | tuple[None, int]:
    """Where an array stands: in which slab, and at what place; None where that cannot be told."""
    part = array.base
    if part is None:
        return None, 0
    # As it was decoded: who is as long as that, and has no gaps, begins where that begins.
    if (
        type(part) is Part
        and type(part.base) is Lease  # no copy of a Part, nor a piece of one
        and part.nbytes == array.nbytes
        and array.flags.c_contiguous
    ):
        return part.base, part.offset
    lease = lease_of(array)
    offset = None if lease is None else _offset_in(lease, array)
    return (None, 0) if lease is None or offset is None else (lease, offset)


def lease_of(array: NDArray[Any]) -> Lease | None:
    """What an array is a view of, if that is in a slab."""
    return owner_of(array, Lease)


def _offset_in(lease: Lease, array: NDArray[Any]) -> int | None:
    """Where in a slab an array stands; None where that cannot be told to others."""
    offset = distance(lease, array)
    # Elsewhere some native code would sum in another order, and so give other last bits.
    return None if not offset or offset % ALIGNMENT else offset


def _may_lend(lease: Lease) -> bool:
    """Whether its owner keeps enough for itself."""
    mapped = lease.mapped
    lent = mapped.reader.lent
    if mapped in lent:
        return True
    size = sum([each.size for each in lent], mapped.size) if lent else mapped.size
    return len(lent) < MOST_SLABS // _SHARE and size <= mapped.reader.limit // _SHARE


def _end(lease: Lease) -> None:
    lease.loans -= 1
    if not lease.loans:
        lease.mapped.reader.lent.discard(lease.mapped)
