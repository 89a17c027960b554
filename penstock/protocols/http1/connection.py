"""The server's state machine of one HTTP/1.1 connection: requests in order, one at a time.

Decides where a request begins and ends, what is refused, and whether the connection stays open. No
sockets, time or routes; bodies are not interpreted.

Guarantees: events do not depend on the boundaries of reads (except for the pieces of a body); a
later request is not interpreted before ``next``; nothing is interpreted after a failure, or behind
a request that closes the connection; the cost is linear in the bytes, and can be bounded for each
call; memory is bounded by the limits and one read.
Source: RFC 9112.
"""

from __future__ import annotations

from typing import Final

from penstock.protocols.heads import Headers
from penstock.protocols.http1.answer import (
    CHUNKS,
    CLOSED,
    HEAD,
    LENGTH,
    WHOLE,
    Answering,
    reply_head,
)
from penstock.protocols.http1.chunks import ChunkedBody
from penstock.protocols.http1.events import Event, Http1Data, Http1Failed, Http1Head
from penstock.protocols.http1.head import (
    UNREAD,
    Http1RequestHead,
    LineCache,
    Lines,
    parse_head,
)
from penstock.protocols.http1.limits import BrokenRule, Http1Limits

_CR: Final = 13
_LONGEST_KEPT: Final = 1024
"""Maximum bytes of a head that is kept after its request, for a client that repeats its head."""


