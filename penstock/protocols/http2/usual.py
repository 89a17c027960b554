"""The frames that traffic is made of, taken in place: no call that can be avoided.

A request's head that is known by its bytes, its body behind it, and data that is all there. What is
anything else, or breaks any rule, is left where it stands, for the loop that takes every frame.

Source: RFC 9113, sections 4.1, 6.1, 6.2.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from struct import Struct
from typing import Any, Final

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

    __slots__ = ("_begun", "_too_long", "_whole")

    def __init__(self, role: Role, limits: Http2Limits, heads: HeadMemo) -> None:
        super().__init__(role, limits, heads)
        self._begun = False  # the peer's first SETTINGS have come
        self._too_long = limits.max_frame_size + 1 << 8
        self._whole = _whole_shape(HEADERS)  # of the request that came last

    def _read_known(self, data: bytes, at: int, until: int, events: list[Event]) -> int:
        """The usual frames, as long as they are whole and nothing is special.

        Args:
            data: as read.
            at: where a frame begins.
            until: no frame is begun from here on, but the one behind a head; nine bytes before the
                end at the latest.
            events: where to put what they mean.

        Returns:
            Where the first frame begins that is something else, or that is not to be begun.
        """
        if self._block_id or not self._begun:
            return at
        size = len(data)
        streams = self.streams
        requests = self._blocks.requests
        window = self.peer_settings.initial_window_size
        stream_room = self._stream_room
        small = self.small
        most_streams = self.limits.max_streams if self._server and not self._final else -1
        room = self._room
        taken = 0  # bytes of whole bodies, which are given back at once
        next_id = self._last_peer + 2
        # The identifiers of so many bytes of heads are all good.
        far = size if next_id + size <= MAX_STREAM_ID else -1
        unpack_whole, whole_word, whole_size = self._whole
        whole_last = far - whole_size
        while at < until:
            if at <= whole_last:
                # A head as long as the last one, and its body behind it in one small frame.
                word, flags, id, block, data_word, data_flags, data_id = unpack_whole(data, at)
                if (
                    word == whole_word
                    and flags == END_HEADERS
                    and data_flags == END_STREAM
                    and data_id == id == next_id
                    and not data_word & 0xFF  # its type is DATA
                ):
                    head = requests.get(block)
                    length = data_word >> 8
                    start = at + whole_size
                    end = start + length
                    if (
                        head is not None
                        and 0 < length <= small
                        and end <= size
                        and length <= room
                        and (head.content_length is None or head.content_length == length)
                        and len(streams) < most_streams
                    ):
                        at = end
                        room -= length
                        taken += length
                        next_id = id + 2
                        streams[id] = stream = Stream()
                        stream.id = id
                        stream.state = _WHOLE
                        stream.window = window
                        stream.room = stream_room
                        stream.expected = LENGTH_UNKNOWN
                        stream.owed = 0
                        stream.outbox = stream.context = None
                        head_event = HeadReceived()
                        head_event.stream = stream
                        head_event.head = head
                        head_event.data = data[start:end]
                        head_event.ended = True
                        events.append(head_event)
                        continue
            word, flags, id = _unpack(data, at)
            start = at + 9
            end = start + (word >> 8)
            if end > size:
                break
            kind = word & 0xFF
            if kind == DATA:
                known = streams.get(id)
                length = end - start
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
            elif kind == HEADERS:
                head = requests.get(data[start:end])
                if (
                    head is None
                    or id != next_id
                    or id > MAX_STREAM_ID
                    or len(streams) >= most_streams
                ):
                    break
                promised = head.content_length
                if flags == _HEAD_AND_END:
                    if promised:
                        break
                elif flags != END_HEADERS:
                    break
                elif word != whole_word:
                    # Of another length: look at it once more, as the beginning of a whole request.
                    self._whole = unpack_whole, whole_word, whole_size = _whole_shape(word)
                    whole_last = far - whole_size
                    continue
                next_id = id + 2
                streams[id] = stream = Stream()
                stream.id = id
                stream.state = HEAD_RECEIVED | flags & END_STREAM  # the bit is REMOTE_ENDED's
                stream.window = window
                stream.room = stream_room
                stream.expected = LENGTH_UNKNOWN if promised is None else promised
                stream.owed = 0
                stream.outbox = stream.context = None
                head_event = HeadReceived()
                head_event.stream = stream
                head_event.head = head
                head_event.data = b""
                head_event.ended = flags == _HEAD_AND_END
                events.append(head_event)
            else:
                break
            at = end
        self._last_peer = next_id - 2
        self._room = room
        if taken:
            self._give_back(taken)
        return at
