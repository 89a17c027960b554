"""The calls to one endpoint, over a connection that is made on demand.

An ``EndpointChannel`` decides when to connect, and queues calls, first in first out, until the
connection accepts them or their deadlines pass. After a failure to connect there is a pause, in
which calls fail at once. A ``Connection`` moves bytes between a transport and the HTTP/2 core, and
ends calls with their outcomes; other protocols have connections of their own (``CallProtocol``).
Use on the loop's thread only. Sources: RFC 9113, the gRPC HTTP/2 protocol.
"""

from __future__ import annotations

import asyncio
import ipaddress
import random
import socket
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from enum import Enum
from math import ceil
from typing import Any, NamedTuple, Protocol, cast

from penstock.client.call import Call, Outcome, failure, of_head, of_reset, of_whole_head
from penstock.client.endpoints import Endpoint
from penstock.client.errors import CallFailed
from penstock.client.health import FIRST_PAUSE, Backoff, Health, State
from penstock.client.tls import Security
from penstock.protocols.grpc import encode_message, encode_timeout
from penstock.protocols.heads import ResponseHead
from penstock.protocols.http2 import (
    ConnectionFailed,
    DataReceived,
    ErrorCode,
    Event,
    GoawayReceived,
    HeadReceived,
    Http2Connection,
    Http2Limits,
    Role,
    StreamLimit,
    StreamReset,
    TrailersReceived,
    encode_block,
)
from penstock.protocols.status import GrpcCode

CONNECT_SECONDS = 2.0
"""Timeout of an attempt to connect, until the server's SETTINGS arrive; the original's default."""

MAX_ATTEMPTS = 3
"""Maximum attempts of a call that servers refuse unprocessed (REFUSED_STREAM, GOAWAY), and of
connecting to a server that is being replaced; a guess."""


class _ServerDraining(ConnectionError):
    """The server sent GOAWAY before any call: it shuts down, and another may replace it."""


_CLOSE_SECONDS = 0.25
"""Seconds until a closing connection is aborted. All calls have ended by then, so there is no
reason to wait for a server that does not read or does not complete the TLS shutdown."""

_CLOSED = "the client was closed"

_FIELDS = encode_block(
    [
        (b"te", b"trailers"),  # codespell:ignore te
        (b"content-type", b"application/grpc"),
        (b"grpc-accept-encoding", b"identity"),
        (b"user-agent", b"penstock"),
    ]
)
"""Header fields that are equal for all calls; they follow the others."""


_FAULTS = frozenset({GrpcCode.UNAVAILABLE, GrpcCode.DEADLINE_EXCEEDED})
"""Statuses that show that the server does not work; other statuses concern the call."""

_LIMITS = Http2Limits(stream_window=4 << 20, connection_window=16 << 20, resets=1 << 31)
"""Replies are read at once, so a window only has to cover one round trip. Resets are not limited:
an overloaded server that refuses calls is no attacker."""

MAX_CALLS = 2**29
"""Calls after which a connection is replaced: stream identifiers end at 2**31."""

_FRAME_HEAD_BYTES = 9

PING_AFTER = (30.0, 60.0, 120.0, 310.0)
"""Seconds without received bytes before the first PING, the second, and so on.

With default settings, a gRPC server closes the connection at the third PING that arrives within
five minutes of another, unless it has sent a part of an answer in between.
"""

PING_TIMEOUT = 20.0
"""Timeout of the answer to a PING in seconds; the default of gRPC's clients."""


class KeepaliveStep(Enum):
    """The next step of a keepalive, if it is not waiting."""

    PING = "ping"
    GIVE_UP = "give up"


class Keepalive:
    """Detects dead connections. Pure: time is an argument.

    While calls are open and no bytes arrive, PINGs are sent; a peer that sends nothing within
    ``PING_TIMEOUT`` is dead. Source: RFC 9113 §6.7.

    Attributes:
        last_received: monotonic seconds when bytes last arrived; set by the driver.
        pings: PINGs sent since the peer last sent a part of an answer; cleared by the driver.
    """

    def __init__(self, now: float) -> None:
        self.last_received = now
        self.pings = 0
        self._pinged_at: float | None = None

    def started(self, now: float) -> None:
        """Start measuring: the first call is open."""
        self.last_received = max(self.last_received, now)
        self._pinged_at = None

    def poll(self, now: float) -> KeepaliveStep | float:
        """Return the step to do at ``now``, or the seconds until the next poll."""
        if self._pinged_at is not None:
            if self.last_received < self._pinged_at:
                left = self._pinged_at + PING_TIMEOUT - now
                return left if left > 0 else KeepaliveStep.GIVE_UP
            self._pinged_at = None
        left = self.last_received + PING_AFTER[min(self.pings, len(PING_AFTER) - 1)] - now
        if left > 0:
            return left
        self.pings += 1
        self._pinged_at = now
        return KeepaliveStep.PING


