"""The queue of one op: decides which samples form a batch, and when.

It has no threads, sockets or clocks, and does not read samples; time is an argument.

Guarantees:
    - every offered sample leaves exactly once: in a Batch, by ``cancel``, or dropped because its
      deadline has passed (the engine, which watches deadlines, answers it), and has then the time
      as ``dropped``;
    - a batch holds at most ``max_rows`` rows (a single sample larger than that runs alone; with
      ``overrun`` the last one may go beyond), one key only, in order of arrival; with several
      priority levels in the order of ``Lanes``;
    - with a window and several levels, a sample waits at most for its window behind full batches
      of other keys that have lower ones;
    - with ``join`` a sample joins if its sizes fit the batch's; one that does not keeps its place,
      and starts another batch;
    - with a slot idle (that is: whenever ``poll`` is called) no sample waits past its arrival plus
      the window, and without a window none waits at all;
    - samples of other keys never delay a sample: a full group goes ahead of an older one that
      still waits to fill;
    - nothing whose deadline has passed is put into a batch;
    - at most ``capacity`` samples wait; one more is refused, never blocked.

Every call is O(1) amortised; with ``join`` a batch passes by a bounded number of samples. Sources:
TensorFlow Serving's ``batch_scheduler.h`` (the shape of the contract), ``docs/compatibility.md``
(window semantics).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from heapq import heappop, heappush
from typing import Any, TypeAlias

from penstock.batching.costs import BatchCosts
from penstock.batching.lanes import Lanes
from penstock.errors import ServiceBusy
from penstock.request import Batch, CloseReason, Sample

_FULL = CloseReason.FULL  # a lookup in an Enum costs more than the batch it closes


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchPolicy:
    """How an op's samples are batched.

    Attributes:
        max_rows: the maximum number of rows in a batch (``batch_size``).
        window: seconds that the oldest sample may wait for others; None means that it never waits.
        capacity: the maximum length of the queue; None means unbounded.
        overrun: whether a sample joins a batch that it makes longer than ``max_rows``.
        join: computes the sizes of a batch after a sample joins it; None if the sample may not.
            Without it, samples of one key always join.
        levels: the number of priority levels; samples have a ``level`` below it.
        ageing: seconds by which each level goes behind the one above it; see ``Lanes``.
        delays: whether samples can become late; see ``delay``.
        learned: whether batches are as large as pays, see ``penstock.batching.learned``; else as
            large as they can be.
    """

    max_rows: int = 1
    window: float | None = None
    capacity: int | None = None
    overrun: bool = False
    join: Callable[[Any, Any], Any] | None = None
    levels: int = 1
    ageing: float = 0.0
    delays: bool = False
    learned: bool = False

    @property
    def in_order(self) -> bool:
        """Whether samples leave in order of arrival."""
        return self.levels == 1 and not self.delays


_Line: TypeAlias = deque[Sample] | Lanes


def _lines_of(policy: BatchPolicy) -> Callable[[Iterable[Sample]], _Line]:
    """What makes the lines of waiting samples."""
    return deque if policy.in_order else partial(Lanes, policy.levels, policy.ageing)


_MOST_SKIPPED = 128
"""Most samples that are skipped, because they do not fit, in the search for a batch: some 100 us. A
guess."""


class FifoQueue:
    """The queue of an op that runs one sample at a time (``max_rows`` 1, the default).

    It has the contract of Batcher. Keys and windows do not matter here, so samples leave in order
    of arrival, which costs a fraction of a Batcher's work.
    """

    costs: BatchCosts | None = None
    """None: a batch of one is all that it forms."""

    def __init__(self, policy: BatchPolicy) -> None:
        self.policy = policy
        self.capacity = policy.capacity
        self._line = _lines_of(policy)
        self._samples = self._line(())
        self._cancelled = 0  # removed when they reach the front

    def __len__(self) -> int:
        return len(self._samples) - self._cancelled

    @property
    def full(self) -> bool:
        """Whether the next ``offer`` would be refused."""
        return self.capacity is not None and len(self) >= self.capacity

    def offer(self, sample: Sample, now: float) -> None:
        """As ``Batcher.offer``."""
        if self.capacity is not None and len(self) >= self.capacity:
            raise ServiceBusy.in_queue("the queue in front of an op is full")
        sample.arrived = now
        sample.waiting = True
        self._samples.append(sample)

    def cancel(self, sample: Sample) -> None:
        """As ``Batcher.cancel``."""
        sample.waiting = False
        self._cancelled += 1
        if self._cancelled > len(self) + 64:
            self._samples = self._line(s for s in self._samples if s.waiting)
            self._cancelled = 0

    def delay(self, sample: Sample) -> None:
        """As ``Batcher.delay``."""
        self._samples.remove(sample)
        sample.late = True
        self._samples.append(sample)

    def newest_below(self, level: int) -> Sample | None:
        """As ``Batcher.newest_below``."""
        samples = self._samples
        if not isinstance(samples, Lanes):
            return None
        before = len(samples)
        found = samples.newest_below(level)
        self._cancelled -= before - len(samples)
        return found

    def poll(self, now: float, *, draining: bool = False) -> Batch | float | None:
        """As ``Batcher.poll``; never returns a time, since no sample waits for others."""
        batches, _ = self.poll_several(1, now)
        return batches[0] if batches else None

    def poll_several(
        self, most: int, now: float, *, draining: bool = False, seconds: float = 0.0
    ) -> tuple[list[Batch], float | None]:
        """As ``Batcher.poll_several``; never returns a time."""
        samples = self._samples
        batches: list[Batch] = []
        while samples and len(batches) < most:
            sample = samples.popleft()
            if not sample.waiting:
                self._cancelled -= 1
                continue
            sample.waiting = False
            if sample.deadline > now:
                batches.append(Batch([sample], _FULL, now, sample.rows))
            else:
                sample.dropped = now
        return batches, None

    def check_invariants(self) -> None:
        """As ``Batcher.check_invariants``."""
        assert self._cancelled == sum(not s.waiting for s in self._samples)
        assert self._cancelled <= len(self) + 65


class Group:
    """Waiting samples of one key, in the order of the line.

    Attributes:
        samples: cancelled ones are removed when they reach the front.
        waiting: the number of samples that are not cancelled.
        rows: the sum of their rows.
        urgent: the number of those whose deadline is before the end of their window.
        deadlines: a heap of (deadline, number, sample) of the urgent ones; some may have left.
        ready: whether the group is in ``Batcher._ready``.
    """

    __slots__ = ("deadlines", "ready", "rows", "samples", "urgent", "waiting")

    def __init__(self, samples: _Line) -> None:
        self.samples = samples
        self.waiting = 0
        self.rows = 0
        self.urgent = 0
        self.deadlines: list[tuple[float, int, Sample]] = []
        self.ready = False


class Batcher:
    """One op's queue. Called from the engine's loop only.

    Args:
        costs: what its batches cost; the stage teaches them.
    """

    def __init__(self, policy: BatchPolicy, costs: BatchCosts | None = None) -> None:
        self.policy = policy
        self.costs = BatchCosts() if costs is None else costs
        self._groups: dict[Any, Group] = {}
        self._line = _lines_of(policy)
        self._order = self._line(())  # all keys, by arrival; some may have left
        self._ready: deque[Any] = deque()  # keys of groups that are full or urgent
        self._waiting = 0
        self._offered = 0  # makes the entries of a heap unique

    def __len__(self) -> int:
        return self._waiting

    @property
    def full(self) -> bool:
        """Whether the next ``offer`` would be refused."""
        capacity = self.policy.capacity
        return capacity is not None and self._waiting >= capacity

    def offer(self, sample: Sample, now: float) -> None:
        """Queue a sample, or refuse it at once; never blocks.

        Args:
            sample: rows >= 1; kept by reference. A sample is offered once in its life.
            now: monotonic seconds, not before any earlier call's.

        Raises:
            ServiceBusy: ``capacity`` samples wait already; a later retry may succeed.
        """
        capacity = self.policy.capacity
        if capacity is not None and self._waiting >= capacity:
            raise ServiceBusy.in_queue("the queue in front of an op is full")
        sample.arrived = now
        sample.waiting = True
        key = sample.key
        group = self._groups.get(key)
        if group is None:
            group = self._groups[key] = Group(self._line(()))
        group.samples.append(sample)
        group.waiting += 1
        group.rows += sample.rows
        self._order.append(sample)
        self._waiting += 1
        if self.policy.window is not None:
            if self._is_urgent(sample):
                group.urgent += 1
                self._offered += 1
                heappush(group.deadlines, (sample.deadline, self._offered, sample))
            self._mark_ready(key, group)

    def cancel(self, sample: Sample) -> None:
        """Remove a waiting sample."""
        group = self._groups[sample.key]
        self._leaves(sample, group)
        self._refile(sample.key, group)

    def delay(self, sample: Sample) -> None:
        """A waiting sample becomes late: it goes behind all others of its level that are not. Its
        policy must have ``delays``.
        """
        lines = self._order, self._groups[sample.key].samples
        for line in lines:
            line.remove(sample)
        sample.late = True
        for line in lines:
            line.append(sample)

    def newest_below(self, level: int) -> Sample | None:
        """The newest waiting sample of the lowest priority level, if that is below ``level``."""
        order = self._order
        return order.newest_below(level) if isinstance(order, Lanes) else None

    def poll(self, now: float, *, draining: bool = False) -> Batch | float | None:
        """The next batch for an idle slot.

        Args:
            now: monotonic seconds.
            draining: no more samples will come, so none waits for others.

        Returns:
            a Batch to run; or the time, later than ``now``, at which to poll again; or None when
            the queue is empty.
        """
        window = self.policy.window
        while (head := self._head(now)) is not None:
            if head.deadline <= now:
                self.cancel(head)  # otherwise its window would be used for the next sample
                head.dropped = now
                continue
            if draining:
                reason = CloseReason.DRAIN
            elif window is None:
                reason = CloseReason.IDLE_SLOT
            elif now >= head.arrived + window:
                reason = (
                    CloseReason.WINDOW
                )  # before any full group: a busy key must not starve others
            elif self._ready:
                key = self._ready[0]
                # A sample whose deadline has passed no longer makes its group urgent.
                if not self._dropped_late(key, now):
                    batch = self._cut_ready(key, now)
                    if batch is not None:
                        return batch
                continue
            else:
                return head.arrived + window
            batch = self._cut(head.key, self._groups[head.key], reason, now)
            if batch is not None:
                return batch
        return None

    def poll_several(
        self, most: int, now: float, *, draining: bool = False, seconds: float = 0.0
    ) -> tuple[list[Batch], float | None]:
        """The next batches for one hand-over.

        Args:
            most: of them.
            now: as for ``poll``.
            draining: as for ``poll``.
            seconds: where each batch's run time is known, there may be more of them, up to so many
                seconds and as many rows as one batch may have.

        Returns:
            the batches; and, where there are fewer than ``most``, what ``poll`` returned last: the
            time at which to poll again, or None.
        """
        batches: list[Batch] = []
        while len(batches) < most:
            polled = self.poll(now, draining=draining)
            if not isinstance(polled, Batch):
                return batches, polled
            batches.append(polled)
        return batches, None

    def _dropped_late(self, key: Any, now: float) -> bool:
        """Remove the group's samples whose deadline has passed. Returns whether there were any."""
        group = self._groups[key]
        deadlines, before = group.deadlines, group.waiting
        while deadlines and (deadlines[0][0] <= now or not deadlines[0][2].waiting):
            sample = heappop(deadlines)[2]
            if sample.waiting:
                self._leaves(sample, group)
                sample.dropped = now
        if group.waiting == before:
            return False
        self._refile(key, group)
        return True

    def _cut_ready(self, key: Any, now: float) -> Batch | None:
        group = self._groups[key]
        full = group.rows >= self.policy.max_rows
        return self._cut(key, group, CloseReason.FULL if full else CloseReason.DEADLINE, now)

    def check_invariants(self) -> None:
        """Check the counters against the samples; for tests.

        Raises:
            AssertionError: they disagree.
        """
        living = [s for s in self._order if s.waiting]
        assert len(living) == self._waiting
        for key, group in self._groups.items():
            members = [s for s in group.samples if s.waiting]
            assert members == [s for s in living if s.key == key]
            assert len(members) == group.waiting > 0
            assert group.rows == sum(s.rows for s in members)
            assert group.ready == (key in self._ready)
            if self.policy.window is not None:
                assert group.urgent == sum(map(self._is_urgent, members))
                assert group.ready == (group.rows >= self.policy.max_rows or group.urgent > 0)
        assert sum(g.waiting for g in self._groups.values()) == self._waiting
        assert len(self._order) <= 2 * self._waiting + 65

    def _is_urgent(self, sample: Sample) -> bool:
        window = self.policy.window
        return window is not None and sample.deadline <= sample.arrived + window

    def _head(self, now: float) -> Sample | None:
        order = self._order
        if isinstance(order, Lanes):
            return order.head(now, self.policy.window)
        while order:
            if order[0].waiting:
                return order[0]
            order.popleft()
        return None

    def _leaves(self, sample: Sample, group: Group) -> None:
        sample.waiting = False
        self._waiting -= 1
        group.waiting -= 1
        group.rows -= sample.rows
        if group.urgent and self._is_urgent(sample):
            group.urgent -= 1

    def _cut(
        self, key: Any, group: Group, reason: CloseReason, now: float, most: int | None = None
    ) -> Batch | None:
        """Take a batch from the front of the group, of at most ``most`` rows; None if all deadlines
        there have passed.
        """
        most = self.policy.max_rows if most is None else most
        overrun, join = self.policy.overrun, self.policy.join
        queue = group.samples
        taken: list[Sample] = []
        passed: list[Sample] = []
        sizes: Any = None
        both: Any = None
        rows = 0
        while queue and len(passed) < _MOST_SKIPPED:
            sample = queue[0]
            if sample.waiting:
                if sample.deadline <= now:
                    self._leaves(sample, group)
                    sample.dropped = now
                elif join is not None and taken and (both := join(sizes, sample.shapes)) is None:
                    passed.append(sample)
                elif taken and rows + sample.rows > most and not overrun:
                    reason = CloseReason.SHAPE
                    break
                else:
                    if join is not None:
                        sizes = both if taken else sample.shapes
                    sample.waiting = False
                    taken.append(sample)
                    rows += sample.rows
                    if group.urgent and self._is_urgent(sample):
                        group.urgent -= 1
            queue.popleft()
            if rows >= most:
                reason = CloseReason.FULL
                break
        self._waiting -= len(taken)
        group.waiting -= len(taken)
        group.rows -= rows
        queue.extendleft(reversed(passed))
        self._refile(key, group)
        self._drop_gone()
        return Batch(taken, reason, now, rows) if taken else None

    def _drop_gone(self) -> None:
        """Drop the samples at the front of the line that have left."""
        order = self._order
        while order and not order[0].waiting:
            order.popleft()

    def _refile(self, key: Any, group: Group) -> None:
        """Update a group's place in ``_ready`` and ``_groups`` after samples have left it."""
        if group.ready:
            group.ready = False
            self._ready.remove(key)
        if group.waiting == 0:
            del self._groups[key]
        elif self.policy.window is not None:
            self._mark_ready(key, group)
        # Samples that have left are dropped at the front, or all at once when they outnumber those
        # that wait, so that memory stays in proportion to the queue's length.
        if len(self._order) > 2 * self._waiting + 64:
            self._order = self._line(s for s in self._order if s.waiting)
            for other in self._groups.values():
                other.samples = self._line(s for s in other.samples if s.waiting)

    def _mark_ready(self, key: Any, group: Group) -> None:
        if not group.ready and (group.urgent or group.rows >= self.policy.max_rows):
            group.ready = True
            self._ready.append(key)
