"""From the reports of all rounds to a table for people and a file for programs: pure.

On a noisy machine two runs a minute apart differ by more than the effect to be measured. So floor
and contenders alternate, each round in the opposite order of the one before, and only figures of
the same round are compared; a drift that is slow compared with a round cancels. CPU time for an
answer is disturbed less by other processes than time is, so the ratio of both is given.
"""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.load import Report
from benchmarks.scenarios import Target
from penstock.version import VERSION

PACKAGES = ("uvicorn", "uvloop", "httptools", "grpcio", "onnxruntime", "numpy")
GENERATOR_LIMIT = 0.95
"""Share of its core above which a generator may have limited the floor (an estimate)."""
HEADINGS = (
    "Penstock",
    "Load",
    "Answers/s",
    "Ratio (range)",
    "by CPU",
    "CPU µs",
    "floor",
    "p50 ms",
    "floor",
    "Target",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """One contender under one load: medians over the rounds."""

    rate: float
    cpu_us: float
    p50_ms: float
    p99_ms: float
    ratio: float
    ratio_min: float
    ratio_max: float
    cpu_ratio: float
    p50_ratio: float
    later_ms: float
    more_cpu_ms: float
    loop_ms: float
    floor_rate: float
    floor_cpu_us: float
    floor_p50_ms: float
    generator: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A contender of a scenario under one load; ``failure`` is the reason of a missing summary."""

    scenario: str
    title: str
    load: str
    contender: str
    target: Target | None = None
    summary: Summary | None = None
    failure: str | None = None


def summarise(reports: Sequence[Report], floor: Sequence[Report]) -> Summary:
    """Compare the rounds of one contender with those of the floor, one by one.

    Raises:
        ValueError: no rounds, not as many as the floor's, or a floor without an answer.
    """
    if not reports or len(reports) != len(floor):
        raise ValueError(f"{len(reports)} rounds against {len(floor)} of the floor")
    if not all(base.answers for base in floor):
        raise ValueError("a round of the floor has no answer")
    pairs = list(zip(reports, floor, strict=True))
    ratios = [ours.rate / base.rate for ours, base in pairs]
    return Summary(
        rate=median(ours.rate for ours in reports),
        cpu_us=median(ours.cpu_us for ours in reports),
        p50_ms=median(ours.p50_us for ours in reports) / 1000,
        p99_ms=median(ours.p99_us for ours in reports) / 1000,
        ratio=median(ratios),
        ratio_min=min(ratios),
        ratio_max=max(ratios),
        cpu_ratio=median(_quotient(base.cpu_us, ours.cpu_us) for ours, base in pairs),
        p50_ratio=median(_quotient(ours.p50_us, base.p50_us) for ours, base in pairs),
        later_ms=median((ours.p50_us - base.p50_us) / 1000 for ours, base in pairs),
        more_cpu_ms=median((ours.cpu_us - base.cpu_us) / 1000 for ours, base in pairs),
        loop_ms=median(ours.loop_us for ours in reports) / 1000,
        floor_rate=median(base.rate for base in floor),
        floor_cpu_us=median(base.cpu_us for base in floor),
        floor_p50_ms=median(base.p50_us for base in floor) / 1000,
        generator=max(base.generator for base in floor),
    )


def _quotient(over: float, under: float) -> float:
    return over / under if under else 0.0


def verdict(target: Target | None, found: Summary) -> str:
    """The target and whether it was met; on a disturbed machine, time and CPU may disagree."""
    if target is None:
        return ""
    promises = []
    if target.ratio is not None:
        by_time, by_cpu = found.ratio >= target.ratio, found.cpu_ratio >= target.ratio
        met = "met" if by_time else "**missed**"
        if by_time != by_cpu:
            met = f"met by {'time' if by_time else 'CPU'} only"
        promises.append(f"≥ {target.ratio:g}: {met}")
    for limit, value, text in (
        (target.p50, found.p50_ratio, "{:g} of the floor's p50"),
        (target.later_ms, found.later_ms, "{:g} ms later"),
        (target.cpu_ms, found.more_cpu_ms, "{:g} ms more CPU"),
        (target.loop_ms, found.loop_ms, "{:g} ms CPU of the loop"),
    ):
        if limit is not None:
            met = "met" if value <= limit else "**missed**"
            promises.append(f"≤ {text.format(limit)}: {met} ({value:.2g})")
    return ", ".join(promises)


def cells(row: Row) -> list[str]:
    """One line of the table."""
    found = row.summary
    if found is None:
        reason = (row.failure or "").strip().splitlines()
        text = f"failed: {reason[0] if reason else ''}"
        return [row.contender, row.load, *[""] * (len(HEADINGS) - 3), text]
    note = verdict(row.target, found)
    if found.generator > GENERATOR_LIMIT:
        note += f" (floor limited by its generator, {found.generator:.0%})"
    return [
        row.contender,
        row.load,
        f"{found.rate:,.0f}" if found.rate >= 100 else f"{found.rate:.1f}",
        f"{found.ratio:.2f} ({found.ratio_min:.2f}–{found.ratio_max:.2f})",
        f"{found.cpu_ratio:.2f}",
        f"{found.cpu_us:,.0f}",
        f"{found.floor_cpu_us:,.0f}",
        f"{found.p50_ms:.2f}",
        f"{found.floor_p50_ms:.2f}",
        note,
    ]


def markdown(rows: Sequence[Row], machine: dict[str, Any]) -> str:
    """The whole run as one table in Markdown, ready for ``docs/performance.md``."""
    lines = [
        f"{machine['cpu']}, {machine['cores']} cores, Python {machine['python']}, "
        + ", ".join(f"{name} {number}" for name, number in machine["packages"].items())
        + f"; {machine['rounds']} rounds of {machine['seconds']:g} s, {machine['at']}, "
        f"load average before {machine['load_average']:.1f}.",
        "",
        "| " + " | ".join(HEADINGS) + " |",
        "| " + " | ".join(["---", "---", *["---:"] * (len(HEADINGS) - 3), "---"]) + " |",
    ]
    title = None
    for row in rows:
        if row.title != title:
            title = row.title
            lines.append(f"| **{row.title}** |" + " |" * (len(HEADINGS) - 1))
        lines.append("| " + " | ".join(cells(row)) + " |")
    return "\n".join(lines) + "\n"


def machine_facts(*, rounds: int, seconds: float) -> dict[str, Any]:
    """The facts about the machine and the run that a reader of the numbers needs."""
    names = [
        line.partition(":")[2].strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if line.startswith("model name")
    ]
    return {
        "at": datetime.now(UTC).isoformat(timespec="minutes"),
        "cpu": names[0] if names else platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "load_average": os.getloadavg()[0],
        "kernel": platform.release(),
        "python": platform.python_version(),
        "packages": {
            "penstock": VERSION,
            **{name: version(name) for name in PACKAGES},
        },
        "rounds": rounds,
        "seconds": seconds,
    }


def to_json(rows: Sequence[Row], machine: dict[str, Any]) -> str:
    """The whole run as one JSON document."""
    return json.dumps({"machine": machine, "rows": [asdict(row) for row in rows]}, indent=2)
