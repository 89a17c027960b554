"""What a batch costs: its run time, predicted from the batches before it.

The form is ``a + b * rows + c * elements``, with a factor for each number of rows that was seen, so
that a jump at some size is known, too. Elements are those of the arrays that may be padded, padding
included; 0 where nothing is padded.

- Errors count relative to the time, so that small batches count as much as large ones.
- Batches of a size are forgotten as newer ones of that size run, not as others do: an op that has
  run batches of 32 for an hour still knows what one costs.
- Times are rather those of batches that nothing disturbs: one that took longer than predicted
  counts a fifth, and a time far above those of its size as three times theirs.
- A time far below those of its size is believed sooner, since no accident makes a batch quicker:
  sizes that seem to be dear are seldom tried, and would seem so long after they have become cheap.
- What too few batches tell is not known: ``seconds`` returns None.

Pure, from the engine's loop only.
"""

from __future__ import annotations

from bisect import bisect_left
from itertools import combinations
from math import ceil, log
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from penstock.batching.partition import CostTable

Array: TypeAlias = NDArray[np.float64]

_NEVER: Final = float("inf")
_EXACT: Final = 32
"""Up to here each number of rows has a cell of its own; above, cells grow by ``_GROWTH``."""
_GROWTH: Final = 1.2
_MEMORY: Final = 32.0
"""Batches of a cell that count; new ones then replace a part of them."""
_FADED: Final = 1 / 4096
"""Part of a cell's weight that fades with each batch of any size, since machines change."""
_OUTLIER: Final = 3.0
_LATE: Final = 0.2
"""Weight of a batch that took longer than predicted, beside one that was as quick or quicker. A
worker waits for the interpreter's lock and for its core while the engine's loop runs, more often at
small batches, whose hand-over is just over."""
_QUICKER: Final = 0.5
"""Of the quickest usual time of a size, below which its earlier times count as quicker."""
_FEW: Final = 4.0
"""Batches of a cell whose factor counts half beside that of the cells around."""
_NEAR: Final = 0.1
"""Distance of cells, in the logarithm of rows, at which one counts less by a factor of e."""
_NEEDED: Final = 8
"""Batches without which nothing is known."""
_LONG: Final = 0.02
_NEEDED_OF_LONG: Final = 2
"""The same if they take ``_LONG`` seconds or more, beside which disturbances are small, and each
batch of a bad size is dear."""
_TERMS: Final = 9
_TIMES: Final = 6
"""The first term with a time, see ``_terms``."""
_MOST_NEW: Final = 64
"""Batches after which the form is computed again, which takes some 200 us; there are as many as
were known before while those are fewer."""
_SHORT: Final = 1e-3
_SKIPPED: Final = 8
"""Of batches of less than ``_SHORT`` seconds one in so many is recorded once there were
``_WELL_KNOWN``, so that recording takes less than a microsecond of each."""
_WELL_KNOWN: Final = 512


