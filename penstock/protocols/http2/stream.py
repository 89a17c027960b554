"""One stream: its state, its two flow-control windows, and its unsent output.

The state is bits of one integer, so that the hot path can test several with one comparison. An open
stream has neither side's bit set; a reset sets both. Server push is not supported.

Source: RFC 9113, sections 5.1 and 5.2.
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
"""Pieces are joined up to this size: each has an overhead of some 200 bytes, which would exceed the
counted bytes of small messages many times."""


class Outbox:
    """The queue of a stream's data that flow control blocks.

    Attributes:
        size: bytes of queued data.
        end: the stream ends after the data.
        trailers: a header block that ends the stream after the data.
        ready: the stream is queued for its turn to send.
        taken: bytes that were sent from the queue.
    """

    __slots__ = ("_gone", "_pieces", "end", "ready", "size", "taken", "trailers")

    def __init__(self) -> None:
        self._pieces: deque[memoryview] = deque()
        self.size = 0
        self._gone = 0  # sent bytes of the first piece
        self.taken = 0
        self.end = False
        self.trailers: bytes | None = None
        self.ready = False

    @property
    def buffered(self) -> int:
        """Memory held by the queued data. A partly sent piece counts in full."""
        return self.size + self._gone

    def put(self, data: bytes) -> None:
        """Queue data; large pieces are kept by reference."""
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
    """One stream: a request and its response.

    Attributes:
        id: odd; streams are opened by clients only.
        context: an object of the driver.
        state: bits of the constants above.
        window: bytes that we may send; negative after the peer reduced its initial window.
        receive_window: bytes that the peer may send.
        owed: consumed bytes that were not yet returned to the peer's window.
        expected: missing bytes of the body by content-length; LENGTH_UNKNOWN without one.
        outbox: queued data; None if there is none.
    """

    __slots__ = ("context", "expected", "id", "outbox", "owed", "receive_window", "state", "window")

    # No __init__: the hot path sets the attributes itself.
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
        """Bytes of the body that flow control blocks."""
        return 0 if self.outbox is None else self.outbox.size

    @property
    def closed(self) -> bool:
        """Whether both sides have ended the stream, or one has reset it."""
        return self.state & CLOSED == CLOSED

    @property
    def remote_ended(self) -> bool:
        """Whether the peer has ended its side; already true when its last event is returned."""
        return self.state & REMOTE_ENDED != 0


def new_stream(id: int, state: int, window: int, receive_window: int) -> Stream:
    """Create a stream without queued data and without a known length; not for the hot path."""
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
