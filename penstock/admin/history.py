"""Adds points to an engine's history, and answers those of the service."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

from penstock.errors import StartupError
from penstock.observe.history import EVERY, History, Point, number_at, point
from penstock.observe.reports import Report

HISTORY: Final = "live history"
"""The query to all engines for their points."""

_log: Final = logging.getLogger(__name__)


class Historian:
    """Adds a point to the history every few seconds. Belongs to the engine's loop.

    Args:
        report: makes the engine's report.
        keep: gets each point with its number, for the time after this engine's end; may raise
            StartupError.
        now: monotonic seconds.
    """

    def __init__(
        self,
        report: Callable[[], Report],
        keep: Callable[[int, Point], object] = lambda *_: None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._report = report
        self._keep = keep
        self._now = now
        self._history = History()
        self._before = report()
        self._at = now()
        # No task: a loop may end without a close, and would log its pending ones.
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Begin to add points."""
        now = self._now()
        wait = (number_at(now) + 2) * EVERY - now
        self._timer = asyncio.get_running_loop().call_later(wait, self._go_on)

    def close(self) -> None:
        """Add no more points."""
        if self._timer is not None:
            self._timer.cancel()

    def answer(self, after: int, ops: Sequence[str]) -> list[tuple[int, Point]]:
        """See ``History.since``."""
        return self._history.since(after, ops)

    def take(self) -> None:
        """Add the point that ends now."""
        report, now = self._report(), self._now()
        made = point(self._before, report, max(now - self._at, 0.001))
        self._before, self._at = report, now
        number = number_at(now)
        self._history.add(number, made)
        with suppress(StartupError):  # the supervisor is gone, and this engine ends
            self._keep(number, made)

    def _go_on(self) -> None:
        try:
            self.take()
        except Exception:  # noqa: BLE001 - our bug: the next point may be made
            _log.exception("no point of the live page's history could be made")
        self.start()
