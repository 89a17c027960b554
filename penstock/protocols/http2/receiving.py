"""Bytes to frames: the loop over what was read, and the cases that nearly every frame is.

The loop takes a request's head that is known by its bytes, and data that is all there, in place.
Everything else goes to the handlers. Frames other than DATA wait until they are whole, at most one
of them, and no longer than we announced to take.

A read may hold tens of thousands of frames. A driver that serves others meanwhile says how many
events it wants at most; the rest of the read then waits for ``go_on``.

Source: RFC 9113, sections 3.4, 4.1, 4.2.
"""

from __future__ import annotations

from typing import Final

from penstock.protocols.http2.budget import Nuisance
from penstock.protocols.http2.codes import ConnectionFault, ErrorCode
from penstock.protocols.http2.data import DataHandler
from penstock.protocols.http2.events import (
    ConnectionFailed,
    DataReceived,
    Event,
    HeadReceived,
    StreamReset,
)
from penstock.protocols.http2.frames import (
    ACK,
    DATA,
    END_HEADERS,
    END_STREAM,
    FRAME_HEAD,
    HEADERS,
    MAX_STREAM_ID,
    PREFACE,
    SETTINGS,
    goaway_frame,
)
from penstock.protocols.http2.limits import Http2Limits, Role
from penstock.protocols.http2.memo import HeadMemo
from penstock.protocols.http2.stream import (
    HEAD_RECEIVED,
    LENGTH_UNKNOWN,
    LOCAL_ENDED,
    REMOTE_ENDED,
    Stream,
)

_STRIDE: Final = 2048
"""Bytes of frames that are worked through between two looks at how many they were; fewer for whom a
few events are enough."""

_BYTES_PER_EVENT: Final = 64
"""Bytes that they have for each event that is wanted."""

_FEW: Final = 16
"""Frames of one turn that are never too many, however small, unless turns are to be shorter."""

_SMALL: Final = 16
"""Bytes of a frame, with its head, below which it counts as small: not even a message of gRPC with
its prefix and two bytes needs so few."""

_ALL: Final = 1 << 62

_HEAD_AND_END = END_HEADERS | END_STREAM
_TAKES_DATA = HEAD_RECEIVED | REMOTE_ENDED
_unpack = FRAME_HEAD.unpack_from


