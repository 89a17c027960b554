"""HTTP/2 frames and HPACK instructions written by hand, right or wrong as a test wants them."""

from __future__ import annotations

import struct
from collections.abc import Iterable

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
    """A header block that needs no table and leaves none."""
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
