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
from penstock.protocols.http2 import encode_block

if TYPE_CHECKING:
    from penstock.door.connection import Connection

_log = logging.getLogger(__name__)

_RESERVED_DIVISOR: Final = 8
"""Each listener has this fraction of the maximum of connections reserved: 1 / 8."""

_REFUSALS_LOGGED_EVERY: Final = 10.0
"""Seconds between two log lines about connections over the limit."""

_KEPT_DIVISOR: Final = 4
"""No unsent output is dropped while it is at most this fraction of the budget: 1 / 4."""


_WEIGHT: Final = 1 / 8
"""Weight of the last cycle in the moving average: one long cycle among short ones has no effect."""

_MAX_CYCLE: Final = 3.0
"""Maximum length of a counted cycle, in limits, so that a few short cycles outweigh a long one."""


class Timed(Protocol):
    """An object that the sweeper checks."""

    due: float

    def on_due(self, now: float) -> None:
        """Enforce timeouts; ``due`` has passed."""


class Sweeper:
    """One timer for all connections of a door; ticks from ``start`` to ``stop``, on one loop.

    Each connection has the time of its next check; changing it is one attribute write. Every tick
    compares all of them with the clock: with a thousand connections this takes a few hundredths of
    a millisecond, while a timer for each request would cost a microsecond per request.

    Attributes:
        members: the objects that are checked.
        now: monotonic time of the last tick; cheaper than reading the clock, and at most one tick
            old while the loop is not blocked.
        tick: seconds between two ticks.
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
        """Stop ticking."""
        if self._timer is not None:
            self._timer.cancel()
        self._loop = self._timer = None

    def after(self, seconds: float) -> float:
        """Return the time ``seconds`` from now: never too early, and at most two ticks late."""
        return self.now + seconds + self.tick

    def _turn(self) -> None:
        assert self._loop is not None
        before, self.now = self.now, monotonic()
        self._on_tick()
        self._timer = self._loop.call_later(self.tick, self._turn)
        if self.now - before > 1.0 + 4 * self.tick:
            # The loop was blocked, so input of clients is still unread: check at the next tick.
            return
        now = self.now
        for member in [member for member in self.members if member.due <= now]:
            member.on_due(now)


class BusyPolling:
    """Decides how long an idle loop polls for the next request before it sleeps.

    Waking up costs more than polling: the scheduler's latency, and cold caches. For one client that
    sends its next request at once, a polling loop answers a gRPC echo in two thirds of the time. A
    loop with few requests must not use a core for that, so the length of recent cycles decides, as
    in KVM's halt polling (``Documentation/virt/kvm/halt-polling.rst``). Reads no clock.

    Args:
        limit: maximum seconds of polling. The loop polls only if recent cycles, from one idle time
            to the next, were shorter on average. 0 disables polling.
    """

    def __init__(self, limit: float) -> None:
        self._limit = limit
        self._mean = _MAX_CYCLE * limit
        self._last_idle = 0.0

    def until(self, now: float) -> float:
        """Return when a loop that is idle at ``now`` stops polling; ``now`` for no polling."""
        limit = self._limit
        cycle = min(now - self._last_idle, _MAX_CYCLE * limit)
        self._last_idle = now
        self._mean += (cycle - self._mean) * _WEIGHT
        return now + limit if self._mean < limit else now


class ListenerQuota:
    """Counts the connections of one listener.

    Attributes:
        open: open connections, handshakes included.
    """

    def __init__(self) -> None:
        self.open = 0


class DoorState:
    """The state that a door's connections share. Used on the door's loop only.

    Attributes:
        calls: requests without a complete answer.
        date_line: the ``date`` field of answers for HTTP/1.1; RFC 9110, section 6.6.1.
        date_block: the same for HTTP/2, encoded.
        recheck_interval: maximum seconds between two checks of a connection with unsent output.
        handshakes: pending TLS handshakes.
        buffered: bytes of output that connections hold because clients have not read it.
        draining: ``Door.drain`` was called.
        last_head: deadline for the head of a request while the door closes.
        leaving: requests that are incomplete when they begin are refused.
        on_empty: called when the last connection has ended.
        on_all_acknowledged: called when ``unacknowledged`` becomes empty.
        polling_wanted: ``start_polling`` was called in this turn; further calls have no effect.
        unacknowledged: connections whose clients have not acknowledged that the door drains.
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
        self.max_calls = limits.max_calls
        self.budget = budget
        self.counters = DoorStatistics()
        self.period = limits.period
        self.sweeper = Sweeper(min(0.25, self.period), self._tick)
        self.recheck_interval = 4 * (self.period + self.sweeper.tick)
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
        self.on_all_acknowledged: Callable[[], None] | None = None
        self.unacknowledged: set[Connection] = set()
        self._set_date()
        self.instruments = instruments
        self._unlogged_refusals = 0
        self._log_refusals_at = 0.0
        self._dirty: list[Connection] = []
        self._quotas: list[ListenerQuota] = []
        self._poll_until = 0.0
        self._polls = False
        self._polling = BusyPolling(limits.busy_poll)
        self._dropping = False
        self.polling_wanted = False
        self._loop = asyncio.get_running_loop()

    def add_listener(self) -> ListenerQuota:
        """Add a listener."""
        quota = ListenerQuota()
        self._quotas.append(quota)
        return quota

    def is_full(self, quota: ListenerQuota) -> bool:
        """Whether the listener must refuse further connections.

        A part of the maximum is reserved for each listener, so that clients of one listener cannot
        exclude those of the others.
        """
        part = self._reserved
        others = [one.open for one in self._quotas if one is not quota]
        kept = sum([max(0, part - taken) for taken in others])
        return len(self.connections) + self.handshakes + kept >= self.limits.max_connections

    @property
    def _reserved(self) -> int:
        """The number of connections that are reserved for each listener."""
        most = self.limits.max_connections
        return min(max(1, most // _RESERVED_DIVISOR), most // len(self._quotas))

    def refuse(self) -> None:
        """Count a refused connection; refusals are logged at most every ten seconds."""
        self.counters.refused += 1
        self._unlogged_refusals += 1
        self._log_refusals()

    def _log_refusals(self) -> None:
        count = self._unlogged_refusals
        if count and monotonic() >= self._log_refusals_at:
            self._unlogged_refusals = 0
            self._log_refusals_at = monotonic() + _REFUSALS_LOGGED_EVERY
            kept = f", of which each port and Unix socket keeps {self._reserved} for itself"
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
        date = formatdate(usegmt=True).encode()
        self.date_line = b"date: %b\r\n" % date
        self.date_block = encode_block(((b"date", date),))

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

    def start_polling(self) -> None:
        """Start busy polling at the end of this turn, if no request is open then."""
        self.polling_wanted = True
        if not self._polls:
            self._polls = True
            self._loop.call_soon(self._poll)

    def _poll(self) -> None:
        wanted, self.polling_wanted = self.polling_wanted, False
        if self.calls or self.draining:
            self._polls = False
            return
        now = monotonic()
        if wanted:
            self._poll_until = self._polling.until(now)
        if now >= self._poll_until:
            self._polls = False
        else:
            os.sched_yield()  # lets other threads run on this core first
            self._loop.call_soon(self._poll)

    def drop_unread_output(self) -> None:
        """Drop unsent output, of the connections that hold the most first, until the budget fits.

        Bodies are admitted only if they fit, but answers already exist when they are counted. While
        they are a small part, in-flight requests use most of the budget, and will release it.
        """
        budget = self.budget
        if self._dropping or self.buffered <= budget.limit // _KEPT_DIVISOR:
            return
        self._dropping = True
        try:
            while budget.arrived > budget.limit:
                worst = max(self.connections, key=attrgetter("counted"), default=None)
                if worst is None or not worst.counted:
                    return
                self.counters.overrun += 1
                worst.give_up()
        finally:
            self._dropping = False

    def acknowledge_drain(self, connection: Connection) -> None:
        """The client has acknowledged that the door drains, or its time for that is over."""
        if connection in self.unacknowledged:
            self.unacknowledged.remove(connection)
            if not self.unacknowledged and self.on_all_acknowledged is not None:
                self.on_all_acknowledged()

    def leave(self, connection: Connection) -> None:
        """Remove a connection that has ended."""
        self.acknowledge_drain(connection)
        notify = self.instruments.connection_closed
        if notify is not None and connection in self.connections:
            notify(connection.peer.address, monotonic())
        self.connections.discard(connection)
        if connection.quota is not None:
            connection.quota.open -= 1
            connection.quota = None
        if not self.connections and self.on_empty is not None:
            self.on_empty()

    def keep_alive(self) -> float:
        """Return the keep-alive timeout of a new HTTP/1.1 connection.

        It is randomized, so that clients that connected together do not reconnect together.
        """
        spread = 1.0 + 0.2 * random()  # noqa: S311 - not for cryptography
        return self.limits.keep_alive * spread + self.sweeper.tick