class BatchCosts:
    """The run times of one op's batches, on one kind of worker."""

    def __init__(self) -> None:
        self._new: list[tuple[int, int, float]] = []  # (rows, elements, seconds)
        self._places: dict[int, int] = {}  # of each cell in the arrays
        self._sums = np.zeros((0, _TERMS))  # of each cell, decaying: see _terms
        self._counts = np.zeros(0)  # of its batches, decaying
        self._rows = np.zeros(0)  # mean rows of its batches
        self._last = np.zeros(0)  # how many batches had been learned of when its latest one was
        self._learned = self._short = 0
        self._form: tuple[float, float, float] | None = None
        self._by_cell = np.ones(0)  # the factors by place
        self._factors: list[tuple[float, float]] = []  # (rows, factor), ascending
        self.version = 0
        """Changes whenever predictions do."""
        self.quick = 0.0
        """The part of its predicted time that a batch takes if it is among the fastest twentieth of
        the latest; small where times differ for reasons that are not known here. 0 until known."""

    def learn(self, rows: int, elements: int, seconds: float) -> None:
        """Record a batch.

        Args:
            rows: at least 1.
            elements: 0 or more.
            seconds: that its worker spent on it; one that is not positive is not recorded.
        """
        if not seconds > 0:
            return
        if seconds < _SHORT and self._learned >= _WELL_KNOWN:
            self._short += 1
            if self._short % _SKIPPED:
                return
        new = self._new
        new.append((rows, elements, seconds))
        needed = _NEEDED if seconds < _LONG else _NEEDED_OF_LONG
        if len(new) >= min(_MOST_NEW, max(needed, self._learned)):
            self._take_in()
            self._fit()

    def seconds(self, rows: int, elements: int = 0) -> float | None:
        """The predicted run time of a batch; None if it is not known yet.

        It is known for sizes that were seen, and if two sizes were seen, for all up to twice the
        largest: what lies beyond may have a jump that nobody has met.
        """
        form, factors = self._form, self._factors
        if form is None:
            return None
        if len(factors) == 1 and _cell_of(rows) not in self._places:
            return None
        if rows > 2 * factors[-1][0]:
            return None
        return _at(form, rows, elements) * _between(factors, rows)

    def seen(self, rows: int) -> bool:
        """Whether batches of this size, or of one next to it above 32, have run."""
        return _cell_of(rows) in self._places

    def table(self, most: int, more: float = 0.0) -> CostTable | None:
        """The costs of batches of up to ``most`` rows, as far as ``seconds`` knows them; None if it
        knows nothing, or one size only.

        Args:
            most: 1 or more.
            more: seconds that each batch costs beside its run time.
        """
        form, factors = self._form, self._factors
        if form is None or len(factors) == 1:
            return None
        a, b, c = form
        known = min(most, int(2 * factors[-1][0]))
        fixed, each = [_NEVER], [_NEVER]
        for rows in range(1, known + 1):
            factor = _between(factors, rows)
            fixed.append((a + b * rows) * factor + more)
            each.append(c * factor)
        return CostTable(fixed, each)

    def words(self) -> str:
        """What is known, such as "8 rows cost 1.9 x one", for the largest size that was seen."""
        if self._form is None:
            return "not known yet"
        rows = round(self._factors[-1][0])
        whole, one = self._typical(rows), self._typical(1)
        if whole is None or one is None or rows == 1:
            return "known for one size only"
        return f"{rows} rows cost {whole / one:.1f} × one"

    def report(self) -> dict[str, Any]:
        """As plain values: ``words``, the number of batches, and seconds for each size seen."""
        seen = [] if self._form is None else [round(rows) for rows, _ in self._factors]
        return {
            "words": self.words(),
            "batches": self._learned + len(self._new),
            "seconds": {str(rows): self._typical(rows) for rows in seen},
        }

    def _typical(self, rows: int) -> float | None:
        """Of a batch whose rows have the mean number of elements."""
        sums = self._sums.sum(axis=0)
        return self.seconds(rows, round(rows * sums[2] / sums[1]))

    def _take_in(self) -> None:
        """Add the new batches to the sums of their cells."""
        rows, elements, seconds = np.array(self._new).T
        self._new.clear()
        places = np.array([self._place_of(int(each)) for each in rows])
        cells, count = len(self._counts), len(rows)
        weights = np.ones(count)
        parts = np.ones(count)  # of the expected time
        least = _QUICKER * self.quick
        if self._form is not None:
            a, b, c = self._form
            factors = self._by_cell[places]
            expected = (a + b * rows + c * elements) * factors
            np.divide(seconds, expected, out=parts, where=expected > 0)
            known = (self._counts[places] >= 4) & (expected > 0)
            if known.any():
                quick = float(np.percentile(seconds[known] / expected[known], 5))
                self.quick = quick if not self.quick else (self.quick + quick) / 2
            late = known & (seconds > expected)
            seconds = np.where(known, np.minimum(seconds, _OUTLIER * expected), seconds)
            # Errors count relative to the time. The level of a cell's times may change, so the
            # weight is relative to the form's time of the cell's mean.
            means = self._sums[places] / np.maximum(self._sums[places, :1], 1e-300)
            usual = (a + b * means[:, 1] + c * means[:, 2]) * factors
            weighs = known & (elements > 0)
            np.divide(usual, expected, out=weights, where=weighs)
            weights *= weights
            weights[late] *= _LATE
        member = np.zeros((cells, count))
        member[places, np.arange(count)] = 1.0
        number = member.sum(axis=1)
        after = np.minimum(self._counts + number, _MEMORY)
        kept = (1 - 1 / _MEMORY) ** (self._counts + number - after)
        part = (after - self._counts * kept) / np.maximum(number, 1.0)
        here = number > 0
        levels = (member @ parts) / np.maximum(number, 1.0)
        quicker = here & (levels < least)
        self._sums[quicker, _TIMES:] *= np.sqrt(levels[quicker])[:, None]
        self._sums *= np.where(here, kept, 1.0)[:, None]
        self._sums += part[:, None] * (member @ _terms(rows, elements, seconds, weights))
        self._counts = np.where(here, after, self._counts)
        self._rows = np.where(here, self._sums[:, 1] / self._sums[:, 0], self._rows)
        self._learned += count
        self._last[here] = self._learned

    def _place_of(self, rows: int) -> int:
        key = _cell_of(rows)
        place = self._places.get(key)
        if place is None:
            place = self._places[key] = len(self._places)
            self._sums = np.concatenate([self._sums, np.zeros((1, _TERMS))])
            self._counts = np.append(self._counts, 0.0)
            self._rows = np.append(self._rows, 0.0)
            self._last = np.append(self._last, 0.0)
            self._by_cell = np.append(self._by_cell, 1.0)
        return place

    def _fit(self) -> None:
        """Compute the form and the factors."""
        self.version += 1
        sums = self._sums
        means = sums[:, 6] / sums[:, 0]
        fresh = (1 - _FADED) ** (self._learned - self._last) / (means * means)
        form = self._form = _least_squares(_normal((fresh @ sums).tolist()))
        # The factor of a cell by which the form is to be multiplied to fit its batches best.
        a, b, c = form
        both = sums @ np.array([0, 0, 0, 0, 0, 0, a, b, c])
        square = sums @ np.array([a * a, 2 * a * b, 2 * a * c, b * b, 2 * b * c, c * c, 0, 0, 0])
        counts = self._counts
        ratios = np.divide(both, square, out=np.ones(len(sums)), where=square > 0)
        # What few batches tell counts little beside the cells next to it.
        rows = np.log(self._rows)
        near = np.exp(-np.abs(rows[:, None] - rows) / _NEAR) * counts
        np.fill_diagonal(near, 0.0)
        around = (near @ ratios + _FEW) / (near.sum(axis=1) + _FEW)
        own = counts**2 / (counts**2 + _FEW**2)
        self._by_cell = around + own * (ratios - around)
        self._factors = sorted(zip(self._rows.tolist(), self._by_cell.tolist(), strict=True))


