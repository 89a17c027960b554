"""Runs ops whose ``process`` is a coroutine, on the loop: calling a service holds no thread."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence

from penstock.executors.executor import Finished, LocalExecutor, Work
from penstock.executors.work import Answer, BoundOp, begin, broken, calls, end
from penstock.ops.failures import process_raised
from penstock.request import Batch, Feed, Outcome

_log = logging.getLogger(__name__)

_LAST_WORDS = 1.0
"""Seconds that cancelled calls are given at the end; a guess that covers closing a connection."""


class CoroutineExecutor(LocalExecutor):
    """At most ``len(ops)`` batches of one op under way on the loop at once.

    Args:
        ops: one bound copy for each, so that hooks may keep a request's values on ``self``.
        loop: the engine's loop.
    """

    takes_several = False

    def __init__(self, ops: Sequence[BoundOp], loop: asyncio.AbstractEventLoop) -> None:
        self.workers = len(ops)
        self._name = ops[0].name
        self._free = list(ops)
        self._loop = loop
        self._tasks: dict[Work, asyncio.Task[None]] = {}

    def __repr__(self) -> str:
        return f"<CoroutineExecutor {self._name!r} workers={self.workers}>"

    def submit(self, work: Work, finished: Finished) -> None:
        """Start a task for the Work."""
        task = self._loop.create_task(self._run(work, finished), name=f"op {self._name}")
        self._tasks[work] = task

    def abandon(self, work: Work) -> None:
        """Cancel the running ``process``, once; its slot is free as soon as it has ended."""
        task = self._tasks.get(work)
        if task is not None and not task.cancelling():  # twice would cut its clearing up short
            task.cancel()

    async def close(self, timeout: float) -> bool:
        """Wait for the tasks, then cancel those that are left."""
        tasks = set(self._tasks.values())
        if not tasks:
            return True
        _, left = await asyncio.wait(tasks, timeout=timeout)
        for task in left:
            task.cancel()
        if left:
            _log.warning("op %s: %s calls did not return in time", self._name, len(left))
            await asyncio.wait(left, timeout=_LAST_WORDS)
        return not left

    async def _run(self, work: Work, finished: Finished) -> None:
        op = self._free.pop()
        try:
            while (batch := work.begin_next()) is not None:
                work.add_result(batch, await self._run_safely(op, batch))
        except (asyncio.CancelledError, GeneratorExit):
            # Given up by the engine, which took back what had not begun; or the loop ends.
            lost = work.take_back()
            if work.current is not None:
                lost.insert(0, work.current)
            for batch in lost:
                work.add_result(batch, broken(batch))
        finally:
            del self._tasks[work]
            self._free.append(op)
            finished(work, work.take_results())

    async def _run_safely(self, op: BoundOp, batch: Batch) -> list[Outcome]:
        try:
            return await self._run_batch(op, batch)
        except GeneratorExit:
            raise
        except BaseException:
            if _is_cancelled():
                raise
            _log.exception("op %s: a batch failed inside penstock; please report this", self._name)
            return broken(batch)

    async def _run_batch(self, op: BoundOp, batch: Batch) -> list[Outcome]:
        batch.worker = op.index
        began = time.monotonic()
        try:
            members = begin(op, batch.samples, began)
            steps = calls(op, members)
            asked = next(steps, None)
            batch.prepared = time.monotonic() - began
            while asked is not None:
                batch.started = time.monotonic()
                answer = await self._call(op, *asked)
                batch.processed += time.monotonic() - batch.started
                batch.started = None
                try:
                    asked = steps.send(answer)
                except StopIteration:
                    asked = None
            return end(op, members)
        finally:
            batch.ran = time.monotonic() - began

    @staticmethod
    async def _call(op: BoundOp, feed_batch: list[Feed], log_id: int) -> Answer:
        try:
            return await op.call_async(feed_batch, log_id)
        except asyncio.CancelledError as error:
            if _is_cancelled():
                raise
            # Something that the hook waited for was cancelled, which is its own failure.
            return process_raised(op.name, error, log_id)


def _is_cancelled() -> bool:
    """Whether somebody wants the running task to end."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
