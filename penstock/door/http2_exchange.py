"""A stream of HTTP/2 as a request and its answer."""

from __future__ import annotations

from functools import lru_cache
from math import inf
from typing import TYPE_CHECKING, Final

from penstock.door.exchange import WRITABLE, DoorExchange, Peer
from penstock.protocols.heads import Headers, RequestHead, checked
from penstock.protocols.http2 import ErrorCode, Stream, encode_block
from penstock.protocols.http2.stream import CLOSED

if TYPE_CHECKING:
    from penstock.door.http2_session import Http2Session

_OF_CONNECTIONS: Final = frozenset(
    {b"connection", b"keep-alive", b"transfer-encoding", b"upgrade", b"content-length"}
)
_LENGTH: Final = b"\x0f\x0d"  # content-length, a literal that enters no table, by its index


@lru_cache(maxsize=512)
def head_block(status: int, headers: Headers) -> bytes:
    """The head of an answer, as a block that is valid on every connection.

    Fields that frame it or speak of the connection are left out.

    Raises:
        ValueError: the status is not final, or a field cannot be sent.
    """
    if not 200 <= status <= 999:
        raise ValueError(f"{status} is not the status of an answer")
    fields = tuple([field for field in headers if field[0] not in _OF_CONNECTIONS])
    return encode_block([(b":status", b"%d" % status), *checked(fields)])


@lru_cache(maxsize=512)
def trailer_block(trailers: Headers) -> bytes:
    """The trailers of an answer as a block.

    Raises:
        ValueError: a field cannot be sent.
    """
    return encode_block(checked(trailers))


class Http2Exchange(DoorExchange):
    """One of the exchanges that its connection has open.

    Attributes:
        owed: bytes that came while it was paused.
    """

    __slots__ = ("_session", "_stream", "owed")

    # Made by ``begin_exchange``: this happens for every request, and a function costs less.
    __init__ = object.__init__

    owed: int
    _session: Http2Session
    _stream: Stream

    @property
    def peer(self) -> Peer:
        """See ``Exchange``."""
        return self._session.peer

    def reply(
        self,
        status: int,
        headers: Headers,
        body: bytes = b"",
        trailers: Headers = (),
        *,
        close: bool = False,
    ) -> None:
        """See ``Exchange``."""
        if self.over:
            return
        block = head_block(status, headers)
        trailing = None
        if trailers:
            trailing = trailer_block(trailers)
        elif body and status not in (204, 304):
            digits = b"%d" % len(body)
            block = b"%b%b%c%b" % (block, _LENGTH, len(digits), digits)
        if self.head.method == "HEAD":
            body = b""
        stream = self._stream
        session = self._session
        stream.context = None
        # What close() does, without the call.
        self.over = True
        shared = self.shared
        shared.calls -= 1
        self.receiver = self.on_gone = self.on_writable = self.state = None
        if self.taken:
            self.release()
        session.core.reply(stream, block, body, trailing)
        if stream.state & CLOSED != CLOSED:
            session.stop_sender(stream)
        if not session.dirty:
            session.mark()
        if not shared.calls:
            shared.flush()  # nothing can come any more that would be written together with it
            shared.rest()

    def start(self, status: int, headers: Headers) -> None:
        """See ``Exchange``."""
        if not self.over:
            self.started = True
            self._session.core.send_head(self._stream, head_block(status, headers))
            self._session.mark()

    def send(self, piece: bytes) -> None:
        """See ``Exchange``."""
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
                session.crowded.add(self)
        session.mark()

    def finish(self, trailers: Headers = ()) -> None:
        """See ``Exchange``."""
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
        """See ``Exchange``."""
        if not self.over:
            self._stream.context = None
            self.close()
            self._session.reset(self._stream, ErrorCode.INTERNAL_ERROR)

    @property
    def unsent(self) -> int:
        """See ``Exchange``; of what all streams share all of it."""
        return 0 if self.over else self._stream.queued + self._session.unsent()

    def pause(self) -> None:
        """See ``Exchange``."""
        self.paused = True

    def resume(self) -> None:
        """See ``Exchange``."""
        self.paused = False
        if not self.over:
            session = self._session
            shared = self.shared
            self.body_deadline = max(
                self.body_deadline, shared.wheel.after(shared.limits.body_timeout)
            )
            owed, self.owed = self.owed, 0
            session.core.consumed(self._stream, owed)
            session.mark()


def begin_exchange(
    session: Http2Session, stream: Stream, head: RequestHead, whole: bytes | None
) -> Http2Exchange:
    """The exchange of a request whose head has come."""
    shared = session.shared
    exchange: Http2Exchange = Http2Exchange()
    exchange.shared = shared
    exchange._budget = shared.budget
    exchange.taken = exchange.to_come = exchange.owed = 0
    exchange.head = head
    exchange.over_limit = shared.calls > shared.most_calls
    exchange.receiver = exchange.on_gone = exchange.on_writable = exchange.state = None
    exchange.over = exchange.started = exchange.paused = False
    exchange._session = session
    exchange._stream = stream
    exchange.whole = whole
    exchange.body_deadline = inf if whole is not None else shared.wheel.now + shared.body_time
    stream.context = exchange
    return exchange