class Http1Connection(Answering):
    """The state of one connection.

    Args:
        limits: what a client may send.
        cache: cache of lines, shared by the connections of a door.
        at_once: maximum chunks decoded by one call, so that a read with tens of thousands does not
            delay other connections; None for no maximum.

    Attributes:
        unread: the last call stopped at ``at_once`` chunks: call ``go_on`` for more.

    Thread: one.
    """

    def __init__(self, limits: Http1Limits, cache: LineCache, at_once: int | None = None) -> None:
        super().__init__()
        self._limits = limits
        self._cache = cache
        self._at_once = at_once
        self._buffer: bytes | bytearray = b""  # unprocessed bytes begin at _at
        self._at = 0
        self._blank = False  # an empty line before the head was skipped
        self._lines: Lines | None = None  # progress in a partial head
        self._left = 0
        self._chunks: ChunkedBody | None = None
        self._discards = False  # the answer was sent: the rest of the body is dropped
        self._ended = False
        self.unread = False

    @property
    def idle(self) -> bool:
        """Whether no request is open, and no byte of the next one was received."""
        return self._state == HEAD and not self._buffer

    @property
    def body_ended(self) -> bool:
        """Whether the current request was received completely."""
        return self._state == WHOLE

    @property
    def wants_data(self) -> bool:
        """Whether to read more; if False, call ``next`` or ``go_on`` first."""
        kept = len(self._buffer) - self._at
        return not self.unread and (self._state != WHOLE or kept < self._limits.max_kept_bytes)

    def whole(self, data: bytes) -> bytes | None:
        """Fast path for exactly one whole request, as most reads are.

        Returns:
            The request's body; ``head`` is its head. None for any other data: then the state is
            unchanged, and ``receive`` must be called.
        """
        if self._state != HEAD or self._buffer:
            return None
        head = self.head
        if data.startswith(head.raw) and len(data) - len(head.raw) == head.body_length:
            body = data.removeprefix(head.raw)
        else:
            end = data.find(b"\r\n\r\n") + 4
            if end < 4:
                return None
            try:
                head = parse_head(data[:end], self._limits, self._cache)
            except BrokenRule:
                return None
            if len(data) - end != head.body_length:
                return None
            self.head = head
            body = data[end:]
        self.keep_alive = head.keep_alive
        self._state = WHOLE
        return body

    def receive(self, data: bytes) -> list[Event]:
        """Process received bytes to events. Never raises; see ``Http1Failed``.

        Bound: O(len(data)) and ``at_once`` chunks; at most one ``Http1Data`` per call and request.
        """
        state = self._state
        if state == LENGTH and len(data) < self._left:
            self._left -= len(data)
            self._awaits = False
            return [] if self._discards or not data else [Http1Data(data, False)]
        if state == CLOSED or (state == WHOLE and not self.keep_alive):
            return []
        self._keep(data)
        return [] if state == WHOLE else self._advance()

    def go_on(self) -> list[Event]:
        """Process further buffered bytes if ``unread`` is set; bounded as ``receive``."""
        return self._advance() if self.unread else []

    def eof(self) -> list[Event]:
        """Process the end of input. A complete request is still answered."""
        self._ended = True
        if self._state == CLOSED or self.unread:
            return []
        if self._state == WHOLE:
            self.keep_alive = self.keep_alive and bool(self._buffer)
            return []
        return self._cut_short()

    def next(self) -> list[Event]:
        """Begin the next request; returns its events so far. The current answer is complete.

        If the current request is incomplete, the rest of it is dropped as it arrives.
        """
        if not self.keep_alive or self._state == CLOSED:
            self._close()
            return []
        if self._state != WHOLE:
            self._discards = True
            return []
        self._state = HEAD
        self._replied = self._blank = False
        if not self._buffer and not self._ended:
            return []
        return self._advance()

    def conclude(self, status: int, headers: Headers, body: bytes) -> bytes | None:
        """Fast path of ``respond`` and ``next``: a usual answer, and no buffered input.

        Returns:
            The answer, after which the connection stays open. None in any other case: then the
            state is unchanged, and ``respond`` and ``next`` must be called.

        Raises:
            ValueError: as ``respond``.
        """
        if (
            self._state != WHOLE
            or self._buffer
            or self._ended
            or not self.keep_alive
            or not self.head.is_usual
        ):
            return None
        start, is_usual, _, _ = reply_head(status, headers)
        if not is_usual:
            return None
        self._state = HEAD
        self._replied = self._blank = False
        if len(self.head.raw) > _LONGEST_KEPT:
            self.head = UNREAD
        return b"%b%bcontent-length: %d\r\n\r\n%b" % (
            start,
            self.date,
            len(body),
            body,
        )

    def _keep(self, data: bytes) -> None:
        """Append data to the buffer, and drop processed bytes."""
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
        """Process buffered bytes until the request is complete."""
        events: list[Event] = []
        try:
            while self._step(events):
                pass
        except BrokenRule as rule:
            return [*events, self._fail(rule)]
        self.unread = self._chunks is not None and self._chunks.unread
        if self._at >= len(self._buffer):
            self._buffer = b""
            self._at = 0
        elif self._at and self._state != WHOLE and not self.unread:
            # Not while further requests or chunks are buffered: each would copy the rest again.
            self._buffer = bytearray(self._buffer[self._at :])
            self._at = 0
        if self._ended and self._state != WHOLE and not self.unread:
            return [*events, *self._cut_short()]
        return events

    def _step(self, events: list[Event]) -> bool:
        """Process bytes in the current state. Returns whether to process more in a new state."""
        before = self._state
        if before == HEAD:
            head = self._head()
            if head is None:
                return False
            self._begin(head)
            events.append(Http1Head(head, head.body_length == 0))
        elif before == LENGTH:
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
        return self._state not in (before, WHOLE) and self._at < len(self._buffer)

    def _head(self) -> Http1RequestHead | None:
        """Parse the next head; None while it is incomplete."""
        buffer, at = self._buffer, self._at
        if self._lines is None:
            if not self._blank and buffer.startswith(b"\r\n", at):
                self._blank = True
                self._at = at = at + 2
            if at >= len(buffer) or (
                not self._blank and at + 1 == len(buffer) and buffer[at] == _CR
            ):
                return None
            most = self._limits.max_request_line + self._limits.max_header_bytes + 2
            end = buffer.find(b"\r\n\r\n", at, at + most)
            if end >= 0:
                return self._read_head(bytes(buffer[at : end + 4]))
            self._lines = Lines(self._limits)
        size = self._lines.advance(buffer, at)
        return None if size is None else self._read_head(bytes(buffer[at : at + size]))

    def _read_head(self, raw: bytes) -> Http1RequestHead:
        head = self.head
        if raw != head.raw:
            head = parse_head(raw, self._limits, self._cache)
        self._at += len(raw)
        self._lines = None
        self._blank = False
        return head

    def _begin(self, head: Http1RequestHead) -> None:
        self.head = head
        self.keep_alive = head.keep_alive
        self._awaits = head.awaits_continue
        if head.body_length is None:
            self._chunks = ChunkedBody(self._limits, self._at_once)
            self._state = CHUNKS
        elif head.body_length:
            self._left = head.body_length
            self._state = LENGTH
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
        """Handle the end of a request."""
        self._chunks = None
        if self._discards:
            self._discards = self._replied = False
            self._state = HEAD
            return
        self._state = WHOLE
        if not self.keep_alive:
            self._at = len(self._buffer)

    def _cut_short(self) -> list[Event]:
        """Handle the end of input before the end of a request."""
        if self.idle:
            self._close()
            return []
        return [self._fail(BrokenRule(400, "the request is cut short"))]

    def _fail(self, rule: BrokenRule) -> Http1Failed:
        if self._state == HEAD:
            self.head = UNREAD
        self._close()
        return Http1Failed(rule.status, rule.text, self._replied, rule.abuse)

    def _close(self) -> None:
        self._state = CLOSED
        self.keep_alive = False
        self.unread = False
        self._buffer = b""
        self._at = 0
        self._lines = None
        self._chunks = None
