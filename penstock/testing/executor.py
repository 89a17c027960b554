"""FakeExecutor: workers whose results a test hands in when it likes, and that die when it likes."""

from __future__ import annotations

from penstock.executors.executor import Finished, LocalExecutor, Result, Work
from penstock.ops.failures import worker_died
from penstock.request import Batch, Outcome


class FakeExecutor(LocalExecutor):
    """Holds submitted Works until ``finish`` is called."""

    takes_several = True

    def __init__(self, workers: int = 1, ahead: int = 0) -> None:
        self.workers = workers
        self.ahead = ahead
        self.running: list[tuple[Work, Finished]] = []
        self.behind: dict[Work, Finished] = {}
        self.abandoned: list[Work] = []

    def submit(self, work: Work, finished: Finished) -> None:
        """Take the Work; its first batch begins."""
        assert len(self.running) < self.workers, "more Works than workers"
        work.begin_next()
        self.running.append((work, finished))

    @property
    def room(self) -> bool:
        """See Executor."""
        return self._last_of_a_line() is not None

    def submit_ahead(self, work: Work, finished: Finished) -> bool:
        """Keep the Work behind one that runs."""
        last = self._last_of_a_line()
        assert last is not None, "no room for a Work ahead"
        last.following = work
        self.behind[work] = finished
        return True

    def abandon(self, work: Work) -> None:
        """Note that the running batch was given up."""
        self.abandoned.append(work)

    async def close(self, timeout: float) -> bool:
        """There is nothing to stop."""
        return True

    def batches(self) -> list[Batch]:
        """The batches that run now."""
        return [work.current for work, _ in self.running if work.current is not None]

    def finish(self, index: int = 0, outcomes: list[Outcome] | None = None) -> None:
        """Let a Work end: every batch with these outcomes, or with each sample's own inputs."""
        work, finished = self.running.pop(index)
        results: list[Result] = []
        batch = work.current
        while batch is not None:
            batch.started = None
            mine = outcomes or [
                Outcome({k: v for feed in s.inputs.values() for k, v in feed.items()})
                for s in batch.samples
            ]
            results.append((batch, mine))
            batch.ran = batch.ran or 1e-6
            batch = work.begin_next()
        self._go_on(index, work)
        finished(work, results)

    def die(self, index: int = 0) -> None:
        """Let the worker of a Work die with the batch that runs; the others have not begun."""
        work, finished = self.running.pop(index)
        batch, work.current = work.current, None
        assert batch is not None
        error = worker_died("op", index)
        finished(work, [(batch, [Outcome(None, error) for _ in batch.samples])])
        while work.following is not None:
            work = work.following
            self.behind.pop(work)(work, [])

    def _last_of_a_line(self) -> Work | None:
        """Of the worker who has the fewest Works, if he may have one more."""
        lines = [self._line(work) for work, _ in self.running]
        line = min(lines, key=len, default=None)
        return line[-1] if line is not None and len(line) <= self.ahead else None

    @staticmethod
    def _line(work: Work | None) -> list[Work]:
        line = []
        while work is not None:
            line.append(work)
            work = work.following
        return line

    def _go_on(self, index: int, work: Work) -> None:
        following = work.following
        if following is not None:
            following.begin_next()
            self.running.insert(index, (following, self.behind.pop(following)))
