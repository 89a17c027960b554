"""One stream: its state, its two windows, and what waits in it.

States are bits of one integer, so that the hot path asks several questions with one comparison.
``open`` is neither side ended; a reset sets both.

Source: RFC 9113, section 5.1. The states of pushed streams do not occur: nobody pushes here.
"""

from __future__ import annotations

from typing import Any, Final

from penstock.protocols.http2.flow import Outbox

REMOTE_ENDED: Final = 1
LOCAL_ENDED: Final = 2
CLOSED: Final = REMOTE_ENDED | LOCAL_ENDED
HEAD_RECEIVED: Final = 4
"""The peer's head has arrived (not an interim one): data and trailers may follow."""
BODILESS: Final = 8
"""The request's method was HEAD: the response has no body, whatever its content-length says."""

LENGTH_UNKNOWN: Final = -1


class Stream:
    """A request and its response, as far as the protocol sees them.

    Attributes:
        id: odd; streams are opened by clients only.
        context: the driver's own.
        state: bits of the constants above.
        window: bytes that we may send; negative after the peer made its initial window smaller.
        room: bytes that the peer may send.
        owed: bytes that were consumed and not yet given back to the peer.
        expected: bytes of body still to come by its content-length; LENGTH_UNKNOWN without one.
        outbox: what waits behind the peer's windows; None when nothing does.
    """

    __slots__ = ("context", "expected", "id", "outbox", "owed", "room", "state", "window")

    # Without an __init__, as setting attributes in place is what the hot path does.
    id: int
    context: Any
    state: int
    window: int
    room: int
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

    @property
    def local_ended(self) -> bool:
        """Whether we send no more on it: the end is out, not only queued."""
        return self.state & LOCAL_ENDED != 0

    def __repr__(self) -> str:
        name = ("open", "half-closed (remote)", "half-closed (local)", "closed")
        return f"<Stream {self.id} {name[self.state & CLOSED]} queued={self.queued}>"


def new_stream(id: int, state: int, window: int, room: int) -> Stream:
    """A stream with nothing queued and no length known, off the hot path."""
    stream = Stream()
    stream.id = id
    stream.context = None
    stream.state = state
    stream.window = window
    stream.room = room
    stream.owed = 0
    stream.expected = LENGTH_UNKNOWN
    stream.outbox = None
    return stream
