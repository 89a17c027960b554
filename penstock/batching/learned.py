"""The queue of an op that has learned what its batches cost: batches are as large as pays.

It has the contract of Batcher, and decides three things otherwise, once the costs are known:

- **Who runs together.** Equal requests: as many as make all that wait cheapest, and of numbers that
  are as good as equal the smallest. Padded requests: the best partition of the first
  ``MOST_PASSED`` into batches of neighbours in size, of which the batch with the oldest request
  runs first. A batch of one is a batch. What arrives meanwhile is in the next partition, so a
  request is passed by fewer than ``MOST_PASSED`` that came later.
- **Which deadlines are kept.** Where deadlines differ, the earliest one runs first, among the first
  ``MOST_PASSED``. A request that cannot be answered in time any more, not even by a run as quick as
  the quickest, is not run if another one waits: its run would be in vain. It is dropped like one
  whose deadline has passed. A batch is smaller if its most urgent request would be late otherwise.
- **Whether it waits**, with a window: only while one more request is expected so soon that the
  fixed cost that sharing saves is larger than the time that all who wait for it lose; or while the
  ops after it have work for longer than its batch takes, so that nobody loses time.

Until the costs are known, the sizes of batches are powers of two, so that a few batches tell them.
Later, of ``EXPLORE`` choices one is larger than the best, if so many wait, and more often at first;
smaller ones occur whenever fewer wait. A size that is known to be much worse is tried less often.
Samples of several priorities, and policies that delay, are batched as by Batcher.

A hand-over to a worker costs more than a small batch gains, so it carries several of them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from itertools import takewhile
from math import ceil
from operator import mul
from typing import Any, Final

from penstock.batching.batcher import Batcher, BatchPolicy, Group
from penstock.batching.costs import BatchCosts
from penstock.batching.partition import SLACK, BestSizes, CostTable, partition
from penstock.request import Batch, CloseReason, Sample

MOST_PASSED: Final = 64
"""Samples that are divided into batches at once: some 100 us. A guess."""
EXPLORE: Final = 32
_NEW: Final = 4
"""The first ``_NEW`` * ``EXPLORE`` choices explore so many times as often."""
HAND_OVER: Final = 30e-6
"""Seconds that a batch costs beside its run time, in the engine's loop and on the way to the worker
and back. Measured with padded texts and a thread worker: 59 us more a request one by one than in
batches of 30, of which a hand-over of several small batches saves about half."""
_LARGER: Final = 2.0, 1.5, 1.25
"""Sizes that are tried, in turn, as multiples of the best one: beyond a jump, and before it."""
_WORSE: Final = 1.3
_SELDOM: Final = 8
"""A size with which a request costs ``_WORSE`` times the best is tried so many times less often."""
_SMOOTHING: Final = 0.1
_DIFFERS: Final = 0.01
"""Seconds by which a deadline must be before an earlier request's to count; below, the order of
arrival is as good."""
_MIXED_FOR: Final = 1024
"""Samples for which deadlines are compared after one that differs."""
_PATIENCE: Final = 3.0
"""Usual distances of arrivals after which nobody more is expected."""
_LEAST_WAIT: Final = 1e-3
"""Seconds; for less than that it does not wait for the ops after it: each wait is a timer."""


class LearnedBatcher(Batcher):
    """See the module.

    Attributes:
        ahead: for how many seconds the ops after this one have work without it; 0 if one of them
            may be idle, or that is not known. None: as if always 0.
    """

    most_passed = MOST_PASSED
    ahead: Callable[[], float] | None = None

    def __init__(self, policy: BatchPolicy, costs: BatchCosts | None = None) -> None:
        super().__init__(policy, costs)
        self._table: CostTable | None = None
        self._table_of = -1  # the version of the costs
        self._best: BestSizes | None = None
        self._joint: CostTable | None = None  # the costs by which padded requests are joined
        self._choices = self._tried = self._turn = 0
        self._plans: dict[Any, deque[list[Sample]]] = {}  # by key: batches that are to run next
        self._gap: float | None = None  # usual seconds between two arrivals
        self._newest = 0.0  # the time of the latest arrival
        self._latest = 0.0  # the latest deadline
        self._mixed_until = 0  # up to this turn deadlines are compared

    def offer(self, sample: Sample, now: float) -> None:
        """As ``Batcher.offer``."""
        super().offer(sample, now)
        gap = now - self._newest
        self._newest = now
        usual = self._gap
        self._gap = gap if usual is None else usual + _SMOOTHING * (gap - usual)
        turn = sample.turn = self._turn
        self._turn += 1
        if sample.deadline < self._latest - _DIFFERS:
            self._mixed_until = turn + _MIXED_FOR
        elif sample.deadline > self._latest:
            self._latest = sample.deadline

    def poll(self, now: float, *, draining: bool = False) -> Batch | float | None:
        """As ``Batcher.poll``."""
        polled = super().poll(now, draining=draining)
        if polled is None or isinstance(polled, Batch) or not self.policy.in_order:
            return polled
        head = self._head(now)  # there is one, and it waits for company
        assert head is not None
        until = self._worth_waiting(head, now)
        if until is None or until > now:
            return polled if until is None else min(until, polled)
        batch = self._cut(head.key, self._groups[head.key], CloseReason.IDLE_SLOT, now)
        return self.poll(now) if batch is None else batch

    def poll_several(
        self, most: int, now: float, *, draining: bool = False, seconds: float = 0.0
    ) -> tuple[list[Batch], float | None]:
        """As ``Batcher.poll_several``."""
        batches, wait = super().poll_several(most, now, draining=draining)
        left = seconds - sum(map(self._predicted, batches))
        rows = sum(batch.rows for batch in batches)
        while len(batches) >= most and left > 0 and rows < self.policy.max_rows:
            if self._turn < self._mixed_until:  # one with an earlier deadline may arrive
                break
            polled = self.poll(now, draining=draining)
            if not isinstance(polled, Batch):
                break
            batches.append(polled)
            rows += polled.rows
            left -= self._predicted(polled)
        return batches, wait

    def _predicted(self, batch: Batch) -> float:
        """Seconds; 0 while nothing is known, so that requests which arrived together are answered
        together, and their clients' next ones can share a batch; infinite for an unknown size.
        """
        table = self._known()
        if table is None:
            return 0.0
        if batch.rows >= len(table.fixed):
            return float("inf")
        width = 0 if self.policy.join is None else max(map(_width, batch.samples))
        return table.fixed[batch.rows] + table.each[batch.rows] * width * batch.rows

    def _known(self) -> CostTable | None:
        """What batches cost; None if that is not known yet."""
        version = self.costs.version
        if version != self._table_of:
            self._table_of, self._best, self._joint = version, None, None
            self._table = self.costs.table(self.policy.max_rows, HAND_OVER)
        return self._table

    def _worth_waiting(self, head: Sample, now: float) -> float | None:
        """Until when it pays to wait for company of ``head``; None: it is not known."""
        table, gap = self._known(), self._gap
        if gap is None:
            return None
        if table is None:
            return self._worth_waiting_at_all(head, gap)
        if len(table.fixed) < 3:
            return None
        width = 0 if self.policy.join is None else head.elements / head.rows
        one = table.fixed[1] + table.each[1] * width
        two = table.fixed[2] + 2 * table.each[2] * width
        if two == float("inf"):
            return None
        rows = self._groups[head.key].rows
        not_needed = self._not_needed(table, rows, width, now)
        if rows * gap >= 2 * one - two:
            return not_needed
        return max(not_needed, self._newest + _PATIENCE * gap)

    def _worth_waiting_at_all(self, head: Sample, gap: float) -> float | None:
        """The same while batches of one size only are known, such as those of a single client:
        sharing a run saves less than the run of ``head`` alone takes.
        """
        elements = 0 if self.policy.join is None else head.elements
        alone = self.costs.seconds(head.rows, elements)
        if alone is None:
            return None
        if self._groups[head.key].waiting * gap >= alone:
            return 0.0
        return self._newest + _PATIENCE * gap

    def _not_needed(self, table: CostTable, rows: int, width: float, now: float) -> float:
        """Until when the results of a batch would only wait for the ops after this one; 0 if they
        would not, or if nobody more would join it.
        """
        if self.ahead is None or rows >= len(table.fixed):
            return 0.0
        if self.policy.join is None and rows >= self._sizes(table).of(self.policy.max_rows):
            return 0.0
        if self._turn < self._mixed_until:  # it may be the most urgent one there, too
            return 0.0
        spare = self.ahead() - table.fixed[rows] - table.each[rows] * rows * width
        return now + spare if spare >= _LEAST_WAIT else 0.0

    def _cut(
        self, key: Any, group: Group, reason: CloseReason, now: float, most: int | None = None
    ) -> Batch | None:
        if group.waiting == 1 or not self.policy.in_order:
            return super()._cut(key, group, reason, now)
        if self._known() is None:
            return super()._cut(key, group, reason, now, self._size_to_try())
        self._drop_hopeless(group, now)
        if self.policy.join is not None:
            return self._next_planned(key, group, reason, now)
        size = self._best_size(group.rows)
        if self._turn < self._mixed_until:
            taken = self._earliest(group, size, now)
            return self._taken(key, group, taken, reason, now)
        batch = super()._cut(key, group, reason, now, self._in_time(size, group.samples[0], now))
        if batch is not None and batch.rows < self.policy.max_rows and not group.waiting:
            batch.reason = reason  # nobody else waits: more would have joined it
        return batch

    def _drop_hopeless(self, group: Group, now: float) -> None:
        """Drop those at the front that would be answered too late, but not the last one: its run
        shows whether the costs have changed.
        """
        queue = group.samples
        while group.waiting > 1:
            first = queue[0]
            if first.waiting:
                if self._may_be_in_time(first, now):
                    return
                self._leaves(first, group)
                first.dropped = now
            queue.popleft()

    def _may_be_in_time(self, sample: Sample, now: float) -> bool:
        table = self._known()
        assert table is not None
        rows = sample.rows
        if rows >= len(table.fixed):
            return sample.deadline > now
        run = table.fixed[rows] - HAND_OVER
        if self.policy.join is not None:
            run += table.each[rows] * sample.elements
        return sample.deadline > now + self.costs.quick * run

    def _in_time(self, size: int, sample: Sample, now: float) -> int:
        """The rows of a batch that is small enough for a sample to be answered in time."""
        table = self._known()
        assert table is not None
        while (
            size > sample.rows
            and size < len(table.fixed)
            and sample.deadline < now + table.fixed[size]
        ):
            size = max(sample.rows, size // 2)
        return size

    def _earliest(self, group: Group, size: int, now: float) -> list[Sample]:
        """A batch of those with the earliest deadlines, in order of arrival."""
        first = [each for each in self._first_ones(group) if each.deadline > now]
        in_time = [each for each in first if self._may_be_in_time(each, now)]
        if in_time:
            first = sorted(in_time, key=_deadline)
            size = self._in_time(size, first[0], now)
        taken: list[Sample] = []
        rows = 0
        for sample in first:
            if taken and rows + sample.rows > size:
                break
            taken.append(sample)
            rows += sample.rows
        taken.sort(key=_turn)
        return taken

    def _first_ones(self, group: Group) -> list[Sample]:
        """The waiting samples that may run next: none passes another one too often."""
        queue = group.samples
        while not queue[0].waiting:
            queue.popleft()
        end = queue[0].turn + self.most_passed
        return [each for each in takewhile(lambda each: each.turn < end, queue) if each.waiting]

    def _refile(self, key: Any, group: Group) -> None:
        super()._refile(key, group)
        if not group.waiting:
            self._plans.pop(key, None)

    def _size_to_try(self) -> int:
        """The rows of the next batch while costs are unknown: powers of two, in turn from below and
        from above, so that the first two batches tell most.
        """
        sizes = self.policy.max_rows.bit_length()
        turn = self._tried % sizes
        self._tried += 1
        return min(1 << (sizes - 1 - turn // 2 if turn % 2 else turn // 2), self.policy.max_rows)

    def _explores(self) -> bool:
        self._choices += 1
        often = self._choices <= _NEW * EXPLORE
        return self._choices % (EXPLORE // _NEW if often else EXPLORE) == 0

    def _best_size(self, waiting: int) -> int:
        """The number of rows of a batch of equal requests, of those that wait."""
        table = self._known()
        assert table is not None
        most = self.policy.max_rows
        size = self._sizes(table).of(waiting)
        largest = min(2 * size, waiting, most)
        if largest <= size or not self._explores():
            return size
        larger = _LARGER[self._choices * _NEW // EXPLORE % len(_LARGER)]
        other = min(largest, ceil(larger * size))
        fixed = table.fixed
        worse = self.costs.seen(other) and fixed[other] / other > _WORSE * fixed[size] / size
        if worse and self._choices % (_SELDOM * EXPLORE):
            return size
        return other

    def _sizes(self, table: CostTable) -> BestSizes:
        if self._best is None:
            self._best = BestSizes(table.fixed)
        return self._best

    def _next_planned(
        self, key: Any, group: Group, reason: CloseReason, now: float
    ) -> Batch | None:
        plan = self._plans.get(key)
        taken: list[Sample] = []
        while not taken and group.waiting:
            if not plan:
                plan = self._plans[key] = self._planned(group)
            taken = [each for each in plan.popleft() if each.waiting]
        if not plan:
            self._plans.pop(key, None)
        return self._taken(key, group, taken, reason, now)

    def _taken(
        self, key: Any, group: Group, samples: list[Sample], reason: CloseReason, now: float
    ) -> Batch | None:
        """The batch of samples that leave now; None if all their deadlines have passed."""
        for sample in samples:
            self._leaves(sample, group)
        self._refile(key, group)
        self._drop_gone()
        kept = [sample for sample in samples if sample.deadline > now]
        if len(kept) < len(samples):
            for sample in samples:
                if sample.deadline <= now:
                    sample.dropped = now
        if not kept:
            return None
        rows = sum(sample.rows for sample in kept)
        return Batch(kept, CloseReason.FULL if rows >= self.policy.max_rows else reason, now, rows)

    def _planned(self, group: Group) -> deque[list[Sample]]:
        """The batches of the first samples, the one with the oldest first; none is empty."""
        table, join = self._known(), self.policy.join
        assert table is not None
        assert join is not None
        if self._joint is None:
            self._joint = _with_slack(table)
        first = self._first_ones(group)
        first.sort(key=_width)
        rows, widths = [sample.rows for sample in first], list(map(_width, first))
        most = self.policy.max_rows
        ends = partition(rows, widths, self._joint, most)
        if self._explores():
            ends = ends[1::2] + ([] if len(ends) % 2 == 0 else ends[-1:])
        batches: list[list[Sample]] = []
        begin = 0
        for end in ends:
            taken: list[Sample] = []
            sizes: Any = None
            total = 0
            for sample in first[begin:end]:
                both = join(sizes, sample.shapes) if taken else sample.shapes
                if both is None or (taken and total + sample.rows > most):
                    batches.append(taken)
                    taken, both, total = [], sample.shapes, 0
                taken.append(sample)
                sizes = both
                total += sample.rows
            batches.append(taken)
            begin = end
        for batch in batches:
            batch.sort(key=_turn)
        if self._turn < self._mixed_until:
            batches.sort(key=lambda batch: min(map(_deadline, batch)))
        else:
            batches.sort(key=lambda batch: batch[0].turn)
        return deque(batches)


def _with_slack(table: CostTable) -> CostTable:
    """Costs by which two requests are joined only if that saves more than ``SLACK``."""
    more = [1.0, 1.0, *[1 + SLACK] * (len(table.fixed) - 2)]
    return CostTable(list(map(mul, table.fixed, more)), list(map(mul, table.each, more)))


def _turn(sample: Sample) -> int:
    return sample.turn


def _deadline(sample: Sample) -> float:
    return sample.deadline


def _width(sample: Sample) -> float:
    return sample.elements / sample.rows
