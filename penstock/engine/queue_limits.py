"""QueueLimits: watches how long the samples of one queue wait.

Thread: the engine's loop only. Source: ``QueuePolicy``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final

from penstock.batching.queue_policy import QueuePolicy
from penstock.engine.clock import Clock
from penstock.engine.deadlines import Deadlines, Due
from penstock.engine.timer import Timer
from penstock.request import Sample

_NEVER: Final[Due[Sample]] = {}


class QueueLimits:
    """See the module.

    Args:
        policies: one for each priority level.
        expired: called with each sample that has waited for its time limit and still waits, and
            whether it is delayed; at most one tick of ``Deadlines`` late.
    """

    def __init__(
        self,
        policies: Sequence[QueuePolicy],
        clock: Clock,
        expired: Callable[[Sample, bool], None],
    ) -> None:
        self._policies = policies
        self._clock = clock
        self._expired = expired
        self._deadlines: Deadlines[Sample] = Deadlines(self._set_alarm)
        self._alarm = Timer(clock, self._expire)

    def watch(self, sample: Sample, now: float) -> None:
        """A sample has been queued."""
        limit = self._policies[sample.level].limit(sample.flight.queue_timeout)
        sample.queue_due = _NEVER if limit is None else self._deadlines.add(sample, now + limit)

    @staticmethod
    def left(samples: Iterable[Sample]) -> None:
        """Watched samples have left the queue."""
        for sample in samples:
            sample.queue_due.pop(sample, None)

    def _set_alarm(self) -> None:
        due = self._deadlines.next_due()
        if due is not None:
            self._alarm.at(due)

    def _expire(self) -> None:
        for sample in self._deadlines.expire(self._clock.now()):
            if sample.waiting:  # the end of another request may have ended this one as well
                self._expired(sample, self._policies[sample.level].delay)
        self._set_alarm()
