"""Frames as bytes: their types and flags, and how those that we send are put together.

Source: RFC 9113, sections 4.1 and 6.
"""

from __future__ import annotations

from collections.abc import Iterable
from struct import Struct
from typing import Final

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
"""What a client sends first."""

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
"""Length and type in one word (``length << 8 | type``), flags, reserved bit and stream."""
FRAME_HEAD_SIZE: Final = 9
MAX_STREAM_ID: Final = 0x7FFFFFFF
MAX_WINDOW: Final = 0x7FFFFFFF
DEFAULT_WINDOW: Final = 65535
DEFAULT_FRAME_SIZE: Final = 16384
LARGEST_FRAME_SIZE: Final = (1 << 24) - 1

_SETTING = Struct(">HI")
_WORD_FRAME = Struct(">IBII")


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """One frame of at most 2**24 - 1 bytes of payload."""
    return FRAME_HEAD.pack(len(payload) << 8 | kind, flags, stream) + payload


def settings_frame(values: Iterable[tuple[int, int]]) -> bytes:
    """SETTINGS with identifiers and values in this order."""
    return frame(SETTINGS, 0, 0, b"".join(_SETTING.pack(*pair) for pair in values))


def window_update_frame(stream: int, increment: int) -> bytes:
    """WINDOW_UPDATE for a stream, or for the connection with stream 0."""
    return _WORD_FRAME.pack(4 << 8 | WINDOW_UPDATE, 0, stream, increment)


def reset_frame(stream: int, code: int) -> bytes:
    """RST_STREAM."""
    return _WORD_FRAME.pack(4 << 8 | RST_STREAM, 0, stream, code)


def goaway_frame(last_stream: int, code: int, debug: bytes = b"") -> bytes:
    """GOAWAY."""
    payload = last_stream.to_bytes(4, "big") + code.to_bytes(4, "big") + debug
    return frame(GOAWAY, 0, 0, payload)


def header_frames(stream: int, block: bytes, end: bool, most: int) -> list[bytes]:
    """HEADERS and as many CONTINUATION frames as a block needs.

    Args:
        stream: its identifier.
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
