"""Opens models and runs ``init_op``, of all ops that run in this process, each within its time.

All of that stays in the main thread, so that it may set what holds for its thread, and a signal
ends it as it ends any code. What takes too long is ended in the same way, by an exception. Native
code does not notice that while it hangs; then nothing can go on, and the process ends.
"""

from __future__ import annotations

import logging
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from types import FrameType
from typing import Final

from penstock.errors import StartupError
from penstock.executors.processes.executor import TOLD_AFTER
from penstock.service.blueprint import Deployment
from penstock.service.build import Works
from penstock.service.children import end_now

_log = logging.getLogger(__name__)

_INTERRUPT: Final = signal.SIGURG
"""Ends what the main thread waits for. By default it is ignored, and hardly any program uses it."""

_GRACE: Final = 5.0
"""Seconds in which an op that was interrupted clears up; a guess."""


class _Overdue(BaseException):
    """No Exception, so that an op's ``except`` does not catch it."""


def begun(deployment: Deployment) -> Works:
    """The deployment come to life, each model and each ``init_op`` within ``start_timeout``.

    Main thread only.

    Raises:
        StartupError: one failed, or took too long.
    """
    watch = _Watch(deployment.config.start_timeout or None)
    before = signal.signal(_INTERRUPT, watch.interrupted)
    try:
        works = Works(deployment, watch.begins)
    except BaseException as error:
        watch.end()
        if watch.late is None:
            raise
        raise StartupError(watch.late) from error
    finally:
        watch.end()
        if before is not None:  # None: not set from Python, so not ours to set back
            signal.signal(_INTERRUPT, before)
    if watch.late is not None:  # and the op went on all the same
        raise StartupError(watch.late)
    return works


class _Watch:
    """Timers for the step that the main thread is at.

    Args:
        limit: seconds that each step may take; None for ever.

    Attributes:
        late: what took too long, in words.
    """

    def __init__(self, limit: float | None) -> None:
        self.late: str | None = None
        self._limit = limit
        self._is_over = False
        self._step_is_over = threading.Event()
        self._timers: list[threading.Timer] = []

    def begins(self, op: str, doing: str) -> None:
        """The main thread's next step."""
        self._cancel()
        if self.late is None:
            self._step_is_over.clear()
            self._after(TOLD_AFTER, lambda: self._tell(op, doing))
            if self._limit is not None:
                self._after(self._limit, lambda: self._end(op, doing))

    def interrupted(self, number: int, frame: FrameType | None) -> None:
        """The handler, in the main thread."""
        if self.late is not None and not self._is_over:
            self._is_over = True
            raise _Overdue

    def end(self) -> None:
        """The start is over: nothing is interrupted any more."""
        self._is_over = True
        self._cancel()

    def _after(self, seconds: float, call: Callable[[], None]) -> None:
        timer = threading.Timer(seconds, call)
        timer.name, timer.daemon = "start", True
        self._timers.append(timer)
        timer.start()

    def _cancel(self) -> None:
        self._step_is_over.set()
        while self._timers:
            timer = self._timers.pop()
            timer.cancel()
            timer.join()

    def _tell(self, op: str, doing: str) -> None:
        _log.warning("op %s has not become ready for %.0f s: %s", op, TOLD_AFTER, doing)

    def _end(self, op: str, doing: str) -> None:
        main = threading.main_thread().ident
        assert main is not None
        stack = "".join(traceback.format_stack(sys._current_frames()[main]))
        _log.error("op %s hangs as it starts, and is ended:\n%s", op, stack)
        self.late = (
            f"op {op!r} was not ready within {self._limit:g} s (start_timeout): {doing};"
            " the log has its stack"
        )
        signal.pthread_kill(main, _INTERRUPT)
        if not self._step_is_over.wait(_GRACE):
            _log.critical("%s; it cannot be ended, and so the process is", self.late)
            logging.shutdown()
            end_now(1)
