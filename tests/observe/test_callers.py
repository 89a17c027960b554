"""Counts of callers: what is counted, and how many callers have a count of their own."""

from __future__ import annotations

from penstock.observe.callers import CANCELLED, MOST, OTHERS, SERIES, SHOWN, Callers, most_active


def test_requests_failures_and_refusals_are_counted_by_caller() -> None:
    callers = Callers()
    for code in (None, "hook_failed", CANCELLED, "busy", "busy"):
        callers.count("ann", code, refused=code == "busy")
    callers.count("bob", None, refused=False)
    assert callers.plain() == [
        {"name": "ann", "requests": 5, "failed": 1, "cancelled": 1, "refused": {"busy": 2}},
        {"name": "bob", "requests": 1, "failed": 0, "cancelled": 0, "refused": {}},
    ]


def test_memory_is_bounded_and_no_request_is_lost() -> None:
    callers = Callers()
    for number in range(5 * MOST):
        callers.count("ann", None, refused=False)
        callers.count(f"caller {number}", "busy", refused=number % 2 == 0)
    found = {each["name"]: each for each in callers.plain()}
    assert len(found) <= MOST + 1
    assert found["ann"]["requests"] == 5 * MOST
    assert sum(each["requests"] for each in found.values()) == 10 * MOST
    assert sum(each["failed"] for each in found.values()) == 2.5 * MOST
    assert sum(each["refused"].get("busy", 0) for each in found.values()) == 2.5 * MOST


def test_no_count_of_a_series_decreases_and_none_is_of_a_token() -> None:
    callers = Callers()
    before: dict[str, int] = {}
    for number in range(5 * MOST):
        callers.count(f"caller {number}", None, refused=False)
        callers.count(f"jwt:ann {number}", None, refused=False)
        if number % 16 == 0:
            callers.count("caller 3", "busy", refused=True)
            now = {each["name"]: each["requests"] for each in callers.series()}
            assert all(now[name] >= count for name, count in before.items())
            assert sum(now.values()) == 2 * number + 3 + number // 16
            before = now
    assert set(before) == {*(f"caller {number}" for number in range(SERIES)), OTHERS}


def test_the_most_active_callers_are_shown_and_the_others_together() -> None:
    callers = Callers()
    for number in range(SHOWN + 3):
        for _ in range(number + 1):
            callers.count(f"caller {number}", None, refused=False)
    callers.count(OTHERS, "busy", refused=True)
    shown = most_active(callers.plain())
    assert [each["requests"] for each in shown[:-1]] == [*range(SHOWN + 3, 3, -1)]
    assert shown[-1] == {
        "name": OTHERS,
        "requests": 7,
        "failed": 0,
        "cancelled": 0,
        "refused": {"busy": 1},
    }
    assert most_active(shown) == shown
    assert most_active([]) == []
