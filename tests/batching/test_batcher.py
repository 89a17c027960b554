"""The batcher's guarantees, as properties over any interleaving of events and as examples."""

from collections import Counter
from functools import cache
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from penstock.batching.batcher import Batcher, BatchPolicy, FifoQueue
from penstock.batching.costs import BatchCosts
from penstock.batching.learned import LearnedBatcher
from penstock.batching.padding import Padding
from penstock.batching.queues import batcher_for
from penstock.errors import ServiceBusy
from penstock.request import Batch, CloseReason, Sample

FAR = 1e9


def sample(data_id: int, *, deadline: float = FAR, rows: int = 1, key: str | None = None) -> Sample:
    return Sample(data_id, {}, deadline, rows=rows, key=key)


def offer(batcher: Batcher, now: float, *data_ids: int, key: str | None = None) -> None:
    for data_id in data_ids:
        batcher.offer(sample(data_id, key=key), now)


def poll_batch(batcher: Batcher, now: float, *, draining: bool = False) -> Batch:
    batch = batcher.poll(now, draining=draining)
    assert isinstance(batch, Batch)
    return batch


def test_without_a_window_an_idle_worker_takes_all_queued_samples() -> None:
    batcher = Batcher(BatchPolicy(max_rows=4))
    offer(batcher, 0.0, 1, 2)
    batch = poll_batch(batcher, 0.0)
    assert batch.data_ids == [1, 2]
    assert batch.reason is CloseReason.IDLE_SLOT
    assert batcher.poll(0.0) is None


def test_a_batch_closes_when_it_is_full() -> None:
    batcher = Batcher(BatchPolicy(max_rows=2, window=1.0))
    offer(batcher, 0.0, 1, 2, 3)
    batch = poll_batch(batcher, 0.0)
    assert (batch.data_ids, batch.reason) == ([1, 2], CloseReason.FULL)
    assert batcher.poll(0.0) == 1.0


def test_the_oldest_sample_waits_no_longer_than_the_window() -> None:
    batcher = Batcher(BatchPolicy(max_rows=8, window=0.5))
    offer(batcher, 10.0, 1)
    offer(batcher, 10.3, 2)
    assert batcher.poll(10.3) == 10.5
    batch = poll_batch(batcher, 10.5)
    assert (batch.data_ids, batch.reason) == ([1, 2], CloseReason.WINDOW)


def test_a_sample_with_a_deadline_before_the_window_s_end_closes_its_batch() -> None:
    batcher = Batcher(BatchPolicy(max_rows=8, window=0.5))
    offer(batcher, 0.0, 1)
    batcher.offer(sample(2, deadline=0.4), 0.1)
    batch = poll_batch(batcher, 0.1)
    assert (batch.data_ids, batch.reason) == ([1, 2], CloseReason.DEADLINE)


def test_a_full_group_is_dispatched_before_an_older_group_that_still_waits() -> None:
    batcher = Batcher(BatchPolicy(max_rows=2, window=1.0))
    offer(batcher, 0.0, 1, key="odd")
    offer(batcher, 0.1, 2, 3, key="even")
    assert poll_batch(batcher, 0.1).data_ids == [2, 3]
    assert batcher.poll(0.1) == 1.0


def test_a_busy_key_does_not_starve_a_key_whose_window_has_ended() -> None:
    batcher = Batcher(BatchPolicy(max_rows=2, window=1.0))
    offer(batcher, 0.0, 0, key="odd")
    for step in range(200):
        now = 0.01 * step
        offer(batcher, now, 1 + 2 * step, 2 + 2 * step, key="busy")
        batch = poll_batch(batcher, now)
        batcher.check_invariants()
        if batch.data_ids == [0]:
            assert now == pytest.approx(1.0)
            return
    pytest.fail("the odd sample never left")


