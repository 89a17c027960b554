"""The points that an engine adds to its history."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.admin.history import Historian
from penstock.observe.history import EVERY
from penstock.testing.clock import ManualClock


def report(answers: int) -> dict[str, Any]:
    requests = {"answers": {"ok": answers}, "refusals": {}, "seconds": {"sketch": {"3": answers}}}
    graph = {"name": "g", "version": "1", "inside": 0, "requests": requests, "ops": []}
    return {"graphs": [graph]}


def test_a_point_is_made_of_what_came_since_the_one_before() -> None:
    clock, answers = ManualClock(10 * EVERY), [7]
    kept: dict[int, Any] = {}
    history = Historian(lambda: report(answers[0]), kept.__setitem__, clock.now)
    for more, late in ((10, 0.01), (0, 0.02), (5, -0.01)):
        answers[0] += more
        clock.advance(EVERY + late)
        history.take()
    found = history.answer(-1, ())
    assert [*kept.items()] == found
    assert [*kept] == [10, 11, 12]
    assert [each["graphs"]['["g","1"]']["sketch"] for _, each in found] == [{"3": 10}, {}, {"3": 5}]
    assert found[0][1]["graphs"]['["g","1"]']["rate"] == pytest.approx(10 / (EVERY + 0.01))


def test_times_without_a_turn_of_the_loop_have_no_points() -> None:
    clock, answers = ManualClock(10 * EVERY + 1.0), [0]
    history = Historian(lambda: report(answers[0]), now=clock.now)
    clock.advance(4 * EVERY)
    answers[0] += 40
    history.take()
    ((number, made),) = history.answer(-1, ())
    assert (number, made["graphs"]['["g","1"]']["rate"]) == (13, 2.0)
