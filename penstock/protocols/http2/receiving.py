"""Bytes to frames: the loop over what was read, and the cases that nearly every frame is.

The loop takes a request's head that is known by its bytes, and data that is all there, in place.
Everything else goes to the handlers. DATA that has arrived in part is passed on in part; other
frames wait until they are whole, at most one of them, and no longer than we announced to take.

Source: RFC 9113, sections 3.4, 4.1, 4.2, 6.1.
"""

from __future__ import annotations

from penstock.protocols.http2.budget import Nuisance
from penstock.protocols.http2.codes import ConnectionFault, ErrorCode
from penstock.protocols.http2.events import (
    ConnectionFailed,
    DataReceived,
    Event,
    HeadReceived,
    StreamReset,
    data_received,
)
from penstock.protocols.http2.frames import (
    ACK,
    DATA,
    END_HEADERS,
    END_STREAM,
    FRAME_HEAD,
    HEADERS,
    MAX_STREAM_ID,
    PADDED,
    PREFACE,
    SETTINGS,
    goaway_frame,
)
from penstock.protocols.http2.heading import FrameHandler
from penstock.protocols.http2.limits import Http2Limits, Role
from penstock.protocols.http2.memo import HeadMemo
from penstock.protocols.http2.stream import (
    CLOSED,
    HEAD_RECEIVED,
    LENGTH_UNKNOWN,
    LOCAL_ENDED,
    REMOTE_ENDED,
    Stream,
)

_HEAD_AND_END = END_HEADERS | END_STREAM
_TAKES_DATA = HEAD_RECEIVED | REMOTE_ENDED
_unpack = FRAME_HEAD.unpack_from


