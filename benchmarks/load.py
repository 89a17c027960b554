"""The closed loop that both load generators share: counting, checking, ending.

A generator keeps a fixed number of requests in flight: each answer sends the next request. An
answer that is not the expected one, a connection that ends early and a request that is never
answered are faults, and a run with a fault is a failed run.

The measured window opens with the first answer after the warm-up and closes with the first answer
after the given time, so it holds whole rounds of a server that answers in bursts: with batches of
eight that take a second, cutting the window by the clock alone would miscount by up to eight.

Latencies are nanoseconds from writing the request to reading the end of its answer.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import time
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, Protocol

import psutil

PATIENCE = 60.0
"""Seconds to wait for the answers that open and close the window, and for those still owed."""
FAULTS_KEPT = 5
MANY = 5_000_000
"""Answers after which a window closes whatever the clock says, so that memory is bounded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How long to load, and whose CPU time to read meanwhile."""

    seconds: float
    warmup_seconds: float = 0.5
    count: int = MANY
    server_pid: int | None = None


class Phase(Enum):
    """Where a run stands."""

    WARMING = "warming"
    OPENING = "opening"
    MEASURING = "measuring"
    CLOSING = "closing"
    CLOSED = "closed"


_LEGAL = {
    Phase.WARMING: {Phase.OPENING, Phase.CLOSED},
    Phase.OPENING: {Phase.MEASURING, Phase.CLOSED},
    Phase.MEASURING: {Phase.CLOSING, Phase.CLOSED},
    Phase.CLOSING: {Phase.CLOSED},
    Phase.CLOSED: set(),
}


class CpuClock:
    """CPU time of a process and the children it has now, in seconds. None: always 0."""

    def __init__(self, pid: int | None) -> None:
        self._processes: list[psutil.Process] = []
        if pid is not None:
            root = psutil.Process(pid)
            self._processes = [root, *root.children(recursive=True)]

    def seconds(self) -> float:
        """User and system time so far."""
        total = 0.0
        for process in self._processes:
            times = process.cpu_times()
            total += times.user + times.system
        return total


class Tally:
    """Counts the answers of all connections of one run. Its loop's thread only."""

    def __init__(self, count: int = MANY, server: CpuClock | None = None) -> None:
        self.phase = Phase.WARMING
        self.latencies_ns = array("q")
        self.fault_count = 0
        self.faults: list[str] = []
        self.measured = asyncio.Event()
        self.seconds = 0.0
        self.server_cpu_s = 0.0
        self.client_cpu_s = 0.0
        self._count = count
        self._server = server or CpuClock(None)

    @property
    def stopping(self) -> bool:
        """Whether no further request shall be sent."""
        return self.phase is Phase.CLOSED

    def enter(self, phase: Phase) -> None:
        """Go on to ``phase``; reads the clocks where the window opens and closes."""
        assert phase in _LEGAL[self.phase], f"{self.phase} to {phase}"
        if phase is Phase.MEASURING:
            self._read_clocks(-1)
        elif phase is Phase.CLOSED:
            if self.phase in (Phase.MEASURING, Phase.CLOSING):
                self._read_clocks(+1)
            self.measured.set()
        self.phase = phase

    def answered(self, latency_ns: int) -> None:
        """One right answer arrived."""
        if self.phase is Phase.MEASURING:
            self.latencies_ns.append(latency_ns)
            if len(self.latencies_ns) >= self._count:
                self.enter(Phase.CLOSED)
        elif self.phase is Phase.OPENING:
            self.enter(Phase.MEASURING)
        elif self.phase is Phase.CLOSING:
            self.latencies_ns.append(latency_ns)
            self.enter(Phase.CLOSED)

    def fault(self, text: str) -> None:
        """Something arrived, or failed to arrive, that makes the run worthless."""
        self.fault_count += 1
        if len(self.faults) < FAULTS_KEPT:
            self.faults.append(text)

    def _read_clocks(self, sign: int) -> None:
        self.seconds += sign * time.perf_counter()
        self.server_cpu_s += sign * self._server.seconds()
        self.client_cpu_s += sign * time.process_time()


