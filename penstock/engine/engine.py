"""The engine: admits requests, runs each through its graph, and answers each exactly once.

The only place that completes requests. It holds the graphs, and connects the pure parts (flight,
batcher, deadlines) with the stages. Time comes from a Clock, so that the whole engine also runs
with a virtual clock. Limits, ids and deadlines belong to the engine, queues and workers to a graph.

Guarantees:
    - an admitted request is answered exactly once, or cancelled by its caller; admitted = answered
      + cancelled when the engine is at rest;
    - nothing is dispatched past its deadline, and the answer comes within one tick after it;
    - capacity is bounded: a request beyond it is refused at once, before anything has started,
      unless it takes the place of a waiting one of a lower priority: of the newest of the lowest
      level, which is answered as busy;
    - late, double and unknown results are dropped and recorded, never raised;
    - a draining graph finishes its admitted requests, and those that were being decoded for it
      (``arriving``) and that its successor cannot take; it refuses new ones. Those for a held graph
      are admitted and wait for its successor, within their deadlines: at most half of the
      capacity, so that other graphs have the rest;
    - a request that names a version, or a label, runs in that version or is refused; one that names
      none is drawn by the weights of its name's versions, if there are any, or runs in the default
      version.

Thread: everything runs on one loop. Source: ``docs/compatibility.md`` (ids, deadlines, capacity).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, Protocol

from penstock.batching.queue_policy import QueuePolicy
from penstock.caller import Caller
from penstock.engine.clock import Clock
from penstock.engine.deadlines import Deadlines
from penstock.engine.draw import Draw
from penstock.engine.gathered import Gathered
from penstock.engine.graph import GraphState, GraphStatistics, OnAnswer, ServedGraph
from penstock.engine.promise import Promise
from penstock.engine.sizing import Pieces
from penstock.engine.stage import Stage
from penstock.engine.statistics import StageStatistics
from penstock.engine.submission import NO_ID, Submission
from penstock.engine.timer import Timer
from penstock.errors import (
    DeadlineExceeded,
    GraphError,
    InferenceFailed,
    InputMismatch,
    OpTimeout,
    RequestError,
    ServiceBusy,
    ServiceClosed,
    Unauthenticated,
    UnknownService,
    WrongType,
)
from penstock.executors.stream import Stream
from penstock.graph.dag import REQUEST
from penstock.graph.flight import Put
from penstock.instrument import Instrument, Instruments
from penstock.ops.callers import AsksCaller
from penstock.ops.failures import origin_of, where_late
from penstock.repository.served import Description, Served, Update
from penstock.request import REQUEST_OP_NAME, Feed, Outcome, Sample
from penstock.tensor import difference

_log = logging.getLogger(__name__)

IDS_WRAP = 10**18

ANY_NAME: Final = "*"

_OWN = Caller(name="penstock", how="key")
"""Who makes the service's own requests: examples."""

_MOST_REMOVED: Final = 256
"""Removed graphs that an engine remembers."""

