"""Decodes bodies with chunked transfer coding. Source: RFC 9112, 7.1."""

from __future__ import annotations

import re

from penstock.protocols.http1.head import Lines
from penstock.protocols.http1.limits import BrokenRule, Http1Limits

_MOST_EXTENSION = 256  # bytes; no extension is in use, and all are ignored
_SIZE = re.compile(rb"([0-9A-Fa-f]{1,16})(?:;[\t -~]{0,%d})?\r\n" % (_MOST_EXTENSION - 1))
_MOST_LINE = 16 + _MOST_EXTENSION + 2
_CR, _LF = b"\r\n"
_DIGITS = b"0123456789abcdefABCDEF"


class ChunkedBody:
    """The state of decoding one body.

    Args:
        limits: the connection's limits.
        at_once: maximum chunks decoded by one call; None for no maximum.

    Attributes:
        ended: the last chunk and the trailers have been decoded. Trailers are validated, then
            dropped, so that they cannot change the meaning of the request.
        unread: the last call stopped at ``at_once`` chunks.
    """

    def __init__(self, limits: Http1Limits, at_once: int | None = None) -> None:
        self._limits = limits
        self._at_once = limits.max_chunks + 1 if at_once is None else at_once
        self._chunks = 0
        self._left = 0
        self._within = False  # inside a chunk's data or the line end behind it
        self._trailers: Lines | None = None
        self.ended = False
        self.unread = False

    def take(self, buffer: bytes | bytearray, at: int, pieces: list[bytes]) -> int:
        """Decode at most ``at_once`` chunks.

        Args:
            buffer: received bytes.
            at: where the undecoded bytes begin.
            pieces: decoded data is appended to it, also before an error.

        Returns:
            Where the decoded bytes end. Pass the rest again, with more bytes behind it unless
            ``unread`` is set.

        Raises:
            BrokenRule: the chunks or trailers are malformed, or there are too many chunks.
        """
        there = len(buffer)
        stop = self._chunks + self._at_once
        self.unread = False
        while at < there and not self.ended:
            if self._left:
                piece = bytes(buffer[at : at + self._left])
                pieces.append(piece)
                at += len(piece)
                self._left -= len(piece)
                continue
            if self._within:
                taken = self._line_end(buffer, at)
            elif self._trailers is not None:
                taken = self._trailers.advance(buffer, at) or 0
                self.ended = taken > 0
            elif self._chunks == stop:
                self.unread = True
                break
            else:
                taken = self._whole(buffer, at, pieces, stop) or self._size(buffer, at)
            if not taken:
                break
            at += taken
        return at

    def _whole(self, buffer: bytes | bytearray, at: int, pieces: list[bytes], stop: int) -> int:
        """Return the length of the complete and valid chunks that follow each other."""
        begin, chunks = at, self._chunks
        stop = min(stop, self._limits.max_chunks)
        line: bytes | bytearray = b"\n"  # matches no chunk
        length = size = 0
        while chunks < stop:
            if not buffer.startswith(line, at):  # usually all chunks have one size
                match = _SIZE.match(buffer, at)
                if match is None:
                    break
                line, size = match[0], int(match[1], 16)
                length = len(line)
            end = at + length + size
            if not size or buffer[end : end + 2] != b"\r\n":
                break
            pieces.append(bytes(buffer[at + length : end]))
            at = end + 2
            chunks += 1
        self._chunks = chunks
        return at - begin

    def _line_end(self, buffer: bytes | bytearray, at: int) -> int:
        """Return the length of the line end behind a chunk's data; 0 if it is incomplete."""
        if buffer[at] != _CR or (len(buffer) > at + 1 and buffer[at + 1] != _LF):
            raise BrokenRule(400, "a chunk does not end where it should")
        if len(buffer) == at + 1:
            return 0
        self._within = False
        return 2

    def _size(self, buffer: bytes | bytearray, at: int) -> int:
        """Return the length of a chunk's first line; 0 if it is incomplete."""
        if buffer[at] not in _DIGITS:
            raise BrokenRule(400, "a chunk begins with its size in hexadecimal digits")
        end = buffer.find(b"\n", at, at + _MOST_LINE) + 1
        if not end and len(buffer) < at + _MOST_LINE:
            return 0
        match = _SIZE.fullmatch(buffer, at, end) if end else None
        if match is None:
            raise BrokenRule(400, "malformed chunk size")
        self._left = int(match[1], 16)
        if self._left:
            self._within = True
            self._chunks += 1
            if self._chunks > self._limits.max_chunks:
                text = f"more than {self._limits.max_chunks} chunks"
                raise BrokenRule(400, text, abuse="chunks")
        else:
            self._trailers = Lines(self._limits, trailers=True)
        return end - at
