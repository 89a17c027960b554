"""``penstock bench``: parses flags, runs the load with its progress, and writes table, files and
verdict.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import typer

from penstock.bench import report
from penstock.bench.chart import as_svg
from penstock.bench.results import Limits, StepResult
from penstock.bench.run import run
from penstock.bench.schedule import MOST_IN_FLIGHT, Load, Step, seconds_of
from penstock.bench.target import BadTarget, Target

DEFAULT_STEPS: Final = "1,4,16,64"
_WIDTH: Final = 30


def load_of(
    concurrency: str | None,
    rate: str | None,
    *,
    duration: str,
    warm_up: str,
    timeout: str,
    **others: Any,
) -> Load:
    """Make a load from flags; ``others`` are further arguments of ``Load``.

    Raises:
        BadTarget: a flag is not a number, or flags contradict each other.
    """
    try:
        return Load(
            steps=_steps(concurrency, rate),
            duration=seconds_of(duration),
            warm_up=seconds_of(warm_up),
            timeout=seconds_of(timeout),
            **others,
        )
    except ValueError as error:
        raise BadTarget(str(error)) from error


def limits_of(*, max_p99: str | None, max_errors: int | None, min_rate: float | None) -> Limits:
    """Make limits from flags.

    Raises:
        BadTarget: a duration is malformed.
    """
    try:
        p99 = None if max_p99 is None else seconds_of(max_p99)
    except ValueError as error:
        raise BadTarget(str(error)) from error
    return Limits(max_p99=p99, max_errors=max_errors, min_rate=min_rate)


def _steps(concurrency: str | None, rate: str | None) -> tuple[Step, ...]:
    try:
        if rate is None:
            levels = (concurrency or DEFAULT_STEPS).split(",")
            return tuple(Step(concurrency=int(each)) for each in levels)
        most = MOST_IN_FLIGHT if concurrency is None else int(concurrency)
        return tuple(Step(rate=float(each), concurrency=most) for each in rate.split(","))
    except ValueError:
        raise ValueError(
            "write --concurrency 1,4,16 (closed loop), or --rate 50,100 (open loop) with at most"
            " one --concurrency; all are above 0"
        ) from None


def load_and_report(target: Target, load: Load, limits: Limits, files: Sequence[Path]) -> bool:
    """Run the load, print and write the results. Returns whether all limits are kept.

    Raises:
        BadTarget: the service does not answer, or a file has an unknown suffix.
    """
    for file in files:
        if file.suffix not in _WRITERS:
            raise BadTarget(f"{file}: the name must end in {', '.join(_WRITERS)}")
    with _Progress(target, load) as progress, _interrupts(progress):
        results = run(target, load, on_tick=progress.tick, on_result=progress.show)
    broken = [(result, each) for result in results for each in limits.broken(result)]
    for line in report.footing(results):
        typer.echo(line)
    for file in files:
        try:
            file.write_bytes(_WRITERS[file.suffix](target, load, results))
        except OSError as error:
            raise BadTarget(f"{file} cannot be written: {error.strerror}") from error
    for result, why in broken:
        typer.echo(f"limit: {report.level(result)}: {why}", err=True)
    return bool(results) and not broken


def _svg(target: Target, load: Load, results: Sequence[StepResult]) -> bytes:
    return as_svg(target.url, results).encode()


def _csv(target: Target, load: Load, results: Sequence[StepResult]) -> bytes:
    return report.as_csv(results).encode()


_WRITERS: Final = {".csv": _csv, ".json": report.as_json, ".svg": _svg}


class _Progress:
    """Prints finished steps, and on a terminal a progress bar of the current step."""

    def __init__(self, target: Target, load: Load) -> None:
        self.stop = False
        self._heading = report.heading(target, load)
        self._load = load
        self._bar = sys.stderr.isatty()

    def tick(self, number: int, seconds: float) -> bool:
        """Update the progress bar. Returns whether the run must end."""
        if self._heading:
            typer.echo(self._heading)
            self._heading = ""
        if self._bar:
            done = min(1.0, max(0.0, seconds) / (self._load.warm_up + self._load.duration))
            bar = "#" * round(_WIDTH * done)
            steps = f"step {number + 1} of {len(self._load.steps)}"
            sys.stderr.write(f"\r{steps} [{bar:<{_WIDTH}}] {max(0.0, seconds):4.1f} s ")
            sys.stderr.flush()
        return self.stop

    def show(self, result: StepResult) -> None:
        """Print a finished step."""
        self._clear()
        for line in report.lines_of(result):
            typer.echo(line)

    def _clear(self) -> None:
        if self._bar:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()

    def __enter__(self) -> _Progress:
        return self

    def __exit__(self, *_: object) -> None:
        self._clear()


@contextmanager
def _interrupts(progress: _Progress) -> Iterator[None]:
    """Make Ctrl-C and SIGTERM end the run with a report of the results so far."""

    def stop(number: int, frame: object) -> None:
        progress.stop = True

    former = {each: signal.signal(each, stop) for each in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)