_TAKES = frozenset((GraphState.SERVING, GraphState.ASIDE, GraphState.HELD))
"""The states in which a graph takes the requests that are submitted to it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOptions:
    """Limits of the engine.

    Attributes:
        max_requests: the most requests admitted at once; one more is refused.
        max_running: the most of them inside the graphs (``worker_num``); the others wait. None
            means no separate limit.
        time_limit: deadline of a request in seconds, unless its caller sets an earlier one.
        stream_limit: the same for a request whose answer comes in pieces, from its first piece on.
        levels: the number of priority levels.
        ageing: seconds by which each level goes behind the one above it, as in ``Lanes``.
        queue: how long requests may wait in the queue of each op, for each priority level; empty:
            as long as their deadlines allow.
        sticky: by what the requests for a name are drawn if its versions have weights: a header
            field, or ``draw.LOG_ID``; ``ANY_NAME`` for other names. Else they are drawn by chance.
        first_id, id_step: first data id, and the step between ids, so that they are unique among
            several engines.
    """

    max_requests: int = 1024
    max_running: int | None = None
    time_limit: float = 60.0
    stream_limit: float = 600.0
    levels: int = 1
    ageing: float = 0.0
    queue: tuple[QueuePolicy, ...] = ()
    sticky: Mapping[str, str] = field(default_factory=dict)
    first_id: int = 0
    id_step: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStatistics:
    """A snapshot for tests, logs and status pages."""

    admitted: int
    replied: int
    cancelled: int
    refused: int
    inside: int
    waiting: int
    draining: bool
    graphs: tuple[GraphStatistics, ...]

    @property
    def stages(self) -> tuple[StageStatistics, ...]:
        """Of all graphs, each once."""
        return tuple(stage for graph in self.graphs for stage in graph.stages)


class Versions(Protocol):
    """Changes the versions of graphs while they serve, in every engine of the service or in none.

    Changes of different names run side by side, those of one name one after the other.
    """

    def names(self) -> list[str | None]:
        """The known names, those without versions included."""

    def served(self, name: str | None) -> Served | None:
        """The state of a name, which this engine serves; None if it is not known."""

    async def change(self, name: str | None, update: Update, *, ended: bool = False) -> None:
        """Change what is served under a name; returns when all engines serve it.

        Args:
            name: of a graph; it may be new, if the service lets names come.
            update: makes the wanted state of the present one, without waiting. It is called again
                if another change of the name came first.
            ended: whether to return only when the versions that are served no more have ended, and
                their workers with them.

        Raises:
            StartupError: nothing has changed, with the reason.
        """

    async def swap(self, description: Description) -> None:
        """Serve a new version in place of all others of its name; see ``change``.

        Args:
            description: plain data with ``name`` and ``version``, texts, and what the service needs
                to make the version; see ``penstock.run``.

        Raises:
            StartupError: nothing has changed, with the reason.
        """


class Engine:
    """See the module. It has no graph until ``add``.

    Attributes:
        graphs: the serving and draining graphs, oldest first.
        aside: the graphs that are being made ready; they run the requests that are submitted to
            them (examples, warm-up), and callers do not find them.
        names: the default versions, which run the requests that name no version, by the names that
            requests use.
        epoch: changes when other names, or other default versions, are served.
        removed: names and versions of the graphs that were removed last, the latest at the end.
        missing: why names have no default version in this engine, though in others.
        capacity: the most requests admitted at once; see ``add_room``.
        versions: changes the versions of its graphs; None if they cannot change.
        level_of: the priority level of a request, 0 for the highest; raises RequestError if the
            request names none that it may have. None: all have the highest.
        permit: raises PermissionDenied for a request whose caller may not use its graph; None
            permits all.
        identify: returns who calls an open route, for an op that asks; may raise RequestError.
    """

    def __init__(
        self,
        clock: Clock,
        options: EngineOptions | None = None,
        instruments: Instruments | None = None,
    ) -> None:
        self.clock = clock
        self.options = options or EngineOptions()
        self.time_limit = self.options.time_limit
        self.queue_policies = self.options.queue
        self.instruments = instruments or Instruments()
        self.capacity = self.options.max_requests
        self.graphs: list[ServedGraph] = []
        self.aside: list[ServedGraph] = []
        self.epoch = 0
        self.removed: dict[tuple[str | None, str], None] = {}
        self.missing: dict[str | None, str] = {}
        self.versions: Versions | None = None
        self.level_of: Callable[[Submission], int] | None = None
        self.permit: Callable[[Submission], None] | None = None
        self.identify: Callable[[Submission], Caller | None] | None = None
        self.names: dict[str, ServedGraph] = {}
        self._named: dict[tuple[str | None, str], ServedGraph] = {}  # by name and version
        self._labels: dict[str | None, Mapping[str, ServedGraph]] = {}  # by name and label
        self._draws: dict[str | None, Draw] = {}
        self._unnamed: ServedGraph | None = None
        self._for_no_name: ServedGraph | None = None
        self._waiting: dict[Submission, None] = {}  # in order of arrival
        levels = self.options.levels
        # The same by priority level, if there are several.
        self._lanes: list[dict[Submission, None]] = [{} for _ in range(levels * (levels > 1))]
        self._starting = False
        self._next_id = self.options.first_id
        self._deadlines: Deadlines[Submission] = Deadlines(self._set_alarm)
        self._alarm = Timer(clock, self._expire)
        self._draining = False
        self._at_rest: list[tuple[ServedGraph | None, Callable[[], None]]] = []
        self._open = 0  # admitted requests that have not ended
        self._held = 0  # those of them that wait for the successor of a held graph
        self._arriving: set[object] = set()  # requests that are being decoded
        self._admitted = self._cancelled = self._refused = 0

    @property
    def stages(self) -> list[Stage]:
        """Of all graphs."""
        return [*dict.fromkeys(stage for graph in self.all_graphs for stage in graph.stages)]

    @property
    def all_graphs(self) -> list[ServedGraph]:
        """With those that are aside, which are last."""
        return [*self.graphs, *self.aside]

    def choose(
        self, name: str, version: str | None = None, call: Any = None, log_id: int = 0
    ) -> ServedGraph | None:
        """The graph for one request, or None; to be called once for each request.

        What only describes graphs calls ``graph``.

        Args:
            name: the name in the request; empty for the only graph.
            version: a version or a label, as the request names it; None: one is drawn by the
                weights, or the default version. A named version may be draining: then the request
                will be refused.
            call: the call from the door, for draws by a header field; None if there is none.
            log_id: the caller's, for draws by it; 0 if there is none.
        """
        if not self._draws or version is not None:
            return self.graph(name, version)
        graph = self.graph(name)
        draw = None if graph is None else self._draws.get(graph.name)
        return graph if draw is None else draw.graph(call, log_id)

    def graph(self, name: str, version: str | None = None) -> ServedGraph | None:
        """The graph of that name, for descriptions of it, or None; the arguments are those of
        ``choose``.
        """
        if version is None:
            return self.names.get(name, self._unnamed if name else self._for_no_name)
        return self._find(name, version)

    def no_graph(self, name: str, text: str) -> RequestError:
        """The error of a request for which there is no graph.

        Args:
            name: the name in the request.
            text: if nobody has it.
        """
        why = self.missing.get(name)
        return UnknownService(text) if why is None else ServiceClosed(f"{why}; try again later")

    def _find(self, name: str | None, text: str) -> ServedGraph | None:
        """The graph that a version or a label names."""
        found = self._named.get((name, text))
        return self._labels.get(name, {}).get(text) if found is None else found

    def serving(self, name: str | None) -> list[ServedGraph]:
        """The serving versions of a name, oldest first."""
        return [each for each in self.graphs if each.name == name and _serves(each)]

    def waiting(self, graph: ServedGraph) -> list[float]:
        """For how many seconds the open requests of a graph have been open, copies included."""
        now = self.clock.now()
        return [now - each.admitted_at for each in self._deadlines if each.graph is graph]

    def set_aside(self, graph: ServedGraph) -> None:
        """Include a graph that is being made ready in the statistics, and in a drain.

        Raises:
            GraphError: another graph that is aside has its name and version.
        """
        if any(each.key == graph.key for each in self.aside):
            raise _twice(graph)
        self.aside.append(graph)

    def add(self, graph: ServedGraph, *, default: bool = False, again: bool = False) -> None:
        """Start to serve a graph, whose workers are ready.

        Args:
            graph: new, or aside.
            default: whether it becomes the default version of its name. The first one becomes it in
                any case.
            again: whether it takes the place of another one of its name and version, which is to be
                drained.

        Raises:
            GraphError: another graph has its name and version, or it has served before.
        """
        old = self._named.get(graph.key)
        if old is not None and old.state is GraphState.SERVING and not again:
            raise _twice(graph)
        if graph not in self.aside:
            self.set_aside(graph)
        try:
            graph.become(GraphState.SERVING)
        finally:
            self.aside.remove(graph)
        self.graphs.append(graph)
        self._named[graph.key] = graph
        self.removed.pop(graph.key, None)
        present = self.default_of(graph.name)
        if default or present is None or present is old:
            self.make_default(graph)

    def make_default(self, graph: ServedGraph) -> None:
        """Let a serving graph run the requests that name no version.

        Raises:
            GraphError: it does not serve.
        """
        _check_serves(graph)
        self._set_default(graph.name, graph)

    def route(
        self,
        name: str | None,
        *,
        default: ServedGraph | None,
        labels: Mapping[str, ServedGraph] | None = None,
        weights: Mapping[ServedGraph, int] | None = None,
        sticky: str | None = None,
    ) -> None:
        """Let these graphs of a name, and no others, run its requests from now on.

        Args:
            name: of the graphs.
            default: runs the requests that name no version; None refuses them.
            labels: further texts by which requests name a version.
            weights: shares of the requests that name no version; none: all go to the default.
            sticky: by what they are drawn; None: as the options say.

        Raises:
            GraphError: one of them does not serve.
        """
        for graph in (*(labels or {}).values(), *(weights or {}), *([default] if default else [])):
            _check_serves(graph)
        self._set_default(name, default)
        self._labels.pop(name, None)
        if labels:
            self._labels[name] = dict(labels)
        self._draws.pop(name, None)
        if weights:
            usual = self.options.sticky
            field = sticky or usual.get(name or ANY_NAME, usual.get(ANY_NAME))
            self._draws[name] = Draw(name, weights, field)

    def drain_graph(self, graph: ServedGraph, at_rest: Callable[[], None]) -> None:
        """Let a graph finish its admitted requests; then call ``at_rest``, once.

        If it was the default version, requests that name no version are refused until there is
        another one.
        """
        graph.become(GraphState.DRAINING)
        if self.default_of(graph.name) is graph:
            self._set_default(graph.name, None)
        graph.drain_stages()
        graph.arriving = {*self._arriving}
        self._at_rest.append((graph, at_rest))
        self._go_on()

    @contextmanager
    def arriving(self) -> Iterator[None]:
        """While a request is decoded, in another turn of the loop than that in which its graph was
        chosen: the graph serves it also if it is drained meanwhile. To be submitted within.
        """
        request = object()
        self._arriving.add(request)
        try:
            yield
        finally:
            self._arriving.discard(request)
            for graph, _ in self._at_rest:
                if graph is not None:
                    graph.arriving.discard(request)
            if self._at_rest:
                self._go_on()

    def hold_graph(self, graph: ServedGraph, at_rest: Callable[[], None]) -> None:
        """Let a graph finish its admitted requests, while further ones wait; then call ``at_rest``,
        once. Its workers may end then. ``release_graph`` ends the wait.
        """
        graph.become(GraphState.HELD)
        graph.drain_stages()
        self._at_rest.append((graph, at_rest))
        self._go_on()

    def release_graph(self, graph: ServedGraph) -> None:
        """Let the graphs that serve in place of a held one run what has waited for it. Requests
        that may not run there, or for which there is none, are refused.
        """
        graph.become(GraphState.DRAINING)
        if self.default_of(graph.name) is graph:
            self._set_default(graph.name, None)
        while graph.waiting:
            submission = next(iter(graph.waiting))
            taker = self._taker(submission)
            if isinstance(taker, RequestError):
                self._reply(submission, Outcome(None, taker))
                continue
            self._held_no_more(submission)
            graph.inside -= 1
            taker.inside += 1
            submission.graph, submission.plan = taker, taker.plan
            self._waiting[submission] = None
            if self._lanes:
                self._lanes[submission.level][submission] = None
        self._go_on()

    def _hold(self, submission: Submission) -> None:
        """Let an admitted request wait for the successor of its graph."""
        submission.graph.waiting[submission] = None
        self._held += 1

    def _held_no_more(self, submission: Submission) -> None:
        if submission in submission.graph.waiting:
            del submission.graph.waiting[submission]
            self._held -= 1

    def remove(self, graph: ServedGraph) -> None:
        """Remove a drained graph, or one that is aside. The caller closes its workers.

        Raises:
            GraphError: it is serving, or has not finished.
        """
        if graph.inside:
            raise GraphError(f"graph {graph} has {graph.inside} requests inside")
        graph.become(GraphState.REMOVED)
        (self.aside if graph in self.aside else self.graphs).remove(graph)
        successor = self._named.get(graph.key)
        if successor is graph:
            del self._named[graph.key]
        elif successor is not None:
            successor.count_also(graph)
        if graph.key not in self._named:
            self.removed.pop(graph.key, None)
            self.removed[graph.key] = None
            if len(self.removed) > _MOST_REMOVED:
                del self.removed[next(iter(self.removed))]

    def replace(
        self, graph: ServedGraph, at_rest: Callable[[ServedGraph], None]
    ) -> list[ServedGraph]:
        """Start to serve a graph as the default version, and drain all others of its name.

        Args:
            graph: the new version; its workers are ready.
            at_rest: called with each old graph when it has finished.

        Returns:
            the old graphs.
        """
        old = [each for each in self.graphs if each.name == graph.name and _serves(each)]
        self.add(graph, default=True)
        for each in old:
            self.drain_graph(each, partial(at_rest, each))
        return old

    def statistics(self) -> EngineStatistics:
        """A snapshot of the engine's state."""
        return EngineStatistics(
            admitted=self._admitted,
            replied=self._admitted - self._cancelled - self._open,
            cancelled=self._cancelled,
            refused=self._refused,
            inside=self._running,
            waiting=len(self._waiting),
            draining=self._draining,
            graphs=tuple(graph.statistics() for graph in self.all_graphs),
        )

    @property
    def _running(self) -> int:
        """The number of requests that are inside the graphs."""
        return self._open - len(self._waiting) - self._held

    def why_stuck(self) -> str | None:
        """Why requests that name no version cannot be answered now, for probes; None if they can,
        or if they wait for a version that is to come.
        """
        if self.missing:
            return next(iter(self.missing.values()))
        for graph in self._defaults():
            if graph.state is GraphState.HELD:
                continue
            why = graph.why_stuck()
            if why is not None:
                return why
        return None

    def submit(self, submission: Submission, on_answer: OnAnswer) -> None:
        """Admit a request; ``on_answer`` is called exactly once, later, unless it is cancelled.

        Raises:
            ServiceBusy: at capacity; a later retry may succeed.
            ServiceClosed: draining; a retry elsewhere may succeed.
            DeadlineExceeded: its deadline has already passed.
        """
        now = self.clock.now()
        options = self.options
        graph = submission.graph
        if self.level_of is not None:
            self._set_level(self.level_of, submission, now)
        if self.permit is not None:  # before others make room for it
            self._ask(self.permit, submission, now)
        if (
            self._draining
            or self._open >= self.capacity
            or submission.deadline <= now
            or graph.guarded
        ):
            self._refuse(submission, now)
            if submission.over:  # the end of a request of a lower level has ended this one as well
                return
            graph = submission.graph
            if graph.watch is not None:
                on_answer = graph.watch(submission, on_answer)
        data_id = submission.data_id = self._next_id
        next_id = data_id + options.id_step
        self._next_id = next_id if next_id < IDS_WRAP else options.first_id
        submission.on_answer = on_answer
        submission.samples = []
        graph.inside += 1
        self._open += 1
        self._admitted += 1
        submission.admitted_at = now
        notify = self.instruments.admitted
        if notify is not None:
            notify(submission, now)
        submission.due = self._deadlines.add(submission, submission.deadline)
        most = options.max_running
        if graph.guarded and graph.state is GraphState.HELD:
            self._hold(submission)
        elif most is not None and (self._waiting or self._running > most):
            self._waiting[submission] = None
            if self._lanes:
                self._lanes[submission.level][submission] = None
        else:
            self._start(submission, now)

    @property
    def is_full(self) -> bool:
        """Whether callers' requests are refused, or wait to be started."""
        return self._draining or self._open >= self.capacity or bool(self._waiting)

    def add_room(self, submission: Submission) -> None:
        """Make room for a request beside ``max_requests``, before it starts, until it ends: warm-up
        requests are not refused under load, and take no room of callers' requests.
        """
        self.capacity += 1
        submission.at_end(self._take_room_back)

    def _take_room_back(self) -> None:
        self.capacity -= 1

    def cancel(self, submission: Submission) -> None:
        """Cancel a request whose caller has disconnected: drop queued work, end running calls if
        possible, send no answer.

        A request that was not submitted yet will not be admitted.
        """
        if submission.over:
            return
        if submission.data_id == NO_ID:
            submission.over = True
            submission.run_endings()
            return
        self._cancelled += 1
        if self.instruments.cancelled is not None:
            self.instruments.cancelled(submission, self.clock.now())
        self._finish(submission)
        self._go_on()

    def complete(self, submission: Submission) -> None:
        """Answer a request whose answer comes in pieces before its op ends; no further piece is
        wanted.
        """
        self._reply(submission, Outcome({}))

    def drain(self, at_rest: Callable[[], None]) -> None:
        """Refuse new requests and finish the admitted ones; then call ``at_rest``, once."""
        self._draining = True
        for graph in self.all_graphs:
            graph.drain_stages(engine=True)
        self._at_rest.append((None, at_rest))
        self._go_on()

    def close(self) -> None:
        """Answer all remaining requests with ServiceClosed, now."""
        self._draining = True
        for submission in sorted(self._deadlines, key=lambda each: each.data_id):
            error = ServiceClosed("dag closed.")
            error.admitted = True
            self._reply(submission, Outcome(None, error))
        self._alarm.cancel()

    def settle(self, sample: Sample, outcome: Outcome) -> None:
        """Process an op's outcome of a sample. Called by its stage; outcomes of ended requests are
        ignored.
        """
        if sample.gone:
            return
        submission: Submission = sample.flight
        if submission.graph.streams:
            self._end_stream(sample)
            if submission.over:
                return
        sample.gone = True
        submission.samples.remove(sample)
        error = outcome.error
        if error is not None:
            if isinstance(error, OpTimeout):
                if self._try_again(submission, sample):
                    return
            elif isinstance(error, ServiceBusy):
                if not error.of_queue or _has_begun(submission, sample):
                    error.after_begin()
            elif isinstance(error, DeadlineExceeded) and submission.deadline <= self.clock.now():
                _log_late(submission, submission.graph.stages[sample.op].name, str(error))
        if sample.piece is not None:
            whole = self._collect(sample, outcome)
            if whole is None:
                return
            outcome = whole
        attempt = submission.attempt
        answer = submission.arrived(sample.op, outcome)
        if isinstance(answer, Outcome):
            if submission.graph.streams:
                if answer.error is None and not submission.graph.stages[sample.op].streams:
                    answer = self._in_one_piece(submission, answer)
                answer = submission.whole(answer)
            elif submission.graph.promise is not None and answer.error is None:
                answer = _as_promised(submission.graph.promise, submission, answer)
            self._reply(submission, answer)
            return
        if submission.samples and submission.attempt != attempt:
            self._forget_samples(submission)
        if answer:
            self._put(submission, answer, self.clock.now())

    def _pieces(self, sample: Sample) -> None:
        """Pass on the pieces of a stream that have arrived."""
        stream: Stream = sample.stream
        pieces = stream.take()
        if sample.gone or not pieces:
            return
        submission: Submission = sample.flight
        if submission.stream is None:
            self._begin_stream(submission, sample)
        wants_more = _delivered(submission, pieces)
        if submission.over:
            return
        if isinstance(wants_more, RequestError):
            self._reply(submission, Outcome(None, wants_more))
        elif wants_more:
            stream.credit()

    @staticmethod
    def _in_one_piece(submission: Submission, answer: Outcome) -> Outcome:
        """Another op has jumped over the last one, which streams: its result is the only piece."""
        submission.stream, submission.gathered = None, Gathered()
        delivered = _delivered(submission, [answer.value or {}])
        return Outcome(None, delivered) if isinstance(delivered, RequestError) else answer

    def _begin_stream(self, submission: Submission, sample: Sample) -> None:
        """The first piece is there: from now on nothing of the request runs again."""
        submission.stream = sample.stream
        submission.attempt = submission.plan.attempts
        sample.spare = None
        others = [each for each in submission.samples if each is not sample]
        if others:  # of ops for whose results the last one has not waited
            submission.samples = [sample]
            self._drop(submission, others)
        limit, own = self.clock.now() + self.options.stream_limit, submission.own_deadline
        by_client = own is not None and own < limit
        if by_client or not submission.deadline_by_client or limit < submission.deadline:
            submission.deadline_by_client = by_client
            submission.due.pop(submission, None)
            submission.deadline = own if own is not None and own < limit else limit
            submission.due = self._deadlines.add(submission, submission.deadline)
        if self.instruments.stream_begun is not None:
            self.instruments.stream_begun(submission, self.clock.now())

    def _end_stream(self, sample: Sample) -> None:
        """The outcome of a sample is there: pass on the last pieces, if its op streams."""
        submission: Submission = sample.flight
        if submission.graph.stages[sample.op].streams:
            self._pieces(sample)
            sample.stream.cancel()

    def _collect(self, sample: Sample, outcome: Outcome) -> Outcome | None:
        """Process the outcome of a piece; returns that of the whole sample, if known."""
        pieces, index = sample.piece
        whole: Outcome | None = pieces.take(index, outcome)
        if whole is not None:
            submission: Submission = sample.flight
            left = [each for each in submission.samples if each.piece and each.piece[0] is pieces]
            for each in left:
                submission.samples.remove(each)
            self._drop(submission, left)
        return whole

    def _defaults(self) -> list[ServedGraph]:
        return [*self.names.values(), *([] if self._unnamed is None else [self._unnamed])]

    def default_of(self, name: str | None) -> ServedGraph | None:
        """The default version of a graph's name; None if there is none."""
        return self._unnamed if name is None else self.names.get(name)

    def _set_default(self, name: str | None, graph: ServedGraph | None) -> None:
        if name is None:
            self._unnamed = graph
        elif graph is None:
            self.names.pop(name, None)
        else:
            self.names[name] = graph
        self.epoch += 1
        only = next(iter(self.names.values())) if len(self.names) == 1 else None
        self._for_no_name = self._unnamed or only

    def _refuse(self, submission: Submission, now: float) -> None:
        """Raise the reason of a refusal, if any."""
        if self._lanes:
            self._make_room(submission, now)
        refusal = self._refusal(submission, now)
        if refusal is not None:
            self._count_refusal(submission, refusal, now)
            raise refusal

    def _count_refusal(self, submission: Submission, refusal: RequestError, now: float) -> None:
        self._refused += 1
        if self.instruments.refused is not None:
            self.instruments.refused(submission, refusal, now)

    def _set_level(
        self, level_of: Callable[[Submission], int], submission: Submission, now: float
    ) -> None:
        try:
            submission.level = level_of(submission)
        except RequestError as refusal:
            self._count_refusal(submission, refusal, now)
            raise

    def _ask(
        self, permit: Callable[[Submission], None], submission: Submission, now: float
    ) -> None:
        try:
            permit(submission)
        except RequestError as refusal:
            self._count_refusal(submission, refusal, now)
            raise

    def _make_room(self, submission: Submission, now: float) -> None:
        """End requests of lower levels whose places a new one needs."""
        graph = self._taker(submission)
        if self._draining or submission.deadline <= now or isinstance(graph, RequestError):
            return
        level = submission.level
        while True:  # what has waited outside may take a place in a queue meanwhile
            full = next((stage for stage in graph.bounded if stage.batcher.full), None)
            if full is not None:
                found = self._shed(level, [full])
            elif self._open >= self.capacity:
                found = self._shed(level, self.stages, self._lanes)
            else:
                return
            if not found:
                return

    def _shed(
        self, level: int, stages: Sequence[Stage], lanes: Sequence[dict[Submission, None]] = ()
    ) -> bool:
        """End the newest waiting request of the lowest level, if that is below ``level``.

        Args:
            level: of the request that needs a place.
            stages: where requests wait.
            lanes: requests outside of the graphs.

        Returns:
            whether one has ended; its callback may have submitted or cancelled others.
        """
        samples = [stage.batcher.newest_below(level) for stage in stages]
        found: list[Submission] = [each.flight for each in samples if each is not None]
        found += [next(reversed(lane)) for lane in lanes[level + 1 :] if lane]
        if not found:
            return False
        last = max(found, key=lambda each: (each.level, each.admitted_at))
        text = "a request of a higher priority took its place; try again later"
        error = ServiceBusy(text)
        if last.samples and _has_begun(last):
            error.after_begin()
        self._reply(last, Outcome(None, error))
        return True

    def _refusal(self, submission: Submission, now: float) -> RequestError | None:
        if self._draining:
            return ServiceClosed("the service is shutting down")
        if self._open >= self.capacity:
            return ServiceBusy("the service is at capacity; try again later")
        if submission.deadline <= now:
            return self._too_late(submission.deadline_by_client)
        graph = self._taker(submission)
        if isinstance(graph, RequestError):
            return graph
        if graph.state is GraphState.HELD and self._held >= self.capacity // 2:
            return ServiceBusy(f"graph {graph} is being replaced; try again later")
        submission.graph = graph
        submission.plan = graph.plan
        for stage in graph.bounded:
            if stage.batcher.full:
                return ServiceBusy(f"op {stage.name!r} is at capacity; try again later")
        return None

    def _taker(self, submission: Submission) -> ServedGraph | RequestError:
        """The graph that takes a request: its own, or the one that serves what it asked for by
        now, if it may run there; or the error of a request that none takes.
        """
        graph, asked = submission.graph, submission.asked
        if graph.state in _TAKES:
            return graph
        if asked is None:
            successor = self.default_of(graph.name)
        else:
            successor = self._find(graph.name, asked)
        why = None
        if successor is not None and successor.state is GraphState.SERVING:
            why = _why_not(graph, successor)
            if why is None:
                return successor
        if graph.arriving:
            return graph
        if successor is None or why is None:
            return ServiceClosed(f"graph {graph} serves no more requests")
        return InputMismatch(
            f"version {successor.version} has taken the place of version {graph.version} before"
            f" this request began, and has another signature: {why}"
        )

    def _start(self, submission: Submission, now: float) -> None:
        # The ops own it now; it is freed when they drop it.
        feed, submission.feed = submission.feed, {}
        promise = submission.graph.promise
        if promise is not None:
            submission.sizes = promise.sizes_of(feed)
        straight = submission.plan.straight
        if straight is None:
            self._put(submission, submission.begin(feed), now)
        else:
            self._offer(submission, straight, {REQUEST_OP_NAME: feed}, now)

    def _put(self, submission: Submission, puts: Sequence[Put], now: float) -> None:
        """Offer ready samples to their ops."""
        for op, inputs in puts:
            if submission.over:  # a full queue has just ended it
                return
            self._offer(submission, op, inputs, now)

    def _offer(
        self,
        submission: Submission,
        op: int,
        inputs: dict[str, Feed],
        now: float,
        attempt: int = 1,
        piece: tuple[Pieces, int] | None = None,
    ) -> None:
        """Offer a sample with these inputs to an op. A full queue is an op's outcome."""
        stage = submission.graph.stages[op]
        if self._lanes and stage.batcher.full:
            self._shed(submission.level, [stage])
            if submission.over:  # by the callback of the other one
                return
        sample = Sample(
            submission.data_id,
            inputs,
            submission.deadline,
            submission.log_id,
            op,
            submission,
            attempt,
        )
        sample.piece = piece
        sample.level = submission.level
        if stage.streams:
            sample.stream = Stream(partial(self._pieces, sample))
            submission.stream, submission.gathered = None, Gathered()
        if stage.sizing is not None and stage.sizing.measure(sample) and piece is None:
            pieces = stage.sizing.split(inputs)
            if pieces is not None:
                self._offer_pieces(submission, op, pieces, now)
                return
        if attempt < stage.options.retry:
            # A call that has timed out may still change its input dicts.
            sample.spare = {name: dict(feed) for name, feed in inputs.items()}
        submission.samples.append(sample)
        try:
            if stage.asks_caller is not None:
                sample.caller = self._caller_of(submission, stage.asks_caller)
            stage.offer(sample, now)
        except RequestError as busy:
            self.settle(sample, Outcome(None, busy))

    def _caller_of(self, submission: Submission, asks: AsksCaller) -> Caller | None:
        """Who makes a request, for an op that asks.

        Raises:
            Unauthenticated: the op needs it, and the request does not say.
        """
        caller = submission.caller
        if isinstance(caller, Caller):
            return caller
        if submission.call is None:
            return _OWN if asks == "required" else None
        found = None if self.identify is None else self.identify(submission)
        if found is None and asks == "required":
            raise Unauthenticated("this needs to know who calls: send a key or a token")
        return found

    def _offer_pieces(self, submission: Submission, op: int, pieces: Pieces, now: float) -> None:
        """Offer a sample in pieces, until one is refused."""
        for index, inputs in enumerate(pieces.inputs):
            if pieces.ended or submission.over:
                return
            self._offer(submission, op, inputs, now, piece=(pieces, index))

    def _try_again(self, submission: Submission, sample: Sample) -> bool:
        """After a timeout, start the op's next attempt; returns whether one was left."""
        if sample.spare is None:
            return False
        attempt = sample.attempt + 1
        self._offer(submission, sample.op, sample.spare, self.clock.now(), attempt, sample.piece)
        return True

    def _reply(self, submission: Submission, outcome: Outcome) -> None:
        if submission.over:  # another request, or its callback, has ended this one as well
            return
        error = outcome.error
        if (
            error is not None
            and submission.deadline_by_client
            and isinstance(error, DeadlineExceeded)
        ):
            # An op, or another server that it calls, cannot know whose deadline passed.
            error = DeadlineExceeded(str(error), by_client=True)
            outcome = Outcome(None, error)
        notify = self.instruments.replied
        if notify is not None:
            notify(submission, error, self.clock.now())
        # ``_finish``, inlined.
        submission.over = True
        self._open -= 1
        submission.graph.inside -= 1
        submission.due.pop(submission, None)
        if submission.samples or self._waiting or self._held:
            self._forget(submission)
        try:
            submission.on_answer(submission, outcome)
        except Exception:  # noqa: BLE001 - the engine continues after a bug of a protocol
            _log.exception("a reply could not be delivered (data_id=%s)", submission.data_id)
        if submission.endings is not None:
            submission.run_endings()
        if self._waiting or self._at_rest:
            self._go_on()

    def _finish(self, submission: Submission) -> None:
        """Remove the request, and its samples in queues."""
        submission.over = True
        self._open -= 1
        submission.graph.inside -= 1
        submission.due.pop(submission, None)
        self._forget(submission)
        submission.run_endings()

    def _forget(self, submission: Submission) -> None:
        self._forget_samples(submission)
        self._waiting.pop(submission, None)
        if self._lanes:
            self._lanes[submission.level].pop(submission, None)
        if self._held:
            self._held_no_more(submission)

    def _go_on(self) -> None:
        """After an answer was delivered: start a waiting request, or report that the engine is at
        rest.
        """
        if self._waiting and not self._starting:
            self._start_waiting()
        if self._at_rest:
            ready = [(graph, notify) for graph, notify in self._at_rest if self._rests(graph)]
            for each in ready:
                self._at_rest.remove(each)
            for _, notify in ready:
                notify()

    def _rests(self, graph: ServedGraph | None) -> bool:
        """Whether a graph has no requests; None for all graphs."""
        if graph is None:
            return not self._open
        return not graph.arriving and graph.inside == len(graph.waiting)

    def _forget_samples(self, submission: Submission) -> None:
        """Drop queued samples; running ones are ended, or their outcomes ignored."""
        self._drop(submission, submission.samples)

    @staticmethod
    def _drop(submission: Submission, samples: list[Sample]) -> None:
        stages = submission.graph.stages
        for sample in samples:
            sample.gone = True
            stage = stages[sample.op]
            if stage.streams:
                sample.stream.cancel()
            if sample.waiting:
                stage.cancel(sample)
            else:
                stage.sample_gone()
        samples.clear()

    def _start_waiting(self) -> None:
        """Start the first requests, in order of arrival and ageing, up to the limit."""
        most = self.options.max_running
        self._starting = True
        try:
            while self._waiting and (most is None or self._running < most):
                submission = self._first_waiting() if self._lanes else next(iter(self._waiting))
                del self._waiting[submission]
                if self._lanes:
                    del self._lanes[submission.level][submission]
                self._start(submission, self.clock.now())
        finally:
            self._starting = False

    def _first_waiting(self) -> Submission:
        ageing = self.options.ageing
        heads = [next(iter(lane)) for lane in self._lanes if lane]
        return min(heads, key=lambda each: each.admitted_at + each.level * ageing)

    def _set_alarm(self) -> None:
        due = self._deadlines.next_due()
        if due is not None:
            self._alarm.at(due)

    def _expire(self) -> None:
        """Answer all requests whose deadline has passed."""
        for submission in self._deadlines.expire(self.clock.now()):
            if submission.over:  # the end of another request has ended this one as well
                continue
            late = self._too_late(submission.deadline_by_client)
            stages = submission.graph.stages
            ops, did = where_late((stages[each.op].name, each) for each in submission.samples)
            _log_late(submission, ops, f"{late} while it {did}")
            self._reply(submission, Outcome(None, late))
        self._set_alarm()

    @staticmethod
    def _too_late(by_client: bool) -> DeadlineExceeded:
        return DeadlineExceeded("the request's deadline passed", by_client=by_client)


