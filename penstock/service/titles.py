"""What the system calls a process of a service, in ``top`` and where it runs out of memory."""

from __future__ import annotations

from contextlib import suppress
from typing import Final

from penstock.service.place import Place

MOST_BYTES: Final = 15
"""Of such a name; the kernel cuts off what is beyond. Source: proc(5), ``/proc/pid/comm``."""


def engine_title(place: Place) -> str:
    """The engine's, or that of one of several."""
    return place.name or "engine"


def worker_title(op: str, index: int) -> str:
    """A worker's: its op, as much of it as there is room for, and which of the op's it is."""
    number = f"/{index}"
    room = MOST_BYTES - len(number)
    return op.encode()[:room].decode(errors="ignore") + number


def name_process(title: str) -> None:
    """Be called so from now on, with each thread that is started later; where that is possible."""
    with suppress(OSError), open("/proc/self/comm", "w", encoding="utf-8") as comm:
        comm.write(title)
