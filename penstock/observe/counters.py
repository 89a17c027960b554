"""Counts the events of an engine, as plain values that can be summed over engines."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Sequence
from itertools import islice
from operator import itemgetter, sub
from typing import Any, Final

from penstock.errors import RequestError
from penstock.executors.seats.counts import RUNNING, SECONDS_AT
from penstock.executors.seats.counts import SECONDS as STEP_SECONDS
from penstock.instrument import GraphInfo, Instrument, RequestInfo
from penstock.observe.callers import Callers
from penstock.observe.sketch import Sketch
from penstock.request import Batch

SECONDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Upper bounds of the histogram buckets of durations; a last bucket has longer ones."""
ROWS: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
"""The same for batch sizes."""

_NAMES: Final[dict[tuple[float, ...], list[str]]] = {
    bounds: [*(f"<= {bound:g}" for bound in bounds), f"> {bounds[-1]:g}"]
    for bounds in (SECONDS, ROWS, RUNNING, STEP_SECONDS)
}

MANY: Final = 200
"""Number of values that are counted together, as that takes less time than one by one."""

_REASON: Final = itemgetter(3)  # of the values of BatchTimes
_ROWS: Final = itemgetter(4)
_RAN: Final = itemgetter(10)

PHASES: Final = ("preprocess", "process", "postprocess")


class Streams:
    """The answers in pieces of one graph.

    Attributes:
        first: seconds from the admission of a request to the first piece, not counted yet.
        between: mean seconds between the pieces of an answer, one for each, not counted yet.
        ended: answers that have ended, by how: ``ok``, ``cancelled`` or the code of the error.
        pieces: of answers that have ended.
    """

    __slots__ = (
        "_between",
        "_between_sum",
        "_first",
        "_first_sum",
        "between",
        "ended",
        "first",
        "pieces",
    )

    def __init__(self) -> None:
        self.first: list[float] = []
        self.between: list[float] = []
        self.ended: Counter[str] = Counter()
        self.pieces = 0
        self._first = [0] * (len(SECONDS) + 1)
        self._between = [0] * (len(SECONDS) + 1)
        self._first_sum = self._between_sum = 0.0

    def begin(self, seconds: float) -> None:
        """The first piece of an answer is there, so long after the request was admitted."""
        self.first.append(seconds)
        if len(self.first) > MANY:
            self._count()

    def end(self, why: str, pieces: int, seconds: float) -> None:
        """An answer has ended.

        Args:
            why: how.
            pieces: how many it had.
            seconds: from the first one to its end.
        """
        self.ended[why] += 1
        self.pieces += pieces
        if pieces > 1:
            self.between.append(seconds / (pieces - 1))
            if len(self.between) > MANY:
                self._count()

    def _count(self) -> None:
        self._first_sum += _count(self.first, SECONDS, self._first)
        self._between_sum += _count(self.between, SECONDS, self._between)

    def plain(self, open_now: Sequence[Any]) -> dict[str, Any]:
        """The counts.

        Args:
            open_now: the streams of answers that have not ended.
        """
        self._count()
        return {
            "open": len(open_now),
            "ended": dict(self.ended),
            "pieces": self.pieces + sum(each.taken for each in open_now),
            "first": _histogram(SECONDS, self._first, self._first_sum),
            "between": _histogram(SECONDS, self._between, self._between_sum),
        }


class Requests:
    """The requests of one graph.

    Attributes:
        seconds: durations of answers, not counted yet.
        errors: their error codes.
        given_up: how long the requests had taken whose callers disconnected.
    """

    __slots__ = (
        "cancelled",
        "durations",
        "errors",
        "given_up",
        "refusals",
        "seconds",
        "sketch",
        "sum",
    )

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self.errors: Counter[str] = Counter()
        self.refusals: Counter[str] = Counter()
        self.cancelled = 0
        self.durations = [0] * (len(SECONDS) + 1)
        self.sketch = Sketch()
        self.given_up = Sketch()
        self.sum = 0.0

    def count(self) -> None:
        """Count the durations."""
        if self.seconds:
            self.sketch.add(self.seconds)
            self.sum += _count(self.seconds, SECONDS, self.durations)

    def add(self, other: Requests) -> None:
        """Add the counts of another graph."""
        other.count()
        self.errors.update(other.errors)
        self.refusals.update(other.refusals)
        self.durations = [sum(x) for x in zip(self.durations, other.durations, strict=True)]
        self.sketch.include(other.sketch)
        self.sum += other.sum

    def plain(self, *, sketches: bool = True) -> dict[str, Any]:
        """Answers and refusals by error code, and the durations of answers."""
        self.count()
        sketch = self.sketch if sketches else None
        return {
            "answers": {"ok": sum(self.durations) - self.errors.total(), **self.errors},
            "refusals": dict(self.refusals),
            "seconds": _histogram(SECONDS, self.durations, self.sum, sketch),
        }


