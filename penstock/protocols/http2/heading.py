"""Header blocks on their way in: a request opens a stream, a response answers one, trailers end it.

A block that came in several frames is put together first; whatever it belongs to, it is decoded,
because the dynamic table depends on all of them.

Source: RFC 9113, sections 4.3, 6.2, 6.10 and 8.1.
"""

from __future__ import annotations

from typing import Final

from penstock.protocols.http2.blocks import HARD_FACTOR, encode_block
from penstock.protocols.http2.budget import Nuisance
from penstock.protocols.http2.codes import (
    ConnectionFault,
    ErrorCode,
    HeadersTooLarge,
    MalformedMessage,
)
from penstock.protocols.http2.control import ControlHandler
from penstock.protocols.http2.events import Event, TrailersReceived, head_received
from penstock.protocols.http2.frames import (
    CONTINUATION,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEADERS,
    MAX_STREAM_ID,
    PADDED,
    PING,
    PRIORITY,
    PRIORITY_FLAG,
    PUSH_PROMISE,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
)
from penstock.protocols.http2.limits import Http2Limits, Role
from penstock.protocols.http2.memo import HeadMemo
from penstock.protocols.http2.stream import (
    BODILESS,
    HEAD_RECEIVED,
    REMOTE_ENDED,
    Stream,
    new_stream,
)

_TOO_LARGE: Final = encode_block(
    [
        (b":status", b"431"),
        (b"content-length", b"0"),
        # For callers of gRPC, who read these before the status of HTTP: RESOURCE_EXHAUSTED.
        (b"grpc-status", b"8"),
        (b"grpc-message", b"the metadata is too large"),
    ]
)

_PROTOCOL: Final = ErrorCode.PROTOCOL_ERROR
_SIZE: Final = ErrorCode.FRAME_SIZE_ERROR