class Connection(asyncio.Protocol):
    """An HTTP/2 connection; a protocol for the loop's ``create_connection``.

    Attributes:
        settled: done when the server has sent its SETTINGS, or the connection has failed.
        gone: done when the transport is closed.
        problem: why the connection ends.
        server_drains: the server has sent GOAWAY without an error.
        opened: number of calls sent.
        has_answered: the server has answered a call.
    """

    def __init__(self, owner: EndpointChannel, loop: asyncio.AbstractEventLoop, name: str) -> None:
        """``name`` is the endpoint, for error texts."""
        self._owner = owner
        self._loop = loop
        self._name = name
        self._http2 = Http2Connection(Role.CLIENT, _LIMITS)
        self._calls: set[Call] = set()
        self.opened = 0
        self._transport: asyncio.Transport | None = None
        self._greeting = b""
        self._flushing = False
        self._paused = False
        self._leaving = False
        self.problem = "the connection was closed"
        self.server_drains = False
        self._keepalive = Keepalive(time.monotonic())
        self._keepalive_timer: asyncio.TimerHandle | None = None
        self._refilled = 0.0
        self.settled: asyncio.Future[None] = loop.create_future()
        self.gone: asyncio.Future[None] = loop.create_future()
        self.has_answered = False

    @property
    def usable(self) -> bool:
        """Whether it accepts calls; False before it is connected and when it is about to close."""
        transport = self._transport
        return transport is not None and not (self._leaving or transport.is_closing())

    def open(self, call: Call) -> bool:
        """Send a call. Returns False if the connection has its maximum of open calls."""
        http2 = self._http2
        try:
            stream = http2.open(self._owner.block(call))
        except StreamLimit:
            return False
        stream.context = call
        call.stream = stream
        call.connection = self
        call.attempts += 1
        http2.send_data(stream, call.request, end=True)
        if not self._calls:
            self._keepalive.started(time.monotonic())
        self._calls.add(call)
        if self._keepalive_timer is None:
            self._keep_alive()
        self._flush_soon()
        self.opened += 1
        if self.opened >= MAX_CALLS:
            self._leave()
        return True

    def leave(self, call: Call) -> None:
        """Cancel a call on this connection with RST_STREAM."""
        assert call.stream is not None
        self._http2.reset(call.stream, ErrorCode.CANCEL)
        self._detach(call)
        self._after()

    def close(self, failed: CallFailed | None = None) -> None:
        """Send GOAWAY and disconnect; open calls end with ``failed``, or with UNAVAILABLE."""
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        self._end_calls(failed)
        self._http2.go_away(final=True)
        self._flush()
        transport.close()

    def abort(self) -> None:
        """Disconnect at once, without GOAWAY."""
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send the preface and our SETTINGS."""
        self._transport = cast(asyncio.Transport, transport)
        tls = transport.get_extra_info("ssl_object")
        if tls is not None and tls.selected_alpn_protocol() != "h2":
            self._fail("the server does not speak HTTP/2 over TLS")
            return
        self._flush()

    def data_received(self, data: bytes) -> None:
        """Process all events in the data, then write all output at once."""
        now = time.monotonic()
        self._keepalive.last_received = now
        http2 = self._http2
        if now - self._refilled >= 1.0:
            self._refilled = now
            http2.refill()
        for event in http2.receive(data):
            kind = type(event)
            if kind is DataReceived:
                self._data(cast(DataReceived, event))
            elif kind is TrailersReceived:
                self._trailers(cast(TrailersReceived, event))
            elif kind is HeadReceived:
                self._head(cast(HeadReceived, event))
            else:
                self._other(event)
        if not self.settled.done() and self._has_first_frame(data):
            self.settled.set_result(None)
        self._after()

    def pause_writing(self) -> None:
        """Leave output in the core: the transport's buffer is full."""
        self._paused = True

    def resume_writing(self) -> None:
        """Continue writing."""
        self._paused = False
        self._flush()

    def connection_lost(self, exc: Exception | None) -> None:
        """The transport was closed, by either side or by an error. Called once."""
        if self.gone.done():
            return
        if exc is not None:
            self.problem = f"the connection broke: {exc}"
        self._transport = None
        if self._keepalive_timer is not None:
            self._keepalive_timer.cancel()
            self._keepalive_timer = None
        if not self.settled.done():
            self.settled.set_result(None)
        self._end_calls(None)
        self._owner.lost(self)
        self.gone.set_result(None)

    def _has_first_frame(self, data: bytes) -> bool:
        """Whether the server's first frame was received; the core requires that it is SETTINGS."""
        self._greeting += data
        size = int.from_bytes(self._greeting[:3], "big")
        return len(self._greeting) >= _FRAME_HEAD_BYTES + size

    def _head(self, event: HeadReceived) -> None:
        call: Call | None = event.stream.context
        self.has_answered = True
        self._keepalive.pings = 0
        if call is None or call.ended:
            return
        head = cast(ResponseHead, event.head)
        if event.ended:
            self._ended(call, of_whole_head(head))
            return
        failed = of_head(head)
        if failed is not None:
            self._ended(call, failed)
        elif b"grpc-encoding" in head.fields:
            call.encoding = head.fields[b"grpc-encoding"]

    def _data(self, event: DataReceived) -> None:
        stream = event.stream
        call: Call | None = stream.context
        self._http2.consumed(stream, event.counted)
        self._keepalive.pings = 0
        if call is None or call.ended:
            return
        failed = call.receive(event.data)
        if failed is not None:
            self._ended(call, failed)
        elif event.ended:
            self._ended(call, failure(GrpcCode.INTERNAL, "the answer has no trailers"))

    def _trailers(self, event: TrailersReceived) -> None:
        call: Call | None = event.stream.context
        if call is not None and not call.ended:
            self._ended(call, call.outcome(dict(event.headers)))

    def _other(self, event: Event) -> None:
        if isinstance(event, StreamReset):
            self._reset(event)
        elif isinstance(event, GoawayReceived):
            debug = event.debug[:100].decode("ascii", "replace")
            self.problem = f"the server sent GOAWAY with code {event.code} {debug}".rstrip()
            self.server_drains = event.code == ErrorCode.NO_ERROR
            self._leave()  # the core resets the streams that the server will not process
        elif isinstance(event, ConnectionFailed):
            self._fail(f"the server broke the protocol: {event.text}")

    def _reset(self, event: StreamReset) -> None:
        call: Call | None = event.stream.context
        if call is None or call.ended:
            return
        if event.by_peer and event.code == ErrorCode.REFUSED_STREAM:
            self._detach(call)
            self._owner.retry_unprocessed(call)
        else:
            self._ended(call, of_reset(event.code, event.text, by_peer=event.by_peer))

    def _leave(self) -> None:
        if not self._leaving:
            self._leaving = True
            self._owner.leaving(self)

    def _fail(self, problem: str) -> None:
        """End the connection; the HTTP/2 core's GOAWAY is sent first."""
        self.problem = problem
        self.close(failure(GrpcCode.INTERNAL, f"{self._name}: {problem}"))

    def _ended(self, call: Call, outcome: Outcome) -> None:
        stream = call.stream
        if stream is not None and not stream.closed:
            # The request may be partly unsent, or the rest of the answer is not needed.
            whole = stream.remote_ended
            self._http2.reset(stream, ErrorCode.NO_ERROR if whole else ErrorCode.CANCEL)
        self._detach(call)
        self._owner.call_ended(outcome)
        call.end(outcome if isinstance(outcome, bytes) else outcome.at(self._name))

    def _detach(self, call: Call) -> None:
        self._calls.discard(call)
        if call.stream is not None:
            call.stream.context = None
        call.detach()

    def _end_calls(self, failed: CallFailed | None) -> None:
        calls, self._calls = self._calls, set()
        text = f"{self._name}: {self.problem}"
        for call in calls:
            call.end(failed or failure(GrpcCode.UNAVAILABLE, text))

    def _after(self) -> None:
        """Continue after calls may have ended, or the core may have output."""
        if self._owner.waiting:
            self._owner.capacity_freed(self)
        if self._leaving and not self._calls:
            self.close()
        elif self._http2.has_output:
            self._flush_soon()

    def _flush_soon(self) -> None:
        if not self._flushing:
            self._flushing = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flushing = False
        transport = self._transport
        if transport is None or self._paused or transport.is_closing():
            return
        output = self._http2.take_output()
        if output:
            transport.write(output)

    def _keep_alive(self) -> None:
        """Check that the server is alive, while calls are open."""
        self._keepalive_timer = None
        if not self._calls:
            return
        step = self._keepalive.poll(time.monotonic())
        if step is KeepaliveStep.GIVE_UP:
            self.problem = "the server has fallen silent"
            self.abort()
            return
        if step is KeepaliveStep.PING:
            self._http2.ping(b"penstock")
            self._flush()
            step = self._keepalive.poll(time.monotonic())
        assert isinstance(step, float)
        self._keepalive_timer = self._loop.call_later(max(step, 0.001), self._keep_alive)


