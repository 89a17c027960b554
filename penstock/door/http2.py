"""A door's connection that speaks HTTP/2: passes streams to the application, and writes answers.

The only state of a request is its exchange, which is the stream's context. Timeouts are detected by
checking all open streams once a second.

A read may be too large for one turn of the loop. Its unprocessed part, the input backlog, counts in
the budget, and is processed in slices, between which other connections have their turn. The
connection is read again when the backlog is empty: so the backlog is never larger than one read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from functools import lru_cache
from math import inf
from time import monotonic
from typing import Final

from penstock.door.connection import NEVER, PAUSE, Connection, Pace
from penstock.door.door_exchange import DoorExchange
from penstock.door.exchange import STOPPING, WRITABLE, Peer
from penstock.door.state import DoorState
from penstock.protocols.grpc.request import is_grpc
from penstock.protocols.heads import HTTP_2, Headers, RequestHead, checked
from penstock.protocols.http2 import (
    ConnectionFailed,
    DataReceived,
    ErrorCode,
    Event,
    HeadReceived,
    HeadTooLarge,
    Http2Connection,
    PingAcknowledged,
    Role,
    Stream,
    StreamReset,
    TrailersReceived,
    encode_block,
)
from penstock.protocols.http2.events import with_data_joined
from penstock.protocols.http2.stream import CLOSED, Outbox

_PING: Final = b"penstock"
_ACKNOWLEDGEMENT: Final = 5.0
"""Most seconds for which a client of an old connection may acknowledge the first GOAWAY: as long as
gRPC for Go waits. What it sends before it has read that is answered."""

_BULK: Final = 64 << 10
"""Bytes of large pieces above which output is written without joining."""

_SLICE: Final = 64
"""Frames after which the time and the abuse counter are checked."""

_SHORT_SLICE: Final = 25
"""The same for a peer that abuses the protocol: each cancelled or refused call takes 25 µs of other
connections' time."""

_TURN: Final = 0.002
"""Seconds for one read before other connections have their turn. A read with a hundred calls takes
about as long; dividing it further would cost more writes."""

_MANY: Final = 32
"""Number of events above which small DATA frames of a stream are joined."""

_OF_CONNECTIONS: Final = frozenset(
    {b"connection", b"keep-alive", b"transfer-encoding", b"upgrade", b"content-length", b"date"}
)
_LENGTH: Final = b"\x0f\x0d"  # content-length: literal without indexing, with indexed name


@lru_cache(maxsize=512)
def head_block(status: int, headers: Headers) -> bytes:
    """Encode the head of an answer as a header block that is valid on every connection.

    Connection-specific fields, ``date`` and ``content-length`` are left out.

    Raises:
        ValueError: the status is not final, or a field is invalid.
    """
    if not 200 <= status <= 999:
        raise ValueError(f"{status} is not the status of an answer")
    fields = tuple([field for field in headers if field[0] not in _OF_CONNECTIONS])
    return encode_block([(b":status", b"%d" % status), *checked(fields)])


@lru_cache(maxsize=512)
def trailer_block(trailers: Headers) -> bytes:
    """Encode the trailers of an answer as a header block.

    Raises:
        ValueError: a field is invalid.
    """
    return encode_block(checked(trailers))


