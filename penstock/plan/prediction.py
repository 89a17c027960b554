"""Predicts throughput and latency from costs, with doubts. Pure.

The formulas are those of the pipeline's document, with two corrections: a critical path is a sum of
costs, not of concurrencies, and a queue grows by the arrival rate minus the throughput.

    op_cost             preprocess + process + postprocess of a batch, divided by its requests
    op_concurrency      op_cost in seconds x requests a second
    service_throughput  1 / op_cost x concurrency of the slowest op
    service_avg_cost    the sum of op_cost over the critical path

Besides the slowest op, the throughput may be limited by the cores, the GIL, the engine's loop, and
``worker_num``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final, Literal, TypeAlias

from penstock.plan.calibration import P95_LIMIT, RATE_LIMIT, Calibration, changed
from penstock.plan.costs import Costs, OpCosts
from penstock.plan.simulation import Simulated, simulate

Kind: TypeAlias = Literal["op", "cores", "lock", "loop", "worker_num"]
Changes: TypeAlias = Mapping[str, Mapping[str, Any]]

FILLED: Final = 0.9
"""Utilization of a limit above which waiting times are too sensitive to be predicted."""

_SHARE: Final = 0.7
"""The default planned rate, as a share of the throughput."""
_FEW: Final = 100
OTHERS: Final = 0.1
"""Cores used by other programs above which a doubt is reported."""
_MOST_REQUESTS: Final = 6000
_SEEDS: Final = (1, 2, 3, 4, 5)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """An upper limit of the throughput, in requests per second."""

    kind: Kind
    op: str
    rate: float

    def __str__(self) -> str:
        names = {
            "op": f"the workers of op {self.op}",
            "cores": "the cores",
            "lock": "Python's lock, which ops in threads and the engine share",
            "loop": "the engine's loop",
            "worker_num": "worker_num",
        }
        return names[self.kind]


def bounds(costs: Costs) -> list[Bound]:
    """Return the limits of the throughput with full batches, lowest first."""
    found = [
        Bound(kind="op", op=op.name, rate=costs.engines * op.workers * op.batch_size / cost)
        for op in costs.ops
        if (cost := op.cost(op.batch_size)) > 0
    ]
    cpu = {op.name: op.cpu.of(op.batch_size) / op.batch_size for op in costs.ops}
    whole = costs.engine + costs.client + sum(cpu.values())
    if whole > 0:
        found.append(Bound(kind="cores", op="", rate=costs.cores / whole))
    inside = sum(cpu[op.name] for op in costs.ops if op.place == "thread") if costs.locked else 0.0
    if costs.engine + inside > 0:
        kind: Kind = "lock" if inside else "loop"
        found.append(Bound(kind=kind, op="", rate=costs.engines / (costs.engine + inside)))
    path = sum(op.cost() for op in critical_path(costs)) + costs.engine
    if costs.most_running is not None and path > 0:
        rate = costs.engines * costs.most_running / path
        found.append(Bound(kind="worker_num", op="", rate=rate))
    return sorted(found, key=lambda each: each.rate)


def critical_path(costs: Costs) -> list[OpCosts]:
    """Return the path through the graph with the largest sum of costs."""
    longest: dict[str, tuple[float, list[OpCosts]]] = {}
    for op in costs.ops:
        before = max((longest[each] for each in op.inputs), key=lambda each: each[0], default=None)
        seconds, path = before or (0.0, [])
        longest[op.name] = (seconds + op.cost(), [*path, op])
    return max(longest.values(), key=lambda each: each[0])[1]


def needed(op: OpCosts, rate: float, size: float) -> float:
    """op_concurrency: workers that a rate of requests per second keeps busy, at this batch size."""
    return op.cost(size) / size * rate


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """The predicted figures of a load; times in seconds.

    Attributes:
        wished: requests per second of an open loop; None for a closed loop.
        in_flight: callers of a closed loop.
        rate: answers per second.
        p95_by_chance: minimum and maximum p95 of several simulated runs of the planned duration:
            the variation by random arrivals.
        simulated: one of the runs; None if the rate exceeds the throughput.
        costs: the assumed costs.
    """

    wished: float | None
    in_flight: int
    rate: float
    mean: float
    p50: float
    p95: float
    p95_by_chance: tuple[float, float]
    simulated: Simulated | None
    costs: Costs


class Planner:
    """Predicts the figures of a service.

    Args:
        calibration: the service's costs.
        changes: planned settings, as for ``changed``.
        seconds: duration of the predicted runs.
    """

    def __init__(
        self, calibration: Calibration, changes: Changes | None = None, seconds: float = 30.0
    ) -> None:
        self.calibration = calibration
        self.changes = changes or {}
        self._seconds = seconds

    def costs(self, rate: float) -> Costs:
        """Return the costs at a rate of answers per second."""
        return changed(self.calibration.costs(rate), self.changes)

    @cached_property
    def in_flight(self) -> int:
        """Number of callers that keeps every worker busy, with another batch in the queue."""
        costs = self.costs(self.calibration.full.rate)
        slots = sum(op.workers * op.batch_size for op in costs.ops) * costs.engines
        return max(8, min(256, 2 * slots))

    @cached_property
    def most(self) -> Forecast:
        """The forecast of the throughput, with ``in_flight`` callers."""
        return self.closed(self.in_flight)

    @property
    def usual(self) -> float:
        """The default planned rate."""
        return float(f"{_SHARE * self.most.rate:.2g}")

    def closed(self, in_flight: int) -> Forecast:
        """Forecast a closed loop."""
        rate = self.calibration.full.rate
        for _ in range(3):  # costs depend on the rate, and the rate on the costs
            costs = self.costs(rate)
            rate = simulate(costs, in_flight=in_flight, requests=1000).rate
        requests = min(_MOST_REQUESTS, max(500, int(rate * self._seconds)))
        runs = [
            simulate(costs, in_flight=in_flight, requests=requests, seed=seed) for seed in _SEEDS
        ]
        return _forecast(costs, runs, None, in_flight)

    def open(self, rate: float) -> Forecast:
        """Forecast an open loop with ``rate`` requests per second at random times."""
        most = self.most
        costs = self.costs(min(rate, most.rate))
        if rate >= most.rate:
            never = math.inf
            return Forecast(
                wished=rate, in_flight=0, rate=most.rate, mean=never, p50=never, p95=never,
                p95_by_chance=(never, never), simulated=None, costs=costs,
            )  # fmt: skip
        requests = min(_MOST_REQUESTS, max(200, int(rate * self._seconds)))
        runs = [simulate(costs, rate=rate, requests=requests, seed=seed) for seed in _SEEDS]
        return _forecast(costs, runs, rate, 0)

    def doubts(self, forecast: Forecast) -> list[str]:
        """Return the reasons why the forecast may be wrong."""
        return [*self._doubts_of_load(forecast), *_doubts_of_costs(self.calibration, self.changes)]

    def _doubts_of_load(self, forecast: Forecast) -> list[str]:
        found, wished = [], forecast.wished
        if forecast.simulated is None:
            found.append(
                f"{wished:g}/s is more than the throughput: the queues grow by"
                f" {(wished or 0.0) - forecast.rate:.0f} requests a second"
            )
        elif wished is not None and wished > FILLED * self.most.rate:
            found.append(
                f"{wished:g}/s is {100 * wished / self.most.rate:.0f} % of the throughput: waiting"
                " changes much with little there"
            )
        elif wished is not None:
            # Scaling all costs by a factor is scaling the rate by it, and the latencies afterwards.
            factor = 1 + RATE_LIMIT
            dearer = factor * simulate(forecast.costs, rate=factor * wished).quantile(0.95)
            if dearer > (1 + P95_LIMIT) * forecast.p95:
                found.append(
                    f"the p95 at {wished:g}/s depends on the machine's speed: if costs were"
                    f" {100 * RATE_LIMIT:.0f} % higher, it would be {1000 * dearer:.3g} ms"
                )
        low, high = forecast.p95_by_chance
        if high < math.inf and high - low > 2 * P95_LIMIT * forecast.p95:
            found.append(
                f"by chance alone, the p95 of {self._seconds:g} s is {1000 * low:.3g} to"
                f" {1000 * high:.3g} ms: verify for longer"
            )
        return found


def _forecast(
    costs: Costs, runs: list[Simulated], wished: float | None, in_flight: int
) -> Forecast:
    middle = sorted(runs, key=lambda each: each.quantile(0.95))
    p95s = [each.quantile(0.95) for each in middle]
    chosen = middle[len(middle) // 2]
    return Forecast(
        wished=wished,
        in_flight=in_flight,
        rate=sum(each.rate for each in runs) / len(runs) if wished is None else wished,
        mean=sum(each.mean for each in runs) / len(runs),
        p50=chosen.quantile(0.5),
        p95=p95s[len(p95s) // 2],
        p95_by_chance=(p95s[0], p95s[-1]),
        simulated=chosen,
        costs=costs,
    )


def _doubts_of_costs(calibration: Calibration, changes: Changes) -> list[str]:
    found = []
    steps, light = calibration.observations, calibration.light
    if calibration.others > OTHERS:
        found.append(
            f"other programs kept {calibration.others:.1f} cores busy while it was measured"
        )
    if light.load is None:
        found.append(
            "no load was generated: latencies are those that the service measured, the client's"
            " CPU time is not included, and the costs are those under the current load"
        )
    for check in calibration.checks:
        load, (rate, p95) = check.observation.load, check.errors
        assert load is not None
        if abs(rate) > RATE_LIMIT or abs(p95) > P95_LIMIT:
            found.append(
                f"of the measuring run itself, with {load.in_flight} in flight, the model predicts"
                f" {per_second(check.simulated.rate)}/s and a p95 of"
                f" {1000 * check.simulated.quantile(0.95):.3g} ms; it was"
                f" {per_second(load.rate)}/s and {1000 * load.p95:.3g} ms"
            )
        if load.failed:
            found.append(f"{load.failed} requests failed with {load.in_flight} in flight")
    if any(each.graphs > 1 for each in steps):
        found.append("other graphs had requests as well, which are not counted")
    costs = calibration.costs(calibration.full.rate)
    few = [op.name for op in costs.ops if op.batches < _FEW]
    if few:
        found.append(f"there were fewer than {_FEW} batches of {', '.join(few)}")
    waiting = [op.name for op in costs.ops if op.place == "loop" and op.cost() > 0.001]
    if waiting:
        found.append(
            f"{', '.join(waiting)} waits for something that is not measured here: it is assumed"
            " to take as long under any load"
        )
    for op in changed(costs, changes).ops:
        before = costs.op(op.name)
        if op.batch_size > max(1.0, before.batch_size) and before.largest < 0.5 * op.batch_size:
            seen = f"of more than {before.largest:.1f} requests" if before.largest > 1 else "at all"
            found.append(
                f"no batches {seen} were seen of {op.name}: what fuller ones cost is extrapolated"
            )
        if op.place != before.place:
            found.append(
                f"the cost of handing requests to other workers of {op.name} was not measured"
            )
    if not calibration.lock_known and any(op.place == "thread" for op in costs.ops):
        bound = bounds(replace(changed(costs, changes), locked=True))[0]
        if bound.kind == "lock":
            found.append(
                "whether ops in threads hold Python's lock could not be seen: if they do, the"
                f" throughput is at most {per_second(bound.rate)}/s"
            )
    if any("engines" in each for each in changes.values()):
        found.append("several engines are assumed to cost no more than one for each request")
    return found


def per_second(rate: float) -> str:
    """A rate as text, with four digits and never an exponent."""
    return f"{rate:.0f}" if rate >= 1000 else f"{rate:.4g}"
