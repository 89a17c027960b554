"""Divides waiting requests into batches so that the time of all together is least.

Requests are sorted by the elements of a row, and batches are runs of neighbours, which need little
padding. For requests of one row no other partition is better if padded elements cost time:
exchanging members of two batches that overlap makes neither longer. Pure.

Source: the partition of a sorted sequence by dynamic programming, as R. Bellman, "A Note on Cluster
Analysis and Dynamic Programming" (1973).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

SLACK = 0.03
"""Of two sizes of batches whose time per request differs by at most this part, the smaller one is
better: its requests are answered earlier."""
_NEVER = float("inf")


@dataclass(frozen=True, slots=True)
class CostTable:
    """The seconds of batches, by their rows: ``fixed[rows] + each[rows] * elements``.

    Attributes:
        fixed: infinite where it is not known; position 0 is not used.
        each: of one element, padding included.
    """

    fixed: Sequence[float]
    each: Sequence[float]


def partition(
    rows: Sequence[int], widths: Sequence[float], costs: CostTable, most_rows: int
) -> list[int]:
    """The partition with the least time.

    Args:
        rows: of each request, 1 or more.
        widths: the elements of a row of each, ascending; 0 where nothing is padded.
        costs: of batches; a batch with more rows than it has is not formed.
        most_rows: of a batch; a request with more is a batch of its own.

    Returns:
        where each batch ends, ascending: the positions after its last request.
    """
    count = len(rows)
    fixed, each = costs.fixed, costs.each
    most = min(most_rows, len(fixed) - 1)
    best = [0.0] * (count + 1)  # of the first k requests
    begins = [0] * (count + 1)
    for end in range(1, count + 1):
        last = end - 1
        width, total = widths[last], rows[last]
        least, first = _NEVER, last
        if total <= most:
            least = best[last] + fixed[total] + each[total] * total * width
        if least == _NEVER:  # alone in any case
            best[end], begins[end] = best[last], last
            continue
        for begin in range(last - 1, -1, -1):
            own = rows[begin]
            total += own
            # Whoever is so narrow costs less alone, and so does everyone before him.
            if total > most or each[total] * own * (width - widths[begin]) > fixed[own]:
                break
            time = best[begin] + fixed[total] + each[total] * total * width
            if time < least:
                least, first = time, begin
        best[end], begins[end] = least, first
    ends = [count] if count else []
    while ends and (begin := begins[ends[-1]]):
        ends.append(begin)
    ends.reverse()
    return ends


class BestSizes:
    """How many of equal requests of one row to run together, by how many wait.

    All that wait are divided into batches with the least time in all, and of the batches of such a
    division one with the least time per request runs first. Of two numbers that are as good as
    equal in both, the smaller one is better.

    Args:
        times: seconds of a batch by its rows; infinite where they are not known. Position 0 is not
            used.
        slack: see ``SLACK``.
    """

    def __init__(self, times: Sequence[float], slack: float = SLACK) -> None:
        self._times = np.array(times)
        self._each = self._times / np.maximum(1, np.arange(len(times)))
        self._total = np.zeros(len(times))  # the least time of so many requests
        self._best = [0]
        self._slack = 1 + slack

    def of(self, waiting: int) -> int:
        """The rows of the next batch if so many wait; all of them if no size is known.

        The first call for a number takes some microseconds for each number below it.
        """
        waiting = min(waiting, len(self._times) - 1)
        for count in range(len(self._best), waiting + 1):
            times = self._times[1 : count + 1] + self._total[count - 1 :: -1]
            least = self._total[count] = times.min()
            if least == _NEVER:
                self._total[count] = 0.0
                self._best.append(count)
                continue
            good = np.flatnonzero(times <= least * self._slack) + 1
            each = self._each[good]
            self._best.append(int(good[each <= each.min() * self._slack][0]))
        return self._best[waiting]