class Receiver(FrameHandler):
    """The half of a connection that listens."""

    __slots__ = (
        "_begun",
        "_data_end",
        "_data_left",
        "_data_padding",
        "_data_stream",
        "_held",
        "_needed",
        "_preface_left",
        "_steady",
        "_too_long",
    )

    def __init__(self, role: Role, limits: Http2Limits, heads: HeadMemo) -> None:
        super().__init__(role, limits, heads)
        self._preface_left = PREFACE if role is Role.SERVER else b""
        self._begun = False  # the peer's first SETTINGS have come
        self._steady = role is Role.CLIENT  # nothing is held, nothing is in the middle
        self._too_long = limits.max_frame_size + 1 << 8
        # Bytes of a frame that is not whole, and how many are needed to go on.
        self._held = bytearray()
        self._needed = 0
        # The DATA frame that is arriving: what is still to come of it.
        self._data_stream: Stream | None = None
        self._data_left = 0
        self._data_padding = 0
        self._data_end = False

    def receive(self, data: bytes) -> list[Event]:
        """What the peer's next bytes mean, in their order.

        Args:
            data: as read, cut anywhere.

        Returns:
            Events. A broken rule is a StreamReset where it concerns one stream. Otherwise all open
            streams are reset and ConnectionFailed is the last event ever.
        """
        events: list[Event] = []
        try:
            if self._steady:
                self._read(data, events)
            elif not self.failed:
                self._resume(data, events)
        except ConnectionFault as fault:
            self._fail(fault, events)
        return events

    def _read(self, data: bytes, events: list[Event]) -> None:
        """Frames from the beginning of one; what is left of the last is kept."""
        size = len(data)
        at = self._read_known(data, 0, events)
        while size - at >= 9:
            word, flags, id = _unpack(data, at)
            if word >= self._too_long:
                raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, "frame too large")
            kind = word & 0xFF
            id &= MAX_STREAM_ID
            start = at + 9
            end = start + (word >> 8)
            if kind == DATA and self._begun and not self._block_id:
                needed = self._data(flags, id, data, start, end - start, events)
            elif end <= size:
                needed = 0
                self._check_first(kind, flags)
                self._handle(kind, flags, id, data[start:end], events)
            else:
                needed = end - at
            if needed:
                self._hold(data[at:], needed)
                return
            at = self._read_known(data, end, events)
        if at < size:
            self._hold(data[at:], 9)

    def _read_known(self, data: bytes, at: int, events: list[Event]) -> int:
        """The frames that traffic is made of, as long as they are whole and nothing is special.

        A request's head that is known by its bytes, and data within all limits. Written out, with
        no call that can be avoided: this loop is what a request costs.

        Returns:
            Where the first frame begins that is something else, or where the bytes end.
        """
        if self._block_id or not self._begun:
            return at
        size = len(data)
        streams = self.streams
        requests = self._blocks.requests
        too_long = self._too_long
        window = self.peer_settings.initial_window_size
        stream_room = self._stream_room
        most_streams = self.limits.max_streams if self._server and not self._final else -1
        while size - at >= 9:
            word, flags, id = _unpack(data, at)
            start = at + 9
            end = start + (word >> 8)
            if end > size:
                return at
            kind = word & 0xFF
            if kind == DATA:
                stream = streams.get(id)
                if stream is None or word >= too_long:
                    return at
                length = end - start
                room = self._room - length
                stream_left = stream.room - length
                state = stream.state
                if state & _TAKES_DATA != HEAD_RECEIVED or room < 0 or stream_left < 0:
                    return at
                expected = stream.expected
                if flags == END_STREAM and (expected < 0 or expected == length):
                    stream.state = state | REMOTE_ENDED
                elif flags or not length or expected >= 0:
                    return at
                self._room = room
                stream.room = stream_left
                data_event = DataReceived()
                data_event.stream = stream
                data_event.data = data[start:end]
                data_event.counted = length
                data_event.ended = flags == END_STREAM
                events.append(data_event)
                if flags and state & LOCAL_ENDED:
                    self._forget(stream)
            elif kind == HEADERS:
                head = requests.get(data[start:end])
                if (
                    head is None
                    or id != self._last_peer + 2
                    or id > MAX_STREAM_ID
                    or len(streams) >= most_streams
                ):
                    return at
                length_or_none = head.content_length
                if flags == _HEAD_AND_END:
                    if length_or_none:
                        return at
                elif flags != END_HEADERS:
                    return at
                self._last_peer = id
                streams[id] = stream = Stream()
                stream.id = id
                stream.state = HEAD_RECEIVED | flags & END_STREAM  # the bit is REMOTE_ENDED's
                stream.window = window
                stream.room = stream_room
                stream.expected = LENGTH_UNKNOWN if length_or_none is None else length_or_none
                stream.owed = 0
                stream.outbox = None
                stream.context = None
                head_event = HeadReceived()
                head_event.stream = stream
                head_event.head = head
                head_event.ended = flags == _HEAD_AND_END
                events.append(head_event)
            else:
                return at
            at = end
        return at

    def _check_first(self, kind: int, flags: int) -> None:
        if not self._begun and (kind != SETTINGS or flags & ACK):
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "the first frame is not SETTINGS")
        self._begun = True

    def _hold(self, data: bytes, needed: int) -> None:
        """Keep the beginning of a frame until ``needed`` bytes of it have come."""
        self._held = bytearray(data)
        self._needed = needed
        self._steady = False

    def _resume(self, data: bytes, events: list[Event]) -> None:
        """Go on in the middle of the preface, of a frame, or of data."""
        if self._preface_left:
            data = self._read_preface(data)
        elif self._data_left or self._data_padding:
            data = data[self._read_data(data, 0, events) :]
        elif self._needed:
            self._held += data
            if len(self._held) < self._needed:
                return
            data = bytes(self._held)
            self._held = bytearray()
            self._needed = 0
        if not (self._preface_left or self._data_left or self._data_padding):
            self._steady = True
            self._read(data, events)

    def _read_preface(self, data: bytes) -> bytes:
        expected = self._preface_left
        size = min(len(expected), len(data))
        if data[:size] != expected[:size]:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "no HTTP/2 preface")
        self._preface_left = expected[size:]
        return data[size:]

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

    def _fail(self, fault: ConnectionFault, events: list[Event]) -> None:
        self.failed = self.closing = True
        self._steady = False
        for stream in list(self.streams.values()):
            self._forget(stream)
            events.append(StreamReset(stream, fault.code, fault.text, by_peer=False))
        self._line.clear()
        self._held = bytearray()
        self._block_parts = []
        self._data_stream = None
        text = fault.text.encode("ascii")
        self._out.append(goaway_frame(max(self._last_peer, 0), fault.code, text))
        events.append(ConnectionFailed(fault.code, fault.text))
