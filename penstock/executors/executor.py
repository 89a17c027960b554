"""The interface of executors, and Work, the batches of one hand-over to a worker.

An executor has ``workers`` slots. The engine never submits more Works than that, so an executor
needs no queue; a Work occupies its slot until it is reported finished, even if its requests have
long been answered.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from penstock.instrument import Instruments
from penstock.request import Batch, Outcome

Result: TypeAlias = tuple[Batch, list[Outcome]]


class Work:
    """One hand-over to a worker: some batches, to be run one after the other.

    Attributes:
        pending: batches not begun. The worker takes from the left; the engine may take back from
            the right at any time (both ends of a deque are thread-safe).
        current: the batch that is running.
        crowded: whether it carries several batches.
        results: results that the engine has not taken, in order. The worker appends; the engine
            calls ``take_results``.
    """

    __slots__ = ("crowded", "current", "pending", "results")

    def __init__(self, batches: list[Batch]) -> None:
        self.pending = deque(batches)
        self.crowded = len(batches) > 1
        self.current: Batch | None = None
        self.results: list[Result] = []

    def begin_next(self) -> Batch | None:
        """For the worker: the next batch, now ``current``; None at the end."""
        try:
            # The test costs far less than an exception at the end of each Work.
            batch = self.current = self.pending.popleft() if self.pending else None
        except IndexError:  # the engine has just taken the last one back
            self.current = batch = None
        return batch

    def take_back(self) -> list[Batch]:
        """For the engine: take back every batch that has not begun, in order."""
        taken: list[Batch] = []
        while True:
            try:
                taken.append(self.pending.pop())
            except IndexError:
                taken.reverse()
                return taken

    def add_result(self, batch: Batch, outcomes: list[Outcome]) -> None:
        """For the worker: add the result of a batch."""
        self.results.append((batch, outcomes))

    def take_results(self) -> list[Result]:
        """Take the results so far, in order. On the engine's loop only.

        Executors take them at the end; the engine may take earlier ones that would wait for a slow
        batch.
        """
        taken = self.results[:]
        del self.results[: len(taken)]  # the worker only adds at the end
        return taken


Finished: TypeAlias = Callable[[Work, list[Result]], None]
"""Called on the engine's loop, once per Work, with the results that were not taken. Batches that
are still ``pending`` did not run: the worker died, or its turn was over."""


class Executor(Protocol):
    """Runs Works for one op.

    Attributes:
        workers: number of slots; fewer while some are disabled. 0 only while no external worker is
            connected.
        takes_several: whether a Work may have several batches, because a hand-over costs more than
            a cheap batch.
        instruments: set by the engine.
        grown: set by the engine; called on its loop when ``workers`` has increased.
        loaded: by worker, its report of its model, device and memory; None before it.
    """

    workers: int
    takes_several: bool
    instruments: Instruments
    grown: Callable[[], None]
    loaded: list[dict[str, Any] | None]

    @property
    def alive(self) -> bool:
        """Whether there is a working worker."""

    async def start(self) -> None:
        """Start the workers; nothing is submitted before.

        Raises:
            StartupError: a worker cannot start; all have been ended.
        """

    def submit(self, work: Work, finished: Finished) -> None:
        """Run a Work; ``finished`` is called exactly once, on the loop, maybe before this returns.

        Never blocks on a worker, and never raises for a failure of the op.
        """

    def look(self, work: Work) -> None:
        """Update ``current`` and ``pending`` of a running Work."""

    def take_back(self, work: Work) -> list[Batch]:
        """Take back every batch of a Work that has not begun, in order."""

    def abandon(self, work: Work) -> None:
        """The running batch has timed out, or no request waits for it: end its call if possible.

        May be called more than once for a Work.
        """

    async def close(self, timeout: float) -> bool:
        """Stop the workers, waiting ``timeout`` seconds for running calls.

        Returns:
            False when some call did not return in time.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class OpSource:
    """Which op a worker opens that runs in another process: with its index this identifies it.

    Attributes:
        graph: the name of its graph; None for one without a name.
        version: the version of the graph.
        op: its name in the graph.
        label: its name for people, unique in its engine.
        description: plain data from which the deployment makes this version; None for a version
            with which the service started.
    """

    graph: str | None = None
    version: str = "1"
    op: str = ""
    label: str = ""
    description: Mapping[str, Any] | None = None


class LocalExecutor:
    """Base class of executors in this process, which cannot end a running call."""

    instruments: Instruments
    grown: Callable[[], None]
    loaded: list[dict[str, Any] | None] = []  # noqa: RUF012 - never modified

    @property
    def alive(self) -> bool:
        """See Executor; workers in this process cannot die."""
        return True

    async def start(self) -> None:
        """See Executor; needs no preparation."""

    def look(self, work: Work) -> None:
        """See Executor; always up to date."""

    def take_back(self, work: Work) -> list[Batch]:
        """See Executor."""
        return work.take_back()

    def abandon(self, work: Work) -> None:
        """See Executor; a call here cannot be ended from outside, and occupies its slot."""

    async def close(self, timeout: float) -> bool:
        """See Executor; has nothing to stop."""
        return True
