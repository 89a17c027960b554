"""Deadlines of requests: a timer wheel of coarse buckets, with one alarm for all.

A timer object per request would cost more than the request. Deadlines are rounded up to the next
tick, so nothing expires early, and everything within one tick.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from itertools import chain
from typing import Generic, TypeAlias, TypeVar

Item = TypeVar("Item")

Due: TypeAlias = dict[Item, None]
"""The items of one tick. An item is no longer watched after its removal from this dict."""

TICK = 0.02
"""Seconds; a fifth of the allowed lateness of answers (100 ms)."""


class Deadlines(Generic[Item]):
    """Items by deadline. ``add`` is O(1) amortised; pure, time is an argument.

    Args:
        earlier: called when ``next_due`` has become earlier.
    """

    def __init__(self, earlier: Callable[[], None]) -> None:
        self._earlier = earlier
        self._buckets: dict[int, Due[Item]] = {}
        self._ticks: list[int] = []  # a heap of the buckets' numbers; emptied ones stay until due

    def __len__(self) -> int:
        return sum(map(len, self._buckets.values()))

    def __iter__(self) -> Iterator[Item]:
        return chain.from_iterable(self._buckets.values())

    def add(self, item: Item, deadline: float) -> Due[Item]:
        """Watch an item (hashable, once) until it is due or removed from the returned dict."""
        tick = int(deadline / TICK) + 1
        bucket = self._buckets.get(tick)
        if bucket is not None:
            bucket[item] = None
            return bucket
        bucket = self._buckets[tick] = {item: None}
        heapq.heappush(self._ticks, tick)
        if self._ticks[0] == tick:
            self._earlier()
        return bucket

    def next_due(self) -> float | None:
        """The monotonic time of the next ``expire``; None when nothing is watched."""
        while self._ticks and not self._buckets[self._ticks[0]]:
            del self._buckets[heapq.heappop(self._ticks)]
        return self._ticks[0] * TICK if self._ticks else None

    def expire(self, now: float) -> list[Item]:
        """Remove and return every item that is due, earliest tick first."""
        due: list[Item] = []
        while self._ticks and self._ticks[0] * TICK <= now:
            due.extend(self._buckets.pop(heapq.heappop(self._ticks)))
        return due
