"""A door's connection that speaks baidu_std: passes calls to the application, and writes answers.

Calls of a connection are multiplexed and answered in any order. The connection is not read while
it has the maximum of open calls, or while its client does not read answers: the protocol has no
other back-pressure. A bad request is answered with an error code; bytes that are not a request
close the connection. A client that closes its half of the connection counts as disconnected, as in
brpc's servers. While the door drains, new calls are answered with ELOGOFF: clients then call
another server, or reconnect.
"""

from __future__ import annotations

import asyncio
from math import inf
from time import monotonic
from typing import Final

from penstock.door.connection import Connection
from penstock.door.door_exchange import DoorExchange, guarded
from penstock.door.exchange import STOPPING, Peer
from penstock.door.state import DoorState
from penstock.protocols.baidu_std import (
    MessageBegun,
    Meta,
    PayloadPart,
    ProtocolBroken,
    Reader,
    encode_failure,
    encode_response,
)
from penstock.protocols.heads import BAIDU_STD, Headers, RequestHead
from penstock.protocols.status import GRPC_OF_HTTP, BrpcCode, GrpcCode, brpc_code_of_grpc

_SLICE: Final = 16
"""Messages handled between two checks of the time."""

_TURN: Final = 0.002
"""Seconds for the messages of one read before the loop continues with other connections."""

_JOINED: Final = 16 << 10
"""Bytes of output that are joined before they are written."""

_DISCARDED: Final = 1 << 20
"""Maximum bytes of a refused message that are read and discarded. If more are missing, the
connection is closed after its open calls have been answered."""


class BaiduStdExchange(DoorExchange):
    """A call and its answer.

    Its head has the path ``/service/method``, no fields, and the payload's size as the length.

    Args:
        session: the connection.
        meta: the message's meta.
        size: bytes of the payload.
        payload: the whole payload, or None if it has not arrived.
    """

    __slots__ = ("_pieces", "_session", "meta")

    def __init__(
        self, session: BaiduStdSession, meta: Meta, size: int, payload: bytes | None
    ) -> None:
        call = meta.call
        path = "/" if call is None else f"/{call.service}/{call.method}"
        head = RequestHead(
            "BRPC", path.encode(), (), version=BAIDU_STD, authority=b"", content_length=size
        )
        self.meta = meta
        self._pieces: list[bytes] = []
        self._session = session
        self.begin(session.shared, head, payload)

    @property
    def peer(self) -> Peer:
        return self._session.peer

    def respond(self, message: bytes) -> None:
        """Answer with a message."""
        if self.over:
            return
        try:
            head = encode_response(self.meta.correlation_id, len(message))
        except ValueError:
            self.fail_call(BrpcCode.ERESPONSE, "the answer is too large for the protocol")
        else:
            self._session.out += (head, message)
            self._answered()

    def fail_call(self, code: BrpcCode, text: str) -> None:
        """Answer that the call failed."""
        if not self.over:
            self.count_error(code.name)
            self._session.out.append(encode_failure(self.meta.correlation_id, code, text))
            self._answered()

    def _answered(self) -> None:
        session = self._session
        shared = self.shared
        self.status = 200
        self.close()
        session.mark()
        if not shared.calls:
            shared.flush()  # no other call is open whose answer could join this write

    def reply(
        self,
        status: int,
        headers: Headers,
        body: bytes = b"",
        trailers: Headers = (),
        *,
        close: bool = False,
    ) -> None:
        """An error's body is its text."""
        if status < 400:
            self.respond(body)
        else:
            self.fail_call(_code_of_http(status), body.decode(errors="replace"))

    def start(self, status: int, headers: Headers) -> None:
        """An answer is one message: ``finish`` joins its pieces."""
        self.started = True
        self.status = status

    def send(self, piece: bytes) -> None:
        if not self.over:
            self._pieces.append(piece)

    def finish(self, trailers: Headers = ()) -> None:
        self.reply(self.status, (), b"".join(self._pieces))

    def abort(self) -> None:
        self.fail_call(BrpcCode.EINTERNAL, "the answer was broken off")

    def refuse(self, status: int, text: str) -> None:
        if self.over:
            return
        on_gone, self.on_gone = self.on_gone, None
        self.fail_call(_code_of_http(status), text)
        if on_gone is not None:
            guarded(on_gone)

    def close(self) -> None:
        super().close()
        self._pieces.clear()
        self._session.ended(self)

    @property
    def unsent(self) -> int:
        """Counts the output of all calls of the connection."""
        return 0 if self.over else self._session.unsent()

    def pause(self) -> None:
        self.paused = True
        self._session.update_reading()

    def resume(self) -> None:
        super().resume()
        self._session.mark()


