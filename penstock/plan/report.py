"""A plan as text and JSON. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from penstock.plan.calibration import P95_LIMIT, RATE_LIMIT
from penstock.plan.costs import Costs
from penstock.plan.prediction import (
    OTHERS,
    Bound,
    Forecast,
    bounds,
    critical_path,
    needed,
    per_second,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The contents of a plan.

    Attributes:
        source: the source of costs.
        rate: planned requests per second.
        most: the forecast of the throughput.
        at_rate: the forecast at the planned rate.
        doubts: reasons why the plan may be wrong.
        advice: recommended changes with reasons.
        diff: the recommended changes of the configuration.
    """

    source: str
    rate: float
    most: Forecast
    at_rate: Forecast
    doubts: Sequence[str]
    advice: Sequence[str]
    diff: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """A predicted figure beside the measured one."""

    what: str
    predicted: float
    measured: float
    limit: float

    @property
    def error(self) -> float:
        """The relative error of the prediction."""
        return self.predicted / self.measured - 1.0 if self.measured else math.inf

    @property
    def kept(self) -> bool:
        """Whether the error is within the limit."""
        return abs(self.error) <= self.limit


def comparisons(
    forecast: Forecast, came: float, rate: float, p50: float, p95: float
) -> tuple[Comparison, ...]:
    """Compare a forecast with measurements.

    Args:
        forecast: the forecast.
        came: measured requests per second; random arrivals differ from the planned rate.
        rate: measured answers per second.
        p50: measured p50 of the latency, in seconds.
        p95: measured p95 of the latency, in seconds.
    """
    load = (
        f"{forecast.in_flight} in flight" if forecast.wished is None else f"{forecast.wished:g}/s"
    )
    predicted = forecast.rate if forecast.wished is None else min(forecast.rate, came)
    return (
        Comparison(what=f"{load}: answers/s", predicted=predicted, measured=rate, limit=RATE_LIMIT),
        Comparison(
            what=f"{load}: p50 ms",
            predicted=1000 * forecast.p50,
            measured=1000 * p50,
            limit=math.inf,
        ),
        Comparison(
            what=f"{load}: p95 ms",
            predicted=1000 * forecast.p95,
            measured=1000 * p95,
            limit=P95_LIMIT,
        ),
    )


def lines_of(plan: Plan) -> list[str]:
    """Return the plan as lines of text."""
    costs, most, at_rate = plan.at_rate.costs, plan.most, plan.at_rate
    engines = f"{costs.engines} engine{'s' if costs.engines > 1 else ''}"
    lines = [
        f"{plan.source}: {engines}, {costs.cores:.1f} cores",
        f"{'op':<14}{'ms of a batch in its stages':>29}{'op_cost':>9}{'CPU ms':>8}{'most/s':>9}"
        f"{'workers':>9}{'needed':>8}{'busy':>6}{'batch':>7}{'queue ms':>10}{'waiting':>9}",
    ]
    lines += [_op(costs, at_rate, name) for name in (op.name for op in costs.ops)]
    lines += [f"batches of {op.name}: {op.words}" for op in costs.ops if op.words]
    path = critical_path(costs)
    average = 1000 * sum(op.cost() for op in path)
    first, *others = bounds(most.costs)
    lines += [
        f"engine {1e6 * costs.engine:.0f} us, client {1e6 * costs.client:.0f} us of CPU a request",
        f"service_avg_cost: {average:.2f} ms, along {' -> '.join(op.name for op in path)}",
        f"throughput: {per_second(most.rate)}/s, with {most.in_flight} requests in flight (p95"
        f" {_ms(most.p95)} ms)",
        f"bottleneck: {_bound(first)}; then {', '.join(map(_bound, others[:2]))}",
        _waiting(at_rate),
    ]
    lines += [f"doubt: {each}" for each in plan.doubts]
    lines += [f"advice: {each}" for each in plan.advice]
    return [*lines, *plan.diff.splitlines()]


