"""Stores timelines: of the latest requests, of those that failed, and of the slowest of the last
minutes.

The work per request is small: it fills plain lists, which are converted to Timelines on demand.
Belongs to the engine's loop.
"""

from __future__ import annotations

import heapq
import itertools
import logging
from collections import deque
from collections.abc import Callable, Sequence
from time import monotonic
from typing import Any, Final, TypeAlias

from penstock.caller import name_of
from penstock.errors import RequestError, text_of
from penstock.instrument import ExchangeInfo, Instrument, RequestInfo
from penstock.observe.callers import CANCELLED
from penstock.observe.counters import MANY, Counters
from penstock.observe.server_timing import field_of
from penstock.observe.timeline import GRPC, BatchTimes, Step, Timeline
from penstock.protocols.server_timing import ASKS, FIELD
from penstock.protocols.trace_context import TRACEPARENT, state_of
from penstock.request import Batch

KEPT: Final = 256
"""Number of timelines of the latest requests."""

SLOWEST: Final = 32
"""Number of timelines of the slowest requests of a period, for the current and the previous one."""

PERIOD: Final = 120.0
"""Seconds."""

FAILED: Final = 16
"""Timelines of the requests that failed last, of each code of errors: many failures of one kind
leave those of another."""

LISTED: Final = 512
"""Timelines of the requests that lists have shown last. They remain when newer ones replace them,
for 48 seconds if a list of 32 others is made every three seconds."""

"""The error code of cancelled requests."""

NO_ID: Final = -1
"""The data id of a request that was not admitted."""

_log: Final = logging.getLogger(__name__)

_MOST_PATH: Final = 200  # most bytes of a path; a guess
_MOST_TEXT: Final = 1000  # characters of an error's text; a guess
_TRACEPARENT: Final = 55  # bytes of version 00
_TRACE_ID: Final = slice(3, 35)  # of these
_MOST_DIGITS: Final = 19  # of a number of 64 bits

Listener: TypeAlias = Callable[[Timeline], object]


_Over: TypeAlias = list[Any]
"""The values of a Timeline, except for its engine: graph, route, data id, log id, the request's
head, whether it is a gRPC call, the four times, status, error code, steps, unfinished samples,
text, caller, the exception behind the error, and of an answer in pieces the time of the first one
and their number.

Steps are nested tuples, the last step first: when its sample was queued, its attempt, the values of
its BatchTimes, and the steps before.
"""

