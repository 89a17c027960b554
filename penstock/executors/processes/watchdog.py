"""Looks at the busy workers of one op, a few times a second, and ends those that hang or grow.

A call that somebody waits for may take as long as it likes. Two things are a hang: a batch that a
worker does not begin, and one that goes on long after the last who waited for it has left.

Time is told in steps, none longer than the usual one: an engine that was stopped together with its
workers, or got no processor for a while, does not take its own absence for their hanging.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

LOOK: Final = 0.25
"""Seconds between two looks."""
BEGIN_LIMIT: Final = 5.0
"""Seconds within which a worker begins a batch, unless a shorter ``hang_limit`` says so; a guess,
far above the milliseconds that it takes on a machine that is under load."""
BEGIN_LEAST: Final = 1.0
"""Seconds that it is given for that however short ``hang_limit`` is: several looks, so that the one
after a time in which nobody ran, we or it, does not decide alone."""

_RUNAWAY: Final = 1.5
"""Times its memory limit, at which a worker is not given the time to finish its batch. A guess:
batches need memory that is given back after them, and a leak does not come in one batch."""
_PAGE: Final = os.sysconf("SC_PAGE_SIZE")

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Supervision:
    """How the workers of one op are looked after, as its keys say; None is no limit.

    Attributes:
        kill_late: whether a call beyond its time-out is ended with its worker, rather than left to
            return.
        memory_limit: bytes.
    """

    kill_late: bool = False
    start_timeout: float | None = 600.0
    hang_limit: float | None = 60.0
    memory_limit: int | None = None
    max_batches: int | None = None
    crash_dir: str | None = None


class Doing(NamedTuple):
    """What a worker has at hand.

    Attributes:
        number: of the batch.
        begun: whether it runs.
        wanted: whether somebody still waits for it.
    """

    number: int
    begun: bool
    wanted: bool


class Watched(Protocol):
    """A worker, as far as it is looked after."""

    index: int
    pid: int
    condemned: bool
    watch: Watch

    def doing(self) -> Doing | None:
        """What it has at hand; None when it is idle."""

    def kill(self) -> None:
        """End it now."""

    def abort(self) -> None:
        """End it, but let it write down where it is."""


class Watch:
    """Whether one worker hangs. Pure: it is told what the worker does and how much time has passed.

    Args:
        hang_limit: see Supervision.
    """

    def __init__(self, hang_limit: float | None) -> None:
        self._hang_limit = hang_limit
        self._begin_limit = min(BEGIN_LIMIT, max(BEGIN_LEAST, hang_limit or BEGIN_LIMIT))
        self._doing: Doing | None = None
        self._for = 0.0

    def look(self, doing: Doing | None, passed: float) -> str | None:
        """What the worker does wrong, in words; None when that is nothing.

        Args:
            doing: None when it is idle.
            passed: seconds since the last look.
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
            return f"runs a call that nobody has waited for these {limit:g} s"
        return None


class Watchdog:
    """See the module. It rests while no worker is busy.

    Args:
        supervision: what the workers are held to.
        busy: gives those that have something to do.
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
        """Some worker is busy now."""
        if self._timer is None:
            self._last = self._loop.time()
            self._timer = self._loop.call_later(LOOK, self._look)

    def end(self) -> None:
        """Look no more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        self._timer = None
        now = self._loop.time()
        passed, self._last = min(now - self._last, 2 * LOOK), now
        workers = list(self._busy())
        for worker in workers:
            if not worker.condemned:
                self._judge(worker, passed)
        if workers:
            self._timer = self._loop.call_later(LOOK, self._look)

    def _judge(self, worker: Watched, passed: float) -> None:
        who = (self._op, worker.index, worker.pid)
        limit = self._supervision.memory_limit
        if limit is not None:
            resident = resident_bytes(worker.pid)
            if resident is not None and resident > _RUNAWAY * limit:
                told = (
                    "op %s: worker %s (pid %s) is ended: it has %d MiB of memory, far over its %d"
                )
                _log.error(told, *who, resident >> 20, limit >> 20)
                worker.kill()
                return
        fault = worker.watch.look(worker.doing(), passed)
        if fault is not None:
            _log.error("op %s: worker %s (pid %s) hangs and is ended: it %s", *who, fault)
            worker.abort()


def why_replaced(supervision: Supervision, batches: int, pid: int) -> str | None:
    """Why an idle worker is to make room for a new one; None when it is not.

    Args:
        supervision: what it is held to.
        batches: how many it has finished.
        pid: its process.
    """
    limit, most = supervision.memory_limit, supervision.max_batches
    if limit is not None:
        resident = resident_bytes(pid)
        if resident is not None and resident > limit:
            return f"it has {resident >> 20} MiB of memory, over its {limit >> 20}"
    if most is not None and batches >= most:
        return f"it has run {batches} batches"
    return None


def resident_bytes(pid: int) -> int | None:
    """Memory of a process that has not been waited for, with what it shares; None if it has."""
    try:
        with open(f"/proc/{pid}/statm", "rb", buffering=0) as file:
            return int(file.read(128).split()[1]) * _PAGE
    except (OSError, IndexError):
        return None