def test_a_sample_that_does_not_fit_closes_the_batch_and_starts_the_next() -> None:
    batcher = Batcher(BatchPolicy(max_rows=4))
    for data_id, rows in ((1, 3), (2, 2), (3, 1)):
        batcher.offer(sample(data_id, rows=rows), 0.0)
    first = poll_batch(batcher, 0.0)
    assert (first.data_ids, first.reason) == ([1], CloseReason.SHAPE)
    assert poll_batch(batcher, 0.0).data_ids == [2, 3]


def test_a_sample_larger_than_the_batch_runs_alone() -> None:
    batcher = Batcher(BatchPolicy(max_rows=4))
    batcher.offer(sample(1, rows=9), 0.0)
    offer(batcher, 0.0, 2)
    batch = poll_batch(batcher, 0.0)
    assert (batch.data_ids, batch.rows, batch.reason) == ([1], 9, CloseReason.FULL)


def test_draining_ignores_the_window() -> None:
    batcher = Batcher(BatchPolicy(max_rows=4, window=5.0))
    offer(batcher, 0.0, 1)
    batch = poll_batch(batcher, 0.0, draining=True)
    assert (batch.data_ids, batch.reason) == ([1], CloseReason.DRAIN)


def test_a_full_queue_refuses_and_does_not_block() -> None:
    batcher = Batcher(BatchPolicy(capacity=2))
    offer(batcher, 0.0, 1, 2)
    with pytest.raises(ServiceBusy):
        batcher.offer(sample(3), 0.0)
    assert len(batcher) == 2


def test_cancelled_samples_are_removed_even_if_nothing_is_polled() -> None:
    batcher = Batcher(BatchPolicy(max_rows=4, window=100.0))
    for data_id in range(5000):
        one = sample(data_id)
        batcher.offer(one, 0.0)
        batcher.cancel(one)
        batcher.check_invariants()
    assert len(batcher) == 0


def test_the_window_of_an_expired_sample_does_not_apply_to_the_next() -> None:
    batcher = Batcher(BatchPolicy(max_rows=2, window=0.5))
    batcher.offer(Sample(1, {}, 0.1), 0.0)
    batcher.offer(Sample(2, {}, 9.0), 0.5)
    assert batcher.poll(0.5) == 1.0
    batcher.check_invariants()


def test_an_expired_sample_does_not_shorten_the_window_of_its_key() -> None:
    batcher = Batcher(BatchPolicy(max_rows=2, window=0.5))
    batcher.offer(sample(1, key="b"), 0.0)
    late = sample(2, key="a", deadline=0.2)
    batcher.offer(late, 0.1)
    batcher.offer(sample(3, key="a"), 0.3)
    assert batcher.poll(0.3) == 0.5
    assert late.dropped == 0.3
    batcher.check_invariants()
    assert poll_batch(batcher, 0.5).data_ids == [1]
    assert batcher.poll(0.5) == 0.8
    assert poll_batch(batcher, 0.8).data_ids == [3]


def test_an_expired_sample_behind_others_is_dropped() -> None:
    batcher = Batcher(BatchPolicy(max_rows=4))
    late = sample(2, deadline=0.1)
    for one in (sample(1), late, sample(3)):
        batcher.offer(one, 0.0)
    assert poll_batch(batcher, 0.2).data_ids == [1, 3]
    assert (late.waiting, late.dropped) == (False, 0.2)


def test_a_sample_of_another_shape_is_skipped_and_starts_the_next_batch() -> None:
    batcher = Batcher(BatchPolicy(max_rows=4, join=Padding().join))
    for data_id, size in enumerate((100, 3000, 110, 9000, 120)):
        one = sample(data_id)
        one.shapes = ((size, 100),)
        batcher.offer(one, 0.0)
    assert [poll_batch(batcher, 0.0).data_ids for _ in range(3)] == [[0, 2, 4], [1], [3]]
    assert batcher.poll(0.0) is None


def test_a_batch_skips_a_bounded_number_of_samples() -> None:
    batcher = Batcher(BatchPolicy(max_rows=1000, join=Padding().join))
    for data_id in range(1000):
        one = sample(data_id)
        one.shapes = ((10_000 * 4 ** (data_id % 500),),)
        batcher.offer(one, 0.0)
    assert poll_batch(batcher, 0.0).data_ids == [0]
    batcher.check_invariants()


