"""Counts what an engine does, as plain values that can be shown, and added up over engines."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from typing import Any, Final

from penstock.errors import RequestError
from penstock.instrument import Instrument, RequestInfo
from penstock.request import Batch

SECONDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Upper bounds of the classes of durations; one more class holds what takes longer."""


class Counters(Instrument):
    """An engine's numbers since its start."""

    def __init__(self) -> None:
        self._answers: Counter[str] = Counter()
        self._refusals: Counter[str] = Counter()
        self._durations = [0] * (len(SECONDS) + 1)
        self._seconds = 0.0
        self._ops: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self._phases: defaultdict[str, list[float]] = defaultdict(lambda: [0.0] * 3)
        self._workers: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self._opened = self._closed = 0

    def refused(self, request: RequestInfo, error: RequestError, now: float) -> None:
        """See Instrument."""
        self._refusals[error.code] += 1

    def replied(self, request: RequestInfo, error: RequestError | None, now: float) -> None:
        """See Instrument."""
        seconds = now - request.admitted_at
        self._seconds += seconds
        self._durations[bisect_left(SECONDS, seconds)] += 1
        if error is not None:
            self._answers[error.code] += 1

    def returned(self, op: str, batch: Batch, errors: int, now: float) -> None:
        """See Instrument."""
        phases = self._phases[op]
        phases[0] += batch.prepared
        phases[1] += batch.processed
        phases[2] += batch.ran - batch.prepared - batch.processed
        if errors:
            self._ops[op]["errors"] += errors

    def late(self, op: str, batch: Batch, now: float) -> None:
        """See Instrument."""
        self._ops[op]["late"] += 1

    def taken_back(self, op: str, batch: Batch, now: float) -> None:
        """See Instrument."""
        self._ops[op]["taken_back"] += 1

    def worker_started(self, op: str, worker: int, now: float) -> None:
        """See Instrument."""
        self._workers[op]["started"] += 1

    def worker_died(self, op: str, worker: int, why: str, now: float) -> None:
        """See Instrument."""
        self._workers[op]["died"] += 1

    def worker_replaced(self, op: str, worker: int, why: str, now: float) -> None:
        """See Instrument."""
        self._workers[op]["replaced"] += 1

    def connection_opened(self, peer: object, now: float) -> None:
        """See Instrument."""
        self._opened += 1

    def connection_closed(self, peer: object, now: float) -> None:
        """See Instrument."""
        self._closed += 1

    def of_requests(self) -> dict[str, Any]:
        """Answers by their errors' codes, refusals likewise, and how long answers took."""
        count = sum(self._durations)
        return {
            "answers": {"ok": count - self._answers.total(), **self._answers},
            "refusals": dict(self._refusals),
            "seconds": {
                "sum": self._seconds,
                "classes": {
                    f"<= {bound:g}" if bound is not None else f"> {SECONDS[-1]:g}": count
                    for bound, count in zip((*SECONDS, None), self._durations, strict=True)
                    if count
                },
            },
            "connections": {"opened": self._opened, "closed": self._closed},
        }

    def of_op(self, op: str) -> dict[str, Any]:
        """An op's errors, workers, and the seconds that its batches took in each phase."""
        names = ("preprocess", "process", "postprocess")
        return {
            **self._ops.get(op, {}),
            "seconds": dict(zip(names, self._phases.get(op, (0.0, 0.0, 0.0)), strict=True)),
            "worker_changes": dict(self._workers.get(op, {})),
        }
