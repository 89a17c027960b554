"""When a loop that has come to rest looks for the next request, and for how long."""

from __future__ import annotations

from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.door.state import BusyPolling

LIMIT = 0.001


def looks(polling: BusyPolling, cycles: list[float]) -> list[bool]:
    """For each rest, whether it looks; the first comes one cycle after the start of time."""
    return [polling.until(now) > now for now in accumulate(cycles)]


def test_who_is_asked_again_at_once_looks_on_for_the_limit() -> None:
    polling = BusyPolling(LIMIT)
    looks(polling, [0.0002] * 50)
    assert polling.until(1.0) == pytest.approx(1.0 + LIMIT)


def test_who_is_asked_less_often_than_the_limit_never_looks() -> None:
    assert not any(looks(BusyPolling(LIMIT), [1.01 * LIMIT] * 200))


def test_it_stops_looking_after_a_few_long_pauses() -> None:
    polling = BusyPolling(LIMIT)
    looks(polling, [0.0002] * 50)
    now = 1.0
    looked = [polling.until(now := now + 5.0) > now for _ in range(5)]
    assert looked[-1] is False


def test_a_limit_of_nothing_means_never() -> None:
    assert not any(looks(BusyPolling(0.0), [0.0, 0.0001] * 20))


@given(st.lists(st.floats(0, 10), max_size=50))
def test_no_rest_is_looked_through_for_longer_than_the_limit(cycles: list[float]) -> None:
    polling = BusyPolling(LIMIT)
    for now in accumulate(cycles):
        assert now <= polling.until(now) <= now + LIMIT
