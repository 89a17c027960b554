"""Detects dead connections by PINGs. Pure: time is an argument."""

from __future__ import annotations

from enum import Enum

PING_AFTER = (30.0, 60.0, 120.0, 310.0)
"""Seconds without received bytes before the first PING, the second, and so on.

With default settings, a gRPC server closes the connection at the third PING that arrives within
five minutes of another, unless it has sent a part of an answer in between.
"""

PING_TIMEOUT = 20.0
"""Timeout of the answer to a PING in seconds; the default of gRPC's clients."""


class KeepaliveStep(Enum):
    """The next step of a keepalive, if it is not waiting."""

    PING = "ping"
    GIVE_UP = "give up"


class Keepalive:
    """Decides when to send a PING, and when to give the connection up.

    While calls are open and no bytes arrive, PINGs are sent; a peer that sends nothing within
    ``PING_TIMEOUT`` is dead. Source: RFC 9113 §6.7.

    Attributes:
        last_received: monotonic seconds when bytes last arrived; set by the driver.
        pings: PINGs sent since the peer last sent a part of an answer; cleared by the driver.
    """

    def __init__(self, now: float) -> None:
        self.last_received = now
        self.pings = 0
        self._pinged_at: float | None = None

    def started(self, now: float) -> None:
        """Start measuring: the first call is open."""
        self.last_received = max(self.last_received, now)
        self._pinged_at = None

    def poll(self, now: float) -> KeepaliveStep | float:
        """Return the step to do at ``now``, or the seconds until the next poll."""
        if self._pinged_at is not None:
            if self.last_received < self._pinged_at:
                left = self._pinged_at + PING_TIMEOUT - now
                return left if left > 0 else KeepaliveStep.GIVE_UP
            self._pinged_at = None
        left = self.last_received + PING_AFTER[min(self.pings, len(PING_AFTER) - 1)] - now
        if left > 0:
            return left
        self.pings += 1
        self._pinged_at = now
        return KeepaliveStep.PING
