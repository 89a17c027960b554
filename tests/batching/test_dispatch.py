"""Several batches are handed over together only if they are short and no other worker is idle."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.batching.dispatch import HAND_OVER_BUDGET, MOST_BATCHES, HandOver


def test_without_history_one_batch_is_handed_over() -> None:
    assert HandOver().batches(1) == 1


@pytest.mark.parametrize(
    ("seconds", "batches"), [(1e-6, MOST_BATCHES), (1e-4, 5), (2.4e-4, 2), (4e-4, 1), (1.0, 1)]
)
def test_as_many_batches_as_fit_into_the_budget_are_handed_over(
    seconds: float, batches: int
) -> None:
    history = HandOver()
    for _ in range(50):
        history.learn(seconds)
    assert history.batches(1) == batches


def test_batches_are_spread_over_idle_workers() -> None:
    history = HandOver()
    history.learn(1e-6)
    assert history.batches(2) == 1


def test_one_slow_batch_reduces_the_number_at_once() -> None:
    history = HandOver()
    for _ in range(50):
        history.learn(1e-6)
    history.learn(0.1)
    assert history.batches(1) == 1


@given(durations=st.lists(st.floats(0.0, 10.0), min_size=1))
def test_a_hand_over_has_at_least_one_batch_and_at_most_the_maximum(durations: list[float]) -> None:
    history = HandOver()
    for seconds in durations:
        history.learn(seconds)
        assert 1 <= history.batches(1) <= MOST_BATCHES
        if min(durations) > HAND_OVER_BUDGET:
            assert history.batches(1) == 1


def after_hand_overs(batches: int, seconds: float = 1e-6) -> HandOver:
    """A history of 50 hand-overs, each of ``batches`` batches of ``seconds`` each."""
    history = HandOver()
    for _ in range(50):
        history.learn(seconds)
        history.carried(batches)
    return history


def test_a_hand_over_is_delayed_while_each_turn_of_the_loop_adds_samples() -> None:
    history = after_hand_overs(8)
    assert [history.look_again(waiting, 1) for waiting in (4, 9, 10, 10)] == [
        True,
        True,
        True,
        False,
    ]
    assert history.look_again(1, 1), "and the next one anew"


def test_an_op_with_batching_waits_while_each_turn_of_the_loop_adds_samples() -> None:
    hand_over = HandOver()
    hand_over.learn(0.02)
    for _ in range(20):
        hand_over.carried(16)
    assert hand_over.look_again(1, 32)
    assert hand_over.look_again(9, 32)
    assert not hand_over.look_again(9, 32)  # no sample was added by the turn
    assert not hand_over.look_again(32, 32)  # full
    for _ in range(20):
        hand_over.carried(1)
    assert not hand_over.look_again(1, 32)  # batches of one do not wait
