"""What either side may set: the peer's values as they are now, and the frame with our own.

Source: RFC 9113, section 6.5.2.
"""

from __future__ import annotations

from struct import iter_unpack
from typing import Final

from penstock.protocols.http2.codes import ConnectionFault, ErrorCode
from penstock.protocols.http2.frames import (
    DEFAULT_FRAME_SIZE,
    DEFAULT_WINDOW,
    LARGEST_FRAME_SIZE,
    MAX_WINDOW,
    settings_frame,
)
from penstock.protocols.http2.limits import Http2Limits, Role

HEADER_TABLE_SIZE: Final = 0x1
ENABLE_PUSH: Final = 0x2
MAX_CONCURRENT_STREAMS: Final = 0x3
INITIAL_WINDOW_SIZE: Final = 0x4
MAX_FRAME_SIZE: Final = 0x5
MAX_HEADER_LIST_SIZE: Final = 0x6

DEFAULT_TABLE_SIZE: Final = 4096
STREAMS_BEFORE_SETTINGS: Final = 100
"""How many streams we open before the peer has told its limit; none may be smaller than this one by
the RFC's advice, and those beyond a limit would be refused."""


class PeerSettings:
    """The peer's settings.

    Attributes:
        header_table_size: bytes of dynamic table that its decoder has.
        enable_push: as sent; we never push.
        max_concurrent_streams: of ours; None when it has not limited them.
        initial_window_size: bytes that we may send ahead on a new stream.
        max_frame_size: bytes of payload that it takes.
        max_header_list_size: its advice; None when it gave none.
    """

    __slots__ = (
        "enable_push",
        "header_table_size",
        "initial_window_size",
        "max_concurrent_streams",
        "max_frame_size",
        "max_header_list_size",
    )

    def __init__(self) -> None:
        self.header_table_size = DEFAULT_TABLE_SIZE
        self.enable_push = True
        self.max_concurrent_streams: int | None = STREAMS_BEFORE_SETTINGS
        self.initial_window_size = DEFAULT_WINDOW
        self.max_frame_size = DEFAULT_FRAME_SIZE
        self.max_header_list_size: int | None = None

    def apply(self, payload: bytes, role: Role) -> int:
        """Take over the values of a SETTINGS frame; unknown ones are passed over.

        Args:
            payload: of the frame.
            role: ours: a server must not set ENABLE_PUSH to 1.

        Returns:
            The smallest HEADER_TABLE_SIZE named on the way, or the present one.

        Raises:
            ConnectionFault: a length or value that is not allowed.
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
                self.enable_push = bool(value)
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
            elif name == MAX_HEADER_LIST_SIZE:
                self.max_header_list_size = value
        return smallest_table

    def __repr__(self) -> str:
        return f"<PeerSettings {' '.join(f'{n}={getattr(self, n)}' for n in self.__slots__)}>"


def announced(role: Role, limits: Http2Limits) -> bytes:
    """Our first SETTINGS frame; values that equal the defaults are left out."""
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
