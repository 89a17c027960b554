"""The executor for worker processes: a crash in native code costs one batch, not the service.

Each worker has one socket: all batches of a Work are sent together, and their outcomes come back in
order. Its status page shows the running batch. When a worker dies, its running batch fails, batches
that it had not begun go to another worker, and it is replaced.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from penstock.errors import StartupError
from penstock.executors.executor import OpSource
from penstock.executors.processes.crash_report import frames_of_the_op, report
from penstock.executors.processes.slabs import SlabPool
from penstock.executors.processes.spawner import Spawner
from penstock.executors.processes.worker import SLAB_BYTES, ProcessWorker
from penstock.executors.workers.pool import NoWorkerError, WorkerPool
from penstock.executors.workers.watchdog import Supervision

_log = logging.getLogger(__name__)

TRIM_EVERY: Final = 10.0
"""Interval in seconds at which idle shared memory is checked; slabs unused for one interval are
freed."""


class ProcessExecutor(WorkerPool[ProcessWorker]):
    """``count`` worker processes of one op.

    Args:
        name: the op's label.
        spawner: starts them.
        source: the op that they open.
        supervision: limits of the workers.
        streams: whether the op's answers come in pieces.
        seats: the number of Works that a worker has at once.
    """

    _kind: type[ProcessWorker] = ProcessWorker

    def __init__(
        self,
        name: str,
        count: int,
        spawner: Spawner,
        loop: asyncio.AbstractEventLoop,
        *,
        source: OpSource | None = None,
        supervision: Supervision | None = None,
        streams: bool = False,
        seats: int = 1,
    ) -> None:
        super().__init__(
            name, count, loop, supervision or Supervision(), streams=streams, seats=seats
        )
        self.takes_several = not streams  # which occupy a worker for long
        self._spawner = spawner
        self._source = source or OpSource(op=name, label=name)
        self._pool = SlabPool(SLAB_BYTES, self._trim_later)
        self._trimming: asyncio.TimerHandle | None = None

    async def close(self, timeout: float) -> bool:
        in_time = await super().close(timeout)
        if self._trimming is not None:
            self._trimming.cancel()
        self._pool.close()
        return in_time

    async def _begin(self, index: int, *, decides: bool) -> ProcessWorker:
        try:
            spawned = await self._spawner.spawn(self._source, index)
        except StartupError as error:
            raise NoWorkerError(str(error)) from error
        return self._kind(
            self.op,
            index,
            spawned,
            self._loop.create_task(self._spawner.exited(spawned.pid)),
            self._loop,
            self._pool,
            hang_limit=self._supervision.hang_limit,
            decides=decides,
            done=self._done,
        )

    def _trim_later(self) -> None:
        if self._trimming is None:
            self._trimming = self._loop.call_later(TRIM_EVERY, self._trim)

    def _trim(self) -> None:
        self._pool.trim()
        self._trimming = None
        if len(self._pool):
            self._trim_later()

    def _log_hang(self, worker: ProcessWorker) -> str:
        stacks = "\n".join(frames_of_the_op(worker.stacks()))
        who = (self.op, worker.index, worker.where)
        _log.error("op %s: worker %s (%s) hangs during its start:\n%s", *who, stacks)
        return "; the log has the stack of its threads"

    def _report(self, worker: ProcessWorker, how: str, data_ids: list[int]) -> None:
        report(
            op=self.op,
            worker=worker.index,
            pid=worker.pid,
            how=how,
            data_ids=data_ids,
            batches=worker.batches,
            peak=worker.exit.result().peak,
            stacks=worker.stacks(),
            by_us=worker.late,
            folder=self._supervision.crash_dir,
        )
