"""One HTTP/1.1 connection as a server sees it: requests in their order, one in turn at a time.

Decides where a request begins and ends, what is refused, whether the connection stays, and how an
answer is framed. Must not know sockets, time, routes or what a body means.

Guarantees: events do not depend on how the bytes were chopped (but for the number of a body's
pieces); nothing of a later request is interpreted before ``next``; after a failure, and behind a
request that closes the connection, nothing is interpreted at all; the cost is linear in the bytes,
and the memory is bounded by the limits and one read. Source: RFC 9112.
"""

from __future__ import annotations

from typing import Final

from penstock.protocols.heads import Headers
from penstock.protocols.http1.chunks import ChunkedBody
from penstock.protocols.http1.events import Event, Http1Data, Http1Failed
from penstock.protocols.http1.head import UNREAD, Framing, HeadMemo, parse_head
from penstock.protocols.http1.limits import BrokenRule, Http1Limits
from penstock.protocols.http1.lines import HeadLines
from penstock.protocols.http1.reply import CLOSE, CONTINUE, KEEP_ALIVE, field_lines, reply_head

# Plain numbers, because enum members cost too much here.
_HEAD: Final = 0  # a head is to come, or has come in part
_LENGTH: Final = 1  # a body of known length is coming
_CHUNKS: Final = 2  # a body in chunks is coming
_WHOLE: Final = 3  # the request is complete; its answer is awaited
_CLOSED: Final = 4  # nothing is read any more
_STATES = ("head", "length", "chunks", "whole", "closed")


