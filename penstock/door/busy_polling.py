"""Busy polling: how long a loop that has come to rest looks for the next request before it sleeps.

To be woken costs more than to look: the scheduler's turn, and caches that somebody else has filled
since. With one client that asks again as soon as it is answered, a loop that looks on answers a
gRPC echo in two thirds of the time. A loop that is asked seldom must not burn its core for that, so
the length of the last cycles decides, as in the kernel's halt polling for guests of KVM
(``Documentation/virt/kvm/halt-polling.rst``).
"""

from __future__ import annotations

from typing import Final

_WEIGHT: Final = 1 / 8
"""Of the last cycle in the mean: one long pause among short ones changes nothing."""

_LONGEST: Final = 3.0
"""Cycles count as no longer than so many times the limit, so that a few short ones outweigh one."""


class BusyPolling:
    """Decides at each rest; knows no clock.

    Args:
        limit: seconds that a rest is looked through at most, and that the cycles of late, from rest
            to rest, may have had on average for that. At 0 it never looks.
    """

    __slots__ = ("_limit", "_mean", "_rested")

    def __init__(self, limit: float) -> None:
        self._limit = limit
        self._mean = _LONGEST * limit
        self._rested = 0.0

    def __repr__(self) -> str:
        return f"<BusyPolling cycles of {self._mean:.6f} s, limit {self._limit} s>"

    def until(self, now: float) -> float:
        """It comes to rest now: how long to look, as a point in time; ``now`` means not at all."""
        limit = self._limit
        cycle = min(now - self._rested, _LONGEST * limit)
        self._rested = now
        self._mean += (cycle - self._mean) * _WEIGHT
        return now + limit if self._mean < limit else now
