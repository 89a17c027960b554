"""Delays of replacements of dead workers."""

from penstock.executors.workers.restarts import LONGEST, MOST_DEATHS, WITHIN, Restarts


def test_a_worker_that_has_worked_is_replaced_at_once_however_often_it_dies() -> None:
    restarts = Restarts()
    assert [restarts.died(float(n), had_worked=True) for n in range(50)] == [0.0] * 50


def test_a_worker_that_never_works_is_replaced_with_growing_delays_and_then_not() -> None:
    restarts = Restarts()
    waits = [restarts.died(float(n), had_worked=False) for n in range(MOST_DEATHS)]
    assert waits == [0.0, 0.1, 0.2, 0.4, None]
    assert restarts.given_up


def test_a_death_in_a_first_batch_counts_whatever_earlier_workers_did() -> None:
    restarts = Restarts()
    restarts.died(0.0, had_worked=True, had_begun=True)
    waits = [restarts.died(1.0 + n, had_worked=False, had_begun=True) for n in range(MOST_DEATHS)]
    assert waits == [0.0, 0.1, 0.2, 0.4, None]


def test_a_slot_given_up_once_is_given_up_again_until_a_worker_has_worked() -> None:
    restarts = Restarts()
    for n in range(MOST_DEATHS):
        restarts.died(float(n), had_worked=False, had_begun=True)
    for n in range(1, 10):
        assert restarts.died(n * LONGEST, had_worked=False, had_begun=True) is None
    assert restarts.died(10 * LONGEST, had_worked=True, had_begun=True) == 0.0
    assert not restarts.given_up
    assert restarts.died(11 * LONGEST, had_worked=False, had_begun=True) == 0.0


def test_after_two_deaths_in_first_batches_a_start_is_doubtful_for_a_minute() -> None:
    restarts = Restarts()
    restarts.died(0.0, had_worked=True, had_begun=True)
    restarts.died(0.5, had_worked=False, had_begun=True)
    assert not restarts.is_doubtful(0.5)
    restarts.died(1.0, had_worked=False)  # idle, or while it started
    assert not restarts.is_doubtful(1.0)
    restarts.died(2.0, had_worked=False, had_begun=True)
    assert restarts.is_doubtful(2.0)
    assert not restarts.is_doubtful(2.0 + WITHIN)


def test_deaths_of_long_ago_do_not_count() -> None:
    restarts = Restarts()
    for n in range(20):
        assert restarts.died(n * WITHIN / 2, had_worked=False) is not None


def test_a_worker_that_works_resets_the_count() -> None:
    restarts = Restarts()
    for n in range(3):
        restarts.died(float(n), had_worked=False)
    assert restarts.died(3.0, had_worked=True) == 0.0
    assert [restarts.died(4.0 + n, had_worked=False) for n in range(3)] == [0.0, 0.1, 0.2]


def test_a_refused_spawn_is_retried_with_growing_delays_and_never_given_up() -> None:
    restarts = Restarts()
    waits = [restarts.refused() for _ in range(20)]
    assert waits[0] > 0.0
    assert waits == sorted(waits)
    assert waits[-1] == LONGEST
    assert restarts.died(0.0, had_worked=False) is not None
