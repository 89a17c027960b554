"""Where a process of a service runs, and what it is called: engine id, CPUs, card and title."""

from __future__ import annotations

import os
from collections.abc import Container, MutableMapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from penstock.config.resolve import OpOptions

_IDS: Final = 10**12
"""Data ids kept for one process: more than it will ever hand out."""

_PROCESSES: Final = 10**6 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineId:
    """The first and only engine, unless said otherwise.

    Attributes:
        index: of the engine, from 0.
        engines: how many the service has.
        generation: how many processes were this engine before.
    """

    index: int = 0
    engines: int = 1
    generation: int = 0

    @property
    def name(self) -> str | None:
        """Of the engine, for people; None when there is no other to be told from."""
        return None if self.engines == 1 else f"engine {self.index}"

    @property
    def is_first(self) -> bool:
        """Whether it is the one to tell what holds for all."""
        return self.index == 0 and self.generation == 0

    @property
    def first_id(self) -> int:
        """Its first data id; with a step of ``engines`` no other process of the service has it."""
        return self.index + self.engines * _IDS * (self.generation % (_PROCESSES // self.engines))

    def card(self, workers: int = 1, worker: int = 0) -> int:
        """Which of an op's cards a worker of it takes, counted on beyond their number.

        Args:
            workers: of that op, in each engine; 1 when they share one model.
            worker: which of them.
        """
        return self.index * workers + worker


VARIABLE: Final = "CUDA_VISIBLE_DEVICES"
"""Read by the driver when a process first uses it. The card that it leaves is number 0 then."""

ONLY: Final = "0"

_LOOKING: Final = ("cupy", "jax", "numba.cuda", "paddle", "tensorflow", "torch")
"""Libraries that may look at the cards while they are imported, or soon after; the rest of their
process goes by what they saw. ONNX Runtime looks when its first session is opened."""


def show_only(card: str, environment: MutableMapping[str, str], imported: Container[str]) -> bool:
    """Let this process see one card, as number 0.

    Args:
        card: its id, which counts among those that the process sees now.
        environment: of the process.
        imported: names of the modules that it has imported.

    Returns:
        Whether that was done. It is not where a library may have looked at the cards before, and
        not where there is no such card; that is the runtime's to tell.
    """
    if any(name in imported for name in _LOOKING):
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


MOST_BYTES: Final = 15
"""Of such a name; the kernel cuts off what is beyond. Source: proc(5), ``/proc/pid/comm``."""


def engine_title(engine_id: EngineId) -> str:
    """The engine's, or that of one of several."""
    return engine_id.name or "engine"


def worker_title(op: str, index: int) -> str:
    """A worker's: its op, as much of it as there is room for, and which of the op's it is."""
    number = f"/{index}"
    room = MOST_BYTES - len(number)
    return op.encode()[:room].decode(errors="ignore") + number


def name_process(title: str) -> None:
    """Be called so from now on, with each thread that is started later; where that is possible."""
    with suppress(OSError), open("/proc/self/comm", "w", encoding="utf-8") as comm:
        comm.write(title)
