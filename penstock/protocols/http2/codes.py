"""The error codes of HTTP/2, and the core's internal exceptions for protocol errors.

Faults are raised by the handlers of frames and caught by the connection; no caller sees one, except
``StreamLimit``, which is the caller's own doing.

Source: RFC 9113, section 7.
"""

from __future__ import annotations

from enum import IntEnum


class ErrorCode(IntEnum):
    """Why a stream or a connection ended."""

    NO_ERROR = 0x0
    PROTOCOL_ERROR = 0x1
    INTERNAL_ERROR = 0x2
    FLOW_CONTROL_ERROR = 0x3
    SETTINGS_TIMEOUT = 0x4
    STREAM_CLOSED = 0x5
    FRAME_SIZE_ERROR = 0x6
    REFUSED_STREAM = 0x7
    CANCEL = 0x8
    COMPRESSION_ERROR = 0x9
    CONNECT_ERROR = 0xA
    ENHANCE_YOUR_CALM = 0xB
    INADEQUATE_SECURITY = 0xC
    HTTP_1_1_REQUIRED = 0xD


class ConnectionFault(Exception):
    """The peer broke a rule that ends the connection."""

    def __init__(self, code: ErrorCode, text: str, abuse: str = "") -> None:
        super().__init__(text)
        self.code = code
        self.text = text
        self.abuse = abuse


class MalformedMessage(Exception):
    """A head or trailers break a rule of RFC 9113, section 8: an error of the stream."""


class HeadersTooLarge(Exception):
    """A header list is over a limit of ours, but was decoded: the stream alone is refused.

    Attributes:
        times: how many times as large as we allow it is, rounded down.
        fields: those that are within the limits, as far as they were kept.
    """

    def __init__(self, text: str, times: int, fields: list[tuple[bytes, bytes]]) -> None:
        super().__init__(text)
        self.times = times
        self.fields = fields


class StreamLimit(Exception):
    """No stream can be opened now: the peer's limit is reached, or the connection is closing."""
