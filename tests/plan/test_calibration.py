"""Costs are estimated from the report of a simulated service."""

from __future__ import annotations

import json

import pytest

from penstock.batching.costs import BatchCosts
from penstock.observe.chrome import trace
from penstock.observe.timeline import BatchTimes, Step, Timeline
from penstock.plan.calibration import Calibration, changed, line
from penstock.plan.costs import Costs, Line, OpCosts
from penstock.plan.recording import KEY, NoRecording, latencies_of, observations_of, requests_of
from tests.plan.seen import recording, status, step

WAITS = OpCosts(name="waits", wait=Line(0.0, 0.004), workers=40)
COMPUTES = OpCosts(
    name="computes", inputs=("waits",), cpu=Line(0.002, 0.0005), batch_size=8, workers=2
)
COSTS = Costs(ops=(WAITS, COMPUTES), engine=0.0002, client=0.0001, overhead=0.0003, cores=2.0)


def test_the_costs_of_a_simulated_service_are_estimated() -> None:
    found = Calibration(json.loads(json.dumps(recording(COSTS, 1, 6, 40))))
    costs = found.costs(found.full.rate)
    waits, computes = costs.ops
    assert waits.wait.of(1) == pytest.approx(0.004, rel=0.02)
    assert waits.cpu.of(1) == pytest.approx(0.0, abs=1e-6)
    for size in (1, 4):
        assert computes.cpu.of(size) == pytest.approx(COMPUTES.cpu.of(size), rel=0.05)
    assert (computes.inputs, computes.workers, computes.batch_size) == (("waits",), 2, 8)
    assert costs.engine == pytest.approx(0.0002, rel=0.02)
    assert costs.client == pytest.approx(0.0001, rel=0.02)
    assert costs.overhead == pytest.approx(0.0003, rel=0.1)
    assert costs.cores == pytest.approx(2.0, rel=0.02)
    assert not costs.locked
    assert all(abs(error) < 0.05 for check in found.checks for error in check.errors)


@pytest.mark.parametrize("locked", [False, True])
def test_a_shared_lock_of_threads_is_detected_from_the_throughput(locked: bool) -> None:
    op = OpCosts(name="op", cpu=Line(0.0, 0.002), workers=4)
    costs = Costs(ops=(op,), engine=0.0001, cores=2.0, locked=locked)
    assert Calibration(recording(costs, 1, 16)).costs(1.0).locked == locked


def test_the_overhead_is_estimated_with_parallel_branches() -> None:
    left, right = (OpCosts(name=name, cpu=Line(0.0, 0.002)) for name in ("left", "right"))
    costs = Costs(ops=(left, right), overhead=0.0005, cores=2.0)
    found = Calibration(recording(costs, 1, 8))
    assert found.costs(1.0).overhead == pytest.approx(0.0005, rel=0.1)


def test_threads_of_a_library_are_detected() -> None:
    op = OpCosts(name="op", cpu=Line(0.0, 0.004), threads=2)
    made = recording(Costs(ops=(op,), cores=2.0), 1, 4)
    for each in made[KEY]["steps"]:
        (now,) = each["after"]["graphs"][0]["ops"]
        now["threads"]["cpu"] /= 2  # the worker's part
    (found,) = Calibration(made).costs(1.0).ops
    assert found.threads == 2
    assert found.cost() == pytest.approx(0.002, rel=0.05)


def test_cores_used_by_other_programs_are_not_available() -> None:
    made = recording(COSTS, 1, 40)
    for each in made[KEY]["steps"]:
        each["busy"] += 0.5 * each["seconds"]
    found = Calibration(made)
    assert found.costs(1.0).cores == pytest.approx(1.5, rel=0.03)


def test_changed_settings_replace_those_of_the_costs() -> None:
    found = changed(COSTS, {"waits": {"workers": 3}, "": {"most_running": 5}})
    assert found.op("waits").workers == 3
    assert found.op("computes") == COMPUTES
    assert found.most_running == 5


@pytest.mark.parametrize(
    ("sizes", "seconds", "expected"),
    [
        ([1, 2, 4], [3, 4, 6], Line(2, 1)),
        ([2, 2], [4, 4], Line(0, 2)),
        ([1, 4], [5, 3], Line(4, 0)),
        ([1, 4], [1, 8], Line(0, 9 / 5)),
    ],
)
def test_a_fitted_line_has_no_negative_slope_or_base(
    sizes: list[float], seconds: list[float], expected: Line
) -> None:
    found = line(sizes, seconds, [1.0] * len(sizes))
    assert (found.base, found.each) == pytest.approx((expected.base, expected.each))


def timeline(number: int, seconds: float) -> Timeline:
    batch = BatchTimes(
        op="waits", number=number, worker=0, reason="full", rows=1, data_ids=[number],
        closed=1.0, began=1.0, prepared=0.0, processed=seconds, ran=seconds, returned=1.0 + seconds,
    )  # fmt: skip
    return Timeline(
        engine=0, graph="g", route="/g", data_id=number, log_id=0, trace="", began=1.0,
        admitted=1.0, replied=1.0 + seconds, ended=1.0 + seconds, status=200, error=None,
        method="POST", trace_state="", steps=[Step("waits", 1.0, 1, batch)],
    )  # fmt: skip


def test_the_times_of_requests_are_read_from_a_trace() -> None:
    found = trace([timeline(1, 0.002), timeline(2, 0.006)])
    assert [each["waits"] for each in requests_of(found)] == pytest.approx([0.002, 0.006])
    assert latencies_of(found) == pytest.approx([0.002, 0.006])
    made = Calibration({**found, **recording(COSTS, 1)})
    assert [each["waits"] for each in made.costs(1.0).requests] == pytest.approx([0.5, 1.5])


def test_a_trace_with_status_is_enough_for_a_calibration() -> None:
    made = recording(COSTS, 4)
    made[KEY]["steps"][0]["load"] = None
    found = Calibration({**trace([timeline(1, 0.0045)]), **made})
    assert found.checks == []
    assert found.costs(1.0).client == 0.0
    assert found.costs(1.0).op("computes").cpu.of(1) > 0


def test_what_the_service_has_learned_of_batches_is_in_the_costs() -> None:
    made = recording(COSTS, 1, 40)
    learned = BatchCosts()
    light, full = made[KEY]["steps"]
    for each in (full, light):  # the levels may be given in any order
        for _ in range(16):
            for rows in (1, 8):
                learned.learn(rows, 0, 0.002 + 0.0005 * rows)
        each["after"]["graphs"][0]["ops"][1]["costs"] = learned.report()
    full["after"]["graphs"][0]["ops"][1]["costs"]["words"] = "an older text"
    waits, computes = Calibration(json.loads(json.dumps(made))).costs(1.0).ops
    assert (waits.words, computes.words) == ("", "8 rows cost 2.4 × one")


@pytest.mark.parametrize(
    "wrong",
    [
        {},
        {"traceEvents": []},
        {KEY: {"steps": []}},
        {KEY: {"steps": [{"before": 1, "after": 2}]}},
        {KEY: {"steps": [{**step(COSTS, 1), "after": status(COSTS)}]}},
    ],
)
def test_an_invalid_recording_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(NoRecording):
        observations_of(wrong)


def test_a_recording_with_an_op_without_batches_is_refused() -> None:
    made = recording(COSTS, 1)
    made[KEY]["steps"][0]["after"]["graphs"][0]["ops"][0]["batches"] = 0
    with pytest.raises(NoRecording, match="has run no batch"):
        observations_of(made)
