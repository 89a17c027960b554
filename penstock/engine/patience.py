"""How long a batch may stand with a worker that does not begin it, and whether it still should."""

from __future__ import annotations

from penstock.batching.dispatch import HAND_OVER_BUDGET
from penstock.executors.executor import Work
from penstock.request import Batch

PATIENCE = 4 * HAND_OVER_BUDGET
"""Seconds after which a hand-over of several batches was predicted wrongly."""

ONE_PATIENCE = 0.2
"""Seconds within which a worker begins the one batch that it was handed, unless it is stopped. Far
more than a process needs to wake up on a machine under load, where handing over again only adds to
the load. What stands ahead waits as long behind a slow call, unless a worker is idle and has
nothing else to do: while all have, to wait less would take a guess at what is slow, which goes
wrong when the machine is busiest, and nothing more is put behind that call meanwhile."""


def patience(work: Work) -> float:
    """Seconds after which what has not begun there should begin elsewhere."""
    return PATIENCE if work.crowded else ONE_PATIENCE


def in_vain(batch: Batch) -> bool:
    """Whether nobody waits for any of it."""
    return all(sample.gone for sample in batch.samples)
