"""ManualClock: a clock that the test advances."""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from collections.abc import Callable
from typing import Any


class ManualAlarm:
    """An entry of a ManualClock."""

    def __init__(self, action: Callable[[], Any]) -> None:
        self.action: Callable[[], Any] | None = action

    def cancel(self) -> None:
        """Do not ring."""
        self.action = None


class ManualClock:
    """A Clock under a test's control. Actions run in ``advance`` and ``run``, in order of time."""

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
        """Run the action when time has come that far."""
        alarm = ManualAlarm(action)
        heapq.heappush(self._alarms, (when, next(self._order), alarm))
        return alarm

    def run(self) -> None:
        """Run everything that is due now, and what that brings about."""
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
        """Let time pass, stopping at each alarm on the way."""
        self.run()
        end = self._now + seconds
        while self._alarms and self._alarms[0][0] <= end:
            self._now = max(self._now, self._alarms[0][0])
            self.run()
        self._now = end
        self.run()

    def spend(self, seconds: float) -> None:
        """Let time pass inside the action that is running: nothing else runs meanwhile."""
        self._now += seconds

    def next_event(self) -> float | None:
        """When the next alarm rings; None when nothing is planned."""
        while self._alarms and self._alarms[0][2].action is None:
            heapq.heappop(self._alarms)
        if self._soon:
            return self._now
        return self._alarms[0][0] if self._alarms else None
