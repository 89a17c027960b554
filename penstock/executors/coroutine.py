"""Runs ops whose ``process`` is a coroutine, on the loop: calling a service holds no thread."""

from __future__ import annotations

import asyncio
import time

from penstock.executors.executor import Finished, Result, Work
from penstock.executors.work import BoundOp, batch_steps, broken
from penstock.request import Batch, Outcome


class CoroutineExecutor:
    """At most ``workers`` batches of one op under way on the loop at once."""

    def __init__(self, op: BoundOp, workers: int, loop: asyncio.AbstractEventLoop) -> None:
        self.workers = workers
        self._op = op
        self._loop = loop
        self._tasks: dict[Work, asyncio.Task[None]] = {}

    def __repr__(self) -> str:
        return f"<CoroutineExecutor {self._op.name!r} workers={self.workers}>"

    def submit(self, work: Work, finished: Finished) -> None:
        """Start a task for the Work."""
        task = self._loop.create_task(self._run(work, finished), name=f"op {self._op.name}")
        self._tasks[work] = task

    def abandon(self, work: Work) -> None:
        """Cancel the running ``process``; its slot is free as soon as it has ended."""
        task = self._tasks.get(work)
        if task is not None:
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
            await asyncio.wait(left, timeout=1.0)
        return not left

    async def _run(self, work: Work, finished: Finished) -> None:
        results: list[Result] = []
        try:
            while (batch := work.begin_next()) is not None:
                results.append((batch, await self._run_batch(batch)))
        except asyncio.CancelledError:
            # Given up by the engine, which has answered for the batch already.
            if work.current is not None:
                results.append((work.current, broken(work.current)))
        finally:
            del self._tasks[work]
            finished(work, results)

    async def _run_batch(self, batch: Batch) -> list[Outcome]:
        steps = batch_steps(self._op, batch)
        began = self._loop.time()
        try:
            feed_batch, log_id = next(steps)
            while True:
                batch.started = time.monotonic()
                answer = await self._op.call_async(feed_batch, log_id)
                batch.started = None
                feed_batch, log_id = steps.send(answer)
        except StopIteration as done:
            return done.value  # type: ignore[no-any-return]
        finally:
            batch.ran = self._loop.time() - began