@pytest.mark.parametrize("rows", [1, 2])
def test_a_higher_level_goes_first_and_a_lower_one_is_overtaken_only_while_it_is_young(
    rows: int,
) -> None:
    queue = batcher_for(BatchPolicy(max_rows=rows, levels=2, ageing=1.0))
    low = sample(0)
    low.level = 1
    queue.offer(low, 0.0)
    left: list[int] = []
    offered: dict[int, float] = {}
    for step in range(1, 30):  # more high ones than can run
        now = step / 10
        for _ in range(2 * rows):
            offered[len(offered) + 1] = now
            queue.offer(sample(len(offered)), now)
        left += poll_batch(queue, now).data_ids
        queue.check_invariants()
    before = sum(arrived <= 1.0 for arrived in offered.values())
    assert left[: before + 1] == [*range(1, before + 1), 0], "for one second, and no longer"


def test_a_batch_of_a_few_high_samples_is_filled_with_lower_ones() -> None:
    queue = Batcher(BatchPolicy(max_rows=4, window=1.0, levels=3, ageing=10.0))
    for data_id, level in enumerate((2, 1, 0, 1, 2)):
        one = sample(data_id)
        one.level = level
        queue.offer(one, 0.0)
    batch = poll_batch(queue, 0.0)
    assert (batch.data_ids, batch.reason) == ([2, 1, 3, 0], CloseReason.FULL)


@pytest.mark.parametrize("rows", [1, 2])
def test_a_late_sample_goes_behind_its_level_and_before_lower_ones(rows: int) -> None:
    queue = batcher_for(BatchPolicy(max_rows=rows, levels=2, ageing=10.0, delays=True))
    offered = [sample(data_id) for data_id in range(4)]
    offered[3].level = 1
    for one in offered:
        queue.offer(one, 0.0)
    queue.delay(offered[1])
    queue.delay(offered[0])
    queue.offer(sample(4), 0.0)
    queue.check_invariants()
    left: list[int] = []
    while len(left) < 5:
        left += poll_batch(queue, 0.0).data_ids
    assert left == [2, 4, 1, 0, 3]


class Learned(LearnedBatcher):
    """One that believes what ``linear`` says, passes few samples, and has time now and then."""

    most_passed = 5

    def __init__(self, policy: BatchPolicy) -> None:
        super().__init__(policy, linear())
        self.ahead = lambda: len(self) % 2 * 0.3


@cache
def linear() -> BatchCosts:
    """Costs that nobody teaches further."""
    costs = BatchCosts()
    for _ in range(8):
        for rows in (1, 2, 4, 8):
            for width in (1, 3, 9):
                costs.learn(rows, rows * width, 1e-3 + 1e-4 * rows * width)
    return costs