class Batches:
    """The batches of one op.

    Attributes:
        values: of their BatchTimes, not counted yet.
        waits: seconds in the queue of each of their samples, not counted yet.
        events: counts of other events.
        workers: the same of workers.
    """

    __slots__ = (
        "events",
        "passed",
        "passes",
        "prepared",
        "processed",
        "queued",
        "ran",
        "reasons",
        "rows",
        "sizes",
        "values",
        "waited",
        "waiting",
        "waits",
        "workers",
    )

    def __init__(self) -> None:
        self.values: list[tuple[Any, ...]] = []
        self.waits: list[float] = []
        self.events: defaultdict[str, int] = defaultdict(int)
        self.workers: defaultdict[str, int] = defaultdict(int)
        self.reasons: Counter[str] = Counter()
        self.queued = [0] * (len(SECONDS) + 1)
        self.waiting = Sketch()
        self.passes = Sketch()
        self.waited = 0.0
        self.sizes = [0] * (len(ROWS) + 1)
        self.rows = 0
        self.prepared = self.processed = self.ran = self.passed = 0.0

    def count(self) -> None:
        """Count the values and waits."""
        if self.waits:
            self.waiting.add(self.waits)
            self.waited += _count(self.waits, SECONDS, self.queued)
        values, self.values = self.values, []
        self.reasons.update(map(_REASON, values))
        self.rows += _count([*map(_ROWS, values)], ROWS, self.sizes)
        done = [*filter(_RAN, values)]  # without those that were lost with their workers
        if done:
            columns = zip(*done, strict=True)
            *_, closed, _, prepared, processed, ran, returned = islice(columns, 12)
            self.prepared += sum(prepared)
            self.processed += sum(processed)
            self.ran += sum(ran)
            passes = [*map(sub, returned, closed)]
            self.passed += sum(passes)
            self.passes.add(passes)


