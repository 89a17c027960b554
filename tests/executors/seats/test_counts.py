"""Counts of steps."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.executors.seats.counts import SIZE, StepCounts, added
from penstock.observe.counters import of_steps


@pytest.mark.parametrize("numbers", [None, memoryview(bytearray(8 * SIZE)).cast("Q")])
def test_steps_are_counted_by_their_requests_and_by_their_time(numbers: Any) -> None:
    counts = StepCounts(numbers)
    for running, seconds in ((1, 0.0), (16, 0.0001), (17, 0.0011), (3000, 60.0)):
        counts.add(running, seconds)
    seen = of_steps(counts.numbers)
    assert seen["count"] == 4
    assert seen["running"] == {
        "sum": 3034,
        "classes": {"<= 1": 1, "<= 16": 1, "<= 32": 1, "> 1024": 1},
    }
    assert seen["seconds"] == {
        "sum": pytest.approx(60.0012),
        "classes": {"<= 0.0001": 2, "<= 0.0025": 1, "> 10": 1},
    }


def test_the_counts_of_workers_are_added() -> None:
    one, other = StepCounts(), StepCounts()
    one.add(2, 0.5)
    other.add(2, 0.25)
    other.add(5, 0.25)
    seen = of_steps(added((one.numbers, other.numbers)))
    assert seen["running"] == {"sum": 9, "classes": {"<= 2": 2, "<= 8": 1}}
    assert seen["seconds"] == {"sum": 1.0, "classes": {"<= 0.25": 2, "<= 0.5": 1}}
    assert of_steps(added(()))["count"] == 0
