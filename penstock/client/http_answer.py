"""Decodes an HTTP/1.1 answer: its head, and its body as it arrives. Pure.

The server is not trusted: bytes that are no answer, and a body that ends before its announced end,
are errors. Source: RFC 9112.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from penstock.protocols.http1 import Http1Limits
from penstock.protocols.http1.chunks import ChunkedBody
from penstock.protocols.http1.limits import BrokenRule

_STATUS: Final = re.compile(rb"HTTP/1\.([01]) ([1-5][0-9][0-9])(?: |\r)")
_LENGTHS: Final = re.compile(rb"\r\ncontent-length:[ \t]*([^\r]*?)[ \t]*(?=\r\n)", re.IGNORECASE)
_LENGTH: Final = re.compile(rb"[0-9]{1,18}")
_CHUNKED: Final = re.compile(rb"\r\ntransfer-encoding:[ \t]*chunked[ \t]*\r\n", re.IGNORECASE)
_CLOSES: Final = re.compile(rb"\r\nconnection:[^\r]*\bclose\b", re.IGNORECASE)
_MOST_HEAD: Final = 64 << 10
_LIMITS: Final = Http1Limits(max_chunks=1 << 60)


class BrokenAnswer(Exception):
    """The received bytes are not an HTTP/1.1 answer, or not a whole one."""


class AnswerHead(NamedTuple):
    """The head of an answer.

    Attributes:
        status: at least 200.
        length: bytes of the body; None: it is chunked, or ends with the connection.
        chunked: whether the body is chunked.
        reusable: the connection stays open for another request, if the body does not end with it.
        raw: its bytes, without the last line end.
        size: bytes of it in the buffer.
    """

    status: int
    length: int | None
    chunked: bool
    reusable: bool
    raw: bytes
    size: int

    def field(self, name: str) -> str:
        """The value of a header field; empty if there is none."""
        pattern = rb"\r\n" + re.escape(name.encode()) + rb":[ \t]*([^\r\n]*?)[ \t]*\r\n"
        found = re.search(pattern, self.raw, re.IGNORECASE)
        return found[1].decode("latin-1") if found else ""


def read_head(buffer: bytes | bytearray) -> AnswerHead | None:
    """Read the head at the begin of the received bytes; None while it is incomplete.

    The status may be that of an interim response (100 to 199), which another head follows.

    Raises:
        BrokenAnswer: it is none.
    """
    end = buffer.find(b"\r\n\r\n") + 4
    if end < 4:
        if len(buffer) > _MOST_HEAD:
            raise BrokenAnswer("the head is too long")
        return None
    head = bytes(buffer[: end - 2])
    match = _STATUS.match(head)
    if match is None:
        raise BrokenAnswer(f"it begins with {head[:40]!r}")
    status = int(match[2])
    lengths = {*_LENGTHS.findall(head)}
    if len(lengths) > 1 or not all(map(_LENGTH.fullmatch, lengths)):
        raise BrokenAnswer("its body has no length that could be")
    size = int(lengths.pop()) if lengths else 0 if status in (204, 304) else None
    chunked = size is None and _CHUNKED.search(head) is not None
    reusable = match[1] == b"1" and _CLOSES.search(head) is None
    return AnswerHead(status, size, chunked, reusable, head, end)


def new_chunks() -> ChunkedBody:
    """A decoder of a chunked body of any length."""
    return ChunkedBody(_LIMITS)


class AnswerReader:
    """Decodes one answer whose body is used as it arrives.

    Attributes:
        head: None until it is complete.
        ended: the body is complete.
        surplus: bytes have arrived behind its end, so that the connection must not be used again.
    """

    def __init__(self) -> None:
        self.head: AnswerHead | None = None
        self.ended = self.surplus = False
        self._buffer = b""
        self._chunks: ChunkedBody | None = None
        self._left: int | None = None

    def receive(self, data: bytes) -> list[bytes]:
        """Process received bytes; return the parts of the body in them.

        Raises:
            BrokenAnswer: the bytes are not an answer.
        """
        if self._buffer:
            data = self._buffer + data
            self._buffer = b""
        while self.head is None:
            head = read_head(data)
            if head is None:
                self._buffer = data
                return []
            data = data[head.size :]
            if head.status >= 200:
                self.head = head
                self._left = head.length
                self._chunks = new_chunks() if head.chunked else None
        if self.ended and data:
            raise BrokenAnswer("there are bytes behind its end")
        return self._body(data)

    def eof(self) -> None:
        """Process the end of the connection.

        Raises:
            BrokenAnswer: the answer is not complete.
        """
        if not self.ended and (self.head is None or not self.ends_with_connection):
            raise BrokenAnswer("it was cut off")
        self.ended = True

    @property
    def ends_with_connection(self) -> bool:
        """Whether a truncated body looks like a complete one."""
        return self._left is None and self._chunks is None

    def _body(self, data: bytes) -> list[bytes]:
        if self._chunks is not None:
            parts: list[bytes] = []
            try:
                taken = self._chunks.take(data, 0, parts)
            except BrokenRule as broken:
                raise BrokenAnswer(broken.text) from None
            self.ended = self._chunks.ended
            self.surplus = self.ended and taken < len(data)
            self._buffer = b"" if self.ended else data[taken:]
            return parts
        if self._left is not None:
            self.surplus = len(data) > self._left
            data = data[: self._left]
            self._left -= len(data)
            self.ended = not self._left
        return [data] if data else []
