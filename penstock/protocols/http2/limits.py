"""Which side of a connection we are, and what we bear from the other one."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Role(Enum):
    """Our side of the connection."""

    SERVER = "server"
    CLIENT = "client"


@dataclass(frozen=True, slots=True, kw_only=True)
class Http2Limits:
    """What we announce, and how much of each nuisance a peer may send between two refills.

    The budgets are guesses with a margin: what they bound costs microseconds each, and a browser, a
    gRPC client or a load generator at full speed stays far below them. Window updates and
    priorities are allowed beyond theirs in proportion to the streams opened and the data sent.

    Attributes:
        max_streams: streams of the peer that may be open at once; announced.
        max_frame_size: bytes of a frame's payload that we take; announced; at least 16,384.
        stream_window: bytes that the peer may send ahead on one stream; announced.
        connection_window: the same for all streams; never below 65,535, with which every
            connection starts.
        max_header_bytes: a decoded header list with 32 bytes more for each field; announced.
        max_header_fields: fields in it.
        max_header_field: bytes of one field, name and value.
        header_table_size: bytes of the dynamic table that the peer may use; announced.
        resets: streams that a client resets, or a peer makes us reset, per refill; and one for each
            stream that has ended in good order since.
        pings: per refill; those with traffic between them are not counted.
        settings: SETTINGS frames per refill.
        empty_frames: DATA, HEADERS and CONTINUATION frames that bring nothing, per refill.
        window_updates: per refill, and four for each stream opened or message sent.
        priorities: per refill, and four for each stream opened.
        small_frames: frames per refill beyond one for each 16 bytes that a read with many of them
            has, their heads included; servers only. A message of gRPC with two bytes is above that,
            at any pace; of DATA with one byte, 13,000 frames are allowed by the default.
        others: unknown frames, GOAWAY frames and interim responses per refill.
        continuations: CONTINUATION frames of one header block.
        queued_answers: bytes of answers (to PING, SETTINGS, bad streams) that wait while nobody
            takes the output.
    """

    max_streams: int = 128
    max_frame_size: int = 16384
    stream_window: int = 1 << 20
    connection_window: int = 4 << 20
    max_header_bytes: int = 16 << 10
    max_header_fields: int = 100
    max_header_field: int = 8 << 10
    header_table_size: int = 4096
    resets: int = 200
    pings: int = 20
    settings: int = 20
    empty_frames: int = 100
    window_updates: int = 1000
    priorities: int = 200
    others: int = 100
    small_frames: int = 5000
    continuations: int = 16
    queued_answers: int = 64 << 10