class Connection(Protocol):
    """What the closed loop asks of a generator's connection."""

    finished: asyncio.Future[None]
    """Done when nothing is in flight and nothing more will be sent."""

    def start(self) -> None:
        """Send the first requests."""

    def in_flight(self) -> int:
        """Requests without a complete answer."""

    def close(self) -> None:
        """End the connection."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What one run found; printed as one line of JSON.

    ``client_cpu`` is the share of the window that the generator itself computed: near 1, the
    generator was the limit. ``server_cpu_s`` is None when nobody asked for it.
    """

    requests: int
    seconds: float
    rps: float
    p50_us: float
    p99_us: float
    client_cpu: float
    server_cpu_s: float | None
    fault_count: int
    faults: list[str]

    def to_json(self) -> str:
        """One line of JSON."""
        return json.dumps({name: getattr(self, name) for name in self.__slots__})

    @classmethod
    def from_json(cls, line: str) -> Report:
        """Read what ``to_json`` wrote."""
        return cls(**json.loads(line))


def percentile_us(ordered_ns: Sequence[int], share: float) -> float:
    """Percentile of sorted nanoseconds by nearest rank, in microseconds; 0 for no values."""
    if not ordered_ns:
        return 0.0
    return ordered_ns[min(len(ordered_ns) - 1, int(share * len(ordered_ns)))] / 1000


async def run_closed_loop(
    connections: list[Connection], tally: Tally, plan: Plan, patience: float = PATIENCE
) -> Report:
    """Load until the plan is fulfilled and give the report; closes the connections.

    ``tally`` must be the one the connections report to.
    """
    for connection in connections:
        connection.start()
    all_over = asyncio.gather(*(connection.finished for connection in connections))
    measured = asyncio.ensure_future(tally.measured.wait())

    ends: list[asyncio.Future[Any]] = [all_over, measured]

    async def until_over(seconds: float) -> None:
        await asyncio.wait(ends, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)

    await until_over(plan.warmup_seconds)
    tally.enter(Phase.OPENING)
    await until_over(plan.seconds)
    if tally.phase is Phase.MEASURING:
        tally.enter(Phase.CLOSING)
    await until_over(patience)
    if tally.phase is not Phase.CLOSED:
        tally.enter(Phase.CLOSED)

    await asyncio.wait([all_over], timeout=patience)
    unanswered = sum(connection.in_flight() for connection in connections)
    if unanswered:
        tally.fault(f"{unanswered} requests without an answer after {patience:g} s")
    for connection in connections:
        connection.close()
    await asyncio.gather(all_over, measured)
    return report_of(tally, plan)


def report_of(tally: Tally, plan: Plan) -> Report:
    """Sum up a finished run; a window with no answer in it is one more fault."""
    if not tally.latencies_ns:
        tally.fault("no right answer within the measured time")
    ordered = sorted(tally.latencies_ns)
    seconds = tally.seconds or 1.0
    return Report(
        requests=len(ordered),
        seconds=tally.seconds,
        rps=len(ordered) / seconds,
        p50_us=percentile_us(ordered, 0.50),
        p99_us=percentile_us(ordered, 0.99),
        client_cpu=tally.client_cpu_s / seconds,
        server_cpu_s=tally.server_cpu_s if plan.server_pid is not None else None,
        fault_count=tally.fault_count,
        faults=tally.faults,
    )


def plan_parser(module: str) -> argparse.ArgumentParser:
    """The options that all generators have, for a program that is run as ``module``."""
    parser = argparse.ArgumentParser(prog=f"python -m {module}")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--connections", type=int, default=1)
    parser.add_argument("--body", type=Path, required=True, help="file with the request's body")
    parser.add_argument(
        "--expect", type=Path, help="file with the only right answer; without it: any err_no 0"
    )
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--warmup", type=float, default=0.5, help="seconds that do not count")
    parser.add_argument("--count", type=int, default=MANY, help="stop after so many answers")
    parser.add_argument("--server-pid", type=int, help="read this process's CPU time")
    parser.add_argument("--core", type=int, help="run on this core only")
    return parser


def plan_of(arguments: argparse.Namespace) -> Plan:
    """The plan the options ask for; pins this process to its core as a side effect."""
    if arguments.core is not None:
        os.sched_setaffinity(0, {arguments.core})
    return Plan(
        seconds=arguments.seconds,
        warmup_seconds=arguments.warmup,
        count=arguments.count,
        server_pid=arguments.server_pid,
    )


def told(report: Report) -> int:
    """Print a report as one line of JSON; gives the exit status, 0 without any fault."""
    print(report.to_json(), flush=True)
    return 1 if report.fault_count else 0


def asked_of_all(arguments: argparse.Namespace) -> dict[str, Any]:
    """What those options ask of any generator.

    ``expected`` is None when any answer with ``err_no`` 0 is right.
    """
    return {
        "port": arguments.port,
        "expected": arguments.expect.read_bytes() if arguments.expect is not None else None,
        "connections": arguments.connections,
        "plan": plan_of(arguments),
    }
