"""The watchdog: checks the busy workers of one op a few times a second, and ends those that hang or
exceed their memory limit.

A call may run as long as a request waits for it. A worker hangs if it does not begin a batch, or if
a batch runs on long after its last request has ended.

Elapsed time is counted in steps of at most the usual interval, so that an engine that was stopped
together with its workers, or got no CPU for a while, does not mistake that for a hang.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

LOOK: Final = 0.25
"""Interval between two checks, in seconds."""
BEGIN_LIMIT: Final = 5.0
"""Seconds within which a worker begins a batch, unless a shorter ``hang_limit`` says so; a guess,
far above the milliseconds that it takes on a machine that is under load."""
BEGIN_LEAST: Final = 1.0
"""Least value of that limit, however short ``hang_limit`` is: several checks, so that a single one
after a pause of the machine does not decide."""

_KILL_FACTOR: Final = 1.5
"""Factor of the memory limit at which a worker is killed before its batch ends. A guess: a batch
frees its memory at the end, and a leak does not grow within one batch."""
_PAGE: Final = os.sysconf("SC_PAGE_SIZE")

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Supervision:
    """The limits of an op's workers, from its keys; None is no limit.

    Attributes:
        kill_late: whether a call that exceeds its timeout is ended with its worker.
        memory_limit: bytes.
    """

    kill_late: bool = False
    start_timeout: float | None = 600.0
    hang_limit: float | None = 60.0
    memory_limit: int | None = None
    max_batches: int | None = None
    crash_dir: str | None = None


class Doing(NamedTuple):
    """The current batch of a worker.

    Attributes:
        number: of the batch.
        begun: whether it runs.
        wanted: whether a request still waits for it.
    """

    number: int
    begun: bool
    wanted: bool


class Watched(Protocol):
    """A worker, as the watchdog sees it."""

    index: int
    where: str
    batches: int
    ending: bool
    watch: Watch

    @property
    def memory(self) -> int | None:
        """Its resident memory in bytes; None if unknown."""

    def doing(self) -> Doing | None:
        """Its current batch; None when it is idle."""

    def kill(self) -> None:
        """End it now."""

    def abort(self) -> None:
        """End it, after it has written its stack."""


class Watch:
    """Decides whether one worker hangs. Pure: its state and the time passed are arguments.

    Args:
        hang_limit: see Supervision.
    """

    def __init__(self, hang_limit: float | None) -> None:
        self._hang_limit = hang_limit
        self._begin_limit = min(BEGIN_LIMIT, max(BEGIN_LEAST, hang_limit or BEGIN_LIMIT))
        self._doing: Doing | None = None
        self._for = 0.0

    def look(self, doing: Doing | None, passed: float) -> str | None:
        """A text that describes the hang; None if there is none.

        Args:
            doing: None when it is idle.
            passed: seconds since the last check.
        """
        if doing != self._doing:
            self._doing = doing
            self._for = 0.0
            return None
        self._for += passed
        limit = self._hang_limit
        if doing is None:
            return None
        if not doing.begun:
            if self._for >= self._begin_limit:
                return f"has not begun a batch within {self._begin_limit:g} s"
        elif not doing.wanted and limit is not None and self._for >= limit:
            return f"runs a call without waiting requests for {limit:g} s"
        return None


class Watchdog:
    """See the module. It does not run while no worker is busy.

    Args:
        supervision: the limits of the workers.
        busy: returns the busy workers.
    """

    def __init__(
        self,
        op: str,
        supervision: Supervision,
        busy: Callable[[], Iterable[Watched]],
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._op = op
        self._supervision = supervision
        self._busy = busy
        self._loop = loop
        self._last = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def begin(self) -> None:
        """Start the checks: a worker is busy now."""
        if self._timer is None:
            self._last = self._loop.time()
            self._timer = self._loop.call_later(LOOK, self._look)

    def end(self) -> None:
        """Stop the checks."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        self._timer = None
        now = self._loop.time()
        passed, self._last = min(now - self._last, 2 * LOOK), now
        workers = list(self._busy())
        for worker in workers:
            if not worker.ending:
                self._judge(worker, passed)
        if workers:
            self._timer = self._loop.call_later(LOOK, self._look)

    def _judge(self, worker: Watched, passed: float) -> None:
        who = (self._op, worker.index, worker.where)
        limit = self._supervision.memory_limit
        if limit is not None:
            resident = worker.memory
            if resident is not None and resident > _KILL_FACTOR * limit:
                text = (
                    "op %s: worker %s (%s) is ended: it has %d MiB of memory, far over its"
                    " memory_limit_mib of %d"
                )
                _log.error(text, *who, resident >> 20, limit >> 20)
                worker.kill()
                return
        fault = worker.watch.look(worker.doing(), passed)
        if fault is not None:
            _log.error("op %s: worker %s (%s) hangs and is ended: it %s", *who, fault)
            worker.abort()


def why_replaced(supervision: Supervision, worker: Watched) -> str | None:
    """Why an idle worker must be replaced; None if it need not.

    Args:
        supervision: its limits.
        worker: the worker.
    """
    limit, most = supervision.memory_limit, supervision.max_batches
    if limit is not None:
        resident = worker.memory
        if resident is not None and resident > limit:
            return (
                f"it has {resident >> 20} MiB of memory, over its memory_limit_mib of {limit >> 20}"
            )
    if most is not None and worker.batches >= most:
        return f"it has run {worker.batches} batches"
    return None


def resident_bytes(pid: int) -> int | None:
    """Resident memory of a process, shared memory included; None if it has been reaped."""
    try:
        with open(f"/proc/{pid}/statm", "rb", buffering=0) as file:
            return int(file.read(128).split()[1]) * _PAGE
    except (OSError, IndexError):
        return None
