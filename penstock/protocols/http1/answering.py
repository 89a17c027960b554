"""The answering side of a connection: how an answer is framed, and whether it is the last."""

from __future__ import annotations

from typing import Final

from penstock.protocols.heads import Headers
from penstock.protocols.http1.head import UNREAD, Framing
from penstock.protocols.http1.reply import (
    CLOSE,
    CONTINUE,
    KEEP_ALIVE,
    field_lines,
    reply_head,
    whole_head,
)

# The states of a connection. Plain numbers, because enum members cost too much here.
HEAD: Final = 0  # a head is to come, or has come in part
LENGTH: Final = 1  # a body of known length is coming
CHUNKS: Final = 2  # a body in chunks is coming
WHOLE: Final = 3  # the request is complete; its answer is awaited
CLOSED: Final = 4  # nothing is read any more


class Answering:
    """What answers need to know of a connection and its request in turn.

    Attributes:
        framing: what the head of the request in turn says.
        keep_alive: whether the connection stays when the current answer is out. False also when the
            client has half-closed and nothing of it is left: close as soon as no answer is open.
    """

    __slots__ = ("_awaits", "_replied", "_sends", "_state", "framing", "keep_alive")

    def __init__(self) -> None:
        self._state: int = HEAD
        self.framing: Framing = UNREAD
        self._awaits = False  # the client waits for a word before it sends the body
        self._replied = False
        self._sends: bool | None = None  # pieces as chunks, as they are, or (None) not at all
        self.keep_alive = True

    def respond(self, status: int, headers: Headers, body: bytes, close: bool = False) -> bytes:
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
        if self._state == WHOLE and self.keep_alive and self.framing.is_usual and not close:
            usual = whole_head(status, headers, len(body))
            if usual is not None:
                return usual + body
        return b"".join(self.respond_apart(status, headers, body, close))

    def respond_apart(
        self, status: int, headers: Headers, body: bytes, close: bool = False
    ) -> tuple[bytes, ...]:
        """The same with a large body left as it is, behind its head."""
        start, closes, has_body = reply_head(status, headers)
        connection = self._begin_reply(close or closes)
        if not has_body:
            return (start + connection + b"\r\n",)
        head = start + connection + b"content-length: %d\r\n\r\n" % len(body)
        return (head,) if self.framing.wants_no_body else (head, body)

    def start(self, status: int, headers: Headers) -> bytes:
        """The head of an answer of unknown length: in chunks, or up to the close for HTTP/1.0.

        Raises:
            ValueError: the status or a header cannot be sent.
        """
        start, closes, has_body = reply_head(status, headers)
        framing = self.framing
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
            return CLOSE
        return KEEP_ALIVE if self.framing.is_1_0 else b""
