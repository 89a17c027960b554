"""What the connections of one door share."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from math import inf
from operator import attrgetter
from random import random
from time import monotonic
from typing import TYPE_CHECKING, Final

from penstock.door.budget import ByteBudget
from penstock.door.busy_polling import BusyPolling
from penstock.door.exchange import Application, Failure, plain_failure
from penstock.door.limits import DoorLimits, DoorStatistics
from penstock.door.sweeper import Wheel
from penstock.protocols.http1 import LineCache

if TYPE_CHECKING:
    from penstock.door.connection import Connection

_PART: Final = 8
"""One of so many parts of all connections is kept for each listener."""

_SMALL_PART: Final = 4
"""Answers that wait for their readers are all kept while they are less than this part of the
budget."""


class Entrance:
    """One listener.

    Attributes:
        open: connections that came by it, handshakes included.
    """

    __slots__ = ("open",)

    def __init__(self) -> None:
        self.open = 0


class DoorState:
    """Belongs to the door's loop.

    Attributes:
        calls: requests that have no complete answer yet.
        glance: seconds within which a connection is looked at again while something waits for its
            client.
        handshakes: connections that have not agreed on TLS yet.
        held: bytes that connections keep for clients who have not read them.
        draining: every answer from now on is the last of its connection.
        last_head: when a request's head must have come at the latest, as the door closes.
        leaving: requests that are not whole when they are begun are refused.
        most_calls: of the limits.
        on_empty: called when the last connection has gone.
        rested: ``rest`` was called in this turn; calling it again adds nothing.
    """

    __slots__ = (
        "_dirty",
        "_entrances",
        "_look_until",
        "_looking",
        "_loop",
        "_polling",
        "_relieving",
        "application",
        "body_time",
        "budget",
        "calls",
        "connections",
        "counters",
        "draining",
        "failure",
        "glance",
        "handshakes",
        "held",
        "last_head",
        "leaving",
        "limits",
        "lines",
        "most_calls",
        "on_empty",
        "period",
        "rested",
        "wheel",
    )

    def __init__(
        self,
        application: Application,
        limits: DoorLimits,
        budget: ByteBudget,
        failure: Failure = plain_failure,
    ) -> None:
        self.application = application
        self.failure = failure
        self.limits = limits
        self.most_calls = limits.max_calls
        self.budget = budget
        self.counters = DoorStatistics()
        self.period = limits.period
        self.wheel = Wheel(min(0.25, self.period))
        self.glance = 4 * (self.period + self.wheel.tick)
        self.lines = LineCache()
        self.connections: set[Connection] = self.wheel.members  # type: ignore[assignment]
        self.handshakes = 0
        self.calls = 0
        self.body_time = limits.body_timeout + self.wheel.tick
        self.held = 0
        self.draining = False
        self.last_head = inf
        self.leaving = False
        self.on_empty: Callable[[], None] | None = None
        self._dirty: list[Connection] = []
        self._entrances: list[Entrance] = []
        self._look_until = 0.0
        self._looking = False
        self._polling = BusyPolling(limits.busy_poll)
        self._relieving = False
        self.rested = False
        self._loop = asyncio.get_running_loop()

    def add_entrance(self) -> Entrance:
        """A further listener."""
        entrance = Entrance()
        self._entrances.append(entrance)
        return entrance

    def is_full(self, entrance: Entrance) -> bool:
        """Whether no further connection is taken here.

        A part of the places is for each listener alone, so that who fills one of them does not keep
        people from the others.
        """
        most = self.limits.max_connections
        others = [one.open for one in self._entrances if one is not entrance]
        part = min(max(1, most // _PART), most // (len(others) + 1))
        kept = sum([max(0, part - taken) for taken in others])
        return len(self.connections) + self.handshakes + kept >= most

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

    def rest(self) -> None:
        """No request is open any more: if that is so at the end of the turn, look on for a moment,
        or sleep at once.
        """
        self.rested = True
        if not self._looking:
            self._looking = True
            self._loop.call_soon(self._look)

    def _look(self) -> None:
        rested, self.rested = self.rested, False
        if self.calls or self.draining:
            self._looking = False
            return
        now = monotonic()
        if rested:
            self._look_until = self._polling.until(now)
        if now >= self._look_until:
            self._looking = False
        else:
            os.sched_yield()  # whoever has something to do on this core comes first
            self._loop.call_soon(self._look)

    def relieve(self) -> None:
        """Give up answers until what nobody reads fits the budget, those first who hold the most.

        Bodies are only taken while they fit; answers are there already when they are counted. As
        long as they are a small part, requests in flight fill the budget, and will end.
        """
        budget = self.budget
        if self._relieving or self.held <= budget.limit // _SMALL_PART:
            return
        self._relieving = True
        try:
            while budget.there > budget.limit:
                worst = max(self.connections, key=attrgetter("counted"), default=None)
                if worst is None or not worst.counted:
                    return
                self.counters.overrun += 1
                worst.give_up()
        finally:
            self._relieving = False

    def leave(self, connection: Connection) -> None:
        """A connection has ended."""
        self.connections.discard(connection)
        if connection.entrance is not None:
            connection.entrance.open -= 1
            connection.entrance = None
        if not self.connections and self.on_empty is not None:
            self.on_empty()

    def keep_alive(self) -> float:
        """How long a new connection of HTTP/1.1 may idle.

        Spread out, so that clients that came together do not come back together.
        """
        spread = 1.0 + 0.2 * random()  # noqa: S311 - no secret
        return self.limits.keep_alive * spread + self.wheel.tick
