"""Bytes in flight are counted exactly and refused at the limit."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.engine.budget import ByteBudget, Reservation, default_budget, memory_limit
from penstock.errors import ServiceBusy


def test_what_does_not_fit_is_refused_and_takes_nothing() -> None:
    budget = ByteBudget(100)
    budget.reserve(60)
    with pytest.raises(ServiceBusy):
        budget.reserve(41)
    assert (budget.used, budget.refused) == (60, 1)
    budget.reserve(40)
    budget.release(100)
    assert (budget.used, budget.peak) == (0, 100)


@given(
    takes=st.lists(st.tuples(st.integers(0, 60), st.integers(0, 3)), max_size=40),
)
def test_the_books_balance_whatever_is_taken_and_refused(takes: list[tuple[int, int]]) -> None:
    budget = ByteBudget(200)
    held = [Reservation(budget) for _ in range(4)]
    for count, who in takes:
        try:
            held[who].take(count)
        except ServiceBusy:
            held[who].release()
        assert budget.used == sum(each.taken for each in held) <= budget.limit
    for each in held:
        each.release()
        each.release()
    assert budget.used == 0


def test_answers_are_counted_even_beyond_the_limit() -> None:
    budget = ByteBudget(10)
    held = Reservation(budget)
    held.add(15)
    assert budget.used == 15
    with pytest.raises(ServiceBusy):
        budget.reserve(1)
    held.release()
    assert budget.used == 0


def test_giving_back_too_much_is_a_bug_that_shows() -> None:
    with pytest.raises(AssertionError):
        ByteBudget(10).release(1)


def test_the_default_is_a_quarter_of_memory_at_most_two_gibibytes() -> None:
    assert default_budget() == min(2 << 30, memory_limit() // 4)
    assert memory_limit() > 1 << 20
