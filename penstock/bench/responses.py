"""Parses HTTP/1.1 responses on one connection, one at a time. Pure.

The server under test is trusted: an invalid response is only a failure of its request.
Source: RFC 9112.
"""

from __future__ import annotations

from typing import NamedTuple

from penstock.client.http_answer import BrokenAnswer, new_chunks, read_head
from penstock.protocols.http1.chunks import ChunkedBody
from penstock.protocols.http1.limits import BrokenRule


class Response(NamedTuple):
    """A whole answer; ``reusable``: the connection stays open for another request."""

    status: int
    body: bytes
    reusable: bool


class ResponseReader:
    """Decodes the answers of one connection."""

    def __init__(self) -> None:
        self._clear()

    def _clear(self) -> None:
        self._buffer: bytes | bytearray = b""
        self._status = 0
        self._size: int | None = None  # bytes of head and body
        self._begin = 0
        self._reusable = True
        self._chunks: ChunkedBody | None = None
        self._pieces: list[bytes] = []

    def receive(self, data: bytes) -> Response | None:
        """Process received bytes; return the answer when it is complete.

        Raises:
            BrokenAnswer: the bytes are not an answer.
        """
        if not self._buffer:
            self._buffer = data
        else:
            if isinstance(self._buffer, bytes):
                self._buffer = bytearray(self._buffer)
            self._buffer += data
        while not self._status:
            if not self._head():
                return None
        if self._chunks is not None:
            return self._chunked(self._chunks)
        if self._size is None or len(self._buffer) < self._size:
            return None
        return self._whole(self._reusable and len(self._buffer) == self._size)

    def eof(self) -> Response | None:
        """Process the end of input; return the answer, if it ends by that."""
        if self._status and self._size is None and self._chunks is None:
            self._size = len(self._buffer)
            return self._whole(reusable=False)
        return None

    def _head(self) -> bool:
        """Parse a head; False while it is incomplete. Interim responses are skipped."""
        head = read_head(self._buffer)
        if head is None:
            return False
        if head.status < 200:
            self._buffer = self._buffer[head.size :]
            return bool(self._buffer)
        self._status, self._begin, self._reusable = head.status, head.size, head.reusable
        if head.length is not None:
            self._size = head.size + head.length
        elif head.chunked:
            self._chunks = new_chunks()
            self._buffer = self._buffer[head.size :]
        return True

    def _chunked(self, chunks: ChunkedBody) -> Response | None:
        try:
            taken = chunks.take(self._buffer, 0, self._pieces)
        except BrokenRule as broken:
            raise BrokenAnswer(broken.text) from None
        self._buffer = self._buffer[taken:]
        if not chunks.ended:
            return None
        found = Response(self._status, b"".join(self._pieces), self._reusable and not self._buffer)
        self._clear()
        return found

    def _whole(self, reusable: bool) -> Response:
        found = Response(self._status, bytes(self._buffer[self._begin : self._size]), reusable)
        self._clear()
        return found
