"""Shared memory: who may read what, and when it is used again."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator

import numpy as np
import pytest

from penstock.executors.processes.frames import FrameError
from penstock.executors.processes.slabs import Loan, Slab, SlabPool, WorkerSlabs
from penstock.executors.processes.values import Ref

MIB = 1 << 20


class Ends:
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
        """The array as the worker has it."""
        ref = self.loan.place(array)
        assert ref is not None
        memory, offset = self.worker.fetch(ref)
        return np.ndarray(array.shape, array.dtype, memory, offset)

    def answer(self, array: np.ndarray) -> np.ndarray:
        """The array as the engine has it."""
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
def ends() -> Iterator[Ends]:
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    made = Ends()
    yield made
    made.loan.end()
    made.pool.close()
    made.worker = WorkerSlabs()
    del made
    gc.collect()  # what a test has held may be part of a cycle
    assert len(os.listdir("/proc/self/fd")) <= before


def test_arrays_go_there_in_one_slab_for_reading_only_and_it_is_used_again(ends: Ends) -> None:
    for n in range(20):
        first, second = ends.send(array(n)), ends.send(array(n + 1, 200_000).reshape(2, -1).T)
        assert first[-1] == n
        assert second[-1, -1] == n + 1
        assert not first.flags.writeable
        del first, second
        assert ends.end() == []
    assert len(ends.pool) == 1


def test_what_the_op_keeps_is_its_own_from_then_on(ends: Ends) -> None:
    kept = ends.send(array(1))[5:]
    (number,) = ends.end()
    assert ends.dropped == [number]
    for n in range(5):
        ends.send(array(n))
        ends.end()
    assert set(kept) == {1.0}
    assert len(ends.pool) == 1


def test_outputs_come_back_in_the_granted_slab_and_stay_while_somebody_reads_them(
    ends: Ends,
) -> None:
    assert ends.loan.grant() == 0  # nobody knows yet that something large comes back
    ends.pool.reply_bytes = 300_000
    held = []
    for n in range(6):
        ends.worker.begin(ends.loan.grant())
        held.append(ends.answer(array(n)))
        ends.end()
    assert [each[0] for each in held] == [each[-1] for each in held] == list(range(6))
    assert not held[0].flags.writeable
    assert len(ends.pool) == 6
    held.clear()
    ends.loan.grant()
    assert len(ends.pool) == 6  # one of them


def test_an_output_is_sent_on_where_it_is(ends: Ends) -> None:
    ends.pool.reply_bytes = 300_000
    ends.worker.begin(ends.loan.grant())
    made = ends.answer(array(7))
    ends.end()
    next_op = Ends()
    there = next_op.send(made)
    assert there[-1] == 7
    assert len(next_op.pool) == 0
    assert not there.flags.writeable
    del made
    ends.loan.grant()
    assert len(ends.pool) == 2  # it is read there
    del there
    next_op.end()
    ends.loan.end()
    ends.loan.grant()
    assert len(ends.pool) == 2


@pytest.mark.parametrize(
    "ref", [Ref(0, 0, 1), Ref(1, 0, 2 * MIB), Ref(1, MIB, 1), Ref(1, 0, 0), Ref(1, 2**63, 2**63)]
)
def test_bytes_that_were_not_granted_are_no_answer(ends: Ends, ref: Ref) -> None:
    ends.pool.reply_bytes = 100_000
    number = ends.loan.grant()
    with pytest.raises(FrameError):
        ends.loan.fetch(ref._replace(slab=number if ref.slab else number + 1))
    with pytest.raises(FrameError):
        ends.loan.kept(number + 1)
    ends.loan.end()


def test_neither_end_can_make_a_slab_shorter(ends: Ends) -> None:
    ends.pool.reply_bytes = 100_000
    slab = ends.loan.granted[ends.loan.grant()]
    descriptor = slab.descriptor_for(writing=True)
    with pytest.raises(PermissionError):
        os.ftruncate(descriptor, 0)
    os.close(descriptor)
    ends.loan.end()


def test_there_are_limits_beyond_which_arrays_go_another_way() -> None:
    ends = Ends(limit=3 * MIB)
    assert ends.loan.place(array(1, 4 * MIB)) is None
    assert ends.loan.place(array(1, 2 * MIB)) is not None
    assert ends.loan.place(array(1, 2 * MIB)) is None
    assert ends.worker.place(array(1)) is None
    ends.loan.end()
    assert ends.loan.place(array(1, MIB)) is not None
    ends.pool.close()


def test_idle_memory_is_given_up_when_nobody_has_wanted_it_for_a_while(ends: Ends) -> None:
    ends.send(array(1))
    ends.end()
    ends.pool.trim()
    assert len(ends.pool) == 1
    ends.pool.trim()
    assert (len(ends.pool), len(ends.dropped)) == (0, 1)
