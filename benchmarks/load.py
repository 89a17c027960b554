"""The plan of every load generator and every bare loop, and their report."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

HEADS = ("same", "different")
FAULTS_KEPT = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The duration of the load, and the process whose CPU time is measured."""

    seconds: float
    warmup_seconds: float = 0.5
    server_pid: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The result of one run; printed as one line of JSON.

    Attributes:
        generator: the share of the time in which the generator itself computed; near 1, the
            generator was the limit.
        server_cpu_s: CPU seconds of the measured process: the server, a bare loop, or a client.
        loop_cpu_s: those of the thread that has Penstock's event loop.
        faults: the first of them; a run with a fault is invalid.
    """

    answers: int
    seconds: float
    p50_us: float
    p99_us: float
    generator: float
    server_cpu_s: float
    loop_cpu_s: float = 0.0
    fault_count: int = 0
    faults: tuple[str, ...] = ()

    @property
    def rate(self) -> float:
        """Answers a second."""
        return self.answers / self.seconds if self.seconds else 0.0

    @property
    def cpu_us(self) -> float:
        """CPU microseconds of an answer; 0 without any."""
        return self.server_cpu_s * 1e6 / self.answers if self.answers else 0.0

    @property
    def loop_us(self) -> float:
        """CPU microseconds of the event loop for an answer; 0 without any."""
        return self.loop_cpu_s * 1e6 / self.answers if self.answers else 0.0

    def print(self) -> int:
        """Print one line of JSON; gives the exit status, 0 without any fault."""
        print(json.dumps({name: getattr(self, name) for name in self.__slots__}), flush=True)
        return 1 if self.fault_count else 0

    @classmethod
    def read(cls, line: str) -> Report:
        """Read what ``print`` wrote."""
        found = json.loads(line)
        return cls(**{**found, "faults": tuple(found["faults"])})


def report_of(
    latencies_ns: Sequence[int],
    *,
    seconds: float,
    server_cpu_s: float,
    client_cpu_s: float = 0.0,
    faults: Sequence[str] = (),
) -> Report:
    """Summarise a run; one without an answer has an additional fault."""
    ordered = sorted(latencies_ns)
    if not ordered:
        faults = [*faults, "no right answer within the measured time"]
    return Report(
        answers=len(ordered),
        seconds=seconds,
        p50_us=percentile_us(ordered, 0.50),
        p99_us=percentile_us(ordered, 0.99),
        generator=client_cpu_s / seconds if seconds else 0.0,
        server_cpu_s=server_cpu_s,
        fault_count=len(faults),
        faults=tuple(faults[:FAULTS_KEPT]),
    )


def percentile_us(ordered_ns: Sequence[int], share: float) -> float:
    """Percentile of sorted nanoseconds by nearest rank, in microseconds; 0 for no values."""
    if not ordered_ns:
        return 0.0
    return ordered_ns[min(len(ordered_ns) - 1, int(share * len(ordered_ns)))] / 1000


class CpuClock:
    """CPU time of a process and its current children, in seconds. None: always 0.

    The event loop runs in the first thread of the child that is named ``engine``, which a service
    with worker processes has, else in that of the process itself.
    """

    def __init__(self, pid: int | None) -> None:
        self._processes: list[psutil.Process] = []
        if pid is not None:
            root = psutil.Process(pid)
            self._processes = [root, *root.children(recursive=True)]
        engines = [each for each in self._processes if each.name() == "engine"]
        self._loops = engines or self._processes[:1]

    def seconds(self) -> float:
        """User and system time so far."""
        times = [process.cpu_times() for process in self._processes]
        return sum(each.user + each.system for each in times)

    def loop_seconds(self) -> float:
        """That of the event loop's thread."""
        return sum(
            each.user_time + each.system_time
            for process in self._loops
            for each in process.threads()
            if each.id == process.pid
        )


def options_of(module: str, *more: tuple[str, dict[str, object]]) -> argparse.Namespace:
    """The options of a generator or loop that is run as ``module``, and those of ``more``.

    ``--core`` is applied here: it pins the process.
    """
    parser = argparse.ArgumentParser(prog=f"python -m {module}")
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--warmup", type=float, default=0.5, help="seconds that do not count")
    parser.add_argument("--core", type=int, help="run on this core only")
    for name, settings in more:
        parser.add_argument(name, **settings)  # type: ignore[arg-type]
    options = parser.parse_args()
    if options.core is not None:
        os.sched_setaffinity(0, {options.core})
    return options


SERVER_OPTIONS: tuple[tuple[str, dict[str, object]], ...] = (
    ("--port", {"type": int, "required": True}),
    ("--connections", {"type": int, "default": 1}),
    ("--body", {"type": Path, "required": True, "help": "file, or folder of files, to send"}),
    ("--expect", {"type": Path, "help": "file with the only right answer"}),
    ("--heads", {"choices": HEADS, "default": "same"}),
    ("--server-pid", {"type": int, "help": "read the CPU time of this process"}),
)
"""Options of generators that load a server on 127.0.0.1."""


def plan_of(options: argparse.Namespace) -> Plan:
    """The plan of these options."""
    return Plan(
        seconds=options.seconds, warmup_seconds=options.warmup, server_pid=options.server_pid
    )