class FrameHandler(ControlHandler):
    """Answers to every type of frame but DATA."""

    __slots__ = (
        "_block_count",
        "_block_end",
        "_block_id",
        "_block_parts",
        "_block_self_dependent",
        "_block_size",
        "_most_block",
    )

    def __init__(self, role: Role, limits: Http2Limits, heads: HeadMemo) -> None:
        super().__init__(role, limits, heads)
        # The header block that is arriving: only its CONTINUATION may come next.
        self._block_id = 0
        self._block_parts: list[bytes] = []
        self._block_size = 0
        self._block_count = 0
        self._block_end = False
        self._block_self_dependent = False
        self._most_block = limits.max_header_bytes * HARD_FACTOR

    def _handle(self, kind: int, flags: int, id: int, payload: bytes, events: list[Event]) -> None:
        """One whole frame other than DATA."""
        if self._block_id:
            self._continuation(kind, flags, id, payload, events)
        elif kind == HEADERS:
            self._headers(flags, id, payload, events)
        elif kind == WINDOW_UPDATE:
            self._window_update(id, payload, events)
        elif kind == RST_STREAM:
            self._rst_stream(id, payload, events)
        elif kind == SETTINGS:
            self._settings(flags, id, payload, events)
        elif kind == PING:
            self._ping(flags, id, payload, events)
        elif kind == PRIORITY:
            self._priority(id, payload, events)
        elif kind == GOAWAY:
            self._goaway(id, payload, events)
        elif kind == PUSH_PROMISE:
            raise ConnectionFault(_PROTOCOL, "PUSH_PROMISE was not asked for")
        elif kind > CONTINUATION:
            self._budget.spend(Nuisance.OTHER)
        else:
            raise ConnectionFault(_PROTOCOL, "CONTINUATION without HEADERS")

    def _headers(self, flags: int, id: int, payload: bytes, events: list[Event]) -> None:
        if not id:
            raise ConnectionFault(_PROTOCOL, "HEADERS on stream 0")
        start = 0
        stop = len(payload)
        self_dependent = False
        if flags & PADDED:
            if not payload:
                raise ConnectionFault(_SIZE, "HEADERS too short for its padding")
            start = 1
            stop -= payload[0]
        if flags & PRIORITY_FLAG:
            if len(payload) < start + 5:
                raise ConnectionFault(_SIZE, "HEADERS too short for its priority")
            parent = int.from_bytes(payload[start : start + 4], "big") & MAX_STREAM_ID
            self_dependent = parent == id
            start += 5
        if stop < start:
            raise ConnectionFault(_PROTOCOL, "more padding than payload")
        block = payload[start:stop]
        end = flags & END_STREAM != 0
        if flags & END_HEADERS:
            self._block(id, end, block, self_dependent, events)
            return
        if not block:
            self._budget.spend(Nuisance.EMPTY)
        self._block_id = id
        self._block_end = end
        self._block_self_dependent = self_dependent
        self._block_parts = [block]
        self._block_size = len(block)
        self._block_count = 0

    def _continuation(
        self, kind: int, flags: int, id: int, payload: bytes, events: list[Event]
    ) -> None:
        if kind != CONTINUATION or id != self._block_id:
            raise ConnectionFault(_PROTOCOL, "a header block was broken off")
        self._block_count += 1
        self._block_size += len(payload)
        text = "header block too large"
        if self._block_count > self.limits.continuations:
            raise ConnectionFault(ErrorCode.ENHANCE_YOUR_CALM, text, "continuation")
        if self._block_size > self._most_block:
            raise ConnectionFault(ErrorCode.ENHANCE_YOUR_CALM, text, "header")
        if not payload:
            self._budget.spend(Nuisance.EMPTY)
        self._block_parts.append(payload)
        if flags & END_HEADERS:
            block = b"".join(self._block_parts)
            self._block_id = 0
            self._block_parts = []
            self._block(id, self._block_end, block, self._block_self_dependent, events)

    def _block(
        self, id: int, end: bool, block: bytes, self_dependent: bool, events: list[Event]
    ) -> None:
        """A whole header block."""
        stream = self.streams.get(id)
        if stream is None:
            if not self._server or not id & 1 or id <= self._last_peer or self._final:
                self._pass_over(id, end)
                self._blocks.pass_over(block)
                return
            stream = self._opened(id)
            take = self._request
        elif stream.state & REMOTE_ENDED:
            self._blocks.pass_over(block)
            self._fault(stream, ErrorCode.STREAM_CLOSED, "HEADERS behind the end", events)
            return
        elif stream.state & HEAD_RECEIVED:
            take = self._trailers
        else:
            take = self._response
        try:
            if self_dependent:
                self._blocks.pass_over(block)
                raise MalformedMessage("a stream that depends on itself")
            take(stream, end, block, events)
        except MalformedMessage as error:
            self._fault(stream, _PROTOCOL, str(error), events)
        except HeadersTooLarge as error:
            # It took so much longer to decode.
            self._budget.spend(Nuisance.RESET, self._finished(), max(error.times - 1, 0))
            if take == self._request:
                self._refuse_large(stream, end)
            else:
                self._fault(stream, ErrorCode.ENHANCE_YOUR_CALM, str(error), events)

    def _opened(self, id: int) -> Stream:
        """A stream that a client opens; it is not among the open ones yet."""
        if id != self._last_peer + 2:
            self._gaps.append(range(self._last_peer + 2, id, 2))
        self._last_peer = id
        window = self.peer_settings.initial_window_size
        return new_stream(id, HEAD_RECEIVED, window, self._stream_room)

    def _request(self, stream: Stream, end: bool, block: bytes, events: list[Event]) -> None:
        if end:
            stream.state |= REMOTE_ENDED
        head = self._blocks.request(block)
        length = head.content_length
        if length is not None:
            if end and length:
                raise MalformedMessage("content-length without a body")
            stream.expected = length
        if len(self.streams) >= self.limits.max_streams:
            kind = Nuisance.REFUSED if self._settings_under_way else Nuisance.RESET
            self._fault(stream, ErrorCode.REFUSED_STREAM, "too many streams", events, kind)
            return
        self.streams[stream.id] = stream
        events.append(head_received(stream, head, end))

    def _refuse_large(self, stream: Stream, end: bool) -> None:
        """Answer a request whose head is too large; the driver never hears of it."""
        self.heads_refused += 1
        self._budget.spend(Nuisance.RESET, self._finished())
        self._send_block(stream.id, _TOO_LARGE, True)
        self._answers += len(_TOO_LARGE)
        self._answer(b"" if end else self._reset(stream, ErrorCode.NO_ERROR))

    def _response(self, stream: Stream, end: bool, block: bytes, events: list[Event]) -> None:
        head = self._blocks.response(block)
        status = head.status
        if status < 200:
            if end:
                raise MalformedMessage("an interim response that ends the stream")
            self._budget.spend(Nuisance.OTHER)
            return
        stream.state |= HEAD_RECEIVED
        if stream.state & BODILESS or status == 204 or status == 304:
            stream.expected = 0
        elif b"content-length" in head.fields:
            stream.expected = int(head.fields[b"content-length"])
        if end:
            if stream.expected > 0:
                raise MalformedMessage("content-length without a body")
            self._end_remote(stream)
        events.append(head_received(stream, head, end))

    def _trailers(self, stream: Stream, end: bool, block: bytes, events: list[Event]) -> None:
        headers = self._blocks.ending(block)
        if not end:
            raise MalformedMessage("a second head")
        if stream.expected > 0:
            raise MalformedMessage("less data than content-length")
        self._end_remote(stream)
        events.append(TrailersReceived(stream, headers))