@settings(max_examples=150, stateful_step_count=60, deadline=None)
class AnyInterleaving(RuleBasedStateMachine):
    """Offers, polls, cancellations and passing time, in any order, keep every guarantee of the
    module."""

    def __init__(self) -> None:
        super().__init__()
        self.batcher: Batcher | FifoQueue | None = None
        self.now = 0.0
        self.next_id = 0
        self.inside: dict[int, Sample] = {}
        self.left: set[int] = set()
        self.passed: Counter[int] = Counter()

    @precondition(lambda self: self.batcher is None)
    @rule(
        rows=st.integers(1, 5),
        window=st.none() | st.sampled_from([0.5, 1.0]),
        capacity=st.none() | st.integers(1, 8),
        make=st.sampled_from([Batcher, batcher_for, LearnedBatcher, Learned]),
        join=st.none() | st.just(Padding(max_elements=0).join),
        overrun=st.booleans(),
        levels=st.sampled_from([1, 1, 3]),
        delays=st.booleans(),
        ageing=st.sampled_from([0.0, 0.5, 3.0]),
    )
    def start(
        self,
        rows: int,
        window: float | None,
        capacity: int | None,
        make: Any,
        join: Any,
        overrun: bool,
        levels: int,
        delays: bool,
        ageing: float,
    ) -> None:
        self.policy = BatchPolicy(
            max_rows=rows, window=window, capacity=capacity, join=join, overrun=overrun,
            levels=levels, delays=delays, ageing=ageing,
        )  # fmt: skip
        self.batcher = make(self.policy)

    @precondition(lambda self: self.batcher is not None)
    @rule(
        rows=st.integers(1, 7),
        key=st.sampled_from(["a", "b", None]),
        life=st.sampled_from([0.1, 0.7, 3.0, FAR]),
        size=st.integers(1, 9),
        level=st.integers(0, 2),
    )
    def offer(self, rows: int, key: str | None, life: float, size: int, level: int) -> None:
        one = sample(self.next_id, rows=rows, key=key, deadline=self.now + life)
        one.level = min(level, self.policy.levels - 1)
        one.shapes, one.elements = ((size,),), rows * size
        self.next_id += 1
        try:
            self.batcher.offer(one, self.now)
        except ServiceBusy:
            assert self.policy.capacity is not None
            assert len(self.batcher) == self.policy.capacity
        else:
            self.inside[one.data_id] = one
        if self.policy.capacity is not None:
            assert len(self.batcher) <= self.policy.capacity

    @precondition(lambda self: self.inside)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        chosen = data.draw(st.sampled_from(sorted(self.inside)))
        one = self.inside.pop(chosen)
        if one.waiting:
            self.batcher.cancel(one)
        self.left.add(chosen)

    @precondition(lambda self: self.inside and self.policy.delays)
    @rule(data=st.data())
    def delay(self, data: st.DataObject) -> None:
        one = self.inside[data.draw(st.sampled_from(sorted(self.inside)))]
        # Which of two late ones that arrived at the same time is first is left open.
        also = [s for s in self.inside.values() if s.late and s.arrived == one.arrived]
        if one.waiting and not one.late and not also:
            self.batcher.delay(one)

    @precondition(lambda self: self.batcher is not None)
    @rule(step=st.sampled_from([0.0, 0.1, 0.5, 2.0]))
    def wait(self, step: float) -> None:
        self.now += step

    @precondition(lambda self: self.batcher is not None)
    @rule(draining=st.booleans())
    def poll(self, draining: bool) -> None:
        answer = self.batcher.poll(self.now, draining=draining)
        waiting = [s for s in self.inside.values() if s.waiting]
        if isinstance(answer, Batch):
            self.check_batch(answer, draining, waiting)
        else:
            self.check_no_batch(answer, draining, waiting)

    @precondition(lambda self: self.batcher is not None)
    @rule(draining=st.booleans(), most=st.integers(1, 4), seconds=st.sampled_from([0.0, 1.0]))
    def poll_several(self, draining: bool, most: int, seconds: float) -> None:
        batches, wait = self.batcher.poll_several(
            most, self.now, draining=draining, seconds=seconds
        )
        waiting = [s for s in self.inside.values() if s.waiting]
        for number, batch in enumerate(batches, 1):
            later = [s for each in batches[number:] for s in each.samples]
            self.check_batch(batch, draining, [*later, *waiting])
        if len(batches) > most:
            assert seconds
            assert sum(batch.rows for batch in batches[:-1]) < self.policy.max_rows
        if len(batches) < most:
            self.check_no_batch(wait, draining, waiting)
        else:
            assert wait is None

    @precondition(lambda self: self.batcher is not None)
    @rule(level=st.integers(0, 2))
    def newest_below(self, level: int) -> None:
        found = self.batcher.newest_below(level)
        lower = [s for s in self.inside.values() if s.waiting and s.level > level]
        assert found is max(lower, key=lambda each: (each.level, self.place(each)), default=None)

    def place(self, one: Sample) -> tuple[bool, int]:
        """Its place among those of its level."""
        return one.late, one.data_id

    def in_order(self, samples: list[Sample]) -> list[Sample]:
        """Of each level the first; of these the earliest, and so on."""
        left, ordered = sorted(samples, key=self.place), []
        while left:
            firsts = {each.level: each for each in reversed(left)}
            ranks = [(s.arrived + n * self.policy.ageing, n) for n, s in firsts.items()]
            ordered.append(firsts[min(ranks)[1]])
            left.remove(ordered[-1])
        return ordered

    def check_no_batch(self, answer: float | None, draining: bool, waiting: list[Sample]) -> None:
        if answer is None:
            assert not [s for s in waiting if s.deadline > self.now]
        else:
            assert answer > self.now
            assert self.policy.window is not None
            assert not draining
            for one in waiting:
                assert self.now < one.arrived + self.policy.window
                assert answer <= one.arrived + self.policy.window

    def check_batch(self, batch: Batch, draining: bool, still: list[Sample]) -> None:
        assert batch.samples
        assert batch.rows == sum(s.rows for s in batch.samples)
        before = batch.rows - batch.samples[-1].rows
        assert batch.rows <= self.policy.max_rows or (
            before < self.policy.max_rows if self.policy.overrun else before == 0
        )
        assert len({s.key for s in batch.samples}) == 1
        first = batch.samples[0]
        for one in batch.samples:
            assert one.deadline > self.now, "nothing expired is dispatched"
            assert one.data_id not in self.left, "every sample leaves exactly once"
            assert self.inside.pop(one.data_id) is one
            self.left.add(one.data_id)
        if self.policy.window is not None and not draining:
            due = [
                s for s in [*batch.samples, *still] if self.now >= s.arrived + self.policy.window
            ]
            due = [s for s in self.in_order(due) if s.deadline > self.now]
            assert not due or due[0].key == first.key, "whoever is due goes before anybody else"
        alike = [s for s in still if s.key == batch.samples[0].key and s not in batch.samples]
        alike = [s for s in alike if s.deadline > self.now]
        ordered = self.in_order([*batch.samples, *alike])
        if isinstance(self.batcher, Learned) and self.policy.in_order:
            self.check_chosen(batch, alike)
            return
        assert ordered[0] is first, "nobody of the same key is overtaken"
        assert [s for s in ordered if s in batch.samples] == batch.samples, "the order within a key"
        self.check_sizes(batch, ordered[: ordered.index(batch.samples[-1])])
        if batch.reason is CloseReason.WINDOW and self.policy.in_order:
            assert self.now >= batch.samples[0].arrived + self.policy.window
        if batch.reason is CloseReason.DRAIN:
            assert draining

    def check_chosen(self, batch: Batch, alike: list[Sample]) -> None:
        assert batch.data_ids == sorted(batch.data_ids), "the order within a batch"
        sizes: Any = None
        for one in sorted(batch.samples, key=lambda each: each.shapes):
            if self.policy.join is not None:
                sizes = one.shapes if sizes is None else self.policy.join(sizes, one.shapes)
                assert sizes is not None
        for one in alike:
            self.passed[one.data_id] += sum(s.data_id > one.data_id for s in batch.samples)
            assert self.passed[one.data_id] < Learned.most_passed

    def check_sizes(self, batch: Batch, before: list[Sample]) -> None:
        skipped = [s for s in before if s not in batch.samples]
        if self.policy.join is None:
            assert skipped == []
            return
        sizes = batch.samples[0].shapes
        for one in [*before, batch.samples[-1]][1:]:
            joined = self.policy.join(sizes, one.shapes)
            assert (joined is None) == (one in skipped), "only those that do not fit are passed by"
            sizes = joined or sizes

    @invariant()
    def invariants_hold(self) -> None:
        if self.batcher is not None:
            self.batcher.check_invariants()
            assert len(self.batcher) == sum(s.waiting for s in self.inside.values())
            for one in self.inside.values():
                if not one.waiting:  # a learned queue drops what would be late
                    assert one.arrived <= one.dropped <= self.now
                    assert one.deadline <= one.dropped or isinstance(self.batcher, LearnedBatcher)


TestAnyInterleaving = AnyInterleaving.TestCase
