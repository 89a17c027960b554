"""Interleaved rounds and what follows from them: pure, no clocks and no processes.

On a noisy machine two runs a minute apart differ by more than what is to be measured. So floor and
contenders take turns, each round in the opposite order of the one before, and only the ratios
within a round are compared; a drift that is slow against a round cancels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import TypeVar

from benchmarks.load import Report

T = TypeVar("T")


def turn_order(contenders: Sequence[T], number: int) -> list[T]:
    """Who runs when in round ``number``: forwards in even rounds, backwards in odd ones."""
    return list(contenders) if number % 2 == 0 else list(reversed(contenders))


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """One row of the table: medians over the rounds.

    ``ratio`` is throughput over the floor's in the same round, ``p50_ratio`` median latency over
    the floor's (0 when unknown); ``cpu_ratio`` is the floor's CPU time per answer over this one's,
    which other work on the machine disturbs less. ``generator`` is the largest share of a core
    that the load generator used, ``floor_generator`` the same for the floor. ``ceiling`` is the
    largest ratio that the machine has room for, if server and client need for each answer what
    they need with the floor (0 when nobody asked).
    """

    rounds: int
    rps: float
    p50_us: float
    p99_us: float
    cpu_s_per_1000: float
    ratio: float
    ratio_min: float
    ratio_max: float
    p50_ratio: float
    cpu_ratio: float
    generator: float
    floor_generator: float
    ceiling: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What is promised of a row.

    Attributes:
        throughput: the ratio of throughputs is at least this.
        p50: the ratio of median latencies is at most this.
    """

    throughput: float | None = None
    p50: float | None = None

    def met_by(self, found: Summary) -> bool:
        """Whether every promise is kept; a latency that is unknown keeps none."""
        slow = self.throughput is not None and found.ratio < self.throughput
        late = self.p50 is not None and not 0 < found.p50_ratio <= self.p50
        return not (slow or late)

    def __str__(self) -> str:
        promises = []
        if self.throughput is not None:
            promises.append(f">= {self.throughput:g}")
        if self.p50 is not None:
            promises.append(f"p50 <= {self.p50:g}")
        return ", ".join(promises)


def cpu_s_per_1000(report: Report) -> float:
    """CPU seconds of the server for a thousand answers; 0 when unknown."""
    if report.server_cpu_s is None or not report.requests:
        return 0.0
    return report.server_cpu_s * 1000 / report.requests


def ceiling(report: Report, cores: int) -> float:
    """How many times the answers there were, had what computed for them filled all cores."""
    busy = (report.server_cpu_s or 0.0) + report.client_cpu * report.seconds
    return cores * report.seconds / busy if busy else 0.0


def summarise(
    reports: Sequence[Report], floor: Sequence[Report], cores: int | None = None
) -> Summary:
    """Compare the rounds of one contender with the floor's, round by round.

    ``cores``: how many both sides share, where their number is what the ratio depends on.

    Raises:
        ValueError: no rounds, not as many as the floor's, or a floor without an answer.
    """
    if not reports or len(reports) != len(floor):
        raise ValueError(f"{len(reports)} rounds against {len(floor)} of the floor")
    if not all(base.rps > 0 for base in floor):
        raise ValueError("a round of the floor has no answer")
    ratios = [ours.rps / base.rps for ours, base in zip(reports, floor, strict=True)]
    p50_ratios = [
        ours.p50_us / base.p50_us if base.p50_us else 0.0
        for ours, base in zip(reports, floor, strict=True)
    ]
    costs = [cpu_s_per_1000(report) for report in reports]
    floor_costs = [cpu_s_per_1000(report) for report in floor]
    cpu_ratios = [
        base / cost if cost else 0.0 for base, cost in zip(floor_costs, costs, strict=True)
    ]
    return Summary(
        rounds=len(reports),
        rps=median(report.rps for report in reports),
        p50_us=median(report.p50_us for report in reports),
        p99_us=median(report.p99_us for report in reports),
        cpu_s_per_1000=median(costs),
        ratio=median(ratios),
        ratio_min=min(ratios),
        ratio_max=max(ratios),
        p50_ratio=median(p50_ratios),
        cpu_ratio=median(cpu_ratios),
        generator=max(report.client_cpu for report in reports),
        floor_generator=max(report.client_cpu for report in floor),
        ceiling=median(ceiling(base, cores) for base in floor) if cores else 0.0,
    )
