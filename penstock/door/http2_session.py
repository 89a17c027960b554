"""HTTP/2 on one connection of a door: streams of the core to the application, answers back.

Nothing is kept per request beside its exchange, which is the stream's context; what takes too long
is found by a look at the open streams once a second.
"""

from __future__ import annotations

import asyncio
from typing import Final

from penstock.door.connection import NEVER, Connection
from penstock.door.exchange import STOPPING, WRITABLE, guarded, log_fault
from penstock.door.http2_backlog import SLICE, Behind
from penstock.door.http2_exchange import Http2Exchange, begin_exchange, head_block
from penstock.door.http2_readers import Readers
from penstock.door.state import DoorState
from penstock.protocols.heads import HTTP_2, RequestHead
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
)
from penstock.protocols.http2.stream import CLOSED

__all__ = ["Http2Exchange", "Http2Session"]

_PING: Final = b"penstock"

_BULK: Final = 64 << 10
"""Bytes of long pieces from which on the output is not joined to be written."""


class Http2Session(Connection):
    """A connection that speaks HTTP/2.

    Attributes:
        core: the protocol.
        fresh: bytes of streamed answers that were let out since the last flush.
        crowded: exchanges whose applications are told when there is room again.
    """

    __slots__ = (
        "_behind",
        "_draining",
        "_idle_since",
        "_leaving",
        "_readers",
        "_refill_at",
        "_unfinished",
        "_unfinished_since",
        "core",
        "crowded",
        "fresh",
    )

    def __init__(self, shared: DoorState, transport: asyncio.Transport) -> None:
        super().__init__(shared, transport)
        limits = shared.limits.http2
        self.core = Http2Connection(Role.SERVER, limits)
        self.fresh = 0
        self.crowded: set[Http2Exchange] = set()
        self.due = shared.wheel.after(shared.period)
        self._readers = Readers(shared.limits)
        self._idle_since = shared.wheel.now
        self._refill_at = 0.0
        self._unfinished: object | None = None
        self._unfinished_since = NEVER
        self._draining = False
        self._leaving = False
        self._behind = Behind(self)

    # Input.

    def data_received(self, data: bytes) -> None:
        """See ``asyncio.Protocol``; nothing means to go on with what was read before."""
        if self.closing:
            return
        self.dirty = True
        core = self.core
        try:
            # All in one frame, for speed.
            events = core.receive(data, SLICE) if data else self._behind.events()
            for event in self._behind.turn(events) if core.behind else events:
                if type(event) is DataReceived:
                    stream = event.stream
                    exchange: Http2Exchange | None = stream.context
                    if exchange is None or exchange.receiver is None:
                        core.consumed(stream, event.counted)
                        continue
                    if not event.ended:
                        exchange.body_deadline += event.counted / self.shared.limits.body_pace
                    try:
                        exchange.receiver.data(exchange, event.data, event.ended)
                    except Exception:  # noqa: BLE001 - this request fails by it, and no other
                        self._fail(exchange, stream)
                    if exchange.paused:
                        exchange.owed += event.counted
                    elif event.ended and event.counted <= core.small:
                        pass  # the stream gives it back when it is closed, which costs nothing
                    elif stream.state & CLOSED != CLOSED:
                        core.consumed(stream, event.counted)
                elif type(event) is HeadReceived:
                    self._begin(event)
                else:
                    self._take(event)
        except Exception:  # noqa: BLE001 - nothing but this connection ends by it
            self.broken()
        self.flush()

    def wants_data(self) -> bool:
        """See ``Connection``."""
        return not self.lagging and not self.core.behind

    def _begin(self, event: HeadReceived) -> None:
        shared = self.shared
        stream = event.stream
        if self.counted > shared.limits.max_unsent:
            shared.counters.streams_refused += 1
            self.core.reset(stream, ErrorCode.REFUSED_STREAM)
            return
        shared.counters.requests += 1
        shared.calls += 1
        whole = event.data if event.ended else None
        exchange = begin_exchange(self, stream, event.head, whole)  # type: ignore[arg-type]
        try:
            receiver = shared.application.begin(exchange)
            if receiver is None or exchange.over:
                return
            exchange.receiver = receiver
            if whole is not None:
                receiver.data(exchange, whole, True)
        except Exception:  # noqa: BLE001 - this request fails by it, and no other
            self._fail(exchange, stream)

    def _take(self, event: Event) -> None:
        """Events that are not in every request."""
        if isinstance(event, TrailersReceived):
            exchange = event.stream.context
            if exchange is not None and exchange.receiver is not None:
                try:
                    exchange.receiver.data(exchange, b"", True)
                except Exception:  # noqa: BLE001 - this request fails by it, and no other
                    self._fail(exchange, event.stream)
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
            self.core.go_away(final=True)

    def _refuse_head(self, event: HeadTooLarge) -> None:
        """Answer a request whose head was not taken."""
        self.shared.counters.heads_too_large += 1
        headers = tuple([field for field in event.fields if field[0][:1] != b":"])
        head = RequestHead("", b"", headers, version=HTTP_2, authority=b"", content_length=None)
        reply = self.shared.failure(head, 431, "the header fields are too large")
        self.core.reply(event.stream, head_block(reply.status, reply.headers), reply.body)
        if not event.stream.closed:
            self.stop_sender(event.stream)

    def _lose(self, stream: Stream) -> None:
        exchange: Http2Exchange | None = stream.context
        stream.context = None
        if exchange is not None and not exchange.over:
            self.shared.counters.gone += 1
            exchange.leave()

    # Output.

    def flush(self) -> None:
        """See ``Connection``."""
        try:
            self._write()
            if self.crowded and not self.lagging:
                self._tell_of_room()
            if self.core.behind and not self.closing:
                self._behind.wait()
            if self._leaving and not self.core.streams:
                self.end(linger=True)
        except Exception:  # noqa: BLE001 - nothing but this connection ends by it
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
        """See ``Connection``; of answers behind closed windows the older ones are kept."""
        budget = self.shared.budget
        blocked = [stream for stream in self.core.streams.values() if stream.queued]
        most = self.counted // 2
        # Not the first: an answer alone may be larger than everything that is allowed.
        for stream in reversed(blocked[1:]):
            self._give_up(stream, ErrorCode.ENHANCE_YOUR_CALM)
            self.count()
            if self.counted <= most or budget.there <= budget.limit:
                return
        if self.counted > most:
            super().give_up()

    def _give_up(self, stream: Stream, code: ErrorCode) -> None:
        exchange: Http2Exchange | None = stream.context
        self.reset(stream, code)
        if exchange is not None:
            exchange.leave()

    def _tell_of_room(self) -> None:
        for exchange in [one for one in self.crowded if one.over or one.unsent <= WRITABLE]:
            self.crowded.discard(exchange)
            exchange.check_writable()

    def pending(self) -> int:
        """See ``Connection``."""
        return self.core.queued

    def held(self) -> int:
        """See ``Connection``."""
        return self.core.held

    def unsent(self) -> int:
        """Bytes that wait for the client to read, whatever its windows say."""
        waiting = self.fresh
        return waiting + self.waiting() if self.lagging else waiting

    def stop_sender(self, stream: Stream) -> None:
        """The answer is complete and the request is not: ask for no more of it."""
        if not stream.remote_ended and stream.outbox is None:
            self.core.reset(stream, ErrorCode.NO_ERROR)

    def reset(self, stream: Stream, code: ErrorCode) -> None:
        """End a stream."""
        stream.context = None
        self.core.reset(stream, code)
        self.mark()

    # What takes too long.

    def check(self, now: float) -> None:
        """See ``Connection``."""
        self.due = now + self.shared.period
        core = self.core
        if now >= self._refill_at:
            # Not at every look, which short limits make more frequent.
            self._refill_at = now + 1.0
            core.refill()
        if self._draining:
            core.go_away(final=True)
            self._leaving = True
        elif self.shared.draining:
            self.drain()
        if core.behind:  # what it waits for may have come
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
            for stream in self._readers.late(blocked, now):
                self.shared.counters.stalled += 1
                self._give_up(stream, ErrorCode.CANCEL)
            for stream in list(core.streams.values()):
                self._check_stream(stream, now)
        elif now - self._idle_since > self.shared.limits.http2_idle:
            self.shared.counters.idle += 1
            core.go_away(final=True)
            self._leaving = True
        self.mark()

    def _check_stream(self, stream: Stream, now: float) -> None:
        exchange: Http2Exchange | None = stream.context
        if exchange is None and not stream.queued:
            self.stop_sender(stream)
        if (
            exchange is not None
            and now >= exchange.body_deadline
            and not exchange.paused
            and not stream.remote_ended
        ):
            self._late(exchange, stream)

    def _late(self, exchange: Http2Exchange, stream: Stream) -> None:
        self.shared.counters.bodies_late += 1
        if exchange.receiver is not None:
            guarded(exchange.receiver.late, exchange)
        if not exchange.over:
            self._end_exchange(exchange, stream, 408, "the request took too long to arrive")

    def _fail(self, exchange: Http2Exchange, stream: Stream) -> None:
        """The exception that is being handled ends this exchange."""
        log_fault()
        self.shared.counters.errors += 1
        if not exchange.over:
            self._end_exchange(exchange, stream, 500, "internal error")

    def _end_exchange(
        self, exchange: Http2Exchange, stream: Stream, status: int, text: str
    ) -> None:
        exchange.leave()
        stream.context = None
        if exchange.started:
            self.reset(stream, ErrorCode.INTERNAL_ERROR)
            return
        reply = self.shared.failure(exchange.head, status, text)
        self.core.reply(stream, head_block(reply.status, reply.headers), reply.body)
        if not stream.closed:
            self.stop_sender(stream)
        self.mark()

    # The end.

    def eof_received(self) -> bool:
        """A client that sends nothing more can read nothing more: windows would never open."""
        return False

    def gone(self) -> None:
        """See ``Connection``."""
        self.crowded.clear()
        self._behind.drop()
        for stream in list(self.core.streams.values()):
            self._lose(stream)

    def drain(self) -> None:
        """Say that no new streams are taken, at first without naming the last one."""
        if not self._draining:
            self._draining = True
            self.core.go_away(final=False)
            self.core.ping(_PING)
            self.mark()

    def refuse_partial(self) -> None:
        """See ``Connection``."""
        for stream in list(self.core.streams.values()):
            exchange: Http2Exchange | None = stream.context
            if exchange is not None and exchange.awaits_body and not stream.remote_ended:
                self._end_exchange(exchange, stream, 503, STOPPING)

    def leave(self) -> None:
        """See ``Connection``."""
        self._leaving = True
        self.core.go_away(final=True)
        self.mark()
