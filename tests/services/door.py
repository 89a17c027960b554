"""A door with its own loop in a thread, so that tests can use blocking sockets."""

from __future__ import annotations

import asyncio
import socket
import ssl
import threading
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

from penstock.api.router import door_failure
from penstock.door.budget import ByteBudget
from penstock.door.door import Door, DoorLimits, DoorStatistics
from penstock.door.exchange import Application
from penstock.door.listeners import bind, port_of
from penstock.instrument import Instruments
from tests.door.applications import EchoApplication
from tests.kit.http1 import TIMEOUT

T = TypeVar("T")

QUICK = 0.2
"""Seconds: a timeout that a test reaches."""


class Site:
    """A door that listens on a port of loopback."""

    def __init__(
        self,
        new_loop: Callable[[], asyncio.AbstractEventLoop],
        limits: DoorLimits,
        *,
        tls: ssl.SSLContext | None = None,
        folder: Path | None = None,
        application: Application | None = None,
        budget: int = 1 << 30,
        instruments: Instruments | None = None,
    ) -> None:
        self.echo_app = EchoApplication()
        self.budget = ByteBudget(budget)
        self.loop_errors: list[dict[str, Any]] = []
        self.port = 0
        self.unix = "" if folder is None else str(folder / "door")
        self._application = application or self.echo_app
        self._limits = limits
        self._tls = tls
        self._instruments = instruments
        self._loop = new_loop()
        self._loop.set_exception_handler(lambda loop, context: self.loop_errors.append(context))
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self.run(self._open())

    async def _open(self) -> None:
        self.echo_app.loop = asyncio.get_running_loop()
        self.door = Door(
            self._application, self._limits, self.budget, door_failure, self._instruments
        )
        if self.unix:
            listener = socket.socket(socket.AF_UNIX)
            listener.bind(self.unix)
        else:
            listener = bind("127.0.0.1", 0, "http_port")
            self.port = port_of(listener)
        self.listening = [listener]
        await self.door.listen(listener, self._tls)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the door's loop."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(TIMEOUT)

    def call(self, function: Callable[[], T]) -> T:
        """Call something on the door's loop."""

        async def work() -> T:
            return function()

        return self.run(work())

    def statistics(self) -> DoorStatistics:
        return self.call(self.door.statistics)

    def until(self, condition: Callable[[DoorStatistics], bool]) -> DoorStatistics:
        """Wait until the statistics fulfil the condition."""
        deadline = time.monotonic() + TIMEOUT
        while True:
            seen = self.statistics()
            if condition(seen):
                return seen
            assert time.monotonic() < deadline, seen

    def close(self, timeout: float = 0.2) -> None:
        """Close the door and its loop; no connections, calls or bytes may be left."""
        try:
            self.run(self.door.close(timeout))
            left = self.statistics()
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(TIMEOUT)
            self._loop.close()
        assert not self._thread.is_alive()
        assert (left.open, left.calls) == (0, 0)
        assert left.unsent == 0
        assert self.budget.used == 0
        assert self.loop_errors == []
