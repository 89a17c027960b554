"""When a worker that died is started again. Pure: it knows only the times that it is told.

A worker that has finished a batch is replaced at once, however often it dies. So is one that died
of its first, where the op is known to work: what it died of is that batch, which is another's
concern, and no more of them die than there are batches to die of. Any other death counts: the next
start waits longer each time, and too many in a row of a minute mean that the op does not work: then
nobody waits for its next worker any more, but one is tried now and then, for what it lacks may come
back. Source: Erlang/OTP's restart intensity.
"""

from __future__ import annotations

from collections import deque
from typing import Final

MOST_DEATHS: Final = 5
WITHIN: Final = 60.0
LONGEST: Final = 30.0
"""Seconds between two attempts, also of an op that is given up."""

_FIRST: Final = 0.1


class Restarts:
    """The history of one op's workers.

    Attributes:
        works: whether some worker is known to have finished a batch.
    """

    __slots__ = ("_early", "_lacked", "_wait", "works")

    def __init__(self) -> None:
        self.works = False
        self._early: deque[float] = deque()
        self._lacked = float("-inf")
        self._wait = 0.0

    def died(self, now: float, *, had_worked: bool, had_begun: bool = False) -> float | None:
        """Seconds until the next start; None to give the op up.

        Args:
            now: monotonic seconds.
            had_worked: whether it had finished a batch since it was started.
            had_begun: whether it had begun one.
        """
        self.works |= had_worked
        if had_worked or (had_begun and self.works):
            self._early.clear()
            self._wait = 0.0
            return 0.0
        early = self._early
        early.append(now)
        while early[0] <= now - WITHIN:
            early.popleft()
        if len(early) >= MOST_DEATHS:
            return None
        wait = self._wait
        self._wait = min(LONGEST, wait * 2 or _FIRST)
        return wait

    def refused(self) -> float:
        """Seconds until the next attempt after one for which there was no room on the machine.

        That says nothing about the worker, so it never gives the op up.
        """
        wait = self._wait or _FIRST
        self._wait = min(LONGEST, wait * 2)
        return wait

    def lacked(self, now: float) -> float:
        """The same after the end of one that could work, but for whose memory there was no room.

        The next one may well need as much: each costs a start, for nothing. After a quiet minute
        that is over.
        """
        if now > self._lacked + WITHIN:
            self._wait = 0.0
        self._lacked = now
        return self.refused()

    def after_death(self, now: float) -> float | None:
        """The same for what has no batches."""
        return self.died(now, had_worked=False)
