"""When an idle loop polls for the next request, and for how long."""

from __future__ import annotations

from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.door.polling import BusyPolling

LIMIT = 0.001


def polls(polling: BusyPolling, cycles: list[float]) -> list[bool]:
    """For each idle time, whether the loop polls; the first is one cycle after time zero."""
    return [polling.until(now) > now for now in accumulate(cycles)]


def test_a_loop_with_frequent_requests_polls_up_to_the_limit() -> None:
    polling = BusyPolling(LIMIT)
    polls(polling, [0.0002] * 50)
    assert polling.until(1.0) == pytest.approx(1.0 + LIMIT)


def test_a_loop_with_rare_requests_never_polls() -> None:
    assert not any(polls(BusyPolling(LIMIT), [1.01 * LIMIT] * 200))


def test_polling_stops_after_a_few_long_pauses() -> None:
    polling = BusyPolling(LIMIT)
    polls(polling, [0.0002] * 50)
    now = 1.0
    polled = [polling.until(now := now + 5.0) > now for _ in range(5)]
    assert polled[-1] is False


def test_a_limit_of_zero_disables_polling() -> None:
    assert not any(polls(BusyPolling(0.0), [0.0, 0.0001] * 20))


@given(st.lists(st.floats(0, 10), max_size=50))
def test_polling_never_exceeds_the_limit(cycles: list[float]) -> None:
    polling = BusyPolling(LIMIT)
    for now in accumulate(cycles):
        assert now <= polling.until(now) <= now + LIMIT
