"""How much nuisance a peer may make before we hang up.

Each kind of frame that costs us more than it costs its sender has an allowance, full again after
every refill. What a legal peer sends in proportion to the traffic earns its own allowance.

Source: CVE-2023-44487 (rapid reset), CVE-2025-8671 (resets that the server is made to send),
CVE-2019-9511 to 9518 (floods of small frames), CVE-2024-27316 (CONTINUATION).
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final

from penstock.protocols.http2.codes import ConnectionFault, ErrorCode
from penstock.protocols.http2.limits import Http2Limits

_A_FEW: Final = 16


class Nuisance(IntEnum):
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


class Budget:
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
        self.spent = [0] * len(Nuisance)

    @property
    def strained(self) -> bool:
        """Whether there was more of it than a legal peer has reason for, if less than is allowed.

        Frames that belong to traffic are left out.
        """
        spent = self.spent
        return sum(spent) - spent[Nuisance.WINDOW_UPDATE] - spent[Nuisance.PRIORITY] > _A_FEW

    def refill(self) -> None:
        """Everything is allowed anew."""
        self.spent = [0] * len(Nuisance)

    def spend(self, kind: Nuisance, earned: int = 0, count: int = 1) -> None:
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
