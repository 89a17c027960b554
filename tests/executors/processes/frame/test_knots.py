from __future__ import annotations

from typing import Any

from penstock.executors.processes.frame.knots import knots_of


def test_a_tree_has_no_knots() -> None:
    shared = [1]
    assert knots_of({"a": [shared, (shared,)], "b": {"c": shared}}) == frozenset()
    assert knots_of("abc") == frozenset()


def test_what_contains_itself_is_a_knot_and_what_contains_that_is_none() -> None:
    knot: list[Any] = []
    knot.append(knot)
    assert knots_of({"a": [1, (2, knot)]}) == {id(knot)}


def test_a_circle_of_several_is_found_as_a_whole() -> None:
    first: list[Any] = []
    second = {"first": first}
    third = (second,)
    beside: list[Any] = []
    first += [beside, third]
    assert knots_of([first]) == {id(first), id(second), id(third)}


def test_two_circles_are_found() -> None:
    one: list[Any] = []
    one.append([one])
    two: list[Any] = []
    two.append({"two": two})
    found = knots_of([one, two, one])
    assert found == {id(one), id(one[0]), id(two), id(two[0])}


def test_neither_depth_nor_number_takes_long() -> None:
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep, deep]
    assert knots_of(deep) == frozenset()
    everyone: list[Any] = [[] for _ in range(300)]
    for each in everyone:
        each.extend(everyone)
    assert len(knots_of(everyone)) == 300
