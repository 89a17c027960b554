"""The shared state of a door's connections: counters, the sweeper, and busy polling."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable
from email.utils import formatdate
from math import inf
from operator import attrgetter
from random import random
from time import monotonic
from typing import TYPE_CHECKING, Final, Protocol

from penstock.door.budget import ByteBudget
from penstock.door.exchange import Application, Failure, plain_failure
from penstock.door.limits import DoorLimits, DoorStatistics
from penstock.instrument import Instruments
from penstock.protocols.http1 import LineCache

if TYPE_CHECKING:
    from penstock.door.connection import Connection

_log = logging.getLogger(__name__)

_PART: Final = 8
"""One of so many parts of all connections is kept for each listener."""

_REFUSALS_LOGGED_EVERY: Final = 10.0
"""Seconds between two log lines about connections over the limit."""

_SMALL_PART: Final = 4
"""Answers that wait for their readers are all kept while they are less than this part of the
budget."""


_WEIGHT: Final = 1 / 8
"""Of the last cycle in the mean: one long pause among short ones changes nothing."""

_LONGEST: Final = 3.0
"""Cycles count as no longer than so many times the limit, so that a few short ones outweigh one."""


class Timed(Protocol):
    """An object that the sweeper checks."""

    due: float

    def look(self, now: float) -> None:
        """``due`` has passed."""


class Sweeper:
    """One timer for all connections of a door; ticks from ``start`` to ``stop``, on one loop.

    A connection has the time of its next check; changing it is one attribute write. At every tick
    all are compared with the clock: with a thousand connections that is a few hundredths of a
    millisecond, while a timer for each request would cost a microsecond a request.

    Attributes:
        members: those who are looked at.
        now: the time of the last tick, by ``time.monotonic``; cheaper than asking the clock, and
            never more than a tick behind while the loop turns.
        tick: seconds.
    """

    def __init__(self, tick: float, on_tick: Callable[[], None] = lambda: None) -> None:
        self._on_tick = on_tick
        self.members: set[Timed] = set()
        self.now = monotonic()
        self.tick = tick
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Start on the running loop; further calls have no effect."""
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
            self.now = monotonic()
            self._timer = self._loop.call_later(self.tick, self._turn)

    def stop(self) -> None:
        """Tick no more."""
        if self._timer is not None:
            self._timer.cancel()
        self._loop = self._timer = None

    def after(self, seconds: float) -> float:
        """The moment so many seconds from now: never too early, and at most two ticks late."""
        return self.now + seconds + self.tick

    def _turn(self) -> None:
        assert self._loop is not None
        before, self.now = self.now, monotonic()
        self._on_tick()
        self._timer = self._loop.call_later(self.tick, self._turn)
        if self.now - before > 1.0 + 4 * self.tick:
            # The loop stood still. What clients sent meanwhile is still to be read: judge them at
            # the next tick.
            return
        now = self.now
        for member in [member for member in self.members if member.due <= now]:
            member.look(now)


class BusyPolling:
    """How long a loop that has come to rest looks for the next request before it sleeps.

    To be woken costs more than to look: the scheduler's turn, and caches that somebody else has
    filled since. With one client that asks again as soon as it is answered, a loop that looks on
    answers a gRPC echo in two thirds of the time. A loop that is asked seldom must not burn its
    core for that, so the length of the last cycles decides, as in the kernel's halt polling for
    guests of KVM (``Documentation/virt/kvm/halt-polling.rst``). Knows no clock.

    Args:
        limit: seconds that a rest is looked through at most, and that the cycles of late, from rest
            to rest, may have had on average for that. At 0 it never looks.
    """

    def __init__(self, limit: float) -> None:
        self._limit = limit
        self._mean = _LONGEST * limit
        self._rested = 0.0

    def until(self, now: float) -> float:
        """It comes to rest now: how long to look, as a point in time; ``now`` means not at all."""
        limit = self._limit
        cycle = min(now - self._rested, _LONGEST * limit)
        self._rested = now
        self._mean += (cycle - self._mean) * _WEIGHT
        return now + limit if self._mean < limit else now


class ListenerQuota:
    """The number of a door's connections from one listener.

    Attributes:
        open: connections that came by it, handshakes included.
    """

    def __init__(self) -> None:
        self.open = 0


