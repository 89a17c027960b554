"""The quantile sketch: its error, sums and differences."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as some

from penstock.observe.sketch import ERROR, Sketch, quantiles, since

durations = some.lists(some.floats(1e-6, 4000.0), min_size=1, max_size=60)
SHARES = (0.01, 0.5, 0.95, 0.99, 1.0)


def sketch_of(*values: float) -> dict[str, int]:
    made = Sketch()
    made.add(values)
    return made.plain()


def exact(values: list[float], share: float) -> float:
    """The smallest value that at least this share of the values does not exceed."""
    ordered = sorted(values)
    return next(v for i, v in enumerate(ordered, 1) if i >= share * len(ordered))


@given(durations)
def test_percentiles_are_within_the_error(values: list[float]) -> None:
    found = quantiles(sketch_of(*values), *SHARES)
    assert found == [pytest.approx(exact(values, share), rel=ERROR + 1e-9) for share in SHARES]


@given(durations, durations)
def test_the_sum_of_sketches_is_that_of_all_values(one: list[float], two: list[float]) -> None:
    both = sketch_of(*one, *two)
    assert both == Counter(sketch_of(*one)) + Counter(sketch_of(*two))
    assert since(sketch_of(*one), both) == sketch_of(*two)
    added = Sketch()
    added.add(one)
    other = Sketch()
    other.add(two)
    added.include(other)
    assert added.plain() == both


def test_values_out_of_range_count_as_the_nearest_in_it() -> None:
    least, most = quantiles(sketch_of(0.0, 1e9), 0.5, 1.0)
    assert least == pytest.approx(2**-20, rel=2 * ERROR)
    assert most == pytest.approx(4096.0, rel=2 * ERROR)


def test_nothing_has_no_percentiles() -> None:
    assert quantiles(sketch_of(), 0.5, 0.99) == [None, None]
    assert quantiles({}) == []
