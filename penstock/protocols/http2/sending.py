"""What we may say: heads, data behind the peer's windows, trailers, resets.

Source: RFC 9113, sections 4.3, 5.2, 6.1, 6.2, 6.4, 6.9.
"""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct
from typing import Final, TypeAlias

from penstock.protocols.http2.codes import StreamLimit
from penstock.protocols.http2.core import ConnectionCore
from penstock.protocols.http2.events import Event, RoomMade
from penstock.protocols.http2.flow import LOW_MARK, Outbox
from penstock.protocols.http2.frames import (
    DATA,
    END_HEADERS,
    END_STREAM,
    FRAME_HEAD,
    HEADERS,
    MAX_STREAM_ID,
    header_frames,
    window_update_frame,
)
from penstock.protocols.http2.limits import Http2Limits, Role
from penstock.protocols.http2.memo import HeadMemo
from penstock.protocols.http2.stream import (
    BODILESS,
    CLOSED,
    LOCAL_ENDED,
    REMOTE_ENDED,
    Stream,
    new_stream,
)

SHAPES_REMEMBERED: Final = 128
LONGEST_SHAPED: Final = 4096
"""Whole replies of a known shape are packed by one call: how many shapes, and up to which length of
head, body and trailers. Longer ones would be copied once more than they are worth."""

_TABLE_SIZE_ZERO: Final = b"\x20"

_head_word: Final = Struct(">IB").pack

_Shape: TypeAlias = tuple[Callable[..., bytes], bytes, bytes, bytes]
"""What packs a whole reply, and what it is given beside identifiers, body and trailers."""


