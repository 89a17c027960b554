"""Titles of engine and worker processes."""

from __future__ import annotations

from contextlib import suppress
from typing import Final

from penstock.supervisor.engine_id import EngineId

MOST_BYTES: Final = 15
"""Most bytes of a process title; the kernel truncates it. Source: proc(5), ``/proc/pid/comm``."""


def engine_title(engine_id: EngineId) -> str:
    """The title of an engine."""
    return engine_id.name or "engine"


def worker_title(op: str, index: int, version: str = "1") -> str:
    """The title of a worker: its op's label, truncated before a version, and the worker's number.

    Args:
        op: the label.
        index: the worker's number.
        version: the version; the label may end with it.
    """
    number = f"/{index}"
    if op.endswith(f"@{version}") and len(version.encode()) + 2 + len(number) <= MOST_BYTES:
        op, number = op.removesuffix(f"@{version}"), f"@{version}{number}"
    room = MOST_BYTES - len(number)
    return op.encode()[:room].decode(errors="ignore") + number


def name_process(title: str) -> None:
    """Set the title of this process, and of threads started later, if possible."""
    with suppress(OSError), open("/proc/self/comm", "w", encoding="utf-8") as comm:
        comm.write(title)
