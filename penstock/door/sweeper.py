"""One timer for all connections of a door.

A connection carries the moment when it wants to be looked at; moving that moment is one attribute
write. At every tick all are compared with the clock: with a thousand connections that is a few
hundredths of a millisecond, while a timer for each request would cost a microsecond a request.
"""

from __future__ import annotations

import asyncio
import time
from typing import Protocol


class Timed(Protocol):
    """What the wheel looks at."""

    due: float

    def look(self, now: float) -> None:
        """``due`` has passed."""


class Wheel:
    """Ticks from ``start`` to ``stop``, on one loop.

    Attributes:
        members: those who are looked at.
        now: the time of the last tick, by ``time.monotonic``; cheaper than asking the clock, and
            never more than a tick behind while the loop turns.
        tick: seconds.
    """

    __slots__ = ("_loop", "_timer", "members", "now", "tick")

    def __init__(self, tick: float) -> None:
        self.members: set[Timed] = set()
        self.now = time.monotonic()
        self.tick = tick
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Begin to tick on the running loop; more calls do nothing."""
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
            self.now = time.monotonic()
            self._timer = self._loop.call_later(self.tick, self._turn)

    def stop(self) -> None:
        """Tick no more."""
        if self._timer is not None:
            self._timer.cancel()
        self._loop = self._timer = None

    def after(self, seconds: float) -> float:
        """The moment so many seconds from now: never too early, and at most two ticks late."""
        return self.now + seconds + self.tick

    def _turn(self) -> None:
        assert self._loop is not None
        before, self.now = self.now, time.monotonic()
        self._timer = self._loop.call_later(self.tick, self._turn)
        if self.now - before > 1.0 + 4 * self.tick:
            # The loop stood still. What clients sent meanwhile is still to be read: judge them at
            # the next tick.
            return
        now = self.now
        for member in [member for member in self.members if member.due <= now]:
            member.look(now)