_DATA_ID: Final = 2
_LOG_ID: Final = 3
_HEAD: Final = 4
_BEGAN: Final = 6
_ENDED: Final = 9
_STATUS: Final = 10
_CODE: Final = 11


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
        counters: counts the batches and answers.
    """

    def __init__(self, engine: int = 0, counters: Counters | None = None) -> None:
        self._engine = engine
        self._counters = counters = counters or Counters()
        self._open_streams = counters.open_streams
        self._ops, self._requests = counters.ops, counters.requests
        self._callers = counters.callers
        self._batches = 0
        self._latest: deque[_Over] = deque(maxlen=KEPT)
        self._slowest: list[tuple[float, int, _Over]] = []  # a heap, with a number for equal times
        self._numbers = itertools.count()
        self._slowest_before: list[tuple[float, int, _Over]] = []
        self._failed: dict[str, deque[_Over]] = {}
        self._listed: dict[int, _Over] = {}  # by their identity, those listed last at the end
        self._enough = -1.0  # seconds beyond which a request is one of the slowest
        self._period_ends = 0.0
        self._listeners: list[Listener] = []

    # Events.

    def returned(
        self, op: str, batch: Batch, errors: int, now: float, given_up: bool = False
    ) -> None:
        """See Instrument."""
        found = self._ops[op]
        number = self._batches = self._batches + 1
        ids: list[int] = []
        times = (
            op, number, batch.worker, batch.reason._value_, batch.rows, ids, batch.closed,
            batch.began, batch.prepared, batch.processed, batch.ran, now, errors, given_up,
            batch.elements, batch.filled_in,
        )  # fmt: skip
        closed, waits = batch.closed, found.waits
        for sample in batch.samples:
            ids.append(sample.data_id)
            request, arrived = sample.flight, sample.arrived
            request.steps = (arrived, sample.attempt, times, request.steps)
            waits.append(closed - arrived)
        found.values.append(times)
        if errors and not given_up:
            found.events["errors"] += errors
        if len(waits) > MANY:
            found.count()

    def given_up(self, op: str, batch: Batch, now: float) -> None:
        """See Instrument."""
        self.returned(op, batch, len(batch.samples), now, True)

    def replied(
        self, request: RequestInfo, error: RequestError | None, now: float, gone: bool = False
    ) -> None:
        """See Instrument."""
        if request.copied:
            if not gone and request.data_id != NO_ID:
                self._counters.count_copy(request, error, now)
            return
        data_id = request.data_id
        left: Sequence[tuple[str, float, int]] = ()
        code, text, raised = (CANCELLED if gone else None), "", None
        if error is not None:
            code, text, raised = error.code, text_of(error)[:_MOST_TEXT], error.raised
        stream = None
        if self._open_streams:
            stream = self._counters.stream_ended(request, code, now)
        if data_id == NO_ID:
            admitted = now
        else:
            admitted = request.admitted_at
            if not gone:
                found = self._requests[request.graph.key]
                seconds = found.seconds
                seconds.append(now - admitted)
                if code is not None:
                    found.errors[code] += 1
                if len(seconds) > MANY:
                    found.count()
            if request.samples:
                stages = request.graph.stages
                left = [(stages[x.op].name, x.arrived, x.attempt) for x in request.samples]
        call = request.call
        try:
            exchange = call.exchange
        except AttributeError:  # it did not come over a connection
            if request.caller is not None:
                self._callers.count(name_of(request.caller), code, refused=data_id == NO_ID)
            self._keep([
                request.graph.label, "", data_id, request.log_id, None, False, admitted, admitted,
                now, now, 0, code, request.steps, left, text, request.caller, raised, stream,
            ])  # fmt: skip
            return
        if exchange.caller is not None:
            self._callers.count(name_of(exchange.caller), code, refused=data_id == NO_ID)
        over = [
            request.graph.label, call.label, data_id, request.log_id, exchange.head, call.is_grpc,
            exchange.began, admitted, now, now, 0, code, request.steps, left, text, exchange.caller,
            raised, stream,
        ]  # fmt: skip
        if gone or exchange.over:
            self._keep(over)
        else:
            exchange.record = over
            if ASKS in exchange.head.fields:
                exchange.added = (*exchange.added, (FIELD, field_of(self._timeline(over))))

    refused = replied

    def cancelled(self, request: RequestInfo, now: float) -> None:
        """See Instrument."""
        self.replied(request, None, now, True)

    def exchange_ended(self, exchange: ExchangeInfo, status: int, now: float) -> None:
        """See Instrument."""
        over = exchange.record
        if over is not None:
            exchange.record = None
            over[_ENDED] = now
            over[_STATUS] = status
            self._keep(over)
            return
        if exchange.refused and exchange.caller is not None:
            self._callers.count(name_of(exchange.caller), exchange.refused, refused=True)
        if self._listeners:
            head = exchange.head
            route = f"{head.method} {head.path[:_MOST_PATH].decode('latin-1')}"
            began = exchange.began
            self._notify([
                "", route, NO_ID, 0, head, False, began, now, now, now, status, None, None, (),
                "", exchange.caller, None, None,
            ])  # fmt: skip

    def so_far(self, exchange: ExchangeInfo) -> Timeline | None:
        """The timeline of a request whose outcome is known, but not sent yet; from any thread."""
        over = exchange.record
        return None if over is None else self._timeline([*over[:9], monotonic(), *over[10:]])

    # Timelines.

    def listen(self, listener: Listener) -> Callable[[], None]:
        """Call ``listener`` with each timeline from now on; returns a function that removes it.

        A request that reached no graph, such as a probe, also has a timeline, with NO_ID.
        """
        self._listeners.append(listener)
        return lambda: self._forget(listener)

    def _forget(self, listener: Listener) -> None:
        if listener in self._listeners:
            self._listeners.remove(listener)

    def latest(self, most: int = KEPT) -> list[Timeline]:
        """The timelines of the latest requests, in the order of their ends."""
        return [self._timeline(each) for each in [*self._latest][-most:]]

    def slowest(self, most: int = 2 * SLOWEST) -> list[Timeline]:
        """The timelines of the slowest requests of the last minutes, slowest first."""
        return [self._timeline(each) for each in self._slowest_of(most)]

    def failed(self, most: int = 4 * FAILED) -> list[Timeline]:
        """Timelines of the latest failed requests of each error code, latest first."""
        return [self._timeline(each) for each in self._failed_of(most)]

    def hold(self, most: int, failed: int) -> None:
        """Keep the requests of these lists, to find them when newer ones have replaced them.

        Args:
            most: the length of the lists of the latest and the slowest.
            failed: that of the list of failed requests.
        """
        for over in (*[*self._latest][-most:], *self._slowest_of(most), *self._failed_of(failed)):
            self._listed.pop(id(over), None)
            self._listed[id(over)] = over
        for oldest in [*self._listed][: max(0, len(self._listed) - LISTED)]:
            del self._listed[oldest]

    def _slowest_of(self, most: int) -> list[_Over]:
        self._turn_period(monotonic())
        found = sorted((*self._slowest, *self._slowest_before), reverse=True)
        return [over for _, _, over in found[:most]]

    def _failed_of(self, most: int) -> list[_Over]:
        found = [over for same in self._failed.values() for over in same]
        found.sort(key=_ended, reverse=True)
        return found[:most]

    def snapshot(self) -> Recorder:
        """A copy of the stored timelines, for another thread."""
        kept = Recorder(self._engine)
        kept._latest = self._latest.copy()
        kept._failed = {code: same.copy() for code, same in self._failed.items()}
        kept._slowest, kept._slowest_before = [*self._slowest], [*self._slowest_before]
        kept._period_ends = self._period_ends
        return kept

    def find(self, text: str) -> Timeline | None:
        """The stored timeline with this data id; else the latest with this log id or trace id."""
        number = int(text) if text.isdecimal() and len(text) <= _MOST_DIGITS else None
        slowest = (over for _, _, over in (*self._slowest, *self._slowest_before))
        failed = (over for same in self._failed.values() for over in same)
        stored = (*self._latest, *slowest, *failed, *self._listed.values())
        kept = sorted(stored, key=_ended, reverse=True)
        by_id = (x for x in kept if x[_DATA_ID] == number)
        by_caller = (x for x in kept if x[_LOG_ID] == number or _trace(x[_HEAD])[_TRACE_ID] == text)
        over = next(by_id, None) or next(by_caller, None)
        return None if over is None else self._timeline(over)

    def _keep(self, over: _Over) -> None:
        self._latest.append(over)
        ended, code = over[_ENDED], over[_CODE]
        if code is not None:
            self._failed.setdefault(code, deque(maxlen=FAILED)).append(over)
        seconds = ended - over[_BEGAN]
        if seconds > self._enough or ended > self._period_ends:
            self._turn_period(ended)
            heapq.heappush(self._slowest, (seconds, next(self._numbers), over))
            if len(self._slowest) > SLOWEST:
                heapq.heappop(self._slowest)
                self._enough = self._slowest[0][0]
        if self._listeners:
            self._notify(over)

    def _notify(self, over: _Over) -> None:
        timeline = self._timeline(over)
        for listener in [*self._listeners]:
            try:
                listener(timeline)
            except Exception:  # noqa: BLE001 - requests continue after any failure
                _log.exception("%r raised, and gets no more timelines", listener)
                self._forget(listener)

    def _turn_period(self, now: float) -> None:
        if now > self._period_ends:
            late = now > self._period_ends + PERIOD
            self._slowest_before = [] if late else self._slowest
            self._slowest = []
            self._enough = -1.0
            self._period_ends = now + PERIOD

    def _timeline(self, over: _Over) -> Timeline:
        (
            graph, route, data_id, log_id, head, is_grpc, began, admitted, replied, ended, status,
            code, steps, left, text, caller, raised, stream,
        ) = over  # fmt: skip
        method = state = ""
        trace = _trace(head)
        if head is not None:
            method = GRPC if is_grpc else head.method
            state = state_of(head).decode("latin-1") if head.fields.get(TRACEPARENT) else ""
        found = [Step(op, queued, attempt, None) for op, queued, attempt in reversed(left)]
        while steps is not None:
            queued, attempt, batch, steps = steps
            found.append(Step(batch[0], queued, attempt, BatchTimes(*batch)))
        first_piece, pieces = stream or (None, 0)
        return Timeline(
            self._engine, graph, route, data_id, log_id, trace, began, admitted, replied,
            ended, status, code, method, state, found[::-1], text, name_of(caller), raised,
            pieces, first_piece,
        )  # fmt: skip


def _ended(over: _Over) -> float:
    ended: float = over[_ENDED]
    return ended


def _trace(head: Any) -> str:
    """The ``traceparent`` of a request's head; empty for none, or one of another length."""
    if head is None:
        return ""
    found: str = head.fields.get(TRACEPARENT, b"").decode("latin-1")
    return found if len(found) == _TRACEPARENT else ""
