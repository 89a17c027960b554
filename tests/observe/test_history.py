"""The history of a service: points of two reports, several engines, series."""

from __future__ import annotations

import tracemalloc
from typing import Any

import orjson
import pytest

from penstock.observe.counters import Counters
from penstock.observe.history import EVERY, MOST_BYTES, POINTS, History, number_at, point, series
from penstock.observe.sketch import Sketch


def durations(*seconds: float) -> dict[str, Any]:
    sketch = Sketch()
    sketch.add(seconds)
    return {"sum": sum(seconds), "sketch": sketch.plain()}


def op(name: str, waits: list[float], runs: list[float], **more: Any) -> dict[str, Any]:
    return {
        "name": name, "workers": 2, "waiting": 0, "batches": len(runs), "samples": len(waits),
        "timeouts": 0, "seconds": {"process": sum(runs)}, "queue": durations(*waits),
        "passes": durations(*runs), **more,
    }  # fmt: skip


def report(
    *seconds: float, failed: int = 0, version: str = "1", ops: tuple[dict[str, Any], ...] = ()
) -> dict[str, Any]:
    requests = {
        "answers": {"ok": len(seconds) - failed, "hook_failed": failed},
        "refusals": {"busy": 2 * failed},
        "seconds": durations(*seconds),
    }
    graph = {"name": "g", "version": version, "inside": 1, "requests": requests, "ops": [*ops]}
    return {"graphs": [graph]}


def shown(*points: tuple[int, Any], after: int = -1, ops: tuple[str, ...] = ()) -> dict[str, Any]:
    return series(points, (max(number for number, _ in points) + 1) * EVERY, after, ops)


def test_a_point_is_what_happened_between_two_reports() -> None:
    before = report(9.0, 9.0, ops=(op("a", [1.0], [1.0]),))
    now = report(
        9.0,
        9.0,
        *[0.1] * 8,
        0.4,
        0.4,
        failed=1,
        ops=(op("a", [1.0, 0.5, 0.5], [1.0, 5.0], waiting=3, errors=1),),
    )
    found = shown((7, point(before, now, 5.0)), ops=("a",))
    (graph,) = found["graphs"]
    assert (graph["name"], graph["version"]) == ("g", "1")
    assert (graph["rate"], graph["failed"], graph["refused"], graph["inside"]) == (
        [2.0], [0.2], [0.4], [1],
    )  # fmt: skip
    assert graph["p50"] == [pytest.approx(100, rel=0.02)]
    assert graph["p99"] == [pytest.approx(400, rel=0.02)]
    assert found["service"] == {k: v for k, v in graph.items() if k not in ("name", "version")}
    (shown_op,) = found["ops"]
    assert shown_op == {
        "name": "a", "rate": [0.4], "errors": [0.2], "timeouts": [0], "waiting": [3],
        "busy": [0.5], "batch": [2.0],
        "wait_p50": [pytest.approx(500, rel=0.02)], "wait_p99": [pytest.approx(500, rel=0.02)],
        "p50": [pytest.approx(5000, rel=0.02)], "p99": [pytest.approx(5000, rel=0.02)],
    }  # fmt: skip


def test_engines_are_added_up_and_percentiles_are_of_all_together() -> None:
    nothing = report(ops=(op("a", [], []),))
    quick = report(*[0.01] * 60, ops=(op("a", [0.0] * 60, [0.01] * 60),))
    slow = report(*[1.0] * 40, ops=(op("a", [0.0] * 40, [1.0] * 40, waiting=2),))
    points = [(4, point(nothing, each, 10.0)) for each in (quick, slow)]
    found = shown(*points, ops=("a",))
    assert found["service"]["rate"] == [10.0]
    assert found["service"]["inside"] == [2]
    assert found["service"]["p50"] == [pytest.approx(10, rel=0.02)]
    assert found["service"]["p99"] == [pytest.approx(1000, rel=0.02)]
    assert found["ops"][0]["busy"] == [1.0]  # 40.6 seconds of batches in 40 of four workers
    assert found["ops"][0]["waiting"] == [2]


def test_nothing_is_known_of_times_without_points_and_idle_ops_have_zeros() -> None:
    idle = point(report(ops=(op("a", [], []),)), report(ops=(op("a", [], []),)), 5.0)
    assert idle["ops"] == {}
    found = shown((3, idle), (5, idle), ops=("a",))
    assert found["first"] == 3
    assert found["service"]["rate"] == [0, None, 0]
    assert found["service"]["p50"] == [None, None, None]
    assert found["ops"][0]["rate"] == found["ops"][0]["busy"] == [0, None, 0]
    assert found["ops"][0]["batch"] == [None, None, None]


