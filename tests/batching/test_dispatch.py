"""A hand-over carries several batches only when they are cheap and nobody else is idle."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.batching.dispatch import HAND_OVER_BUDGET, MOST_BATCHES, HandOver


def test_without_history_one_batch_is_tried() -> None:
    assert HandOver().batches(1) == 1


@pytest.mark.parametrize(
    ("seconds", "batches"), [(1e-6, MOST_BATCHES), (1e-4, 5), (2.4e-4, 2), (4e-4, 1), (1.0, 1)]
)
def test_as_many_as_fit_into_the_budget(seconds: float, batches: int) -> None:
    history = HandOver()
    for _ in range(50):
        history.learn(seconds)
    assert history.batches(1) == batches


def test_batches_spread_over_idle_workers_instead() -> None:
    history = HandOver()
    history.learn(1e-6)
    assert history.batches(2) == 1


def test_one_slow_batch_is_believed_at_once() -> None:
    history = HandOver()
    for _ in range(50):
        history.learn(1e-6)
    history.learn(0.1)
    assert history.batches(1) == 1


@given(durations=st.lists(st.floats(0.0, 10.0), min_size=1))
def test_a_hand_over_never_carries_none_nor_too_many(durations: list[float]) -> None:
    history = HandOver()
    for seconds in durations:
        history.learn(seconds)
        assert 1 <= history.batches(1) <= MOST_BATCHES
        if min(durations) > HAND_OVER_BUDGET:
            assert history.batches(1) == 1
