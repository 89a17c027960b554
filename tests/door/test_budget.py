"""Bytes in flight are counted exactly, and refused at the limit."""

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


def test_bytes_beyond_the_limit_are_refused_and_not_counted() -> None:
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
def test_the_count_is_exact_for_any_taken_and_refused_bytes(takes: list[tuple[int, int]]) -> None:
    budget = ByteBudget(200)
    held = [Reservation(budget) for _ in range(4)]
    for count, index in takes:
        try:
            held[index].take(count)
        except ServiceBusy:
            held[index].release()
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


def test_decoded_bytes_are_counted_once_with_room_for_the_decoders_copy() -> None:
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
        held.decode(1)  # the decoded bytes would stay beyond the limit
    held.release()
    assert (budget.used, budget.to_come) == (65, 0)


def test_announced_bytes_not_yet_received_leave_room_for_the_decoders_copy() -> None:
    budget = ByteBudget(100)
    slow, complete = Reservation(budget), Reservation(budget)
    slow.announce(10)
    slow.arrive(5)
    complete.take(35)
    complete.decode(35)  # 5 + 35 + 35 + 35
    complete.release()
    slow.arrive(1)
    complete.take(35)
    with pytest.raises(ServiceBusy):
        complete.decode(35)
    complete.release()
    assert (slow.to_come, budget.to_come) == (14, 14)
    slow.release()
    complete.arrive(35)  # nothing was announced
    assert budget.to_come == 0


def test_all_bodies_that_could_be_announced_can_be_decoded() -> None:
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


def test_received_bytes_of_an_announced_body_are_counted_once() -> None:
    budget = ByteBudget(100)
    held = Reservation(budget)
    held.take(4)
    held.announce(10, arrived=4)
    assert (budget.used, budget.to_come) == (20, 16)


def test_a_body_larger_when_decoded_is_counted_with_its_decoded_size() -> None:
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


def test_releasing_too_many_bytes_raises_an_assertion_error() -> None:
    with pytest.raises(AssertionError):
        ByteBudget(10).release(1)


def test_the_default_budget_is_a_quarter_of_memory_and_at_most_2_gib() -> None:
    assert default_budget() == min(2 << 30, memory_limit() // 4)
    assert memory_limit() > 1 << 20


@pytest.mark.parametrize("limit", [1, 99, 100, 1000, 256 << 20])
def test_a_single_body_of_the_largest_size_can_be_decoded(limit: int) -> None:
    largest = largest_body(limit)
    for size, fits in ((largest, True), (largest + 1, False)):
        announced, unannounced = Reservation(ByteBudget(limit)), Reservation(ByteBudget(limit))
        unannounced.take(size)
        if fits:
            announced.announce(size)
            announced.arrive(size)
            announced.decode(size)
            unannounced.decode(size)
        else:
            with pytest.raises(ServiceBusy):
                announced.announce(size)
            with pytest.raises(ServiceBusy):
                unannounced.decode(size)
