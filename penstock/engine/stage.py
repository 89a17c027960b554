"""One op at work: its queue, its workers' slots, and the hand-overs between them.

The batcher decides what runs together, HandOver how much one hand-over carries; the stage obeys
them whenever a slot and a sample meet. It never runs an op itself and never answers a request.

Guarantees:
    - at most ``executor.workers`` Works are out at any moment; a Work whose batch was given up
      keeps its slot until the call really returns;
    - every batch handed over is settled exactly once: by its outcomes, or given up at its
      ``timeout``; what comes back afterwards is recorded as late and dropped;
    - a batch that was handed over but has not begun is handed to another worker when the one before
      it is given up.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Hashable
from dataclasses import dataclass

from penstock.batching.batcher import Batcher, Line
from penstock.batching.dispatch import HandOver
from penstock.engine.clock import Alarm, Clock
from penstock.executors.executor import Executor, Result, Work
from penstock.executors.work import WorkOptions, timed_out
from penstock.instrument import Instrument
from penstock.request import Batch, Feed, Outcome, Sample

_log = logging.getLogger(__name__)


_TURN = 64
"""Hand-overs of one stage in one turn of the loop; a guess."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageStatistics:
    """A snapshot for tests, logs and status pages."""

    name: str
    workers: int
    idle: int
    waiting: int
    batches: int
    samples: int
    timeouts: int


