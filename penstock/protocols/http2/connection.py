"""An HTTP/2 connection without input or output: bytes in, events out; calls in, bytes out.

Decides everything that RFC 9113 lets a connection decide, for servers and clients. Knows no
sockets, no clock and no application: the driver hands in what it has read, writes what
``take_output`` gives, calls ``refill`` once a second, and closes after ``ConnectionFailed``.

Guarantees: ``receive`` never raises; however the bytes are cut, the events are the same, but that
data may come in other pieces; every stream that was told of ends with an event or a call of the
driver's; memory is bounded by the limits and by what the driver itself has sent or not consumed.

Source: RFC 9113 and RFC 7541.
"""

from __future__ import annotations

from penstock.protocols.http2.frames import MAX_STREAM_ID, PING, frame, goaway_frame
from penstock.protocols.http2.limits import Http2Limits, Role
from penstock.protocols.http2.memo import HeadMemo
from penstock.protocols.http2.receiving import Receiver

_USUAL = Http2Limits()


class Http2Connection(Receiver):
    """One side of a connection.

    Its output holds what opens a connection from the beginning. ``heads`` is shared by connections
    whose equal heads are to be one object. Late calls are no errors: whatever is
    sent on a stream that has ended goes nowhere.

    Thread rule: one thread at a time.
    """

    __slots__ = ()

    def __init__(
        self, role: Role, limits: Http2Limits = _USUAL, heads: HeadMemo | None = None
    ) -> None:
        super().__init__(role, limits, heads if heads is not None else HeadMemo())

    @property
    def unfinished(self) -> object | None:
        """What must be whole before anything else is understood: a frame, a block, the greeting.

        The same object as long as it is the same thing that is awaited; None for nothing. Data that
        has come in part is not meant, because it is passed on in part.
        """
        if self._block_id:
            return self._block_parts
        if self._needed:
            return self._held
        return None if self._begun else self._budget

    @property
    def has_output(self) -> bool:
        """Whether there is something to write."""
        return bool(self._out)

    def take_output(self) -> bytes:
        """What is to be written now; empty when nothing is.

        While the transport is above its mark, leave the output here: a peer that asks for answers
        and does not read them is then found out.
        """
        out = self._out
        if not out:
            return b""
        data = b"".join(out)
        out.clear()
        self._answers = self.bulk = 0
        return data

    def take_pieces(self) -> list[bytes | memoryview]:
        """The same, not joined: for much of it, ``bulk``, a copy is dearer than many pieces."""
        out, self._out = self._out, []
        self._answers = self.bulk = 0
        return out

    def ping(self, payload: bytes) -> None:
        """Ask for a PingAcknowledged with the same eight bytes."""
        if len(payload) != 8:
            raise ValueError("the payload of a ping is eight bytes")
        if self.failed:
            return
        self._pings_under_way += 1
        self._out.append(frame(PING, 0, 0, payload))

    def go_away(self, *, final: bool, code: int = 0) -> None:
        """Say that no more streams are taken, in two steps.

        The first asks the peer to open no more and still takes those under way. The final one, a
        round trip later, names the last stream that was taken; any behind it are passed over.

        Args:
            final: which step.
            code: why, as an error code.
        """
        if self.failed or self._final:
            return
        self.closing = True
        last = MAX_STREAM_ID
        if final:
            self._final = True
            last = max(self._last_peer, 0)
        self._out.append(goaway_frame(last, code))

    def refill(self) -> None:
        """Allow the peer its budgets anew; to be called once a second."""
        self._budget.refill()
        self._traffic_at_refill = self._traffic()
        self._opened_at_refill = (self._last_peer + self._next_own) // 2
        self._forget_shapes()
        self._forget_read_shapes()

    def __repr__(self) -> str:
        return (
            f"<Http2Connection {self.role.value} streams={len(self.streams)} queued={self.queued}"
            f"{' closing' if self.closing else ''}{' failed' if self.failed else ''}>"
        )
