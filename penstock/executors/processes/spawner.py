"""The interface of what starts worker processes: a supervisor, or a test."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from typing import Protocol

from penstock.executors.executor import OpSource


@dataclass(frozen=True, slots=True)
class Exited:
    """A worker has ended, with this wait status; ``peak`` is the most memory it ever had, bytes."""

    pid: int
    status: int
    peak: int


@dataclass(frozen=True, slots=True)
class Spawned:
    """A new worker process.

    Attributes:
        pid: its process id, the argument of ``exited``.
        pidfd: for signals, without the risk of a reused pid; readable when the worker has ended.
            The receiver closes it.
        socket: the engine's end of the pair, non-blocking. The receiver closes it.
    """

    pid: int
    pidfd: int
    socket: socket.socket


class Spawner(Protocol):
    """Starts worker processes."""

    async def spawn(self, source: OpSource, index: int) -> Spawned:
        """Start one; it has yet to open the op ``source``.

        Raises:
            StartupError: it cannot be started.
        """

    async def exited(self, pid: int) -> Exited:
        """Wait for its end, and return its wait status; called once for each."""
