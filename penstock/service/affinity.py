"""The CPUs and the GPU of a process."""

from __future__ import annotations

import os
from collections.abc import Container, MutableMapping
from typing import Final

from penstock.config.resolve import OpOptions

VARIABLE: Final = "CUDA_VISIBLE_DEVICES"
"""Read by the driver at its first use in a process. A single visible GPU has the number 0."""

ONLY: Final = "0"

_ENUMERATE_GPUS: Final = ("cupy", "jax", "numba.cuda", "paddle", "tensorflow", "torch")
"""Libraries that may enumerate the GPUs during their import, or soon after; later changes of the
variable have no effect. ONNX Runtime enumerates when it opens its first session."""


def show_only(card: str, environment: MutableMapping[str, str], imported: Container[str]) -> bool:
    """Make only one GPU visible to this process, as number 0.

    Args:
        card: its id, among the currently visible GPUs.
        environment: of the process.
        imported: names of the modules that it has imported.

    Returns:
        whether that was done. It is not if a library may have enumerated the GPUs before, or if
        there is no such GPU, which the runtime will report.
    """
    if any(name in imported for name in _ENUMERATE_GPUS):
        return False
    visible = environment.get(VARIABLE)
    if visible is not None:
        known = [each.strip() for each in visible.split(",") if each.strip()]
        if int(card) >= len(known):
            return False
        card = known[int(card)]
    environment[VARIABLE] = card
    return True


def available() -> frozenset[int]:
    """The CPUs available to this process."""
    return frozenset(os.sched_getaffinity(0))


def cpu_problems(options: OpOptions, usable: frozenset[int]) -> list[str]:
    """Problems of ``cpu_affinity``."""
    wanted = frozenset[int]().union(*options.cpus)
    if missing := sorted(wanted - usable):
        which = "CPU " if len(missing) == 1 else "CPUs "
        return [
            f"op.{options.name}.cpu_affinity: {which}{cpu_list(missing)} cannot be used: "
            f"this process may run on {cpu_list(sorted(usable))}"
        ]
    return []


def stay_on_cpus(options: OpOptions, worker: int) -> None:
    """Bind this process, and threads that it starts from now on, to its worker's CPUs.

    Raises:
        OSError: they are no longer available.
    """
    if options.cpus:
        os.sched_setaffinity(0, options.cpus[worker % len(options.cpus)])


def cpu_list(cpus: list[int]) -> str:
    """Ascending numbers in the format of ``cpu_affinity``: ``0-1,3``."""
    runs: list[list[int]] = []
    for cpu in cpus:
        if runs and runs[-1][-1] == cpu - 1:
            runs[-1].append(cpu)
        else:
            runs.append([cpu])
    return ",".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)
