"""Restarts of workers that died, with back-off. Pure: time is an argument.

A death counts only if the worker had not finished a batch since its start. A worker that had is
replaced at once, however often it dies. Otherwise the next start is delayed, longer each time, and
after ``MOST_DEATHS`` such deaths in a row within a minute the slot is disabled, and a start is
tried every ``LONGEST`` seconds, because a missing resource may come back. Each slot counts its own
deaths, so that one bad GPU does not stop the workers on the others.
Source: Erlang/OTP's restart intensity.
"""

from __future__ import annotations

from collections import deque
from typing import Final

MOST_DEATHS: Final = 5
WITHIN: Final = 60.0
LONGEST: Final = 30.0
"""Most seconds between two attempts, also of a disabled slot."""

_FIRST: Final = 0.1


class Restarts:
    """The history of one worker slot.

    Attributes:
        given_up: whether too many of its workers have died, and none has finished a batch since.
    """

    def __init__(self) -> None:
        self.given_up = False
        self._early: deque[float] = deque()
        self._doubtful_until = float("-inf")
        self._wait = 0.0

    def died(self, now: float, *, had_worked: bool, had_begun: bool = False) -> float | None:
        """Seconds until the next start; None to disable the slot.

        Args:
            now: monotonic seconds.
            had_worked: whether it had finished a batch since it was started.
            had_begun: whether it had begun one.
        """
        early = self._early
        if had_worked:
            early.clear()
            self._wait = 0.0
            self.given_up = False
            return 0.0
        early.append(now)
        while early[0] <= now - WITHIN:
            early.popleft()
        if had_begun and len(early) > 1:  # a single death may be caused by its batch
            self._doubtful_until = now + WITHIN
        self.given_up = self.given_up or len(early) >= MOST_DEATHS
        if self.given_up:
            return None
        wait = self._wait
        self._wait = min(LONGEST, wait * 2 or _FIRST)
        return wait

    def is_doubtful(self, now: float) -> bool:
        """Whether the next worker is on probation: it must finish a batch to count as working.

        True for a while after two deaths in a row, the last during the first batch: a successful
        start then proves nothing.
        """
        return now < self._doubtful_until

    def refused(self) -> float:
        """Seconds until the next attempt after one that failed for lack of resources.

        That does not count against the worker, so the slot is not disabled.
        """
        wait = self._wait or _FIRST
        self._wait = min(LONGEST, wait * 2)
        return wait
