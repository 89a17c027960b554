"""A custom executor: one thread of a pool for each hand-over."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

from penstock.executors.executor import Finished, LocalExecutor, Work
from penstock.executors.kinds import ExecutorKind, ExecutorSpec, register
from penstock.executors.work import BoundOp, run_batch


class PoolExecutor(LocalExecutor):
    """Runs as many calls at once as there are copies of the op."""

    takes_several = False

    def __init__(self, spec: ExecutorSpec) -> None:
        self.workers = spec.workers
        self._free = list(spec.ops)
        self._loop = spec.loop
        self._pool = ThreadPoolExecutor(spec.workers, thread_name_prefix="toy")

    def submit(self, work: Work, finished: Finished) -> None:
        op = self._free.pop()

        def report(_: asyncio.Future[None]) -> None:
            self._free.append(op)
            finished(work, work.take_results())

        ran = self._loop.run_in_executor(self._pool, self._run, op, work)
        ran.add_done_callback(report)

    def abandon(self, work: Work) -> None:
        """A thread cannot be stopped from outside."""

    async def close(self, timeout: float) -> bool:
        self._pool.shutdown(wait=False)
        return True

    @staticmethod
    def _run(op: BoundOp, work: Work) -> None:
        while (batch := work.begin_next()) is not None:
            work.add_result(batch, run_batch(op, batch))


register(ExecutorKind(name="toy", make=PoolExecutor))
