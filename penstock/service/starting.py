"""Opens models and runs ``init_op``, of all ops that run in this process, each within its time.

All of that stays in the main thread, so that it may set what holds for its thread, and a signal
ends it as it ends any code. What takes too long is ended in the same way, by an exception. Only
native code does not hear of that while it hangs. Nothing can go on then, nobody can be told, and so
the process ends.
"""

from __future__ import annotations

import logging
import signal
import sys
import threading
import time
import traceback
from itertools import takewhile
from types import FrameType
from typing import Final, NamedTuple

from penstock.errors import StartupError
from penstock.executors.processes.executor import TOLD_AFTER
from penstock.executors.processes.watchdog import LOOK
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


class _Step(NamedTuple):
    """What goes on: of which op, and in words."""

    op: str
    doing: str


def begun(deployment: Deployment) -> Works:
    """The deployment come to life, each model and each ``init_op`` within ``start_timeout``.

    Main thread only.

    Raises:
        StartupError: one failed, or took too long.
    """
    watch = _Watch(deployment.config.start_timeout or None)
    before = signal.signal(_INTERRUPT, watch.interrupted)
    watch.start()
    failure: BaseException | None = None
    try:
        try:
            works = Works(deployment, watch.begins)
        finally:
            watch.is_over = True
    except BaseException as error:  # noqa: BLE001 - ours, perhaps, or what an op made of it
        failure = error
    watch.end()
    if before is not None:  # None: not set from Python, so not ours to set back
        signal.signal(_INTERRUPT, before)
    if watch.late is not None:
        raise StartupError(watch.late) from failure
    if failure is not None:
        raise failure
    return works


class _Start:
    """How long one step takes.

    Args:
        limit: seconds that it may; None for ever.

    Attributes:
        taken: seconds so far.
    """

    def __init__(self, limit: float | None) -> None:
        self.taken = 0.0
        self._limit = limit
        self._tell_at = TOLD_AFTER

    @property
    def is_too_long(self) -> bool:
        """Whether it has taken longer than it may."""
        return self._limit is not None and self.taken >= self._limit

    def look(self, passed: float) -> bool:
        """Whether it is time to tell that it goes on: each time after twice as long."""
        self.taken += passed
        if self.taken < self._tell_at:
            return False
        self._tell_at *= 2
        return True


class _Watch:
    """A thread that looks at the main one.

    Args:
        limit: seconds that each step may take; None for ever.

    Attributes:
        is_over: nothing is to be interrupted any more.
        late: what took too long, in words.
    """

    def __init__(self, limit: float | None) -> None:
        self.is_over = False
        self.late: str | None = None
        self._limit = limit
        self._step: _Step | None = None
        self._has_interrupted = False
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._look, name="start", daemon=True)

    def start(self) -> None:
        """Look from now on."""
        self._thread.start()

    def begins(self, op: str, doing: str) -> None:
        """The main thread's next step."""
        self._step = _Step(op, doing)

    def interrupted(self, number: int, frame: FrameType | None) -> None:
        """The handler, in the main thread."""
        if self.late is not None and not self._has_interrupted and not self.is_over:
            self._has_interrupted = True
            raise _Overdue

    def end(self) -> None:
        """Look no more; whether something was late is certain from then on."""
        self._ended.set()
        self._thread.join()

    def _look(self) -> None:
        step, start = self._step, _Start(self._limit)
        before = time.monotonic()
        while not self._ended.wait(LOOK) and not self.is_over:
            now = time.monotonic()
            # We may have been stopped for a while.
            passed, before = min(now - before, 2 * LOOK), now
            if self._step is not step:
                step, start = self._step, _Start(self._limit)
            is_time_to_tell = start.look(passed)
            if step is None:
                continue
            if start.is_too_long:
                self._end(step)
                return
            if is_time_to_tell:
                _log.warning(
                    "op %s has not become ready for %.0f s: %s", step.op, start.taken, step.doing
                )

    def _end(self, step: _Step) -> None:
        main = threading.main_thread().ident
        assert main is not None
        _log.error("op %s hangs as it starts, and is ended:\n%s", step.op, _stack_of(main))
        self.late = (
            f"op {step.op!r} was not ready within {self._limit:g} s (start_timeout): {step.doing};"
            " the log has its stack"
        )
        signal.pthread_kill(main, _INTERRUPT)
        if not self._ended.wait(_GRACE) and not self.is_over:
            _log.critical("%s; it cannot be ended, and so the process is", self.late)
            logging.shutdown()
            end_now(1)


def _stack_of(thread: int) -> str:
    """Where it is, from here on."""
    frames = traceback.walk_stack(sys._current_frames()[thread])
    inner = takewhile(lambda each: each[0].f_code.co_filename != __file__, frames)
    return "".join(reversed(traceback.StackSummary.extract(inner).format()))