class Receiver(DataHandler):
    """The half of a connection that listens.

    Attributes:
        behind: bytes that were received and wait for ``go_on``.
    """

    __slots__ = (
        "_begun",
        "_held",
        "_needed",
        "_preface_left",
        "_rest",
        "_rest_at",
        "_too_long",
        "behind",
    )

    def __init__(self, role: Role, limits: Http2Limits, heads: HeadMemo) -> None:
        super().__init__(role, limits, heads)
        self._preface_left = PREFACE if role is Role.SERVER else b""
        self._begun = False  # the peer's first SETTINGS have come
        self._too_long = limits.max_frame_size + 1 << 8
        # Bytes of a frame that is not whole, and how many are needed to go on.
        self._held = bytearray()
        self._needed = 0
        # What waits for go_on: a read, and where its next frame begins.
        self._rest = b""
        self._rest_at = 0
        self.behind = 0

    def receive(self, data: bytes, most: int = _ALL) -> list[Event]:
        """What the peer's next bytes mean, in their order.

        Args:
            data: as read, cut anywhere.
            most: stop after about so many events, or frames without any. What is left of the data
                is ``behind`` then: call ``go_on``, and read no more before nothing is left.

        Returns:
            Events. A broken rule is a StreamReset where it concerns one stream. Otherwise all open
            streams are reset and ConnectionFailed is the last event ever.
        """
        events: list[Event] = []
        try:
            if self.behind:
                self._rest = self._rest[self._rest_at :] + data
                self._rest_at = 0
                self.behind = len(self._rest)
            elif self._steady:
                self._read(data, 0, events, most)
            elif not self.failed:
                self._resume(data, events, most)
        except ConnectionFault as fault:
            self._fail(fault, events)
        return events

    def go_on(self, most: int = _ALL) -> list[Event]:
        """What is behind, as ``receive`` gives it."""
        events: list[Event] = []
        data, at = self._rest, self._rest_at
        self._rest = b""
        self.behind = 0
        try:
            if data:
                self._read(data, at, events, most)
        except ConnectionFault as fault:
            self._fail(fault, events)
        return events

    def _read(self, data: bytes, at: int, events: list[Event], most: int) -> None:
        """Frames from the beginning of one; what is left of the last is kept."""
        size = len(data)
        last = size - 9
        begin = at
        silent = 0  # frames without an event
        needed = 0
        stride = min(_STRIDE, most * _BYTES_PER_EVENT)
        while True:
            until = at + stride
            at = self._read_known(data, at, until if until <= last else last + 1, events)
            count = len(events) + silent
            if at > last:
                break
            if count >= most:
                self._rest = data
                self._rest_at = at
                self.behind = size - at
                break
            if at >= until:
                continue
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
                break
            if len(events) + silent == count:
                silent += 1
            at = end
        if at < size and not self.behind:
            self._hold(data[at:], needed or 9)
        if (count > _FEW or most < _FEW) and self._server:
            self._judge_size(count, at - begin)

    def _judge_size(self, count: int, size: int) -> None:
        """So many frames had so many bytes: each costs us as much as a large one."""
        more = count - size // _SMALL
        if more > 0:
            self._budget.spend(Nuisance.SMALL, count=more)

    def _read_known(self, data: bytes, at: int, until: int, events: list[Event]) -> int:
        """The frames that traffic is made of, as long as they are whole and nothing is special.

        A request's head that is known by its bytes, and data within all limits. Written out, with
        no call that can be avoided: this loop is what a request costs.

        Args:
            data: as read.
            at: where a frame begins.
            until: no frame is begun from here on, which is nine bytes before the end at the latest.
            events: where to put what they mean.

        Returns:
            Where the first frame begins that is something else, or that is not to be begun.
        """
        if self._block_id or not self._begun:
            return at
        size = len(data)
        streams = self.streams
        requests = self._blocks.requests
        too_long = self._too_long
        window = self.peer_settings.initial_window_size
        stream_room = self._stream_room
        small = self.small
        most_streams = self.limits.max_streams if self._server and not self._final else -1
        while at < until:
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
                head_event.data = b""
                head_event.ended = flags == _HEAD_AND_END
                events.append(head_event)
                if flags == END_HEADERS and end < until:
                    # The body behind it, when that is one small frame.
                    word, flags, next_id = _unpack(data, end)
                    length = word >> 8
                    start = end + 9
                    if (
                        flags == END_STREAM
                        and next_id == id
                        and word & 0xFF == DATA
                        and 0 < length <= small
                        and length <= self._room
                        and start + length <= size
                        and word < too_long
                        and (length_or_none is None or length_or_none == length)
                    ):
                        end = start + length
                        self._room -= length
                        stream.room = stream_room - length
                        stream.state = HEAD_RECEIVED | REMOTE_ENDED
                        head_event.data = data[start:end]
                        head_event.ended = True
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

    def _resume(self, data: bytes, events: list[Event], most: int) -> None:
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
            self._read(data, 0, events, most)

    def _read_preface(self, data: bytes) -> bytes:
        expected = self._preface_left
        size = min(len(expected), len(data))
        if data[:size] != expected[:size]:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "no HTTP/2 preface")
        self._preface_left = expected[size:]
        return data[size:]

    def _fail(self, fault: ConnectionFault, events: list[Event]) -> None:
        self.failed = self.closing = True
        self._steady = False
        for stream in list(self.streams.values()):
            self._forget(stream)
            events.append(StreamReset(stream, fault.code, fault.text, by_peer=False))
        self._line.clear()
        self._held = bytearray()
        self._rest = b""
        self.behind = 0
        self._block_parts = []
        self._data_stream = None
        text = fault.text.encode("ascii")
        self._out.append(goaway_frame(max(self._last_peer, 0), fault.code, text))
        events.append(ConnectionFailed(fault.code, fault.text, fault.nuisance))