def _has_begun(submission: Submission, refused: Sample | None = None) -> bool:
    """Whether an op may have run for a request, as far as is known: of several first ops, another
    may run before the refusal of one is the answer.

    Args:
        submission: the request, with the samples that are left.
        refused: one that the queue of its op has just refused.
    """
    plan = submission.plan
    first = [op for op in plan.entry if plan.inputs[op] == (REQUEST,)]
    waiting = [each for each in submission.samples if each.waiting]
    if refused is not None:
        waiting.append(refused)
    new = [each.op for each in waiting if each.attempt == 1 and each.piece is None]
    return submission.attempt > 1 or len(first) > 1 or new != first


def _as_promised(promise: Promise, submission: Submission, outcome: Outcome) -> Outcome:
    """The outcome, checked against what its graph declares."""
    try:
        return Outcome(promise.kept(outcome.value or {}, submission.sizes))
    except WrongType as error:
        _log_broken(submission, error)
        return Outcome(None, error)


def _delivered(submission: Submission, pieces: list[Feed]) -> bool | RequestError:
    """Pass on pieces; returns whether the next ones may come, or the error that ends the
    request.
    """
    promise = submission.graph.promise
    broken = None
    if promise is not None:
        kept = []
        try:
            for piece in pieces:  # sizes of outputs may differ between them
                kept.append(promise.kept(piece, {**submission.sizes}))
        except WrongType as error:
            broken = error
        pieces = kept
    try:
        wants_more = not pieces or submission.pieces(pieces)
    except RequestError as error:
        return error
    except Exception:  # noqa: BLE001 - the engine continues after a bug of a protocol
        _log.exception("a piece could not be delivered (data_id=%s)", submission.data_id)
        return InferenceFailed("internal error")
    if broken is None or submission.over:
        return wants_more
    _log_broken(submission, broken)
    return broken


