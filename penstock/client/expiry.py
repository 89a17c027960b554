"""Ends calls whose time is over: one timer of the loop for all of them."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable
from heapq import heapify, heappop, heappush

from penstock.client.call import Call

_FEW = 256
"""Below so many entries nobody looks for the ended ones among them."""


class Expiry:
    """The deadlines of one line's calls. The loop's thread only.

    Calls that end in time are not looked up: their entries stay until they are half of all.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, expired: Callable[[Call], None]) -> None:
        """``expired`` is called with each call that has not ended by its deadline."""
        self._loop = loop
        self._expired = expired
        self._heap: list[tuple[float, int, Call]] = []
        self._full = _FEW
        self._numbers = itertools.count()  # calls have no order; equal deadlines keep theirs
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0

    def add(self, call: Call, deadline: float) -> None:
        """Watch over one call; one that is late already ends in the next turn of the loop."""
        heap = self._heap
        if len(heap) >= self._full:
            heap[:] = [entry for entry in heap if not entry[2].ended]
            heapify(heap)
            self._full = max(_FEW, 2 * len(heap))
        heappush(heap, (deadline, next(self._numbers), call))
        if self._timer is None or deadline < self._timer_at:
            self._arm(deadline)

    def close(self) -> None:
        """Watch over nothing any more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._heap.clear()

    def _arm(self, when: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = when
        # The loop's own clock may be a millisecond coarse: asked too early, it is asked again.
        self._timer = self._loop.call_later(max(0.0, when - time.monotonic()), self._run)

    def _run(self) -> None:
        self._timer = None
        heap = self._heap
        now = time.monotonic()
        while heap and (heap[0][2].ended or heap[0][0] <= now):
            call = heappop(heap)[2]
            if not call.ended:
                self._expired(call)
        if heap and self._timer is None:
            self._arm(heap[0][0])

    def __len__(self) -> int:
        return len(self._heap)
