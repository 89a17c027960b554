"""``--only processes``: ops in threads and ops in processes side by side, from one run.

It picks one load of each scenario that compares them, and shows all of it as one table.
"""

from __future__ import annotations

from dataclasses import replace

from rich.table import Table

from benchmarks.copies import IN_PLACE
from benchmarks.results import Row
from benchmarks.rounds import Summary
from benchmarks.scenario import Scenario
from benchmarks.scenarios import all_scenarios

NAME = "processes"
EXECUTORS = ("thread", "process")
LOADS = {
    "http-echo": "32 conn",
    "grpc-echo": "8x4 calls",
    "latency": "1 conn",
    "arrays": "1 conn",
    "arrays-thread": "1 conn",
    "compute": "4 conn",
}
LATER_MS = 0.15
"""What a process may add to the answer of one request at a time."""
HOP_MS = 0.5
"""What an array of 5 MiB may cost on its way from one process to another."""
HOP_COPIES = 2


def scenarios() -> list[Scenario]:
    """Those that are needed, without loads and contenders that are not shown."""
    found = [each for each in all_scenarios() if each.name in LOADS]
    return [
        replace(
            each,
            loads=tuple(load for load in each.loads if load.label == LOADS[each.name]),
            ours=tuple(ours for ours in each.ours if ours.name != "inline"),
        )
        for each in found
    ]


def table(rows: list[Row], copies: dict[str, float]) -> Table:
    """The table of a run that had these scenarios.

    Args:
        rows: of all scenarios; those of other loads are left out.
        copies: executor -> how often an array is copied on its way to the next op.
    """
    by_name = {
        (row.scenario, row.contender): row.summary
        for row in rows
        if row.load == LOADS.get(row.scenario)
    }
    shown = Table(title="ops in threads and in processes", title_justify="left")
    for heading in ("", *EXECUTORS, "wanted of a process"):
        shown.add_column(heading)

    def add(what: str, cells: list[str | None], wanted: str) -> None:
        shown.add_row(what, *("failed" if cell is None else cell for cell in cells), wanted)

    def echo(scenario: str) -> list[str | None]:
        return [_ratio(by_name.get((scenario, executor))) for executor in EXECUTORS]

    add("HTTP echo, 32 connections, over bare uvicorn", echo("http-echo"), ">= 1")
    add("gRPC echo, 8x4 calls, over bare grpc.aio", echo("grpc-echo"), ">= 7")
    door = by_name.get(("latency", "door"))
    later = [_later(by_name.get(("latency", executor)), door) for executor in EXECUTORS]
    add("one request at a time, later than by the door alone", later, f"<= {LATER_MS} ms")
    hops = [
        _hop(by_name.get((name, f"2 {executor} ops")), by_name.get((name, f"1 {executor} ops")))
        for name, executor in (("arrays-thread", "thread"), ("arrays", "process"))
    ]
    add("5 MiB on the way to the next op", hops, f"<= {HOP_MS} ms")
    one = by_name.get(("arrays", "1 process ops"))
    in_place = _hop(by_name.get(("arrays", "2 process ops, in place")), one)
    add("the same, written in place", ["", in_place], f"<= {HOP_MS} ms")
    add("between two bare processes", ["", _round(by_name.get(("arrays", "bare copies")))], "")
    counted = [f"{copies[each]:g}" if each in copies else None for each in EXECUTORS]
    add("copies of them", counted, f"<= {HOP_COPIES}")
    of_those = f"{copies[IN_PLACE]:g}" if IN_PLACE in copies else None
    add("copies of those written in place", ["", of_those], f"<= {HOP_COPIES}")
    workers = [_ratio(by_name.get(("compute", f"{executor} x2"))) for executor in EXECUTORS]
    add("two workers for pure Python over one process", workers, ">= 1.8")
    bare = _ratio(by_name.get(("compute", "bare loop x2")))
    add("two bare processes over that one", ["", bare], "")
    return shown


def _ratio(found: Summary | None) -> str | None:
    if found is None:
        return None
    spread = f"{found.ratio_min:.2f}-{found.ratio_max:.2f}"
    return f"{found.ratio:.2f} ({spread}), CPU {found.cpu_ratio:.2f}"


def _later(found: Summary | None, door: Summary | None) -> str | None:
    if found is None or door is None:
        return None
    return f"{(found.p50_us - door.p50_us) / 1000:.2f} ms"


def _round(found: Summary | None) -> str | None:
    if found is None:
        return None
    return f"{found.cpu_s_per_1000:.2f} ms CPU, {found.p50_us / 1000:.2f} ms"


def _hop(two: Summary | None, one: Summary | None) -> str | None:
    """What one more op costs: CPU seconds for 1,000 are milliseconds for one."""
    if two is None or one is None:
        return None
    busy = two.cpu_s_per_1000 - one.cpu_s_per_1000
    return f"{busy:.2f} ms CPU, {_later(two, one)} later"
