"""FakeExecutor: an executor whose results and worker deaths the test controls."""

from __future__ import annotations

from penstock.executors.executor import Finished, LocalExecutor, Result, Work
from penstock.ops.failures import worker_died
from penstock.request import Batch, Outcome


class FakeExecutor(LocalExecutor):
    """Holds submitted Works until ``finish`` is called."""

    takes_several = True

    def __init__(self, workers: int = 1) -> None:
        self.workers = workers
        self.running: list[tuple[Work, Finished]] = []
        self.abandoned: list[Work] = []

    def submit(self, work: Work, finished: Finished) -> None:
        """Accept a Work; its first batch begins."""
        assert len(self.running) < self.workers, "more Works than workers"
        work.begin_next()
        self.running.append((work, finished))

    def abandon(self, work: Work) -> None:
        """Record that the running batch was abandoned."""
        self.abandoned.append(work)

    def batches(self) -> list[Batch]:
        """The running batches."""
        return [work.current for work, _ in self.running if work.current is not None]

    def finish(self, index: int = 0, outcomes: list[Outcome] | None = None) -> None:
        """Finish a Work: every batch with these outcomes, or with its samples' own inputs."""
        work, finished = self.running.pop(index)
        results: list[Result] = []
        batch = work.current
        while batch is not None:
            batch.started = None
            batch.ran = batch.ran or 1e-6
            mine = outcomes or [
                Outcome({k: v for feed in s.inputs.values() for k, v in feed.items()})
                for s in batch.samples
            ]
            results.append((batch, mine))
            batch = work.begin_next()
        finished(work, results)

    def die(self, index: int = 0) -> None:
        """Make a Work's worker die with the running batch; the other batches have not begun."""
        work, finished = self.running.pop(index)
        batch, work.current = work.current, None
        assert batch is not None
        error = worker_died("op", index)
        finished(work, [(batch, [Outcome(None, error) for _ in batch.samples])])
