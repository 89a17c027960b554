"""One connection to a server, with many calls on it. The loop's thread only.

It moves bytes between a transport and the HTTP/2 core and hands each call its outcome. When to
connect, and which call goes where, is the endpoint channel's business. Sources: RFC 9113, the gRPC
HTTP/2 protocol.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections import deque
from enum import Enum
from typing import Protocol, cast

from penstock.client import call as answers
from penstock.client.call import Call, Outcome
from penstock.client.errors import CallFailed
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
)
from penstock.protocols.status import GrpcCode

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

    __slots__ = ("_pinged_at", "last_received", "pings")

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


class Owner(Protocol):
    """What a connection tells whoever owns it."""

    waiting: deque[Call]
    """Calls without a connection; while there are any, the owner hears of room for them."""

    def room_made(self, connection: Connection) -> None:
        """Calls may have ended; told only while calls wait."""

    def untouched(self, call: Call) -> None:
        """The server has certainly not looked at this call, and will not."""

    def leaving(self, connection: Connection) -> None:
        """It takes no more calls and ends when those on it have."""

    def lost(self, connection: Connection) -> None:
        """It is gone, and so are its calls."""


class Connection(asyncio.Protocol):
    """An HTTP/2 connection; a protocol for the loop's ``create_connection``.

    Attributes:
        settled: done when the server has sent its settings, or has failed to.
        gone: done when the transport is closed.
        problem: why it ends, in words.
        opened: how many calls it has taken.
        proved: the server has answered a call on it.
        descriptor: the socket's number and inode; None before and after its life.
    """

    def __init__(self, owner: Owner, loop: asyncio.AbstractEventLoop, name: str) -> None:
        """``name`` is the endpoint's, for texts."""
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
        self._keepalive = Keepalive(time.monotonic())
        self._keepalive_timer: asyncio.TimerHandle | None = None
        self._refilled = 0.0
        self.settled: asyncio.Future[None] = loop.create_future()
        self.gone: asyncio.Future[None] = loop.create_future()
        self.proved = False
        self.descriptor: tuple[int, int] | None = None

    @property
    def usable(self) -> bool:
        """Whether it takes calls; False before it is connected and as soon as it is to end."""
        transport = self._transport
        return transport is not None and not (self._leaving or transport.is_closing())

    def open(self, call: Call, block: bytes) -> bool:
        """Send one call with this header block; False when there is no room for it now."""
        http2 = self._http2
        try:
            stream = http2.open(block)
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
        """Take a call off: nobody waits for it any more."""
        assert call.stream is not None
        self._http2.reset(call.stream, ErrorCode.CANCEL)
        self._detach(call)
        self._after()

    def close(self, failed: CallFailed | None = None) -> None:
        """Say goodbye and disconnect; calls end with ``failed``, or as lost ones."""
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        self._end_calls(failed)
        self._http2.go_away(final=True)
        self._flush()
        transport.close()

    def abort(self) -> None:
        """Disconnect at once, without a goodbye."""
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Greet the server."""
        self._transport = cast(asyncio.Transport, transport)
        socket = transport.get_extra_info("socket")
        if socket is not None:
            self.descriptor = (socket.fileno(), os.fstat(socket.fileno()).st_ino)
        tls = transport.get_extra_info("ssl_object")
        if tls is not None and tls.selected_alpn_protocol() != "h2":
            self._fail("the server does not speak HTTP/2 over TLS")
            return
        self._flush()

    def data_received(self, data: bytes) -> None:
        """Work through what came, then write everything that it asked for at once."""
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
        self.descriptor = None
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
            self._ended(call, answers.of_whole_head(head))
            return
        failed = answers.of_head(head)
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
            self._ended(call, answers.failure(GrpcCode.INTERNAL, "the answer has no trailers"))

    def _trailers(self, event: TrailersReceived) -> None:
        call: Call | None = event.stream.context
        if call is not None and not call.ended:
            self._ended(call, call.outcome(dict(event.headers)))

    def _other(self, event: Event) -> None:
        if isinstance(event, StreamReset):
            self._reset(event)
        elif isinstance(event, GoawayReceived):
            debug = event.debug[:100].decode("ascii", "replace")
            self.problem = f"the server said goodbye with code {event.code} {debug}".rstrip()
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
            self._ended(call, answers.of_reset(event.code, event.text, by_peer=event.by_peer))

    def _leave(self) -> None:
        if not self._leaving:
            self._leaving = True
            self._owner.leaving(self)

    def _fail(self, problem: str) -> None:
        """End the connection, after the core's last words."""
        self.problem = problem
        self.close(answers.failure(GrpcCode.INTERNAL, f"{self._name}: {problem}"))

    def _ended(self, call: Call, outcome: Outcome) -> None:
        stream = call.stream
        if stream is not None and not stream.closed:
            # It may still be sending its request, or receiving what nobody will read.
            whole = stream.remote_ended
            self._http2.reset(stream, ErrorCode.NO_ERROR if whole else ErrorCode.CANCEL)
        self._detach(call)
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
            call.end(failed or answers.failure(GrpcCode.UNAVAILABLE, text))

    def _after(self) -> None:
        """What follows once calls may have ended or the core has something to say."""
        if self._owner.waiting:
            self._owner.room_made(self)
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
        """See whether the peer lives, for as long as calls wait for it."""
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

    def __repr__(self) -> str:
        state = "leaving" if self._leaving else "open" if self._transport else "connecting"
        return f"<Connection {self._name} {state}, {len(self._calls)} calls>"
