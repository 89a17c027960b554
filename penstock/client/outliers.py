"""Which replicas of a variant answer worse than the others, or not at all. Pure: time and chance
are arguments.

A replica is ejected when ``MOST_FAILURES`` of its calls have failed in a row, or when in an
interval a larger share of its calls has failed than of the others' calls, by more than chance
explains. The pause doubles with each ejection, and shrinks again for each interval in which it
works. After the pause a single call tries the replica, and its success readmits it. Ejected
replicas are tried last, so that they are used if all are ejected.

Source: Envoy's outlier detection, from which the interval, the number of calls and the number of
failures in a row are. Envoy compares with the standard deviation of the replicas' success rates,
which says nothing with fewer than five replicas.
"""

from __future__ import annotations

from enum import Enum, auto
from math import sqrt
from typing import Final, NamedTuple

from penstock.client.errors import CallFailed
from penstock.client.health import FIRST_EJECTION, LONGEST_EJECTION, MOST_FAILURES, TRIAL
from penstock.protocols.status import GrpcCode

INTERVAL: Final = 10.0
"""Seconds in which shares of failed calls are counted."""

LEAST_CALLS: Final = 100
"""Calls of a replica in an interval, below which its share says nothing."""

MORE: Final = 0.05
"""Least difference of shares for which a replica is ejected."""

_DEVIATIONS: Final = 4.0  # of the difference, if both were equally good: one in 30,000 exceeds that


class Ejected(NamedTuple):
    """A replica that was ejected, by a share of failed calls; None: by failures in a row."""

    replica: int
    share: float | None


class Verdict(Enum):
    """What an attempt of a call says about its replica."""

    GOOD = auto()
    """It has answered, perhaps with an error that is about the call."""
    FAULT = auto()
    """It did not answer, or not with an answer."""
    LATE = auto()
    """A backup request, sent later, has been answered before."""
    NOTHING = auto()
    """Nothing: the call was cancelled, refused because of the load, or not sent."""


def verdict_of(failed: CallFailed) -> Verdict:
    """What the failure of an attempt says about its replica. Whether it can be reached is decided
    elsewhere; INTERNAL of a server may be due to the input, an answer that is none is not.
    """
    if failed.status is GrpcCode.CANCELLED or not failed.sent or failed.retry_after is not None:
        return Verdict.NOTHING
    if failed.status in (GrpcCode.UNAVAILABLE, GrpcCode.DEADLINE_EXCEEDED):
        return Verdict.FAULT
    if failed.retryable and failed.status not in (GrpcCode.RESOURCE_EXHAUSTED, GrpcCode.ABORTED):
        return Verdict.FAULT  # no answer of its protocol
    return Verdict.GOOD


class _Record:
    """One replica: its failures in a row, its calls of this interval, and its ejection."""

    __slots__ = ("calls", "failures", "faults", "on_trial", "out", "pauses", "until")

    def __init__(self) -> None:
        self.failures = 0
        self.calls = 0
        self.faults = 0
        self.out = False
        self.on_trial = False
        self.until = 0.0
        self.pauses = 0

    def eject(self, now: float, chance: float) -> None:
        self.out = True
        self.on_trial = False
        pause = min(FIRST_EJECTION * 2.0**self.pauses, LONGEST_EJECTION)
        self.until = now + pause * (0.8 + 0.4 * chance)
        self.pauses = min(self.pauses + 1, 10)
        self.failures = 0


class Outliers:
    """See the module.

    Args:
        count: the number of replicas; they are named by their indices.
    """

    def __init__(self, count: int) -> None:
        self._records = [_Record() for _ in range(count)]
        self._turns_at = 0.0

    def put(self, replica: int) -> None:
        """Another server has this index, behind the last one or instead of one."""
        self._records[replica : replica + 1] = [_Record()]

    def is_out(self, replica: int, now: float) -> bool:
        """Whether a replica is tried last: it is ejected, and may not be tried again."""
        record = self._records[replica]
        return record.out and now < record.until

    def chosen(self, replica: int, now: float) -> None:
        """A call is sent to a replica; if that is ejected, other calls wait for the outcome."""
        record = self._records[replica]
        if record.out:
            record.on_trial = True
            record.until = now + TRIAL

    def ended(self, replica: int, verdict: Verdict, now: float, chance: float) -> Ejected | None:
        """An attempt has ended; ``chance`` is 0 to 1. Returns which replica is ejected now."""
        ejected = self._turn(now, chance)
        record = self._records[replica]
        if verdict is Verdict.NOTHING:
            return ejected
        if record.out:
            if record.on_trial and verdict is Verdict.GOOD:
                record.out = record.on_trial = False
            elif record.on_trial:
                record.eject(now, chance)
            return ejected  # a call that began before the ejection says nothing new
        record.calls += 1
        if verdict is Verdict.GOOD:
            record.failures = 0
            return ejected
        record.faults += verdict is Verdict.FAULT
        record.failures += 1
        if record.failures >= MOST_FAILURES:
            record.eject(now, chance)
            return Ejected(replica, None)
        return ejected

    def _turn(self, now: float, chance: float) -> Ejected | None:
        """At the end of an interval, eject those that are worse than the others."""
        if now < self._turns_at:
            return None
        ejected = None
        records = self._records
        if now < self._turns_at + INTERVAL:  # otherwise the last calls are too long ago
            working = [each for each in records if not each.out]
            worst = max(working, key=lambda each: each.faults / max(each.calls, 1), default=None)
            if worst is not None and self._is_worse(worst):
                worst.eject(now, chance)
                ejected = Ejected(records.index(worst), worst.faults / worst.calls)
        self._turns_at = now + INTERVAL
        for each in records:
            if not each.out and each.pauses:
                each.pauses -= 1
            each.calls = each.faults = 0
        return ejected

    def _is_worse(self, record: _Record) -> bool:
        """Whether a larger share of its calls has failed than of the others'."""
        calls = sum(each.calls for each in self._records) - record.calls
        if min(record.calls, calls) < LEAST_CALLS:
            return False
        faults = sum(each.faults for each in self._records) - record.faults
        share = (record.faults + faults) / (record.calls + calls)
        deviation = sqrt(share * (1 - share) * (1 / record.calls + 1 / calls))
        more = record.faults / record.calls - faults / calls
        return more > max(MORE, _DEVIATIONS * deviation)