class Http2Exchange(DoorExchange):
    """An exchange on one stream of the connection.

    Attributes:
        owed: bytes that arrived while the exchange was paused.
    """

    __slots__ = ("_session", "_stream", "owed")

    owed: int
    _session: Http2Session
    _stream: Stream

    @property
    def peer(self) -> Peer:
        return self._session.peer

    @property
    def is_secure(self) -> bool:
        return self._session.secure

    def reply(
        self,
        status: int,
        headers: Headers,
        body: bytes = b"",
        trailers: Headers = (),
        *,
        close: bool = False,
    ) -> None:
        if self.over:
            return
        if status >= 400:
            self.count_error(str(status))
        shared = self.shared
        if self.added:
            headers = (*headers, *self.added)
        block = head_block(status, headers)
        trailing = None
        if trailers:
            trailing = trailer_block(trailers)
        elif body and status not in (204, 304):
            digits = b"%d" % len(body)
            block = b"%b%b%c%b" % (block, _LENGTH, len(digits), digits)
        block += shared.date_block
        if self.head.method == "HEAD":
            body = b""
        stream = self._stream
        session = self._session
        stream.context = None
        self.status = status
        self.close()
        session.core.reply(stream, block, body, trailing)
        if stream.state & CLOSED != CLOSED:
            session.stop_sender(stream)
        if not session.dirty:
            session.mark()
        if not shared.calls:
            shared.flush()  # no other request is open whose answer could join this write

    def start(self, status: int, headers: Headers) -> None:
        if not self.over:
            self.started = True
            self.status = status
            if self.added:
                headers = (*headers, *self.added)
            block = head_block(status, headers) + self.shared.date_block
            self._session.core.send_head(self._stream, block)
            self._session.mark()

    def send(self, piece: bytes) -> None:
        if self.over:
            return
        session = self._session
        if self.unsent > self.shared.limits.max_unsent:
            self.shared.counters.overrun += 1
            self.leave()
            session.reset(self._stream, ErrorCode.INTERNAL_ERROR)
            return
        if self.head.method != "HEAD":
            core = session.core
            before = core.queued
            core.send_data(self._stream, piece)
            session.fresh += len(piece) + before - core.queued
            if self.unsent > WRITABLE:
                session.blocked_writers.add(self)
        session.mark()

    def finish(self, trailers: Headers = ()) -> None:
        if self.over:
            return
        stream = self._stream
        session = self._session
        stream.context = None
        self.close()
        if trailers:
            session.core.send_trailers(stream, trailer_block(trailers))
        else:
            session.core.send_data(stream, b"", end=True)
        if stream.state & CLOSED != CLOSED:
            session.stop_sender(stream)
        session.mark()

    def abort(self) -> None:
        if not self.over:
            self._stream.context = None
            self.status = 0
            self.close()
            self._session.reset(self._stream, ErrorCode.INTERNAL_ERROR)

    def refuse(self, status: int, text: str) -> None:
        self.leave(0 if self.started else status)
        self._stream.context = None
        if self.started:
            self._session.reset(self._stream, ErrorCode.INTERNAL_ERROR)
        else:
            self._session.refuse(self._stream, self.head, status, text)

    @property
    def unsent(self) -> int:
        """Includes output of the connection that is past flow control."""
        return 0 if self.over else self._stream.queued + self._session.unsent()

    def pause(self) -> None:
        self.paused = True

    def resume(self) -> None:
        super().resume()
        if not self.over:
            session = self._session
            owed, self.owed = self.owed, 0
            session.core.consumed(self._stream, owed)
            session.mark()