class Http1Connection:
    """The state of one connection.

    Args:
        limits: what a client may send.
        memo: shared by connections with the same limits.

    Attributes:
        keep_alive: whether the connection stays when the current answer is out. False also when the
            client has half-closed and nothing of it is left: close as soon as no answer is open.

    Thread: one.
    """

    __slots__ = (
        "_at",
        "_awaits",
        "_blank",
        "_buffer",
        "_chunks",
        "_discards",
        "_ended",
        "_framing",
        "_known",
        "_left",
        "_limits",
        "_lines",
        "_memo",
        "_replied",
        "_sends",
        "_state",
        "keep_alive",
    )

    def __init__(self, limits: Http1Limits, memo: HeadMemo) -> None:
        self._limits = limits
        self._memo = memo
        self._known = memo.known
        self._state: int = _HEAD
        self._buffer: bytes | bytearray = b""  # what has come and is not taken begins at _at
        self._at = 0
        self._blank = False  # the empty line that may precede a head has been passed over
        self._lines: HeadLines | None = None  # how far a head that came in part was looked at
        self._framing: Framing = UNREAD
        self._left = 0
        self._chunks: ChunkedBody | None = None
        self._awaits = False
        self._discards = False  # the answer is out and the rest of the body is nobody's
        self._replied = False
        self._sends: bool | None = None  # pieces as chunks, as they are, or (None) not at all
        self._ended = False
        self.keep_alive = True

    def __repr__(self) -> str:
        kept = len(self._buffer) - self._at
        return f"<Http1Connection {_STATES[self._state]} kept={kept} keep_alive={self.keep_alive}>"

    @property
    def idle(self) -> bool:
        """No request is open and nothing of the next one has come."""
        return self._state == _HEAD and not self._buffer

    @property
    def body_ended(self) -> bool:
        """The request in turn has come as a whole."""
        return self._state == _WHOLE

    @property
    def wants_data(self) -> bool:
        """False when enough waits already: stop reading until ``next``."""
        kept = len(self._buffer) - self._at
        return self._state != _WHOLE or kept < self._limits.max_kept_bytes

    def receive(self, data: bytes) -> list[Event]:
        """What these bytes say. Never raises; see ``Http1Failed``.

        Bound: O(len(data)); at most one ``Http1Data`` per call and request.
        """
        state = self._state
        if state == _HEAD and not self._buffer:
            end = data.find(b"\r\n\r\n") + 4
            framing = self._known.get(data[:end]) or self._learn(data[:end])
            if framing is not None and framing.body_length == len(data) - end:
                self._framing = framing
                self.keep_alive = framing.keep_alive
                self._state = _WHOLE
                if framing.body_length:
                    return [framing.event, Http1Data(data[end:], True)]
                return [framing.event]
        elif state == _LENGTH and len(data) < self._left:
            self._left -= len(data)
            self._awaits = False
            return [] if self._discards or not data else [Http1Data(data, False)]
        elif state == _CLOSED or (state == _WHOLE and not self.keep_alive):
            return []
        self._keep(data)
        return [] if state == _WHOLE else self._advance()

    def eof(self) -> list[Event]:
        """The client will send no more. What is complete is answered still."""
        self._ended = True
        if self._state == _CLOSED:
            return []
        if self._state == _WHOLE:
            self.keep_alive = self.keep_alive and bool(self._buffer)
            return []
        return self._cut_short()

    def next(self) -> list[Event]:
        """The answer is out: the events of the next request, as far as it has come.

        If the answer came before the end of its request, the rest of that is dropped as it comes.
        """
        if not self.keep_alive or self._state == _CLOSED:
            self._close()
            return []
        if self._state != _WHOLE:
            self._discards = True
            return []
        self._state = _HEAD
        self._replied = self._blank = False
        if not self._buffer and not self._ended:
            return []
        return self._advance()

    def respond(self, status: int, headers: Headers, body: bytes, *, close: bool = False) -> bytes:
        """The whole answer to the request in turn.

        Args:
            status: 200 or more.
            headers: names in lower case; those that frame the answer are added here. Of
                ``connection`` only ``close`` is heeded.
            body: left out for HEAD and for a status that has none.
            close: end the connection after it.

        Raises:
            ValueError: the status or a header cannot be sent.
        """
        start, closes, has_body = reply_head(status, headers)
        connection = self._begin_reply(close or closes)
        if not has_body:
            return start + connection + b"\r\n"
        head = start + connection + b"content-length: %d\r\n\r\n" % len(body)
        return head if self._framing.wants_no_body else head + body

    def start(self, status: int, headers: Headers) -> bytes:
        """The head of an answer of unknown length: in chunks, or up to the close for HTTP/1.0.

        Raises:
            ValueError: the status or a header cannot be sent.
        """
        start, closes, has_body = reply_head(status, headers)
        framing = self._framing
        has_body = has_body and not framing.wants_no_body
        connection = self._begin_reply(closes or (has_body and framing.is_1_0))
        self._sends = None if not has_body else not framing.is_1_0
        coding = b"transfer-encoding: chunked\r\n" if self._sends else b""
        return b"%b%b%b\r\n" % (start, connection, coding)

    def chunk(self, piece: bytes) -> bytes:
        """A piece of an answer that was started."""
        if self._sends is None or not piece:
            return b""
        return b"%x\r\n%b\r\n" % (len(piece), piece) if self._sends else piece

    def finish(self, trailers: Headers = ()) -> bytes:
        """The end of an answer that was started.

        Raises:
            ValueError: a trailer cannot be sent.
        """
        return b"0\r\n%b\r\n" % field_lines(trailers) if self._sends else b""

    def proceed(self) -> bytes:
        """``100 Continue`` if the client waits for it, once; else nothing."""
        if not self._awaits or self._replied or self._state not in (_LENGTH, _CHUNKS):
            return b""
        self._awaits = False
        return CONTINUE

    def _begin_reply(self, close: bool) -> bytes:
        """The connection field."""
        self._replied = True
        if close or (self._awaits and self._state != _WHOLE):
            # Whether a client that still awaits the word sends its body after a final answer, we
            # cannot know; so what came next could be a body or a request.
            self.keep_alive = False
        if not self.keep_alive:
            return CLOSE
        return KEEP_ALIVE if self._framing.is_1_0 else b""

    def _keep(self, data: bytes) -> None:
        """Put data behind what is there; what was taken goes away."""
        if self._at >= len(self._buffer):
            self._buffer = data
        else:
            if isinstance(self._buffer, bytes):
                self._buffer = bytearray(self._buffer[self._at :])
            else:
                del self._buffer[: self._at]
            self._buffer += data
        self._at = 0

    def _advance(self) -> list[Event]:
        """Read on until the request is complete or the bytes are used up."""
        events: list[Event] = []
        try:
            while self._step(events):
                pass
        except BrokenRule as rule:
            return [*events, self._fail(rule.status, rule.text)]
        if self._at >= len(self._buffer):
            self._buffer = b""
            self._at = 0
        elif self._at and self._state != _WHOLE:
            # Not while requests wait in line: for each of them the others would be copied.
            self._buffer = bytearray(self._buffer[self._at :])
            self._at = 0
        if self._ended and self._state != _WHOLE:
            return [*events, *self._cut_short()]
        return events

    def _step(self, events: list[Event]) -> bool:
        """Take what can be taken in this state; whether the state has changed and there is more."""
        before = self._state
        if before == _HEAD:
            framing = self._head()
            if framing is None:
                return False
            self._begin(framing)
            events.append(framing.event)
        elif before == _LENGTH:
            piece = bytes(self._buffer[self._at : self._at + self._left])
            self._at += len(piece)
            self._left -= len(piece)
            self._data(piece, not self._left, events)
        else:
            assert self._chunks is not None
            pieces: list[bytes] = []
            try:
                self._at = self._chunks.take(self._buffer, self._at, pieces)
            except BrokenRule:
                self._data(b"".join(pieces), False, events)
                raise
            self._data(b"".join(pieces), self._chunks.ended, events)
        return self._state not in (before, _WHOLE) and self._at < len(self._buffer)

    def _head(self) -> Framing | None:
        """The head that begins here; None while it is not whole."""
        buffer, at = self._buffer, self._at
        if self._lines is None:
            if not self._blank and buffer.startswith(b"\r\n", at):
                self._blank = True
                self._at = at = at + 2
            if at >= len(buffer) or (not self._blank and buffer[at:] == b"\r"):
                return None
            most = self._limits.max_request_line + self._limits.max_header_bytes + 2
            end = buffer.find(b"\r\n\r\n", at, at + most)
            if end >= 0:
                return self._read_head(bytes(buffer[at : end + 4]))
            self._lines = HeadLines(self._limits)
        whole = self._lines.advance(buffer, at)
        return None if whole is None else self._read_head(bytes(buffer[at : at + whole]))

    def _learn(self, raw: bytes) -> Framing | None:
        """A head that came in one read; None for any that needs a closer look."""
        if not 4 <= len(raw) <= HeadMemo.MOST_BYTES:
            return None
        try:
            framing = parse_head(raw, self._limits)
        except BrokenRule:
            return None
        self._memo.keep(raw, framing)
        return framing

    def _read_head(self, raw: bytes) -> Framing:
        framing = self._known.get(raw)
        if framing is None:
            framing = parse_head(raw, self._limits)
            self._memo.keep(raw, framing)
        self._at += len(raw)
        self._lines = None
        self._blank = False
        return framing

    def _begin(self, framing: Framing) -> None:
        self._framing = framing
        self.keep_alive = framing.keep_alive
        self._awaits = framing.awaits_continue
        if framing.body_length is None:
            self._chunks = ChunkedBody(self._limits)
            self._state = _CHUNKS
        elif framing.body_length:
            self._left = framing.body_length
            self._state = _LENGTH
        else:
            self._complete()

    def _data(self, piece: bytes, ended: bool, events: list[Event]) -> None:
        if piece:
            self._awaits = False
        if (piece or ended) and not self._discards:
            events.append(Http1Data(piece, ended))
        if ended:
            self._complete()

    def _complete(self) -> None:
        """The request has come as a whole."""
        self._chunks = None
        if self._discards:
            self._discards = self._replied = False
            self._state = _HEAD
            return
        self._state = _WHOLE
        if not self.keep_alive:
            self._at = len(self._buffer)

    def _cut_short(self) -> list[Event]:
        """The client has ended and the request is not complete, or not even begun."""
        if self.idle:
            self._close()
            return []
        return [self._fail(400, "the request is cut short")]

    def _fail(self, status: int, text: str) -> Http1Failed:
        if self._state == _HEAD:
            self._framing = UNREAD
        self._close()
        return Http1Failed(status, text, self._replied)

    def _close(self) -> None:
        self._state = _CLOSED
        self.keep_alive = False
        self._buffer = b""
        self._at = 0
        self._lines = None
        self._chunks = None
