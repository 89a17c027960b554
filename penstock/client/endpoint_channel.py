"""All calls to one endpoint: one connection, made when it is needed and made again when it broke.

Calls go onto the connection in the order in which they came; without room for them they wait within
their deadlines. After a failure to connect the endpoint is left alone for a while and calls fail at
once. The loop's thread only.
"""

from __future__ import annotations

import asyncio
import ipaddress
import random
import socket
import time
from collections import deque
from math import ceil
from typing import Any

from penstock.client.call import Call, failure
from penstock.client.connection import Connection
from penstock.client.endpoints import Endpoint
from penstock.client.tls import Security
from penstock.protocols.grpc import encode_timeout
from penstock.protocols.http2 import encode_block
from penstock.protocols.status import GrpcCode

METHOD = "/baidu.paddle_serving.pipeline_serving.PipelineService/inference"

CONNECT_SECONDS = 2.0
"""How long one attempt to connect may take, as in the original's client configuration; it ends with
the server's first word."""

MAX_ATTEMPTS = 3
"""How often a call is put on a connection whose server does not look at it; a guess."""

FIRST_PAUSE = 0.1
"""Seconds. A guess: a service that is restarted is back within some of these."""

LONGEST_PAUSE = 5.0
"""Seconds. A guess: as long as a caller should be refused after the server is back."""

_GOODBYE_SECONDS = 0.25
"""How long the goodbye may take. All calls have ended by then: no reply is at stake, and a server
that does not read, or does not end its side of TLS, is no reason to wait."""

_CLOSED = "the client was closed"

_FIELDS = encode_block(
    [
        (b"te", b"trailers"),  # codespell:ignore te
        (b"content-type", b"application/grpc"),
        (b"grpc-accept-encoding", b"identity"),
        (b"user-agent", b"penstock"),
    ]
)
"""Of every call, behind those that differ."""


class Backoff:
    """The pauses between failures to reach one endpoint. Pure: time and chance are arguments.

    The pause doubles with every failure in a row and varies by a fifth, so that the clients of a
    server that comes back do not all come back in the same instant.

    Attributes:
        until: monotonic seconds before which nothing is tried.
    """

    __slots__ = ("_pause", "until")

    def __init__(self) -> None:
        self._pause = FIRST_PAUSE
        self.until = 0.0

    def failed(self, now: float, chance: float) -> None:
        """Pause from ``now`` on; ``chance`` is 0 to 1."""
        self.until = now + self._pause * (0.8 + 0.4 * chance)
        self._pause = min(2 * self._pause, LONGEST_PAUSE)

    def succeeded(self) -> None:
        """Forget the failures: the endpoint answers."""
        self._pause = FIRST_PAUSE
        self.until = 0.0


