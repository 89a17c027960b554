"""Runs batches in the caller: no thread, no wake-up. For ops that take microseconds."""

from __future__ import annotations

from penstock.executors.executor import TURN, Finished, LocalExecutor, Work
from penstock.executors.work import BoundOp, run_safely


class InlineExecutor(LocalExecutor):
    """One worker, which is the engine's loop itself; while it runs, nothing else does."""

    takes_several = True

    def __init__(self, op: BoundOp) -> None:
        self.workers = 1
        self._op = op

    def __repr__(self) -> str:
        return f"<InlineExecutor {self._op.name!r}>"

    def submit(self, work: Work, finished: Finished) -> None:
        """Run the Work now, or as much of it as one turn allows, and report before returning."""
        op = self._op
        limit = op.options.timeout
        left = TURN
        while left > 0.0 and (batch := work.begin_next()) is not None:
            work.add_result(batch, run_safely(op, batch, limit))
            left -= batch.ran
        work.current = None
        finished(work, work.take_results())

    def abandon(self, work: Work) -> None:
        """Nothing runs between calls, so there is nothing to end."""

    async def close(self, timeout: float) -> bool:
        """There is nothing to stop."""
        return True
