"""What a door's connections share: their limits, counters and timeouts, and busy polling.

A connection of any protocol is a ``Member``.
"""

from __future__ import annotations

import asyncio
import logging
import os
from abc import ABC, abstractmethod
from collections.abc import Callable
from email.utils import formatdate
from math import inf
from operator import attrgetter
from random import random
from time import monotonic
from typing import Final

from penstock.door.budget import ByteBudget
from penstock.door.exchange import Application, Failure, Peer, plain_failure
from penstock.door.limits import DoorLimits, DoorStatistics
from penstock.door.polling import BusyPolling
from penstock.door.sweeper import Sweeper
from penstock.instrument import Instruments
from penstock.protocols.http1 import LineCache
from penstock.protocols.http2 import encode_block

_log = logging.getLogger(__name__)

_RESERVED_DIVISOR: Final = 8
"""Each listener has this fraction of the maximum of connections reserved: 1 / 8."""

_REFUSALS_LOGGED_EVERY: Final = 10.0
"""Seconds between two log lines about connections over the limit."""

_KEPT_DIVISOR: Final = 4
"""No unsent output is dropped while it is at most this fraction of the budget: 1 / 4."""


class ListenerQuota:
    """Counts the connections of one listener.

    Attributes:
        open: open connections, handshakes included.
    """

    def __init__(self) -> None:
        self.open = 0


class Member(ABC):
    """A connection, for the door and its state.

    Attributes:
        closing: the connection is shutting down: input is discarded, and no request is begun.
        counted: buffered output in bytes, as counted in the budget.
        due: when the sweeper calls ``on_due``.
        quota: the listener's quota, if the connection is counted in it.
    """

    __slots__ = ("closing", "counted", "due", "quota")

    closing: bool
    counted: int
    due: float
    quota: ListenerQuota | None

    @property
    @abstractmethod
    def peer(self) -> Peer:
        """The client."""

    @abstractmethod
    def flush(self) -> None:
        """Write the pending output."""

    @abstractmethod
    def on_due(self, now: float) -> None:
        """Enforce timeouts; called by the sweeper."""

    @abstractmethod
    def unread(self) -> int:
        """Bytes that the client has not read, without those in the system's send buffer."""

    @abstractmethod
    def give_up(self) -> None:
        """Drop output, and count it: the budget is exceeded, and no connection holds more."""

    @abstractmethod
    def drain(self) -> None:
        """The door is draining: announce it to the client."""

    def end_idle(self) -> None:  # noqa: B027 - most protocols end by what ``drain`` has announced
        """Called some time after ``drain``: end, if no request has begun to arrive."""

    @abstractmethod
    def refuse_partial(self) -> None:
        """No more requests are admitted: answer those that are incomplete."""

    @abstractmethod
    def leave(self) -> None:
        """The door closes: end as soon as no exchange is open, and no first request is expected
        (``DoorState.last_head``). Called after ``drain`` and ``refuse_partial``.
        """

    @abstractmethod
    def abort(self) -> None:
        """Abort the connection; a client that has not read everything sees a reset."""


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
        on_all_heard: called when ``silent`` becomes empty.
        polling_wanted: ``start_polling`` was called in this turn; further calls have no effect.
        silent: connections whose clients have sent nothing yet.
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
        self.connections: set[Member] = self.sweeper.members  # type: ignore[assignment]
        self.handshakes = 0
        self.calls = 0
        self.body_time = limits.body_timeout + self.sweeper.tick
        self.buffered = 0
        self.draining = False
        self.last_head = inf
        self.leaving = False
        self.on_empty: Callable[[], None] | None = None
        self.on_all_acknowledged: Callable[[], None] | None = None
        self.on_all_heard: Callable[[], None] | None = None
        self.unacknowledged: set[Member] = set()
        self.silent: set[Member] = set()
        self._set_date()
        self.instruments = instruments
        self._unlogged_refusals = 0
        self._log_refusals_at = 0.0
        self._dirty: list[Member] = []
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

    def mark(self, connection: Member) -> None:
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

    def acknowledge_drain(self, connection: Member) -> None:
        """The client has acknowledged that the door drains, or its time for that is over."""
        if connection in self.unacknowledged:
            self.unacknowledged.remove(connection)
            if not self.unacknowledged and self.on_all_acknowledged is not None:
                self.on_all_acknowledged()

    def heard(self, connection: Member) -> None:
        """The client has sent something, or has left."""
        if connection in self.silent:
            self.silent.remove(connection)
            if not self.silent and self.on_all_heard is not None:
                self.on_all_heard()

    def leave(self, connection: Member) -> None:
        """Remove a connection that has ended."""
        self.acknowledge_drain(connection)
        self.heard(connection)
        notify = self.instruments.connection_closed
        if notify is not None and connection in self.connections:
            notify(connection.peer.address, monotonic())
        self.connections.discard(connection)
        if connection.quota is not None:
            connection.quota.open -= 1
            connection.quota = None
        if not self.connections and self.on_empty is not None:
            self.on_empty()

    def expiry(self) -> float:
        """Return when a connection that begins now has its maximum age; ``inf`` without one.

        It is randomized, so that clients that connected together do not reconnect together.
        """
        spread = 0.9 + 0.2 * random()  # noqa: S311 - not for cryptography
        return self.sweeper.now + self.limits.max_connection_age * spread

    def keep_alive(self) -> float:
        """Return the keep-alive timeout of a new HTTP/1.1 connection.

        It is at least a tenth longer than the limit: a client that keeps connections for as long,
        such as httpx, does not send a request on one that is just being closed. It is randomized,
        so that clients that connected together do not reconnect together.
        """
        spread = 1.1 + 0.2 * random()  # noqa: S311 - not for cryptography
        return self.limits.keep_alive * spread + self.sweeper.tick
