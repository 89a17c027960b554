"""Records the events of clients and an engine, and checks them afterwards.

The client side writes ``Invoke`` before it asks and exactly one of ``Ok``, ``Refused``, ``Failed``
and ``Info`` afterwards (``ClientHistory`` does it from any thread); the server side is a
``Recorder`` among the engine's instruments. ``check`` is a function over the two lists, so that the
simulation, the fault tests, a soak and a benchmark are all judged by the same rules:

    - every request ends exactly once, and an answer is the answer to that request (nonces);
    - admitted = replied + cancelled, and nothing happens to a request that has ended;
    - no op gets a request more often than its retries allow, nor past the request's deadline;
    - at no moment more Works run than the op has workers, given-up ones included;
    - where an engine has several graphs, no op gets a request of another graph than its own, and
      each graph's answers and failures are counted by themselves.

Cost: 200,000 requests take about 150 MB to remember and under a second to judge.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias, assert_never

from penstock.errors import RequestError
from penstock.instrument import Instrument, RequestInfo
from penstock.request import Batch


class Invoke(NamedTuple):
    """A client is about to ask; ``id`` is its own number, ``nonce`` what it expects back.

    ``graph`` is the name of the graph that it asks; None where it does not matter which.
    """

    id: int
    nonce: object
    t: float
    deadline: float | None = None
    graph: str | None = None


class Ok(NamedTuple):
    """The answer carried this nonce."""

    id: int
    nonce: object
    t: float


class Refused(NamedTuple):
    """The server took nothing on; a later retry would be a new request."""

    id: int
    code: object
    t: float


class Failed(NamedTuple):
    """The answer was an error."""

    id: int
    code: object
    t: float


class Info(NamedTuple):
    """The client does not know: it left, its connection broke, or its own patience ended."""

    id: int
    reason: str
    t: float


ClientEvent: TypeAlias = Invoke | Ok | Refused | Failed | Info


class Admitted(NamedTuple):
    """The engine gave a request its id."""

    data_id: int
    log_id: int
    t: float
    graph: str | None = None


class TurnedAway(NamedTuple):
    """The engine refused a request at the entrance."""

    code: str
    t: float


class Dispatched(NamedTuple):
    """A batch was handed over; ``batch`` is its number, the same when it is handed over again.

    ``deadline`` is the earliest of its samples'. Batches of one Work have the same ``t``.
    """

    op: str
    batch: int
    data_ids: tuple[int, ...]
    attempt: int
    deadline: float
    t: float


class TakenBack(NamedTuple):
    """A batch that had not begun was taken back from its worker."""

    op: str
    batch: int
    t: float


class Returned(NamedTuple):
    """A batch came back."""

    op: str
    batch: int
    errors: int
    t: float


class Late(NamedTuple):
    """A batch that had been given up came back."""

    op: str
    data_ids: tuple[int, ...]
    t: float


class Replied(NamedTuple):
    """A request was answered; ``code`` is None for success."""

    data_id: int
    code: str | None
    t: float


class Cancelled(NamedTuple):
    """The caller went away first."""

    data_id: int
    t: float


ServerEvent: TypeAlias = (
    Admitted | TurnedAway | Dispatched | TakenBack | Returned | Late | Replied | Cancelled
)


class ClientHistory:
    """The client side's list. Every method may be called from any thread; times are monotonic."""

    def __init__(self) -> None:
        self.events: list[ClientEvent] = []  # appending is atomic

    def invoke(
        self,
        id: int,
        nonce: object,
        t: float,
        deadline: float | None = None,
        graph: str | None = None,
    ) -> None:
        """Write this before the request is sent."""
        self.events.append(Invoke(id, nonce, t, deadline, graph))

    def ok(self, id: int, nonce: object, t: float) -> None:
        """A good answer, and the nonce in it."""
        self.events.append(Ok(id, nonce, t))

    def refused(self, id: int, code: object, t: float) -> None:
        """The server said that it did not start."""
        self.events.append(Refused(id, code, t))

    def failed(self, id: int, code: object, t: float) -> None:
        """An error for an answer."""
        self.events.append(Failed(id, code, t))

    def info(self, id: int, reason: str, t: float) -> None:
        """No answer will be known: the client left, or its connection did."""
        self.events.append(Info(id, reason, t))