def _terms(rows: Array, elements: Array, seconds: Array, weight: Array) -> Array:
    """What ``_normal`` needs of each batch: products of 1, rows, elements and seconds."""
    r, e, t = weight * rows, weight * elements, weight * seconds
    products = weight, r, e, r * rows, r * elements, e * elements, t, t * rows, t * elements
    return np.stack(products, axis=1)


def _normal(sums: list[float]) -> list[tuple[float, ...]]:
    """The normal equations."""
    n, r, e, rr, re, ee, t, rt, et = sums
    return [(n, r, e, t), (r, rr, re, rt), (e, re, ee, et)]


def _cell_of(rows: int) -> int:
    return rows if rows <= _EXACT else _EXACT + ceil(log(rows / _EXACT) / log(_GROWTH))


def _at(form: tuple[float, float, float], rows: float, elements: float) -> float:
    return form[0] + form[1] * rows + form[2] * elements


def _between(factors: list[tuple[float, float]], rows: int) -> float:
    """The factor for a number of rows: of that size, or between its neighbours'."""
    place = bisect_left(factors, (rows, 0.0))
    if place == len(factors):
        return factors[-1][1]
    above, factor = factors[place]
    if place == 0 or above == rows:
        return factor
    below, lower = factors[place - 1]
    return lower + (factor - lower) * (rows - below) / (above - below)


def _least_squares(equations: list[tuple[float, ...]]) -> tuple[float, float, float]:
    """The solution without negative terms that fits best: the best of those of all subsets."""
    best, least = (0.0, 0.0, 0.0), 0.0
    for size in (1, 2, 3):
        for chosen in combinations(range(3), size):
            solved = _solve([[equations[i][j] for j in (*chosen, 3)] for i in chosen])
            if solved is None or min(solved) < 0:
                continue
            # Of the sum of squares what depends on the solution.
            error = -sum(x * equations[i][3] for x, i in zip(solved, chosen, strict=True))
            if error < least - 1e-9 * abs(least):
                terms = dict(zip(chosen, solved, strict=True))
                best = (terms.get(0, 0.0), terms.get(1, 0.0), terms.get(2, 0.0))
                least = error
    return best


def _solve(rows: list[list[float]]) -> list[float] | None:
    """Gauss's elimination; None if the equations do not determine a solution."""
    size = len(rows)
    scale = [rows[i][i] for i in range(size)]
    if min(scale) <= 0:
        return None
    for i in range(size):
        if rows[i][i] <= 1e-9 * scale[i]:
            return None
        for k in range(i + 1, size):
            factor = rows[k][i] / rows[i][i]
            rows[k] = [y - factor * x for x, y in zip(rows[i], rows[k], strict=True)]
    found = [0.0] * size
    for i in reversed(range(size)):
        rest = sum(rows[i][j] * found[j] for j in range(i + 1, size))
        found[i] = (rows[i][size] - rest) / rows[i][i]
    return found