class EndpointChannel:
    """The calls to one endpoint on one loop.

    Attributes:
        waiting: calls that are on no connection, in order; ended ones may be among them.
    """

    def __init__(
        self, endpoint: Endpoint, loop: asyncio.AbstractEventLoop, security: Security | None
    ) -> None:
        """Nothing is connected yet; the loop need not be running. None means clear text."""
        self._endpoint = endpoint
        self._loop = loop
        self._security = security
        authority = (security.server_name if security is not None else None) or str(endpoint)
        self._reserved = encode_block(
            [
                (b":method", b"POST"),
                (b":scheme", b"http" if security is None else b"https"),
                (b":path", METHOD.encode()),
                (b":authority", authority.encode()),
            ]
        )
        self._unlimited = self._reserved + _FIELDS
        self._blocks: dict[int, bytes] = {}
        self._backoff = Backoff()
        self._problem = ""
        self._connecting: asyncio.Task[None] | None = None
        self._connection: Connection | None = None
        self._connections: set[Connection] = set()
        self._closed = False
        self.waiting: deque[Call] = deque()

    def start(self, call: Call) -> None:
        """Send a call, now or as soon as there is a connection with room for it."""
        if self._closed:
            call.end(failure(GrpcCode.CANCELLED, _CLOSED, sent=False))
            return
        if call.deadline is not None:
            self._expire(call)
            if call.ended:
                return
        connection = self._connection
        if connection is None or self.waiting or not connection.open(call, self._block(call)):
            self._wait(call)

    def abandon(self, call: Call) -> None:
        """End a call because its caller wants so; the server is told."""
        self._abandon(call, GrpcCode.CANCELLED, "cancelled by the caller")

    def close(self) -> None:
        """Disconnect; calls end with CANCELLED. Closing twice is allowed."""
        self._closed = True
        if self._connecting is not None:
            self._connecting.cancel()
        for connection in list(self._connections):
            connection.close(failure(GrpcCode.CANCELLED, _CLOSED))
        self._end_waiting(GrpcCode.CANCELLED, _CLOSED)

    async def closed(self) -> None:
        """Wait until nothing of the channel is left on the loop, after ``close``."""
        if self._connecting is not None:
            await asyncio.wait({self._connecting})
        ends = {connection.gone for connection in self._connections}
        if ends:
            await asyncio.wait(ends, timeout=_GOODBYE_SECONDS)
            for connection in list(self._connections):
                connection.abort()

    def descriptors(self) -> list[tuple[int, int]]:
        """Number and inode of the sockets in use. Any thread; in a forked child, the parent's."""
        found = (connection.descriptor for connection in list(self._connections))
        return [descriptor for descriptor in found if descriptor is not None]

    # What its connections tell

    def room_made(self, connection: Connection) -> None:
        """Put waiting calls on the connection while it takes them."""
        waiting = self.waiting
        while waiting and connection is self._connection:
            call = waiting.popleft()
            if not call.ended and not connection.open(call, self._block(call)):
                waiting.appendleft(call)
                return

    def untouched(self, call: Call) -> None:
        """Send a call again that the server has certainly not looked at."""
        if self._closed:
            call.end(failure(GrpcCode.CANCELLED, _CLOSED, sent=False))
        elif call.attempts >= MAX_ATTEMPTS:
            text = f"{self._endpoint}: the server refused the call {call.attempts} times"
            call.end(failure(GrpcCode.UNAVAILABLE, text, sent=False))
        else:
            self._wait(call)

    def leaving(self, connection: Connection) -> None:
        """The connection takes no more calls; the next one is made when it is needed."""
        if connection is self._connection:
            self._connection = None
            self._connect_for_waiting()

    def lost(self, connection: Connection) -> None:
        """The connection is gone. One that had calls and no answer counts as a failed attempt."""
        self._connections.discard(connection)
        if connection.proved:
            self._backoff.succeeded()
        elif connection.opened and not self._closed:
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
            self._end_waiting(GrpcCode.UNAVAILABLE, f"{self._endpoint}: {self._problem}")
        else:
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
                    problem = _reason(error)
        except (OSError, UnicodeError) as error:
            problem = f"the name does not resolve: {_reason(error)}"
        finally:
            self._connecting = None
            connection = self._connection
            if connection is None:
                self._failed(f"cannot connect: {problem}")
                self._end_waiting(GrpcCode.UNAVAILABLE, f"{self._endpoint}: {self._problem}")
            else:
                self.room_made(connection)

    async def _addresses(self) -> list[str]:
        host = self._endpoint.host
        try:
            return [str(ipaddress.ip_address(host))]
        except ValueError:
            pass
        async with asyncio.timeout(CONNECT_SECONDS):
            found = await self._resolve(host, self._endpoint.port)
        return list(dict.fromkeys(str(address[4][0]) for address in found))

    async def _resolve(self, host: str, port: int) -> list[Any]:
        return await self._loop.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP
        )

    async def _connect_to(self, host: str) -> Connection:
        """A connection whose server has sent its settings.

        Raises:
            OSError: there is none.
        """
        connection = Connection(self, self._loop, str(self._endpoint))
        self._connections.add(connection)
        connected = False
        tls: dict[str, Any] = {}
        if self._security is not None:
            tls = {
                "ssl": self._security.context,
                "server_hostname": self._security.server_name or self._endpoint.host,
                "ssl_shutdown_timeout": _GOODBYE_SECONDS,
            }
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                await self._loop.create_connection(
                    lambda: connection, host, self._endpoint.port, **tls
                )
                connected = True
                await asyncio.shield(connection.settled)
            if not connection.usable:
                raise ConnectionError(connection.problem)
        except BaseException:
            connection.abort()
            if not connected:
                # A loop may take an unfinished transport away without a word to its protocol.
                connection.connection_lost(None)
            raise
        return connection

    def _failed(self, problem: str) -> None:
        self._problem = problem
        chance = random.random()  # noqa: S311 - it spreads clients, and guards nothing
        self._backoff.failed(time.monotonic(), chance)

    # Ending

    def _end_waiting(self, code: GrpcCode, text: str) -> None:
        waiting, self.waiting = self.waiting, deque()
        for call in waiting:
            call.end(failure(code, text, sent=False))

    def _abandon(self, call: Call, code: GrpcCode, text: str) -> None:
        call.abandon(failure(code, f"{self._endpoint}: {text}", sent=call.stream is not None))

    def _expire(self, call: Call) -> None:
        """End a call whose deadline has passed, else come back at its deadline."""
        assert call.deadline is not None
        left = call.deadline - time.monotonic()
        if left > 0:  # also where the loop's clock, which may be coarse, came too early
            call.timer = self._loop.call_later(left, self._expire, call)
        else:
            self._abandon(call, GrpcCode.DEADLINE_EXCEEDED, "the deadline passed")

    def _block(self, call: Call) -> bytes:
        """The call's header block: equal ones for times that are about equal.

        A server parses a field that it knows at less cost. Hence the time told is rounded up; the
        time kept is not.
        """
        if call.deadline is None:
            return self._unlimited
        left_ms = rounded_up_ms(call.deadline - time.monotonic())
        block = self._blocks.get(left_ms)
        if block is None:
            timeout = encode_timeout(left_ms / 1000)
            # Right behind the reserved fields: servers may take its time from the first moment.
            block = self._reserved + encode_block([(b"grpc-timeout", timeout)]) + _FIELDS
            self._blocks[left_ms] = block
        return block

    def __repr__(self) -> str:
        if self._closed:
            state = "closed"
        elif self._connection is not None:
            state = "connected"
        else:
            state = "connecting" if self._connecting is not None else "not connected"
        return f"<EndpointChannel {self._endpoint} {state}, {len(self.waiting)} waiting>"


def rounded_up_ms(seconds: float) -> int:
    """Milliseconds, at least one, of which the first three digits count."""
    left = max(1, ceil(seconds * 1000))
    step = 1
    while left > 1000 * step:
        step *= 10
    return -(-left // step) * step


def _reason(error: Exception) -> str:
    return str(error) or f"nothing came within {CONNECT_SECONDS:g} s"
