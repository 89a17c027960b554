"""DATA on its way in: what has arrived in part is passed on in part.

Source: RFC 9113, section 6.1.
"""

from __future__ import annotations

from penstock.protocols.http2.budget import Nuisance
from penstock.protocols.http2.codes import ConnectionFault, ErrorCode
from penstock.protocols.http2.events import Event, data_received
from penstock.protocols.http2.frames import END_STREAM, PADDED
from penstock.protocols.http2.heading import FrameHandler
from penstock.protocols.http2.limits import Http2Limits, Role
from penstock.protocols.http2.memo import HeadMemo
from penstock.protocols.http2.stream import CLOSED, HEAD_RECEIVED, REMOTE_ENDED, Stream


class DataHandler(FrameHandler):
    """Takes DATA frames, every way that they may come."""

    __slots__ = ("_data_end", "_data_left", "_data_padding", "_data_stream", "_steady")

    def __init__(self, role: Role, limits: Http2Limits, heads: HeadMemo) -> None:
        super().__init__(role, limits, heads)
        self._steady = role is Role.CLIENT  # nothing is held, nothing is in the middle
        # The DATA frame that is arriving: what is still to come of it.
        self._data_stream: Stream | None = None
        self._data_left = 0
        self._data_padding = 0
        self._data_end = False

    def _data(
        self, flags: int, id: int, data: bytes, start: int, length: int, events: list[Event]
    ) -> int:
        """A DATA frame, as much as has come of it.

        Returns:
            0, or how many bytes of the frame are needed to go on.
        """
        overhead = 0
        if flags & PADDED:
            if not length:
                raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, "DATA too short for its padding")
            if start >= len(data):
                return 10
            overhead = data[start] + 1
            if overhead > length:
                raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "more padding than payload")
            start += 1
        self._data_end = flags & END_STREAM != 0
        self._data_left = length - overhead
        self._data_padding = max(overhead - 1, 0)
        self._data_stream = self._admit_data(id, length, overhead, events)
        if not self._data_left:
            self._pass_on(b"", events)
        self._read_data(data, start, events)
        if self._data_left or self._data_padding:
            self._steady = False
        return 0

    def _admit_data(
        self, id: int, length: int, overhead: int, events: list[Event]
    ) -> Stream | None:
        """Check a DATA frame at its head, as a whole; None when its content is passed over."""
        end = self._data_end
        content = length - overhead
        if not id:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "DATA on stream 0")
        if length > self._room:
            raise ConnectionFault(ErrorCode.FLOW_CONTROL_ERROR, "more data than the window allows")
        if not content and not end:
            self._budget.spend(Nuisance.EMPTY)
        self._room -= length
        stream = self.streams.get(id)
        if stream is None:
            self._pass_over(id, end)
            self._give_back(length)
            return None
        if stream.state & REMOTE_ENDED:
            code, text = ErrorCode.STREAM_CLOSED, "DATA behind the end"
        elif not stream.state & HEAD_RECEIVED:
            code, text = ErrorCode.PROTOCOL_ERROR, "DATA before a head"
        elif length > stream.room:
            code, text = ErrorCode.FLOW_CONTROL_ERROR, "more data than the window allows"
        elif stream.expected >= 0 and (
            content > stream.expected or (end and content < stream.expected)
        ):
            code, text = ErrorCode.PROTOCOL_ERROR, "content-length differs from the data"
        else:
            if stream.expected >= 0:
                stream.expected -= content
            stream.room -= length
            self.consumed(stream, overhead)
            return stream
        self._give_back(length)
        self._fault(stream, code, text, events)
        return None

    def _read_data(self, data: bytes, start: int, events: list[Event]) -> int:
        """Content and padding of the DATA frame that is arriving; gives where they end."""
        left = self._data_left
        if left:
            piece = data[start : start + left]
            start += len(piece)
            self._data_left = left - len(piece)
            if piece:
                self._pass_on(piece, events)
        if not self._data_left and self._data_padding:
            skipped = min(self._data_padding, len(data) - start)
            self._data_padding -= skipped
            start += skipped
        return start

    def _pass_on(self, piece: bytes, events: list[Event]) -> None:
        stream = self._data_stream
        end = self._data_end and not self._data_left
        # The driver may have reset it since its frame began; its window is given back by then.
        if stream is None or stream.state & CLOSED == CLOSED or not (piece or end):
            return
        events.append(data_received(stream, piece, end))
        if end:
            self._end_remote(stream)
