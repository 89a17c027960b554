"""Which requests are due: a wheel of coarse buckets, one alarm for all of them.

A timer object per request would cost more than the request. Deadlines are rounded up to the next
tick, so nothing is reported early and everything within one tick.
"""

from __future__ import annotations

import heapq
from typing import Any, Generic, TypeVar

Item = TypeVar("Item")

TICK = 0.02
"""Seconds; a fifth of what answers may be late by (100 ms)."""


class Deadlines(Generic[Item]):
    """Items by deadline. ``add`` and ``remove`` are O(1) amortised; pure, time is an argument."""

    __slots__ = ("_buckets", "_ticks")

    def __init__(self) -> None:
        self._buckets: dict[int, dict[Item, Any]] = {}
        self._ticks: list[int] = []  # a heap of the buckets' numbers; emptied ones stay until due

    def __len__(self) -> int:
        return sum(map(len, self._buckets.values()))

    def add(self, item: Item, deadline: float) -> bool:
        """Watch an item (hashable, once). Returns whether ``next_due`` has become earlier."""
        tick = int(deadline / TICK) + 1
        bucket = self._buckets.get(tick)
        if bucket is not None:
            bucket[item] = None
            return False
        self._buckets[tick] = {item: None}
        heapq.heappush(self._ticks, tick)
        return self._ticks[0] == tick

    def remove(self, item: Item, deadline: float) -> None:
        """Stop watching an item; nothing happens when it is not watched."""
        bucket = self._buckets.get(int(deadline / TICK) + 1)
        if bucket is not None:
            bucket.pop(item, None)

    def next_due(self) -> float | None:
        """The monotonic time to call ``expire`` at; None when nothing is watched."""
        while self._ticks and not self._buckets[self._ticks[0]]:
            del self._buckets[heapq.heappop(self._ticks)]
        return self._ticks[0] * TICK if self._ticks else None

    def expire(self, now: float) -> list[Item]:
        """Take out every item that is due, earliest tick first."""
        due: list[Item] = []
        while self._ticks and self._ticks[0] * TICK <= now:
            due.extend(self._buckets.pop(heapq.heappop(self._ticks)))
        return due
