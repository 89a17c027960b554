"""Limits, forecasts, doubts, advice and changes of a configuration."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import pytest

from penstock.plan.advice import advice, improved
from penstock.plan.calibration import Calibration, changed
from penstock.plan.costs import Costs, Line, OpCosts
from penstock.plan.prediction import Planner, bounds, critical_path, needed, per_second
from penstock.plan.recording import KEY
from penstock.plan.report import Comparison, Plan, comparisons, lines_of, lines_of_comparisons
from penstock.plan.settings import UnknownSetting, changes_of, settings_diff
from tests.plan.seen import recording

DET = OpCosts(name="det", wait=Line(0.0, 0.010), stages=(0.0, 0.010, 0.0))
REC = OpCosts(name="rec", inputs=("det",), cpu=Line(0.0, 0.004), stages=(0.003, 0.0005, 0.0005))
SIDE = OpCosts(name="side", cpu=Line(0.0, 0.002))
LAST = OpCosts(name="last", inputs=("rec", "side"), cpu=Line(0.0, 0.001))
COSTS = Costs(ops=(DET, REC, SIDE, LAST), engine=0.0001, client=0.0001, cores=2.0)


def test_the_documented_formulas() -> None:
    assert needed(DET, 50, 1.0) == pytest.approx(0.5)  # op_concurrency
    assert bounds(COSTS)[0].rate == pytest.approx(100)  # service_throughput
    assert sum(op.cost() for op in critical_path(COSTS)) == pytest.approx(0.015)
    assert [op.name for op in critical_path(COSTS)] == ["det", "rec", "last"]
    batched = OpCosts(name="op", cpu=Line(0.006, 0.001), batch_size=3)
    assert batched.cost(3) / 3 == pytest.approx(0.003)  # avg_batch_cost


@pytest.mark.parametrize(
    ("costs", "kind", "rate"),
    [
        (COSTS, "op", 100),
        (replace(COSTS, ops=(replace(DET, workers=2), *COSTS.ops[1:]), engines=2), "cores", 277.8),
        (replace(COSTS, locked=True, ops=(replace(DET, workers=4), *COSTS.ops[1:])), "lock", 140.8),
        (replace(COSTS, engine=0.02), "loop", 50),
        (replace(COSTS, most_running=1), "worker_num", 66.2),
    ],
)
def test_the_bottleneck_is_the_lowest_limit(costs: Costs, kind: str, rate: float) -> None:
    bottleneck = bounds(costs)[0]
    assert bottleneck.kind == kind
    assert bottleneck.rate == pytest.approx(rate, rel=0.01)


def test_settings_are_changed_until_the_rate_is_reached() -> None:
    better, reasons = improved(COSTS, 200)
    assert [op.workers for op in better.ops] == [3, 1, 1, 1]
    assert reasons == [
        "op_concurrency of det at 200/s is 2.00: 3 workers in place of 1, so that at most 80 %"
        " are busy"
    ]
    assert settings_diff(COSTS, better).splitlines() == [
        "--- config.yml",
        "+++ config.yml",
        "@@ -1,3 +1,3 @@",
        " op:",
        "   det:",
        "-    concurrency: 1",
        "+    concurrency: 3",
    ]
    same, none = improved(COSTS, 50)
    assert (same, none, settings_diff(COSTS, same)) == (COSTS, [], "")


def test_settings_of_functions_and_models_are_shown_as_they_are_written() -> None:
    routes = tuple(replace(op, given_by=f"route('/{op.name}')") for op in COSTS.ops)
    costs = replace(COSTS, locked=True, engine=0.01, ops=routes)
    changes = changes_of(
        ["det.workers=3", "rec.batch=8", "rec.wait=5", "rec.executor=process"], costs
    )
    several = {"": {"engines": 2, "most_running": None}}
    assert settings_diff(costs, changed(costs, {**changes, **several})).splitlines() == [
        "--- options",
        "+++ options",
        "@@ -1,3 +1,3 @@",
        "-App or Service: build_dag_each_worker=False",
        "-route('/det'): workers=1",
        "-route('/rec'): batch=1, wait=0, executor='thread'",
        "+App or Service: build_dag_each_worker=True, worker_num=2",
        "+route('/det'): workers=3",
        "+route('/rec'): batch=8, wait=5, executor='process'",
    ]
    with pytest.raises(UnknownSetting, match="can be planned: workers, batch, wait, executor"):
        changes_of(["det.colour=red"], costs)


def test_every_limit_but_the_cores_is_raised_by_a_setting() -> None:
    locked, _ = improved(replace(COSTS, locked=True), 150)
    assert locked.op("rec").place == "process"
    assert "+    executor: process" in settings_diff(replace(COSTS, locked=True), locked)
    loops, _ = improved(replace(COSTS, engine=0.01), 100)
    assert (loops.engines, loops.most_running) == (2, None)
    assert "+build_dag_each_worker: true" in settings_diff(replace(COSTS, engine=0.01), loops)
    inside, _ = improved(replace(COSTS, most_running=1), 75)
    assert inside.most_running == 2
    beyond, _ = improved(COSTS, 5000)
    assert bounds(beyond)[0].kind == "cores"


def planner(**changes: dict[str, object]) -> Planner:
    return Planner(Calibration(recording(COSTS, 1, 4, 16)), changes, 10.0)


@pytest.fixture(scope="module")
def found() -> Planner:
    """For the measured settings; shared, as a forecast takes seconds and a planner caches it."""
    return planner()


def test_a_forecast_for_the_measured_settings_agrees_with_the_measurement(found: Planner) -> None:
    assert found.most.rate == pytest.approx(100, rel=0.05)
    assert found.usual == pytest.approx(70, rel=0.05)
    at_rate = found.open(60)
    assert at_rate.rate == 60
    assert 0.015 < at_rate.p50 < at_rate.p95 < 0.1
    assert found.doubts(found.most) == found.doubts(at_rate) == []


def test_a_forecast_for_other_settings() -> None:
    found = planner(det={"workers": 3})
    assert found.most.rate == pytest.approx(250, rel=0.05)  # rec is then the slowest
    assert found.costs(1.0).op("det").workers == 3


def test_forecasts_have_their_doubts(found: Planner) -> None:
    beyond = found.open(150)
    assert (beyond.rate, beyond.p95) == (found.most.rate, inf)
    assert "more than the throughput" in found.doubts(beyond)[0]
    near = found.doubts(found.open(0.95 * found.most.rate))
    assert any("% of the throughput" in each for each in near)
    steep = found.doubts(found.open(0.85 * found.most.rate))
    assert any("if costs were 10 % higher, it would be" in each for each in steep)
    made = recording(COSTS, 1, 4)
    for each in made[KEY]["steps"]:
        each["busy"] += each["seconds"]
        each["load"]["rate"] *= 0.7
        each["load"]["failed"] = 3
    made[KEY]["steps"][0]["after"]["graphs"].append(made[KEY]["steps"][0]["after"]["graphs"][0])
    noisy = Planner(Calibration(made), {"det": {"batch_size": 8, "place": "process"}}, 5.0)
    advice_lines = "\n".join(noisy.doubts(noisy.most))
    for part in (
        "other programs kept 1.0 cores busy",
        "of the measuring run itself, with 1 in flight",
        "3 requests failed",
        "fuller ones cost is extrapolated",
        "handing requests to other workers of det",
    ):
        assert part in advice_lines


def test_advice_uses_the_documented_terms(found: Planner) -> None:
    advice_lines = advice(COSTS, found.open(97))
    assert advice_lines[0].startswith(
        "process is 100 % of op_cost of det: more concurrency, auto-batching"
    )
    assert any("wait before det, more than 5" in each for each in advice_lines)
    cores = replace(COSTS, ops=(replace(DET, workers=9), replace(REC, workers=9), SIDE, LAST))
    advice_lines = advice(replace(cores, client=0.001), found.open(60))
    assert advice_lines[0].startswith(
        "more concurrency does not help where the cores are the limit: rec"
    )
    assert advice_lines[1] == "preprocess is 75 % of op_cost of rec: more concurrency, better code"
    assert "the client takes 1000 us of CPU a request" in advice_lines[2]


def test_settings_are_parsed_with_the_configurations_keys() -> None:
    found = changes_of(
        ["det.concurrency=3", "op.rec.batch_size=8", "rec.auto_batching_timeout=5",
         "rec.executor=process", "worker_num=4"],
        COSTS,
    )  # fmt: skip
    assert found == {
        "det": {"workers": 3},
        "rec": {"batch_size": 8, "window": 0.005, "place": "process"},
        "": {"most_running": 4},
    }
    assert changes_of(["dag.is_thread_op=false"], COSTS)["side"] == {"place": "process"}
    several = changes_of(["build_dag_each_worker=true", "worker_num=2"], replace(COSTS, engines=2))
    assert several[""]["engines"] == 2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("det.concurrency", "write KEY=VALUE"),
        ("det.concurrency=many", "the value is none of det.concurrency"),
        ("det.concurrency=0", "the value is none"),
        ("det.colour=red", "can be planned: concurrency, batch_size"),
        ("dat.concurrency=1", "of the ops det, rec, side, last"),
    ],
)
def test_settings_that_cannot_be_planned_are_refused(text: str, message: str) -> None:
    with pytest.raises(UnknownSetting, match=message):
        changes_of([text], COSTS)


def test_predicted_and_measured_values_are_compared(found: Planner) -> None:
    forecast = found.open(60)
    rate, _, p95 = comparisons(forecast, 61.0, 58.0, 0.02, forecast.p95 / 1.5)
    assert rate.kept
    assert not p95.kept
    assert p95.error == pytest.approx(0.5)
    assert "missed" in lines_of_comparisons([rate, p95], 0.0)[-1]
    assert not Comparison(what="x", predicted=1.0, measured=0.0, limit=0.1).kept


def test_a_plan_says_what_batches_cost_where_the_service_says_it(found: Planner) -> None:
    words = {"det": "not known yet", "rec": "8 rows cost 1.9 × one"}
    ops = tuple(replace(op, words=words.get(op.name, "")) for op in COSTS.ops)
    at_rate = replace(found.open(60), costs=replace(COSTS, ops=ops))
    plan = Plan(
        source="x", rate=60, most=found.most, at_rate=at_rate, doubts=(), advice=(), diff=""
    )
    assert [line for line in lines_of(plan) if line.startswith("batches of")] == [
        "batches of det: not known yet",
        "batches of rec: 8 rows cost 1.9 × one",
    ]


def test_rates_are_shown_without_an_exponent() -> None:
    assert [per_second(rate) for rate in (0.0712345, 281.04, 7813.7, 49037.2)] == [
        *("0.07123", "281", "7814", "49037")
    ]
