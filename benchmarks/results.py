"""What a reader sees of a run: rows, a table, a file of JSON."""

from __future__ import annotations

import os
import platform
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import orjson
from rich.table import Table

from benchmarks.hop import ALARM_US, GOAL_US, HopCost
from benchmarks.load_programs import installed_programs
from benchmarks.rounds import Summary, Target

PACKAGES = ("penstock", "uvicorn", "uvloop", "httptools", "grpcio", "onnxruntime", "numpy")
GENERATOR_LIMIT = 0.9
"""Share of its core from which a generator may have been what limited the throughput (a guess)."""
RATIOS = ("ratio", "min-max", "p50 ratio", "CPU ratio")


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One contender (or the floor) of one scenario under one load.

    ``summary`` is None when it could not be measured; ``failure`` then says why.
    """

    scenario: str
    title: str
    load: str
    contender: str
    is_floor: bool
    target: Target | None = None
    summary: Summary | None = None
    failure: str | None = None

    @property
    def meets_target(self) -> bool | None:
        """None without a target or a measurement."""
        if self.target is None or self.summary is None:
            return None
        return self.target.met_by(self.summary)


def machine_facts() -> dict[str, Any]:
    """What a reader of the numbers must know about where they come from."""
    model = ""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.partition(":")[2].strip()
            break
    return {
        "cpu": model,
        "cores": len(os.sched_getaffinity(0)),
        "load_average": os.getloadavg(),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "packages": {name: version(name) for name in PACKAGES},
        "load_programs": installed_programs(),
    }


def to_json(
    rows: list[Row],
    hop: list[HopCost],
    settings: dict[str, Any],
    machine: dict[str, Any],
    copies: dict[str, float] | None = None,
) -> bytes:
    """The whole run as one JSON document; ``machine`` was read before the run."""
    document = {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "settings": settings,
        "machine": machine,
        "rows": [{**asdict(row), "meets_target": row.meets_target} for row in rows],
        "hop": [asdict(cost) for cost in hop],
        "copies": copies or {},
    }
    return orjson.dumps(document, option=orjson.OPT_INDENT_2)


def table_of(title: str, rows: list[Row]) -> Table:
    """One scenario's table."""
    table = Table(title=title, title_justify="left", header_style="bold")
    for heading in ("load", "contender"):
        table.add_column(heading, no_wrap=True)
    for heading in ("req/s", "p50 ms", "p99 ms", "CPU s/1000", *RATIOS):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("target")
    for row in rows:
        table.add_row(row.load, row.contender, *_cells(row), end_section=False)
    return table


def hop_table(costs: list[HopCost]) -> Table:
    """The table of one hop through the engine."""
    table = Table(title="hop: CPU microseconds through the engine", title_justify="left")
    for heading in ("executor", "one hop", "admission, reply", "1 op", "2 ops", "3 ops", "budget"):
        table.add_column(heading, justify="left" if heading == "executor" else "right")
    for cost in costs:
        numbers = (cost.hop_us, cost.ends_us, *cost.chains_us)
        budget = f"goal {GOAL_US:g}, alarm {ALARM_US:g}"
        table.add_row(cost.executor, *(f"{us:.1f}" for us in numbers), budget)
    return table


def _cells(row: Row) -> list[str]:
    found = row.summary
    if found is None:
        first_line = (row.failure or "").strip().splitlines()[:1]
        return ["failed", *[""] * (3 + len(RATIOS)), " ".join(first_line)]
    numbers = [
        f"{found.rps:,.0f}" if found.rps >= 100 else f"{found.rps:.2f}",
        f"{found.p50_us / 1000:,.2f}" if found.p50_us else "",
        f"{found.p99_us / 1000:,.2f}" if found.p99_us else "",
        f"{found.cpu_s_per_1000:.{3 if found.cpu_s_per_1000 >= 0.1 else 4}f}",
    ]
    notes = []
    if row.is_floor:
        numbers += ["1", "", "1" if found.floor_generator else "", "1"]
    else:
        numbers += [
            f"{found.ratio:.3f}",
            f"{found.ratio_min:.3f}-{found.ratio_max:.3f}",
            # Beside a bare loop, in which nothing waits, latencies under load say nothing.
            f"{found.p50_ratio:.3f}" if found.floor_generator else "",
            f"{found.cpu_ratio:.3f}",
        ]
    if row.target is not None:
        met = "met" if row.meets_target else "MISSED"
        notes.append(f"{row.target} {met}")
    if found.ceiling and not row.is_floor:
        notes.append(f"at most {found.ceiling:.2f} beside the client")
    if found.generator > GENERATOR_LIMIT:
        notes.append(f"generator at {found.generator:.0%}")
    if not row.is_floor and found.floor_generator > GENERATOR_LIMIT:
        # The floor could do more than was asked of it: the ratio is too good.
        notes.append(f"floor's generator at {found.floor_generator:.0%}")
    return [*numbers, ", ".join(notes)]
