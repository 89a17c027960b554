"""Measures a service, with generated load or under its current load."""

from __future__ import annotations

import json
import math
import os
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

from penstock.bench import BadTarget, Load, Step, StepResult, Target, run
from penstock.observe.status import NoStatus, ask_status, ask_trace
from penstock.plan import recording
from penstock.runtimes.cpus import usable_cpus

_WARM_UP: Final = 0.5
_MOST_TRACED: Final = 2_000
_IDLE: Final = (3, 4)  # fields of a line of /proc/stat: idle, and waiting for disks
_TICK: Final = os.sysconf("SC_CLK_TCK")


def measured(
    target: Target, levels: Sequence[int], seconds: float, progress: Callable[[str], object]
) -> dict[str, Any]:
    """Record a closed loop in steps.

    Args:
        target: the service and its requests.
        levels: requests in flight in each step.
        seconds: duration of each step.
        progress: called with progress texts.

    Raises:
        BadTarget: there is no good answer.
        NoStatus: the service has no status, or is not on this machine.
    """
    found: dict[str, Any] = {}
    steps = []
    for number, level in enumerate(levels):
        progress(f"measuring with {level} in flight for {seconds:g} s")
        tracing = None if number else _Tracing(target, seconds)
        seen, result = loaded(target, Step(concurrency=level), seconds)
        steps.append(seen)
        if tracing is not None:
            found = tracing.trace()
        if not result.good:
            break
    return {**found, recording.KEY: {"steps": steps}}


def loaded(target: Target, step: Step, seconds: float) -> tuple[dict[str, Any], StepResult]:
    """Run one step of load; return it as part of a recording, and its result.

    Raises:
        BadTarget, NoStatus: as in ``measured``.
    """
    before, began = target.status(), _Usage()
    results = run(target, Load(steps=(step,), duration=seconds, warm_up=_WARM_UP))
    if not results:
        raise BadTarget(f"no request ended within {seconds:g} s: measure for longer (--measuring)")
    (result,) = results
    used = _Usage().since(began)
    after = target.status()
    answered = after["requests"]["answered"] - before["requests"]["answered"]
    load = recording.Load(
        in_flight=step.concurrency,
        rate=result.rate,
        mean=result.latency.mean,
        p95=result.latency.p95,
        client=used.own / max(1, answered),
        failed=result.failed,
    )
    seen = recording.step_of(
        before, after, seconds=used.at, cores=_cores(), busy=used.busy, load=load
    )
    return seen, result


def watched(
    address: str,
    requests: int,
    seconds: float,
    ca_file: str | None = None,
    token: str | None = None,
) -> dict[str, Any]:
    """Record the next requests of a service under its own load; arguments as for ``ask_trace``.

    Raises:
        NoStatus: there is no such service on this machine.
    """
    ask = partial(ask_status, address, ca_file=ca_file, token=token)
    before, began = ask(), _Usage()
    found = ask_trace(address, requests, seconds, ca_file, token)
    used, after = _Usage().since(began), ask()
    step = recording.step_of(before, after, seconds=used.at, cores=_cores(), busy=used.busy)
    return {**found, recording.KEY: {"steps": [step]}}


def write_recording(found: dict[str, Any], file: Path) -> None:
    """Write a recording to a file.

    Raises:
        NoRecording: the file cannot be written.
    """
    try:
        file.write_text(json.dumps(found))
    except OSError as error:
        raise recording.NoRecording(f"{file} cannot be written: {error.strerror}") from error


class _Tracing:
    """Requests a trace while a load runs."""

    def __init__(self, target: Target, seconds: float) -> None:
        self._found: dict[str, Any] = {}
        self._ask = partial(
            ask_trace,
            target.status_url,
            _MOST_TRACED,
            min(60.0, seconds),
            ca_file=target.ca_file,
            token=target.token,
        )
        self._thread = threading.Thread(target=self._run, name="penstock-plan-trace", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._found = self._ask()
        except NoStatus:  # without a trace, all requests are assumed to cost the same
            self._found = {}

    def trace(self) -> dict[str, Any]:
        """Return the trace. Call it after the load."""
        self._thread.join()
        return self._found


class _Usage:
    """Clock time, CPU time of this process, and busy time of the cores that it may use."""

    def __init__(self) -> None:
        self.at, self.own, self.busy = time.monotonic(), time.process_time(), _busy()

    def since(self, former: _Usage) -> _Usage:
        """Return the difference, in seconds."""
        found = object.__new__(_Usage)
        found.at = self.at - former.at
        found.own = self.own - former.own
        found.busy = self.busy - former.busy
        return found


def _cores() -> int:
    return usable_cpus()


def _busy() -> float:
    """Return the busy seconds of these cores since boot, for all processes."""
    names = {f"cpu{number}" for number in os.sched_getaffinity(0)}
    ticks = 0
    for line in Path("/proc/stat").read_text().splitlines():
        name, *fields = line.split()
        if name in names:
            ticks += sum(map(int, fields[:8])) - sum(int(fields[each]) for each in _IDLE)
    return ticks / _TICK


def levels_of(status: dict[str, Any]) -> tuple[int, ...]:
    """Return numbers of requests in flight: from 1 to enough to keep all workers busy."""
    slots = [
        op["workers"] * op["batching"]["batch_size"]
        for graph in status["graphs"]
        for op in graph["ops"]
    ]
    most = max(8, min(256, 2 * sum(slots)))
    return (1, round(math.sqrt(most)), most)
