"""The order of samples of several priorities: lanes for each, and ageing between them.

A sample of priority level k (0 is the highest) counts as if it had arrived ``k * ageing`` seconds
later, and the earliest goes first. So a sample is overtaken only by those of higher levels that
arrive less than the difference of their levels times ``ageing`` after it: none waits for ever
behind higher ones. The order of two samples changes only if one of them becomes late.

A late sample (see ``QueuePolicy``) goes behind all others of its level, until none of them is
left, or its deadline passes.

Source: J. R. Jackson, "Some Problems in Queueing with Dynamic Priorities", Naval Research Logistics
Quarterly 7 (1960): service in order of arrival time plus urgency number. Late samples: Triton's
``ModelQueuePolicy``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from itertools import chain

from penstock.request import Sample


class Lanes:
    """Samples in the order above, with the methods of a deque that a queue uses.

    Args:
        levels: the number of priority levels.
        ageing: seconds of delay for each level below the highest.
        samples: the first ones, in order of arrival within each level.
    """

    __slots__ = ("_lanes", "_ranked")

    def __init__(self, levels: int, ageing: float, samples: Iterable[Sample] = ()) -> None:
        # Of each level two: of those that are in time, and of late ones.
        self._lanes: list[deque[Sample]] = [deque() for _ in range(2 * levels)]
        self._ranked = [
            (self._lanes[2 * level], self._lanes[2 * level + 1], level * ageing)
            for level in range(levels)
        ]
        for sample in samples:
            self.append(sample)

    def __len__(self) -> int:
        return sum(map(len, self._lanes))

    def __bool__(self) -> bool:
        return any(self._lanes)

    def __iter__(self) -> Iterator[Sample]:
        """All, level by level."""
        return chain.from_iterable(self._lanes)

    def __getitem__(self, index: int) -> Sample:
        """The first; ``index`` is 0."""
        return self._first_lane()[index]

    def append(self, sample: Sample) -> None:
        """Add one that has just arrived, or become late."""
        lane = self._lane_of(sample)
        if not sample.late:
            lane.append(sample)
            return
        place = len(lane)
        while place and lane[place - 1].arrived > sample.arrived:
            place -= 1
        lane.insert(place, sample)

    def popleft(self) -> Sample:
        """Remove the first."""
        return self._first_lane().popleft()

    def extendleft(self, samples: Iterable[Sample]) -> None:
        """Put removed ones back, the last one first."""
        for sample in samples:
            self._lane_of(sample).appendleft(sample)

    def remove(self, sample: Sample) -> None:
        """Remove one; O(its place in its lane)."""
        self._lane_of(sample).remove(sample)

    def head(self, now: float, window: float | None) -> Sample | None:
        """The first waiting one whose window has ended; without any, the oldest waiting one.

        Samples in front that no longer wait are removed.
        """
        for lane in self._lanes:
            while lane and not lane[0].waiting:
                lane.popleft()
        if window is None:
            return self._first(now, float("-inf"))
        ended = self._first(now, window)
        if ended is not None:
            return ended
        heads = [lane[0] for lane in self._lanes if lane]
        return min(heads, key=lambda each: each.arrived, default=None)

    def newest_below(self, level: int) -> Sample | None:
        """The newest waiting one of the lowest level, if that is below ``level``; late ones of a
        level are the first.

        Samples behind it that no longer wait are removed.
        """
        for lane in reversed(self._lanes[2 * level + 2 :]):
            while lane and not lane[-1].waiting:
                lane.pop()
            if lane:
                return lane[-1]
        return None

    def _lane_of(self, sample: Sample) -> deque[Sample]:
        return self._lanes[2 * sample.level + sample.late]

    def _first(self, now: float, window: float) -> Sample | None:
        """The first one of those at the front of the lanes whose window has ended."""
        found, earliest = None, float("inf")
        for lane, late, later in self._ranked:
            for each in (lane, late):
                if each and now >= each[0].arrived + window:
                    if each[0].arrived + later < earliest:
                        found, earliest = each[0], each[0].arrived + later
                    break
        return found

    def _first_lane(self) -> deque[Sample]:
        first, earliest = self._lanes[0], float("inf")
        for lane, late, later in self._ranked:
            each = lane or late
            if each and each[0].arrived + later < earliest:
                first, earliest = each, each[0].arrived + later
        return first
