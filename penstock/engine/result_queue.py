"""The queue of results from workers: settled in order, for a limited time in each turn of the
loop.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable

from penstock.engine.clock import Clock
from penstock.engine.quarantine import Quarantine
from penstock.errors import Cancelled, WorkerDied
from penstock.executors.executor import Result
from penstock.instrument import Instruments
from penstock.request import Batch, Outcome, Sample

_log = logging.getLogger(__name__)

_TURN = 0.001
"""Most seconds for which one op settles results in one turn of the loop."""


class ResultQueue:
    """One op's.

    Args:
        op: its name.
        clock: the engine's.
        settle: the engine's; called with each sample and its Outcome, once.
        quarantine: decides about requests of lost batches.
        instruments: notified of returned batches.
        settled: called when the queue is empty again.

    Attributes:
        waiting: results that are not settled yet.
    """

    def __init__(
        self,
        op: str,
        clock: Clock,
        settle: Callable[[Sample, Outcome], None],
        quarantine: Quarantine,
        instruments: Instruments,
        settled: Callable[[], None],
    ) -> None:
        self.waiting: deque[Result] = deque()
        self._op = op
        self._clock = clock
        self._settle = settle
        self._quarantine = quarantine
        self._instruments = instruments
        self._settled = settled

    def take_in(self, results: Iterable[Result]) -> None:
        """Settle results, in this turn or, if they are large, in several."""
        idle = not self.waiting
        self.waiting.extend(results)
        if idle:
            self._settle_some()

    def record_late(self, batches: Iterable[Batch]) -> None:
        """Record batches that were returned after they had been settled."""
        for batch in batches:
            _log.info("op %s: late results dropped (data_ids=%s)", self._op, batch.data_ids)
            if self._instruments.late is not None:
                self._instruments.late(self._op, batch, self._clock.now())

    def _settle_some(self) -> None:
        now = self._clock.now
        settle = self._settle
        quarantine = self._quarantine
        waiting = self.waiting
        at = now()
        until = at + _TURN
        while waiting:
            batch, outcomes = waiting.popleft()
            samples, answers = batch.samples, outcomes
            assert len(samples) == len(answers)
            if quarantine.active or (
                outcomes[0].error is not None and isinstance(outcomes[0].error, WorkerDied)
            ):
                samples, answers = self._judge(batch, outcomes)
            if batch.settled:
                self.record_late([batch])
                continue
            batch.settled = True
            notify = self._instruments.returned
            if notify is not None:
                failed = 0
                for outcome in outcomes:
                    if outcome.error is not None:
                        failed += 1
                notify(self._op, batch, failed, at)
            # Without the keyword argument, which costs more than the loop's body.
            for sample, answer in zip(samples, answers):  # noqa: B905
                if sample.gone and not isinstance(answer.error, Cancelled):
                    # One line for each caller that has left would say what metrics count.
                    _log.debug("op %s: late result dropped (data_id=%s)", self._op, sample.data_id)
                try:
                    settle(sample, answer)
                except Exception:  # noqa: BLE001 - our mistake with one must not harm the others
                    _log.exception(
                        "op %s: %r could not be settled; please report this", self._op, sample
                    )
            if waiting:
                at = now()
                if at > until:
                    self._clock.soon(self._settle_some)
                    return
        self._settled()

    def _judge(self, batch: Batch, outcomes: list[Outcome]) -> tuple[list[Sample], list[Outcome]]:
        """Update the quarantine; returns the samples to answer, with their outcomes."""
        samples, now = batch.samples, self._clock.now()
        if isinstance(outcomes[0].error, WorkerDied):
            samples, outcomes = self._quarantine.died(batch, outcomes, now)
        else:
            self._quarantine.batch_returned(batch, outcomes, now)
        return samples, outcomes
