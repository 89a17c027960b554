"""Descriptors: the three that every program expects, and enough for what a service has open."""

from __future__ import annotations

import os
import resource
from typing import Final

_STANDARD: Final = (0, 1, 2)
_MOST_CONNECTIONS: Final = 1024
_RESERVE: Final = 128
_FEWEST: Final = 16

# What an engine holds of a worker process: its two sockets, what it is signalled by, its standard
# error, its board and its memory's size; and slabs each way, as many as may lie idle.
_EACH_WORKER: Final = 6 + 2 * 8


def open_standard_descriptors() -> None:
    """Let those that whoever started this program has closed lead to nowhere.

    Otherwise the next files and sockets get their numbers, and what a program writes to its
    standard error, or what is put in that one's place in a child, goes there.
    """
    for number in _STANDARD:
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest number that is free, and so this one
            os.set_inheritable(number, True)


def max_connections(configured: int | None, processes: int = 0) -> int:
    """The connection limit: below the descriptor limit, less a reserve for everything else."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    reserve = min(_RESERVE, soft // 4) + min(_EACH_WORKER * processes, soft // 4)
    most = max(_FEWEST, soft - reserve)
    return min(configured or _MOST_CONNECTIONS, most)


def make_room(processes: int) -> str | None:
    """Have room for an engine's worker processes: where they would take more than a quarter of the
    descriptors, raise the soft limit as far as the hard one allows.

    Returns:
        What to tell whoever starts the service, if they may still take more than half.
    """
    need = _EACH_WORKER * processes
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return None
    if need > soft // 4:
        soft = 4 * need if hard == resource.RLIM_INFINITY else max(soft, min(4 * need, hard))
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    if need <= soft // 2:
        return None
    return (
        f"the {processes} worker processes of an engine may take up to {need} descriptors, and it"
        f" may open {soft} (ulimit -n), those of connections among them: allow it {4 * need}, or"
        f" have fewer workers"
    )
