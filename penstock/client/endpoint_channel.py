"""The calls to one endpoint, over a connection that is made on demand.

An ``EndpointChannel`` decides when to connect, and queues calls, first in first out, until the
connection accepts them or their deadlines pass. After a failure to connect there is a pause, in
which calls fail at once. Use on the loop's thread only.
"""

from __future__ import annotations

import asyncio
import ipaddress
import random
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from math import ceil
from typing import Any

from penstock.client.call import Call, Outcome, failure
from penstock.client.connection import CallProtocol, Connection, Owner
from penstock.client.endpoints import Endpoint
from penstock.client.errors import CallFailed
from penstock.client.grpc import GRPC
from penstock.client.health import FIRST_PAUSE, Backoff, Health, State
from penstock.client.names import lookup
from penstock.client.tls import Security
from penstock.protocols.status import GrpcCode

CONNECT_SECONDS = 2.0
"""Timeout of an attempt to connect, until the server's SETTINGS arrive; the original's default."""

MAX_ATTEMPTS = 3
"""Maximum attempts of a call that servers refuse unprocessed (REFUSED_STREAM, GOAWAY), and of
connecting to a server that is being replaced."""


class _ServerDraining(ConnectionError):
    """The server sent GOAWAY before any call: it shuts down, and another may replace it."""


_CLOSE_SECONDS = 0.25
"""Seconds until a closing connection is aborted. All calls have ended by then, so there is no
reason to wait for a server that does not read or does not complete the TLS shutdown."""

_CLOSED = "the client was closed"

_FAULTS = frozenset({GrpcCode.UNAVAILABLE, GrpcCode.DEADLINE_EXCEEDED})
"""Statuses that show that the server does not work; other statuses concern the call."""