def test_a_version_has_nothing_before_it_came() -> None:
    one, two = report(0.1), report(0.1, version="2")
    both = {"graphs": [*one["graphs"], *two["graphs"]]}
    found = shown((0, point(one, one, 5.0)), (1, point(one, both, 5.0)))
    assert [(each["version"], each["rate"]) for each in found["graphs"]] == [
        ("1", [0, 0]), ("2", [None, 0.2]),
    ]  # fmt: skip
    assert found["service"]["rate"] == [0, 0.2]


def test_a_version_that_came_again_began_at_zero() -> None:
    before = report(*[0.1] * 9, ops=(op("a", [1.0] * 9, [1.0] * 9),))
    now = report(*[0.1] * 5, ops=(op("a", [1.0] * 5, [1.0] * 5),))
    found = shown((1, point(before, now, 5.0)), ops=("a",))
    (graph,), (of_op,) = found["graphs"], found["ops"]
    assert (graph["rate"], of_op["rate"], of_op["busy"]) == ([1.0], [1.0], [0.5])


def test_a_version_whose_content_is_replaced_is_one() -> None:
    before = report(*[0.1] * 5, ops=(op("a", [1.0] * 5, [1.0] * 5),))
    now = report(*[0.1] * 10, ops=(op("a", [1.0] * 10, [1.0] * 10),))
    new = {"name": "a", "workers": 1, "waiting": 2, "batches": 0, "samples": 0, "timeouts": 0}
    replacing = {"name": "g", "version": "1", "inside": 2, "ops": [new]}
    both = {"graphs": [*now["graphs"], replacing]}
    point_of_both = point(before, both, 5.0)
    (graph,) = point_of_both["graphs"].values()
    assert (graph["rate"], graph["inside"]) == (1.0, 3)
    assert point_of_both["ops"]["a"]["workers"] == 3
    assert point_of_both["ops"]["a"]["rate"] == 1.0
    (graph,) = point(both, report(*[0.1] * 15), 5.0)["graphs"].values()
    assert graph["rate"] == 1.0


def test_only_newer_points_of_the_last_minutes_are_shown() -> None:
    idle = point(report(), report(), 5.0)
    found = shown((1, idle), (2, idle), (3, idle), after=2)
    assert (found["first"], found["service"]["rate"]) == (3, [0])
    found = shown((3, idle), after=3)
    assert (found["first"], found["service"]["rate"]) == (4, [])
    found = shown((3, idle), (3 + POINTS, idle))
    assert (found["first"], found["service"]["rate"]) == (3 + POINTS, [0])


def test_a_history_keeps_the_latest_points_in_bounded_memory() -> None:
    history = History()
    idle = point(report(), report(), 5.0)
    for number in range(POINTS + 9):
        history.add(number, idle)
    kept = history.since(-1, ())
    assert [number for number, _ in kept] == [*range(9, POINTS + 9)]
    assert kept[0][1] == idle
    many = {f"op {i}": op("a", [0.1], [0.1])["queue"] | {"text": "x" * 9000} for i in range(100)}
    for number in range(POINTS):
        history.add(number, {"graphs": {}, "ops": many})
    kept = history.since(-1, ("op 3",))
    assert MOST_BYTES // 2 < len(kept) * 100 * 9000 <= MOST_BYTES
    assert [*kept[0][1]["ops"]] == ["op 3"]


def test_the_number_of_a_point_is_that_of_the_time_that_ends_now() -> None:
    assert [number_at(10 * EVERY + late) for late in (-0.1, 0.0, 0.2, 4.0)] == [9, 9, 9, 9]
    assert number_at(11 * EVERY - 0.1) == 10


def test_reports_have_what_points_need() -> None:
    counters = Counters()
    counters.ops["a"].waits += [0.5]
    seen = {"name": "a", "workers": 1, "waiting": 1, "batches": 0, "samples": 1, "timeouts": 0}
    graph: Any = type("Graph", (), {"key": ("g", "1")})
    counters.requests[graph.key].seconds += [0.25]
    now = {
        "name": "g", "version": "1", "inside": 0, "requests": counters.of_graph(graph),
        "ops": [{**seen, **counters.of_op("a")}],
    }  # fmt: skip
    found = shown((0, point({"graphs": []}, {"graphs": [now]}, 5.0)), ops=("a",))
    assert found["service"]["p50"] == [pytest.approx(250, rel=0.02)]
    assert found["ops"][0]["wait_p50"] == [pytest.approx(500, rel=0.02)]


def test_points_take_the_memory_of_their_bytes() -> None:
    made = point(report(), report(*(number / 1000 for number in range(300))), 5.0)
    kept = History()
    tracemalloc.start()
    try:
        for number in range(100):
            kept.add(number, made)
        used = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert used < 1.5 * 100 * len(orjson.dumps(made["graphs"]))
