"""The state of a connection, and the few moves that sending and receiving share.

The connection is one object in three layers, so that the hot path finds everything in its own
slots: this one knows what is true, ``sending`` what we may say, ``receiving`` what the peer says;
``connection`` is what others see.

Guarantees: with every stream, ``room + owed + held`` is the window that we announced, where *held*
is what the driver has not consumed; the same holds for the connection. Nothing grows with the
number of streams that have been: what is remembered of closed ones is bounded.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from penstock.protocols.http2.budget import Budget
from penstock.protocols.http2.codes import ConnectionFault, ErrorCode
from penstock.protocols.http2.frames import (
    DEFAULT_WINDOW,
    PREFACE,
    reset_frame,
    window_update_frame,
)
from penstock.protocols.http2.limits import Http2Limits, Role
from penstock.protocols.http2.memo import BlockDecoder, HeadMemo
from penstock.protocols.http2.settings import DEFAULT_TABLE_SIZE, PeerSettings, announced
from penstock.protocols.http2.stream import CLOSED, REMOTE_ENDED, Stream

RESETS_REMEMBERED: Final = 1024
"""Streams that we reset lately: their frames may still be under way and are passed over. An older
one counts as closed in good order. Eight times the streams that may be open by default."""


class ConnectionCore:
    """What is true of a connection.

    Attributes:
        role: our side.
        limits: what we announced.
        streams: the open ones by identifier; half-closed ones are open.
        peer_settings: as they are now.
        queued: bytes of all streams that wait behind the peer's windows.
        held: bytes that are kept for them.
        bulk: bytes of long pieces in the output.
        closing: no new streams are to be expected or opened: a GOAWAY was sent or received.
        failed: the connection has ended by a fault of the peer's.
        small: bytes of a body that may be left unconsumed until its stream is closed: as long as no
            body that is kept so has more, all of them keep half of the connection's window.
        heads_refused: requests whose head was too large, since the driver last set this to 0; it
            hears of them in no other way.
    """

    __slots__ = (
        "_announced_room",
        "_answers",
        "_blocks",
        "_budget",
        "_encoder_table",
        "_final",
        "_half_window",
        "_last_peer",
        "_line",
        "_next_own",
        "_out",
        "_owed",
        "_reset_lately",
        "_room",
        "_sent",
        "_server",
        "_settings_under_way",
        "_stream_room",
        "_table_notice",
        "_window",
        "bulk",
        "closing",
        "failed",
        "heads_refused",
        "held",
        "limits",
        "peer_settings",
        "queued",
        "role",
        "small",
        "streams",
    )

    def __init__(self, role: Role, limits: Http2Limits, heads: HeadMemo) -> None:
        self.role = role
        self.limits = limits
        self.streams: dict[int, Stream] = {}
        self.peer_settings = PeerSettings()
        self.queued = 0
        self.held = 0
        self.bulk = 0
        self.closing = False
        self.failed = False
        self.heads_refused = 0
        self._server = role is Role.SERVER
        self._blocks = BlockDecoder(limits, heads)
        self._budget = Budget(limits)
        self._reset_lately: dict[int, bool] = {}  # identifier -> the peer has ended it since
        self._last_peer = -1  # highest identifier that the peer opened; -1: the first is to be 1
        self._next_own = 1
        self._final = False  # the last GOAWAY is out: streams behind _last_peer are passed over
        # What we send.
        self._out: list[bytes | memoryview] = []
        self._answers = 0  # bytes in _out that the peer made us say
        self._window = DEFAULT_WINDOW
        self._line: deque[Stream] = deque()
        self._table_notice = False  # the next block must begin with a change of table size
        self._encoder_table = DEFAULT_TABLE_SIZE
        self._sent = 0  # messages and kilobytes of data sent beside whole replies
        # What we take. A window smaller than the default counts from the acknowledgement on.
        self._stream_room = max(limits.stream_window, DEFAULT_WINDOW)
        self._settings_under_way = 1
        self._announced_room = max(limits.connection_window, DEFAULT_WINDOW)
        self._half_window = self._announced_room // 2
        self.small = min(
            self._half_window // limits.max_streams, self._stream_room, limits.max_frame_size
        )
        self._room = self._announced_room
        self._owed = 0
        if not self._server:
            self._out.append(PREFACE)
        self._out.append(announced(role, limits))
        if self._announced_room > DEFAULT_WINDOW:
            self._out.append(window_update_frame(0, self._announced_room - DEFAULT_WINDOW))

    @property
    def annoyed(self) -> bool:
        """Whether the peer makes a nuisance, which is borne until its allowance is used up."""
        return self._budget.strained

    def _answer(self, data: bytes) -> None:
        """Queue what the peer makes us say; more than a bound of it unread is an attack."""
        self._answers += len(data)
        if self._answers > self.limits.queued_answers:
            text = "too many answers are not read"
            raise ConnectionFault(ErrorCode.ENHANCE_YOUR_CALM, text, "answer")
        self._out.append(data)

    def _give_back(self, count: int) -> None:
        """Bytes of the connection's window are free again; tell the peer now and then."""
        owed = self._owed + count
        if owed < self._half_window and (self._room > 0 or not owed):
            self._owed = owed
        elif not self.failed:
            self._owed = 0
            self._room += owed
            self._out.append(window_update_frame(0, owed))

    def _forget(self, stream: Stream) -> None:
        """A stream is closed, whatever way: free what it held."""
        stream.state |= CLOSED
        self.streams.pop(stream.id, None)
        outbox = stream.outbox
        if outbox is not None:
            self.queued -= outbox.size
            self.held -= outbox.held
            stream.outbox = None
        held = self._stream_room - stream.room - stream.owed
        if held > 0:
            stream.room += held
            self._give_back(held)

    def _reset(self, stream: Stream, code: int) -> bytes:
        """Close a stream with RST_STREAM, which is the answer."""
        lately = self._reset_lately
        if len(lately) >= RESETS_REMEMBERED:
            del lately[next(iter(lately))]
        lately[stream.id] = stream.state & REMOTE_ENDED != 0
        self._forget(stream)
        return reset_frame(stream.id, code)

    def _traffic(self) -> int:
        """Grows with streams opened and data sent, without a counter on the hot path."""
        return (self._last_peer + self._next_own) // 2 + self._sent
