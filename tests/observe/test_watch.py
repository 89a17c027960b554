"""The table of ``penstock status --watch``, from two reports."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.executors.workers.places import Places
from penstock.observe.sketch import Sketch
from penstock.observe.watch import aligned, bottleneck, quantiles, table


def durations(seconds: float, number: int) -> dict[str, Any]:
    sketch = Sketch()
    sketch.add([seconds] * number)
    return {"sum": seconds * number, "sketch": sketch.plain()}


def op(name: str, batches: int, seconds: float, **more: Any) -> dict[str, Any]:
    return {
        "name": name, "workers": 2, "idle": 1, "waiting": 3, "batches": batches,
        "samples": 2 * batches, "seconds": {"process": seconds},
        "queue": durations(0.001, 2 * batches), **more,
    }  # fmt: skip


def report(
    answered: int, *ops: dict[str, Any], loop: float = 0.0, ready: bool = True
) -> dict[str, Any]:
    return {
        "engines": 1, "ready": ready, "why": "starting", "process": {"loop": loop},
        "requests": {"answered": answered, "refused": 0, "inside": 4},
        "answers": {"ok": answered - 1 if answered else 0},
        "seconds": durations(0.0075, answered),
        "graphs": [{"ops": [*ops]}],
    }  # fmt: skip


BEFORE = report(0, op("det", 10, 1.0), op("rec", 10, 0.5))
NOW = report(40, op("det", 30, 4.8, errors=2), op("rec", 30, 0.9), loop=0.2)


def test_the_table_has_a_line_for_each_op_and_names_the_bottleneck() -> None:
    head, _, columns, det, rec, _, last = table(BEFORE, NOW, 2.0).splitlines()
    assert head.startswith("ready   20.0 answers/s   p50 7.5 ms   p99 7.5 ms   failed 1")
    assert det.split()[:7] == ["det", "95%", "1/2", "3", "20.0", "2.0", "190.00"]
    assert det.endswith("errors 2")
    assert rec.split()[:2] == ["rec", "10%"]
    assert columns.index("load") + 4 == det.index("95%") + 3 == rec.index("10%") + 3
    assert last == "bottleneck: det, its workers are busy 95%, 3 requests wait"


def test_an_op_that_is_new_since_the_last_report_counts_from_zero() -> None:
    lines = table(report(0), report(0, op("new", 1, 0.1), ready=False), 1.0).splitlines()
    assert lines[0].startswith("not ready: starting")
    assert lines[3].split()[:2] == ["new", "5%"]


def test_an_op_with_seats_has_steps_instead_of_batches() -> None:
    def seated(count: int, running: float, seconds: float) -> dict[str, Any]:
        sums = {"running": {"sum": running}, "seconds": {"sum": seconds}}
        return op("write", count, 1.0, steps={"count": count, **sums})

    before, now = report(0, seated(10, 15.0, 0.1)), report(9, seated(30, 265.0, 0.18))
    row = table(before, now, 1.0).splitlines()[3]
    assert row.split()[5:7] == ["-", "-"]
    assert row.endswith("12.5 a step  4.00 ms a step")
    assert table(report(0), now, 1.0).splitlines()[3].endswith("8.8 a step  6.00 ms a step")
    assert "step" not in table(now, now, 1.0)


def test_workers_that_are_missing_are_counted() -> None:
    places = Places(3, 0.0)
    places.runs(0, 1, 0.0)
    places.failed(1, "ValueError")
    there = op("far", 10, 1.0, places=places.plain(1.0)[0])
    row = table(report(0), report(1, there), 1.0).splitlines()[3]
    assert row.endswith("  1 of 3 workers are missing")


def test_the_bottleneck_may_be_the_loop_or_nothing() -> None:
    assert "event loop, busy 90%" in bottleneck(report(0), report(0, loop=1.8), 2.0)
    idle = report(0, op("det", 10, 1.0))
    assert bottleneck(idle, idle, 2.0) == "no bottleneck; the busiest op is det, 0%"
    assert bottleneck(report(0), report(0), 1.0) == "no bottleneck"


def test_quantiles_are_of_the_durations_between_the_reports() -> None:
    before, sketch = durations(10.0, 100), Sketch()
    sketch.add([10.0] * 100 + [0.001] * 98 + [7.0] * 2)
    half, most = quantiles(before, {"sketch": sketch.plain()})
    assert float(half.removesuffix(" ms")) == pytest.approx(1.0, rel=0.05)
    assert float(most.removesuffix(" ms")) == pytest.approx(7000.0, rel=0.02)
    assert quantiles(before, before) == quantiles({}, {}) == ("-", "-")


def test_columns_are_aligned() -> None:
    assert aligned([["a", "10"], ["bcd", "2", "x"]]) == ["a    10", "bcd   2  x"]