class EndpointChannel(Owner):
    """The calls to one endpoint on one loop.

    Attributes:
        authority: the server's name in requests.
        is_secure: connections use TLS.
        waiting: queued calls, in order; some may have ended.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        loop: asyncio.AbstractEventLoop,
        security: Security | None,
        rounding: Callable[[float], int] = ceil,
        on_health: Callable[[Endpoint, str | None], object] | None = None,
        protocol: CallProtocol = GRPC,
        named: Endpoint | None = None,
    ) -> None:
        """Connect nothing yet; the loop need not be running.

        Args:
            endpoint: the endpoint.
            loop: the loop on which the channel is used.
            security: None for a connection without TLS.
            rounding: ``ceil`` or ``floor``: how the timeouts that servers get are rounded. They get
                the shorter one if they must not take longer than another caller's timeout.
            on_health: called with the problem when the endpoint stops working, and with None when
                it works again.
            protocol: the protocol of the endpoint.
            named: the name for requests and certificates, if the endpoint is one of its addresses.
        """
        self._endpoint = endpoint
        self._loop = loop
        self._security = security
        self.is_secure = security is not None
        self.authority = (security.server_name if security is not None else None) or str(
            named or endpoint
        )
        self._host = (named or endpoint).host
        self._rounding = rounding
        self._backoff = Backoff(FIRST_PAUSE)
        self._health = Health()
        self._on_health = on_health
        self._protocol = protocol
        self._connect_seconds = protocol.connect_seconds or CONNECT_SECONDS
        self._is_down = False
        self._problem = ""
        self._connecting: asyncio.Task[None] | None = None
        self._connection: Connection | None = None
        self._connections: set[Connection] = set()
        self._closed = False
        self.waiting: deque[Call] = deque()

    def start(self, call: Call) -> None:
        """Send a call, or queue it until a connection accepts it."""
        if self._closed:
            call.abandon(failure(GrpcCode.CANCELLED, _CLOSED, sent=False))
            return
        if call.deadline is not None:
            self._expire(call)
            if call.ended:
                return
        connection = self._connection
        if connection is None or self.waiting or not connection.open(call):
            self._wait(call)

    def close(self) -> None:
        """Disconnect; open calls end with CANCELLED. Closing twice is allowed."""
        self._closed = True
        if self._connecting is not None:
            self._connecting.cancel()
        for connection in list(self._connections):
            connection.close(failure(GrpcCode.CANCELLED, _CLOSED))
        for call in self._take_waiting():
            call.abandon(failure(GrpcCode.CANCELLED, _CLOSED, sent=False))

    async def closed(self) -> None:
        """After ``close``, wait until all tasks and transports have ended."""
        if self._connecting is not None:
            await asyncio.wait({self._connecting})
        ends = {connection.gone for connection in self._connections}
        if ends:
            await asyncio.wait(ends, timeout=_CLOSE_SECONDS)
            for connection in list(self._connections):
                connection.abort()

    @property
    def connected(self) -> bool:
        """Whether it has connections, or makes one."""
        return bool(self._connections) or self._connecting is not None

    def state(self, now: float) -> State:
        """Return the endpoint's state at ``now``."""
        if not self._health.takes(now):
            return State.OUT
        if self._connection is not None:
            return State.READY
        return State.OUT if now < self._backoff.until else State.APART

    def chosen(self, now: float) -> None:
        """Count a call whose first choice is this endpoint."""
        self._health.chosen(now)

    def probe(self, now: float) -> None:
        """Connect, unless it is connected or pauses after a failure."""
        if self._connection is None and now >= self._backoff.until:
            self._begin_to_connect()

    # Called by connections, see ``Owner``.

    def call_ended(self, outcome: Outcome) -> None:
        if not isinstance(outcome, CallFailed) or outcome.status not in _FAULTS:
            self._health.answered()
            self._report_health(None)
        elif self._health.failed(time.monotonic(), _uniform()):
            self._report_health(f"calls fail: {outcome}")

    def capacity_freed(self, connection: Connection) -> None:
        waiting = self.waiting
        while waiting and connection is self._connection:
            call = waiting.popleft()
            if not call.ended and not connection.open(call):
                waiting.appendleft(call)
                return

    def retry_unprocessed(self, call: Call) -> None:
        if self._closed:
            call.abandon(failure(GrpcCode.CANCELLED, _CLOSED, sent=False))
        elif call.attempts >= MAX_ATTEMPTS:
            text = f"{self._endpoint}: the server refused the call {call.attempts} times"
            call.end(failure(GrpcCode.UNAVAILABLE, text, sent=False))
        else:
            self._wait(call)

    def leaving(self, connection: Connection) -> None:
        if connection is self._connection:
            self._connection = None
            self._connect_for_waiting()

    def lost(self, connection: Connection) -> None:
        self._connections.discard(connection)
        if connection.has_answered:
            self._backoff.succeeded()
        elif connection.opened and not (self._closed or connection.given_up):
            self._failed("the connection was lost before any answer")
        self.leaving(connection)

    # Connecting

    def _wait(self, call: Call) -> None:
        self.waiting.append(call)
        if self._connection is None:
            self._connect_for_waiting()

    def _connect_for_waiting(self) -> None:
        if self._connecting is not None or not self.waiting or self._closed:
            return
        if time.monotonic() < self._backoff.until:
            self._fail_waiting()
        else:
            self._begin_to_connect()

    def _begin_to_connect(self) -> None:
        if self._connecting is None and not self._closed:
            self._connecting = self._loop.create_task(self._connect())

    async def _connect(self) -> None:
        """Try the endpoint's addresses in turn, once each."""
        problem = "the attempt was given up"
        try:
            for host in await self._addresses():
                try:
                    self._connection = await self._connect_to(host)
                    break
                except OSError as error:
                    problem = self._reason(error)
        except (OSError, UnicodeError) as error:
            problem = f"the name does not resolve: {self._reason(error)}"
        finally:
            self._connecting = None
            connection = self._connection
            if connection is None:
                self._failed(f"cannot connect: {problem}")
                self._fail_waiting()
            else:
                self.capacity_freed(connection)

    async def _addresses(self) -> list[str]:
        host = self._endpoint.host
        try:
            return [str(ipaddress.ip_address(host))]
        except ValueError:
            pass
        async with asyncio.timeout(self._connect_seconds):
            return await lookup(self._loop, host, self._endpoint.port)

    async def _connect_to(self, host: str) -> Connection:
        """Connect; if the server is being replaced, connect again, to its successor.

        Raises:
            OSError: no connection could be made.
        """
        for _ in range(MAX_ATTEMPTS - 1):
            with suppress(_ServerDraining):
                return await self._attempt(host)
        return await self._attempt(host)

    async def _attempt(self, host: str) -> Connection:
        """Connect once; the returned connection is usable (over HTTP/2: has the server's SETTINGS).

        Raises:
            OSError: no connection could be made.
        """
        connection = self._protocol.connect(self, self._loop, str(self._endpoint))
        self._connections.add(connection)
        connection.host = host
        connected = False
        try:
            async with asyncio.timeout(self._connect_seconds):
                await self._reach(connection, host)
                connected = True
                await asyncio.shield(connection.settled)
            if not connection.usable:
                kind = _ServerDraining if connection.server_drains else ConnectionError
                raise kind(connection.problem)
        except BaseException:
            connection.abort()
            if not connected:
                # A loop may drop an unfinished transport without calling its protocol.
                connection.connection_lost(None)
            raise
        return connection

    async def dial(self, connection: Connection, protocol: asyncio.Protocol) -> None:
        async with asyncio.timeout(self._connect_seconds):
            await self._reach(protocol, connection.host)

    async def _reach(self, protocol: asyncio.Protocol, host: str) -> None:
        tls: dict[str, Any] = {}
        if self._security is not None:
            tls = {
                "ssl": self._security.context,
                "server_hostname": self._security.server_name or self._host,
                "ssl_shutdown_timeout": _CLOSE_SECONDS,
            }
        await self._loop.create_connection(lambda: protocol, host, self._endpoint.port, **tls)

    def _failed(self, problem: str) -> None:
        self._problem = problem
        self._backoff.failed(time.monotonic(), _uniform())
        if not self._closed:
            self._report_health(problem)

    def _report_health(self, problem: str | None) -> None:
        """Call ``on_health`` if the health has changed."""
        if self._is_down != (problem is not None):
            self._is_down = problem is not None
            if self._on_health is not None:
                self._on_health(self._endpoint, problem)

    def _reason(self, error: Exception) -> str:
        return str(error) or f"nothing came within {self._connect_seconds:g} s"

    # Ending

    def _take_waiting(self) -> deque[Call]:
        waiting, self.waiting = self.waiting, deque()
        return waiting

    def _fail_waiting(self) -> None:
        for call in self._take_waiting():
            text = f"{self._endpoint}: {self._problem}"
            call.end(failure(GrpcCode.UNAVAILABLE, text, sent=False))

    def _expire(self, call: Call) -> None:
        """End a call whose deadline has passed; else schedule this again."""
        assert call.deadline is not None
        left = call.deadline - time.monotonic()
        if left > 0:  # the loop's clock may be coarse, and the timer too early
            call.timer = self._loop.call_later(left, self._expire, call)
        else:
            text = f"{self._endpoint}: the deadline passed"
            sent = call.stream is not None
            failed = failure(GrpcCode.DEADLINE_EXCEEDED, text, sent=sent)
            if sent:
                self.call_ended(failed)
            call.abandon(failed)

    def left_ms(self, call: Call) -> int | None:
        if call.deadline is None:
            return None
        return rounded_ms(call.deadline - time.monotonic(), self._rounding)


def _uniform() -> float:
    return random.random()  # noqa: S311 - not for cryptography


def rounded_ms(seconds: float, rounding: Callable[[float], int]) -> int:
    """Convert to milliseconds of three significant digits, at least 1.

    Args:
        seconds: the time.
        rounding: ``ceil`` or ``floor``.
    """
    left = max(1, rounding(seconds * 1000))
    step = 1
    while left > 1000 * step:
        step *= 10
    return rounding(left / step) * step
