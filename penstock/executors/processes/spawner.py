"""Who starts worker processes, and what it gives of each."""

from __future__ import annotations

import socket
from typing import Protocol

from penstock.executors.processes.control import Exited


class Spawned(Protocol):
    """A process that was started; its descriptors are ours to close."""

    @property
    def pid(self) -> int:
        """Its number."""

    @property
    def pidfd(self) -> int:
        """What it is signalled by."""

    @property
    def socket(self) -> socket.socket:
        """Our end of its socket."""


class Spawner(Protocol):
    """Starts worker processes."""

    async def spawn(self, op: str, index: int) -> Spawned:
        """Start one; its model is not open yet."""

    async def exited(self, pid: int) -> Exited:
        """How it has ended, when it has; asked once for each."""
