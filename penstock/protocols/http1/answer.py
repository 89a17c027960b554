"""Encodes the answers of a connection, and decides whether one is the last."""

from __future__ import annotations

from functools import lru_cache
from http import HTTPStatus
from typing import Final, NamedTuple

from penstock.protocols.heads import Headers, checked
from penstock.protocols.http1.head import UNREAD, Http1RequestHead

# The states of a connection. Plain numbers, because enum members cost too much here.
HEAD: Final = 0  # a head is to come, or has come in part
LENGTH: Final = 1  # a body of known length is coming
CHUNKS: Final = 2  # a body in chunks is coming
WHOLE: Final = 3  # the request is complete; its answer is awaited
CLOSED: Final = 4  # nothing is read any more

CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
_CLOSE: Final = b"connection: close\r\n"
_KEEP_ALIVE: Final = b"connection: keep-alive\r\n"
_FRAMING: Final = (b"connection", b"content-length", b"date", b"transfer-encoding")
_REASONS: Final = {status.value: status.phrase.encode() for status in HTTPStatus}
_NO_BODY: Final = (204, 304)


class ReplyHead(NamedTuple):
    """The part of a head that depends on the application alone.

    Attributes:
        start: the status line and the fields.
        is_usual: it has a body, and lets the connection stay.
        closes: the application asks for the connection's end.
        has_body: False for a status that never has one.
    """

    start: bytes
    is_usual: bool
    closes: bool
    has_body: bool


@lru_cache(maxsize=512)
def reply_head(status: int, headers: Headers) -> ReplyHead:
    """The head of a final answer; fields that frame it are left out, for they are the connection's.

    Raises:
        ValueError: the status is not final, or a field would break the framing.
    """
    if not 200 <= status <= 999:
        raise ValueError(f"{status} is not the status of an answer")
    line = b"HTTP/1.1 %d %b\r\n" % (status, _REASONS.get(status, b""))
    fields = tuple((name, value) for name, value in headers if name not in _FRAMING)
    closes = (b"connection", b"close") in headers
    has_body = status not in _NO_BODY
    return ReplyHead(line + field_lines(fields), has_body and not closes, closes, has_body)


def field_lines(headers: Headers) -> bytes:
    """The fields as they are sent.

    Raises:
        ValueError: a name is no token in lower case, or a value has control characters in it.
    """
    return b"".join([b"%b: %b\r\n" % pair for pair in checked(headers)])


class Answering:
    """What answers need to know of a connection and its request in turn.

    Attributes:
        head: of the request in turn.
        date: the line of a field that every answer has, set by the driver; RFC 9110, 6.6.1.
        keep_alive: whether the connection stays when the current answer is out. False also when the
            client has half-closed and nothing of it is left: close as soon as no answer is open.
    """

    def __init__(self) -> None:
        self._state: int = HEAD
        self.head: Http1RequestHead = UNREAD
        self.date = b""
        self._awaits = False  # the client waits for a word before it sends the body
        self._replied = False
        self._sends: bool | None = None  # pieces as chunks, as they are, or (None) not at all
        self.keep_alive = True

    def respond(self, status: int, headers: Headers, body: bytes, close: bool = False) -> bytes:
        """The whole answer to the request in turn; arguments and errors as ``respond_apart``."""
        return b"".join(self.respond_apart(status, headers, body, close))

    def respond_apart(
        self, status: int, headers: Headers, body: bytes, close: bool = False
    ) -> tuple[bytes, ...]:
        """The whole answer to the request in turn, its body apart, so that it is not copied.

        Args:
            status: 200 or more.
            headers: names in lower case; those that frame the answer are added here. Of
                ``connection`` only ``close`` is heeded.
            body: left out for HEAD and for a status that has none.
            close: end the connection after it.

        Raises:
            ValueError: the status or a header cannot be sent.
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
        """The head of an answer of unknown length: in chunks, or up to the close for HTTP/1.0.

        Raises:
            ValueError: the status or a header cannot be sent.
        """
        start, _, closes, has_body = reply_head(status, headers)
        is_1_0 = self.head.version == "1.0"
        has_body = has_body and self.head.method != "HEAD"
        connection = self._begin_reply(closes or (has_body and is_1_0))
        self._sends = None if not has_body else not is_1_0
        coding = b"transfer-encoding: chunked\r\n" if self._sends else b""
        return b"%b%b%b%b\r\n" % (start, self.date, connection, coding)

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
        if not self._awaits or self._replied or self._state not in (LENGTH, CHUNKS):
            return b""
        self._awaits = False
        return CONTINUE

    def _begin_reply(self, close: bool) -> bytes:
        """The connection field."""
        self._replied = True
        if close or (self._awaits and self._state != WHOLE):
            # Whether a client that still awaits the word sends its body after a final answer, we
            # cannot know; so what came next could be a body or a request.
            self.keep_alive = False
        if not self.keep_alive:
            return _CLOSE
        return _KEEP_ALIVE if self.head.version == "1.0" else b""
