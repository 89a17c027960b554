"""``python -m benchmarks``: Penstock against its floors, as a table in Markdown and as JSON.

The server runs on one core and the load generator on another, everything over loopback. Only the
ratios are meaningful: they were measured in the same minutes on the same machine. The exit status
is 1 when something could not be measured; a missed target is reported but not a failure.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from benchmarks import padding, policies
from benchmarks.results import Row, machine_facts, markdown, to_json
from benchmarks.runner import BenchmarkError, ScenarioRun
from benchmarks.scenarios import Scenario, all_scenarios

RESULTS = Path(__file__).parent / "results"


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    names = ", ".join(
        [*(scenario.name for scenario in all_scenarios()), padding.NAME, policies.NAME]
    )
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--only",
        action="append",
        metavar="NAME",
        help=f"scenarios whose name begins so, may be repeated: {names}",
    )
    parser.add_argument(
        "--seconds", type=float, default=1.0, help="length of one measurement (wrk: whole ones)"
    )
    parser.add_argument("--rounds", type=int, default=5, help="how often each is measured")
    options = parser.parse_args(arguments)
    if options.rounds < 1 or options.seconds <= 0:
        parser.error("--rounds and --seconds must be positive")
    if not chosen(options.only) and options.only not in ([padding.NAME], [policies.NAME]):
        parser.error(f"no scenario begins with {options.only}; there are {names}")
    return options


def chosen(only: list[str] | None) -> list[Scenario]:
    """The scenarios whose names begin with one of ``only``; all without it."""
    return [each for each in all_scenarios() if not only or each.name.startswith(tuple(only))]


def main() -> int:
    """Run the chosen scenarios, print and save the results."""
    options = parse()
    if options.only == [padding.NAME]:
        return padding.main(options.rounds, RESULTS)
    if options.only == [policies.NAME]:
        return policies.main(options.rounds, RESULTS)
    machine = machine_facts(rounds=options.rounds, seconds=options.seconds)
    rows: list[Row] = []
    RESULTS.mkdir(exist_ok=True)
    for scenario in chosen(options.only):
        run = ScenarioRun(scenario, RESULTS, rounds=options.rounds, seconds=options.seconds)
        rows += run.run(lambda text: print(text, file=sys.stderr, flush=True))
        # After each of them, so that earlier results are kept if a later one fails.
        (RESULTS / "table.md").write_text(markdown(rows, machine), encoding="utf-8")
        (RESULTS / "latest.json").write_text(to_json(rows, machine), encoding="utf-8")
    print(markdown(rows, machine))
    print(f"kept as {RESULTS / 'table.md'} and latest.json", file=sys.stderr)
    failures = {f"{row.scenario}, {row.contender}: {row.failure}" for row in rows if row.failure}
    for failure in sorted(failures):
        print(failure, file=sys.stderr)
    return 1 if failures else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except BenchmarkError as error:
        sys.exit(f"benchmarks: {error}")
