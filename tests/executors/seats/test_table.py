"""Who joins, runs and leaves: the decisions alone."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from penstock.executors.seats.table import Seats


@dataclass(eq=False)
class One:
    """A request."""

    name: str = ""
    unwanted: bool = False
    held_up: bool = False


def joined(seats: Seats[One]) -> list[str]:
    """The requests that can join now do; returns their names."""
    names = []
    while (one := seats.next()) is not None:
        seats.sit(one)
        names.append(one.name)
    return names


def table(count: int, *names: str) -> tuple[Seats[One], list[One]]:
    seats: Seats[One] = Seats(count)
    ones = [One(name) for name in names]
    for one in ones:
        seats.ask(one)
    return seats, ones


def names(ones: list[One]) -> list[str]:
    return [one.name for one in ones]


def test_requests_join_in_the_order_in_which_they_asked_while_there_are_seats() -> None:
    seats, _ = table(2, "a", "b", "c")
    assert seats.has_work
    assert joined(seats) == ["a", "b"]
    assert names(seats.ready()) == ["a", "b"]


def test_one_that_leaves_gives_its_seat_to_the_next() -> None:
    seats, (a, _, _) = table(2, "a", "b", "c")
    joined(seats)
    seats.leave(a)
    assert joined(seats) == ["c"]
    assert names(seats.ready()) == ["b", "c"]


def test_one_whose_reader_is_slow_keeps_its_seat_and_does_not_run() -> None:
    seats, (a, _) = table(2, "a", "b")
    joined(seats)
    a.held_up = True
    assert names(seats.ready()) == ["b"]
    a.held_up = False
    assert names(seats.ready()) == ["a", "b"], "in the order of joining"


def test_there_is_nothing_to_do_while_all_readers_are_slow() -> None:
    seats, (a, b, c) = table(2, "a", "b", "c")
    joined(seats)
    a.held_up = b.held_up = True
    assert not seats.has_work
    c.unwanted = True
    assert seats.has_work
    assert seats.withdrawn() == [c]
    assert not seats.has_work


def test_one_that_is_not_wanted_is_given_out_once_and_never_runs_again() -> None:
    seats, (a, b) = table(2, "a", "b")
    joined(seats)
    a.unwanted, a.held_up = True, True
    assert seats.has_work
    assert seats.leaving() == [a]
    assert seats.leaving() == []
    assert seats.ready() == [b]


def test_none_overtakes_one_that_does_not_fit_yet() -> None:
    seats, _ = table(3, "a", "b", "c")
    joined_first = seats.next()
    assert joined_first is not None
    seats.sit(joined_first)
    large = seats.next()
    assert large is not None
    seats.sit(large, runs=False)
    assert seats.next() is None
    assert names(seats.ready()) == ["a"]
    assert names(seats.joined) == ["a", "b"]
    seats.fit()
    assert joined(seats) == ["c"]
    assert names(seats.ready()) == ["a", "b", "c"]


def test_one_that_does_not_fit_may_leave() -> None:
    seats, (a, b) = table(2, "a", "b")
    assert seats.next() is a
    seats.sit(a, runs=False)
    a.unwanted = True
    assert seats.leaving() == [a]
    assert seats.next() is b
    seats.sit(b, runs=False)
    seats.leave(b)
    assert seats.fitting is None


def test_all_are_taken_out_at_the_end() -> None:
    seats, (a, b, c) = table(2, "a", "b", "c")
    joined(seats)
    assert seats.empty() == ([a, b], [c])
    assert not seats.has_work


EVENTS = st.lists(st.tuples(st.sampled_from("acsl"), st.integers(0, 7)), max_size=40)


@given(st.integers(1, 4), EVENTS)
def test_no_seat_is_free_beside_one_who_waits(count: int, events: list[tuple[str, int]]) -> None:
    seats: Seats[One] = Seats(count)
    waiting: list[One] = []
    sitting: list[One] = []
    for event, pick in events:
        one = sitting[pick % len(sitting)] if sitting else One()
        if event == "a":
            waiting.append(One())
            seats.ask(waiting[-1])
        elif event == "c":
            one.unwanted = True
        elif event == "s":
            one.held_up = not one.held_up
        elif event == "l" and one in sitting:
            seats.leave(one)
            sitting.remove(one)
        for each in seats.leaving():
            assert each.unwanted
            sitting.remove(each)
        while (joins := seats.next()) is not None:
            assert joins is waiting.pop(0)
            seats.sit(joins)
            sitting.append(joins)
        assert len(sitting) <= count
        assert not waiting or len(sitting) == count
        assert seats.ready() == [each for each in sitting if not each.held_up]
