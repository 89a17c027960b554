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


def worker_title(op: str, index: int) -> str:
    """The title of a worker: its op's name, truncated, and the worker's number."""
    number = f"/{index}"
    room = MOST_BYTES - len(number)
    return op.encode()[:room].decode(errors="ignore") + number


def name_process(title: str) -> None:
    """Set the title of this process, and of threads started later, if possible."""
    with suppress(OSError), open("/proc/self/comm", "w", encoding="utf-8") as comm:
        comm.write(title)
