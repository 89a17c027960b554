"""``penstock plan``: makes a plan from a service or a file, and verifies it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import typer

from penstock.bench import BadTarget, Step, Target
from penstock.observe.status import ask_status
from penstock.plan import measure, report
from penstock.plan.advice import advice, improved
from penstock.plan.calibration import Calibration
from penstock.plan.prediction import Forecast, Planner
from penstock.plan.recording import NoRecording, observation_of
from penstock.plan.settings import changes_of, check_settings, settings_diff

_REQUESTS: Final = 2_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """The source of costs: a measuring run, a service's own load, or a file.

    Attributes:
        name: the source as given.
        target: the service to measure, and its requests.
        file: a recording, or a trace by ``penstock trace``.
        seconds: duration of each step of a measuring run; maximum time to watch.
        levels: requests in flight in each step; empty: chosen for the service.
        ca_file, token: as for ``ask_status``; for a service that is watched.
    """

    name: str
    target: Target | None = None
    file: Path | None = None
    seconds: float = 5.0
    levels: tuple[int, ...] = ()
    ca_file: str | None = None
    token: str | None = field(default=None, repr=False)

    def recording(self, settings: Sequence[str]) -> dict[str, Any]:
        """Make or read the recording.

        Args:
            settings: planned settings; those of a running service are checked first.

        Raises:
            PenstockError: there is no recording, or no such setting.
        """
        if self.file is not None:
            try:
                found: dict[str, Any] = json.loads(self.file.read_bytes())
            except (OSError, ValueError) as error:
                raise NoRecording(f"{self.file} cannot be read: {error}") from error
            return found
        if self.target is None:
            if "://" not in self.name and not self.name.rpartition(":")[2].isdigit():
                text = "no such file; a service is written HOST:PORT, or http://HOST:PORT/PATH"
                raise NoRecording(f"{self.name}: {text}")
            status = ask_status(self.name, ca_file=self.ca_file, token=self.token)
            check_settings(settings, status)
            _progress(f"watching {self.name} for {self.seconds:g} s")
            return measure.watched(self.name, _REQUESTS, self.seconds, self.ca_file, self.token)
        status = self.target.status()
        check_settings(settings, status)
        levels = self.levels or measure.levels_of(status)
        return measure.measured(self.target, levels, self.seconds, _progress)


def plan_and_report(
    source: Source,
    *,
    rate: float | None,
    settings: Sequence[str],
    output: Path | None,
    verify: float | None,
    as_json: bool,
) -> bool:
    """Make the plan and print it. Returns whether verification, if requested, confirms it.

    Args:
        source: the source of costs.
        rate: planned requests per second.
        settings: planned settings, ``KEY=VALUE`` each.
        output: file for the recording.
        verify: seconds of load for verification; None for no verification.
        as_json: print JSON.

    Raises:
        PenstockError: nothing can be measured, a setting is unknown, or a service to verify does
            not have the planned settings.
    """
    recording = source.recording(settings)
    if output is not None:
        measure.write_recording(recording, output)
    calibration = Calibration(recording)
    now = calibration.costs(calibration.full.rate)
    planner = Planner(calibration, changes_of(settings, now), (verify or 60.0) / 2)
    if verify is not None:
        _check_settings(source, planner)
    plan = _plan(source.name, planner, rate)
    if not as_json:
        for line in report.lines_of(plan):
            typer.echo(line)
    compared: list[report.Comparison] = []
    others = 0.0
    if verify is not None:
        assert source.target is not None
        for forecast in (plan.most, plan.at_rate):
            found, busy = _verified(source.target, forecast, verify / 2)
            compared += found
            others = max(others, busy)
        if not as_json:
            for line in report.lines_of_comparisons(compared, others):
                typer.echo(line)
    if as_json:
        typer.echo(json.dumps(report.plain(plan, compared, others), indent=2))
    return all(each.kept for each in compared)


def _plan(name: str, planner: Planner, rate: float | None) -> report.Plan:
    most = planner.most
    wished = rate or planner.usual
    at_rate = planner.open(wished)
    better, why = improved(most.costs, wished if rate else most.rate)
    running = planner.calibration.costs(most.rate)
    doubts = [*planner.doubts(most), *planner.doubts(at_rate)]
    return report.Plan(
        source=name,
        rate=wished,
        most=most,
        at_rate=at_rate,
        doubts=[*dict.fromkeys(doubts)],
        advice=[*why, *advice(better, at_rate)],
        diff=settings_diff(running, better),
    )


def _verified(
    target: Target, forecast: Forecast, seconds: float
) -> tuple[tuple[report.Comparison, ...], float]:
    """Measure the forecast's load; return the comparisons, and the cores other programs used."""
    rate = forecast.wished
    step = Step(concurrency=forecast.in_flight) if rate is None else Step(rate=rate)
    _progress(f"verifying for {seconds:g} s")
    seen, result = measure.loaded(target, step, seconds)
    latency = result.latency
    came = result.requests / result.seconds
    compared = report.comparisons(forecast, came, result.rate, latency.p50, latency.p95)
    return compared, observation_of(seen).others


def _check_settings(source: Source, planner: Planner) -> None:
    """Check that the service to verify has the planned settings.

    Raises:
        BadTarget: it has other settings, or no target is given.
    """
    if source.target is None:
        raise BadTarget("to verify a plan, give the URL of the service")
    status = source.target.status()
    running = {op["name"]: op for graph in status["graphs"] for op in graph["ops"]}
    for op in planner.costs(1.0).ops:
        there = running.get(op.name)
        if there is None:
            raise BadTarget(f"{source.target.status_url} has no op {op.name}")
        workers = there["workers"] // status["engines"]
        batching = there["batching"]
        if (workers, batching["window"]) != (op.workers, op.window):
            raise BadTarget(
                f"the service has {workers} workers of {op.name}, the plan {op.workers}: start it"
                " with the planned settings, and pass the earlier measurement by --costs"
            )


def _progress(text: str) -> None:
    typer.echo(text, err=True)
