"""Keeps timelines: of the latest requests, of those that failed, and of the slowest of the last
minutes.

The work per request is small: it fills plain lists, which are converted to Timelines on demand.
Belongs to the engine's loop.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Sequence
from operator import attrgetter
from time import monotonic
from typing import Any, Final, TypeAlias

from penstock.errors import RequestError, text_of
from penstock.instrument import ExchangeInfo, Instrument, RequestInfo
from penstock.observe.timeline import GRPC, BatchTimes, Step, Timeline
from penstock.protocols.trace_context import TRACEPARENT, state_of
from penstock.request import Batch, Sample

KEPT: Final = 256
"""Number of timelines of the latest requests."""

SLOWEST: Final = 32
"""Number of timelines of the slowest requests of a period, for the current and the previous one."""

PERIOD: Final = 120.0
"""Seconds."""

FAILED: Final = 16
"""Timelines of the requests that failed last, of each code of errors: many failures of one kind
leave those of another."""

CANCELLED: Final = "cancelled"
"""The error code of cancelled requests."""

NO_ID: Final = -1
"""The data id of a request that was not admitted."""

_MOST_PATH: Final = 200  # most bytes of a path; a guess
_MOST_TEXT: Final = 1000  # characters of what an error says; the same
_TRACEPARENT: Final = 55  # bytes of version 00
_TRACE_ID: Final = slice(3, 35)  # of these
_MOST_DIGITS: Final = 19  # of a number of 64 bits

Listener: TypeAlias = Callable[[Timeline], object]


_Step: TypeAlias = tuple[float, int, list[Any]]
"""The time when a sample was queued, its attempt, and the values of its BatchTimes."""

_Over: TypeAlias = list[Any]
"""The values of a Timeline without its engine, in order, and its unfinished samples."""


_data_id: Final = attrgetter("data_id")


def method_of(call: Any) -> str:
    """The HTTP method, or GRPC.

    Args:
        call: of the door.
    """
    return GRPC if call.is_grpc else str(call.exchange.head.method)


class Recorder(Instrument):
    """See the module.

    Args:
        engine: its number among the engines of the service.
    """

    def __init__(self, engine: int = 0) -> None:
        self._engine = engine
        self._batches = 0
        self._inside: dict[int, list[_Step]] = {}
        self._unsent: dict[ExchangeInfo, _Over] = {}
        self._latest: deque[_Over] = deque(maxlen=KEPT)
        self._slowest: list[tuple[float, int, _Over]] = []  # a heap
        self._slowest_before: list[tuple[float, int, _Over]] = []
        self._failed: dict[str, deque[_Over]] = {}
        self._enough = -1.0  # seconds beyond which a request is one of the slowest
        self._period_ends = 0.0
        self._listeners: list[Listener] = []

    # Events.

    def refused(self, request: RequestInfo, error: RequestError, now: float) -> None:
        """See Instrument."""
        self._over(request, error, now, now, [], ())

    def returned(self, op: str, batch: Batch, errors: int, now: float) -> None:
        """See Instrument."""
        self._ran(op, batch, now, errors, False)

    def given_up(self, op: str, batch: Batch, now: float) -> None:
        """See Instrument."""
        self._ran(op, batch, now, len(batch.samples), True)

    def _ran(self, op: str, batch: Batch, now: float, errors: int, given_up: bool) -> None:
        self._batches += 1
        samples = batch.samples
        ids = [*map(_data_id, samples)]
        times = [
            op, self._batches, batch.worker, batch.reason._value_, batch.rows, ids, batch.closed,
            batch.began, batch.prepared, batch.processed, batch.ran, now, errors, given_up,
            batch.elements, batch.filled_in,
        ]  # fmt: skip
        inside = self._inside
        for sample in samples:
            step = sample.arrived, sample.attempt, times
            steps = inside.get(sample.data_id)
            if steps is not None:
                steps.append(step)
            elif not sample.gone:  # else its request has ended, and nothing would remove the entry
                inside[sample.data_id] = [step]

    def replied(self, request: RequestInfo, error: RequestError | None, now: float) -> None:
        """See Instrument."""
        steps = self._inside.pop(request.data_id, None) or []
        self._over(request, error, request.admitted_at, now, steps, request.samples)

    def cancelled(self, request: RequestInfo, now: float) -> None:
        """See Instrument."""
        steps = self._inside.pop(request.data_id, None) or []
        self._over(request, None, request.admitted_at, now, steps, request.samples, gone=True)

    def _over(
        self,
        request: RequestInfo,
        error: RequestError | None,
        admitted: float,
        now: float,
        steps: list[_Step],
        samples: Sequence[Sample],
        *,
        gone: bool = False,
    ) -> None:
        code, text = (CANCELLED if gone else None), ""
        if error is not None:
            code, text = error.code, text_of(error)[:_MOST_TEXT]
        left: list[tuple[str, float, int]] = []
        if samples:
            stages = request.graph.stages
            left = [(stages[each.op].name, each.arrived, each.attempt) for each in samples]
        call = request.call
        exchange = getattr(call, "exchange", None)  # calls of an embedded service differ
        over = [
            request.graph.name or "", "", request.data_id, request.log_id, b"", admitted,
            admitted, now, now, 0, code, "", b"", steps, left, text,
        ]  # fmt: skip
        if exchange is not None:
            over[1] = call.label
            over[5] = exchange.began
            head = exchange.head
            over[11] = GRPC if call.is_grpc else head.method
            trace = head.fields.get(TRACEPARENT)
            if trace is not None:
                over[4] = trace
                over[12] = state_of(head)
            if not gone and not exchange.over:
                self._unsent[exchange] = over
                return
        self._keep(over)

    def exchange_ended(self, exchange: ExchangeInfo, status: int, now: float) -> None:
        """See Instrument."""
        over = self._unsent.pop(exchange, None)
        if over is not None:
            over[8] = now
            over[9] = status
            self._keep(over)
        elif self._listeners:
            head = exchange.head
            route = f"{head.method} {head.path[:_MOST_PATH].decode('latin-1')}"
            trace = head.fields.get(TRACEPARENT, b"")
            began = exchange.began
            self._tell([
                "", route, NO_ID, 0, trace, began, now, now, now, status, None, head.method,
                state_of(head), [], [], "",
            ])  # fmt: skip

    def so_far(self, exchange: ExchangeInfo) -> Timeline | None:
        """The timeline of a request whose outcome is known, but not sent yet; from any thread."""
        over = self._unsent.get(exchange)
        return None if over is None else self._timeline([*over[:8], monotonic(), *over[9:]])

    # Timelines.

    def listen(self, listener: Listener) -> Callable[[], None]:
        """Call ``listener`` with each timeline from now on; returns a function that ends that.

        A request that reached no graph, such as a probe, also has a timeline, with NO_ID.
        """
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    def latest(self, most: int = KEPT) -> list[Timeline]:
        """The timelines of the latest requests, in the order of their ends."""
        return [self._timeline(each) for each in [*self._latest][-most:]]

    def slowest(self, most: int = 2 * SLOWEST) -> list[Timeline]:
        """The timelines of the slowest requests of the last minutes, slowest first."""
        self._turn_period(monotonic())
        found = sorted((*self._slowest, *self._slowest_before), reverse=True)
        return [self._timeline(over) for _, _, over in found[:most]]

    def failed(self, most: int = 4 * FAILED) -> list[Timeline]:
        """Of the requests that failed last, some of each kind, the latest first."""
        found = [over for same in self._failed.values() for over in same]
        found.sort(key=_ended, reverse=True)
        return [self._timeline(each) for each in found[:most]]

    def snapshot(self) -> Recorder:
        """What is kept now, for another thread."""
        kept = Recorder(self._engine)
        kept._latest = self._latest.copy()
        kept._failed = {code: same.copy() for code, same in self._failed.items()}
        kept._slowest, kept._slowest_before = [*self._slowest], [*self._slowest_before]
        kept._period_ends = self._period_ends
        return kept

    def find(self, text: str) -> Timeline | None:
        """Of the request that is kept with this data id; else of the latest with this log id or W3C
        trace id.
        """
        number = int(text) if text.isdecimal() and len(text) <= _MOST_DIGITS else None
        trace = text.encode()
        slowest = (over for _, _, over in (*self._slowest, *self._slowest_before))
        failed = (over for same in self._failed.values() for over in same)
        kept = sorted((*self._latest, *slowest, *failed), key=_ended, reverse=True)
        by_id = (over for over in kept if over[2] == number)
        by_caller = (over for over in kept if over[3] == number or over[4][_TRACE_ID] == trace)
        over = next(by_id, None) or next(by_caller, None)
        return None if over is None else self._timeline(over)

    def _keep(self, over: _Over) -> None:
        self._latest.append(over)
        code = over[10]
        if code is not None:
            self._failed.setdefault(code, deque(maxlen=FAILED)).append(over)
        ended = over[8]
        seconds = ended - over[5]
        if seconds > self._enough or ended > self._period_ends:
            self._turn_period(ended)
            heapq.heappush(self._slowest, (seconds, over[2], over))
            if len(self._slowest) > SLOWEST:
                heapq.heappop(self._slowest)
                self._enough = self._slowest[0][0]
        if self._listeners:
            self._tell(over)

    def _tell(self, over: _Over) -> None:
        timeline = self._timeline(over)
        for listener in [*self._listeners]:
            listener(timeline)

    def _turn_period(self, now: float) -> None:
        if now > self._period_ends:
            late = now > self._period_ends + PERIOD
            self._slowest_before = [] if late else self._slowest
            self._slowest = []
            self._enough = -1.0
            self._period_ends = now + PERIOD

    def _timeline(self, over: _Over) -> Timeline:
        *values, steps, left, text = over
        values[4] = values[4].decode("latin-1") if len(values[4]) == _TRACEPARENT else ""
        values[12] = values[12].decode("latin-1")
        ran = [
            Step(times[0], queued, attempt, BatchTimes(*times)) for queued, attempt, times in steps
        ]
        unfinished = [Step(op, queued, attempt, None) for op, queued, attempt in left]
        return Timeline(*[self._engine, *values, ran + unfinished, text])


def _ended(over: _Over) -> float:
    ended: float = over[8]
    return ended
