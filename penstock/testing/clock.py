"""ManualClock: a clock that the test advances."""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from collections.abc import Callable
from typing import Any


class ManualAlarm:
    """A scheduled action of a ManualClock."""

    def __init__(self, action: Callable[[], Any]) -> None:
        self.action: Callable[[], Any] | None = action

    def cancel(self) -> None:
        """Cancel the action."""
        self.action = None


class ManualClock:
    """A Clock that the test controls. Actions run in ``advance`` and ``run``, in order of time."""

    def __init__(self, now: float = 1000.0) -> None:
        self._now = now
        self._soon: deque[Callable[[], Any]] = deque()
        self._alarms: list[tuple[float, int, ManualAlarm]] = []
        self._order = itertools.count()

    def now(self) -> float:
        """The virtual time, in seconds."""
        return self._now

    def soon(self, action: Callable[[], Any]) -> None:
        """Run the action in the next ``run``."""
        self._soon.append(action)

    def at(self, when: float, action: Callable[[], Any]) -> ManualAlarm:
        """Run the action at a time."""
        alarm = ManualAlarm(action)
        heapq.heappush(self._alarms, (when, next(self._order), alarm))
        return alarm

    def run(self) -> None:
        """Run all due actions, including those that they schedule."""
        while True:
            if self._soon:
                self._soon.popleft()()
            elif self._alarms and self._alarms[0][0] <= self._now:
                alarm = heapq.heappop(self._alarms)[2]
                if alarm.action is not None:
                    alarm.action()
            else:
                return

    def advance(self, seconds: float) -> None:
        """Advance the time, running each action at its time."""
        self.run()
        end = self._now + seconds
        while self._alarms and self._alarms[0][0] <= end:
            self._now = max(self._now, self._alarms[0][0])
            self.run()
        self._now = end
        self.run()

    def spend(self, seconds: float) -> None:
        """Advance the time without running actions: the duration of the current action."""
        self._now += seconds

    def next_event(self) -> float | None:
        """Return the time of the next action; None if there is none."""
        while self._alarms and self._alarms[0][2].action is None:
            heapq.heappop(self._alarms)
        if self._soon:
            return self._now
        return self._alarms[0][0] if self._alarms else None
