"""Looks at the busy workers of one op, a few times a second, and ends those that hang or grow."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Final

from penstock.executors.processes.recycling import why_ended
from penstock.executors.processes.worker import Worker

LOOK: Final = 0.25
"""Seconds between two looks."""

_log = logging.getLogger(__name__)


def stays(worker: Worker) -> bool:
    """Whether a worker that is to be ended is still at what it was seen at.

    What has not begun there will not: it comes back with its Work. So it dies of nothing else.
    """
    begun = len(worker.ledger.running())
    for work, _ in worker.works:
        work.pending.extend(worker.take_back(work))
    return begun == len(worker.ledger.running())


class Patrol:
    """See the module. It rests while no worker is busy.

    Args:
        op: the op's name.
        busy: gives the workers that have something to do.
        loop: the engine's.
    """

    def __init__(
        self, op: str, busy: Callable[[], Iterable[Worker]], loop: asyncio.AbstractEventLoop
    ) -> None:
        self._op = op
        self._busy = busy
        self._loop = loop
        self._last = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def begin(self) -> None:
        """Some worker is busy now."""
        if self._timer is None:
            self._last = self._loop.time()
            self._timer = self._loop.call_later(LOOK, self._look)

    def end(self) -> None:
        """Look no more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        self._timer = None
        now = self._loop.time()
        passed, self._last = min(now - self._last, 2 * LOOK), now
        workers = list(self._busy())
        for worker in workers:
            if not worker.condemned:
                self._judge(worker, passed)
        if workers:
            self._timer = self._loop.call_later(LOOK, self._look)

    def _judge(self, worker: Worker, passed: float) -> None:
        too_large = why_ended(worker.supervision, worker.resident())
        if too_large is not None:
            _log.error(
                "op %s: worker %s (pid %s) is ended: %s",
                self._op,
                worker.index,
                worker.pid,
                too_large,
            )
            worker.kill()
            return
        fault = worker.watch.look(worker.doing(), passed)
        if fault is not None and stays(worker):
            _log.error(
                "op %s: worker %s (pid %s) hangs and is ended: it %s",
                self._op,
                worker.index,
                worker.pid,
                fault,
            )
            worker.abort()