def _bound(bound: Bound) -> str:
    return f"{bound} ({per_second(bound.rate)}/s)"


def _waiting(forecast: Forecast) -> str:
    found = forecast.simulated
    if found is None:
        return f"at {forecast.wished:g}/s: overload, the rate is above the throughput"
    low, high = forecast.p95_by_chance
    return (
        f"at {forecast.wished:g}/s: mean {_ms(forecast.mean)}, p50 {_ms(forecast.p50)}, p95"
        f" {_ms(forecast.p95)} ms ({_ms(low)} to {_ms(high)} by chance); {found.cores:.2f} of"
        f" {forecast.costs.cores:.1f} cores busy"
    )


def _op(costs: Costs, forecast: Forecast, name: str) -> str:
    op = costs.op(name)
    stages = " + ".join(f"{1000 * each:.2f}" for each in op.stages)
    found = forecast.simulated
    size = found.ops[name].batch if found else float(op.batch_size)
    most = costs.engines * op.workers * op.batch_size / op.cost(op.batch_size) if op.cost() else 0
    busy = needed(op, forecast.wished or forecast.rate, size)
    line = (
        f"{name:<14}{stages:>29}{1000 * op.cost(size) / size:>9.2f}"
        f"{1000 * op.cpu.of(size) / size:>8.2f}{per_second(most):>9}"
        f"{costs.engines * op.workers:>9}{busy:>8.2f}"
    )
    if found is None:
        return line
    load = found.ops[name]
    return (
        f"{line}{100 * load.busy:>5.0f}%{load.batch:>7.1f}{_ms(load.queue):>10}{load.waiting:>9.2f}"
    )


def lines_of_comparisons(found: Sequence[Comparison], others: float) -> list[str]:
    """Return predicted and measured figures as text; ``others`` is cores used by other programs."""
    lines = [f"{'':<28}{'predicted':>11}{'measured':>11}{'error':>8}{'limit':>8}"]
    for each in found:
        limit = f"{100 * each.limit:.0f} %" if math.isfinite(each.limit) else ""
        error = f"{100 * each.error:+.0f} %"
        missed = "" if each.kept else "  missed"
        lines.append(
            f"{each.what:<28}{per_second(each.predicted):>11}{per_second(each.measured):>11}{error:>8}{limit:>8}"
            + missed
        )
    if others > OTHERS:
        lines.append(f"other programs kept {others:.1f} cores busy while it was verified")
    return lines


def plain(plan: Plan, found: Sequence[Comparison] = (), others: float = 0.0) -> dict[str, Any]:
    """Return the plan as plain values; times in seconds."""
    return {
        "source": plan.source,
        "rate": plan.rate,
        "throughput": _forecast(plan.most),
        "at_rate": _forecast(plan.at_rate),
        "bounds": [asdict(each) for each in bounds(plan.most.costs)],
        "costs": {
            key: value for key, value in asdict(plan.at_rate.costs).items() if key != "requests"
        },
        "service_avg_cost": sum(op.cost() for op in critical_path(plan.at_rate.costs)),
        "doubts": plan.doubts,
        "advice": plan.advice,
        "diff": plan.diff,
        "verified": [
            {**asdict(each), "error": each.error, "kept": each.kept}
            | ({"limit": None} if math.isinf(each.limit) else {})
            for each in found
        ],
        "others": others,
    }


def _forecast(forecast: Forecast) -> dict[str, Any]:
    found = forecast.simulated
    return {
        "wished": forecast.wished,
        "in_flight": forecast.in_flight,
        "rate": forecast.rate,
        **{
            name: None if math.isinf(value) else value
            for name, value in (
                ("mean", forecast.mean),
                ("p50", forecast.p50),
                ("p95", forecast.p95),
            )
        },
        "cores": found and found.cores,
        "ops": found and {name: asdict(each) for name, each in found.ops.items()},
    }


def _ms(seconds: float) -> str:
    value = 1000 * seconds
    return f"{value:.2f}" if value < 100 else f"{value:.0f}"
