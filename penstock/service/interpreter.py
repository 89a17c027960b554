"""What a service sets in the interpreter, once: the process is its own."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

_SWITCH: Final = 0.001


def spare_the_collector() -> None:
    """Take what was made until now, which stays for ever, out of what the collector walks through.

    Requests make many objects and no cycle, so it may also run more seldom. Measured with an echo
    over HTTP: a sixth less CPU time a request.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)


def share_the_lock() -> None:
    """Let a thread that computes in Python keep the interpreter's lock for a millisecond, not five.

    For so long it makes the loop wait, at each of the loop's wake-ups; and a busy loop a worker.
    """
    sys.setswitchinterval(_SWITCH)


@contextmanager
def spared_pages() -> Iterator[None]:
    """Keep the children's collectors away from what they share with this process."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