class DoorState:
    """Belongs to the door's loop.

    Attributes:
        calls: requests that have no complete answer yet.
        date: the value of the field in every answer, of this second; RFC 9110, section 6.6.1.
        date_line: the whole field as HTTP/1.1 has it.
        glance: seconds within which a connection is looked at again while something waits for its
            client.
        handshakes: connections that have not agreed on TLS yet.
        buffered: bytes that connections keep for clients who have not read them.
        draining: every answer from now on is the last of its connection.
        last_head: when a request's head must have come at the latest, as the door closes.
        leaving: requests that are not whole when they are begun are refused.
        most_calls: of the limits.
        on_empty: called when the last connection has gone.
        on_told: called when no connection is left in ``untold``.
        rested: ``rest`` was called in this turn; calling it again adds nothing.
        untold: connections whose clients may not have seen yet that the door is draining.
    """

    def __init__(
        self,
        application: Application,
        limits: DoorLimits,
        budget: ByteBudget,
        failure: Failure = plain_failure,
        instruments: Instruments | None = None,
    ) -> None:
        if instruments is None:
            instruments = Instruments()
        self.application = application
        self.failure = failure
        self.limits = limits
        self.most_calls = limits.max_calls
        self.budget = budget
        self.counters = DoorStatistics()
        self.period = limits.period
        self.sweeper = Sweeper(min(0.25, self.period), self._tick)
        self.glance = 4 * (self.period + self.sweeper.tick)
        self.lines = LineCache()
        self.connections: set[Connection] = self.sweeper.members  # type: ignore[assignment]
        self.handshakes = 0
        self.calls = 0
        self.body_time = limits.body_timeout + self.sweeper.tick
        self.buffered = 0
        self.draining = False
        self.last_head = inf
        self.leaving = False
        self.on_empty: Callable[[], None] | None = None
        self.on_told: Callable[[], None] | None = None
        self.untold: set[Connection] = set()
        self._set_date()
        self.instruments = instruments
        self._unlogged_refusals = 0
        self._log_refusals_at = 0.0
        self._dirty: list[Connection] = []
        self._quotas: list[ListenerQuota] = []
        self._look_until = 0.0
        self._looking = False
        self._polling = BusyPolling(limits.busy_poll)
        self._relieving = False
        self.rested = False
        self._loop = asyncio.get_running_loop()

    def add_listener(self) -> ListenerQuota:
        """Add a listener."""
        quota = ListenerQuota()
        self._quotas.append(quota)
        return quota

    def is_full(self, quota: ListenerQuota) -> bool:
        """Whether the listener accepts no further connection.

        A part of the places is for each listener alone, so that who fills one of them does not keep
        people from the others.
        """
        part = self._kept_for_each
        others = [one.open for one in self._quotas if one is not quota]
        kept = sum([max(0, part - taken) for taken in others])
        return len(self.connections) + self.handshakes + kept >= self.limits.max_connections

    @property
    def _kept_for_each(self) -> int:
        """The number of connections that are for each listener alone."""
        most = self.limits.max_connections
        return min(max(1, most // _PART), most // len(self._quotas))

    def refuse(self) -> None:
        """A connection is turned away; the log says so, but not for each of many."""
        self.counters.refused += 1
        self._unlogged_refusals += 1
        self._log_refusals()

    def _log_refusals(self) -> None:
        count = self._unlogged_refusals
        if count and monotonic() >= self._log_refusals_at:
            self._unlogged_refusals = 0
            self._log_refusals_at = monotonic() + _REFUSALS_LOGGED_EVERY
            kept = f", of which each port and Unix socket keeps {self._kept_for_each} for itself"
            _log.warning(
                "%d connection%s refused: %d are open, and the limit is %d (max_connections)%s",
                count,
                " was" if count == 1 else "s were",
                len(self.connections) + self.handshakes,
                self.limits.max_connections,
                kept if len(self._quotas) > 1 else "",
            )

    def _tick(self) -> None:
        self._set_date()
        self._log_refusals()

    def _set_date(self) -> None:
        self.date = formatdate(usegmt=True).encode()
        self.date_line = b"date: %b\r\n" % self.date

    def mark(self, connection: Connection) -> None:
        """Flush this connection at the end of the turn."""
        self._dirty.append(connection)
        if len(self._dirty) == 1:
            self._loop.call_soon(self.flush)

    def flush(self) -> None:
        """Write the pending output of all connections."""
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
        if self._relieving or self.buffered <= budget.limit // _SMALL_PART:
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

    def told(self, connection: Connection) -> None:
        """The client of this connection knows that the door is draining, or will not answer."""
        if connection in self.untold:
            self.untold.remove(connection)
            if not self.untold and self.on_told is not None:
                self.on_told()

    def leave(self, connection: Connection) -> None:
        """Remove a connection that has ended."""
        self.told(connection)
        tell = self.instruments.connection_closed
        if tell is not None and connection in self.connections:
            tell(connection.peer.address, monotonic())
        self.connections.discard(connection)
        if connection.quota is not None:
            connection.quota.open -= 1
            connection.quota = None
        if not self.connections and self.on_empty is not None:
            self.on_empty()

    def keep_alive(self) -> float:
        """How long a new connection of HTTP/1.1 may idle.

        Spread out, so that clients that came together do not come back together.
        """
        spread = 1.0 + 0.2 * random()  # noqa: S311 - no secret
        return self.limits.keep_alive * spread + self.sweeper.tick