def _code_of_http(status: int) -> BrpcCode:
    return brpc_code_of_grpc(GRPC_OF_HTTP.get(status, GrpcCode.INTERNAL))


class BaiduStdSession(Connection):
    """A connection that speaks baidu_std.

    Attributes:
        out: pending output.
    """

    __slots__ = (
        "_arriving",
        "_calls",
        "_core",
        "_draining",
        "_has_backlog",
        "_idle_since",
        "_leaving",
        "_most",
        "_partial_message",
        "_partial_since",
        "_payload_deadline",
        "_resuming",
        "_stopped",
        "out",
    )

    def __init__(self, shared: DoorState, transport: asyncio.Transport) -> None:
        super().__init__(shared, transport)
        self.out: list[bytes] = []
        self.due = shared.sweeper.after(shared.period)
        self._core = Reader()
        self._calls: set[BaiduStdExchange] = set()  # open: not answered yet
        self._most = shared.limits.http2.max_streams
        self._arriving: BaiduStdExchange | None = None  # its payload has arrived in part
        self._payload_deadline = inf  # of the rest of that payload
        self._partial_message = -1  # number of the message with an incomplete meta
        self._partial_since = inf
        self._has_backlog = False  # the reader may have further events
        self._resuming = False
        self._draining = False  # new calls are refused with ELOGOFF
        self._stopped = False  # further input is discarded
        self._leaving = False  # close when no call is open
        self._idle_since = shared.sweeper.now

    # Input.

    def data_received(self, data: bytes) -> None:
        if not self.closing:
            self._core.receive(data)
            self._take()

    @property
    def _is_full(self) -> bool:
        return self.lagging or (self._arriving is None and len(self._calls) >= self._most)

    def wants_data(self) -> bool:
        arriving = self._arriving
        return not (
            self._stopped
            or self._has_backlog
            or self._is_full
            or (arriving is not None and arriving.paused)
        )

    def _take(self) -> None:
        """Handle buffered messages, within the time of a turn and the maximum of open calls."""
        self.dirty = True
        reader = self._core
        until = inf
        left = _SLICE
        try:
            while not (self._stopped or self.closing):
                self._has_backlog = reader.kept > 0
                if self._is_full:
                    break
                if not left:
                    now = monotonic()
                    until = min(until, now + _TURN)
                    if now >= until:
                        break
                    left = _SLICE
                left -= 1
                event = reader.next_event()
                if event is None:
                    self._has_backlog = False
                    break
                if isinstance(event, PayloadPart):
                    self._deliver(event)
                else:
                    self._begin(event)
            self._track_partial()
        except ProtocolBroken:
            self.shared.counters.malformed += 1
            self._write()
            self.end(linger=True)
            self.gone()
        except Exception:  # noqa: BLE001 - only this connection fails
            self.broken()
        self.flush()

    def _track_partial(self) -> None:
        """Track since when a message's meta is incomplete."""
        reader = self._core
        if reader.is_between or self._arriving is not None:
            self._partial_message = -1
        elif self._partial_message != reader.begun:
            self._partial_message = reader.begun
            self._partial_since = self.shared.sweeper.now

    def _begin(self, event: MessageBegun) -> None:
        meta, size, payload = event
        if meta.call is None:
            raise ProtocolBroken("the message is no request")
        exchange = BaiduStdExchange(self, meta, size, payload)
        self._calls.add(exchange)
        if payload is None:
            self._arriving = exchange
            self._payload_deadline = exchange.body_deadline
        if self._draining:
            exchange.refuse(503, STOPPING)
            return
        exchange.serve()
        self.due = min(self.due, exchange.body_deadline)

    def _deliver(self, event: PayloadPart) -> None:
        exchange = self._arriving
        assert exchange is not None, "a message begins before its payload"
        if event.ended:
            self._arriving = None
        else:
            self._payload_deadline += len(event.data) / self.shared.limits.body_pace
            exchange.arrived(len(event.data))
        exchange.deliver(event.data, event.ended)

    def _stop(self) -> None:
        """Stop reading, and close the connection when the open calls have been answered."""
        self._stopped = self._leaving = True
        self._has_backlog = False

    # The input backlog.

    def _wait_for_turn(self) -> None:
        """Continue in the next turn of the loop. At the maximum of calls, or while the client does
        not read, the next flush calls this again.
        """
        self.count_input(self._core.kept)
        if not (self._resuming or self._is_full):
            self._resuming = True
            asyncio.get_running_loop().call_soon(self._resume)

    def _resume(self) -> None:
        self._resuming = False
        if not self.closing:
            self._take()

    # Output.

    def ended(self, exchange: BaiduStdExchange) -> None:
        """Remove an exchange that is over."""
        self._calls.discard(exchange)
        self._idle_since = self.shared.sweeper.now
        if self._arriving is exchange and self._core.missing > _DISCARDED:
            self._stop()

    def flush(self) -> None:
        self.dirty = False
        try:
            self._write()
            if self.closing:
                return
            if self._has_backlog:
                self._wait_for_turn()
            elif self._input:
                self.count_input(0)
            if self._leaving and not self._calls and self._may_end():
                self.end(linger=True)
            else:
                self.update_reading()
        except Exception:  # noqa: BLE001 - only this connection fails
            self.broken()

    def _may_end(self) -> bool:
        """Whether no message is partly received, or the time for receiving it is over."""
        shared = self.shared
        in_time = shared.sweeper.now < shared.last_head
        return self._stopped or self._core.is_between or not in_time

    def _write(self) -> None:
        out = self.out
        if out and not self.closing:
            if self.secure or sum(map(len, out)) <= _JOINED:
                self.write_joined(out)
            else:
                self.write_pieces(out)
        out.clear()
        if self.lagging or self.counted:
            self.count()

    def unsent(self) -> int:
        """Bytes that wait for the client to read."""
        waiting = sum(map(len, self.out))
        return waiting + self.waiting() if self.lagging else waiting

    # Timeouts.

    def check(self, now: float) -> None:
        shared = self.shared
        limits = shared.limits
        self.due = now + shared.period
        self._draining = shared.draining
        self._leaving = self._leaving or now >= shared.last_head
        arriving = self._arriving
        if not self.wants_data():  # reading is paused: missing input may be in the kernel
            self._payload_deadline = max(self._payload_deadline, now + limits.body_timeout)
            self._partial_since = now
            self._idle_since = now
            self.mark()
            return
        if arriving is not None:
            self._idle_since = now
            if not arriving.over and now >= arriving.body_deadline:
                arriving.end_late()
            if now >= self._payload_deadline:
                self._stop()
            elif not arriving.over:
                self.due = min(self.due, arriving.body_deadline)
        elif self._partial_message >= 0:
            self._idle_since = now
            if now - self._partial_since >= limits.header_timeout:
                shared.counters.heads_late += 1
                self._stop()
        elif self._calls:
            self._idle_since = now
        elif now - self._idle_since > (limits.keep_alive if self._draining else limits.http2_idle):
            shared.counters.idle += 1
            self._leaving = True
        self.mark()

    # Shutdown.

    def gone(self) -> None:
        self.count_input(0)
        for exchange in list(self._calls):
            self.shared.counters.gone += 1
            exchange.leave()

    def drain(self) -> None:
        """The protocol can announce it only in the answer to a new call."""
        self._draining = True

    def refuse_partial(self) -> None:
        arriving = self._arriving
        if arriving is not None and arriving.awaits_body:
            arriving.refuse(503, STOPPING)

    def leave(self) -> None:
        """An idle connection stays open until ``last_head``: its client may have sent a call that
        has not arrived yet, and learns from the answer that it must call another server.
        """
        self._draining = True
        self.due = min(self.due, self.shared.last_head)