class Recorder(Instrument):
    """The server side's list: an instrument that writes down what one engine tells it."""

    def __init__(self) -> None:
        self.events: list[ServerEvent] = []
        # Holds the batches that are out, so that no new one can be mistaken for them.
        self._numbers: dict[Batch, int] = {}
        self._next_number = 0

    def admitted(self, request: RequestInfo, now: float) -> None:
        """See Admitted."""
        self.events.append(Admitted(request.data_id, request.log_id, now, request.graph.name))

    def refused(self, request: RequestInfo, error: RequestError, now: float) -> None:
        """See TurnedAway."""
        self.events.append(TurnedAway(error.code, now))

    def dispatched(self, op: str, batch: Batch, now: float) -> None:
        """See Dispatched."""
        number = self._numbers.get(batch)
        if number is None:
            number = self._numbers[batch] = self._next_number
            self._next_number += 1
        samples = batch.samples
        ids = tuple([sample.data_id for sample in samples])
        deadline = min([sample.deadline for sample in samples])
        self.events.append(Dispatched(op, number, ids, batch.attempt, deadline, now))

    def taken_back(self, op: str, batch: Batch, now: float) -> None:
        """See TakenBack."""
        self.events.append(TakenBack(op, self._numbers.get(batch, -1), now))

    def returned(self, op: str, batch: Batch, errors: int, now: float) -> None:
        """See Returned."""
        self.events.append(Returned(op, self._numbers.pop(batch, -1), errors, now))

    def late(self, op: str, batch: Batch, now: float) -> None:
        """See Late."""
        self.events.append(Late(op, tuple(batch.data_ids), now))

    def replied(self, request: RequestInfo, error: RequestError | None, now: float) -> None:
        """See Replied."""
        self.events.append(Replied(request.data_id, None if error is None else error.code, now))

    def cancelled(self, request: RequestInfo, now: float) -> None:
        """See Cancelled."""
        self.events.append(Cancelled(request.data_id, now))


MOST_OF_A_KIND = 10
"""Violations told in full for each rule; of the others only the number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a good history keeps to; what is None, or an op that is not named, is not judged.

    Attributes:
        workers: op -> how many Works may run at once.
        dispatches: op -> how often one request may reach it in batches of its own: the op's
            attempts times the graph's.
        grace: seconds that an answer may come after the deadline its client gave to ``Invoke``.
        failures: the most requests that may fail, such as batch size times kills; or so many of
            each graph that is named.
    """

    workers: Mapping[str, int] = field(default_factory=dict)
    dispatches: Mapping[str, int] = field(default_factory=dict)
    grace: float | None = None
    failures: int | Mapping[str, int] | None = None


def check(
    client_events: Iterable[ClientEvent],
    server_events: Iterable[ServerEvent] | None = None,
    limits: Limits | None = None,
) -> list[str]:
    """What is wrong with a finished history, as sentences; an empty list when nothing is.

    Args:
        client_events: what all clients wrote. Those of one request must be in order.
        server_events: what one engine's Recorder wrote, from its start until it came to rest; None
            when the server cannot be asked.
        limits: see Limits.
    """
    limits = limits or Limits()
    found = _Violations()
    clients = _Clients(found, limits)
    clients.read(client_events)
    if server_events is not None:
        server = _Server(found, limits)
        server.read(server_events)
        counts = [("", clients.good.total(), server.good.total())]
        counts += [(f" of {g}", clients.good[g], server.good[g]) for g in clients.good if g]
        for graph, seen, given in counts:
            if seen > given:
                found.add(
                    "answers from nowhere",
                    f"clients saw {seen} good answers{graph}, the server gave {given}",
                )
    return found.sentences()


