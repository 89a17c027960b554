"""Limits of a peer, and the abuse counter.

Each kind of frame that costs us more than its sender has an allowance, which every refill restores.
Traffic earns additional allowance for the frames that a well-behaved peer sends with it.

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
    """The announced limits, and the peer's allowance of each kind of abuse per refill.

    The allowances are guesses with a margin: each unit costs microseconds, and a browser, a gRPC
    client or a load generator at full speed stays far below them. They are configuration keys of
    the same names (``docs/configuration.md``, ``door``).

    Attributes:
        max_frame_size: maximum bytes of a frame's payload; announced; at least 16,384.
        connection_window: at least 65,535, the initial window of every connection.
        header_table_size: maximum bytes of the peer's dynamic table; announced.
        resets: streams that a client resets, or a peer makes us reset, per refill; plus one for
            each stream that has ended without a reset.
        pings: PING frames without traffic between them, per refill.
        settings: SETTINGS frames per refill.
        empty_frames: DATA, HEADERS and CONTINUATION frames without content, per refill.
        window_updates: per refill; plus four for each stream opened or message sent.
        priorities: per refill; plus four for each stream opened.
        small_frames: per refill, frames beyond one per 16 bytes of a read, heads included; servers
            only. gRPC messages of two bytes never exceed it; the default allows 13,000 DATA frames
            of one byte.
        others: unknown frames, GOAWAY frames and interim responses per refill.
        continuations: CONTINUATION frames of one header block.
        queued_answers: bytes of unsent answers to PING, SETTINGS and stream errors.
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
    """The kinds of frames that are counted."""

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
    """The allowances of one connection.

    Attributes:
        spent: count of each kind since the last refill.
    """

    __slots__ = ("_allowed", "spent")

    def __init__(self, limits: Http2Limits) -> None:
        self._allowed = (
            limits.resets,
            # Before a client knows our limit it may open any number of streams. Refusing them is
            # cheap, and they are no sign of an attack.
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
        """Whether the counts are above normal use, though within the allowances.

        Frames that belong to traffic do not count.
        """
        spent = self.spent
        return sum(spent) - spent[Abuse.WINDOW_UPDATE] - spent[Abuse.PRIORITY] > _A_FEW

    def refill(self) -> None:
        """Restore all allowances."""
        self.spent = [0] * len(Abuse)

    def spend(self, kind: Abuse, earned: int = 0, count: int = 1) -> None:
        """Count frames.

        Args:
            kind: their kind.
            earned: additional allowance by the traffic since the last refill.
            count: how many.

        Raises:
            ConnectionFault: ENHANCE_YOUR_CALM; the allowance is exceeded.
        """
        self.spent[kind] += count
        if self.spent[kind] > self._allowed[kind] + earned:
            name = kind.name.lower()
            text = f"too many frames of one kind: {name}"
            raise ConnectionFault(ErrorCode.ENHANCE_YOUR_CALM, text, name)
