"""Encodes the answers of a connection, and decides whether one is the last."""

from __future__ import annotations

from functools import lru_cache
from http import HTTPStatus
from typing import Final, NamedTuple

from penstock.protocols.heads import Headers, checked
from penstock.protocols.http1.head import UNREAD, Http1RequestHead

# The states of a connection. Plain numbers, because enum members cost too much here.
HEAD: Final = 0  # awaiting a head, or the rest of it
LENGTH: Final = 1  # receiving a body of known length
CHUNKS: Final = 2  # receiving a body in chunks
WHOLE: Final = 3  # the request is complete; awaiting its answer
CLOSED: Final = 4  # further input is ignored

CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
_CLOSE: Final = b"connection: close\r\n"
_KEEP_ALIVE: Final = b"connection: keep-alive\r\n"
_FRAMING: Final = (b"connection", b"content-length", b"date", b"transfer-encoding")
_REASONS: Final = {status.value: status.phrase.encode() for status in HTTPStatus}
_NO_BODY: Final = (204, 304)


class ReplyHead(NamedTuple):
    """The part of a head that depends on the application only.

    Attributes:
        start: the status line and the fields.
        is_usual: the answer has a body, and keeps the connection open.
        closes: the application asks to close the connection.
        has_body: False for a status that never has a body.
    """

    start: bytes
    is_usual: bool
    closes: bool
    has_body: bool


@lru_cache(maxsize=512)
def reply_head(status: int, headers: Headers) -> ReplyHead:
    """Encode the head of a final answer, without framing fields, which the connection adds.

    Raises:
        ValueError: the status is not final, or a field is invalid.
    """
    if not 200 <= status <= 999:
        raise ValueError(f"{status} is not the status of an answer")
    line = b"HTTP/1.1 %d %b\r\n" % (status, _REASONS.get(status, b""))
    fields = tuple((name, value) for name, value in headers if name not in _FRAMING)
    closes = (b"connection", b"close") in headers
    has_body = status not in _NO_BODY
    return ReplyHead(line + field_lines(fields), has_body and not closes, closes, has_body)


def field_lines(headers: Headers) -> bytes:
    """Encode header fields.

    Raises:
        ValueError: a name is not a lower-case token, or a value has control characters.
    """
    return b"".join([b"%b: %b\r\n" % pair for pair in checked(headers)])


class Answering:
    """The state of a connection that its answers depend on.

    Attributes:
        head: head of the current request.
        date: the ``date`` field's line, set by the driver; RFC 9110, 6.6.1.
        keep_alive: whether the connection stays open after the current answer. Also False if the
            client has half-closed and no further request was received.
    """

    def __init__(self) -> None:
        self._state: int = HEAD
        self.head: Http1RequestHead = UNREAD
        self.date = b""
        self._awaits = False  # the client may wait for 100 Continue
        self._replied = False
        self._sends: bool | None = None  # pieces: True as chunks, False as they are, None dropped
        self.keep_alive = True

    def respond(self, status: int, headers: Headers, body: bytes, close: bool = False) -> bytes:
        """Encode the whole answer to the current request; see ``respond_apart``."""
        return b"".join(self.respond_apart(status, headers, body, close))

    def respond_apart(
        self, status: int, headers: Headers, body: bytes, close: bool = False
    ) -> tuple[bytes, ...]:
        """Encode the whole answer to the current request, without copying its body.

        Args:
            status: 200 or more.
            headers: names in lower case. Framing fields are replaced; ``connection`` has an effect
                only with ``close``.
            body: omitted for HEAD and for a status without a body.
            close: close the connection after the answer.

        Raises:
            ValueError: the status or a header is invalid.
        """
        start, _, closes, has_body = reply_head(status, headers)
        connection = self._begin_reply(close or closes)
        if not has_body:
            return (b"%b%b%b\r\n" % (start, self.date, connection),)
        head = b"%b%b%bcontent-length: %d\r\n\r\n" % (
            start,
            self.date,
            connection,
            len(body),
        )
        return (head,) if self.head.method == "HEAD" else (head, body)

    def start(self, status: int, headers: Headers) -> bytes:
        """Encode the head of an answer of unknown length: chunked, or until close for HTTP/1.0.

        Raises:
            ValueError: the status or a header is invalid.
        """
        start, _, closes, has_body = reply_head(status, headers)
        is_1_0 = self.head.version == "1.0"
        has_body = has_body and self.head.method != "HEAD"
        connection = self._begin_reply(closes or (has_body and is_1_0))
        self._sends = None if not has_body else not is_1_0
        coding = b"transfer-encoding: chunked\r\n" if self._sends else b""
        return b"%b%b%b%b\r\n" % (start, self.date, connection, coding)

    def chunk(self, piece: bytes) -> bytes:
        """Encode a piece of a started answer."""
        if self._sends is None or not piece:
            return b""
        return b"%x\r\n%b\r\n" % (len(piece), piece) if self._sends else piece

    def finish(self, trailers: Headers = ()) -> bytes:
        """Encode the end of a started answer.

        Raises:
            ValueError: a trailer is invalid.
        """
        return b"0\r\n%b\r\n" % field_lines(trailers) if self._sends else b""

    def proceed(self) -> bytes:
        """Return ``100 Continue`` if the client may wait for it, once; else nothing."""
        if not self._awaits or self._replied or self._state not in (LENGTH, CHUNKS):
            return b""
        self._awaits = False
        return CONTINUE

    def _begin_reply(self, close: bool) -> bytes:
        """Return the line of the ``connection`` field."""
        self._replied = True
        if close or (self._awaits and self._state != WHOLE):
            # After a final answer, a client that awaited 100 Continue may or may not send its body,
            # so the next bytes could be a body or a request.
            self.keep_alive = False
        if not self.keep_alive:
            return _CLOSE
        return _KEEP_ALIVE if self.head.version == "1.0" else b""
