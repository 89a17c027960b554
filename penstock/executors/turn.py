"""One turn of a worker in this process: as many batches of a Work as it allows."""

from __future__ import annotations

from typing import Final

from penstock.executors.executor import Work
from penstock.executors.work import BoundOp, run_batch

TURN: Final = 0.001
"""Seconds of work after which no further batch of a Work is begun: they were predicted wrongly, and
others wait, for the worker or for what has been run."""


def take_turn(op: BoundOp, work: Work, limit: float | None = None) -> None:
    """Run the Work's batches in the calling thread; what the turn is too short for stays pending.

    Args:
        op: the worker's copy.
        work: its results are added one by one, for an engine that looks in between.
        limit: as ``run_batch`` has it.
    """
    results = work.results
    pending = work.pending
    left = TURN
    while pending and left > 0.0:
        try:
            # What ``begin_next`` does, without the call.
            batch = work.current = pending.popleft()
        except IndexError:  # the engine has just taken the last one back
            break
        results.append((batch, run_batch(op, batch, limit)))
        left -= batch.ran
    work.current = None
