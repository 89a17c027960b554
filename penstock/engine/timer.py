"""A timer that combines many requested wake-ups into one alarm."""

from __future__ import annotations

from collections.abc import Callable

from penstock.engine.clock import Alarm, Clock


class Timer:
    """Fires at the earliest requested time; those that still wait request it again."""

    def __init__(self, clock: Clock, action: Callable[[], None]) -> None:
        self._clock = clock
        self._action = action
        self._alarm: Alarm | None = None
        self._at = 0.0

    def at(self, when: float) -> None:
        """Fire at that time, or earlier."""
        if self._alarm is not None and self._at <= when:
            return
        self.cancel()
        self._at = when
        self._alarm = self._clock.at(when, self._fire)

    def cancel(self) -> None:
        """Cancel the alarm."""
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None

    def _fire(self) -> None:
        self._alarm = None
        self._action()
