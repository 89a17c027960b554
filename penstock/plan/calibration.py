"""Estimates costs from observations. Pure.

CPU times, which hardly depend on the load, are taken from all steps; waiting times of a batch from
the step with the fewest requests in flight, where nothing else delays it. The engine's and the
client's cost per request falls with the load, because one wake-up serves several requests; it is
interpolated between steps.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from penstock.plan.costs import Costs, Line, OpCosts
from penstock.plan.recording import (
    Observation,
    OpSeen,
    Report,
    latencies_of,
    observations_of,
    requests_of,
)
from penstock.plan.simulation import Simulated, simulate

RATE_LIMIT: Final = 0.10
P95_LIMIT: Final = 0.25
"""Maximum relative errors of predicted throughput and p95."""

_DIFFERENT: Final = 0.05
"""Factor by which the better of two models must be closer to be chosen."""

_VARIED: Final = 1.2
"""Ratio of mean batch sizes above which a line can be fitted to their costs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """A step of the measuring run with its simulation, to check the model."""

    observation: Observation
    simulated: Simulated

    @property
    def errors(self) -> tuple[float, float]:
        """Relative errors of rate and p95."""
        load = self.observation.load
        assert load is not None
        return (
            self.simulated.rate / load.rate - 1.0,
            self.simulated.quantile(0.95) / load.p95 - 1.0,
        )


class Calibration:
    """Estimates the costs of a service from a recording.

    Args:
        recording: has one or more steps.

    Attributes:
        observations: the steps, lightest load first.
        checks: the steps with their simulations; empty without a client.
        lock_known: whether the throughput showed if ops in threads hold the GIL.

    Raises:
        NoRecording: there were no requests during the recording.
    """

    def __init__(self, recording: Report) -> None:
        self.observations = observations_of(recording)
        self._seconds = requests_of(recording)
        self._overhead = 0.0
        self.lock_known = False
        self._locked = any(each.place == "thread" and each.cpu for each in self.light.ops)
        self.checks: list[Check] = []
        light = self.light
        if light.load is None:
            seen = latencies_of(recording)
            if seen:
                empty = simulate(self.costs(light.rate), requests=500).mean
                self._overhead = max(0.0, min(seen) - empty)
            return
        held, overhead = self._check(), self._overhead
        self._locked = False
        self.checks = self._check()
        better = abs(self.checks[-1].errors[0]) - abs(held[-1].errors[0])
        self.lock_known = abs(better) > _DIFFERENT
        if better > _DIFFERENT:
            self._locked, self._overhead, self.checks = True, overhead, held

    @property
    def light(self) -> Observation:
        """The step with the fewest requests in flight."""
        return self.observations[0]

    @property
    def full(self) -> Observation:
        """The step with the most answers per second."""
        return max(self.observations, key=lambda each: each.rate)

    @property
    def others(self) -> float:
        """Mean number of cores that other programs used."""
        seconds = sum(each.seconds for each in self.observations)
        return sum(each.others * each.seconds for each in self.observations) / seconds

    def _check(self) -> list[Check]:
        """Simulate the steps, and determine the overhead of a single request."""
        light = self.light
        assert light.load is not None
        self._overhead = 0.0
        flying = light.load.in_flight
        alone = simulate(self.costs(light.rate), in_flight=flying, requests=1000)
        self._overhead = max(0.0, light.load.mean - alone.mean)
        return [
            Check(
                observation=each,
                simulated=simulate(self.costs(each.rate), in_flight=each.load.in_flight),
            )
            for each in self.observations
            if each.load
        ]

    def costs(self, rate: float) -> Costs:
        """Return the costs at a rate of answers per second."""
        between = self._at(rate)
        known = all(each.load for each in self.observations)
        return Costs(
            ops=tuple(self._op(index, between) for index in range(len(self.light.ops))),
            engine=between(lambda seen: seen.loop),
            client=between(lambda seen: seen.load.client if seen.load else 0.0) if known else 0.0,
            overhead=self._overhead,
            cores=max(0.1, self.light.cores - self.others),
            engines=self.light.engines,
            most_running=self.light.most_running,
            locked=self._locked,
            requests=self._factors(),
        )

    def _at(self, rate: float) -> Callable[[Callable[[Observation], float]], float]:
        steps = sorted(self.observations, key=lambda each: each.rate)
        rates = [each.rate for each in steps]
        return lambda value: float(np.interp(rate, rates, [value(each) for each in steps]))

    def _factors(self) -> tuple[dict[str, float], ...]:
        names = {each.name for each in self.light.ops}
        means = {}
        for name in names:
            times = [each[name] for each in self._seconds if name in each]
            means[name] = sum(times) / len(times) if times else 0.0
        return tuple(
            {name: seconds / means[name] for name, seconds in each.items() if means.get(name)}
            for each in self._seconds
        )

    def _op(
        self, index: int, between: Callable[[Callable[[Observation], float]], float]
    ) -> OpCosts:
        name = self.light.ops[index].name
        steps = [
            (step, seen) for step in self.observations for seen in step.ops if seen.name == name
        ]
        now = steps[0][1]
        alone = _cpu(*steps[0])
        threads = max(1, round(alone / now.wall)) if now.wall else 1
        waits = [max(0.0, seen.wall - _cpu(step, seen) / threads) for step, seen in steps]
        sizes = [seen.mean_batch for _, seen in steps]
        weights = [seen.batches for _, seen in steps]
        if max(sizes) / min(sizes) < _VARIED:
            size = sizes[0]

            def of(step: Observation) -> float:
                return next(_cpu(step, each) for each in step.ops if each.name == name)

            cpu = Line(0.0, between(of) / size)
        else:
            cpu = line(sizes, [_cpu(step, seen) for step, seen in steps], weights)
        # An op that computes waits under load for a core; the simulation models that.
        waiting = waits[0] > 0.5 * now.wall
        return OpCosts(
            name=name,
            inputs=now.inputs,
            given_by=now.given_by,
            workers=now.workers,
            batch_size=now.batch_size,
            window=now.window,
            place=now.place,
            cpu=cpu,
            wait=line(sizes, waits, weights) if waiting else Line(waits[0], 0.0),
            threads=threads,
            stages=(
                now.stages[0] / now.batches,
                now.stages[1] / now.batches,
                now.stages[2] / now.batches,
            ),
            largest=max(sizes),
            batches=sum(weights),
            words=max(seen.learned for _, seen in steps)[1],
        )


