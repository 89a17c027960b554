"""Counts the events of an engine, as plain values that can be summed over engines."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any, Final

from penstock.errors import RequestError
from penstock.instrument import GraphInfo, Instrument, RequestInfo
from penstock.request import Batch

SECONDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Upper bounds of the histogram buckets of durations; a last bucket has longer ones."""
ROWS: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
"""The same for batch sizes."""

PHASES: Final = ("preprocess", "process", "postprocess")


class _Requests:
    """The requests of one graph."""

    __slots__ = ("cancelled", "durations", "errors", "refusals", "seconds")

    def __init__(self) -> None:
        self.errors: Counter[str] = Counter()
        self.refusals: Counter[str] = Counter()
        self.cancelled = 0
        self.durations = [0] * (len(SECONDS) + 1)
        self.seconds = 0.0

    def add(self, other: _Requests) -> None:
        """Add the counts of another graph."""
        self.errors.update(other.errors)
        self.refusals.update(other.refusals)
        self.durations = [sum(x) for x in zip(self.durations, other.durations, strict=True)]
        self.seconds += other.seconds

    def plain(self) -> dict[str, Any]:
        """Answers and refusals by error code, and the durations of answers."""
        return {
            "answers": {"ok": sum(self.durations) - self.errors.total(), **self.errors},
            "refusals": dict(self.refusals),
            "seconds": _histogram(SECONDS, self.durations, self.seconds),
        }


class _Op:
    __slots__ = (
        "events",
        "phases",
        "queued",
        "reasons",
        "rows",
        "sizes",
        "transfer",
        "waited",
        "workers",
    )

    def __init__(self) -> None:
        self.events: defaultdict[str, int] = defaultdict(int)
        self.workers: defaultdict[str, int] = defaultdict(int)
        self.reasons: defaultdict[str, int] = defaultdict(int)
        self.queued = [0] * (len(SECONDS) + 1)
        self.waited = 0.0
        self.sizes = [0] * (len(ROWS) + 1)
        self.rows = 0
        self.phases = [0.0, 0.0, 0.0]
        self.transfer = 0.0


class Counters(Instrument):
    """An engine's numbers since its start."""

    def __init__(self) -> None:
        self._requests: defaultdict[GraphInfo, _Requests] = defaultdict(_Requests)
        self._ops: defaultdict[str, _Op] = defaultdict(_Op)
        self._opened = self._closed = 0

    def refused(self, request: RequestInfo, error: RequestError, now: float) -> None:
        """See Instrument."""
        self._requests[request.graph].refusals[error.code] += 1

    def replied(self, request: RequestInfo, error: RequestError | None, now: float) -> None:
        """See Instrument."""
        found = self._requests[request.graph]
        seconds = now - request.admitted_at
        found.seconds += seconds
        found.durations[bisect_left(SECONDS, seconds)] += 1
        if error is not None:
            found.errors[error.code] += 1

    def cancelled(self, request: RequestInfo, now: float) -> None:
        """See Instrument."""
        self._requests[request.graph].cancelled += 1

    def returned(self, op: str, batch: Batch, errors: int, now: float) -> None:
        """See Instrument."""
        found = self._ops[op]
        # Not by the member or its ``value``: hashing the one or looking up the other takes three
        # times as long as this whole line.
        found.reasons[batch.reason._value_] += 1
        rows = batch.rows
        found.rows += rows
        found.sizes[bisect_left(ROWS, rows)] += 1
        queued, closed = found.queued, batch.closed
        for sample in batch.samples:
            seconds = closed - sample.arrived
            found.waited += seconds
            queued[bisect_left(SECONDS, seconds)] += 1
        ran = batch.ran
        if ran:  # else it was lost with its worker
            phases = found.phases
            phases[0] += batch.prepared
            phases[1] += batch.processed
            phases[2] += ran - batch.prepared - batch.processed
            found.transfer += now - closed - ran
        if errors:
            found.events["errors"] += errors

    def given_up(self, op: str, batch: Batch, now: float) -> None:
        """See Instrument."""
        self.returned(op, batch, 0, now)

    def late(self, op: str, batch: Batch, now: float) -> None:
        """See Instrument."""
        self._ops[op].events["late"] += 1

    def taken_back(self, op: str, batch: Batch, now: float) -> None:
        """See Instrument."""
        self._ops[op].events["taken_back"] += 1

    def worker_started(self, op: str, worker: int, now: float) -> None:
        """See Instrument."""
        self._ops[op].workers["started"] += 1

    def worker_died(self, op: str, worker: int, why: str, now: float) -> None:
        """See Instrument."""
        self._ops[op].workers["died"] += 1

    def worker_replaced(self, op: str, worker: int, why: str, now: float) -> None:
        """See Instrument."""
        self._ops[op].workers["replaced"] += 1

    def connection_opened(self, peer: object, now: float) -> None:
        """See Instrument."""
        self._opened += 1

    def connection_closed(self, peer: object, now: float) -> None:
        """See Instrument."""
        self._closed += 1

    def of_requests(self) -> dict[str, Any]:
        """Of all graphs: answers and refusals by error code, durations; and connections."""
        everything = _Requests()
        for each in self._requests.values():
            everything.add(each)
        connections = {"opened": self._opened, "closed": self._closed}
        return {**everything.plain(), "connections": connections}

    def of_graph(self, graph: GraphInfo) -> dict[str, Any]:
        """The same for one graph, with the number of cancelled requests."""
        found = self._requests.get(graph) or _Requests()
        return {**found.plain(), "cancelled": found.cancelled}

    def of_op(self, op: str) -> dict[str, Any]:
        """An op's errors and workers, queue waits, and its batches: rows, close reasons, seconds of
        each phase, and seconds of transfer between the engine and the worker.
        """
        found = self._ops.get(op) or _Op()
        return {
            **found.events,
            "seconds": dict(zip(PHASES, found.phases, strict=True)),
            "transfer": found.transfer,
            "queue": _histogram(SECONDS, found.queued, found.waited),
            "rows": _histogram(ROWS, found.sizes, found.rows),
            "reasons": dict(found.reasons),
            "worker_changes": dict(found.workers),
        }


def _histogram(bounds: Sequence[float], counts: Sequence[int], total: float) -> dict[str, Any]:
    """The sum of all values, and the count of each bucket."""
    names = [*(f"<= {bound:g}" for bound in bounds), f"> {bounds[-1]:g}"]
    classes = {name: count for name, count in zip(names, counts, strict=True) if count}
    return {"sum": total, "classes": classes}
