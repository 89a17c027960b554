"""The calls to one endpoint: their connection, made when it is needed and made again when it broke.

An ``EndpointChannel`` decides when to connect and which call goes where: calls go onto the
connection in the order in which they came; without room for them they wait within their deadlines;
after a failure to connect the endpoint is left alone for a while and calls fail at once. A
``Connection`` moves bytes between a transport and the HTTP/2 core and hands each call its outcome;
other protocols have connections of their own (``CallProtocol``). The loop's thread only. Sources:
RFC 9113, the gRPC HTTP/2 protocol.
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
"""How long one attempt to connect may take, until the server's SETTINGS; the original's default."""

MAX_ATTEMPTS = 3
"""How often a call is sent that servers refuse unprocessed (REFUSED_STREAM, GOAWAY), and how often
to connect to a server that is being replaced; a guess."""


class _Dismissed(ConnectionError):
    """The server sent GOAWAY before any call: it is being replaced."""


_CLOSE_SECONDS = 0.25
"""How long a connection may take to close. All calls have ended by then, so there is no reason to
wait for a server that does not read or does not finish TLS."""

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


_FAULTS = frozenset({GrpcCode.UNAVAILABLE, GrpcCode.DEADLINE_EXCEEDED})
"""How calls end at a server that does not work; with others it says what is wrong with a call."""

_LIMITS = Http2Limits(stream_window=4 << 20, connection_window=16 << 20, resets=1 << 31)
"""Replies are taken as fast as they come, so the windows bound nothing but a round trip's worth. A
server resets no more streams than we open: an overloaded one that refuses calls is no attacker."""

MAX_CALLS = 2**29
"""After so many a connection is replaced: the numbers of its streams end at 2**31."""

_FRAME_HEAD_BYTES = 9

PING_AFTER = (30.0, 60.0, 120.0, 310.0)
"""Seconds of silence before the first PING in a row, the second, and so on.

A gRPC server of the default settings closes the connection at the third PING that comes less than
five minutes after another, unless it has sent a part of an answer in between.
"""

PING_TIMEOUT = 20.0
"""How long the answer to a PING may take; the default of gRPC's clients."""


class KeepaliveStep(Enum):
    """What to do beside waiting."""

    PING = "ping"
    GIVE_UP = "give up"


class Keepalive:
    """Whether a silent connection is still alive. Pure: time is an argument.

    While calls wait and nothing comes, the peer is asked with a PING; no byte from it within
    ``PING_TIMEOUT`` means that it is dead. Source: RFC 9113 §6.7.

    Attributes:
        last_received: monotonic seconds at which bytes came last; the driver writes it.
        pings: PINGs sent since the peer last sent a part of an answer; the driver clears it.
    """

    def __init__(self, now: float) -> None:
        self.last_received = now
        self.pings = 0
        self._pinged_at: float | None = None

    def started(self, now: float) -> None:
        """The first call after none: the silence begins now."""
        self.last_received = max(self.last_received, now)
        self._pinged_at = None

    def poll(self, now: float) -> KeepaliveStep | float:
        """What to do at ``now``, or in how many seconds to ask again."""
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
        settled: done when the server has sent its settings, or has failed to.
        gone: done when the transport is closed.
        problem: why it ends, in words.
        dismissed: the server has sent GOAWAY, and not because of an error.
        opened: how many calls it has taken.
        proved: the server has answered a call on it.
    """

    def __init__(self, owner: EndpointChannel, loop: asyncio.AbstractEventLoop, name: str) -> None:
        """``name`` is the endpoint's, for messages."""
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
        self.dismissed = False
        self._keepalive = Keepalive(time.monotonic())
        self._keepalive_timer: asyncio.TimerHandle | None = None
        self._refilled = 0.0
        self.settled: asyncio.Future[None] = loop.create_future()
        self.gone: asyncio.Future[None] = loop.create_future()
        self.proved = False

    @property
    def usable(self) -> bool:
        """Whether it takes calls; False before it is connected and as soon as it is to end."""
        transport = self._transport
        return transport is not None and not (self._leaving or transport.is_closing())

    def open(self, call: Call) -> bool:
        """Send one call; False when there is no room for it now."""
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
        """Cancel a call on this connection: send RST_STREAM and forget it."""
        assert call.stream is not None
        self._http2.reset(call.stream, ErrorCode.CANCEL)
        self._detach(call)
        self._after()

    def close(self, failed: CallFailed | None = None) -> None:
        """Send GOAWAY and disconnect; calls end with ``failed``, or with UNAVAILABLE."""
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
        """Handle all events in the data, then write the responses at once."""
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
        if not self.settled.done() and self._is_greeted(data):
            self.settled.set_result(None)
        self._after()

    def pause_writing(self) -> None:
        """The socket takes no more; the core keeps what comes."""
        self._paused = True

    def resume_writing(self) -> None:
        """The socket takes more."""
        self._paused = False
        self._flush()

    def connection_lost(self, exc: Exception | None) -> None:
        """The transport is closed: by the peer, by us, or by the network. Only once."""
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

    def _is_greeted(self, data: bytes) -> bool:
        """Whether the server's first frame is there; the core insists that it is SETTINGS."""
        self._greeting += data
        size = int.from_bytes(self._greeting[:3], "big")
        return len(self._greeting) >= _FRAME_HEAD_BYTES + size

    def _head(self, event: HeadReceived) -> None:
        call: Call | None = event.stream.context
        self.proved = True
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
            self.dismissed = event.code == ErrorCode.NO_ERROR
            self._leave()  # the core resets the streams that the server will not look at
        elif isinstance(event, ConnectionFailed):
            self._fail(f"the server broke the protocol: {event.text}")

    def _reset(self, event: StreamReset) -> None:
        call: Call | None = event.stream.context
        if call is None or call.ended:
            return
        if event.by_peer and event.code == ErrorCode.REFUSED_STREAM:
            self._detach(call)
            self._owner.untouched(call)
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
            # The request may not be sent in full yet, or the rest of the answer is not needed.
            whole = stream.remote_ended
            self._http2.reset(stream, ErrorCode.NO_ERROR if whole else ErrorCode.CANCEL)
        self._detach(call)
        self._owner.heard(outcome)
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
        """After calls may have ended, or the core may have something to send."""
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
        """Check that the server is alive, while there are calls."""
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
    """What a channel needs of a connection; the attributes are those of ``Connection``."""

    settled: asyncio.Future[None]
    gone: asyncio.Future[None]
    problem: str
    dismissed: bool
    opened: int
    proved: bool

    @property
    def usable(self) -> bool:
        """See ``Connection``."""

    def open(self, call: Call) -> bool:
        """See ``Connection``."""

    def leave(self, call: Call) -> None:
        """Cancel a call on this connection and forget it."""

    def close(self, failed: CallFailed | None = None) -> None:
        """Disconnect; calls end with ``failed``, or with UNAVAILABLE."""

    def abort(self) -> None:
        """Disconnect at once."""

    def connection_lost(self, exc: Exception | None) -> None:
        """See ``Connection``."""


