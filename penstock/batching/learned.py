"""The queue of an op that has learned what its batches cost: batches are as large as pays.

It has the contract of Batcher, and decides two things otherwise, once the costs are known:

- **Who runs together.** Of equal requests as many as make a request cheapest, and of numbers that
  are as good as equal the smallest. Padded requests: the best partition of the first
  ``MOST_PASSED`` into batches of neighbours in size, of which the batch with the oldest request
  runs first. A batch of one is a batch. What arrives meanwhile is in the next partition, so a
  request is passed by fewer than ``MOST_PASSED`` that came later.
- **Whether it waits**, with a window: only while one more request is expected so soon that the
  fixed cost that sharing saves is larger than the time that all who wait for it lose.

Of ``EXPLORE`` choices one has another size, so that costs stay known on both sides of what is
believed to be best. Samples of several priorities, and policies that delay, are batched as by
Batcher.
"""

from __future__ import annotations

from collections import deque
from typing import Any, Final

from penstock.batching.batcher import Batcher, BatchPolicy, Group
from penstock.batching.costs import BatchCosts
from penstock.batching.partition import CostTable, best_sizes, partition
from penstock.request import Batch, CloseReason, Sample

MOST_PASSED: Final = 64
"""Samples that are divided into batches at once: some 100 us. A guess."""
EXPLORE: Final = 32
HAND_OVER: Final = 30e-6
"""Seconds that a batch costs beside its run time, in the engine's loop and on the way to the worker
and back. Measured with padded texts and a thread worker: 59 us more a request one by one than in
batches of 30, of which a hand-over of several small batches saves about half."""
_SMOOTHING: Final = 0.1
_PATIENCE: Final = 3.0
"""Usual distances of arrivals after which nobody more is expected."""


class LearnedBatcher(Batcher):
    """See the module."""

    most_passed = MOST_PASSED

    def __init__(self, policy: BatchPolicy, costs: BatchCosts | None = None) -> None:
        super().__init__(policy, costs)
        self._table: CostTable | None = None
        self._table_of = -1  # the version of the costs
        self._best: list[int] | None = None  # the best size with so many rows waiting
        self._choices = 0
        self._plans: dict[Any, deque[list[Sample]]] = {}  # by key: batches that are to run next
        self._gap: float | None = None  # usual seconds between two arrivals
        self._newest = 0.0  # the time of the latest arrival

    def offer(self, sample: Sample, now: float) -> None:
        """As ``Batcher.offer``."""
        super().offer(sample, now)
        gap = now - self._newest
        self._newest = now
        usual = self._gap
        self._gap = gap if usual is None else usual + _SMOOTHING * (gap - usual)

    def poll(self, now: float, *, draining: bool = False) -> Batch | float | None:
        """As ``Batcher.poll``."""
        polled = super().poll(now, draining=draining)
        if polled is None or isinstance(polled, Batch) or not self.policy.in_order:
            return polled
        head = self._head(now)  # there is one, and it waits for company
        assert head is not None
        until = self._worth_waiting(head)
        if until is None or until > now:
            return polled if until is None else min(until, polled)
        batch = self._cut(head.key, self._groups[head.key], CloseReason.IDLE_SLOT, now)
        return self.poll(now) if batch is None else batch

    def _known(self) -> CostTable | None:
        """What batches cost; None if that is not known yet."""
        version = self.costs.version
        if version != self._table_of:
            self._table_of, self._best = version, None
            self._table = self.costs.table(self.policy.max_rows, HAND_OVER)
        return self._table

    def _worth_waiting(self, head: Sample) -> float | None:
        """Until when it pays to wait for company of ``head``; None: it is not known."""
        table, gap = self._known(), self._gap
        if table is None or gap is None or len(table.fixed) < 3:
            return None
        width = 0 if self.policy.join is None else head.elements / head.rows
        one = table.fixed[1] + table.each[1] * width
        two = table.fixed[2] + 2 * table.each[2] * width
        if two == float("inf"):
            return None
        if self._groups[head.key].rows * gap >= 2 * one - two:
            return 0.0
        return self._newest + _PATIENCE * gap

    def _cut(
        self, key: Any, group: Group, reason: CloseReason, now: float, most: int | None = None
    ) -> Batch | None:
        if group.waiting == 1 or not self.policy.in_order:
            return super()._cut(key, group, reason, now)
        if self._known() is None:
            waiting = min(group.rows, self.policy.max_rows)
            half = max(1, waiting // 2) if self._explores() else None
            return super()._cut(key, group, reason, now, half)
        if self.policy.join is not None:
            return self._next_planned(key, group, reason, now)
        return super()._cut(key, group, reason, now, self._best_size(group.rows))

    def _refile(self, key: Any, group: Group) -> None:
        super()._refile(key, group)
        if not group.waiting:
            self._plans.pop(key, None)

    def _explores(self) -> bool:
        self._choices += 1
        return self._choices % EXPLORE == 0

    def _best_size(self, waiting: int) -> int:
        """The number of rows of a batch of equal requests, of those that wait."""
        table = self._known()
        assert table is not None
        most = self.policy.max_rows
        best = self._best
        if best is None:
            best = self._best = best_sizes(table.fixed.__getitem__, len(table.fixed) - 1)
        size = best[min(waiting, len(best) - 1)]
        if self._explores():
            return min(2 * size, most) if 2 * size <= waiting else max(1, size // 2)
        return size

    def _next_planned(
        self, key: Any, group: Group, reason: CloseReason, now: float
    ) -> Batch | None:
        plan = self._plans.get(key)
        taken: list[Sample] = []
        while not taken and group.waiting:
            if not plan:
                plan = self._plans[key] = self._planned(group)
            for sample in plan.popleft():
                if sample.waiting:
                    self._leaves(sample, group)
                    if sample.deadline > now:
                        taken.append(sample)
        if not plan:
            self._plans.pop(key, None)
        self._refile(key, group)
        self._drop_gone()
        if not taken:
            return None
        rows = sum(sample.rows for sample in taken)
        return Batch(taken, CloseReason.FULL if rows >= self.policy.max_rows else reason, now, rows)

    def _planned(self, group: Group) -> deque[list[Sample]]:
        """The batches of the first samples, the one with the oldest first; none is empty."""
        queue = group.samples
        assert isinstance(queue, deque)
        table, join = self._known(), self.policy.join
        assert table is not None
        assert join is not None
        first: list[Sample] = []
        while queue and len(first) < self.most_passed:
            sample = queue.popleft()
            if sample.waiting:
                first.append(sample)
        queue.extendleft(reversed(first))
        order = {id(sample): place for place, sample in enumerate(first)}
        first.sort(key=_width)
        rows, widths = [sample.rows for sample in first], list(map(_width, first))
        most = self.policy.max_rows
        ends = partition(rows, widths, table, most)
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
            batch.sort(key=lambda sample: order[id(sample)])
        batches.sort(key=lambda batch: order[id(batch[0])])
        return deque(batches)


def _width(sample: Sample) -> float:
    return sample.elements / sample.rows
