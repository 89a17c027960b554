"""The timeouts of all connections of a door, by one timer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from time import monotonic
from typing import Protocol


class Timed(Protocol):
    """An object that the sweeper checks."""

    due: float

    def on_due(self, now: float) -> None:
        """Enforce timeouts; ``due`` has passed."""


class Sweeper:
    """One timer for all connections of a door; ticks from ``start`` to ``stop``, on one loop.

    Each connection has the time of its next check; changing it is one attribute write. Every tick
    compares all of them with the clock: with a thousand connections this takes a few hundredths of
    a millisecond, while a timer for each request would cost a microsecond per request.

    Attributes:
        members: the objects that are checked.
        now: monotonic time of the last tick; cheaper than reading the clock, and at most one tick
            old while the loop is not blocked.
        tick: seconds between two ticks.
    """

    def __init__(self, tick: float, on_tick: Callable[[], None] = lambda: None) -> None:
        self._on_tick = on_tick
        self.members: set[Timed] = set()
        self.now = monotonic()
        self.tick = tick
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Start on the running loop; further calls have no effect."""
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
            self.now = monotonic()
            self._timer = self._loop.call_later(self.tick, self._turn)

    def stop(self) -> None:
        """Stop ticking."""
        if self._timer is not None:
            self._timer.cancel()
        self._loop = self._timer = None

    def after(self, seconds: float) -> float:
        """Return the time ``seconds`` from now: never too early, and at most two ticks late."""
        return self.now + seconds + self.tick

    def _turn(self) -> None:
        assert self._loop is not None
        before, self.now = self.now, monotonic()
        self._on_tick()
        self._timer = self._loop.call_later(self.tick, self._turn)
        if self.now - before > 1.0 + 4 * self.tick:
            # The loop was blocked, so input of clients is still unread: check at the next tick.
            return
        now = self.now
        for member in [member for member in self.members if member.due <= now]:
            member.on_due(now)