class _Violations:
    """Sentences by rule; a rule broken a thousand times must not fill the screen."""

    def __init__(self) -> None:
        self._sentences: dict[str, list[str]] = {}
        self._more: Counter[str] = Counter()

    def add(self, rule: str, sentence: str) -> None:
        told = self._sentences.setdefault(rule, [])
        if len(told) < MOST_OF_A_KIND:
            told.append(sentence)
        else:
            self._more[rule] += 1

    def sentences(self) -> list[str]:
        lines: list[str] = []
        for rule, told in self._sentences.items():
            lines += told
            if self._more[rule]:
                lines.append(f"... and {self._more[rule]} more like it: {rule}")
        return lines


class _Clients:
    """One completion for each request, and the right one."""

    def __init__(self, found: _Violations, limits: Limits) -> None:
        self._found = found
        self._limits = limits
        self._open: dict[int, Invoke] = {}
        self._ended: dict[int, str] = {}
        self._failures: Counter[str | None] = Counter()
        self.good: Counter[str | None] = Counter()

    def read(self, events: Iterable[ClientEvent]) -> None:
        for event in events:
            if type(event) is Invoke:
                if event.id in self._open or event.id in self._ended:
                    self._found.add("asked twice", f"request {event.id} was asked twice")
                self._open[event.id] = event
                continue
            self._complete(event)
        for asked in self._open.values():
            self._found.add(
                "no completion", f"request {asked.id}, asked at {asked.t:.6f}, never ended"
            )
        most = self._limits.failures
        if isinstance(most, int):
            self._judge_failures("", self._failures.total(), most)
        elif most is not None:
            for graph, count in most.items():
                self._judge_failures(f" of {graph}", self._failures[graph], count)

    def _judge_failures(self, graph: str, failed: int, most: int) -> None:
        if failed > most:
            self._found.add("failures", f"{failed} requests{graph} failed where {most} may")

    def _complete(self, event: ClientEvent) -> None:
        kind = type(event).__name__.lower()
        asked = self._open.pop(event.id, None)
        if asked is None:
            before = self._ended.get(event.id)
            story = "but was never asked" if before is None else f"after it ended with {before}"
            self._found.add("double completion", f"request {event.id} ended with {kind} {story}")
            return
        self._ended[event.id] = kind
        self._failures[asked.graph] += type(event) is Failed
        if type(event) is Ok:
            self.good[asked.graph] += 1
            if event.nonce != asked.nonce:
                self._found.add(
                    "swapped answer",
                    f"request {event.id} sent {asked.nonce!r} and got {event.nonce!r} back",
                )
        grace = self._limits.grace
        if grace is not None and asked.deadline is not None and type(event) is not Info:
            over = event.t - max(asked.deadline, asked.t)
            if over > grace:
                self._found.add(
                    "late answer",
                    f"request {event.id} ended with {kind} {over:.3f} s past its deadline",
                )


_Out: TypeAlias = tuple[tuple[int, ...], float | None]


