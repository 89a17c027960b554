"""The state machine of an HTTP/2 connection, for servers and clients: bytes to events, no I/O.

It has no sockets, clock or application. The driver passes received bytes to ``receive``, writes the
result of ``take_output``, calls ``refill`` once a second, and closes after ``ConnectionFailed``.

A read may hold tens of thousands of frames. A driver with other connections limits the frames of
one call; ``go_on`` continues with the rest of the read. Partial DATA frames are delivered in parts.
Any other partial frame is buffered, at most one, of at most the announced maximum size.

A violation of the protocol is a ConnectionFault, which ends the connection, or a stream error,
which is answered with RST_STREAM and counted, because provoking resets is as cheap an attack as
sending them.

Guarantees: ``receive`` never raises; events do not depend on the boundaries of reads, except for
the pieces of data; every stream that an event reported ends with an event or a call of the driver;
memory is bounded by the limits and by the data that the driver has sent or not consumed.

Source: RFC 9113 and RFC 7541.
"""

from __future__ import annotations

from typing import Final

from penstock.protocols.heads import RequestHead
from penstock.protocols.http2.codes import (
    ConnectionFault,
    ErrorCode,
    HeadersTooLarge,
    MalformedMessage,
)
from penstock.protocols.http2.events import (
    ConnectionFailed,
    DataReceived,
    Event,
    GoawayReceived,
    HeadReceived,
    HeadTooLarge,
    PingAcknowledged,
    StreamReset,
    TrailersReceived,
)
from penstock.protocols.http2.frames import (
    ACK,
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    FRAME_HEAD,
    GOAWAY,
    HEADERS,
    MAX_STREAM_ID,
    MAX_WINDOW,
    PADDED,
    PING,
    PREFACE,
    PRIORITY,
    PRIORITY_FLAG,
    PUSH_PROMISE,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    frame,
    goaway_frame,
)
from penstock.protocols.http2.hpack import HARD_FACTOR, FieldDecoder
from penstock.protocols.http2.limits import Abuse, Http2Limits, Role
from penstock.protocols.http2.messages import request_head, response_head, trailers
from penstock.protocols.http2.sending import Sending
from penstock.protocols.http2.stream import (
    BODILESS,
    CLOSED,
    HEAD_RECEIVED,
    LENGTH_UNKNOWN,
    LOCAL_ENDED,
    REMOTE_ENDED,
    Stream,
    new_stream,
)

EARNED_BY_TRAFFIC: Final = 4
"""Additional window updates and priorities allowed per stream, message and kilobyte sent."""

_FEW: Final = 16
"""Number of frames in one call that never count as too many small frames."""

_SMALL: Final = 16
"""Bytes of a frame, with its head, below which it counts as small; a gRPC message of two bytes with
its prefix is larger."""

_ALL: Final = 1 << 62
_WHOLE_BLOCK: Final = END_HEADERS | END_STREAM
_SETTINGS_ACK: Final = frame(SETTINGS, ACK, 0)
_PROTOCOL: Final = ErrorCode.PROTOCOL_ERROR
_SIZE: Final = ErrorCode.FRAME_SIZE_ERROR

_usual: Final = Http2Limits()
_unpack: Final = FRAME_HEAD.unpack_from


