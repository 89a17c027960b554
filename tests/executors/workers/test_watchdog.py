"""Detection of hanging workers, and reasons for replacements."""

from __future__ import annotations

import mmap
import os

import pytest

from penstock.executors.workers.watchdog import (
    BEGIN_LEAST,
    BEGIN_LIMIT,
    Doing,
    Supervision,
    Watch,
    resident_bytes,
    why_replaced,
)

STEP = 0.25


class Idle:
    """A worker that has finished some batches, and has this memory."""

    index, where, ending, watch = 0, "pid 1", False, Watch(None)

    def __init__(self, batches: int, memory: int | None) -> None:
        self.batches = batches
        self.memory = memory

    def doing(self) -> Doing | None:
        return None

    def kill(self) -> None:
        raise AssertionError

    abort = kill


def first_fault(
    watch: Watch, doing: Doing | None, seconds: float, step: float = STEP
) -> str | None:
    """The first fault that a series of looks over so many seconds reports."""
    faults = (watch.look(doing, step) for _ in range(round(seconds / step)))
    return next((fault for fault in faults if fault), None)


@pytest.mark.parametrize(
    ("doing", "limit"),
    [(Doing(1, False, True), BEGIN_LIMIT), (Doing(1, False, False), BEGIN_LIMIT),
     (Doing(1, True, False), 60.0)],
    ids=["not begun", "not begun and not wanted", "goes on in vain"],
)  # fmt: skip
def test_a_hang_is_detected_soon_after_its_limit_and_not_before(doing: Doing, limit: float) -> None:
    watch = Watch(60.0)
    assert first_fault(watch, doing, limit) is None
    fault = first_fault(watch, doing, 1.0)
    assert fault is not None
    assert f"{limit:g} s" in fault


@pytest.mark.parametrize(
    ("hang_limit", "limit"),
    [(None, BEGIN_LIMIT), (60.0, BEGIN_LIMIT), (2.0, 2.0), (0.1, BEGIN_LEAST)],
)
def test_the_limit_to_begin_a_batch_follows_hang_limit_with_a_minimum(
    hang_limit: float | None, limit: float
) -> None:
    watch = Watch(hang_limit)
    assert first_fault(watch, Doing(1, False, True), limit) is None
    fault = watch.look(Doing(1, False, True), STEP)
    assert fault is not None
    assert f"within {limit:g} s" in fault


def test_a_call_with_waiting_requests_may_take_any_time() -> None:
    watch = Watch(1.0)
    assert first_fault(watch, Doing(1, True, True), 3600.0) is None
    assert first_fault(watch, Doing(1, True, False), 0.75) is None
    assert first_fault(watch, Doing(1, True, False), 1.25) is not None


def test_without_a_limit_an_abandoned_call_may_take_any_time() -> None:
    assert first_fault(Watch(None), Doing(1, True, False), 3600.0) is None


def test_the_limits_apply_to_every_batch_separately() -> None:
    watch = Watch(1.0)
    for number in range(1, 100):
        assert first_fault(watch, Doing(number, False, True), BEGIN_LEAST - STEP) is None
        assert first_fault(watch, Doing(number, True, False), 0.75) is None


def test_an_idle_worker_does_not_hang() -> None:
    watch = Watch(1.0)
    assert first_fault(watch, None, 3600.0) is None
    assert first_fault(watch, Doing(1, False, True), 1.0) is None
    assert first_fault(watch, None, 60.0) is None


def test_an_idle_worker_is_replaced_beyond_its_limits() -> None:
    limited = Supervision(memory_limit=100 << 20, max_batches=10)
    assert why_replaced(limited, Idle(9, 100 << 20)) is None
    assert why_replaced(limited, Idle(9, None)) is None
    assert why_replaced(limited, Idle(10, 100 << 20)) == "it has run 10 batches"
    assert (
        why_replaced(limited, Idle(0, 102 << 20))
        == "it has 102 MiB of memory, over its memory_limit_mib of 100"
    )
    assert why_replaced(Supervision(), Idle(10**9, 102 << 20)) is None


def test_the_resident_memory_of_a_process_includes_what_it_allocates() -> None:
    # A separate mapping: the allocator might reuse pages that the process already has.
    with mmap.mmap(-1, 64 << 20) as held:
        before = resident_bytes(os.getpid())
        held.write(b"x" * len(held))
        after = resident_bytes(os.getpid())
    assert before is not None
    assert after is not None
    assert after - before >= 32 << 20
