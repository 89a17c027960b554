"""Sends the requests of one step when they are due, and records the outcome of each.

Every request that is sent ends once: with an answer, a failure, its timeout, or the end of the run.
Use on the loop's thread only. Times are monotonic seconds.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Final, NamedTuple, Protocol

from penstock.bench.pieces import between_pieces
from penstock.bench.results import UNFINISHED, UNSENT, WAITED_FOR, Measured
from penstock.bench.schedule import Load, Step, arrivals
from penstock.bench.timer import PreciseTimer

_PAUSE: Final = 0.1
"""Seconds that a caller of a closed loop waits after a failure to reach the server, so that
it does not use up the core."""
_GRACE: Final = 1.0
"""Seconds to wait for answers when the run is interrupted."""
_POLL: Final = 0.1


def _busy_seconds() -> float:
    """Return the seconds in which this thread has run, or has waited for a busy core.

    Source: Linux, Documentation/scheduler/sched-stats.rst.
    """
    try:
        ran, waited, _ = Path("/proc/thread-self/schedstat").read_text().split()
    except OSError:  # not supported by the kernel: CPU time only
        return time.thread_time()
    return (int(ran) + int(waited)) / 1e9


class Attempt:
    """One request in flight.

    Attributes:
        due: when it was due to be sent.
        sent: when it was sent.
        first: when the first piece of its answer arrived; None before, and without pieces.
        last: when the latest one arrived.
        pieces: pieces that have arrived.
    """

    __slots__ = ("due", "first", "last", "pieces", "sent")

    def __init__(self, due: float, sent: float) -> None:
        self.due = due
        self.sent = sent
        self.first: float | None = None
        self.last = 0.0
        self.pieces = 0


class Failure(NamedTuple):
    """Why a request has no good answer.

    Attributes:
        kind: one of a few kinds, which are counted.
        text: details.
        reached: whether a server has answered.
    """

    kind: str
    text: str = ""
    reached: bool = True


Ended = Callable[[Attempt, Failure | None], object]
"""Called once for each attempt, never from within ``send``."""


Arrived = Callable[[Attempt, int, float], object]
"""Called with pieces of the answer to an attempt: how many, and when they arrived."""


class Sender(Protocol):
    """The connections to a service."""

    def send(self, attempt: Attempt) -> None:
        """Send the next request."""

    async def close(self) -> None:
        """Disconnect; in-flight attempts end with a failure."""


class Generator:
    """Runs one step in one process.

    Args:
        step: this process's part of the step.
        load: the options of the run.
        begin: when the warm-up begins.
        stopped: polled; returns whether to end early.
    """

    def __init__(self, step: Step, load: Load, begin: float, stopped: Callable[[], bool]) -> None:
        self._step = step
        self._load = load
        self._first = begin + load.warm_up
        self._end = self._first + load.duration
        self._begin = begin
        self._stopped = stopped
        self._measured = Measured()
        self._in_flight = 0
        self._pausing = 0
        self._backlog: deque[float] = deque()
        self._closing = False
        self._idle = asyncio.Event()

    async def run(self, connect: Callable[[Ended, Arrived], Sender]) -> Measured:
        """Send the requests, wait for the answers, and return the measurements."""
        loop = asyncio.get_running_loop()
        self._loop = loop
        self._sender = connect(self._ended, self._arrived)
        open_loop = self._step.rate is not None
        if open_loop:
            self._random_arrivals()
        try:
            await self._until(self._begin)
            if not open_loop:
                for _ in range(self._step.concurrency):
                    self._send()
            await self._until(self._first)
            busy = _busy_seconds()
            await self._until(self._end)
            self._measured.busy = _busy_seconds() - busy
            self._measured.seconds = max(0.0, self._end - self._first)
            if open_loop:
                self._timer.close()
            await self._drain()
        finally:
            self._closing = True
            await self._sender.close()
        return self._measured

    async def _until(self, when: float) -> None:
        """Wait until a time, or until ``stopped``, which ends the step now."""
        while (left := min(when, self._end) - time.monotonic()) > 0:
            if self._stopped():
                self._end = time.monotonic()
                self._measured.interrupted = True
                return
            await asyncio.sleep(min(left + 0.001, _POLL))  # the loop rounds to milliseconds

    async def _drain(self) -> None:
        """Send requests that are due, and wait for all answers, at most for their timeouts."""
        left = _GRACE
        while self._in_flight and (left > 0 or not self._stopped()):
            if self._stopped() or time.monotonic() > self._end + self._load.timeout:
                self._leave_unsent()
            self._idle.clear()
            try:
                async with asyncio.timeout(_POLL):
                    await self._idle.wait()
            except TimeoutError:
                if self._stopped():
                    self._measured.interrupted = True
                    left -= _POLL

    def _leave_unsent(self) -> None:
        now = time.monotonic()
        for due in self._backlog:
            self._record(Attempt(due, now), Failure(UNSENT), now)
        self._backlog.clear()

    def _random_arrivals(self) -> None:
        assert self._step.rate is not None
        self._arrivals = arrivals(self._step.rate, self._load.arrivals, Random())  # noqa: S311
        self._next = self._begin + next(self._arrivals)
        self._timer = PreciseTimer(self._send_due)
        self._timer.set(self._next)

    def _send_due(self) -> None:
        """Send all due requests of an open loop, and set the timer for the next one."""
        now = time.monotonic()
        while self._next <= now:
            due = self._next
            if due >= self._end:
                return
            if due >= self._first:
                self._measured.lags.append(now - due)
            if self._in_flight < self._step.concurrency:
                self._send(due)
            else:
                self._backlog.append(due)
            self._next = self._begin + next(self._arrivals)
        self._timer.set(self._next)

    def _send(self, due: float | None = None) -> None:
        """Send a request that was due at ``due``; None is now."""
        now = time.monotonic()
        self._in_flight += 1
        self._sender.send(Attempt(now if due is None else due, now))

    def _arrived(self, attempt: Attempt, count: int, now: float) -> None:
        if attempt.first is None:
            attempt.first = now
        attempt.last = now
        attempt.pieces += count
        if self._first <= now < self._end:
            self._measured.pieces += count

    def _ended(self, attempt: Attempt, failure: Failure | None) -> None:
        now = time.monotonic()
        self._in_flight -= 1
        if self._closing:
            failure = Failure(UNFINISHED)
        self._record(attempt, failure, now)
        if self._backlog:
            self._send(self._backlog.popleft())
        elif now >= self._end:
            if not self._in_flight:
                self._idle.set()
        elif self._step.rate is None:
            if failure is None or failure.reached:
                self._send()
            else:
                self._loop.call_later(_PAUSE, self._send_again)

    def _send_again(self) -> None:
        if time.monotonic() < self._end:
            self._send()

    def _record(self, attempt: Attempt, failure: Failure | None, now: float) -> None:
        measured = self._measured
        if failure is None and self._first <= now < self._end:
            measured.answered += 1
        if attempt.due < self._first:
            return
        if failure is None:
            measured.good += 1
            if attempt.first is not None:
                measured.first_pieces.append(attempt.first - attempt.due)
                measured.of_good += attempt.pieces
                between = between_pieces(attempt.first, attempt.last, attempt.pieces)
                if between is not None:
                    measured.between_pieces.append(between)
        else:
            kind = failure.kind
            measured.errors[kind] += 1
            measured.texts.setdefault(kind, failure.text)
            if kind not in WAITED_FOR:
                return
        measured.latencies.append(now - attempt.due)
        measured.from_sending.append(now - attempt.sent)
