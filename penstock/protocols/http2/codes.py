"""The error codes of HTTP/2, and the core's internal exceptions for protocol errors.

The frame handlers raise these exceptions and the connection catches them. Only ``StreamLimit``
reaches a caller.

Source: RFC 9113, section 7.
"""

from __future__ import annotations

from enum import IntEnum


class ErrorCode(IntEnum):
    """Why a stream or connection ended."""

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
    """A connection error: the peer broke a rule that ends the connection."""

    def __init__(self, code: ErrorCode, text: str, abuse: str = "") -> None:
        super().__init__(text)
        self.code = code
        self.text = text
        self.abuse = abuse


class MalformedMessage(Exception):
    """A stream error: a head or trailers break RFC 9113, section 8."""


class HeadersTooLarge(Exception):
    """A header list exceeds our limit, but was decoded: only the stream is refused.

    Attributes:
        times: size of the list divided by the limit, rounded down.
        fields: the fields within the limit that were kept.
    """

    def __init__(self, text: str, times: int, fields: list[tuple[bytes, bytes]]) -> None:
        super().__init__(text)
        self.times = times
        self.fields = fields


class StreamLimit(Exception):
    """No stream can be opened now: the peer's limit is reached, or the connection is closing."""