class _Server:
    """Every admitted request ends once; dispatches, deadlines and workers in between."""

    def __init__(self, found: _Violations, limits: Limits) -> None:
        self._found = found
        self._limits = limits
        self._inside: dict[int, dict[str, int]] = {}  # data id -> op -> batches it was in
        self._ended: dict[int, str] = {}
        self._graphs: dict[int, str | None] = {}
        # op -> batches that are out -> (their ids, when they were handed over; None once their
        # Work has ended without them)
        self._out: dict[str, dict[int, _Out]] = {}
        self._late: set[int] = set()
        self._back: set[int] = set()
        self.good: Counter[str | None] = Counter()

    def read(self, events: Iterable[ServerEvent]) -> None:
        for event in events:
            if isinstance(event, Dispatched):
                self._dispatched(event)
            elif isinstance(event, Returned):
                self._returned(event)
            elif isinstance(event, Replied):
                self.good[self._graphs.get(event.data_id)] += event.code is None
                self._ends(event.data_id, "replied to")
            elif isinstance(event, Admitted):
                self._admitted(event)
            elif isinstance(event, Cancelled):
                self._ends(event.data_id, "cancelled")
            elif isinstance(event, Late):
                self._late_batch(event)
            elif isinstance(event, TakenBack):
                self._taken_back(event)
            elif not isinstance(event, TurnedAway):
                assert_never(event)
        for data_id in self._inside:
            self._found.add(
                "lost", f"data id {data_id} was admitted but neither replied to nor cancelled"
            )

    def _admitted(self, event: Admitted) -> None:
        if event.data_id in self._inside or event.data_id in self._ended:
            self._found.add("double id", f"data id {event.data_id} was given twice")
        self._inside[event.data_id] = {}
        self._graphs[event.data_id] = event.graph

    def _ends(self, data_id: int, how: str) -> None:
        if self._inside.pop(data_id, None) is None:
            before = self._ended.get(data_id)
            story = "but was never admitted" if before is None else f"after it was {before}"
            self._found.add("double end", f"data id {data_id} was {how} {story}")
        self._ended[data_id] = how

    def _dispatched(self, event: Dispatched) -> None:
        op, batch, data_ids, _, deadline, t = event
        out = self._out.setdefault(op, {})
        again = batch in out or batch in self._late
        self._late.discard(batch)
        if batch in self._back:
            self._found.add("batch run twice", f"op {op!r} got batch {batch} after it had returned")
        if deadline <= t:
            self._found.add(
                "dispatched too late",
                f"op {op!r} got data ids {list(data_ids)} {t - deadline:.3f} s past a deadline",
            )
        most = self._limits.dispatches.get(op)
        of_graph, several, _ = op.rpartition("/")
        for data_id in data_ids:
            counts = self._inside.get(data_id)
            if counts is None:
                story = self._ended.get(data_id, "never admitted")
                self._found.add(
                    "unwanted dispatch", f"op {op!r} got data id {data_id}, which was {story}"
                )
            elif several and (self._graphs[data_id] or "*") != of_graph:
                self._found.add(
                    "another graph's request",
                    f"op {op!r} got data id {data_id}, which asks {self._graphs[data_id]}",
                )
            elif not again:
                counts[op] = times = counts.get(op, 0) + 1
                if most is not None and times > most:
                    self._found.add(
                        "too many attempts",
                        f"op {op!r} got data id {data_id} {times} times where {most} are allowed",
                    )
        out[batch] = (data_ids, t)
        self._count_running(op, out, t)

    def _taken_back(self, event: TakenBack) -> None:
        """It did not run there; and its members may be handed over again in other company."""
        data_ids, _ = self._out.get(event.op, {}).pop(event.batch, ((), None))
        for data_id in data_ids:
            counts = self._inside.get(data_id)
            if counts is not None:
                counts[event.op] -= 1

    def _count_running(self, op: str, out: dict[int, _Out], t: float) -> None:
        # The batches of one Work have the moment of their hand-over in common, those of two Works
        # on a real clock never do; so this counts Works, or on a manual clock fewer.
        workers = self._limits.workers.get(op)
        if workers is not None and len(out) > workers:
            works = len({moment for _, moment in out.values()} - {None})
            if works > workers:
                self._found.add(
                    "too many running",
                    f"op {op!r} ran {works} Works at {t:.6f} where it has {workers} workers",
                )

    def _returned(self, event: Returned) -> None:
        op, batch, _, _ = event
        out = self._out.get(op, {})
        if batch in out:
            self._work_ended(out, batch)
        elif batch in self._late:
            self._late.remove(batch)
        else:
            self._found.add("unknown batch", f"op {op!r} returned batch {batch}, which was not out")
        self._back.add(batch)

    def _late_batch(self, event: Late) -> None:
        # A report that came twice looks the same, so the batch found here may yet return.
        out = self._out.get(event.op, {})
        for batch, (data_ids, _) in out.items():
            if data_ids == event.data_ids:
                self._work_ended(out, batch)
                self._late.add(batch)
                return

    @staticmethod
    def _work_ended(out: dict[int, _Out], batch: int) -> None:
        """A Work reports all that it ran at once; what was taken back from it runs no more."""
        _, moment = out.pop(batch)
        if moment is not None:
            for other, (data_ids, theirs) in out.items():
                if theirs == moment:
                    out[other] = (data_ids, None)
