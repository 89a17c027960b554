"""Runs batches in threads, each with a copy of the op of its own.

The loop puts a Work into one queue that all threads of the op read; results return through
``call_soon_threadsafe``, once per Work. A thread that hangs in a call keeps its slot: the engine
hands out no more Works than there are threads.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Sequence
from queue import SimpleQueue

from penstock.executors.executor import Finished, Work
from penstock.executors.work import BoundOp, run_safely

_log = logging.getLogger(__name__)


class ThreadExecutor:
    """``len(ops)`` threads of one op.

    Args:
        ops: one bound copy per thread.
        loop: the engine's loop.
    """

    takes_several = True

    def __init__(self, ops: Sequence[BoundOp], loop: asyncio.AbstractEventLoop) -> None:
        self.workers = len(ops)
        self._name = ops[0].name
        self._loop = loop
        # Bounded by the engine, which never submits more Works than there are workers.
        self._queue: SimpleQueue[tuple[Work, Finished] | None] = SimpleQueue()
        # Daemons, because a call that never returns must not keep the process from ending.
        self._threads = [
            threading.Thread(
                target=self._serve, args=(op,), name=f"{op.name}|{op.index}", daemon=True
            )
            for op in ops
        ]
        for thread in self._threads:
            thread.start()

    def __repr__(self) -> str:
        return f"<ThreadExecutor {self._name!r} workers={self.workers}>"

    def submit(self, work: Work, finished: Finished) -> None:
        """Give the Work to whichever thread is free."""
        self._queue.put((work, finished))

    def abandon(self, work: Work) -> None:
        """A call in a thread cannot be ended from outside; it keeps its slot until it returns."""

    async def close(self, timeout: float) -> bool:
        """End the threads after the calls they are in."""
        for _ in self._threads:
            self._queue.put(None)
        deadline = self._loop.time() + timeout
        for thread in self._threads:
            left = max(0.0, deadline - self._loop.time())
            await asyncio.to_thread(thread.join, left)
        hanging = [thread.name for thread in self._threads if thread.is_alive()]
        if hanging:
            _log.warning("calls did not return in time and were left behind: %s", hanging)
        return not hanging

    def _serve(self, op: BoundOp) -> None:
        while (item := self._queue.get()) is not None:
            work, finished = item
            while (batch := work.begin_next()) is not None:
                work.add_result(batch, run_safely(op, batch))
            try:
                self._loop.call_soon_threadsafe(_report, work, finished)
            except RuntimeError:
                # The loop is closed: nobody waits for these results any more.
                _log.debug("op %s: results came after the end", self._name)
                return


def _report(work: Work, finished: Finished) -> None:
    """On the loop, where the engine may have taken some of the results before."""
    finished(work, work.take_results())
