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

    All that wait are divided into batches of one size, and a last one with what is left over. Of
    the sizes whose batches take the least time in all, one with the least time per request runs
    first; of two that are as good as equal in both, the smaller one. Where a batch has a cost of
    its own, one for each request, and at most one jump, no other division takes less time.

    Args:
        times: seconds of a batch by its rows; infinite where they are not known. Position 0 is not
            used.
        slack: see ``SLACK``.
    """

    def __init__(self, times: Sequence[float], slack: float = SLACK) -> None:
        self._times = np.array(times)
        self._times[0] = 0.0  # nothing is left over
        self._slack = 1 + slack
        self._of: dict[int, int] = {}

    def of(self, waiting: int) -> int:
        """The rows of the next batch if so many wait; all of them if no size is known.

        The first call for a number takes some 20 us.
        """
        waiting = min(waiting, len(self._times) - 1)
        found = self._of.get(waiting)
        if found is None:
            found = self._of[waiting] = self._found(waiting)
        return found

    def _found(self, waiting: int) -> int:
        sizes = np.arange(1, waiting + 1)
        times = self._times[1 : waiting + 1]
        batches, left = np.divmod(waiting, sizes)
        total = batches * times + self._times[left]
        least = total.min(initial=_NEVER)
        if least == _NEVER:
            return waiting
        each = np.where(total <= least * self._slack, times / sizes, _NEVER)
        return int(np.argmax(each <= each.min() * self._slack)) + 1
