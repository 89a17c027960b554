from __future__ import annotations

import mmap
import os

from penstock.executors.processes.memory import Memory
from penstock.executors.processes.recycling import why_ended, why_replaced
from penstock.executors.processes.supervision import Supervision

MIB = 1 << 20
LIMITED = Supervision(memory_limit=100 * MIB, max_batches=10)


def test_a_worker_stays_within_its_limits_and_leaves_beyond_them() -> None:
    assert why_replaced(LIMITED, 9, 100 * MIB) is None
    assert why_replaced(LIMITED, 9, None) is None
    assert why_replaced(LIMITED, 10, None) == "it has run 10 batches"
    assert why_replaced(LIMITED, 0, 102 * MIB) == "it has 102 MiB of memory, over its 100"
    assert why_replaced(Supervision(), 10**9, 10**15) is None
    assert not Supervision().recycles


def test_only_far_over_the_limit_a_worker_is_ended_in_its_batch() -> None:
    assert why_ended(LIMITED, 149 * MIB) is None
    assert why_ended(LIMITED, 151 * MIB) is not None
    assert why_ended(LIMITED, None) is None
    assert why_ended(Supervision(), 10**15) is None


def test_the_memory_of_a_process_grows_with_what_it_holds() -> None:
    memory = Memory(os.getpid())
    # A mapping of its own: the allocator might answer with pages that the process holds already.
    with mmap.mmap(-1, 64 * MIB) as held:
        before = memory.resident()
        held.write(b"x" * len(held))
        after = memory.resident()
    memory.close()
    assert before is not None
    assert after is not None
    assert after - before >= 32 * MIB
