"""Whether a silent connection is still alive. Pure: time is an argument.

While calls wait and nothing comes, the peer is asked with a PING; no byte from it within a time
after that means that it is dead. Source: RFC 9113 §6.7; what gRPC's servers take for abuse.
"""

from __future__ import annotations

from enum import Enum

PAUSES = (30.0, 60.0, 120.0, 310.0)
"""Seconds of silence before the first PING in a row, the second, and so on.

A gRPC server of the default settings closes the connection at the third PING that comes less than
five minutes after another, unless it has sent a part of an answer in between.
"""

PATIENCE_SECONDS = 20.0
"""How long the answer may take; the default of gRPC's clients."""


class Ask(Enum):
    """What to do beside waiting."""

    PING = "ping"
    GIVE_UP = "give up"


class Keepalive:
    """What is known of one connection's life.

    Attributes:
        heard: monotonic seconds at which bytes came last; the driver writes it.
        asked: PINGs sent since the peer last sent a part of an answer.
    """

    __slots__ = ("_waiting_since", "asked", "heard")

    def __init__(self, now: float) -> None:
        self.heard = now
        self.asked = 0
        self._waiting_since: float | None = None

    def started(self, now: float) -> None:
        """The first call after none: the silence begins now."""
        self.heard = max(self.heard, now)
        self._waiting_since = None

    def poll(self, now: float) -> Ask | float:
        """What to do at ``now``, or in how many seconds to ask again."""
        since = self._waiting_since
        if since is not None:
            if self.heard < since:
                left = since + PATIENCE_SECONDS - now
                return left if left > 0 else Ask.GIVE_UP
            self._waiting_since = None
        pause = PAUSES[min(self.asked, len(PAUSES) - 1)]
        left = self.heard + pause - now
        if left > 0:
            return left
        self.asked += 1
        self._waiting_since = now
        return Ask.PING

    def __repr__(self) -> str:
        return f"<Keepalive heard at {self.heard:.3f}, asked {self.asked} times>"
