"""The order of samples of several priorities: a lane for each, and ageing between them.

A sample of priority level k (0 is the highest) counts as if it had arrived ``k * ageing`` seconds
later, and the earliest goes first. So a sample is overtaken only by those of higher levels that
arrive less than the difference of their levels times ``ageing`` after it: none waits for ever
behind higher ones. The order of two samples never changes, so nothing is sorted again.

Source: J. R. Jackson, "Some Problems in Queueing with Dynamic Priorities", Naval Research Logistics
Quarterly 7 (1960): service in order of arrival time plus urgency number.
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
        self._lanes: list[deque[Sample]] = [deque() for _ in range(levels)]
        self._ranked = [(lane, level * ageing) for level, lane in enumerate(self._lanes)]
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
        """Add one that has just arrived."""
        self._lanes[sample.level].append(sample)

    def popleft(self) -> Sample:
        """Remove the first."""
        return self._first_lane().popleft()

    def extendleft(self, samples: Iterable[Sample]) -> None:
        """Put removed ones back, the last one first."""
        for sample in samples:
            self._lanes[sample.level].appendleft(sample)

    def head(self, now: float, window: float | None) -> Sample | None:
        """The first waiting one whose window has ended; without any, the oldest waiting one.

        Samples in front that no longer wait are removed.
        """
        found: list[tuple[float, Sample]] = []
        for lane, later in self._ranked:
            while lane and not lane[0].waiting:
                lane.popleft()
            if lane:
                found.append((lane[0].arrived + later, lane[0]))
        if window is not None:
            ended = [each for each in found if now >= each[1].arrived + window]
            found = ended or [(sample.arrived, sample) for _, sample in found]
        return min(found, key=lambda each: each[0])[1] if found else None

    def newest_below(self, level: int) -> Sample | None:
        """The newest waiting one of the lowest level, if that is below ``level``.

        Samples behind it that no longer wait are removed.
        """
        for lane in reversed(self._lanes[level + 1 :]):
            while lane and not lane[-1].waiting:
                lane.pop()
            if lane:
                return lane[-1]
        return None

    def _first_lane(self) -> deque[Sample]:
        first, earliest = self._lanes[0], float("inf")
        for lane, later in self._ranked:
            if lane and lane[0].arrived + later < earliest:
                first, earliest = lane, lane[0].arrived + later
        return first
