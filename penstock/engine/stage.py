"""The stage of an op: its queue, its worker slots, and the dispatch of batches.

The batcher decides which samples form a batch, HandOver how many batches one hand-over carries; the
stage applies both whenever there are an idle slot and a sample. It never runs an op or answers a
request.

Guarantees:
    - at most ``executor.workers`` Works are out at any time; a Work whose batch has timed out
      occupies its slot until the call really returns;
    - every dispatched batch is settled exactly once: by its outcomes, or at its ``timeout``;
      results that arrive afterwards are recorded as late and dropped;
    - a call whose requests have all ended is ended, if the executor can end calls;
    - a batch that was handed over to a thread but has not begun goes to another worker if the one
      before it times out, or takes long while another worker is idle;
    - results are settled when they arrive, even if a later batch of their hand-over takes long;
    - a suspected request (see quarantine) runs in a Work of its own, alternating with the queue.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import Any

from penstock.batching.batcher import Batcher, FifoQueue
from penstock.batching.decision import Batching
from penstock.batching.dispatch import HAND_OVER_BUDGET, HandOver
from penstock.batching.learned import LearnedBatcher
from penstock.batching.queue_policy import QueuePolicy
from penstock.engine.clock import Clock
from penstock.engine.quarantine import Quarantine
from penstock.engine.queue_limits import QueueLimits
from penstock.engine.result_queue import ResultQueue
from penstock.engine.sizing import Sizing
from penstock.engine.statistics import StageStatistics
from penstock.engine.timer import Timer
from penstock.errors import ServiceBusy
from penstock.executors.executor import Executor, Result, Work
from penstock.executors.work import WorkOptions
from penstock.instrument import Instruments
from penstock.ops.callers import AsksCaller
from penstock.ops.failures import kills_workers, log_culprits, timed_out
from penstock.request import Batch, Feed, Outcome, Sample

_log = logging.getLogger(__name__)

_TURN = 0.001
"""Most seconds for which a stage hands over, inline ops included, in one turn of the loop."""

REDISPATCH_AFTER = 4 * HAND_OVER_BUDGET
"""Seconds after which a hand-over of several batches counts as mispredicted."""


class Stage:
    """See the module. ``Engine.add_op`` makes them.

    Args:
        name: the op's name.
        batcher: the op's queue.
        executor: runs its batches.
        options: timeout and retries.
        clock: the engine's time and turns.
        settle: the engine's; called with each sample and its Outcome, once.
        instruments: the engine's.
        key_of: the batching key of a sample, from its inputs; None if it depends on ``preprocess``.
        sizing: measures samples if batches are counted in rows or padded; replaces ``key_of``.

    Attributes:
        batching: how its requests are batched; None: as its arguments say.
        given_by: what gives the op's options in the short form's words, such as ``route('/x')``;
            empty for other ops.
        streams: whether its op's answers come in pieces.
        asks_caller: whether its op asks who makes a request, see ``ops.hooks.asks_caller``.
        graphs: those that run it, the oldest first.
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
        self._set_queue(batcher)
        self.executor = executor
        executor.grown = self._fire
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
        self.batching: Batching | None = None
        self.given_by = ""
        self.asks_caller: AsksCaller | None = None
        self.streams = False
        self.graphs: list[Any] = []
        self._busy = 0
        self._hand_over = HandOver()
        self._out: dict[Work, float] = {}  # with the time of the hand-over
        self._again: deque[Batch] = deque()  # taken back from a worker that hangs or died
        self._overdue = False  # a hand-over takes longer than predicted
        self._pumping = False
        self._ending = False
        self._limits: QueueLimits | None = None
        self._window = Timer(clock, self._fire)
        self._looking = Timer(clock, self._look)
        self._batches = 0
        self._samples = 0
        self._timeouts = 0
        self._elements = self._filled_in = 0
        self._deaths = self._refused = 0  # of stages before this one

    def batch_by(
        self,
        batching: Batching,
        batcher: Batcher | FifoQueue,
        key_of: Callable[[dict[str, Feed]], Hashable] | None,
        sizing: Sizing | None,
    ) -> None:
        """Batch as its workers have decided; only before the first sample."""
        self.batching = batching
        self._set_queue(batcher)
        self._key_of, self.sizing = key_of, sizing

    def _set_queue(self, batcher: Batcher | FifoQueue) -> None:
        self.batcher = batcher
        if isinstance(batcher, LearnedBatcher):
            batcher.ahead = self._ahead

    def _ahead(self) -> float:
        """See ``LearnedBatcher``."""
        return min((graph.work_after(self) for graph in self.graphs), default=0.0)

    @property
    def backlog(self) -> float:
        """Seconds that the full batches in its queue take, if no worker is idle; else 0. A queue
        that is full counts as one batch at least.
        """
        seconds = self._hand_over.seconds
        if seconds is None or self._idle:
            return 0.0
        queue = self.batcher
        batches = len(queue) // queue.policy.max_rows or queue.full
        return batches * seconds / max(1, self.executor.workers)

    def limit_queue(self, policies: Sequence[QueuePolicy]) -> None:
        """Refuse or delay samples that wait too long; only before the first sample.

        Args:
            policies: one for each priority level; if any of them delays, the batcher's policy has
                ``delays``.
        """
        self._limits = QueueLimits(policies, self._clock, self._waited_too_long)

    def statistics(self) -> StageStatistics:
        """A snapshot of the stage's state."""
        return StageStatistics(
            name=self.name,
            workers=self.executor.workers,
            idle=self._idle,
            waiting=len(self.batcher),
            batches=self._batches,
            samples=self._samples,
            timeouts=self._timeouts,
            deaths=self._deaths + self.quarantine.deaths,
            suspects=self.quarantine.suspects,
            refused=self._refused + self.quarantine.refused,
            elements=self._elements,
            filled_in=self._filled_in,
        )

    def count_also(self, before: StageStatistics) -> None:
        """Count what the stage of the same op has counted in whose place this one runs."""
        self._batches += before.batches
        self._samples += before.samples
        self._timeouts += before.timeouts
        self._deaths += before.deaths
        self._refused += before.refused
        self._elements += before.elements
        self._filled_in += before.filled_in

    @property
    def _idle(self) -> int:
        """The number of idle slots; an executor may come to have fewer workers than running
        Works.
        """
        return max(0, self.executor.workers - self._busy)

    def offer(self, sample: Sample, now: float) -> None:
        """Queue a sample; it is dispatched at the end of the turn, with others that arrived in it.

        Raises:
            ServiceBusy: the queue is full.
        """
        if self._key_of is not None:
            try:
                sample.key = self._key_of(sample.inputs)
            except Exception:  # noqa: BLE001 - values of users' types may raise anything
                sample.key = ("odd", id(sample))  # it runs alone
        self.batcher.offer(sample, now)
        if self._limits is not None:
            self._limits.watch(sample, now)
        if self.instruments.queued is not None:
            self.instruments.queued(self.name, sample, now)
        if not self._pumping and self._idle:
            self._pumping = True
            self._clock.soon(self._gather)

    def cancel(self, sample: Sample) -> None:
        """Remove a waiting sample."""
        self.batcher.cancel(sample)
        if self._limits is not None:
            self._limits.left([sample])

    def _waited_too_long(self, sample: Sample, delay: bool) -> None:
        if delay:
            self.batcher.delay(sample)
            return
        self.batcher.cancel(sample)
        text = f"the request waited too long in the queue of op {self.name!r}; try again later"
        self._settle(sample, Outcome(None, ServiceBusy.in_queue(text)))

    @property
    def lost(self) -> bool:
        """Whether nothing can run: every worker has died, or is in a call that has timed out."""
        return not self.executor.alive or (
            self._idle == 0
            and all(work.current is not None and work.current.settled for work in self._out)
        )

    def sample_gone(self) -> None:
        """A dispatched sample has been cancelled or has expired: its call may be useless."""
        if self._out and not self._ending:
            self._ending = True
            self._clock.soon(self._end_useless_calls)  # once for all samples of this turn

    def drain(self) -> None:
        """No more requests will come: batches need not wait to fill."""
        self.draining = True
        if not self._pumping:
            self._pump()

    def _gather(self) -> None:
        """Hand over the samples of this turn, or defer to the next turn."""
        if (
            self._idle
            and self.executor.takes_several
            and self._hand_over.look_again(len(self.batcher), self.batcher.policy.max_rows)
        ):
            self._clock.soon(self._gather)
        else:
            self._pump()

    def _pump(self) -> None:
        """Hand over batches while there are idle slots and samples."""
        # Set meanwhile: an inline worker reports before ``submit`` returns, and must not start a
        # nested loop.
        self._pumping = True
        more = False
        try:
            more = self._hand_out()
        finally:
            self._pumping = more
        if more:
            self._clock.soon(self._pump)

    def _hand_out(self) -> bool:
        """Hand over for one turn; returns whether there may be more to do in the next."""
        now = began = self._clock.now()
        # Not faster than results are settled: unsettled results use memory, too.
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
        """The batches of the next hand-over; or the time to ask again."""
        several = self.executor.takes_several
        alone = several and self.executor.workers == 1
        most = self._hand_over.batches(idle) if several else 1
        if self.quarantine.active:
            return self._take_screened(most, now)
        again: list[Batch] = []
        while (self._again or self._overdue) and len(again) < most:
            batch = self._take_again(now)
            if batch is not None:
                again.append(batch)
        more, wait = self.batcher.poll_several(
            most - len(again),
            now,
            draining=self.draining,
            seconds=self.options.hand_over if alone and not again else 0.0,
        )
        self._notify_closed(more, now)
        return again + more, wait

    def _take_screened(self, most: int, now: float) -> tuple[list[Batch], float | None]:
        """The same with suspects: each has a Work of its own."""
        poll = partial(self._poll, now)
        batches, wait, refused = self.quarantine.fill(most, self._clock.now, self._take_again, poll)
        for sample in refused:
            self._refuse(sample)
        return batches, wait

    def _poll(self, now: float) -> Batch | float | None:
        polled = self.batcher.poll(now, draining=self.draining)
        if isinstance(polled, Batch):
            self._notify_closed([polled], now)
        return polled

    def _refuse(self, sample: Sample) -> None:
        """Refuse a sample whose inputs kill workers, in a later turn."""
        # Deferred by one turn: reply callbacks may cancel other requests, and expect ``submit`` to
        # have returned.
        self._clock.soon(partial(self._settle, sample, Outcome(None, kills_workers(self.name))))

    def _take_again(self, now: float) -> Batch | None:
        """A batch that was taken back, without its ended samples."""
        if self._overdue:
            # A worker is idle: it takes batches that wait behind another worker's slow batch.
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
        """Prepare a Work for the hand-over."""
        notify = self.instruments.dispatched
        if notify is not None:
            for batch in batches:
                notify(self.name, batch, now)
        samples = sum([len(batch.samples) for batch in batches])
        self._hand_over.carried(samples)
        self._batches += len(batches)
        self._samples += samples
        self._out[work] = now
        if self._limits is not None:
            for batch in batches:
                self._limits.left(batch.samples)
        if self.sizing is not None:
            for batch in batches:
                batch.elements, batch.filled_in = self.sizing.filled_in(batch)
                self._elements += batch.elements
                self._filled_in += batch.filled_in

    def _notify_closed(self, batches: list[Batch], now: float) -> None:
        notify = self.instruments.batch_closed
        if notify is not None:
            for batch in batches:
                notify(self.name, batch, now)

    def _watch(self, work: Work, now: float) -> None:
        """Watch a Work that was handed over, unless it has already finished."""
        if work in self._out:
            if work.crowded:
                self._looking.at(now + REDISPATCH_AFTER)
            elif self.options.timeout is not None:
                self._looking.at(now + self.options.timeout)

    def _finished(self, work: Work, results: list[Result]) -> None:
        """A worker has finished a Work."""
        if self._out.pop(work, None) is None:  # it has already been reported
            self._results.record_late([batch for batch, _ in results])
            return
        self._busy -= 1
        if work.pending:
            self._take_back(work)  # its worker died, or its turn was over
        if results:
            self._take_in(results)  # hands over the next batches when all results are settled
        elif not self._pumping:
            self._pump()

    def _take_in(self, results: list[Result]) -> None:
        if results:
            # A batch that was lost or refused has no run time to learn from.
            ran = [batch.ran for batch, _ in results if batch.ran]
            if ran:
                self._hand_over.learn(sum(ran) / len(ran))
            costs = self.batcher.costs
            if costs is not None:
                for batch, outcomes in results:
                    # A batch that failed may have taken any time.
                    if batch.ran and all(each.error is None for each in outcomes):
                        costs.learn(batch.rows, batch.elements, batch.ran)
            self._results.take_in(results)

    def _settled(self) -> None:
        """All results are settled: hand over waiting batches."""
        if not self._pumping and (
            self._out or self._again or self.quarantine.active or self.batcher
        ):
            self._pump()

    def _take_back(self, work: Work) -> None:
        """Take back the batches that have not begun, to hand them over again."""
        batches = self.executor.take_back(work)
        self._again.extendleft(reversed(batches))  # usually older than those that wait there
        notify = self.instruments.taken_back
        if notify is not None:
            for batch in batches:
                notify(self.name, batch, self._clock.now())

    def _look(self) -> None:
        """Check the running Works for timeouts and slow batches."""
        now = self._clock.now()
        for work, since in list(self._out.items()):
            self._look_at(work, since, now)
        self._fire()

    def _look_at(self, work: Work, since: float, now: float) -> None:
        """Settle the results so far, take back batches behind a slow one, end a call over its
        ``timeout``.

        A Work is watched until it finishes, because its worker may begin another batch between our
        check of the running one and taking back the rest.
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
            if work.current is batch:  # else it runs the next batch, which must not be killed
                self.executor.abandon(work)
            self._looking.at(now + timeout)
            self._give_up(batch)

    def _end_useless_calls(self) -> None:
        self._ending = False
        for work in list(self._out):
            self.executor.look(work)  # which batch runs, if that is known elsewhere only
            if any(_is_useless(each) for each in list(work.pending)):
                self._take_back(work)  # those with live requests are handed over again
            batch = work.current
            if batch is None or batch.settled or work.pending:
                continue
            if _is_useless(batch):
                self.executor.abandon(work)

    def _give_up(self, batch: Batch) -> None:
        """Its samples end with OpTimeout; the engine decides about retries."""
        notify = self.instruments.given_up
        if notify is not None:
            notify(self.name, batch, self._clock.now())
        error = timed_out(self.name, batch, self.options.timeout, self.options.retry)
        failed = [(sample, error) for sample in batch.samples]
        hook = self.options.join if batch.joins else self.options.process
        log_culprits(self.name, failed, hook)
        for sample in batch.samples:
            self._settle(sample, Outcome(None, error))

    def _fire(self) -> None:
        if not self._pumping:
            self._pump()


def _is_useless(batch: Batch) -> bool:
    """Whether all its requests have ended."""
    return all(sample.gone for sample in batch.samples)
