"""Watches the steps of a start: a slow one is logged; one that exceeds ``start_timeout`` ends the
process.
"""

from __future__ import annotations

import logging
import sys
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager

from penstock.executors.workers.pool import LOG_AFTER
from penstock.supervisor.child_processes import end_now

_log = logging.getLogger(__name__)


@contextmanager
def watched(limit: float | None, op: str, doing: str) -> Iterator[None]:
    """A step of the start, which is logged if it takes long.

    Args:
        limit: seconds after which the process is ended; None is no limit.
        op: the op's name.
        doing: the step, as text.
    """
    thread = threading.get_ident()

    def warn() -> None:
        _log.warning("op %s has not become ready for %.0f s: %s", op, LOG_AFTER, doing)

    def end() -> None:
        stack = "".join(traceback.format_stack(sys._current_frames()[thread]))
        text = "op %r was not ready within %g s (start_timeout): %s; the process is ended:\n%s"
        _log.critical(text, op, limit, doing, stack)
        logging.shutdown()
        end_now(1)

    timers = [threading.Timer(LOG_AFTER, warn)]
    if limit is not None:
        timers.append(threading.Timer(limit, end))
    for timer in timers:
        timer.name, timer.daemon = "start", True
        timer.start()
    try:
        yield
    finally:
        for timer in timers:
            timer.cancel()
            timer.join()
