"""The choice of endpoints, and their ejection: decisions without connections."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from penstock.client.health import (
    FIRST_EJECTION,
    FIRST_PAUSE,
    LONGEST_EJECTION,
    LONGEST_PAUSE,
    MOST_FAILURES,
    TRIAL,
    Backoff,
    Health,
    State,
    in_order,
)

READY, APART, OUT = State.READY, State.APART, State.OUT


def ejected(now: float = 0.0) -> Health:
    health = Health()
    ejections = [health.failed(now, 0.5) for _ in range(MOST_FAILURES)]
    assert ejections == [False] * (MOST_FAILURES - 1) + [True]
    return health


def test_ready_endpoints_take_turns() -> None:
    states = [READY, READY, READY]
    assert [in_order(states, turn)[0] for turn in range(4)] == [0, 1, 2, 0]
    assert in_order(states, 1) == [1, 2, 0]


def test_endpoints_that_are_not_ready_are_tried_last() -> None:
    states = [OUT, READY, APART, READY]
    assert [in_order(states, turn) for turn in range(2)] == [[1, 3, 2, 0], [1, 3, 2, 0]]
    assert in_order(states, 2)[0] == 3


def test_if_all_endpoints_are_ejected_all_are_tried() -> None:
    assert [in_order([OUT, OUT], turn) for turn in range(2)] == [[0, 1], [1, 0]]


@given(st.lists(st.sampled_from(State), min_size=1), st.integers(0, 1000))
def test_each_endpoint_is_tried_once(states: list[State], turn: int) -> None:
    order = in_order(states, turn)
    assert sorted(order) == [*range(len(states))]
    assert [states[at] for at in order] == sorted(states)


def test_only_consecutive_failures_eject_an_endpoint() -> None:
    health = Health()
    for _ in range(3 * MOST_FAILURES):
        for _ in range(MOST_FAILURES - 1):
            health.failed(0.0, 0.5)
        health.answered()
    assert health.takes(0.0)
    assert not ejected().takes(FIRST_EJECTION * 0.99)
    assert ejected().takes(FIRST_EJECTION)


def test_failures_of_earlier_calls_do_not_prolong_an_ejection() -> None:
    health = ejected()
    for _ in range(100):
        assert not health.failed(0.5, 0.5)
    assert health.takes(FIRST_EJECTION)


def test_one_call_tries_an_ejected_endpoint_and_its_reply_restores_it() -> None:
    health = ejected()
    health.chosen(FIRST_EJECTION)
    assert not health.takes(FIRST_EJECTION)
    assert health.takes(FIRST_EJECTION + TRIAL), "a trial that was cancelled has no outcome"
    health.answered()
    assert health.takes(FIRST_EJECTION)


def test_each_failed_trial_doubles_the_ejection_up_to_a_limit() -> None:
    health, now = ejected(), FIRST_EJECTION
    found = []
    for _ in range(8):
        health.chosen(now)
        assert health.failed(now, 0.5)
        began = now
        while not health.takes(now):
            now += 0.5
        found.append(now - began)
    assert found == [2.0, 4.0, 8.0, 16.0, *[LONGEST_EJECTION] * 4]


def pauses(failures: int, chance: float = 0.5) -> list[float]:
    backoff, found, now = Backoff(), [], 100.0
    for _ in range(failures):
        backoff.failed(now, chance)
        found.append(backoff.until - now)
        now = backoff.until
    backoff.succeeded()
    assert backoff.until == 0.0
    return found


def test_each_failure_in_a_row_doubles_the_pause_up_to_a_limit() -> None:
    found = pauses(9)
    for before, after in itertools.pairwise(found):
        assert abs(after - min(2 * before, LONGEST_PAUSE)) < 1e-6
    assert abs(found[0] - FIRST_PAUSE) < 1e-6
    assert abs(found[-1] - LONGEST_PAUSE) < 1e-6


@given(st.floats(0, 1), st.integers(1, 20))
def test_jitter_changes_a_pause_by_a_fifth_at_most(chance: float, failures: int) -> None:
    moved, still = pauses(failures, chance)[-1], pauses(failures)[-1]
    assert 0.8 * still - 1e-6 <= moved <= 1.2 * still + 1e-6
