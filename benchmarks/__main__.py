"""``python -m benchmarks``: Penstock against its floors, as a table and as JSON.

The server runs on one core and the load generator on another, everything over loopback. Only the
ratios mean something: they were taken in the same minutes on the same machine. The exit status is 1
when something could not be measured; a missed target is shown, not a failure. Where a generator
used up its core it was the limit itself, and the ratio of CPU times tells more.
"""

from __future__ import annotations

import argparse
import sys
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from benchmarks import side_by_side
from benchmarks.copies import IN_PLACE, count_all
from benchmarks.processes import BenchmarkError, measure_hop
from benchmarks.results import Row, hop_table, machine_facts, table_of, to_json
from benchmarks.run import ScenarioRun
from benchmarks.scenario import Scenario
from benchmarks.scenarios import all_scenarios

HOP = "hop"
RESULTS = Path(__file__).parent / "results"
PAPER_COLUMNS = 160
"""Width of the table where no terminal tells one: its longest rows, unwrapped."""


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    names = [*(scenario.name for scenario in all_scenarios()), HOP, side_by_side.NAME]
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "--only",
        action="append",
        metavar="NAME",
        help=f"scenarios whose name begins so, may be repeated: {', '.join(names)}",
    )
    parser.add_argument(
        "--seconds", type=float, default=1.0, help="length of one measurement (wrk: whole ones)"
    )
    parser.add_argument("--rounds", type=int, default=5, help="how often each is measured")
    parser.add_argument("--json", action="store_true", help="print JSON instead of the table")
    options = parser.parse_args(arguments)
    if options.rounds < 1 or options.seconds <= 0:
        parser.error("--rounds and --seconds must be positive")
    if not chosen(options.only) and not hop_chosen(options.only):
        parser.error(f"no scenario begins with {options.only}; there are {', '.join(names)}")
    return options


def chosen(only: list[str] | None) -> list[Scenario]:
    """The scenarios whose names begin with one of ``only``; all without it."""
    if not only:
        return all_scenarios()
    found = [scenario for scenario in all_scenarios() if scenario.name.startswith(tuple(only))]
    if side_by_side_chosen(only):
        names = {scenario.name for scenario in found}
        found += [scenario for scenario in side_by_side.scenarios() if scenario.name not in names]
    return found


def hop_chosen(only: list[str] | None) -> bool:
    """Whether the cost of one hop is wanted."""
    return not only or HOP.startswith(tuple(only))


def side_by_side_chosen(only: list[str] | None) -> bool:
    """Whether the table of threads and processes is wanted."""
    return not only or side_by_side.NAME.startswith(tuple(only))


def main() -> int:
    """Run the chosen scenarios, show and keep the results."""
    options = parse()
    shown = Console(stderr=options.json)
    if not shown.is_terminal:
        shown.width = PAPER_COLUMNS
    machine = machine_facts()
    runs = [
        ScenarioRun(scenario, RESULTS, rounds=options.rounds, seconds=options.seconds)
        for scenario in chosen(options.only)
    ]
    rows = measured(runs, shown)
    costs = measure_hop(options.seconds / 2, options.rounds) if hop_chosen(options.only) else []
    if costs:
        shown.print(hop_table(costs))
    copies: dict[str, float] = {}
    uncounted: list[str] = []
    if side_by_side_chosen(options.only):
        copies, uncounted = count_all((*side_by_side.EXECUTORS, IN_PLACE), RESULTS / "run")
        shown.print(side_by_side.table(rows, copies))
    settings = {"seconds": options.seconds, "rounds": options.rounds, "only": options.only}
    document = to_json(rows, costs, settings, machine, copies)
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
    RESULTS.mkdir(exist_ok=True)
    for name in (f"{stamp}.json", "latest.json"):
        (RESULTS / name).write_bytes(document)
    if options.json:
        sys.stdout.write(document.decode() + "\n")
    else:
        shown.print(f"kept as {RESULTS / stamp}.json and latest.json")
    failures = sorted(
        {f"{row.scenario}, {row.contender}: {row.failure}" for row in rows if row.failure}
        | set(uncounted)
    )
    for failure in failures:
        Console(stderr=True).print(failure, style="red", markup=False, highlight=False)
    return 1 if failures else 0


def measured(runs: list[ScenarioRun], shown: Console) -> list[Row]:
    """Run them, and show each one's table as soon as it is there."""
    rows: list[Row] = []
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    bar = Progress(
        *columns,
        TimeElapsedColumn(),
        console=Console(stderr=True),
        transient=True,
        disable=not sys.stderr.isatty(),
    )
    with bar:
        task = bar.add_task("starting", total=sum(run.measurements for run in runs))
        for run in runs:
            found = run.run(lambda what: bar.update(task, advance=1, description=what))
            rows += found
            shown.print(table_of(f"{found[0].scenario}: {found[0].title}", found))
    return rows


if __name__ == "__main__":
    try:
        sys.exit(main())
    except BenchmarkError as error:
        sys.exit(f"benchmarks: {error}")
