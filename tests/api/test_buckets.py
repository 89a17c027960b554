"""Token buckets: what is let through, and for how long others wait."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.api.buckets import Buckets


def test_a_full_bucket_lets_a_burst_through_and_then_the_rate() -> None:
    buckets = Buckets(2.0, 3)
    assert [buckets.take("a", 0.0) for _ in range(3)] == [2, 1, 0]
    assert buckets.wait("a", 0.0) == pytest.approx(0.5)
    assert buckets.wait("b", 0.0) == 0.0
    assert buckets.wait("a", 0.4) == pytest.approx(0.1)
    assert buckets.wait("a", 0.5) == 0.0
    assert buckets.take("a", 0.5) == 0
    assert buckets.take("a", 100.0) == 2


@given(
    rate=st.floats(0.01, 1000),
    burst=st.integers(1, 20),
    pauses=st.lists(st.floats(0, 3), max_size=60),
)
def test_no_span_of_time_has_more_than_burst_and_rate(
    rate: float, burst: int, pauses: list[float]
) -> None:
    buckets, now, taken = Buckets(rate, burst), 0.0, []
    for pause in pauses:
        now += pause / rate
        wait = buckets.wait("a", now)
        if not wait:
            assert 0 <= buckets.take("a", now) < burst
            taken.append(now)
        else:
            assert buckets.wait("a", now + wait) == 0.0, "whoever waits as told is let through"
    for first, begin in enumerate(taken):
        for last in range(first, len(taken)):
            assert last - first + 1 <= burst + rate * (taken[last] - begin) + 1e-3


def test_memory_is_bounded_and_the_least_recently_used_is_forgotten() -> None:
    buckets = Buckets(1.0, 1, most=3)
    for key in (1, 2, 3):
        buckets.take(key, 0.0)
    buckets.take(1, 1.0)
    for key in range(4, 6):
        buckets.take(key, 1.0)
        assert len(buckets) == 3
    assert buckets.wait(1, 1.0) > 0
    assert buckets.wait(2, 1.0) == 0.0
