"""Bytes in flight are counted exactly and refused at the limit."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.door.budget import (
    ByteBudget,
    Reservation,
    default_budget,
    largest_body,
    memory_limit,
)
from penstock.errors import ServiceBusy


def test_what_does_not_fit_is_refused_and_takes_nothing() -> None:
    budget = ByteBudget(100)
    budget.reserve(60)
    with pytest.raises(ServiceBusy):
        budget.reserve(41)
    assert (budget.used, budget.refused) == (60, 1)
    budget.reserve(40)
    budget.release(100)
    assert budget.used == 0


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


def test_what_is_decoded_is_counted_once_and_fits_beside_the_decoders_copy() -> None:
    budget = ByteBudget(100)
    budget.reserve(5)
    held = Reservation(budget)
    held.take(35)
    held.decode(35)  # 5 + 35 + 35 + 35: a tenth beyond the limit
    assert (budget.used, held.taken) == (75, 70)
    held.release()
    held.take(35)
    budget.reserve(1)
    with pytest.raises(ServiceBusy):
        held.decode(35)
    assert budget.refused == 1
    held.release()
    held.take(35)
    budget.reserve(59)
    with pytest.raises(ServiceBusy):
        held.decode(1)  # what it decodes to would stay beyond the limit
    held.release()
    assert (budget.used, budget.to_come) == (65, 0)


def test_what_was_announced_and_has_not_come_leaves_room_for_the_decoders_copy() -> None:
    budget = ByteBudget(100)
    slow, whole = Reservation(budget), Reservation(budget)
    slow.announce(10)
    slow.arrive(5)
    whole.take(35)
    whole.decode(35)  # 5 + 35 + 35 + 35
    whole.release()
    slow.arrive(1)
    whole.take(35)
    with pytest.raises(ServiceBusy):
        whole.decode(35)
    whole.release()
    assert (slow.to_come, budget.to_come) == (14, 14)
    slow.release()
    whole.arrive(35)  # nothing was expected
    assert budget.to_come == 0


def test_as_many_as_fit_when_they_are_announced_fit_when_they_are_decoded() -> None:
    budget = ByteBudget(80)
    held = [Reservation(budget) for _ in range(5)]
    for each in held[:4]:
        each.announce(10)
    with pytest.raises(ServiceBusy):
        held[4].announce(10)
    for each in held[:4]:
        each.arrive(10)
    for each in held[:4]:
        each.decode(10)
        each.decoded(10, 9)
    assert (budget.used, budget.to_come) == (80, 40)
    for each in held:
        each.release()
    assert (budget.used, budget.to_come) == (0, 0)


def test_of_what_is_announced_the_part_that_is_there_is_not_counted_twice() -> None:
    budget = ByteBudget(100)
    held = Reservation(budget)
    held.take(4)
    held.announce(10, arrived=4)
    assert (budget.used, budget.to_come) == (20, 16)


def test_what_decodes_to_more_than_its_size_is_counted_as_it_is() -> None:
    budget = ByteBudget(100)
    held = Reservation(budget)
    held.announce(10)
    held.arrive(10)
    held.decode(10)
    held.decoded(10, 40)
    assert (budget.used, budget.to_come) == (50, 10)
    held.release()
    held.announce(10)
    held.arrive(10)
    held.decode(10)
    with pytest.raises(ServiceBusy):
        held.decoded(10, 101)


def test_giving_back_too_much_is_a_bug_that_shows() -> None:
    with pytest.raises(AssertionError):
        ByteBudget(10).release(1)


def test_the_default_is_a_quarter_of_memory_at_most_two_gibibytes() -> None:
    assert default_budget() == min(2 << 30, memory_limit() // 4)
    assert memory_limit() > 1 << 20


@pytest.mark.parametrize("limit", [1, 99, 100, 1000, 256 << 20])
def test_the_largest_body_can_be_decoded_when_it_is_alone(limit: int) -> None:
    largest = largest_body(limit)
    for size, fits in ((largest, True), (largest + 1, False)):
        known, unknown = Reservation(ByteBudget(limit)), Reservation(ByteBudget(limit))
        unknown.take(size)
        if fits:
            known.announce(size)
            known.arrive(size)
            known.decode(size)
            unknown.decode(size)
        else:
            with pytest.raises(ServiceBusy):
                known.announce(size)
            with pytest.raises(ServiceBusy):
                unknown.decode(size)