class Http2Connection(Sending):
    """One side of a connection.

    A new connection has its preface and SETTINGS as pending output. Sending on an ended stream is
    not an error: the data is dropped.

    Attributes:
        behind: received bytes that ``go_on`` must still process.

    Thread rule: one thread at a time.
    """

    __slots__ = (
        "_begun",
        "_block_count",
        "_block_end",
        "_block_id",
        "_block_parts",
        "_block_size",
        "_data_end",
        "_data_left",
        "_data_padding",
        "_data_stream",
        "_decoder",
        "_last_fields",
        "_last_head",
        "_most_block",
        "_needed",
        "_new_requests",
        "_opened_at_refill",
        "_partial",
        "_ping_mark",
        "_pings_under_way",
        "_preface_left",
        "_rest",
        "_rest_at",
        "_settings_received",
        "_strict",
        "_too_long",
        "_traffic_at_refill",
        "_within",
        "behind",
    )

    def __init__(self, role: Role, limits: Http2Limits = _usual) -> None:
        super().__init__(role, limits)
        self._decoder = FieldDecoder(limits)
        self._last_fields: list[tuple[bytes, bytes]] | None = None
        self._last_head: RequestHead  # made from _last_fields
        self._begun = False  # the peer's first SETTINGS were received
        self._strict = True  # only one kind of frame is allowed next
        self._within = self._server  # inside the preface, a partial frame, or partial data
        self._preface_left = PREFACE if self._server else b""
        self._too_long = limits.max_frame_size + 1 << 8
        # The partial frame, and how many further bytes it needs.
        self._partial = bytearray()
        self._needed = 0
        # The read that go_on continues, and where its next frame begins.
        self._rest = b""
        self._rest_at = 0
        self.behind = 0
        # Requests whose heads were received in this call, without their bodies.
        self._new_requests: dict[int, HeadReceived] = {}
        # The partial header block: only its CONTINUATION is allowed next.
        self._block_id = 0
        self._block_parts: list[bytes] = []
        self._block_size = 0
        self._block_count = 0
        self._block_end = False
        self._most_block = limits.max_header_bytes * HARD_FACTOR
        # The partial DATA frame: its missing bytes.
        self._data_stream: Stream | None = None
        self._data_left = 0
        self._data_padding = 0
        self._data_end = False
        # The traffic that the peer's control frames are compared with.
        self._opened_at_refill = 0
        self._ping_mark = (0, 0)
        self._pings_under_way = 0
        self._settings_received = False
        self._traffic_at_refill = 0

    @property
    def unfinished(self) -> object | None:
        """Identifies the partial frame, header block or preface that blocks all further input.

        The same object as long as the same item is incomplete; None if nothing is. Partial DATA
        does not count, because it is delivered in parts.
        """
        if self._block_id:
            return self._block_parts
        if self._needed:
            return self._partial
        return None if self._begun else self._abuse

    @property
    def is_abused(self) -> bool:
        """Whether the peer abuses the protocol; tolerated until its allowance is used up."""
        return self._abuse.strained

    @property
    def has_output(self) -> bool:
        """Whether there is pending output."""
        return bool(self._out)

    def take_output(self) -> bytes:
        """Return and clear the pending output.

        Do not call it while the transport's buffer is above its high mark: unread answers then pile
        up here, which detects a peer that does not read.
        """
        out = self._out
        if not out:
            return b""
        data = b"".join(out)
        out.clear()
        self._answers = self.bulk = 0
        return data

    def take_pieces(self) -> list[bytes | memoryview]:
        """The same without joining pieces, which is cheaper if ``bulk`` is large."""
        out, self._out = self._out, []
        self._answers = self.bulk = 0
        return out

    def ping(self, payload: bytes) -> None:
        """Send a PING with these eight bytes; its answer is the event PingAcknowledged."""
        if len(payload) != 8:
            raise ValueError("the payload of a ping is eight bytes")
        if self.failed:
            return
        self._pings_under_way += 1
        self._out.append(frame(PING, 0, 0, payload))

    def go_away(self, *, final: bool, code: int = 0) -> None:
        """Send GOAWAY, in two steps.

        The first asks the peer to open no more streams; those in flight are still accepted. The
        final one, a round trip later, names the last accepted stream; later ones are ignored.

        Args:
            final: which step.
            code: the error code.
        """
        if self.failed or self._final:
            return
        self.closing = True
        last = MAX_STREAM_ID
        if final:
            self._final = True
            last = max(self._last_peer, 0)
        self._out.append(goaway_frame(last, code))

    def refill(self) -> None:
        """Reset the peer's allowances; to be called once a second."""
        self._abuse.refill()
        self._traffic_at_refill = self._traffic()
        self._opened_at_refill = (self._last_peer + self._next_own) // 2

    # Bytes to frames.

    def receive(self, data: bytes, most: int = _ALL) -> list[Event]:
        """Process received bytes to events.

        Args:
            data: the bytes of one read.
            most: stop after so many frames. ``behind`` counts the rest of the data: call ``go_on``
                until it is 0 before the next read.

        Returns:
            Events. A stream error is a StreamReset. After a connection error all open streams are
            reset, and ConnectionFailed is the last event.
        """
        events: list[Event] = []
        try:
            if self.behind:
                self._rest = self._rest[self._rest_at :] + data
                self._rest_at = 0
                self.behind = len(self._rest)
            elif not self._within:
                self._read(data, 0, events, most)
            elif not self.failed:
                self._resume(data, events, most)
        except ConnectionFault as fault:
            self._fail(fault, events)
        return events

    def go_on(self, most: int = _ALL) -> list[Event]:
        """Process bytes that are ``behind``, as ``receive`` does."""
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
        """Process frames from the beginning of one; a partial last frame is buffered."""
        size = len(data)
        last = size - 9
        begin = at
        frames = 0
        needed = 9
        too_long = self._too_long
        self._new_requests = {}
        while at <= last:
            if frames == most:
                self._rest = data
                self._rest_at = at
                self.behind = size - at
                break
            word, flags, id = _unpack(data, at)
            if word >= too_long:
                raise ConnectionFault(_SIZE, "frame too large")
            kind = word & 0xFF
            start = at + 9
            end = start + (word >> 8)
            if kind == DATA and not self._strict:
                if needed := self._data(flags, id & MAX_STREAM_ID, data, start, end, events):
                    break
                needed = 9
            elif end > size:
                needed = end - at
                break
            elif kind == HEADERS and flags | END_STREAM == _WHOLE_BLOCK and not self._strict:
                self._block(id & MAX_STREAM_ID, flags & END_STREAM, data[start:end], events)
            else:
                self._handle(kind, flags, id & MAX_STREAM_ID, data[start:end], events)
            frames += 1
            at = end
        if at < size and not self.behind:
            self._partial = bytearray(data[at:])
            self._needed = needed
            self._within = True
        if (frames > _FEW or most <= _FEW) and self._server:
            # A small frame costs as much time as a large one.
            small = frames - (min(at, size) - begin) // _SMALL
            if small > 0:
                self._abuse.spend(Abuse.SMALL, count=small)

    def _resume(self, data: bytes, events: list[Event], most: int) -> None:
        """Continue in the middle of the preface, of a frame, or of data."""
        if self._preface_left:
            data = self._read_preface(data)
        elif self._data_left or self._data_padding:
            data = data[self._read_data(data, 0, events) :]
        elif self._needed:
            self._partial += data
            if len(self._partial) < self._needed:
                return
            data = bytes(self._partial)
            self._partial = bytearray()
            self._needed = 0
        if not (self._preface_left or self._data_left or self._data_padding):
            self._within = False
            self._read(data, 0, events, most)

    def _read_preface(self, data: bytes) -> bytes:
        expected = self._preface_left
        size = min(len(expected), len(data))
        if data[:size] != expected[:size]:
            raise ConnectionFault(_PROTOCOL, "no HTTP/2 preface")
        self._preface_left = expected[size:]
        return data[size:]

    def _fail(self, fault: ConnectionFault, events: list[Event]) -> None:
        self.failed = self.closing = self._within = True
        for stream in list(self.streams.values()):
            self._forget(stream)
            events.append(StreamReset(stream, fault.code, fault.text, by_peer=False))
        self._ready.clear()
        self._partial = bytearray()
        self._rest = b""
        self.behind = 0
        self._block_parts = []
        self._data_stream = None
        text = fault.text.encode("ascii")
        self._out.append(goaway_frame(max(self._last_peer, 0), fault.code, text))
        events.append(ConnectionFailed(fault.code, fault.text, fault.abuse))

    def _handle(self, kind: int, flags: int, id: int, payload: bytes, events: list[Event]) -> None:
        """Process a whole frame: any but DATA, and DATA while ``_strict`` is set."""
        if not self._begun:
            if kind != SETTINGS or flags & ACK:
                raise ConnectionFault(_PROTOCOL, "the first frame is not SETTINGS")
            self._begun = True
            self._strict = False
        if self._block_id:
            self._continuation(kind, flags, id, payload, events)
        elif kind == HEADERS:
            self._headers(flags, id, payload, events)
        elif kind == WINDOW_UPDATE:
            self._window_update(id, payload, events)
        elif kind == RST_STREAM:
            self._rst_stream(id, payload, events)
        elif kind == SETTINGS:
            self._settings(flags, id, payload)
        elif kind == PING:
            self._ping(flags, id, payload, events)
        elif kind == PRIORITY:
            self._priority(id, payload, events)
        elif kind == GOAWAY:
            self._goaway(id, payload, events)
        elif kind == PUSH_PROMISE:
            raise ConnectionFault(_PROTOCOL, "PUSH_PROMISE was not asked for")
        elif kind > CONTINUATION:
            self._abuse.spend(Abuse.OTHER)
        else:
            raise ConnectionFault(_PROTOCOL, "CONTINUATION without HEADERS")

    # DATA.

    def _data(
        self, flags: int, id: int, data: bytes, start: int, end: int, events: list[Event]
    ) -> int:
        """Process a DATA frame, perhaps partial.

        Returns:
            0, or how many further bytes are needed to continue.
        """
        length = end - start
        overhead = 0
        head = self._new_requests.pop(id, None)
        if (
            head is not None
            and flags == END_STREAM
            and 0 < length <= self.small
            and end <= len(data)
            and length <= self._receive_window
            and (stream := head.stream).state == HEAD_RECEIVED
            and length <= stream.receive_window
            and stream.expected in (LENGTH_UNKNOWN, length)
        ):
            # The whole body of a request whose head came just before, the usual case.
            self._receive_window -= length
            stream.receive_window -= length
            stream.state |= REMOTE_ENDED
            head.data = data[start:end]
            head.ended = True
            return 0
        if flags & PADDED:
            if not length:
                raise ConnectionFault(_SIZE, "DATA too short for its padding")
            if start >= len(data):
                return 10
            overhead = data[start] + 1
            if overhead > length:
                raise ConnectionFault(_PROTOCOL, "more padding than payload")
            start += 1
        ended = flags & END_STREAM != 0
        admitted = self._admit_data(id, length, overhead, ended, events)
        if overhead or end > len(data):
            self._data_end = ended
            self._data_left = length - overhead
            self._data_padding = max(overhead - 1, 0)
            self._data_stream = admitted
            if not self._data_left:
                self._deliver(b"", events)
            self._read_data(data, start, events)
            self._within = self._data_left > 0 or self._data_padding > 0
        elif admitted is not None and (length or ended):
            self._add_data(admitted, data[start:end], ended, events)
        return 0

    def _admit_data(
        self, id: int, length: int, overhead: int, ended: bool, events: list[Event]
    ) -> Stream | None:
        """Validate a DATA frame by its head. Returns None if its content is to be ignored."""
        content = length - overhead
        if length > self._receive_window:
            raise ConnectionFault(ErrorCode.FLOW_CONTROL_ERROR, "more data than the window allows")
        if not content and not ended:
            self._abuse.spend(Abuse.EMPTY)
        self._receive_window -= length
        stream = self.streams.get(id)
        if stream is None:
            if not id:
                raise ConnectionFault(_PROTOCOL, "DATA on stream 0")
            self._ignore_or_fail(id, ended)
            self._give_back(length)
            return None
        expected = stream.expected
        if stream.state & REMOTE_ENDED:
            code, text = ErrorCode.STREAM_CLOSED, "DATA behind the end"
        elif not stream.state & HEAD_RECEIVED:
            code, text = _PROTOCOL, "DATA before a head"
        elif length > stream.receive_window:
            code, text = ErrorCode.FLOW_CONTROL_ERROR, "more data than the window allows"
        elif expected >= 0 and (content > expected or (ended and content < expected)):
            code, text = _PROTOCOL, "content-length differs from the data"
        else:
            if expected >= 0:
                stream.expected = expected - content
            stream.receive_window -= length
            if overhead:
                self.consumed(stream, overhead)
            return stream
        self._give_back(length)
        self._fault(stream, code, text, events)
        return None

    def _read_data(self, data: bytes, start: int, events: list[Event]) -> int:
        """Process content and padding of the current DATA frame; returns where they end."""
        left = self._data_left
        if left:
            piece = data[start : start + left]
            start += len(piece)
            self._data_left = left - len(piece)
            if piece:
                self._deliver(piece, events)
        if not self._data_left and self._data_padding:
            skipped = min(self._data_padding, len(data) - start)
            self._data_padding -= skipped
            start += skipped
        return start

    def _deliver(self, piece: bytes, events: list[Event]) -> None:
        stream = self._data_stream
        ended = self._data_end and not self._data_left
        # If the driver has reset the stream meanwhile, its window was returned then.
        if stream is not None and stream.state & CLOSED != CLOSED and (piece or ended):
            self._add_data(stream, piece, ended, events)

    def _add_data(self, stream: Stream, piece: bytes, ended: bool, events: list[Event]) -> None:
        event = DataReceived()
        event.stream = stream
        event.data = piece
        event.counted = len(piece)
        event.ended = ended
        events.append(event)
        if ended:
            self._end_remote(stream)

    # Header blocks. Even ignored ones are decoded, because the dynamic table depends on them.

    def _headers(self, flags: int, id: int, payload: bytes, events: list[Event]) -> None:
        """Process HEADERS with padding, with a priority, or with the first part of a block."""
        start = 0
        stop = len(payload)
        if flags & PADDED:
            if not payload:
                raise ConnectionFault(_SIZE, "HEADERS too short for its padding")
            start = 1
            stop -= payload[0]
        if flags & PRIORITY_FLAG:
            if len(payload) < start + 5:
                raise ConnectionFault(_SIZE, "HEADERS too short for its priority")
            start += 5
        if stop < start:
            raise ConnectionFault(_PROTOCOL, "more padding than payload")
        block = payload[start:stop]
        end = flags & END_STREAM
        if flags & END_HEADERS:
            self._block(id, end, block, events)
            return
        if not id:
            raise ConnectionFault(_PROTOCOL, "HEADERS on stream 0")
        if not block:
            self._abuse.spend(Abuse.EMPTY)
        self._strict = True
        self._block_id = id
        self._block_end = end != 0
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
            self._abuse.spend(Abuse.EMPTY)
        self._block_parts.append(payload)
        if flags & END_HEADERS:
            block = b"".join(self._block_parts)
            self._strict = False
            self._block_id = 0
            self._block_parts = []
            self._block(id, self._block_end, block, events)

    def _block(self, id: int, end: int, block: bytes, events: list[Event]) -> None:
        """Process a whole header block: a request's head, a response's head, or trailers."""
        stream = self.streams.get(id)
        opens = stream is None
        if stream is None:
            if not id:
                raise ConnectionFault(_PROTOCOL, "HEADERS on stream 0")
            if not self._server or not id & 1 or id <= self._last_peer or self._final:
                self._ignore_or_fail(id, end != 0)
                self._decode_unread(block)
                return
            self._last_peer = id
            # REMOTE_ENDED is END_STREAM.
            window = self.peer_settings.initial_window_size
            stream = new_stream(id, HEAD_RECEIVED | end, window, self._stream_window)
        elif stream.state & REMOTE_ENDED:
            self._decode_unread(block)
            self._fault(stream, ErrorCode.STREAM_CLOSED, "HEADERS behind the end", events)
            return
        try:
            fields = self._decoder.decode(block)
            if not opens:
                if stream.state & HEAD_RECEIVED:
                    self._trailers(stream, end, trailers(fields), events)
                else:
                    self._response(stream, end, fields, events)
                return
            if fields is self._last_fields:
                head = self._last_head
            else:
                self._last_head = head = request_head(fields)
                self._last_fields = fields
            if head.content_length is not None:
                if end and head.content_length:
                    raise MalformedMessage("content-length without a body")
                stream.expected = head.content_length
        except MalformedMessage as error:
            self._fault(stream, _PROTOCOL, str(error), events)
        except HeadersTooLarge as error:
            # Decoding it took that many times as long.
            self._abuse.spend(Abuse.RESET, self._finished(), max(error.times, 1) - 1)
            if not opens:
                self._fault(stream, ErrorCode.ENHANCE_YOUR_CALM, str(error), events)
            elif self._may_open(stream, events):
                self._abuse.spend(Abuse.RESET, self._finished())
                events.append(HeadTooLarge(stream, tuple(error.fields)))
        else:
            # ``_may_open``, inlined for the usual case.
            if len(self.streams) < self.limits.max_streams:
                self.streams[id] = stream
            elif not self._may_open(stream, events):
                return
            event = HeadReceived()
            event.stream = stream
            event.head = head
            event.data = b""
            event.ended = end != 0
            events.append(event)
            if not end:
                self._new_requests[id] = event

    def _may_open(self, stream: Stream, events: list[Event]) -> bool:
        """Whether one more stream may be opened; if not, it is refused."""
        if len(self.streams) < self.limits.max_streams:
            self.streams[stream.id] = stream
            return True
        kind = Abuse.REFUSED if self._settings_under_way else Abuse.RESET
        self._fault(stream, ErrorCode.REFUSED_STREAM, "too many streams", events, kind)
        return False

    def _decode_unread(self, block: bytes) -> None:
        """Decode a block that is ignored, for its effect on the dynamic table."""
        try:
            self._decoder.decode(block)
        except HeadersTooLarge:
            return  # the table is up to date nevertheless

    def _response(
        self, stream: Stream, end: int, fields: list[tuple[bytes, bytes]], events: list[Event]
    ) -> None:
        head = response_head(fields)
        status = head.status
        if status < 200:
            if end:
                raise MalformedMessage("an interim response that ends the stream")
            self._abuse.spend(Abuse.OTHER)
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
        event = HeadReceived()
        event.stream = stream
        event.head = head
        event.data = b""
        event.ended = end != 0
        events.append(event)

    def _trailers(
        self,
        stream: Stream,
        end: int,
        headers: tuple[tuple[bytes, bytes], ...],
        events: list[Event],
    ) -> None:
        if not end:
            raise MalformedMessage("a second head")
        if stream.expected > 0:
            raise MalformedMessage("less data than content-length")
        self._end_remote(stream)
        events.append(TrailersReceived(stream, headers))

    # Frames without a part of a message.

    def _window_update(self, id: int, payload: bytes, events: list[Event]) -> None:
        if len(payload) != 4:
            raise ConnectionFault(_SIZE, "WINDOW_UPDATE of a wrong length")
        self._abuse.spend(Abuse.WINDOW_UPDATE, self._earned())
        increment = int.from_bytes(payload, "big") & MAX_WINDOW
        if not id:
            self._window += increment
            if not increment:
                raise ConnectionFault(_PROTOCOL, "WINDOW_UPDATE of nothing")
            if self._window > MAX_WINDOW:
                raise ConnectionFault(ErrorCode.FLOW_CONTROL_ERROR, "window too large")
            self._pump()
            return
        stream = self.streams.get(id)
        if stream is None:
            self._refuse_idle(id)
            return
        stream.window += increment
        if not increment:
            self._fault(stream, _PROTOCOL, "WINDOW_UPDATE of nothing", events)
        elif stream.window > MAX_WINDOW:
            self._fault(stream, ErrorCode.FLOW_CONTROL_ERROR, "window too large", events)
        elif stream.outbox is not None:
            self._make_ready(stream)
            self._pump()

    def _rst_stream(self, id: int, payload: bytes, events: list[Event]) -> None:
        if len(payload) != 4:
            raise ConnectionFault(_SIZE, "RST_STREAM of a wrong length")
        if self._server:  # a client opens its streams itself; refusing them is no attack
            self._abuse.spend(Abuse.RESET, self._finished())
        stream = self.streams.get(id)
        if stream is None:
            self._refuse_idle(id)
            return
        self._forget(stream)
        code = int.from_bytes(payload, "big")
        events.append(StreamReset(stream, code, "reset by the peer", by_peer=True))

    def _settings(self, flags: int, id: int, payload: bytes) -> None:
        if id:
            raise ConnectionFault(_PROTOCOL, "SETTINGS on a stream")
        if flags & ACK:
            if payload:
                raise ConnectionFault(_SIZE, "an acknowledgement with settings")
            self._settings_acknowledged()
            return
        self._abuse.spend(Abuse.SETTINGS)
        peer = self.peer_settings
        if not self._settings_received:
            self._settings_received = True
            peer.max_concurrent_streams = None
        before = peer.initial_window_size
        smallest_table = peer.apply(payload, self.role)
        if smallest_table < self._encoder_table:
            self._encoder_table = 0
            self._table_notice = True
        self._answer(_SETTINGS_ACK)
        if peer.initial_window_size != before:
            self._move_windows(peer.initial_window_size - before)
            self._pump()

    def _settings_acknowledged(self) -> None:
        if not self._settings_under_way:
            self._abuse.spend(Abuse.SETTINGS)
            return
        self._settings_under_way = 0
        self._decoder.settings_acknowledged()
        smaller = self._stream_window - self.limits.stream_window
        if smaller > 0:
            self._stream_window -= smaller
            for stream in self.streams.values():
                stream.receive_window -= smaller

    def _move_windows(self, change: int) -> None:
        for stream in self.streams.values():
            stream.window += change
            if stream.window > MAX_WINDOW:
                raise ConnectionFault(ErrorCode.FLOW_CONTROL_ERROR, "window too large")
            self._make_ready(stream)

    def _ping(self, flags: int, id: int, payload: bytes, events: list[Event]) -> None:
        if id:
            raise ConnectionFault(_PROTOCOL, "PING on a stream")
        if len(payload) != 8:
            raise ConnectionFault(_SIZE, "PING of a wrong length")
        if flags & ACK and self._pings_under_way:
            self._pings_under_way -= 1
            events.append(PingAcknowledged(payload))
            return
        # gRPC clients estimate the bandwidth with one PING per round trip while data is received.
        mark = (self._traffic(), self._receive_window)
        if mark == self._ping_mark or flags & ACK:
            self._abuse.spend(Abuse.PING)
        self._ping_mark = mark
        if not flags & ACK:
            self._answer(frame(PING, ACK, 0, payload))

    def _priority(self, id: int, payload: bytes, events: list[Event]) -> None:
        if not id:
            raise ConnectionFault(_PROTOCOL, "PRIORITY on stream 0")
        self._abuse.spend(Abuse.PRIORITY, self._earned())
        if len(payload) == 5:
            return
        text = "PRIORITY of a wrong length"
        stream = self.streams.get(id)
        if stream is None:  # RST_STREAM is not allowed on an idle stream
            raise ConnectionFault(_SIZE, text)
        self._fault(stream, _SIZE, text, events)

    def _goaway(self, id: int, payload: bytes, events: list[Event]) -> None:
        if id:
            raise ConnectionFault(_PROTOCOL, "GOAWAY on a stream")
        if len(payload) < 8:
            raise ConnectionFault(_SIZE, "GOAWAY of a wrong length")
        self._abuse.spend(Abuse.OTHER)
        last = int.from_bytes(payload[:4], "big") & MAX_STREAM_ID
        self.closing = True
        events.append(GoawayReceived(last, int.from_bytes(payload[4:8], "big"), payload[8:]))
        if self._server:
            return
        for stream in [s for s in self.streams.values() if s.id > last]:
            self._forget(stream)
            code = ErrorCode.REFUSED_STREAM
            events.append(StreamReset(stream, code, "never looked at", by_peer=True))

    # Shared by several kinds of frames.

    def _end_remote(self, stream: Stream) -> None:
        stream.state |= REMOTE_ENDED
        if stream.state & LOCAL_ENDED:
            self._forget(stream)

    def _fault(
        self,
        stream: Stream,
        code: ErrorCode,
        text: str,
        events: list[Event],
        kind: Abuse = Abuse.RESET,
    ) -> None:
        """Reset a stream whose rules the peer broke."""
        self._abuse.spend(kind, self._finished())
        self._answer(self._reset(stream, code))
        events.append(StreamReset(stream, code, text, by_peer=False))

    def _earned(self) -> int:
        return (self._traffic() - self._traffic_at_refill) * EARNED_BY_TRAFFIC

    def _finished(self) -> int:
        """Number of streams that ended without a reset since the last refill.

        As many resets are allowed additionally: a client that cancels many calls completes many.
        """
        opened = (self._last_peer + self._next_own) // 2 - self._opened_at_refill
        return max(opened - self._abuse.spent[Abuse.RESET] - len(self.streams), 0)

    def _is_idle(self, id: int) -> bool:
        if not id & 1:
            return True
        return id > self._last_peer if self._server else id >= self._next_own

    def _refuse_idle(self, id: int) -> None:
        """Fail if the stream was never opened, for frames that may follow the end of a stream."""
        if self._is_idle(id) and not (self._final and id & 1):
            raise ConnectionFault(_PROTOCOL, "a frame for a stream that was never opened")

    def _ignore_or_fail(self, id: int, end: bool) -> None:
        """Ignore HEADERS or DATA on a stream that we reset lately; on other closed ones, fail."""
        if self._is_idle(id):
            if self._final and id & 1:
                return
            raise ConnectionFault(_PROTOCOL, "a frame for a stream that was never opened")
        ended = self._reset_lately.get(id)
        if ended is False:
            self._reset_lately[id] = end
            return
        raise ConnectionFault(ErrorCode.STREAM_CLOSED, "a frame for a stream that has ended")