class Stage:
    """See the module.

    Args:
        name: the op's name.
        batcher: the op's queue.
        executor: runs its batches.
        options: time-out and retries.
        clock: time and turns.
        settle: called with each sample and its Outcome, once.
        hear: is told what happens; None when nobody listens.
        key_of: what samples of one batch must have in common, as far as their inputs tell; None
            when only ``preprocess`` knows.
    """

    def __init__(
        self,
        name: str,
        batcher: Batcher | Line,
        executor: Executor,
        options: WorkOptions,
        clock: Clock,
        settle: Callable[[Sample, Outcome], None],
        hear: Instrument | None,
        key_of: Callable[[dict[str, Feed]], Hashable] | None = None,
    ) -> None:
        self.name = name
        self.batcher = batcher
        self.executor = executor
        self.draining = False
        self.hear = hear
        self.options = options
        self._clock = clock
        self._settle = settle
        self._key_of = key_of
        self._idle = executor.workers
        self._hand_over = HandOver()
        self._out: set[Work] = set()
        self._again: deque[Batch] = deque()  # taken back from a worker that hangs or died
        self._pumping = False
        self._alarm: Alarm | None = None
        self._alarm_at = 0.0
        self._batches = 0
        self._samples = 0
        self._timeouts = 0

    def __repr__(self) -> str:
        return f"<Stage {self.statistics()}>"

    def statistics(self) -> StageStatistics:
        """How the stage stands now."""
        return StageStatistics(
            name=self.name,
            workers=self.executor.workers,
            idle=self._idle,
            waiting=len(self.batcher),
            batches=self._batches,
            samples=self._samples,
            timeouts=self._timeouts,
        )

    def offer(self, sample: Sample, now: float) -> None:
        """Queue a sample; it leaves with the turn's company, or with whoever is there by then.

        Raises:
            ServiceBusy: the queue is full.
        """
        if self._key_of is not None:
            sample.key = self._key_of(sample.inputs)
        self.batcher.offer(sample, now)
        if self._idle and not self._pumping:
            self._pumping = True
            self._clock.soon(self._pump)

    def drain(self) -> None:
        """No company will come any more: nobody waits for it."""
        self.draining = True
        if not self._pumping:
            self._pump()

    def _pump(self) -> None:
        """Hand over batches while there are both: free slots and something to run."""
        # Stays set meanwhile: an inline worker reports before ``submit`` returns, and must find the
        # loop below, not start another one inside it.
        self._pumping = True
        hand_overs = 0
        while self._idle:
            if hand_overs >= _TURN:
                # An inline worker is always idle again at once: let the loop breathe.
                self._clock.soon(self._pump)
                return
            hand_overs += 1
            now = self._clock.now()
            batches, wait = self._take(now)
            if not batches:
                if wait is not None:
                    self._ask_again_at(wait)
                break
            self._idle -= 1
            self._submit(Work(batches), batches, now)
        self._pumping = False

    def _take(self, now: float) -> tuple[list[Batch], float | None]:
        """The batches of the next hand-over; or when to ask again."""
        most = self._hand_over.batches(self._idle)
        batches: list[Batch] = []
        while len(batches) < most:
            answer = self._take_again(now) or self.batcher.poll(now, draining=self.draining)
            if not isinstance(answer, Batch):
                return batches, answer
            batches.append(answer)
        return batches, None

    def _take_again(self, now: float) -> Batch | None:
        """A batch that was taken back, without those whom nobody waits for any more."""
        while self._again:
            batch = self._again.popleft()
            batch.samples = [s for s in batch.samples if not s.gone and s.deadline > now]
            if batch.samples:
                batch.rows = sum(sample.rows for sample in batch.samples)
                return batch
        return None

    def _submit(self, work: Work, batches: list[Batch], now: float) -> None:
        self._batches += len(batches)
        for batch in batches:
            self._samples += len(batch.samples)
            if self.hear is not None:
                self.hear.dispatched(self.name, batch, now)
        if self.options.timeout is not None:
            self._watch(work, now + self.options.timeout)
        self._out.add(work)
        self.executor.submit(work, self._finished)

    def _finished(self, work: Work, results: list[Result]) -> None:
        """A worker is free again and reports."""
        if work not in self._out:  # it has reported already
            if self.hear is not None:
                for batch, _ in results:
                    self.hear.late(self.name, batch.data_ids, self._clock.now())
            return
        self._out.remove(work)
        self._idle += 1
        self._again.extend(work.take_back())  # a worker that died leaves some
        ran = 0.0
        for batch, outcomes in results:
            ran += batch.ran
            if batch.settled:
                if self.hear is not None:
                    self.hear.late(self.name, batch.data_ids, self._clock.now())
                continue
            batch.settled = True
            for sample, outcome in zip(batch.samples, outcomes, strict=True):
                self._settle(sample, outcome)
            if self.hear is not None:
                failed = sum(outcome.error is not None for outcome in outcomes)
                self.hear.returned(self.name, batch, failed, self._clock.now())
        if results:
            self._hand_over.learn(ran / len(results))
        if not self._pumping:
            self._pump()

    def _watch(self, work: Work, when: float) -> None:
        self._clock.at(when, lambda: self._check(work))

    def _check(self, work: Work) -> None:
        """Give up the running batch if its ``process`` call is over its limit.

        The Work is watched until it is back, because its worker may have begun another batch
        between our look at the running one and our taking back the rest.
        """
        timeout = self.options.timeout
        if timeout is None or work not in self._out:
            return
        now = self._clock.now()
        batch = work.current
        started = None if batch is None or batch.settled else batch.started
        if batch is None or started is None:
            self._watch(work, now + timeout)
            return
        if now < started + timeout:
            self._watch(work, started + timeout)
            return
        batch.settled = True
        self._timeouts += 1
        self._again.extend(work.take_back())
        self.executor.abandon(work)
        self._watch(work, now + timeout)
        self._give_up(batch)
        if not self._pumping:
            self._pump()

    def _give_up(self, batch: Batch) -> None:
        """Its samples end with the time-out; whether they are tried again is not decided here."""
        error = timed_out(self.name, batch)
        for sample in batch.samples:
            self._settle(sample, Outcome(None, error))

    def _ask_again_at(self, when: float) -> None:
        """One alarm at most; an earlier one replaces a later one."""
        if self._alarm is not None:
            if self._alarm_at <= when:
                return
            self._alarm.cancel()
        self._alarm_at = when
        self._alarm = self._clock.at(when, self._ring)

    def _ring(self) -> None:
        self._alarm = None
        if not self._pumping:
            self._pump()
