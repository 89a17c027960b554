"""The times of requests, and the steps of a load."""

from __future__ import annotations

from itertools import islice, pairwise
from random import Random

import pytest

from penstock.bench.schedule import Load, Step, arrivals, seconds_of


def test_constant_arrivals_are_evenly_spaced():
    due = list(islice(arrivals(50, "constant", Random(1)), 200))
    assert 0 <= due[0] < 0.02
    assert all(late - early == pytest.approx(0.02) for early, late in pairwise(due))


def test_poisson_arrivals_have_exponential_gaps_with_the_given_rate():
    due = list(islice(arrivals(50, "poisson", Random(1)), 20_000))
    gaps = [late - early for early, late in pairwise(due)]
    mean = sum(gaps) / len(gaps)
    deviation = (sum((gap - mean) ** 2 for gap in gaps) / len(gaps)) ** 0.5
    assert mean == pytest.approx(0.02, rel=0.03)
    assert deviation == pytest.approx(mean, rel=0.05)


def test_the_parts_of_several_processes_add_up_to_the_step():
    parts = [Step(rate=100, concurrency=7).part(number, 3) for number in range(3)]
    assert [each.concurrency for each in parts] == [3, 2, 2]
    assert sum(each.rate or 0 for each in parts) == pytest.approx(100)
    assert Step(concurrency=2).part(0, 2).rate is None


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("10s", 10), ("50ms", 0.05), ("2m", 120), ("1.5", 1.5), ("250us", 0.00025), ("1h", 3600)],
)
def test_durations_with_units_are_parsed(text: str, seconds: float):
    assert seconds_of(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "s", "-1s", "10 s s", "10d", "1e3", "inf", "nan"])
def test_invalid_durations_are_refused(text: str):
    with pytest.raises(ValueError, match="no duration"):
        seconds_of(text)


@pytest.mark.parametrize("wrong", [{"rate": 0}, {"rate": float("inf")}, {"concurrency": 0}])
def test_a_step_without_load_is_refused(wrong: dict[str, float]):
    with pytest.raises(ValueError, match="a step has"):
        Step(**wrong)


@pytest.mark.parametrize(
    "wrong", [{"steps": ()}, {"processes": 0}, {"duration": 0}, {"warm_up": -1}, {"timeout": 0}]
)
def test_an_invalid_load_is_refused(wrong: dict[str, object]):
    with pytest.raises(ValueError, match=r"load has|positive"):
        Load(**{"steps": (Step(),), **wrong})
