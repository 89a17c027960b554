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


def cheap_with(company: int, seconds: float = 1e-6) -> HandOver:
    """The history of hand-overs that carried so many batches of so many seconds each."""
    history = HandOver()
    for _ in range(50):
        history.learn(seconds)
        history.carried(company)
    return history


def test_a_hand_over_is_put_off_while_every_turn_brings_more() -> None:
    history = cheap_with(8)
    assert [history.look_again(waiting, 1) for waiting in (4, 9, 10, 10)] == [
        True,
        True,
        True,
        False,
    ]
    assert history.look_again(1, 1), "and the next one anew"


def test_an_op_that_batches_waits_for_more_while_each_turn_brings_some() -> None:
    hand_over = HandOver()
    hand_over.learn(0.02)
    for _ in range(20):
        hand_over.carried(16)
    assert hand_over.look_again(1, 32)
    assert hand_over.look_again(9, 32)
    assert not hand_over.look_again(9, 32)  # the turn brought nobody
    assert not hand_over.look_again(32, 32)  # full
    for _ in range(20):
        hand_over.carried(1)
    assert not hand_over.look_again(1, 32)  # who comes alone does not wait