class Counters(Instrument):
    """The counts of an engine since its start. A recorder adds the batches and answers.

    Attributes:
        requests: by graph and version, ``GraphInfo.key``.
        streams: the answers in pieces by graph and version.
        open_streams: requests whose answers in pieces have begun, with the time of the first piece.
            A request is removed when it ends; between that a piece costs nothing here.
        copies: of requests that a new version runs as well, by graph and version: they count among
            neither requests nor callers.
        ops: by name.
        callers: those that are known.
    """

    def __init__(self) -> None:
        self.streams: defaultdict[tuple[str | None, str], Streams] = defaultdict(Streams)
        self.open_streams: dict[RequestInfo, float] = {}
        self.requests: defaultdict[tuple[str | None, str], Requests] = defaultdict(Requests)
        self.copies: defaultdict[tuple[str | None, str], Requests] = defaultdict(Requests)
        self.ops: defaultdict[str, Batches] = defaultdict(Batches)
        self.callers = Callers()
        self._gone = Requests()  # of graphs that were forgotten
        self._opened = self._closed = 0

    def forget(self, graph: GraphInfo) -> None:
        """A graph was removed: only the sums over all graphs keep its counts."""
        found = self.requests.pop(graph.key, None)
        if found is not None:
            self._gone.add(found)
        self.streams.pop(graph.key, None)
        self.copies.pop(graph.key, None)
        for stage in graph.stages:
            self.ops.pop(stage.name, None)

    def count_copy(self, request: RequestInfo, error: RequestError | None, now: float) -> None:
        """A copy of a request has ended."""
        found = self.copies[request.graph.key]
        found.seconds.append(now - request.admitted_at)
        if error is not None:
            found.errors[error.code] += 1
        if len(found.seconds) > MANY:
            found.count()

    def refused(self, request: RequestInfo, error: RequestError, now: float) -> None:
        """See Instrument."""
        if not request.copied:
            self.requests[request.graph.key].refusals[error.code] += 1

    def cancelled(self, request: RequestInfo, now: float) -> None:
        """See Instrument."""
        if not request.copied:
            found = self.requests[request.graph.key]
            found.cancelled += 1
            found.given_up.add([now - request.admitted_at])

    def stream_begun(self, request: RequestInfo, now: float) -> None:
        """See Instrument."""
        self.open_streams[request] = now
        self.streams[request.graph.key].begin(now - request.admitted_at)

    def stream_ended(
        self, request: RequestInfo, why: str | None, now: float
    ) -> tuple[float, int] | None:
        """A request has ended, which may have a stream.

        Args:
            request: the request.
            why: the code of its error, or that of a caller that has left; None for a good answer.
            now: the time.

        Returns:
            the time of its first piece, and the number of its pieces; None without a stream.
        """
        begun = self.open_streams.pop(request, None)
        if begun is None:
            return None
        pieces: int = request.stream.taken
        self.streams[request.graph.key].end(why or "ok", pieces, now - begun)
        return begun, pieces

    def of_streams(self, graph: GraphInfo) -> dict[str, Any]:
        """The answers in pieces of one graph: how many are open, how the others ended, the number
        of pieces, the seconds until the first one and between two.
        """
        open_now = [x.stream for x in self.open_streams if x.graph.key == graph.key]
        return self.streams[graph.key].plain(open_now)

    def late(self, op: str, batch: Batch, now: float) -> None:
        """See Instrument."""
        self.ops[op].events["late"] += 1

    def taken_back(self, op: str, batch: Batch, now: float) -> None:
        """See Instrument."""
        self.ops[op].events["taken_back"] += 1

    def worker_started(self, op: str, worker: int, now: float) -> None:
        """See Instrument."""
        self.ops[op].workers["started"] += 1

    def worker_died(self, op: str, worker: int, why: str, now: float) -> None:
        """See Instrument."""
        self.ops[op].workers["died"] += 1

    def worker_replaced(self, op: str, worker: int, why: str, now: float) -> None:
        """See Instrument."""
        self.ops[op].workers["replaced"] += 1

    def connection_opened(self, peer: object, now: float) -> None:
        """See Instrument."""
        self._opened += 1

    def connection_closed(self, peer: object, now: float) -> None:
        """See Instrument."""
        self._closed += 1

    def of_requests(self, *, sketches: bool = True) -> dict[str, Any]:
        """Of all graphs: answers and refusals by error code, durations; and connections.

        Args:
            sketches: whether to add the sketches of durations.
        """
        everything = Requests()
        for each in (self._gone, *self.requests.values()):
            everything.add(each)
        connections = {"opened": self._opened, "closed": self._closed}
        return {**everything.plain(sketches=sketches), "connections": connections}

    def of_graph(self, graph: GraphInfo, *, sketches: bool = True) -> dict[str, Any]:
        """The same for one graph, with the number of cancelled requests."""
        found = self.requests.get(graph.key) or Requests()
        return {**found.plain(sketches=sketches), "cancelled": found.cancelled}

    def of_op(self, op: str, *, sketches: bool = True) -> dict[str, Any]:
        """An op's errors and workers, queue waits, and its batches: rows, close reasons, seconds of
        each phase, of transfer between the engine and the worker, and from closing to return
        (``passes``).
        """
        found = self.ops.get(op) or Batches()
        found.count()
        prepared, processed, ran = found.prepared, found.processed, found.ran
        phases = prepared, processed, ran - prepared - processed
        waiting = found.waiting if sketches else None
        passes = {"sketch": found.passes.plain()} if sketches else {}
        return {
            **found.events,
            "seconds": dict(zip(PHASES, phases, strict=True)),
            "transfer": found.passed - found.ran,
            "queue": _histogram(SECONDS, found.queued, found.waited, waiting),
            "passes": {"sum": found.passed, **passes},
            "rows": _histogram(ROWS, found.sizes, found.rows),
            "reasons": dict(found.reasons),
            "worker_changes": dict(found.workers),
        }


def of_steps(numbers: Sequence[int]) -> dict[str, Any]:
    """The steps of an op with seats: their number, the requests in each, and its seconds.

    Args:
        numbers: as ``StepCounts`` has them.
    """
    *buckets, requests, nanoseconds = numbers
    running = buckets[:SECONDS_AT]
    return {
        "count": sum(running),
        "running": _histogram(RUNNING, running, requests),
        "seconds": _histogram(STEP_SECONDS, buckets[SECONDS_AT:], nanoseconds / 1e9),
    }


def _count(values: list[Any], bounds: Sequence[float], counts: list[int]) -> Any:
    """Add the values to the counts of the buckets, and remove them; returns their sum."""
    total = sum(values)
    values.sort()
    begin, most = 0, len(values)
    while begin < most:
        bucket = bisect_left(bounds, values[begin])
        end = most if bucket == len(bounds) else bisect_right(values, bounds[bucket], begin)
        counts[bucket] += end - begin
        begin = end
    values.clear()
    return total


def _histogram(
    bounds: tuple[float, ...], counts: Sequence[int], total: float, sketch: Sketch | None = None
) -> dict[str, Any]:
    """The sum of all values, the count of each bucket, and the sketch if there is one."""
    classes = {name: count for name, count in zip(_NAMES[bounds], counts, strict=True) if count}
    more = {} if sketch is None else {"sketch": sketch.plain()}
    return {"sum": total, "classes": classes, **more}
