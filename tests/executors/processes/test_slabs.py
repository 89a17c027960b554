"""Shared memory: access of each process, and reuse."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator

import numpy as np
import pytest

from penstock.executors.processes.slabs import Loan, Slab, SlabPool, WorkerSlabs
from penstock.executors.transport.frames import FrameError
from penstock.executors.transport.values import Ref

MIB = 1 << 20


class PoolAndWorker:
    """An engine's pool and a worker, in one process."""

    def __init__(self, limit: int = 64 * MIB) -> None:
        self.pool = SlabPool(limit)
        self.worker = WorkerSlabs()
        self.loan = Loan(self.pool, self.share)
        self.dropped: list[int] = []

    def share(self, slab: Slab, writing: bool) -> bool:
        if not slab.readers.get(self, False) >= writing or self not in slab.readers:
            self.worker.accept(slab.number, slab.descriptor_for(writing=writing))
            slab.readers[self] = writing
        return True

    def drop(self, slab: Slab) -> None:
        self.dropped.append(slab.number)
        self.worker.drop(slab.number)

    def send(self, array: np.ndarray) -> np.ndarray:
        """Sends an array; returns it as the worker gets it."""
        ref = self.loan.place(array)
        assert ref is not None
        memory, offset = self.worker.fetch(ref)
        return np.ndarray(array.shape, array.dtype, memory, offset)

    def answer(self, array: np.ndarray) -> np.ndarray:
        """Replies an array; returns it as the engine gets it."""
        ref = self.worker.place(array)
        assert ref is not None
        memory, offset = self.loan.fetch(ref)
        return np.ndarray(array.shape, array.dtype, memory, offset)

    def end(self) -> list[int]:
        kept = self.worker.end()
        for each in kept:
            self.loan.kept(each)
        self.loan.end()
        return kept


def array(number: int, nbytes: int = 100_000) -> np.ndarray:
    return np.full(nbytes // 8, float(number))


@pytest.fixture
def both() -> Iterator[PoolAndWorker]:
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    made = PoolAndWorker()
    yield made
    made.loan.end()
    made.pool.close()
    made.worker = WorkerSlabs()
    del made
    gc.collect()  # objects of a test may be part of a cycle
    assert len(os.listdir("/proc/self/fd")) <= before


def test_arrays_are_sent_in_one_read_only_slab_that_is_reused(both: PoolAndWorker) -> None:
    for n in range(20):
        first, second = both.send(array(n)), both.send(array(n + 1, 200_000).reshape(2, -1).T)
        assert first[-1] == n
        assert second[-1, -1] == n + 1
        assert not first.flags.writeable
        del first, second
        assert both.end() == []
    assert len(both.pool) == 1


def test_a_slab_with_an_array_that_the_op_keeps_is_not_reused(both: PoolAndWorker) -> None:
    kept = both.send(array(1))[5:]
    (number,) = both.end()
    assert both.dropped == [number]
    for n in range(5):
        both.send(array(n))
        both.end()
    assert set(kept) == {1.0}
    assert len(both.pool) == 1


def test_outputs_return_in_a_granted_slab_that_is_not_reused_while_they_are_read(
    both: PoolAndWorker,
) -> None:
    assert both.loan.grant() == 0  # no large reply has been seen yet
    both.pool.reply_bytes = 300_000
    held = []
    for n in range(6):
        both.worker.begin(both.loan.grant())
        held.append(both.answer(array(n)))
        both.end()
    assert [each[0] for each in held] == [each[-1] for each in held] == list(range(6))
    assert not held[0].flags.writeable
    assert len(both.pool) == 6
    held.clear()
    both.loan.grant()
    assert len(both.pool) == 6  # one of them is reused


def test_an_output_is_sent_on_without_a_copy(both: PoolAndWorker) -> None:
    both.pool.reply_bytes = 300_000
    both.worker.begin(both.loan.grant())
    made = both.answer(array(7))
    both.end()
    next_op = PoolAndWorker()
    received = next_op.send(made)
    assert received[-1] == 7
    assert len(next_op.pool) == 0
    assert not received.flags.writeable
    del made
    both.loan.grant()
    assert len(both.pool) == 2  # it is still read
    del received
    next_op.end()
    both.loan.end()
    both.loan.grant()
    assert len(both.pool) == 2


@pytest.mark.parametrize(
    "ref", [Ref(0, 0, 1), Ref(1, 0, 2 * MIB), Ref(1, MIB, 1), Ref(1, 0, 0), Ref(1, 2**63, 2**63)]
)
def test_references_outside_of_the_granted_slab_are_refused(both: PoolAndWorker, ref: Ref) -> None:
    both.pool.reply_bytes = 100_000
    number = both.loan.grant()
    with pytest.raises(FrameError):
        both.loan.fetch(ref._replace(slab=number if ref.slab else number + 1))
    with pytest.raises(FrameError):
        both.loan.kept(number + 1)
    both.loan.end()


def test_neither_process_can_shrink_a_slab(both: PoolAndWorker) -> None:
    both.pool.reply_bytes = 100_000
    slab = both.loan.granted[both.loan.grant()]
    descriptor = slab.descriptor_for(writing=True)
    with pytest.raises(PermissionError):
        os.ftruncate(descriptor, 0)
    os.close(descriptor)
    both.loan.end()


def test_arrays_beyond_the_limits_are_not_placed_in_slabs() -> None:
    both = PoolAndWorker(limit=3 * MIB)
    assert both.loan.place(array(1, 4 * MIB)) is None
    assert both.loan.place(array(1, 2 * MIB)) is not None
    assert both.loan.place(array(1, 2 * MIB)) is None
    assert both.worker.place(array(1)) is None
    both.loan.end()
    assert both.loan.place(array(1, MIB)) is not None
    both.pool.close()


def test_idle_memory_is_freed_after_a_while(both: PoolAndWorker) -> None:
    both.send(array(1))
    both.end()
    both.pool.trim()
    assert len(both.pool) == 1
    both.pool.trim()
    assert (len(both.pool), len(both.dropped)) == (0, 1)
