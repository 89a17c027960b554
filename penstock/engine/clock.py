"""The engine's interface to time and later turns of the loop, and its asyncio implementation.

Only the monotonic clock is used, so a step of the wall clock changes nothing.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any, Protocol


class Alarm(Protocol):
    """A scheduled action that can be cancelled."""

    def cancel(self) -> None:
        """Cancel the action."""


class Clock(Protocol):
    """The engine's only source of time and later turns. Everything runs on one loop."""

    def now(self) -> float:
        """Monotonic seconds."""

    def soon(self, action: Callable[[], Any]) -> None:
        """Run the action after the current one."""

    def at(self, when: float, action: Callable[[], Any]) -> Alarm:
        """Run the action at that monotonic time, or a little later."""


class LoopClock:
    """The Clock of an asyncio loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.now = time.monotonic  # the loop's own clock is cached per turn

    def soon(self, action: Callable[[], Any]) -> None:
        """Run the action in the loop's next turn."""
        self._loop.call_soon(action)

    def at(self, when: float, action: Callable[[], Any]) -> Alarm:
        """Run the action at that monotonic time, or a little later."""
        return self._loop.call_later(max(0.0, when - time.monotonic()), action)
