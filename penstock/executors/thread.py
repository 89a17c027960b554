"""Runs batches in threads, each with a copy of the op of its own.

The loop puts a Work into one queue that all threads of the op read, and signals an event; what has
been run returns through another queue, with another event. A thread that hangs in a call keeps its
slot: the engine hands out no more Works than there are threads.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Sequence

from penstock.executors.event_fd import EventFd
from penstock.executors.executor import Finished, LocalExecutor, Work
from penstock.executors.turn import take_turn
from penstock.executors.work import BoundOp

_log = logging.getLogger(__name__)


class ThreadExecutor(LocalExecutor):
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
        self._queue: deque[tuple[Work, Finished] | None] = deque()
        self._asked = EventFd()
        self._done: deque[tuple[Work, Finished]] = deque()
        self._answered = EventFd(watched=True)
        loop.add_reader(self._answered, self._report)
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
        self._queue.append((work, finished))
        self._asked.signal()

    def abandon(self, work: Work) -> None:
        """A call in a thread cannot be ended from outside; it keeps its slot until it returns."""

    async def close(self, timeout: float) -> bool:
        """End the threads after the calls they are in."""
        for _ in self._threads:
            self._queue.append(None)
            self._asked.signal()
        deadline = self._loop.time() + timeout
        for thread in self._threads:
            left = max(0.0, deadline - self._loop.time())
            await asyncio.to_thread(thread.join, left)
        hanging = [thread.name for thread in self._threads if thread.is_alive()]
        if hanging:  # they may report while the loop runs
            _log.warning("calls did not return in time and were left behind: %s", hanging)
            return False
        self._report()
        self._loop.remove_reader(self._answered)
        return True

    def _serve(self, op: BoundOp) -> None:
        heard, done, answered = self._asked, self._done, self._answered
        while True:
            heard.wait()
            item = self._queue.popleft()
            if item is None:
                return
            take_turn(op, item[0])
            done.append(item)
            answered.signal()

    def _report(self) -> None:
        """On the loop, where the engine may have taken some of the results before."""
        self._answered.clear()
        done = self._done
        for _ in range(len(done)):  # what comes meanwhile signals again, and waits for its turn
            work, finished = done.popleft()
            finished(work, work.take_results())
