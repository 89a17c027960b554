import itertools

from hypothesis import given
from hypothesis import strategies as st

from penstock.client.backoff import FIRST_SECONDS, MOST_SECONDS, Backoff


def pauses(failures: int, chance: float = 0.5) -> list[float]:
    backoff, found, now = Backoff(), [], 100.0
    for _ in range(failures):
        backoff.failed(now, chance)
        found.append(backoff.until - now)
        now = backoff.until
    return found


def test_nothing_is_waited_for_before_the_first_failure() -> None:
    assert Backoff().until == 0.0


def test_each_failure_in_a_row_doubles_the_pause_up_to_a_limit() -> None:
    found = pauses(9)
    for before, after in itertools.pairwise(found):
        assert abs(after - min(2 * before, MOST_SECONDS)) < 1e-6
    assert abs(found[0] - FIRST_SECONDS) < 1e-6
    assert abs(found[-1] - MOST_SECONDS) < 1e-6


@given(st.floats(0, 1), st.integers(1, 20))
def test_chance_moves_a_pause_by_a_fifth_at_most(chance: float, failures: int) -> None:
    moved, still = pauses(failures, chance)[-1], pauses(failures)[-1]
    assert 0.8 * still - 1e-6 <= moved <= 1.2 * still + 1e-6


def test_two_draws_give_two_pauses() -> None:
    assert pauses(1, 0.1) != pauses(1, 0.9)


def test_an_answer_forgets_the_failures() -> None:
    backoff = Backoff()
    for _ in range(5):
        backoff.failed(1.0, 0.5)
    backoff.succeeded()
    assert backoff.until == 0.0
    backoff.failed(10.0, 0.5)
    assert abs(backoff.until - 10.0 - FIRST_SECONDS) < 1e-6
