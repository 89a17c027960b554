"""When a dead worker is replaced."""

from penstock.executors.processes.restarts import MOST_DEATHS, WITHIN, Restarts


def test_a_worker_that_has_worked_is_replaced_at_once_however_often_it_dies() -> None:
    restarts = Restarts()
    assert [restarts.died(float(n), had_worked=True) for n in range(50)] == [0.0] * 50


def test_one_that_never_works_waits_longer_each_time_and_is_given_up() -> None:
    restarts = Restarts()
    waits = [restarts.died(float(n), had_worked=False) for n in range(MOST_DEATHS)]
    assert waits == [0.0, 0.1, 0.2, 0.4, None]


def test_deaths_of_long_ago_do_not_count() -> None:
    restarts = Restarts()
    for n in range(20):
        assert restarts.died(n * WITHIN / 2, had_worked=False) is not None


def test_work_in_between_wipes_the_slate() -> None:
    restarts = Restarts()
    for n in range(3):
        restarts.died(float(n), had_worked=False)
    assert restarts.died(3.0, had_worked=True) == 0.0
    assert [restarts.died(4.0 + n, had_worked=False) for n in range(3)] == [0.0, 0.1, 0.2]


def test_a_machine_without_room_never_gives_an_op_up_and_is_asked_less_and_less_often() -> None:
    restarts = Restarts()
    waits = [restarts.refused() for _ in range(20)]
    assert waits[0] > 0.0
    assert waits == sorted(waits)
    assert waits[-1] == 30.0
    assert restarts.died(0.0, had_worked=False) is not None


def test_a_first_batch_that_kills_is_no_reason_to_give_up_an_op_that_works() -> None:
    restarts = Restarts()
    restarts.died(0.0, had_worked=True, had_begun=True)
    assert [restarts.died(1.0 + n, had_worked=False, had_begun=True) for n in range(50)] == [
        0.0
    ] * 50


def test_an_op_that_dies_of_every_batch_it_was_ever_given_is_given_up() -> None:
    restarts = Restarts()
    waits = [restarts.died(float(n), had_worked=False, had_begun=True) for n in range(MOST_DEATHS)]
    assert waits == [0.0, 0.1, 0.2, 0.4, None]


def test_workers_without_room_for_their_memory_come_back_less_often_until_a_quiet_minute() -> None:
    restarts = Restarts()
    assert [restarts.lacked(float(n)) for n in range(4)] == [0.1, 0.2, 0.4, 0.8]
    assert restarts.lacked(3.0 + WITHIN) == 1.6
    assert restarts.lacked(3.1 + 2 * WITHIN) == 0.1
