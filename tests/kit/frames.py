"""HTTP/2 frames and HPACK instructions by hand, valid or not, and a strict parser of frames.

It shares no code with the tested package: bytes are packed with ``struct`` and header blocks are
decoded by the package hpack.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import hpack

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE = range(9)
CONTINUATION = 9
UNKNOWN = 0x55

END_STREAM = ACK = 0x1
END_HEADERS = 0x4
PADDED = 0x8
PRIORITISED = 0x20

(
    NO_ERROR,
    PROTOCOL_ERROR,
    INTERNAL_ERROR,
    FLOW_CONTROL_ERROR,
    SETTINGS_TIMEOUT,
    STREAM_CLOSED,
    FRAME_SIZE_ERROR,
    REFUSED_STREAM,
    CANCEL,
    COMPRESSION_ERROR,
    CONNECT_ERROR,
    ENHANCE_YOUR_CALM,
    INADEQUATE_SECURITY,
    HTTP_1_1_REQUIRED,
) = range(14)

HEADER_TABLE_SIZE, ENABLE_PUSH, MAX_CONCURRENT_STREAMS = 1, 2, 3
INITIAL_WINDOW_SIZE, MAX_FRAME_SIZE, MAX_HEADER_LIST_SIZE = 4, 5, 6

MOST = 2**31 - 1

Field = tuple[bytes, bytes]


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def padded(payload: bytes, pad: int | None) -> bytes:
    return payload if pad is None else bytes([pad]) + payload + bytes(pad)


def data(
    stream: int, payload: bytes = b"", *, end: bool = False, pad: int | None = None, flags: int = 0
) -> bytes:
    flags |= end * END_STREAM | (pad is not None) * PADDED
    return frame(DATA, flags, stream, padded(payload, pad))


def headers(
    stream: int,
    block: bytes,
    *,
    end: bool = False,
    whole: bool = True,
    pad: int | None = None,
    priority: bytes = b"",
    flags: int = 0,
) -> bytes:
    flags |= end * END_STREAM | whole * END_HEADERS | (pad is not None) * PADDED
    flags |= bool(priority) * PRIORITISED
    return frame(HEADERS, flags, stream, padded(priority + block, pad))


def continuation(stream: int, block: bytes = b"", *, whole: bool = True) -> bytes:
    return frame(CONTINUATION, whole * END_HEADERS, stream, block)


def weight(depends: int = 0, weight: int = 15) -> bytes:
    return struct.pack(">IB", depends, weight)


def priority(stream: int, depends: int = 0) -> bytes:
    return frame(PRIORITY, 0, stream, weight(depends))


def reset(stream: int, code: int = CANCEL) -> bytes:
    return frame(RST_STREAM, 0, stream, struct.pack(">I", code))


def settings(*pairs: tuple[int, int], stream: int = 0) -> bytes:
    payload = b"".join(struct.pack(">HI", key, value) for key, value in pairs)
    return frame(SETTINGS, 0, stream, payload)


def settings_ack(payload: bytes = b"") -> bytes:
    return frame(SETTINGS, ACK, 0, payload)


def push_promise(stream: int, promised: int, block: bytes) -> bytes:
    return frame(PUSH_PROMISE, END_HEADERS, stream, struct.pack(">I", promised) + block)


def ping(payload: bytes = b"penstock", *, ack: bool = False) -> bytes:
    return frame(PING, ack * ACK, 0, payload)


def goaway(last: int, code: int = NO_ERROR, debug: bytes = b"") -> bytes:
    return frame(GOAWAY, 0, 0, struct.pack(">II", last, code) + debug)


def window_update(stream: int, count: int) -> bytes:
    return frame(WINDOW_UPDATE, 0, stream, struct.pack(">I", count))


def integer(value: int, bits: int, first: int = 0) -> bytes:
    """RFC 7541, 5.1."""
    most = (1 << bits) - 1
    if value < most:
        return bytes([first | value])
    out = [first | most]
    value -= most
    while value >= 128:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


def string(text: bytes) -> bytes:
    """RFC 7541, 5.2, without Huffman."""
    return integer(len(text), 7) + text


def literal(name: bytes, value: bytes, *, kind: int = 0x00) -> bytes:
    """RFC 7541, 6.2: with a new name; without indexing, unless ``kind`` is 0x40 or 0x10."""
    return bytes([kind]) + string(name) + string(value)


def block(fields: Iterable[Field]) -> bytes:
    """A header block that neither uses nor changes the dynamic table."""
    return b"".join(literal(name, value) for name, value in fields)


GET: tuple[Field, ...] = (
    (b":method", b"GET"),
    (b":scheme", b"http"),
    (b":authority", b"example.org"),
    (b":path", b"/"),
)
POST: tuple[Field, ...] = ((b":method", b"POST"), *GET[1:])
OK: tuple[Field, ...] = ((b":status", b"200"),)


def changed(fields: Iterable[Field], name: bytes, value: bytes | None) -> tuple[Field, ...]:
    """The same fields with another value for one of them, or without it."""
    if value is None:
        return tuple((key, old) for key, old in fields if key != name)
    return tuple((key, old if key != name else value) for key, old in fields)


def request(
    stream: int = 1, fields: Iterable[Field] = GET, *more: Field, end: bool = True, **options: Any
) -> bytes:
    """A HEADERS frame whose block does not use the dynamic table."""
    return headers(stream, block([*fields, *more]), end=end, **options)


def post(stream: int = 1, *more: Field) -> bytes:
    """The head of a request with a body."""
    return request(stream, POST, *more, end=False)


def body(stream: int, payload: bytes, *, end: bool = True) -> bytes:
    """DATA frames of the default size, regardless of flow-control windows."""
    pieces = [payload[at : at + 16_384] for at in range(0, len(payload), 16_384)] or [b""]
    whole = b"".join(data(stream, piece) for piece in pieces[:-1])
    return whole + data(stream, pieces[-1], end=end)


def message(data: bytes = b"abc", *, flag: int = 0) -> bytes:
    """A gRPC message with its prefix."""
    return struct.pack(">BI", flag, len(data)) + data


KNOWN_FLAGS = (0x09, 0x2D, 0, 0, 0x01, 0x0C, 0x01, 0, 0, 0x04)
"""Flags that RFC 9113 defines, by kind of frame."""


class Frame(NamedTuple):
    """One received frame; a property applies to the kinds that have the field."""

    kind: int
    flags: int
    stream: int
    payload: bytes

    @property
    def ack(self) -> bool:
        return bool(self.flags & ACK)

    @property
    def ends(self) -> bool:
        return self.kind in (DATA, HEADERS) and bool(self.flags & END_STREAM)

    @property
    def code(self) -> int:
        return int.from_bytes(self.payload[4:8] if self.kind == GOAWAY else self.payload, "big")

    @property
    def last_stream(self) -> int:
        return int.from_bytes(self.payload[:4], "big")

    @property
    def increment(self) -> int:
        return int.from_bytes(self.payload, "big")

    @property
    def values(self) -> dict[int, int]:
        return dict(struct.iter_unpack(">HI", self.payload))


def as_text(fields: Iterable[Field]) -> dict[str, str]:
    return {name.decode("latin-1"): value.decode("latin-1") for name, value in fields}


@dataclass
class StreamContent:
    """The frames received on one stream."""

    heads: list[list[Field]] = field(default_factory=list)
    body: bytearray = field(default_factory=bytearray)
    order: list[str] = field(default_factory=list)  # kinds of frames; END for END_STREAM
    reset: int | None = None  # the code of RST_STREAM

    @property
    def ended(self) -> bool:
        return self.reset is not None or "END" in self.order

    @property
    def fields(self) -> dict[bytes, bytes]:
        """The last head, or trailers."""
        return dict(self.heads[-1]) if self.heads else {}

    @property
    def headers(self) -> dict[str, str]:
        """The first head."""
        return as_text(self.heads[0])

    @property
    def trailers(self) -> dict[str, str]:
        """The head after the body."""
        _, fields = self.heads
        return as_text(fields)

    @property
    def http_status(self) -> int:
        return int(self.headers[":status"])

    @property
    def status(self) -> int | None:
        """The ``grpc-status`` of the last head; None without one."""
        status = self.fields.get(b"grpc-status")
        return None if status is None else int(status)

    @property
    def text(self) -> str:
        """The ``grpc-message`` of the last head, as it was encoded."""
        return self.fields.get(b"grpc-message", b"").decode()

    @property
    def messages(self) -> list[bytes]:
        found, rest = [], bytes(self.body)
        while rest:
            flag, length = struct.unpack(">BI", rest[:5])
            assert flag == 0, "a compressed message"
            assert len(rest) >= 5 + length, "a message is cut off"
            found.append(rest[5 : 5 + length])
            rest = rest[5 + length :]
        return found


class Transcript:
    """The frames received from one end of a connection, each checked against RFC 9113, 4.1 to 4.3.

    Attributes:
        frames: every frame.
        streams: by their numbers, without WINDOW_UPDATE and PRIORITY.
        heads: every head and trailers, with the stream.
        max_frame: the largest payload that is allowed.
    """

    def __init__(self, *, client: bool = False, max_frame: int = 1 << 14) -> None:
        """``client``: the frames are a client's, so that the preface comes first."""
        self.frames: list[Frame] = []
        self.streams: dict[int, StreamContent] = {}
        self.heads: list[tuple[int, list[Field]]] = []
        self.max_frame = max_frame
        self.decoder = hpack.Decoder()
        self.decoder.max_header_list_size = 1 << 20
        self._preface = PREFACE if client else b""
        self._unread = b""
        self._block: bytes | None = None
        self._block_of = 0
        self._block_ends = False

    def feed(self, data: bytes) -> list[Frame]:
        """Parse data; returns the frames completed by it."""
        self._unread += data
        if self._preface:
            if len(self._unread) < len(self._preface):
                return []
            assert self._unread.startswith(self._preface)
            self._unread, self._preface = self._unread[len(self._preface) :], b""
        made, at, unread = [], 0, self._unread
        while len(unread) - at >= 9:
            length = int.from_bytes(unread[at : at + 3], "big")
            assert length <= self.max_frame, f"a frame of {length} bytes"
            if len(unread) - at < 9 + length:
                break
            kind, flags, stream = struct.unpack(">BBI", unread[at + 3 : at + 9])
            made.append(Frame(kind, flags, stream, unread[at + 9 : at + 9 + length]))
            self._take(made[-1])
            at += 9 + length
        self._unread = unread[at:]
        self.frames += made
        return made

    @property
    def cut_off(self) -> bool:
        """Whether a frame is incomplete."""
        return bool(self._unread)

    def of_stream(self, stream: int) -> StreamContent:
        return self.streams.setdefault(stream, StreamContent())

    def _take(self, one: Frame) -> None:
        assert one.flags & ~KNOWN_FLAGS[one.kind] == 0, f"undefined flags: {one}"
        assert not one.stream >> 31, f"the reserved bit: {one}"
        if self._block is not None:
            assert one.kind == CONTINUATION, f"inside a field block: {one}"
            assert one.stream == self._block_of
        else:
            assert one.kind != CONTINUATION, "CONTINUATION without a field block"
        if one.kind in (SETTINGS, PING, GOAWAY, WINDOW_UPDATE, PRIORITY):
            return
        content = self.of_stream(one.stream)
        content.order.append({DATA: "DATA", RST_STREAM: "RST_STREAM"}.get(one.kind, "HEADERS"))
        if one.kind == DATA:
            content.body += one.payload
        elif one.kind == RST_STREAM:
            content.reset = one.code
        else:
            self._block = (self._block or b"") + one.payload
            self._block_of = one.stream
            self._block_ends = self._block_ends or one.ends
            if one.flags & END_HEADERS:
                found = self.decoder.decode(self._block, raw=True)
                head = [(bytes(name), bytes(value)) for name, value in found]
                content.heads.append(head)
                self.heads.append((one.stream, head))
                if self._block_ends:
                    content.order.append("END")
                self._block, self._block_ends = None, False
            return
        if one.ends:
            content.order.append("END")
