"""The frames that traffic is made of, taken in place: no call that can be avoided.

A request's head that is known by its bytes, its body, right behind it or behind other heads, and
data that is all there. What is anything else, or breaks any rule, is left where it stands, for the
loop that takes every frame.

Source: RFC 9113, sections 4.1, 6.1, 6.2.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from struct import Struct
from typing import Any, Final, Literal

from penstock.protocols.http2.data import DataHandler
from penstock.protocols.http2.events import DataReceived, Event, HeadReceived
from penstock.protocols.http2.frames import (
    DATA,
    END_HEADERS,
    END_STREAM,
    FRAME_HEAD,
    HEADERS,
    MAX_STREAM_ID,
)
from penstock.protocols.http2.limits import Http2Limits, Role
from penstock.protocols.http2.memo import HeadMemo
from penstock.protocols.http2.shapes import ReadShape, shape_of
from penstock.protocols.http2.stream import (
    HEAD_RECEIVED,
    LENGTH_UNKNOWN,
    LOCAL_ENDED,
    REMOTE_ENDED,
    Stream,
)

_HEAD_AND_END: Final = END_HEADERS | END_STREAM
_TAKES_DATA: Final = HEAD_RECEIVED | REMOTE_ENDED
_WHOLE: Final = HEAD_RECEIVED | REMOTE_ENDED
_unpack = FRAME_HEAD.unpack_from

SIZES_REMEMBERED: Final = 4
"""Sizes of reads of which a connection keeps what shape they have, for a second at most. So who
sends reads that are alike in nothing but their size makes us look a few times a second."""


@lru_cache(maxsize=128)
def _whole_shape(word: int) -> tuple[Callable[[bytes, int], tuple[Any, ...]], int, int]:
    """How to read HEADERS with this length and type, and the head of the frame behind it, at once.

    Returns:
        the reader, the word, and the bytes of both.
    """
    shape = Struct(f">IBI{word >> 8}sIBI")
    return shape.unpack_from, word, shape.size


class UsualFrames(DataHandler):
    """Takes the usual frames."""

    __slots__ = ("_begun", "_last_size", "_read_shapes", "_too_long", "_whole")

    def __init__(self, role: Role, limits: Http2Limits, heads: HeadMemo) -> None:
        super().__init__(role, limits, heads)
        self._begun = False  # the peer's first SETTINGS have come
        self._too_long = limits.max_frame_size + 1 << 8
        self._whole = _whole_shape(HEADERS)  # of the request that came last
        self._last_size = 0  # of the read that came last
        # By the size of reads; False where they have none, or not always the same.
        self._read_shapes: dict[int, ReadShape | Literal[False]] = {}

    def _read_known(self, data: bytes, at: int, until: int, events: list[Event]) -> int:
        """The usual frames, as long as they are whole and nothing is special.

        Args:
            data: as read.
            at: where a frame begins.
            until: no frame is begun from here on, but the one behind a head; nine bytes before the
                end at the latest.
            events: where to put what they mean; a small body goes with its head.

        Returns:
            Where the first frame begins that is something else, or that is not to be begun.
        """
        size = len(data)
        next_id = self._last_peer + 2
        # Near the last identifier of all, each is looked at by itself.
        if self._block_id or not self._begun or next_id + size > MAX_STREAM_ID:
            return at
        streams = self.streams
        # A read from its beginning on, and no part of it is for later.
        if not at and until == size - 8 and self._server:
            shape = self._read_shapes.get(size)
            if shape:
                if self._read_shaped(data, shape, events):
                    return size
            elif shape is None and size == self._last_size:
                self._learn_shape(data)
            self._last_size = size
        requests = self._blocks.requests
        window = self.peer_settings.initial_window_size
        stream_room = self._stream_room
        small = self.small
        most_streams = self.limits.max_streams if self._server and not self._final else -1
        room = self._room
        taken = 0  # bytes of whole bodies, which are given back at once
        bodiless: dict[int, HeadReceived] = {}  # heads of this data whose body may follow in it
        unpack_whole, whole_word, whole_size = self._whole
        whole_last = size - whole_size
        while at < until:
            kind = data[at + 3]
            if kind == HEADERS:
                if at <= whole_last:
                    word, flags, id, block, next_word, next_flags, data_id = unpack_whole(data, at)
                    end = at + 9 + (word >> 8)
                else:
                    word, flags, id = _unpack(data, at)
                    end = at + 9 + (word >> 8)
                    block = data[at + 9 : end]
                    data_id = 0
                if word != whole_word or end > size:
                    if end > size or data[at + 9 : end] not in requests:
                        break
                    # Of another length than the one before: once more, with its own shape.
                    self._whole = unpack_whole, whole_word, whole_size = _whole_shape(word)
                    whole_last = size - whole_size
                    continue
                head = requests.get(block)
                if head is None or id != next_id or len(streams) >= most_streams:
                    break
                expected = head.content_length
                if flags != END_HEADERS and (flags != _HEAD_AND_END or expected):
                    break
                at = end
                next_id = id + 2
                streams[id] = stream = Stream()
                stream.id = id
                stream.window = window
                stream.room = stream_room
                stream.expected = LENGTH_UNKNOWN if expected is None else expected
                stream.owed = 0
                stream.outbox = stream.context = None
                head_event = HeadReceived()
                head_event.stream = stream
                head_event.head = head
                events.append(head_event)
                if data_id == id and next_flags == END_STREAM and not next_word & 0xFF:  # DATA
                    length = next_word >> 8
                    start = end + 9
                    end = start + length
                    if (
                        0 < length <= small
                        and length <= room
                        and end <= size
                        and (expected is None or expected == length)
                        and flags == END_HEADERS
                    ):
                        at = end
                        room -= length
                        taken += length
                        stream.state = _WHOLE
                        head_event.data = data[start:end]
                        head_event.ended = True
                        continue
                head_event.data = b""
                if flags == END_HEADERS:
                    stream.state = HEAD_RECEIVED
                    head_event.ended = False
                    bodiless[id] = head_event
                else:
                    stream.state = _WHOLE
                    head_event.ended = True
            elif kind == DATA:
                word, flags, id = _unpack(data, at)
                start = at + 9
                length = word >> 8
                end = start + length
                if end > size:
                    break
                head_or_none = bodiless.pop(id, None)
                if (
                    head_or_none is not None
                    and flags == END_STREAM
                    and 0 < length <= small
                    and length <= room
                ):
                    stream = head_or_none.stream
                    if stream.expected < 0 or stream.expected == length:
                        at = end
                        room -= length
                        taken += length
                        stream.state = _WHOLE
                        head_or_none.data = data[start:end]
                        head_or_none.ended = True
                        continue
                known = streams.get(id)
                if (
                    known is None
                    or word >= self._too_long
                    or known.state & _TAKES_DATA != HEAD_RECEIVED
                    or length > room
                    or length > known.room
                ):
                    break
                expected = known.expected
                if flags == END_STREAM and (expected < 0 or expected == length):
                    known.state |= REMOTE_ENDED
                elif flags or not length or expected >= 0:
                    break
                at = end
                room -= length
                known.room -= length
                data_event = DataReceived()
                data_event.stream = known
                data_event.data = data[start:end]
                data_event.counted = length
                data_event.ended = flags == END_STREAM
                events.append(data_event)
                if flags and known.state & LOCAL_ENDED:
                    self._room = room
                    self._forget(known)
                    room = self._room
            else:
                break
        self._last_peer = next_id - 2
        self._room = room
        if taken:
            self._give_back(taken)
        return at

    def _read_shaped(self, data: bytes, shape: ReadShape, events: list[Event]) -> bool:
        """All of a read, if its shape is this and nothing in it is special.

        Returns:
            Whether it has been taken; otherwise nothing has.
        """
        count = shape.count
        streams = self.streams
        if (
            self._final
            or len(streams) + count > self.limits.max_streams
            or shape.total > self._room
            or shape.longest > self.small
        ):
            return False
        fields = shape.unpack(data)
        blocks = fields[shape.blocks]
        block = blocks[0]
        head = self._blocks.requests.get(block)
        next_id = self._last_peer + 2
        ids = tuple(range(next_id, next_id + 2 * count, 2))
        expected = None if head is None else head.content_length
        if (
            fields[shape.marks] != shape.right
            or head is None
            or blocks.count(block) != count
            or fields[shape.head_ids] != ids
            or fields[shape.body_ids] != ids
            or (expected is not None and expected != shape.length)
        ):
            self._read_shapes[len(data)] = False
            return False
        if expected is None:
            expected = LENGTH_UNKNOWN
        window = self.peer_settings.initial_window_size
        room = self._stream_room
        for id, body in zip(ids, fields[shape.bodies], strict=True):
            streams[id] = stream = Stream()
            stream.id = id
            stream.state = _WHOLE
            stream.window = window
            stream.room = room
            stream.expected = expected
            stream.owed = 0
            stream.outbox = stream.context = None
            event = HeadReceived()
            event.stream = stream
            event.head = head
            event.data = body
            event.ended = True
            events.append(event)
        self._last_peer = next_id + 2 * count - 2
        self._room -= shape.total
        self._give_back(shape.total)
        return True

    def _learn_shape(self, data: bytes) -> None:
        """The second read of this size: the next one may be like it, too."""
        if len(self._read_shapes) < SIZES_REMEMBERED:
            self._read_shapes[len(data)] = shape_of(data) or False

    def _forget_read_shapes(self) -> None:
        """Look for them anew."""
        if self._read_shapes:
            self._read_shapes.clear()