class AnyConnection(Protocol):
    """The interface of connections to their channel; for attributes see ``Connection``."""

    settled: asyncio.Future[None]
    gone: asyncio.Future[None]
    problem: str
    server_drains: bool
    opened: int
    has_answered: bool

    @property
    def usable(self) -> bool:
        """See ``Connection``."""

    def open(self, call: Call) -> bool:
        """See ``Connection``."""

    def leave(self, call: Call) -> None:
        """Cancel a call on this connection."""

    def close(self, failed: CallFailed | None = None) -> None:
        """Disconnect; open calls end with ``failed``, or with UNAVAILABLE."""

    def abort(self) -> None:
        """Disconnect at once."""

    def connection_lost(self, exc: Exception | None) -> None:
        """See ``Connection``."""


class CallProtocol(NamedTuple):
    """The protocol of calls.

    Attributes:
        frame: encodes a request for sending.
        connect: makes a channel's connection on a loop, a protocol for ``create_connection``; the
            text names the endpoint.
    """

    frame: Callable[[bytes], bytes]
    connect: Callable[[EndpointChannel, asyncio.AbstractEventLoop, str], Any]


GRPC = CallProtocol(encode_message, Connection)


class EndpointChannel:
    """The calls to one endpoint on one loop.

    Attributes:
        waiting: queued calls, in order; some may have ended.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        loop: asyncio.AbstractEventLoop,
        security: Security | None,
        rounded: Callable[[float], int],
        on_health: Callable[[Endpoint, str | None], object] | None = None,
        protocol: CallProtocol = GRPC,
    ) -> None:
        """Connect nothing yet; the loop need not be running.

        Args:
            endpoint: the endpoint.
            loop: the loop on which the channel is used.
            security: None for a connection without TLS.
            rounded: converts seconds to the milliseconds of ``grpc-timeout``.
            on_health: called with the problem when the endpoint stops working, and with None when
                it works again.
            protocol: the protocol of the endpoint.
        """
        self._endpoint = endpoint
        self._loop = loop
        self._security = security
        authority = (security.server_name if security is not None else None) or str(endpoint)
        self._reserved = encode_block(
            [
                (b":method", b"POST"),
                (b":scheme", b"http" if security is None else b"https"),
                (b":authority", authority.encode()),
            ]
        )
        self._rounded = rounded
        self._blocks: dict[tuple[str, int | None], bytes] = {}
        self._backoff = Backoff(FIRST_PAUSE)
        self._health = Health()
        self._on_health = on_health
        self._protocol = protocol
        self._is_down = False
        self._problem = ""
        self._connecting: asyncio.Task[None] | None = None
        self._connection: AnyConnection | None = None
        self._connections: set[AnyConnection] = set()
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

    # Called by connections

    def call_ended(self, outcome: Outcome) -> None:
        """Update the health: a call has ended."""
        if not isinstance(outcome, CallFailed) or outcome.status not in _FAULTS:
            self._health.answered()
            self._report_health(None)
        elif self._health.failed(time.monotonic(), _uniform()):
            self._report_health(f"calls fail: {outcome}")

    def capacity_freed(self, connection: AnyConnection) -> None:
        """Send queued calls while the connection accepts them."""
        waiting = self.waiting
        while waiting and connection is self._connection:
            call = waiting.popleft()
            if not call.ended and not connection.open(call):
                waiting.appendleft(call)
                return

    def retry_unprocessed(self, call: Call) -> None:
        """Send a call again that the server has certainly not processed."""
        if self._closed:
            call.abandon(failure(GrpcCode.CANCELLED, _CLOSED, sent=False))
        elif call.attempts >= MAX_ATTEMPTS:
            text = f"{self._endpoint}: the server refused the call {call.attempts} times"
            call.end(failure(GrpcCode.UNAVAILABLE, text, sent=False))
        else:
            self._wait(call)

    def leaving(self, connection: AnyConnection) -> None:
        """The connection accepts no further calls; the next one is made on demand."""
        if connection is self._connection:
            self._connection = None
            self._connect_for_waiting()

    def lost(self, connection: AnyConnection) -> None:
        """The connection was closed; if it had calls but no answer, the attempt has failed."""
        self._connections.discard(connection)
        if connection.has_answered:
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
                    problem = _reason(error)
        except (OSError, UnicodeError) as error:
            problem = f"the name does not resolve: {_reason(error)}"
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
        async with asyncio.timeout(CONNECT_SECONDS):
            found = await self._resolve(host, self._endpoint.port)
        return list(dict.fromkeys(str(address[4][0]) for address in found))

    async def _resolve(self, host: str, port: int) -> list[Any]:
        return await self._loop.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP
        )

    async def _connect_to(self, host: str) -> AnyConnection:
        """Connect; if the server is being replaced, connect again, to its successor.

        Raises:
            OSError: no connection could be made.
        """
        for _ in range(MAX_ATTEMPTS - 1):
            with suppress(_ServerDraining):
                return await self._attempt(host)
        return await self._attempt(host)

    async def _attempt(self, host: str) -> AnyConnection:
        """Connect once; the returned connection is usable (over HTTP/2: has the server's SETTINGS).

        Raises:
            OSError: no connection could be made.
        """
        made = self._protocol.connect(self, self._loop, str(self._endpoint))
        connection: AnyConnection = made
        self._connections.add(connection)
        connected = False
        tls: dict[str, Any] = {}
        if self._security is not None:
            tls = {
                "ssl": self._security.context,
                "server_hostname": self._security.server_name or self._endpoint.host,
                "ssl_shutdown_timeout": _CLOSE_SECONDS,
            }
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                await self._loop.create_connection(lambda: made, host, self._endpoint.port, **tls)
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
        """Return the milliseconds for ``grpc-timeout``, rounded; None without a deadline."""
        return None if call.deadline is None else self._rounded(call.deadline - time.monotonic())

    def block(self, call: Call) -> bytes:
        """Return the call's header block; calls of a method with about the same time left share it.

        ``grpc-timeout`` is rounded, because servers decode repeated values faster. Our own timer is
        exact.
        """
        left_ms = self.left_ms(call)
        key = (call.method, left_ms)
        block = self._blocks.get(key)
        if block is None:
            fields = [(b":path", call.method.encode())]
            if left_ms is not None:
                # Directly after the pseudo-headers, so that servers can start their timer early.
                fields.append((b"grpc-timeout", encode_timeout(left_ms / 1000)))
            block = self._blocks[key] = self._reserved + encode_block(fields) + _FIELDS
        return block + call.fields


def cancel(call: Call) -> None:
    """Cancel a call on behalf of its caller."""
    call.abandon(failure(GrpcCode.CANCELLED, "cancelled by the caller"))


def _uniform() -> float:
    return random.random()  # noqa: S311 - not for cryptography


def rounded_up_ms(seconds: float) -> int:
    """Round up to milliseconds, at least 1, of three significant digits."""
    left = max(1, ceil(seconds * 1000))
    step = 1
    while left > 1000 * step:
        step *= 10
    return -(-left // step) * step


def rounded_down_ms(seconds: float) -> int:
    """Round down to milliseconds, at least 1, of three significant digits: for servers that must
    not take longer than another caller's timeout.
    """
    left = max(1, int(seconds * 1000))
    step = 1
    while left > 1000 * step:
        step *= 10
    return left // step * step


def _reason(error: Exception) -> str:
    return str(error) or f"nothing came within {CONNECT_SECONDS:g} s"
