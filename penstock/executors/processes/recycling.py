"""When a worker is replaced though it works, and when it has grown beyond bearing. Pure."""

from __future__ import annotations

from typing import Final

from penstock.executors.processes.supervision import Supervision

_RUNAWAY: Final = 1.5
"""Times its memory limit, at which a worker is not given the time to finish its batch. A guess:
batches need memory that is given back after them, and a leak does not come in one batch."""

_MIB: Final = 1 << 20


def why_replaced(supervision: Supervision, batches: int, resident: int | None) -> str | None:
    """Why an idle worker is to make room for a new one; None when it is not.

    Args:
        supervision: what it is held to.
        batches: how many it has finished.
        resident: bytes of memory that it has now; None when that is not known.
    """
    limit, most = supervision.memory_limit, supervision.max_batches
    if limit is not None and resident is not None and resident > limit:
        return f"it has {resident // _MIB} MiB of memory, over its {limit // _MIB}"
    if most is not None and batches >= most:
        return f"it has run {batches} batches"
    return None


def why_ended(supervision: Supervision, resident: int | None) -> str | None:
    """Why a worker is to be ended in the middle of its batch; None when it is not."""
    limit = supervision.memory_limit
    if limit is None or resident is None or resident <= _RUNAWAY * limit:
        return None
    return f"it has {resident // _MIB} MiB of memory, far over its {limit // _MIB}"
