"""What the connections of one door share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import random
from typing import TYPE_CHECKING

from penstock.engine.budget import ByteBudget
from penstock.frontends.door_limits import DoorLimits, DoorStatistics
from penstock.frontends.exchange import Application
from penstock.frontends.wheel import Wheel
from penstock.protocols.http1 import HeadMemo as Http1Heads
from penstock.protocols.http2 import HeadMemo as Http2Heads

if TYPE_CHECKING:
    from penstock.frontends.door_connection import Connection


class DoorState:
    """Belongs to the door's loop.

    Attributes:
        calls: requests that have no complete answer yet.
        handshakes: connections that have not agreed on TLS yet.
        draining: every answer from now on is the last of its connection.
        on_empty: called when the last connection has gone.
    """

    __slots__ = (
        "_dirty",
        "_loop",
        "application",
        "body_time",
        "budget",
        "calls",
        "connections",
        "counters",
        "draining",
        "handshakes",
        "http1_heads",
        "http2_heads",
        "limits",
        "on_empty",
        "period",
        "unsent",
        "wheel",
    )

    def __init__(self, application: Application, limits: DoorLimits, budget: ByteBudget) -> None:
        self.application = application
        self.limits = limits
        self.budget = budget
        self.counters = DoorStatistics()
        self.period = limits.period
        self.wheel = Wheel(min(0.25, self.period))
        self.http1_heads = Http1Heads()
        self.http2_heads = Http2Heads()
        self.connections: set[Connection] = self.wheel.members  # type: ignore[assignment]
        self.handshakes = 0
        self.calls = 0
        self.body_time = limits.body_timeout + self.wheel.tick
        self.unsent = 0
        self.draining = False
        self.on_empty: Callable[[], None] | None = None
        self._dirty: list[Connection] = []
        self._loop = asyncio.get_running_loop()

    def is_full(self) -> bool:
        """Whether no further connection is taken."""
        return len(self.connections) + self.handshakes >= self.limits.max_connections

    def mark(self, connection: Connection) -> None:
        """Flush this connection at the end of the turn."""
        self._dirty.append(connection)
        if len(self._dirty) == 1:
            self._loop.call_soon(self.flush)

    def flush(self) -> None:
        """Write what all connections have to say."""
        dirty, self._dirty = self._dirty, []
        for connection in dirty:
            connection.flush()

    def leave(self, connection: Connection) -> None:
        """A connection has ended."""
        self.connections.discard(connection)
        if not self.connections and self.on_empty is not None:
            self.on_empty()

    def keep_alive(self) -> float:
        """How long a new connection of HTTP/1.1 may idle.

        Spread out, so that clients that came together do not come back together.
        """
        spread = 1.0 + 0.2 * random()  # noqa: S311 - no secret
        return self.limits.keep_alive * spread + self.wheel.tick
