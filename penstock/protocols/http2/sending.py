"""The state of a connection, and its sending half: heads, data, trailers, resets.

Data beyond the peer's windows is queued in its stream. A stream with queued data is *ready* (its
own window is open; it waits for the connection's window) or *parked* (it waits for its own
WINDOW_UPDATE). Ready streams send one frame each in turn, so that none delays the others.

Guarantees: for each stream, ``receive_window + owed + unconsumed`` is the announced window, where
*unconsumed* is the data that the driver has not passed to ``consumed``; the same holds for the
connection. Memory does not grow with the number of closed streams.

Source: RFC 9113, sections 4.3, 5.2, 6.1, 6.2, 6.4, 6.9.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from penstock.protocols.http2.codes import ConnectionFault, ErrorCode, StreamLimit
from penstock.protocols.http2.frames import (
    DATA,
    DEFAULT_TABLE_SIZE,
    DEFAULT_WINDOW,
    END_HEADERS,
    END_STREAM,
    FRAME_HEAD,
    HEADERS,
    MAX_STREAM_ID,
    PREFACE,
    PeerSettings,
    announced,
    header_frames,
    reset_frame,
    window_update_frame,
)
from penstock.protocols.http2.limits import AbuseCounter, Http2Limits, Role
from penstock.protocols.http2.stream import (
    BODILESS,
    CLOSED,
    LOCAL_ENDED,
    REMOTE_ENDED,
    Outbox,
    Stream,
    new_stream,
)

RESETS_REMEMBERED: Final = 1024
"""How many streams that we reset are remembered: their frames in flight are ignored. An older one
counts as closed normally. Eight times the default maximum of open streams."""

_TABLE_SIZE_ZERO: Final = b"\x20"

_LAST_BLOCK: Final = END_HEADERS | END_STREAM

_MOST_BLOCK: Final = 16 << 10
"""Maximum bytes of a header block that every peer accepts in one frame."""

_pack: Final = FRAME_HEAD.pack


class Sending:
    """The sending half of a connection.

    Attributes:
        role: our role.
        limits: the announced limits.
        streams: open and half-closed streams by identifier.
        peer_settings: the peer's current settings.
        queued: bytes of all streams that flow control blocks.
        buffered: memory that this data holds, in bytes.
        bulk: bytes of large pieces in the output.
        closing: a GOAWAY was sent or received: no new streams.
        failed: a connection error has ended the connection.
        small: maximum bytes of a body that may stay unconsumed until its stream closes, so that all
            such bodies together use at most half of the connection's window.
    """

    __slots__ = (
        "_abuse",
        "_announced_window",
        "_answers",
        "_encoder_table",
        "_final",
        "_half_window",
        "_last_peer",
        "_next_own",
        "_out",
        "_owed",
        "_ready",
        "_receive_window",
        "_reset_lately",
        "_sent",
        "_server",
        "_settings_under_way",
        "_stream_window",
        "_table_notice",
        "_window",
        "buffered",
        "bulk",
        "closing",
        "failed",
        "limits",
        "peer_settings",
        "queued",
        "role",
        "small",
        "streams",
    )

    def __init__(self, role: Role, limits: Http2Limits) -> None:
        self.role = role
        self.limits = limits
        self.streams: dict[int, Stream] = {}
        self.peer_settings = PeerSettings()
        self.queued = 0
        self.buffered = 0
        self.bulk = 0
        self.closing = False
        self.failed = False
        self._server = role is Role.SERVER
        self._abuse = AbuseCounter(limits)
        self._reset_lately: dict[
            int, bool
        ] = {}  # identifier -> whether the peer has ended it since
        self._last_peer = -1  # highest identifier that the peer opened; -1 before the first
        self._next_own = 1
        self._final = False  # the final GOAWAY was sent: streams above _last_peer are ignored
        # Sending.
        self._out: list[bytes | memoryview] = []
        self._answers = 0  # bytes in _out that answer the peer's control frames
        self._window = DEFAULT_WINDOW
        self._ready: deque[Stream] = deque()
        self._table_notice = False  # the next block must begin with a table size update
        self._encoder_table = DEFAULT_TABLE_SIZE
        self._sent = 0  # messages and kilobytes of data sent beside whole replies
        # Receiving. A window below the default applies once our SETTINGS are acknowledged.
        self._stream_window = max(limits.stream_window, DEFAULT_WINDOW)
        self._settings_under_way = 1
        self._announced_window = max(limits.connection_window, DEFAULT_WINDOW)
        self._half_window = self._announced_window // 2
        self.small = min(
            self._half_window // limits.max_streams, self._stream_window, limits.max_frame_size
        )
        self._receive_window = self._announced_window
        self._owed = 0
        if not self._server:
            self._out.append(PREFACE)
        self._out.append(announced(role, limits))
        if self._announced_window > DEFAULT_WINDOW:
            self._out.append(window_update_frame(0, self._announced_window - DEFAULT_WINDOW))

    def open(self, block: bytes, *, end: bool = False, bodiless: bool = False) -> Stream:
        """Send a request's head on a new stream; clients only.

        Args:
            block: made by ``encode_block``.
            end: the request has no body.
            bodiless: the method is HEAD: the response has no body, whatever its content-length.

        Raises:
            StreamLimit: not possible now; with ``closing``, never again on this connection.
        """
        most = self.peer_settings.max_concurrent_streams
        if self.closing or self.failed or self._next_own > MAX_STREAM_ID:
            raise StreamLimit("the connection accepts no new streams")
        if most is not None and len(self.streams) >= most:
            raise StreamLimit("the peer's limit of streams is reached")
        stream = new_stream(
            self._next_own,
            BODILESS if bodiless else 0,
            self.peer_settings.initial_window_size,
            self._stream_window,
        )
        self._next_own += 2
        self.streams[stream.id] = stream
        self.send_head(stream, block, end=end)
        return stream

    def reply(
        self, stream: Stream, head_block: bytes, body: bytes, trailer_block: bytes | None = None
    ) -> None:
        """Send a whole answer. Its trailers, its body, or else its head ends the stream.

        If the request has not ended, the stream stays half-closed until it has, or until
        ``reset(stream, ErrorCode.NO_ERROR)`` asks the peer to stop.
        """
        size = len(body)
        if (
            stream.state & LOCAL_ENDED
            or not 0 < size <= self.peer_settings.max_frame_size
            or size > self._window
            or size > stream.window
            or stream.outbox is not None
            or len(head_block) > _MOST_BLOCK
            or self._table_notice
            or (trailer_block is not None and len(trailer_block) > _MOST_BLOCK)
        ):
            self.send_head(stream, head_block, end=trailer_block is None and not body)
            if body:
                self.send_data(stream, body, end=trailer_block is None)
            if trailer_block is not None:
                self.send_trailers(stream, trailer_block)
            return
        self._window -= size
        stream.window -= size
        id = stream.id
        head = _pack(len(head_block) << 8 | HEADERS, END_HEADERS, id)
        if trailer_block is None:
            self._out += (head, head_block, _pack(size << 8 | DATA, END_STREAM, id), body)
        else:
            self._out += (
                head,
                head_block,
                _pack(size << 8 | DATA, 0, id),
                body,
                _pack(len(trailer_block) << 8 | HEADERS, _LAST_BLOCK, id),
                trailer_block,
            )
        self._end_local(stream)

    def send_head(self, stream: Stream, block: bytes, *, end: bool = False) -> None:
        """Send a head; interim responses included."""
        if not stream.state & LOCAL_ENDED:
            self._send_block(stream, block, end)

    def send_data(self, stream: Stream, data: bytes, *, end: bool = False) -> None:
        """Send data, or queue it beyond the peer's windows; ``data`` is kept by reference."""
        if stream.state & LOCAL_ENDED or not (data or end):
            return
        outbox = stream.outbox
        self._sent += 1
        if outbox is None:
            size = len(data)
            if not size or (size <= self._window and size <= stream.window):
                self._send_pieces(stream, data, end)
                return
            outbox = stream.outbox = Outbox()
        elif outbox.end or outbox.trailers is not None:
            return
        before = outbox.buffered
        outbox.put(data)
        outbox.end = end
        self.queued += len(data)
        self.buffered += outbox.buffered - before
        self._make_ready(stream)
        self._pump()

    def send_trailers(self, stream: Stream, block: bytes) -> None:
        """Send trailers, which end the stream, after its queued data."""
        outbox = stream.outbox
        if stream.state & LOCAL_ENDED:
            return
        if outbox is None:
            self._send_block(stream, block, True)
        elif not outbox.end and outbox.trailers is None:
            outbox.trailers = block

    def reset(self, stream: Stream, code: int) -> None:
        """Reset a stream; its queued data is dropped."""
        if stream.state & CLOSED != CLOSED and not self.failed:
            self._out.append(self._reset(stream, code))

    def consumed(self, stream: Stream, count: int) -> None:
        """Return ``count`` bytes of received data to the peer's send windows.

        A closed stream has returned all unconsumed bytes, so that a call for it has no effect.
        """
        if stream.state & CLOSED == CLOSED:
            return
        whole = self._stream_window
        count = min(count, whole - stream.receive_window - stream.owed)
        if count <= 0:
            return
        owed = stream.owed + count
        if stream.state & REMOTE_ENDED or (owed * 2 < whole and stream.receive_window > 0):
            stream.owed = owed
        else:
            stream.owed = 0
            stream.receive_window += owed
            self._out.append(window_update_frame(stream.id, owed))
        self._give_back(count)

    def _answer(self, data: bytes) -> None:
        """Queue an answer to a control frame; too many unread bytes of answers are an attack."""
        self._answers += len(data)
        if self._answers > self.limits.queued_answers:
            text = "too many answers are not read"
            raise ConnectionFault(ErrorCode.ENHANCE_YOUR_CALM, text, "answer")
        self._out.append(data)

    def _give_back(self, count: int) -> None:
        """Return bytes to the connection's window; the peer is notified of larger amounts."""
        owed = self._owed + count
        if owed < self._half_window and (self._receive_window > 0 or not owed):
            self._owed = owed
        elif not self.failed:
            self._owed = 0
            self._receive_window += owed
            self._out.append(window_update_frame(0, owed))

    def _forget(self, stream: Stream) -> None:
        """Free the state of a closed stream."""
        stream.state |= CLOSED
        self.streams.pop(stream.id, None)
        outbox = stream.outbox
        if outbox is not None:
            self.queued -= outbox.size
            self.buffered -= outbox.buffered
            stream.outbox = None
        unconsumed = self._stream_window - stream.receive_window - stream.owed
        if unconsumed > 0:
            stream.receive_window += unconsumed
            self._give_back(unconsumed)

    def _reset(self, stream: Stream, code: int) -> bytes:
        """Close a stream; return the RST_STREAM frame to send."""
        lately = self._reset_lately
        if len(lately) >= RESETS_REMEMBERED:
            del lately[next(iter(lately))]
        lately[stream.id] = stream.state & REMOTE_ENDED != 0
        self._forget(stream)
        return reset_frame(stream.id, code)

    def _traffic(self) -> int:
        """A measure of streams opened and data sent, without a counter on the hot path."""
        return (self._last_peer + self._next_own) // 2 + self._sent

    def _send_block(self, stream: Stream, block: bytes, end: bool) -> None:
        if self._table_notice:
            # RFC 7541, section 4.2: a size update comes first in the next block. After setting the
            # size to 0, since our blocks use no table, no later change needs an update.
            self._table_notice = False
            block = _TABLE_SIZE_ZERO + block
        if len(block) <= _MOST_BLOCK:
            flags = END_HEADERS | END_STREAM if end else END_HEADERS
            self._out += (_pack(len(block) << 8 | HEADERS, flags, stream.id), block)
        else:
            self._out += header_frames(stream.id, block, end, self.peer_settings.max_frame_size)
        if end:
            self._end_local(stream)

    def _send_pieces(self, stream: Stream, data: bytes | memoryview, end: bool) -> None:
        """Send data within both windows, in frames of the peer's maximum size."""
        size = len(data)
        most = self.peer_settings.max_frame_size
        out = self._out
        self._window -= size
        stream.window -= size
        if size <= most:
            out.append(_pack(size << 8 | DATA, END_STREAM if end else 0, stream.id))
            if size:
                out.append(data)
        else:
            view = memoryview(data)
            self._sent += size >> 10
            self.bulk += size
            for start in range(0, size, most):
                piece = view[start : start + most]
                flags = END_STREAM if end and start + most >= size else 0
                out.append(_pack(len(piece) << 8 | DATA, flags, stream.id))
                out.append(piece)
        if end:
            self._end_local(stream)

    def _end_local(self, stream: Stream) -> None:
        stream.state |= LOCAL_ENDED
        if stream.state & REMOTE_ENDED:
            self._forget(stream)

    def _make_ready(self, stream: Stream) -> None:
        """Queue a stream that has data and an open window for its turn."""
        outbox = stream.outbox
        if outbox is not None and not outbox.ready and (stream.window > 0 or not outbox.size):
            outbox.ready = True
            self._ready.append(stream)

    def _pump(self) -> None:
        """Send data of the ready streams, one frame in turn, within the windows."""
        ready = self._ready
        while ready:
            stream = ready[0]
            outbox = stream.outbox
            if outbox is None:  # reset meanwhile
                ready.popleft()
                continue
            if outbox.size and self._window <= 0:
                return
            ready.popleft()
            outbox.ready = False
            if outbox.size and stream.window > 0:
                self._send_turn(stream, outbox)
            if outbox.size:
                self._make_ready(stream)
                continue
            stream.outbox = None
            if outbox.trailers is not None:
                self.send_trailers(stream, outbox.trailers)
            elif outbox.end and not stream.state & LOCAL_ENDED:
                self.send_data(stream, b"", end=True)

    def _send_turn(self, stream: Stream, outbox: Outbox) -> None:
        """Send one frame of a stream's queued data."""
        before, kept = outbox.size, outbox.buffered
        pieces = outbox.take(min(self.peer_settings.max_frame_size, self._window, stream.window))
        sent = before - outbox.size
        self.queued -= sent
        self.buffered -= kept - outbox.buffered
        self.bulk += sent
        self._window -= sent
        stream.window -= sent
        self._sent += sent >> 10
        end = outbox.end and not outbox.size
        self._out.append(_pack(sent << 8 | DATA, END_STREAM if end else 0, stream.id))
        self._out += pieces
        if end:
            stream.outbox = None
            self._end_local(stream)