class Sender(ConnectionCore):
    """The half of a connection that speaks."""

    __slots__ = ("_last_reply", "_plain_most", "_shapes")

    def __init__(self, role: Role, limits: Http2Limits, heads: HeadMemo) -> None:
        super().__init__(role, limits, heads)
        self._shapes: dict[tuple[bytes, int, bytes | None], _Shape] = {}
        # Of the last reply: what it was of, and its shape.
        self._last_reply: tuple[bytes, int, bytes | None, Callable[..., bytes], bytes, bytes, bytes]
        self._last_reply = (b"", -1, None, Struct("").pack, b"", b"", b"")
        self._plain_most = LONGEST_SHAPED  # -1 while the next block needs a notice

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
            self._stream_room,
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
        state = stream.state
        if (
            state & LOCAL_ENDED
            or not 0 < size <= self._plain_most
            or size > self._window
            or size > stream.window
            or stream.outbox is not None
        ):
            self._reply_in_parts(stream, head_block, body, trailer_block)
            return
        last_head, last_size, last_trailer, pack, head, middle, tail = self._last_reply
        if last_head is not head_block or last_size != size or last_trailer is not trailer_block:
            shape = self._shapes.get((head_block, size, trailer_block))
            if shape is None:
                shape = self._new_shape(head_block, size, trailer_block)
                if shape is None:
                    self._reply_in_parts(stream, head_block, body, trailer_block)
                    return
            pack, head, middle, tail = shape
            self._last_reply = (head_block, size, trailer_block, *shape)
        id = stream.id
        if trailer_block is None:
            self._out.append(pack(head, id, middle, id, body))
        else:
            self._out.append(pack(head, id, middle, id, body, tail, id, trailer_block))
        self._window -= size
        if state & REMOTE_ENDED:
            # What _forget does, without the calls.
            stream.state = state | LOCAL_ENDED
            del self.streams[id]
            held = self._stream_room - stream.room - stream.owed
            if held:  # a body that came whole has been given back
                self._give_back(held)
        else:
            stream.window -= size
            stream.state = state | LOCAL_ENDED

    def _new_shape(
        self, head_block: bytes, size: int, trailer_block: bytes | None
    ) -> _Shape | None:
        """How to pack a reply of these blocks and this length of body; None for no such way."""
        tail_size = 0 if trailer_block is None else len(trailer_block)
        if len(self._shapes) >= SHAPES_REMEMBERED or len(head_block) + tail_size > LONGEST_SHAPED:
            return None
        head = _head_word(len(head_block) << 8 | HEADERS, END_HEADERS)
        data_flags = END_STREAM if trailer_block is None else 0
        middle = head_block + _head_word(size << 8 | DATA, data_flags)
        form = f">5sI{len(middle)}sI{size}s"
        tail = b""
        if trailer_block is not None:
            tail = _head_word(tail_size << 8 | HEADERS, END_HEADERS | END_STREAM)
            form += f"5sI{tail_size}s"
        shape = (Struct(form).pack, head, middle, tail)
        self._shapes[head_block, size, trailer_block] = shape
        return shape

    def _reply_in_parts(
        self, stream: Stream, head_block: bytes, body: bytes, trailer_block: bytes | None
    ) -> None:
        bare = trailer_block is None
        self.send_head(stream, head_block, end=bare and not body)
        if body:
            self.send_data(stream, body, end=bare)
        if trailer_block is not None:
            self.send_trailers(stream, trailer_block)

    def send_head(self, stream: Stream, block: bytes, *, end: bool = False) -> None:
        """Send a head; a server's interim ones too."""
        if stream.state & LOCAL_ENDED:
            return
        self._send_block(stream.id, block, end)
        if end:
            self._end_local(stream)

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
        held = outbox.held
        outbox.put(data)
        outbox.end = end
        self.queued += len(data)
        self.held += outbox.held - held
        self._line_up(stream)
        self._pump(None)

    def send_trailers(self, stream: Stream, block: bytes) -> None:
        """Send trailers, which end the stream, behind whatever data waits."""
        if stream.state & LOCAL_ENDED:
            return
        outbox = stream.outbox
        if outbox is None:
            self._send_block(stream.id, block, True)
            self._end_local(stream)
        elif not outbox.end and outbox.trailers is None:
            outbox.trailers = block

    def reset(self, stream: Stream, code: int) -> None:
        """End a stream at once; what it has queued is dropped."""
        if stream.state & CLOSED != CLOSED and not self.failed:
            self._out.append(self._reset(stream, code))

    def consumed(self, stream: Stream, count: int) -> None:
        """Bytes of its events have been used up: the peer may send as many more.

        A stream gives back what it held when it is closed, so that nothing needs to be consumed
        then, and nothing can be consumed twice.
        """
        if stream.state & CLOSED == CLOSED:
            return
        whole = self._stream_room
        count = min(count, whole - stream.room - stream.owed)
        if count <= 0:
            return
        owed = stream.owed + count
        if stream.state & REMOTE_ENDED or (owed * 2 < whole and stream.room > 0):
            stream.owed = owed
        else:
            stream.owed = 0
            stream.room += owed
            self._out.append(window_update_frame(stream.id, owed))
        self._give_back(count)

    def _forget_shapes(self) -> None:
        """Make place for others, when all places are taken."""
        if len(self._shapes) >= SHAPES_REMEMBERED:
            self._shapes.clear()

    def _send_block(self, id: int, block: bytes, end: bool) -> None:
        if self._table_notice:
            # RFC 7541, section 4.2: a change is said at the start of the next block. With no table
            # at all, which is what our blocks use, no later change needs saying.
            self._table_notice = False
            self._plain_most = LONGEST_SHAPED
            block = _TABLE_SIZE_ZERO + block
        self._out += header_frames(id, block, end, self.peer_settings.max_frame_size)

    def _send_pieces(self, stream: Stream, data: bytes | memoryview, end: bool) -> None:
        """Data that both windows allow, in frames that the peer takes."""
        size = len(data)
        most = self.peer_settings.max_frame_size
        out = self._out
        self._window -= size
        stream.window -= size
        if size <= most:
            out.append(FRAME_HEAD.pack(size << 8 | DATA, END_STREAM if end else 0, stream.id))
            if size:
                out.append(data)
        else:
            view = memoryview(data)
            self._sent += size >> 10
            self.bulk += size
            for start in range(0, size, most):
                piece = view[start : start + most]
                flags = END_STREAM if end and start + most >= size else 0
                out.append(FRAME_HEAD.pack(len(piece) << 8 | DATA, flags, stream.id))
                out.append(piece)
        if end:
            self._end_local(stream)

    def _end_local(self, stream: Stream) -> None:
        stream.state |= LOCAL_ENDED
        if stream.state & REMOTE_ENDED:
            self._forget(stream)

    def _line_up(self, stream: Stream) -> None:
        """Put a stream that has something to send, and may, in the line."""
        outbox = stream.outbox
        if outbox is not None and not outbox.ready and (stream.window > 0 or not outbox.size):
            outbox.ready = True
            self._line.append(stream)

    def _pump(self, events: list[Event] | None) -> None:
        """Let out of the streams in the line, frame by frame in turns, what the windows allow."""
        line = self._line
        while line:
            stream = line[0]
            outbox = stream.outbox
            if outbox is None:  # reset while it stood here
                line.popleft()
                continue
            if outbox.size and self._window <= 0:
                return
            line.popleft()
            outbox.ready = False
            if outbox.size and stream.window > 0:
                self._send_turn(stream, outbox, events)
            if outbox.size:
                self._line_up(stream)
                continue
            stream.outbox = None
            if outbox.trailers is not None:
                self.send_trailers(stream, outbox.trailers)
            elif outbox.end and not stream.state & LOCAL_ENDED:
                self.send_data(stream, b"", end=True)

    def _send_turn(self, stream: Stream, outbox: Outbox, events: list[Event] | None) -> None:
        """One frame of a stream's queue."""
        before = outbox.size
        held = outbox.held
        most = min(self.peer_settings.max_frame_size, self._window, stream.window)
        pieces = outbox.take(most)
        sent = before - outbox.size
        self.queued -= sent
        self.held -= held - outbox.held
        self.bulk += sent
        self._window -= sent
        stream.window -= sent
        self._sent += sent >> 10
        end = outbox.end and not outbox.size
        flags = END_STREAM if end else 0
        self._out.append(FRAME_HEAD.pack(sent << 8 | DATA, flags, stream.id))
        self._out += pieces
        if events is not None and (not outbox.size or before > LOW_MARK >= outbox.size):
            events.append(RoomMade(stream))
        if end:
            stream.outbox = None
            self._end_local(stream)
