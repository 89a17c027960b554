"""The state of a connection, and its sending half: heads, data, trailers, resets.

Data that the peer's windows do not let out waits in its stream. A stream with waiting data is
either *ready* (its own window is open; it waits its turn for the connection's window) or *parked*
(only its own WINDOW_UPDATE helps). Turns are of one frame each, so that no stream waits for a large
one.

Guarantees: with every stream, ``receive_window + owed + unconsumed`` is the window that we
announced, where *unconsumed* is what the driver has not used up; the same holds for the connection.
Nothing grows with the number of streams that have been: what is remembered of closed ones is
bounded.

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
"""Streams that we reset lately: their frames may still be under way and are passed over. An older
one counts as closed in good order. Eight times the streams that may be open by default."""

_TABLE_SIZE_ZERO: Final = b"\x20"

_LAST_BLOCK: Final = END_HEADERS | END_STREAM

_MOST_BLOCK: Final = 16 << 10
"""Bytes of a header block that every peer takes in one frame."""

_pack: Final = FRAME_HEAD.pack


class Sending:
    """One side of a connection, as far as it speaks.

    Attributes:
        role: our side.
        limits: what we announced.
        streams: the open ones by identifier; half-closed ones are open.
        peer_settings: as they are now.
        queued: bytes of all streams that wait behind the peer's windows.
        buffered: bytes that are kept for them.
        bulk: bytes of long pieces in the output.
        closing: no new streams are to be expected or opened: a GOAWAY was sent or received.
        failed: the connection has ended by a fault of the peer's.
        small: bytes of a body that may be left unconsumed until its stream is closed: as long as no
            body that is kept so has more, all of them keep half of the connection's window.
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
        self._reset_lately: dict[int, bool] = {}  # identifier -> the peer has ended it since
        self._last_peer = -1  # highest identifier that the peer opened; -1: the first is to be 1
        self._next_own = 1
        self._final = False  # the last GOAWAY is out: streams behind _last_peer are passed over
        # What we send.
        self._out: list[bytes | memoryview] = []
        self._answers = 0  # bytes in _out that the peer made us say
        self._window = DEFAULT_WINDOW
        self._ready: deque[Stream] = deque()
        self._table_notice = False  # the next block must begin with a change of table size
        self._encoder_table = DEFAULT_TABLE_SIZE
        self._sent = 0  # messages and kilobytes of data sent beside whole replies
        # What we take. A window smaller than the default counts from the acknowledgement on.
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
            bodiless: the method is HEAD: content-length says nothing about the response's body.

        Raises:
            StreamLimit: not now; with ``closing``, never again on this connection.
        """
        most = self.peer_settings.max_concurrent_streams
        if self.closing or self.failed or self._next_own > MAX_STREAM_ID:
            raise StreamLimit("the connection takes no new streams")
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
        """Send a whole answer; without trailers the body ends it, or the head an empty one.

        Where the request has not ended yet the stream stays half-closed until it has, or until
        ``reset(stream, ErrorCode.NO_ERROR)`` tells the peer to stop.
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
        """Send a head; a server's interim ones too."""
        if not stream.state & LOCAL_ENDED:
            self._send_block(stream, block, end)

    def send_data(self, stream: Stream, data: bytes, *, end: bool = False) -> None:
        """Send data, or queue what the windows do not allow; ``data`` is kept by reference."""
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
        """Send trailers, which end the stream, behind whatever data waits."""
        outbox = stream.outbox
        if stream.state & LOCAL_ENDED:
            return
        if outbox is None:
            self._send_block(stream, block, True)
        elif not outbox.end and outbox.trailers is None:
            outbox.trailers = block

    def reset(self, stream: Stream, code: int) -> None:
        """End a stream at once; what it has queued is dropped."""
        if stream.state & CLOSED != CLOSED and not self.failed:
            self._out.append(self._reset(stream, code))

    def consumed(self, stream: Stream, count: int) -> None:
        """Bytes of its events have been used up: the peer may send as many more.

        A stream gives back what is unconsumed when it is closed, so that nothing needs to be
        consumed then, and nothing can be consumed twice.
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
        """Queue what the peer makes us say; more than a bound of it unread is an attack."""
        self._answers += len(data)
        if self._answers > self.limits.queued_answers:
            text = "too many answers are not read"
            raise ConnectionFault(ErrorCode.ENHANCE_YOUR_CALM, text, "answer")
        self._out.append(data)

    def _give_back(self, count: int) -> None:
        """Bytes of the connection's window are free again; tell the peer now and then."""
        owed = self._owed + count
        if owed < self._half_window and (self._receive_window > 0 or not owed):
            self._owed = owed
        elif not self.failed:
            self._owed = 0
            self._receive_window += owed
            self._out.append(window_update_frame(0, owed))

    def _forget(self, stream: Stream) -> None:
        """A stream is closed, whatever way: free what it has."""
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

    def _send_block(self, stream: Stream, block: bytes, end: bool) -> None:
        if self._table_notice:
            # RFC 7541, section 4.2: a change is said at the start of the next block. With no table
            # at all, which is what our blocks use, no later change needs saying.
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
        """Data that both windows allow, in frames that the peer takes."""
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
        """Let a stream that has something to send, and may, wait its turn."""
        outbox = stream.outbox
        if outbox is not None and not outbox.ready and (stream.window > 0 or not outbox.size):
            outbox.ready = True
            self._ready.append(stream)

    def _pump(self) -> None:
        """Send of the streams that are ready, frame by frame in turns, what the windows allow."""
        ready = self._ready
        while ready:
            stream = ready[0]
            outbox = stream.outbox
            if outbox is None:  # reset while it waited
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
        """One frame of a stream's queue."""
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
