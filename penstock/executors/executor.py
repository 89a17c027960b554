"""The port behind which batches run: inline, in threads, on the loop, in processes, elsewhere.

An executor has ``workers`` slots. The engine never gives it more Works than that, so an executor
needs no queue policy of its own; a Work keeps its slot until it is reported finished, even when the
engine has long answered for it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Protocol, TypeAlias

from penstock.instrument import Instruments
from penstock.request import Batch, Outcome

Result: TypeAlias = tuple[Batch, list[Outcome]]


class Work:
    """One hand-over to a worker: some batches, to be run one after the other.

    Attributes:
        pending: batches not begun. The worker takes from the left; the engine may take back from
            the right at any moment (both ends of a deque are safe across threads).
        current: the batch that is running.
        crowded: whether it carries several batches.
        results: what has been run and was not taken yet, in order. The worker only adds at the
            end; the engine takes with ``take_results``.
    """

    __slots__ = ("crowded", "current", "pending", "results")

    def __init__(self, batches: list[Batch]) -> None:
        self.pending = deque(batches)
        self.crowded = len(batches) > 1
        self.current: Batch | None = None
        self.results: list[Result] = []

    def begin_next(self) -> Batch | None:
        """The worker's step: the next batch, now ``current``; None at the end."""
        try:
            # To ask costs far less than an exception at the end of each Work.
            batch = self.current = self.pending.popleft() if self.pending else None
        except IndexError:  # the engine has just taken the last one back
            self.current = batch = None
        return batch

    def take_back(self) -> list[Batch]:
        """The engine's step: every batch that has not begun, in order; they will not begin here."""
        taken: list[Batch] = []
        while True:
            try:
                taken.append(self.pending.pop())
            except IndexError:
                taken.reverse()
                return taken

    def add_result(self, batch: Batch, outcomes: list[Outcome]) -> None:
        """The worker's step: a batch has been run."""
        self.results.append((batch, outcomes))

    def take_results(self) -> list[Result]:
        """What has been run and was not taken yet, in order. On the engine's loop only.

        Executors take at the end; the engine may take earlier what would else wait for a batch that
        hangs.
        """
        taken = self.results[:]
        del self.results[: len(taken)]  # the worker only adds at the end
        return taken


Finished: TypeAlias = Callable[[Work, list[Result]], None]
"""Called on the engine's loop, once per Work, with the batches that ran and were not taken yet.
What is still ``pending`` then did not run: the worker died, or its turn was over."""


class Executor(Protocol):
    """Runs Works for one op.

    Attributes:
        workers: how many Works run at once; fewer while one is not waited for. None only while
            workers are waited for that others start.
        takes_several: whether several batches may travel in one Work, because a hand-over costs
            more than a cheap batch.
        instruments: set by the engine.
        grown: set by the engine; called on its loop when ``workers`` has become more.
        loaded: by worker, what it has told of its model, device and memory; None where it has not.
    """

    workers: int
    takes_several: bool
    instruments: Instruments
    grown: Callable[[], None]
    loaded: list[dict[str, Any] | None]

    @property
    def alive(self) -> bool:
        """Whether there is a worker that works."""

    async def start(self) -> None:
        """Make the workers ready; nothing is submitted before.

        Raises:
            StartupError: one cannot work; none is left.
        """

    def submit(self, work: Work, finished: Finished) -> None:
        """Run a Work; ``finished`` is called exactly once, on the loop, maybe before this returns.

        Never blocks on a worker and never raises for what an op does.
        """

    def look(self, work: Work) -> None:
        """Bring ``current`` and ``pending`` of a Work that is out up to date."""

    def take_back(self, work: Work) -> list[Batch]:
        """Every batch of a Work that has not begun, in order; they will not begin here."""

    def abandon(self, work: Work) -> None:
        """The running batch was given up, or nobody waits for it: end it if that is possible.

        May be said more than once of a Work.
        """

    async def close(self, timeout: float) -> bool:
        """Stop the workers, waiting ``timeout`` seconds for calls that still run.

        Returns:
            False when some call did not return in time.
        """


class LocalExecutor:
    """What is the same for all that know of a Work in this process how far it is, and cannot end a
    call.
    """

    instruments: Instruments
    grown: Callable[[], None]
    loaded: list[dict[str, Any] | None] = []  # noqa: RUF012 - nobody adds to it

    @property
    def alive(self) -> bool:
        """See Executor; they cannot die by themselves."""
        return True

    async def start(self) -> None:
        """See Executor; there is nothing to wait for."""

    def look(self, work: Work) -> None:
        """See Executor; it is up to date."""

    def take_back(self, work: Work) -> list[Batch]:
        """See Executor."""
        return work.take_back()

    def abandon(self, work: Work) -> None:
        """See Executor; a call here cannot be ended from outside and keeps its slot."""

    async def close(self, timeout: float) -> bool:
        """See Executor; there is nothing to stop."""
        return True
