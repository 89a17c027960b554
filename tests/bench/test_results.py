"""Percentiles, errors, the server's figures and limits."""

from __future__ import annotations

import math
from array import array
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.bench.results import (
    Limits,
    Measured,
    Percentiles,
    StepResult,
    ops_between,
    result_of,
)
from penstock.bench.schedule import Step


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=2000))
def test_percentiles_are_computed_by_nearest_rank(values: list[float]):
    found, ordered = Percentiles.of(values), sorted(values)
    for share, value in ((50, found.p50), (90, found.p90), (95, found.p95), (99, found.p99)):
        assert value == ordered[math.ceil(share * len(values) / 100) - 1]
    assert found.max == ordered[-1]
    assert found.mean == pytest.approx(sum(values) / len(values))


def test_percentiles_of_no_values_are_empty():
    assert Percentiles.of([]) == Percentiles()


def measured(latencies: list[float], **more: Any) -> Measured:
    return Measured(
        latencies=array("d", latencies),
        from_sending=array("d", latencies),
        good=len(latencies),
        answered=len(latencies),
        seconds=2.0,
        **more,
    )


def test_the_parts_of_several_processes_are_combined():
    found = result_of(
        Step(concurrency=2),
        [
            measured(
                [0.1, 0.2], busy=0.5, errors=Counter({"HTTP 503": 1}), texts={"HTTP 503": "a"}
            ),
            measured([0.3], busy=1.9, errors=Counter({"HTTP 503": 2}), interrupted=True),
        ],
    )
    assert (found.requests, found.good, found.failed, found.rate) == (6, 3, 3, 1.5)
    assert (found.latency.p50, found.latency.max) == (0.2, 0.3)
    assert found.errors == {"HTTP 503": 3}
    assert found.texts == {"HTTP 503": "a"}
    assert found.interrupted
    assert found.client_busy == 0.95
    (remark,) = found.remarks
    assert remark == "the client is the limit: it computed, or waited for a core, 95 % of the time"


def test_a_client_that_sends_late_is_remarked():
    found = result_of(Step(rate=2), [measured([0.01] * 4, lags=array("d", [0.004]))])
    assert found.remarks == ["the client is the limit: it sent up to 4.0 ms late (p99)"]


def test_a_service_that_does_not_keep_up_is_remarked():
    late = measured([0.1] * 10)
    late.answered = 4
    assert result_of(Step(rate=5), [late]).remarks == ["the service did not keep up with 5/s"]
    assert result_of(Step(rate=5), [measured([0.1] * 10)]).remarks == []


def report(batches: int, samples: int, process: float, name: str = "det") -> dict[str, Any]:
    seconds = {"preprocess": 0.0, "process": process, "postprocess": 0.5}
    op = {"name": name, "batches": batches, "samples": samples, "waiting": 3, "seconds": seconds}
    op["queue"] = {"sum": samples / 10}
    return {"graphs": [{"name": "ocr", "version": "1", "ops": [op]}]}


def test_the_ops_times_are_differences_over_the_step():
    (op,) = ops_between(report(10, 20, 1.0), report(14, 36, 3.0))
    assert (op.name, op.batches, op.samples, op.batch_size, op.waiting) == ("det", 4, 16, 4.0, 3)
    assert (op.queue, op.preprocess, op.process, op.postprocess) == (0.1, 0.0, 0.5, 0.0)


def test_idle_ops_are_omitted_and_new_ones_are_included():
    assert ops_between(report(10, 20, 1.0), report(10, 20, 1.0)) == ()
    (op,) = ops_between(report(10, 20, 1.0), report(2, 2, 1.0, name="rec"))
    assert (op.name, op.batches, op.process) == ("rec", 2, 0.5)


def result(latency: float, *, failed: int = 0, good: int = 10) -> StepResult:
    part = measured([latency] * good, errors=Counter({"timeout": failed}))
    return result_of(Step(concurrency=1), [part])


def test_exceeded_limits_are_listed():
    limits = Limits(max_p99=0.05, max_errors=0, min_rate=6)
    assert limits.broken(result(0.0521, failed=2)) == [
        "p99 52.1 ms > 50 ms",
        "2 errors > 0",
        "5.0 answers a second < 6",
    ]
    assert Limits(max_p99=0.05, max_errors=2, min_rate=5).broken(result(0.05, failed=2)) == []


def test_a_step_without_a_good_answer_exceeds_the_limits():
    assert Limits().broken(result(0.1, failed=1, good=0)) == ["no good answer"]