class Http2Session(Connection):
    """A connection that speaks HTTP/2.

    Attributes:
        core: the protocol.
        fresh: bytes of streamed answers that passed flow control since the last flush.
        blocked_writers: exchanges whose applications wait for ``on_writable``.
    """

    __slots__ = (
        "_acknowledges_until",
        "_draining",
        "_drains_soon",
        "_expires",
        "_head",
        "_idle_since",
        "_leaving",
        "_paces",
        "_refill_at",
        "_resuming",
        "_unfinished",
        "_unfinished_since",
        "_waits_until",
        "blocked_writers",
        "core",
        "fresh",
    )

    def __init__(self, shared: DoorState, transport: asyncio.Transport) -> None:
        super().__init__(shared, transport)
        limits = shared.limits.http2
        self.core = Http2Connection(Role.SERVER, limits)
        self.fresh = 0
        self.blocked_writers: set[Http2Exchange] = set()
        self.due = shared.sweeper.after(shared.period)
        self._paces: dict[Outbox, Pace] = {}  # of streams with queued output
        self._idle_since = shared.sweeper.now
        self._refill_at = 0.0
        self._unfinished: object | None = None
        self._unfinished_since = NEVER
        self._draining = False
        self._drains_soon = False  # once no request is open
        self._expires = shared.expiry()
        self._waits_until = 0.0  # for a moment without open requests
        self._acknowledges_until = 0.0  # the first GOAWAY, unless the door drains
        self._head: RequestHead | None = None  # of the last request
        self._leaving = False
        self._resuming = False

    # Input.

    def data_received(self, data: bytes) -> None:
        """Empty data continues with the backlog."""
        if self.closing:
            return
        self.dirty = True
        core = self.core
        try:
            # One function, for speed.
            events = core.receive(data, _SLICE) if data else core.go_on(self._slice)
            for event in self._turn(events) if core.behind else events:
                if type(event) is DataReceived:
                    stream = event.stream
                    exchange: Http2Exchange | None = stream.context
                    if exchange is None or exchange.receiver is None:
                        core.consumed(stream, event.counted)
                        continue
                    if not event.ended:
                        exchange.arrived(event.counted)
                    exchange.deliver(event.data, event.ended)
                    if exchange.paused:
                        exchange.owed += event.counted
                    elif event.ended and event.counted <= core.small:
                        pass  # the window is restored when the stream closes, at no extra cost
                    elif stream.state & CLOSED != CLOSED:
                        core.consumed(stream, event.counted)
                elif type(event) is HeadReceived:
                    self._begin(event)
                else:
                    self._take(event)
        except Exception:  # noqa: BLE001 - only this connection fails
            self.broken()
        self.flush()

    def wants_data(self) -> bool:
        return not self.lagging and not self.core.behind

    # Input backlog.

    @property
    def _slice(self) -> int:
        return _SHORT_SLICE if self.core.is_abused else _SLICE

    def _turn(self, events: list[Event]) -> Iterator[Event]:
        """Yield these events and the following ones, until the turn is over.

        The turn of a peer that abuses the protocol is one slice.
        """
        core = self.core
        until = monotonic() + _TURN
        while True:
            yield from events if len(events) <= _MANY else with_data_joined(events)
            if not core.behind or core.is_abused or self.closing or monotonic() >= until:
                return
            events = core.go_on(_SLICE)

    def _wait_for_turn(self) -> None:
        """Continue with the backlog in the next turn; later if the peer abuses the protocol.

        While the client does not read, nothing is scheduled: the next flush calls this again.
        """
        self.count_input(self.core.behind)
        if not self._resuming and not self.lagging:
            self._resuming = True
            loop = asyncio.get_running_loop()
            if self.core.is_abused:
                loop.call_later(PAUSE, self._resume)
            else:
                loop.call_soon(self._resume)
        self.update_reading()

    def _resume(self) -> None:
        self._resuming = False
        if self.lagging or self.closing:
            return
        self.data_received(b"")
        if not self.core.behind:
            self.count_input(0)
            self.update_reading()

    # Requests.

    def _begin(self, event: HeadReceived) -> None:
        shared = self.shared
        stream = event.stream
        if self.counted > shared.limits.max_unsent:
            shared.counters.streams_refused += 1
            self.core.reset(stream, ErrorCode.REFUSED_STREAM)
            return
        exchange: Http2Exchange = Http2Exchange()
        exchange._session = self
        exchange._stream = stream
        exchange.owed = 0
        stream.context = exchange
        whole = event.data if event.ended else None
        head: RequestHead = event.head  # type: ignore[assignment]
        self._head = head
        exchange.begin(shared, head, whole)
        exchange.serve()
        if exchange.deadline < inf:
            self.due = min(self.due, exchange.body_deadline)

    def _take(self, event: Event) -> None:
        """Process an event that is neither data nor a head."""
        if isinstance(event, TrailersReceived):
            exchange: Http2Exchange | None = event.stream.context
            if exchange is not None:
                exchange.deliver(b"", True)
        elif isinstance(event, HeadTooLarge):
            self._refuse_head(event)
        elif isinstance(event, StreamReset):
            if not event.by_peer:
                if event.code == ErrorCode.REFUSED_STREAM:
                    self.shared.counters.streams_beyond += 1
                else:
                    self.shared.counters.resets += 1
            self._lose(event.stream)
        elif isinstance(event, ConnectionFailed):
            if event.code == ErrorCode.ENHANCE_YOUR_CALM:
                self.shared.counters.count_abuse(event.abuse)
            else:
                self.shared.counters.malformed += 1
            self._write()
            self.end(linger=True)
            self.gone()
        elif isinstance(event, PingAcknowledged) and self._draining:
            self._acknowledges_until = 0.0
            self._announce_last_stream()

    def _refuse_head(self, event: HeadTooLarge) -> None:
        """Answer a request whose head was refused."""
        self.shared.counters.heads_too_large += 1
        headers = tuple([field for field in event.fields if field[0][:1] != b":"])
        head = RequestHead("", b"", headers, version=HTTP_2, authority=b"", content_length=None)
        self.refuse(event.stream, head, 431, "the header fields are too large")

    def refuse(self, stream: Stream, head: RequestHead, status: int, text: str) -> None:
        """Answer a request in place of the application."""
        reply = self.shared.failure(head, status, text)
        block = head_block(reply.status, reply.headers) + self.shared.date_block
        self.core.reply(stream, block, reply.body)
        if not stream.closed:
            self.stop_sender(stream)
        self.mark()

    def _lose(self, stream: Stream) -> None:
        exchange: Http2Exchange | None = stream.context
        stream.context = None
        if exchange is not None and not exchange.over:
            self.shared.counters.gone += 1
            exchange.leave()

    # Output.

    def flush(self) -> None:
        try:
            self._write()
            if self.blocked_writers and not self.lagging:
                self._notify_writable()
            if self.core.behind and not self.closing:
                self._wait_for_turn()
            if self.core.streams:
                return
            if self._drains_soon and self._head is not None:
                self._announce_drain()
                self._write()
            if self._leaving:
                self.end(linger=True)
        except Exception:  # noqa: BLE001 - only this connection fails
            self.broken()

    def _write(self) -> None:
        self.dirty = False
        core = self.core
        self.fresh = 0
        if core.bulk > _BULK and not self.secure:
            pieces = core.take_pieces()
            if not self.closing:
                self.write_pieces(pieces)
        else:
            data = core.take_output()
            if data and not self.closing:
                self.write(data)
        if self.lagging or self.counted or core.queued:
            self.count()

    def give_up(self) -> None:
        """Drops the newest answers that flow control blocks, up to a half."""
        budget = self.shared.budget
        blocked = [stream for stream in self.core.streams.values() if stream.queued]
        most = self.counted // 2
        # Not the first: a single answer may exceed the budget by itself.
        for stream in reversed(blocked[1:]):
            self._give_up(stream, ErrorCode.ENHANCE_YOUR_CALM)
            self.count()
            if self.counted <= most or budget.arrived <= budget.limit:
                return
        if self.counted > most:
            super().give_up()

    def _give_up(self, stream: Stream, code: ErrorCode) -> None:
        exchange: Http2Exchange | None = stream.context
        self.reset(stream, code)
        if exchange is not None:
            exchange.leave()

    def _notify_writable(self) -> None:
        for exchange in [one for one in self.blocked_writers if one.over or one.unsent <= WRITABLE]:
            self.blocked_writers.discard(exchange)
            exchange.check_writable()

    def pending(self) -> int:
        return self.core.queued

    def buffered(self) -> int:
        return self.core.buffered

    def unsent(self) -> int:
        """Bytes past flow control that have not been sent, because the client does not read."""
        waiting = self.fresh
        return waiting + self.waiting() if self.lagging else waiting

    def stop_sender(self, stream: Stream) -> None:
        """Ask the client to stop sending a request whose answer is complete."""
        if not stream.remote_ended and stream.outbox is None:
            self.core.reset(stream, ErrorCode.NO_ERROR)

    def reset(self, stream: Stream, code: ErrorCode) -> None:
        """Reset a stream."""
        stream.context = None
        self.core.reset(stream, code)
        self.mark()

    # Timeouts.

    def check(self, now: float) -> None:
        self.due = now + self.shared.period
        core = self.core
        if now >= self._refill_at:
            # Once a second: short limits make checks more frequent.
            self._refill_at = now + 1.0
            core.refill()
        if self._draining:
            if self.shared.draining or now >= self._acknowledges_until:
                self._announce_last_stream()
                self._leaving = True
        elif self._drains_soon:
            if self.shared.draining or now >= self._waits_until:
                self._announce_drain()
        elif self.shared.draining:
            self.drain()
        elif now >= self._expires:
            self._expire(now)
        if core.behind:  # missing input may be in the backlog
            self._idle_since = now
            self._unfinished = None
            self.mark()
            return
        unfinished = core.unfinished
        if unfinished is not self._unfinished:
            self._unfinished = unfinished
            self._unfinished_since = now
        elif (
            unfinished is not None
            and now - self._unfinished_since >= self.shared.limits.header_timeout
        ):
            self.shared.counters.heads_late += 1
            core.go_away(final=True, code=ErrorCode.ENHANCE_YOUR_CALM)
            self._write()
            self.end(linger=True)
            self.gone()
            return
        if core.streams:
            self._idle_since = now
            blocked = [stream for stream in core.streams.values() if stream.queued]
            for stream in self._late_readers(blocked, now):
                self.shared.counters.stalled += 1
                self._give_up(stream, ErrorCode.CANCEL)
            for stream in list(core.streams.values()):
                self._check_stream(stream, now)
        elif now - self._idle_since > self.shared.limits.http2_idle:
            self.shared.counters.idle += 1
            core.go_away(final=True)
            self._leaving = True
        self.mark()

    def _late_readers(self, blocked: list[Stream], now: float) -> list[Stream]:
        """Return the streams whose windows the client opens too slowly, or not at all."""
        limits = self.shared.limits
        pace = limits.body_pace / max(len(blocked), 1)  # they share the client's bandwidth
        before, self._paces = self._paces, {}
        late = []
        for stream in blocked:
            outbox = stream.outbox
            assert outbox is not None
            reader = before.get(outbox) or Pace(outbox.taken, now, limits.write_timeout)
            if reader.is_late(outbox.taken, now, pace):
                late.append(stream)
            else:
                self._paces[outbox] = reader
        return late

    def _check_stream(self, stream: Stream, now: float) -> None:
        exchange: Http2Exchange | None = stream.context
        if exchange is not None and exchange.body_deadline > now:
            self.due = min(self.due, exchange.body_deadline)
        if exchange is None and not stream.queued:
            self.stop_sender(stream)
        if (
            exchange is not None
            and now >= exchange.body_deadline
            and not exchange.paused
            and not stream.remote_ended
        ):
            exchange.end_late()

    # Shutdown.

    def eof_received(self) -> bool:
        """The client has closed its sending half: answer complete requests within its windows.

        A ping detects whether it has disconnected: then its system replies with a reset.
        """
        whole = [stream for stream in self.core.streams.values() if stream.remote_ended]
        if self.closing or self.secure or not whole:
            return False
        self.eof = True
        for stream in list(self.core.streams.values()):
            if not stream.remote_ended:
                self._lose(stream)
                self.core.reset(stream, ErrorCode.CANCEL)
        self._leaving = True
        self.core.ping(_PING)
        self.flush()
        self._watch = asyncio.create_task(self.watch_for_reset())
        return True

    def gone(self) -> None:
        self.blocked_writers.clear()
        self.count_input(0)
        for stream in list(self.core.streams.values()):
            self._lose(stream)

    def drain(self) -> None:
        """Announce the end as soon as no request is open, or at the next check: clients that use
        Python's h2, as httpx does, give up their open requests at a GOAWAY.
        """
        if not self._draining and not self._drains_soon:
            self._drains_soon = True
            self.shared.unacknowledged.add(self)
            self.mark()

    def _expire(self, now: float) -> None:
        """End a connection of the maximum age as at a drain, but in no hurry.

        A client that is not known to understand two steps may have as much time again until no
        request is open.
        """
        head = self._head
        if head is not None and not is_grpc(head):
            self._waits_until = now + self.shared.limits.max_connection_age
        self.drain()

    def _announce_drain(self) -> None:
        """Announce the end: at once and for good if no request is open, else in two steps.

        Of two steps the first GOAWAY does not name the last stream yet, so that requests which the
        client has sent before it reads that are answered. Libraries of gRPC understand both. h2
        does not understand the first one; a request that comes after a final one it repeats on
        another connection.
        """
        self._drains_soon, self._draining = False, True
        head = self._head
        if head is not None and not self.core.streams and not is_grpc(head):
            self._announce_last_stream()
            self._leaving = True
        else:
            self._acknowledges_until = self.shared.sweeper.now + _ACKNOWLEDGEMENT
            self.core.go_away(final=False)
            self.core.ping(_PING)

    def _announce_last_stream(self) -> None:
        """Send the final GOAWAY: the client has acknowledged the first one, or its time is over."""
        self.core.go_away(final=True)
        self.shared.acknowledge_drain(self)

    def refuse_partial(self) -> None:
        for stream in list(self.core.streams.values()):
            exchange: Http2Exchange | None = stream.context
            if exchange is not None and exchange.awaits_body and not stream.remote_ended:
                exchange.refuse(503, STOPPING)

    def leave(self) -> None:
        self._leaving = True
        self.core.go_away(final=True)
        self.mark()
