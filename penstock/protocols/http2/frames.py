"""Encodes frames: types, flags, and the settings of both sides.

Source: RFC 9113, sections 4.1 and 6.
"""

from __future__ import annotations

from collections.abc import Iterable
from struct import Struct, iter_unpack
from typing import Final

from penstock.protocols.http2.codes import ConnectionFault, ErrorCode
from penstock.protocols.http2.limits import Http2Limits, Role

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
"""The client's connection preface."""

DATA: Final = 0x0
HEADERS: Final = 0x1
PRIORITY: Final = 0x2
RST_STREAM: Final = 0x3
SETTINGS: Final = 0x4
PUSH_PROMISE: Final = 0x5
PING: Final = 0x6
GOAWAY: Final = 0x7
WINDOW_UPDATE: Final = 0x8
CONTINUATION: Final = 0x9

END_STREAM: Final = 0x1
ACK: Final = 0x1
END_HEADERS: Final = 0x4
PADDED: Final = 0x8
PRIORITY_FLAG: Final = 0x20

FRAME_HEAD: Final = Struct(">IBI")
"""A frame's head: ``length << 8 | type``, flags, and reserved bit with stream."""
MAX_STREAM_ID: Final = 0x7FFFFFFF
MAX_WINDOW: Final = 0x7FFFFFFF
DEFAULT_WINDOW: Final = 65535
DEFAULT_FRAME_SIZE: Final = 16384
LARGEST_FRAME_SIZE: Final = (1 << 24) - 1

HEADER_TABLE_SIZE: Final = 0x1
ENABLE_PUSH: Final = 0x2
MAX_CONCURRENT_STREAMS: Final = 0x3
INITIAL_WINDOW_SIZE: Final = 0x4
MAX_FRAME_SIZE: Final = 0x5
MAX_HEADER_LIST_SIZE: Final = 0x6

DEFAULT_TABLE_SIZE: Final = 4096
STREAMS_BEFORE_SETTINGS: Final = 100
"""Maximum of streams that we open before the peer's limit is known: the RFC advises peers against a
lower limit, and streams beyond it would be refused."""

_SETTING = Struct(">HI")
_WORD_FRAME = Struct(">IBII")


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """Encode a frame; the payload has at most 2**24 - 1 bytes."""
    return FRAME_HEAD.pack(len(payload) << 8 | kind, flags, stream) + payload


def settings_frame(values: Iterable[tuple[int, int]]) -> bytes:
    """Encode SETTINGS from pairs of identifier and value."""
    return frame(SETTINGS, 0, 0, b"".join(_SETTING.pack(*pair) for pair in values))


def window_update_frame(stream: int, increment: int) -> bytes:
    """Encode WINDOW_UPDATE for a stream; stream 0 is the connection."""
    return _WORD_FRAME.pack(4 << 8 | WINDOW_UPDATE, 0, stream, increment)


def reset_frame(stream: int, code: int) -> bytes:
    """Encode RST_STREAM."""
    return _WORD_FRAME.pack(4 << 8 | RST_STREAM, 0, stream, code)


def goaway_frame(last_stream: int, code: int, debug: bytes = b"") -> bytes:
    """Encode GOAWAY."""
    payload = last_stream.to_bytes(4, "big") + code.to_bytes(4, "big") + debug
    return frame(GOAWAY, 0, 0, payload)


def header_frames(stream: int, block: bytes, end: bool, most: int) -> list[bytes]:
    """Encode a header block as HEADERS and CONTINUATION frames.

    Args:
        stream: the stream's identifier.
        block: a whole header block.
        end: whether HEADERS ends the stream.
        most: the peer's SETTINGS_MAX_FRAME_SIZE.
    """
    flags = END_STREAM if end else 0
    if len(block) <= most:
        return [frame(HEADERS, flags | END_HEADERS, stream, block)]
    pieces = [frame(HEADERS, flags, stream, block[:most])]
    for start in range(most, len(block), most):
        last = END_HEADERS if start + most >= len(block) else 0
        pieces.append(frame(CONTINUATION, last, stream, block[start : start + most]))
    return pieces


class PeerSettings:
    """The peer's settings.

    Attributes:
        header_table_size: bytes of its decoder's dynamic table.
        max_concurrent_streams: how many streams we may have open; None for no limit.
        initial_window_size: bytes of a new stream's send window.
        max_frame_size: maximum bytes of a frame's payload.
    """

    def __init__(self) -> None:
        self.header_table_size = DEFAULT_TABLE_SIZE
        self.max_concurrent_streams: int | None = STREAMS_BEFORE_SETTINGS
        self.initial_window_size = DEFAULT_WINDOW
        self.max_frame_size = DEFAULT_FRAME_SIZE

    def apply(self, payload: bytes, role: Role) -> int:
        """Apply the values of a SETTINGS frame; unknown settings are ignored.

        Args:
            payload: the frame's payload.
            role: our role: a server must not set ENABLE_PUSH to 1.

        Returns:
            The smallest HEADER_TABLE_SIZE in the frame, or the current one.

        Raises:
            ConnectionFault: the length or a value is not allowed.
        """
        if len(payload) % 6:
            raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, "SETTINGS of a broken length")
        smallest_table = self.header_table_size
        for name, value in iter_unpack(">HI", payload):
            if name == HEADER_TABLE_SIZE:
                self.header_table_size = value
                smallest_table = min(smallest_table, value)
            elif name == ENABLE_PUSH:
                if value > 1 or (value and role is Role.CLIENT):
                    raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "bad ENABLE_PUSH")
            elif name == MAX_CONCURRENT_STREAMS:
                self.max_concurrent_streams = value
            elif name == INITIAL_WINDOW_SIZE:
                if value > MAX_WINDOW:
                    raise ConnectionFault(ErrorCode.FLOW_CONTROL_ERROR, "bad INITIAL_WINDOW_SIZE")
                self.initial_window_size = value
            elif name == MAX_FRAME_SIZE:
                if not DEFAULT_FRAME_SIZE <= value <= LARGEST_FRAME_SIZE:
                    raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "bad MAX_FRAME_SIZE")
                self.max_frame_size = value
        return smallest_table


def announced(role: Role, limits: Http2Limits) -> bytes:
    """Encode our first SETTINGS frame, without values that equal the defaults."""
    pairs = [
        (INITIAL_WINDOW_SIZE, limits.stream_window),
        (MAX_HEADER_LIST_SIZE, limits.max_header_bytes),
    ]
    if role is Role.SERVER:
        pairs.append((MAX_CONCURRENT_STREAMS, limits.max_streams))
    else:
        pairs.append((ENABLE_PUSH, 0))
    if limits.header_table_size != DEFAULT_TABLE_SIZE:
        pairs.append((HEADER_TABLE_SIZE, limits.header_table_size))
    if limits.max_frame_size != DEFAULT_FRAME_SIZE:
        pairs.append((MAX_FRAME_SIZE, limits.max_frame_size))
    return settings_frame(sorted(pairs))
