"""The placement of a process: engine id, CPUs, GPU, and process title."""

from __future__ import annotations

import os
from collections.abc import Container, MutableMapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from penstock.config.resolve import OpOptions

_IDS: Final = 10**12
"""Data ids reserved for one process: more than it will ever use."""

_PROCESSES: Final = 10**6 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineId:
    """The id of an engine; by default of the only one.

    Attributes:
        index: index of the engine, from 0.
        engines: number of engines of the service.
        generation: number of earlier processes of this engine.
    """

    index: int = 0
    engines: int = 1
    generation: int = 0

    @property
    def name(self) -> str | None:
        """The engine's name for logs; None if it is the only one."""
        return None if self.engines == 1 else f"engine {self.index}"

    @property
    def is_first(self) -> bool:
        """Whether it is the engine that reports for all."""
        return self.index == 0 and self.generation == 0

    @property
    def first_id(self) -> int:
        """Its first data id; with steps of ``engines`` the ids are unique in the service."""
        return self.index + self.engines * _IDS * (self.generation % (_PROCESSES // self.engines))

    def card(self, workers: int = 1, worker: int = 0) -> int:
        """The index of a worker's GPU, modulo their number.

        Args:
            workers: number of workers of the op in each engine; 1 if they share one model.
            worker: index of the worker.
        """
        return self.index * workers + worker


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


MOST_BYTES: Final = 15
"""Most bytes of a process title; the kernel truncates it. Source: proc(5), ``/proc/pid/comm``."""


def engine_title(engine_id: EngineId) -> str:
    """The title of an engine."""
    return engine_id.name or "engine"


def worker_title(op: str, index: int) -> str:
    """The title of a worker: its op's name, truncated, and the worker's number."""
    number = f"/{index}"
    room = MOST_BYTES - len(number)
    return op.encode()[:room].decode(errors="ignore") + number


def name_process(title: str) -> None:
    """Set the title of this process, and of threads started later, if possible."""
    with suppress(OSError), open("/proc/self/comm", "w", encoding="utf-8") as comm:
        comm.write(title)