def _cpu(step: Observation, seen: OpSeen) -> float:
    """Return the CPU time of a batch, including its share of the model library's threads."""
    if seen.cpu is None:
        return 0.0
    own = seen.cpu
    if seen.place == "thread":
        whole = sum(each.stages[1] for each in step.ops if each.place == "thread")
        if whole:
            own += step.rest * step.answered * seen.stages[1] / whole
    return own / seen.batches


def line(sizes: Sequence[float], seconds: Sequence[float], weights: Sequence[float]) -> Line:
    """Fit a line to the seconds of batches of these sizes, with slope and intercept of at least 0.

    If the sizes hardly differ, time is proportional to size.
    """
    n, t, w = np.asarray(sizes), np.asarray(seconds), np.asarray(weights, dtype=float)
    proportional = float((w * t).sum() / (w * n).sum())
    if n.max() / n.min() < _VARIED:
        return Line(0.0, proportional)
    mean_n, mean_t = np.average(n, weights=w), np.average(t, weights=w)
    each = float((w * (n - mean_n) * (t - mean_t)).sum() / (w * (n - mean_n) ** 2).sum())
    base = float(mean_t - each * mean_n)
    if each < 0.0:
        return Line(float(mean_t), 0.0)
    return Line(0.0, proportional) if base < 0.0 else Line(base, each)


Changes = Mapping[str, object]


def changed(costs: Costs, changes: Mapping[str, Mapping[str, object]]) -> Costs:
    """Return the costs with other settings.

    Args:
        costs: the current costs.
        changes: fields of ``OpCosts`` by op name; fields of ``Costs`` under an empty name.
    """
    ops = tuple(replace(op, **changes.get(op.name, {})) for op in costs.ops)  # type: ignore[arg-type]
    return replace(costs, ops=ops, **changes.get("", {}))  # type: ignore[arg-type]
