"""Limits of a peer, and the abuse counter.

Each kind of frame that costs us more than it costs its sender has an allowance, full again after
every refill. What a legal peer sends in proportion to the traffic earns its own allowance.

Source: CVE-2023-44487 (rapid reset), CVE-2025-8671 (resets that the server is made to send),
CVE-2019-9511 to 9518 (floods of small frames), CVE-2024-27316 (CONTINUATION).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import Final

from penstock.protocols.http2.codes import ConnectionFault, ErrorCode

_A_FEW: Final = 16


class Role(Enum):
    """Our side of the connection."""

    SERVER = "server"
    CLIENT = "client"


@dataclass(frozen=True, slots=True, kw_only=True)
class Http2Limits:
    """What we announce, and how much of each abuse a peer may send between two refills.

    The budgets are guesses with a margin: what they bound costs microseconds each, and a browser, a
    gRPC client or a load generator at full speed stays far below them. Window updates and
    priorities are allowed beyond theirs in proportion to the streams opened and the data sent.

    Keys of the configuration have the same names (``docs/configuration.md``, ``door``).

    Attributes:
        max_frame_size: bytes of a frame's payload that we take; announced; at least 16,384.
        connection_window: never below 65,535, with which every connection starts.
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


class Abuse(IntEnum):
    """What is counted."""

    RESET = 0
    REFUSED = 1
    PING = 2
    SETTINGS = 3
    EMPTY = 4
    WINDOW_UPDATE = 5
    PRIORITY = 6
    OTHER = 7
    SMALL = 8


class AbuseCounter:
    """Allowances of one connection.

    Attributes:
        spent: how often each kind has come since the last refill.
    """

    __slots__ = ("_allowed", "spent")

    def __init__(self, limits: Http2Limits) -> None:
        self._allowed = (
            limits.resets,
            # Before a client has read our limit it may open any number of streams: those that we
            # refuse then are cheap and no sign of malice.
            limits.resets * 10,
            limits.pings,
            limits.settings,
            limits.empty_frames,
            limits.window_updates,
            limits.priorities,
            limits.others,
            limits.small_frames,
        )
        self.spent = [0] * len(Abuse)

    @property
    def strained(self) -> bool:
        """Whether there was more of it than a legal peer has reason for, if less than is allowed.

        Frames that belong to traffic are left out.
        """
        spent = self.spent
        return sum(spent) - spent[Abuse.WINDOW_UPDATE] - spent[Abuse.PRIORITY] > _A_FEW

    def refill(self) -> None:
        """Everything is allowed anew."""
        self.spent = [0] * len(Abuse)

    def spend(self, kind: Abuse, earned: int = 0, count: int = 1) -> None:
        """Count what came.

        Args:
            kind: of frame.
            earned: how many the traffic since the last refill allows on top.
            count: how many.

        Raises:
            ConnectionFault: ENHANCE_YOUR_CALM, the allowance is used up.
        """
        self.spent[kind] += count
        if self.spent[kind] > self._allowed[kind] + earned:
            name = kind.name.lower()
            text = f"too many frames of one kind: {name}"
            raise ConnectionFault(ErrorCode.ENHANCE_YOUR_CALM, text, name)
