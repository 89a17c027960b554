"""Which CPUs the worker processes of an op run on."""

from __future__ import annotations

import os

from penstock.config.resolve import OpOptions


def available() -> frozenset[int]:
    """The CPUs that this process may use."""
    return frozenset(os.sched_getaffinity(0))


def cpu_problems(options: OpOptions, usable: frozenset[int]) -> list[str]:
    """Why its workers cannot run where ``cpu_affinity`` says."""
    wanted = frozenset[int]().union(*options.cpus)
    if missing := sorted(wanted - usable):
        which = "CPU " if len(missing) == 1 else "CPUs "
        return [
            f"op.{options.name}.cpu_affinity: {which}{spelt(missing)} cannot be used: "
            f"this process may run on {spelt(sorted(usable))}"
        ]
    return []


def stay_on_cpus(options: OpOptions, worker: int) -> None:
    """Keep this process, and every thread that it starts from now on, on its worker's CPUs.

    Raises:
        OSError: they cannot be used any more.
    """
    if options.cpus:
        os.sched_setaffinity(0, options.cpus[worker % len(options.cpus)])


def spelt(cpus: list[int]) -> str:
    """Ascending numbers as ``cpu_affinity`` has them: ``0-1,3``."""
    runs: list[list[int]] = []
    for cpu in cpus:
        if runs and runs[-1][-1] == cpu - 1:
            runs[-1].append(cpu)
        else:
            runs.append([cpu])
    return ",".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)