def _log_broken(submission: Submission, error: WrongType) -> None:
    """Log that a result is not as its graph declares."""
    ids = submission.data_id, submission.log_id
    _log.warning("%s (data_id=%s log_id=%s)", error, *ids, extra=origin_of(submission.call))


def _log_late(submission: Submission, op: str, how: str) -> None:
    """Log that a request's deadline has passed, unless its caller set it."""
    if not submission.deadline_by_client:
        ids, members = (submission.data_id, submission.log_id), origin_of(submission.call)
        _log.warning("op %s: %s (data_id=%s log_id=%s)", op, how, *ids, extra=members)


def log_dropped(instrument: Instrument, error: Exception) -> None:
    """For Instruments: log that an instrument is disabled."""
    _log.error("instrument %r raised and is dropped", instrument, exc_info=error)


def _why_not(graph: ServedGraph, successor: ServedGraph) -> str | None:
    """Why requests that were decoded for one graph cannot run in another one; None if they can."""
    # Their inputs were checked against the signature, and their callers expect pieces or a whole.
    if successor.streams != graph.streams:
        return "its answers come in pieces" if successor.streams else "its answers are in one piece"
    if graph.signature is None:
        return None if successor.signature is None else "it declares its inputs"
    return difference(graph.signature, successor.signature)


def _twice(graph: ServedGraph) -> GraphError:
    return GraphError(f"there are two graphs {graph}: give each a name of its own")


def _check_serves(graph: ServedGraph) -> None:
    if not _serves(graph):
        raise GraphError(f"graph {graph} is {graph.state.value} and cannot be the default")


def _serves(graph: ServedGraph) -> bool:
    return graph.state is GraphState.SERVING
