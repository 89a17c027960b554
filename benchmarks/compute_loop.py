"""Pure Python in bare processes: what the cores give when nothing serves and nobody asks.

python -m benchmarks.compute_loop --processes 2 --steps 500000 --seconds 2
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

from benchmarks.load import Report, percentile_us, told

STEPS = 100_000


def added(steps: int) -> int:
    """Add so many numbers, one by one."""
    total = 0
    for number in range(steps):
        total += number & 7
    return total


def add_on_and_on(steps: int, begin: float, seconds: float) -> tuple[list[int], float]:
    """From ``begin`` on, for ``seconds`` at least: nanoseconds of each sum, and CPU seconds."""
    added(steps)
    while time.monotonic() < begin:
        added(1000)  # the other processes are still starting
    cpu = time.process_time()
    took = []
    before = time.monotonic_ns()
    while before < (begin + seconds) * 1e9:
        added(steps)
        now = time.monotonic_ns()
        took.append(now - before)
        before = now
    return took, time.process_time() - cpu


def run_loops(processes: int, steps: int, seconds: float, warmup_seconds: float) -> Report:
    """All of them at the same time; each begins and ends with a whole sum."""
    begin = time.monotonic() + warmup_seconds
    with ProcessPoolExecutor(processes, get_context("fork")) as pool:
        loops = [pool.submit(add_on_and_on, steps, begin, seconds) for _ in range(processes)]
        done = [loop.result() for loop in loops]
    ordered = sorted(each for took, _ in done for each in took)
    # Their last sums end at different moments, so each has a rate of its own.
    rps = sum(len(took) / (sum(took) / 1e9) for took, _ in done)
    return Report(
        requests=len(ordered),
        seconds=len(ordered) / rps,
        rps=rps,
        p50_us=percentile_us(ordered, 0.50),
        p99_us=percentile_us(ordered, 0.99),
        client_cpu=0.0,
        server_cpu_s=sum(cpu for _, cpu in done),
        fault_count=0,
        faults=[],
    )


def main() -> int:
    """Print the report as one line of JSON."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.compute_loop")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--warmup", type=float, default=0.5)
    parser.add_argument("--core", type=int, help="run on this core only")
    arguments = parser.parse_args()
    if arguments.core is not None:
        os.sched_setaffinity(0, {arguments.core})
    return told(
        run_loops(arguments.processes, arguments.steps, arguments.seconds, arguments.warmup)
    )


if __name__ == "__main__":
    sys.exit(main())