class CallProtocol(NamedTuple):
    """How calls go over a connection.

    Attributes:
        frame: a request as it waits to be sent.
        connect: makes a connection of a channel, on a loop; the text names the endpoint. It is a
            protocol for the loop's ``create_connection``.
    """

    frame: Callable[[bytes], bytes]
    connect: Callable[[EndpointChannel, asyncio.AbstractEventLoop, str], Any]


GRPC = CallProtocol(encode_message, Connection)


class EndpointChannel:
    """The calls to one endpoint on one loop.

    Attributes:
        waiting: calls that are on no connection, in order; ended ones may be among them.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        loop: asyncio.AbstractEventLoop,
        security: Security | None,
        rounded: Callable[[float], int],
        told: Callable[[Endpoint, str | None], object] | None = None,
        protocol: CallProtocol = GRPC,
    ) -> None:
        """Nothing is connected yet; the loop need not be running.

        Args:
            endpoint: which.
            loop: it belongs to.
            security: None means clear text.
            rounded: the milliseconds that a server is told for so many seconds.
            told: called with the problem when the endpoint stops working, and with None when it
                works again.
            protocol: which the endpoint speaks.
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
        self._told = told
        self._protocol = protocol
        self._is_down = False
        self._problem = ""
        self._connecting: asyncio.Task[None] | None = None
        self._connection: AnyConnection | None = None
        self._connections: set[AnyConnection] = set()
        self._closed = False
        self.waiting: deque[Call] = deque()

    def start(self, call: Call) -> None:
        """Send a call, now or as soon as there is a connection with room for it."""
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
        """Disconnect; calls end with CANCELLED. Closing twice is allowed."""
        self._closed = True
        if self._connecting is not None:
            self._connecting.cancel()
        for connection in list(self._connections):
            connection.close(failure(GrpcCode.CANCELLED, _CLOSED))
        for call in self._take_waiting():
            call.abandon(failure(GrpcCode.CANCELLED, _CLOSED, sent=False))

    async def closed(self) -> None:
        """Wait until nothing of the channel is left on the loop, after ``close``."""
        if self._connecting is not None:
            await asyncio.wait({self._connecting})
        ends = {connection.gone for connection in self._connections}
        if ends:
            await asyncio.wait(ends, timeout=_CLOSE_SECONDS)
            for connection in list(self._connections):
                connection.abort()

    def state(self, now: float) -> State:
        """Whether it is worth a call at ``now``."""
        if not self._health.takes(now):
            return State.OUT
        if self._connection is not None:
            return State.READY
        return State.OUT if now < self._backoff.until else State.APART

    def chosen(self, now: float) -> None:
        """A call goes to it first."""
        self._health.chosen(now)

    def probe(self, now: float) -> None:
        """Connect, unless it is connected, or is to be left alone."""
        if self._connection is None and now >= self._backoff.until:
            self._begin_to_connect()

    # What its connections tell

    def heard(self, outcome: Outcome) -> None:
        """A call on one of them has ended."""
        if not isinstance(outcome, CallFailed) or outcome.status not in _FAULTS:
            self._health.answered()
            self._tell(None)
        elif self._health.failed(time.monotonic(), _chance()):
            self._tell(f"calls fail: {outcome}")

    def capacity_freed(self, connection: AnyConnection) -> None:
        """Put waiting calls on the connection while it takes them."""
        waiting = self.waiting
        while waiting and connection is self._connection:
            call = waiting.popleft()
            if not call.ended and not connection.open(call):
                waiting.appendleft(call)
                return

    def untouched(self, call: Call) -> None:
        """Send a call again that the server has certainly not looked at."""
        if self._closed:
            call.abandon(failure(GrpcCode.CANCELLED, _CLOSED, sent=False))
        elif call.attempts >= MAX_ATTEMPTS:
            text = f"{self._endpoint}: the server refused the call {call.attempts} times"
            call.end(failure(GrpcCode.UNAVAILABLE, text, sent=False))
        else:
            self._wait(call)

    def leaving(self, connection: AnyConnection) -> None:
        """The connection takes no more calls; the next one is made when it is needed."""
        if connection is self._connection:
            self._connection = None
            self._connect_for_waiting()

    def lost(self, connection: AnyConnection) -> None:
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
        """A connection that takes calls; where a process is being replaced, to its successor.

        Raises:
            OSError: there is none.
        """
        for _ in range(MAX_ATTEMPTS - 1):
            with suppress(_Dismissed):
                return await self._attempt(host)
        return await self._attempt(host)

    async def _attempt(self, host: str) -> AnyConnection:
        """A connection that can be used: over HTTP/2, whose server has sent its settings.

        Raises:
            OSError: there is none.
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
                kind = _Dismissed if connection.dismissed else ConnectionError
                raise kind(connection.problem)
        except BaseException:
            connection.abort()
            if not connected:
                # A loop may take an unfinished transport away without a word to its protocol.
                connection.connection_lost(None)
            raise
        return connection

    def _failed(self, problem: str) -> None:
        self._problem = problem
        self._backoff.failed(time.monotonic(), _chance())
        if not self._closed:
            self._tell(problem)

    def _tell(self, problem: str | None) -> None:
        """Tell of a change, once."""
        if self._is_down != (problem is not None):
            self._is_down = problem is not None
            if self._told is not None:
                self._told(self._endpoint, problem)

    # Ending

    def _take_waiting(self) -> deque[Call]:
        waiting, self.waiting = self.waiting, deque()
        return waiting

    def _fail_waiting(self) -> None:
        for call in self._take_waiting():
            text = f"{self._endpoint}: {self._problem}"
            call.end(failure(GrpcCode.UNAVAILABLE, text, sent=False))

    def _expire(self, call: Call) -> None:
        """End a call whose deadline has passed, else come back at its deadline."""
        assert call.deadline is not None
        left = call.deadline - time.monotonic()
        if left > 0:  # also where the loop's clock, which may be coarse, came too early
            call.timer = self._loop.call_later(left, self._expire, call)
        else:
            text = f"{self._endpoint}: the deadline passed"
            sent = call.stream is not None
            failed = failure(GrpcCode.DEADLINE_EXCEEDED, text, sent=sent)
            if sent:
                self.heard(failed)
            call.abandon(failed)

    def left_ms(self, call: Call) -> int | None:
        """The milliseconds that the server is told, rounded; None without a deadline."""
        return None if call.deadline is None else self._rounded(call.deadline - time.monotonic())

    def block(self, call: Call) -> bytes:
        """The call's header block. Calls of a method with about the same time left share one.

        The ``grpc-timeout`` that is sent is rounded, because servers decode a value faster that
        they have seen before. Our own timer is exact.
        """
        left_ms = self.left_ms(call)
        key = (call.method, left_ms)
        block = self._blocks.get(key)
        if block is None:
            fields = [(b":path", call.method.encode())]
            if left_ms is not None:
                # Right behind the reserved fields: servers may take its time from the first moment.
                fields.append((b"grpc-timeout", encode_timeout(left_ms / 1000)))
            block = self._blocks[key] = self._reserved + encode_block(fields) + _FIELDS
        return block + call.fields


def cancel(call: Call) -> None:
    """Cancel a call on behalf of its caller."""
    call.abandon(failure(GrpcCode.CANCELLED, "cancelled by the caller"))


def _chance() -> float:
    return random.random()  # noqa: S311 - it spreads clients, and guards nothing


def rounded_up_ms(seconds: float) -> int:
    """Milliseconds, at least one, of which the first three digits count."""
    left = max(1, ceil(seconds * 1000))
    step = 1
    while left > 1000 * step:
        step *= 10
    return -(-left // step) * step


def rounded_down_ms(seconds: float) -> int:
    """Milliseconds, at least one, of which the first three digits count; what a server is told that
    must not take longer than somebody else waits.
    """
    left = max(1, int(seconds * 1000))
    step = 1
    while left > 1000 * step:
        step *= 10
    return left // step * step


def _reason(error: Exception) -> str:
    return str(error) or f"nothing came within {CONNECT_SECONDS:g} s"
