"""One stream: its state, its two flow-control windows, and its unsent output.

States are bits of one integer, so that the hot path asks several questions with one comparison.
``open`` is neither side ended; a reset sets both.

Source: RFC 9113, sections 5.1 and 5.2. Nobody pushes here, so that a stream is open or closed.
"""

from __future__ import annotations

from collections import deque
from typing import Any, Final

REMOTE_ENDED: Final = 1
LOCAL_ENDED: Final = 2
CLOSED: Final = REMOTE_ENDED | LOCAL_ENDED
HEAD_RECEIVED: Final = 4
"""The peer's head has arrived (not an interim one): data and trailers may follow."""
BODILESS: Final = 8
"""The request's method was HEAD: the response has no body, whatever its content-length says."""

LENGTH_UNKNOWN: Final = -1

SMALL: Final = 4096
"""Pieces are joined up to this size: each takes some 200 bytes more than it holds, and a stream of
small messages would hold many times what it counts."""


class Outbox:
    """The rest of a message that the peer's windows do not let out.

    Attributes:
        size: bytes of data in it.
        end: the stream ends behind the data.
        trailers: a header block that ends the stream behind the data.
        ready: whether its stream waits its turn.
        taken: bytes that have gone out of it.
    """

    __slots__ = ("_gone", "_pieces", "end", "ready", "size", "taken", "trailers")

    def __init__(self) -> None:
        self._pieces: deque[memoryview] = deque()
        self.size = 0
        self._gone = 0  # bytes of the first piece
        self.taken = 0
        self.end = False
        self.trailers: bytes | None = None
        self.ready = False

    @property
    def buffered(self) -> int:
        """Bytes that are kept for them: of a long piece all, until all of it has gone."""
        return self.size + self._gone

    def put(self, data: bytes) -> None:
        """Add data behind what waits; long pieces are kept by reference."""
        if not data:
            return
        self.size += len(data)
        pieces = self._pieces
        if pieces and len(pieces[-1]) + len(data) <= SMALL:
            if len(pieces) == 1:
                self._gone = 0
            pieces[-1] = memoryview(b"".join((pieces[-1], data)))
        else:
            pieces.append(memoryview(data))

    def take(self, most: int) -> list[memoryview]:
        """Take exactly ``min(most, size)`` bytes from the front."""
        taken: list[memoryview] = []
        pieces = self._pieces
        before = self.size
        while most and pieces:
            piece = pieces[0]
            if len(piece) <= most:
                pieces.popleft()
                self._gone = 0
            else:
                self._gone += most
                pieces[0] = piece[most:]
                piece = piece[:most]
            taken.append(piece)
            most -= len(piece)
            self.size -= len(piece)
        self.taken += before - self.size
        return taken


class Stream:
    """A request and its response, as far as the protocol sees them.

    Attributes:
        id: odd; streams are opened by clients only.
        context: the driver's own.
        state: bits of the constants above.
        window: bytes that we may send; negative after the peer made its initial window smaller.
        receive_window: bytes that the peer may send.
        owed: bytes that were consumed and not yet given back to the peer.
        expected: bytes of body still to come by its content-length; LENGTH_UNKNOWN without one.
        outbox: what waits behind the peer's windows; None when nothing does.
    """

    __slots__ = ("context", "expected", "id", "outbox", "owed", "receive_window", "state", "window")

    # Without an __init__, as setting attributes in place is what the hot path does.
    id: int
    context: Any
    state: int
    window: int
    receive_window: int
    owed: int
    expected: int
    outbox: Outbox | None

    @property
    def queued(self) -> int:
        """Bytes of body that wait behind the peer's windows."""
        return 0 if self.outbox is None else self.outbox.size

    @property
    def closed(self) -> bool:
        """Whether both sides have ended, or one has reset the stream."""
        return self.state & CLOSED == CLOSED

    @property
    def remote_ended(self) -> bool:
        """Whether the peer sends no more on it; so already when its last event is handed out."""
        return self.state & REMOTE_ENDED != 0


def new_stream(id: int, state: int, window: int, receive_window: int) -> Stream:
    """A stream with nothing queued and no length known, off the hot path."""
    stream = Stream()
    stream.id = id
    stream.context = None
    stream.state = state
    stream.window = window
    stream.receive_window = receive_window
    stream.owed = 0
    stream.expected = LENGTH_UNKNOWN
    stream.outbox = None
    return stream
