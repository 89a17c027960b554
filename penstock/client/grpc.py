"""gRPC calls over one HTTP/2 connection. Use on the loop's thread only.

Sources: RFC 9113, the gRPC HTTP/2 protocol.
"""

from __future__ import annotations

import asyncio
import time
from typing import cast

from penstock.client.call import Call, Outcome, nonsense, of_head, of_reset, of_whole_head
from penstock.client.connection import CallProtocol, Connection, Owner
from penstock.client.errors import CallFailed
from penstock.client.keepalive import Keepalive, KeepaliveStep
from penstock.client.message_stream import StreamCall
from penstock.protocols.grpc import encode_message, encode_timeout
from penstock.protocols.heads import ResponseHead, joined
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

_FIELDS = encode_block(
    [
        (b"te", b"trailers"),  # codespell:ignore te
        (b"content-type", b"application/grpc"),
        (b"grpc-accept-encoding", b"identity"),
        (b"user-agent", b"penstock"),
    ]
)
"""Header fields that are equal for all calls; they follow the others."""

_LIMITS = Http2Limits(stream_window=4 << 20, connection_window=1 << 30, resets=1 << 31)
"""Replies are read at once, so a window only has to cover one round trip; messages of a stream that
nobody takes fill its own window, and the connection's has room for 256 of them. Resets are not
limited: an overloaded server that refuses calls is no attacker."""

MAX_CALLS = 2**29
"""Calls after which a connection is replaced: stream identifiers end at 2**31."""

IDLE = 200.0
"""Seconds without bytes and calls after which a connection is replaced: load balancers and networks
of containers drop silent connections, and tell nobody. Less than their usual times, of which
Azure's 4 minutes are the shortest."""

_FRAME_HEAD_BYTES = 9


class GrpcConnection(Connection):
    """An HTTP/2 connection. It is settled when the server has sent its SETTINGS.

    Args:
        owner: decides about the connection.
        loop: its loop.
        name: the endpoint, for error texts.
    """

    def __init__(self, owner: Owner, loop: asyncio.AbstractEventLoop, name: str) -> None:
        super().__init__(owner, loop, name)
        scheme = b"https" if owner.is_secure else b"http"
        self._reserved = encode_block(
            [
                (b":method", b"POST"),
                (b":scheme", scheme),
                (b":authority", owner.authority.encode()),
            ]
        )
        self._blocks: dict[tuple[str, int | None], bytes] = {}
        self._http2 = Http2Connection(Role.CLIENT, _LIMITS)
        self._calls: set[Call] = set()
        self._greeting = b""
        self._flushing = False
        self._paused = False
        self._keepalive = Keepalive(time.monotonic())
        self._keepalive_timer: asyncio.TimerHandle | None = None
        self._refilled = 0.0

    def open(self, call: Call) -> bool:
        """False means that it has its maximum of open calls, or has been idle for too long."""
        silent = not self._calls and self.opened
        if silent and time.monotonic() - self._keepalive.last_received > IDLE:
            self._leave()
            self._after()
            return False
        http2 = self._http2
        try:
            stream = http2.open(self._block(call))
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
        """Sends RST_STREAM."""
        assert call.stream is not None
        self._http2.reset(call.stream, ErrorCode.CANCEL)
        self._detach(call)
        self._after()

    def consumed(self, call: Call, count: int) -> None:
        self._http2.consumed(call.stream, count)
        self._after()

    def close(self, failed: CallFailed | None = None) -> None:
        """Sends GOAWAY, with the HTTP/2 core's error if there is one."""
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        self._end_calls(failed)
        self._http2.go_away(final=True)
        self._flush()
        transport.close()

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
        if self._keepalive_timer is not None:
            self._keepalive_timer.cancel()
            self._keepalive_timer = None
        super().connection_lost(exc)

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
        if call.on_head is not None:
            call.on_head(joined(head.headers))
        if event.ended:
            has_status = isinstance(call, StreamCall) and b"grpc-status" in head.fields
            self._ended(call, call.outcome(head.fields) if has_status else of_whole_head(head))
            return
        failed = of_head(head)
        if failed is not None:
            self._ended(call, failed)
        elif b"grpc-encoding" in head.fields:
            call.encoding = head.fields[b"grpc-encoding"]

    def _data(self, event: DataReceived) -> None:
        stream = event.stream
        call: Call | None = stream.context
        self._keepalive.pings = 0
        if isinstance(call, StreamCall) and not call.ended:
            count, failed = call.take(event.data, event.counted)
            self._http2.consumed(stream, count)
        else:
            self._http2.consumed(stream, event.counted)
            if call is None or call.ended:
                return
            failed = call.receive(event.data)
        if failed is not None:
            self._ended(call, failed)
        elif event.ended:
            self._ended(call, nonsense("the answer has no trailers"))

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
        begun = isinstance(call, StreamCall) and call.begun
        if event.by_peer and event.code == ErrorCode.REFUSED_STREAM and not begun:
            self._detach(call)
            self._owner.retry_unprocessed(call)
        else:
            self._ended(call, of_reset(event.code, event.text, by_peer=event.by_peer))

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

    def _take_calls(self) -> set[Call]:
        calls, self._calls = self._calls, set()
        return calls

    def _after(self) -> None:
        """Continue after calls may have ended, or the core may have output."""
        if self._owner.waiting:
            self._owner.capacity_freed(self)
        if self._leaving and not self._calls:
            self.close()
        elif self._http2.has_output:
            self._flush_soon()

    def _block(self, call: Call) -> bytes:
        """Return the call's header block; calls of a method with about the same time left share it.

        ``grpc-timeout`` is rounded, because servers decode repeated values faster. Our own timer is
        exact.
        """
        left_ms = self._owner.left_ms(call)
        key = (call.method, left_ms)
        block = self._blocks.get(key)
        if block is None:
            fields = [(b":path", call.method.encode())]
            if left_ms is not None:
                # Directly after the pseudo-headers, so that servers can start their timer early.
                fields.append((b"grpc-timeout", encode_timeout(left_ms / 1000)))
            block = self._blocks[key] = self._reserved + encode_block(fields) + _FIELDS
        return block + call.fields

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


GRPC = CallProtocol(encode_message, GrpcConnection)
