"""One op at work: its queue, its workers' slots, and the hand-overs between them.

The batcher decides what runs together, HandOver how much one hand-over carries; the stage obeys
them whenever a slot and a sample meet. It never runs an op itself and never answers a request.

Guarantees:
    - at most ``executor.workers`` Works are out at any moment; a Work whose batch was given up
      keeps its slot until the call really returns;
    - every batch handed over is settled exactly once: by its outcomes, or given up at its
      ``timeout``; what comes back afterwards is recorded as late and dropped;
    - a call whose requests have all gone is ended, where the executor can end calls at all;
    - a batch that was handed over to a thread but has not begun goes to another worker when the one
      before it is given up, or takes long while another worker is idle;
    - answers leave when they are there, though a later batch of their hand-over takes long;
    - a request that a worker may have died of runs in a Work of its own, and takes turns with the
      queue.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Hashable
from functools import partial

from penstock.batching.batcher import Batcher, FifoQueue
from penstock.batching.dispatch import HAND_OVER_BUDGET, HandOver
from penstock.engine.clock import Clock
from penstock.engine.quarantine import Quarantine
from penstock.engine.result_queue import ResultQueue
from penstock.engine.sizing import Sizing
from penstock.engine.statistics import StageStatistics
from penstock.engine.timer import Timer
from penstock.executors.executor import Executor, Result, Work
from penstock.executors.work import WorkOptions
from penstock.instrument import Instruments
from penstock.ops.failures import kills_workers, tell_culprits, timed_out
from penstock.request import Batch, Feed, Outcome, Sample

_log = logging.getLogger(__name__)

_TURN = 0.001
"""Seconds that a stage hands over, inline ops included, in one turn of the loop."""

REDISPATCH_AFTER = 4 * HAND_OVER_BUDGET
"""Seconds after which a hand-over of several batches was predicted wrongly."""


class Stage:
    """See the module. ``Engine.add_op`` makes them.

    Args:
        name: the op's name.
        batcher: the op's queue.
        executor: runs its batches.
        options: time-out and retries, and what is retried after a death.
        clock: the engine's time and turns.
        settle: the engine's; called with each sample and its Outcome, once.
        instruments: the engine's.
        key_of: what samples of one batch must have in common, as far as their inputs tell; None
            when only ``preprocess`` knows.
        sizing: measures samples where batches are counted in rows or padded; takes the place of
            ``key_of``.
    """

    def __init__(
        self,
        name: str,
        batcher: Batcher | FifoQueue,
        executor: Executor,
        options: WorkOptions,
        clock: Clock,
        settle: Callable[[Sample, Outcome], None],
        instruments: Instruments,
        key_of: Callable[[dict[str, Feed]], Hashable] | None = None,
        sizing: Sizing | None = None,
    ) -> None:
        self.name = name
        self.batcher = batcher
        self.executor = executor
        executor.grown = self._ring
        executor.instruments = instruments
        self.draining = False
        self.instruments = instruments
        self.options = options
        self.quarantine = Quarantine(name, rerun=options.retry_on_crash)
        self._clock = clock
        self._settle = settle
        self._results = ResultQueue(
            name, clock, settle, self.quarantine, instruments, self._settled
        )
        self._key_of = key_of
        self.sizing = sizing
        self._busy = 0
        self._hand_over = HandOver()
        self._out: dict[Work, float] = {}  # and when each was handed over
        self._again: deque[Batch] = deque()  # taken back from a worker that hangs or died
        self._overdue = False  # some hand-over takes longer than was predicted
        self._pumping = False
        self._ending = False
        self._window = Timer(clock, self._ring)
        self._looking = Timer(clock, self._look)
        self._batches = 0
        self._samples = 0
        self._timeouts = 0
        self._elements = self._filled_in = 0

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
            deaths=self.quarantine.deaths,
            suspects=self.quarantine.suspects,
            refused=self.quarantine.refused,
            elements=self._elements,
            filled_in=self._filled_in,
        )

    @property
    def _idle(self) -> int:
        """Slots that are free; an executor may come to have fewer workers than Works are out."""
        return max(0, self.executor.workers - self._busy)

    def offer(self, sample: Sample, now: float) -> None:
        """Queue a sample; it leaves with the turn's company, or with whoever is there by then.

        Raises:
            ServiceBusy: the queue is full.
        """
        if self._key_of is not None:
            try:
                sample.key = self._key_of(sample.inputs)
            except Exception:  # noqa: BLE001 - values of users' types may raise anything
                sample.key = ("odd", id(sample))  # it runs alone
        self.batcher.offer(sample, now)
        if self.instruments.queued is not None:
            self.instruments.queued(self.name, sample, now)
        if not self._pumping and self._idle:
            self._pumping = True
            self._clock.soon(self._gather)

    @property
    def lost(self) -> bool:
        """Whether nothing can run: every worker is in a call that was given up, or has died."""
        return not self.executor.alive or (
            self._idle == 0
            and all(work.current is not None and work.current.settled for work in self._out)
        )

    def nobody_waits(self) -> None:
        """Some sample that has left the queue is no longer wanted: its call may be in vain."""
        if self._out and not self._ending:
            self._ending = True
            self._clock.soon(self._end_vain_calls)  # once for all who go in this turn

    def drain(self) -> None:
        """No company will come any more: nobody waits for it."""
        self.draining = True
        if not self._pumping:
            self._pump()

    def _gather(self) -> None:
        """Hand over what came in this turn, or see first what the next one brings."""
        if (
            self._idle
            and self.executor.takes_several
            and self._hand_over.look_again(len(self.batcher), self.batcher.policy.max_rows)
        ):
            self._clock.soon(self._gather)
        else:
            self._pump()

    def _pump(self) -> None:
        """Hand over batches while there are both: free slots and something to run."""
        # Stays set meanwhile: an inline worker reports before ``submit`` returns, and must find the
        # loop below, not start another one inside it.
        self._pumping = True
        more = False
        try:
            more = self._hand_out()
        finally:
            self._pumping = more
        if more:
            self._clock.soon(self._pump)

    def _hand_out(self) -> bool:
        """Returns whether there may be more to do after the loop has taken a breath."""
        now = began = self._clock.now()
        # Not faster than answers can be given: what has come back is memory, too.
        while (idle := self._idle) and not self._results.waiting:
            if now - began > _TURN:
                return True
            batches, wait = self._take(idle, now)
            if not batches:
                if wait is not None:
                    self._window.at(wait)
                return False
            self._busy += 1
            work = Work(batches)
            self._give(work, batches, now)
            self.executor.submit(work, self._finished)
            self._watch(work, now)
            now = self._clock.now()
        return False

    def _take(self, idle: int, now: float) -> tuple[list[Batch], float | None]:
        """The batches of the next hand-over; or when to ask again."""
        most = self._hand_over.batches(idle) if self.executor.takes_several else 1
        if self.quarantine.active:
            return self._take_warily(most, now)
        again: list[Batch] = []
        while (self._again or self._overdue) and len(again) < most:
            batch = self._take_again(now)
            if batch is not None:
                again.append(batch)
        more, wait = self.batcher.poll_several(most - len(again), now, draining=self.draining)
        self._tell_closed(more, now)
        return again + more, wait

    def _take_warily(self, most: int, now: float) -> tuple[list[Batch], float | None]:
        """The same where workers have died: a suspect has its Work for itself."""
        poll = partial(self._poll, now)
        batches, wait, refused = self.quarantine.fill(most, self._clock.now, self._take_again, poll)
        for sample in refused:
            self._refuse(sample)
        return batches, wait

    def _poll(self, now: float) -> Batch | float | None:
        polled = self.batcher.poll(now, draining=self.draining)
        if isinstance(polled, Batch):
            self._tell_closed([polled], now)
        return polled

    def _refuse(self, sample: Sample) -> None:
        """Answer a culprit unrun, in a turn of its own."""
        # Whoever is answered may cancel what is just on its way, and knows his own request by then.
        self._clock.soon(partial(self._settle, sample, Outcome(None, kills_workers(self.name))))

    def _take_again(self, now: float) -> Batch | None:
        """A batch that was taken back, without those whom nobody waits for any more."""
        if self._overdue:
            # Here a worker is idle: it takes what waits behind a slow batch of its neighbours'.
            self._overdue = False
            for work, since in self._out.items():
                if work.crowded and now >= since + REDISPATCH_AFTER:
                    self._take_back(work)
        while self._again:
            batch = self._again.popleft()
            batch.samples = [s for s in batch.samples if not s.gone and s.deadline > now]
            if batch.samples:
                batch.rows = sum(sample.rows for sample in batch.samples)
                return batch
        return None

    def _give(self, work: Work, batches: list[Batch], now: float) -> None:
        """A Work is about to be handed over."""
        tell = self.instruments.dispatched
        if tell is not None:
            for batch in batches:
                tell(self.name, batch, now)
        samples = sum([len(batch.samples) for batch in batches])
        self._hand_over.carried(samples)
        self._batches += len(batches)
        self._samples += samples
        self._out[work] = now
        if self.sizing is not None:
            for batch in batches:
                elements, filled_in = self.sizing.filled_in(batch)
                self._elements += elements
                self._filled_in += filled_in

    def _tell_closed(self, batches: list[Batch], now: float) -> None:
        tell = self.instruments.batch_closed
        if tell is not None:
            for batch in batches:
                tell(self.name, batch, now)

    def _watch(self, work: Work, now: float) -> None:
        """A Work was handed over: look after it, unless it is back."""
        if work in self._out:
            if work.crowded:
                self._looking.at(now + REDISPATCH_AFTER)
            elif self.options.timeout is not None:
                self._looking.at(now + self.options.timeout)

    def _finished(self, work: Work, results: list[Result]) -> None:
        """A worker is free again and reports."""
        if self._out.pop(work, None) is None:  # it has reported already
            self._results.tell_late([batch for batch, _ in results])
            return
        self._busy -= 1
        if work.pending:
            self._take_back(work)  # its worker died, or its turn was over
        if results:
            self._take_in(results)  # hands over the next, now or when all of it is settled
        elif not self._pumping:
            self._pump()

    def _take_in(self, results: list[Result]) -> None:
        if results:
            # A batch that was lost or refused took no time, which teaches nothing of the others.
            ran = [batch.ran for batch, _ in results if batch.ran]
            if ran:
                self._hand_over.learn(sum(ran) / len(ran))
            self._results.take_in(results)

    def _settled(self) -> None:
        """All that has come back is settled: hand over what there is."""
        if not self._pumping and (
            self._out or self._again or self.quarantine.active or self.batcher
        ):
            self._pump()

    def _take_back(self, work: Work) -> None:
        """What has not begun there will be handed over again."""
        batches = self.executor.take_back(work)
        self._again.extendleft(reversed(batches))  # older than what waits there, as a rule
        tell = self.instruments.taken_back
        if tell is not None:
            for batch in batches:
                tell(self.name, batch, self._clock.now())

    def _look(self) -> None:
        """Look at the Works that are out: some take too long."""
        now = self._clock.now()
        for work, since in list(self._out.items()):
            self._look_at(work, since, now)
        self._ring()

    def _look_at(self, work: Work, since: float, now: float) -> None:
        """Take what is done, free what waits behind a slow batch, end a call over its ``timeout``.

        A Work is watched until it is back, because its worker may begin another batch between our
        look at the running one and our taking back the rest.
        """
        self.executor.look(work)
        if work.crowded:
            if now >= since + REDISPATCH_AFTER:
                self._overdue = True
                self._take_in(work.take_results())
            self._looking.at(now + max(REDISPATCH_AFTER, now - since))
        timeout = self.options.timeout
        if timeout is None:
            return
        batch = work.current
        started = None if batch is None or batch.settled else batch.started
        if batch is None or started is None:
            self._looking.at(now + timeout)
        elif now < started + timeout:
            self._looking.at(started + timeout)
        else:
            batch.settled = True
            self._timeouts += 1
            self._take_back(work)
            if work.current is batch:  # else it has gone on to another, which is not to be harmed
                self.executor.abandon(work)
            self._looking.at(now + timeout)
            self._give_up(batch)

    def _end_vain_calls(self) -> None:
        self._ending = False
        for work in list(self._out):
            if any(_in_vain(each) for each in list(work.pending)):
                self._take_back(work)  # whoever of them is still waited for is handed over again
            batch = work.current
            if batch is None or batch.settled or work.pending:
                continue
            if _in_vain(batch):
                self.executor.abandon(work)

    def _give_up(self, batch: Batch) -> None:
        """Its samples end with the time-out; whether they are tried again is not decided here."""
        tell = self.instruments.given_up
        if tell is not None:
            tell(self.name, batch, self._clock.now())
        error = timed_out(self.name, batch, self.options.timeout, self.options.retry)
        failed = [(sample, error) for sample in batch.samples]
        tell_culprits(self.name, failed, self.options.process)
        for sample in batch.samples:
            self._settle(sample, Outcome(None, error))

    def _ring(self) -> None:
        if not self._pumping:
            self._pump()


def _in_vain(batch: Batch) -> bool:
    """Whether nobody waits for any of it."""
    return all(sample.gone for sample in batch.samples)
