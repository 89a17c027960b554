"""Runs batches in the caller: no thread, no wake-up. For ops that take microseconds."""

from __future__ import annotations

from penstock.executors.executor import Finished, LocalExecutor, Work
from penstock.executors.turn import take_turn
from penstock.executors.work import BoundOp


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
        take_turn(self._op, work, self._op.options.timeout)
        finished(work, work.take_results())

    def abandon(self, work: Work) -> None:
        """Nothing runs between calls, so there is nothing to end."""

    async def close(self, timeout: float) -> bool:
        """There is nothing to stop."""
        return True
