"""Load from other people's programs: they need far less CPU than a generator in Python.

They judge less, too: whoever uses them must have seen one right answer before, and compares what
all the answers weigh with what so many right ones would.
"""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
from dataclasses import dataclass

from benchmarks.load import CpuClock

START_SECONDS = 30.0
"""Bound of a program's run beyond the time it measures."""


PROGRAMS = ("h2load", "wrk")


class ProgramFailed(Exception):
    """A load program did not run to its end, or prints what cannot be read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What a program printed, and the CPU seconds of both sides meanwhile."""

    text: str
    server_cpu_s: float | None
    client_cpu_s: float


def installed_programs() -> list[str]:
    """Those of the programs that this machine has; our own generators stand in for the others."""
    return [name for name in PROGRAMS if shutil.which(name) is not None]


def run_program(command: list[str], *, seconds: float, server_pid: int | None) -> Measured:
    """Run a program that loads for ``seconds``; it inherits this process's core.

    Raises:
        ProgramFailed: it ended badly, or not in time.
    """
    server = CpuClock(server_pid)
    before, own_before = server.seconds(), _children_cpu()
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=seconds + START_SECONDS,
            check=False,
            env={name: value for name, value in os.environ.items() if "proxy" not in name.lower()},
        )
    except subprocess.TimeoutExpired as error:
        raise ProgramFailed(f"{command[0]} did not end in {error.timeout:.0f} s") from error
    if done.returncode != 0:
        raise ProgramFailed(f"{command[0]} ended with {done.returncode}: {done.stderr[-2000:]}")
    return Measured(
        text=done.stdout,
        server_cpu_s=None if server_pid is None else server.seconds() - before,
        client_cpu_s=_children_cpu() - own_before,
    )


def weight_fault(found: int, answers: int, each: int, in_flight: int) -> str | None:
    """What is wrong with ``found`` bytes for so many answers of ``each`` bytes; None for nothing.

    Answers that were under way when the time was over may be counted on one side only.
    """
    if abs(found - answers * each) <= in_flight * each:
        return None
    return f"{answers} answers weigh {found} bytes, right ones would weigh {answers * each}"


def _children_cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
