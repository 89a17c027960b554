"""Records the events of clients and an engine, and checks them afterwards.

A client records ``Invoke`` before it sends a request, ``Piece`` for each piece of its answer if it
has any, and exactly one of ``Ok``, ``Refused``, ``Failed`` and ``Info`` at its end
(``ClientHistory`` is thread-safe); on the server's side a
``Recorder`` is one of the engine's instruments. An op with seats records the calls of its methods
in a ``SeatHistory``. ``check`` compares the lists, so that simulation, fault tests, soak tests and
benchmarks use the same rules:

    - every request ends exactly once, and its answer has its nonce;
    - the pieces of an answer are its first ones, without a gap and in order; if it ended well they
      are all of them, and there are none after its end;
    - admitted = replied + cancelled, and nothing happens to a request that has ended;
    - no op gets a request more often than its retries allow, nor past the request's deadline;
    - an op never has more running Works than workers, abandoned ones included;
    - in an engine with several graphs, no op gets a request of another graph, and answers and
      failures are counted for each graph;
    - a worker with seats never has more requests that have joined than seats; a request runs in
      steps between its ``join`` and its ``leave`` only, once in each, and gives its seat back
      exactly once, before the worker reports its end; they join in the order of asking, and no seat
      is free beside one who waits, unless one that has joined does not fit yet.

Cost: 200,000 requests take about 150 MB, and under a second to check.
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
    """A client is about to send a request with its own ``id``; ``nonce`` is the expected answer.

    ``graph`` is the name of the called graph; None if it does not matter. ``pieces`` is their
    number in a whole answer; None for an answer without pieces.
    """

    id: int
    nonce: object
    t: float
    deadline: float | None = None
    graph: str | None = None
    pieces: int | None = None


class Piece(NamedTuple):
    """A piece of the answer had this number, from 0 on, and this nonce."""

    id: int
    number: int
    nonce: object
    t: float


class Ok(NamedTuple):
    """The answer had this nonce."""

    id: int
    nonce: object
    t: float


class Refused(NamedTuple):
    """The server did not admit the request; a retry would be a new request."""

    id: int
    code: object
    t: float


class Failed(NamedTuple):
    """The answer was an error."""

    id: int
    code: object
    t: float


class Info(NamedTuple):
    """The outcome is unknown: the client left, its connection broke, or its timeout passed."""

    id: int
    reason: str
    t: float


ClientEvent: TypeAlias = Invoke | Piece | Ok | Refused | Failed | Info


class Admitted(NamedTuple):
    """The engine admitted a request under an id."""

    data_id: int
    log_id: int
    t: float
    graph: str | None = None


class NotAdmitted(NamedTuple):
    """The engine did not admit a request."""

    code: str
    t: float


class Dispatched(NamedTuple):
    """A batch was dispatched; ``batch`` is its number, which stays if it is dispatched again.

    ``deadline`` is the earliest of its samples. Batches of one Work have the same ``t``.
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
    """A batch returned."""

    op: str
    batch: int
    errors: int
    t: float


class Late(NamedTuple):
    """An abandoned batch returned."""

    op: str
    data_ids: tuple[int, ...]
    t: float


class Replied(NamedTuple):
    """A request was answered; ``code`` is None for success."""

    data_id: int
    code: str | None
    t: float


class Cancelled(NamedTuple):
    """The caller left before the answer."""

    data_id: int
    t: float


ServerEvent: TypeAlias = (
    Admitted | NotAdmitted | Dispatched | TakenBack | Returned | Late | Replied | Cancelled
)


class Asked(NamedTuple):
    """A worker of an op with seats was given a request, which waits to join.

    ``request`` identifies one run of a request, ``worker`` one object with ``join`` and ``step``
    among those of its op. This and ``Released`` are known only to who sees the worker's requests.
    """

    op: str
    worker: int
    request: object
    t: float


class Joined(NamedTuple):
    """``join`` has returned for a request."""

    op: str
    worker: int
    request: object
    t: float


class Stepped(NamedTuple):
    """``step`` was called with the states of these requests."""

    op: str
    worker: int
    requests: tuple[object, ...]
    t: float


class Left(NamedTuple):
    """``leave`` was called for a request."""

    op: str
    worker: int
    request: object
    t: float


class Released(NamedTuple):
    """A worker has reported the end of a request, whether or not that had joined."""

    op: str
    worker: int
    request: object
    t: float


class WorkerEnded(NamedTuple):
    """A worker has died, and all that had joined with it; its index may have a new one."""

    op: str
    worker: int
    t: float


SeatEvent: TypeAlias = Asked | Joined | Stepped | Left | Released | WorkerEnded


class ClientHistory:
    """The list of client events. Thread-safe; times are monotonic seconds."""

    def __init__(self) -> None:
        self.events: list[ClientEvent] = []  # appending is atomic

    def invoke(
        self,
        id: int,
        nonce: object,
        t: float,
        deadline: float | None = None,
        graph: str | None = None,
        pieces: int | None = None,
    ) -> None:
        """Record a request, before it is sent."""
        self.events.append(Invoke(id, nonce, t, deadline, graph, pieces))

    def piece(self, id: int, number: int, nonce: object, t: float) -> None:
        """Record a piece of the answer with its number and nonce."""
        self.events.append(Piece(id, number, nonce, t))

    def ok(self, id: int, nonce: object, t: float) -> None:
        """Record a good answer with its nonce."""
        self.events.append(Ok(id, nonce, t))

    def refused(self, id: int, code: object, t: float) -> None:
        """Record that the server did not admit the request."""
        self.events.append(Refused(id, code, t))

    def failed(self, id: int, code: object, t: float) -> None:
        """Record an error answer."""
        self.events.append(Failed(id, code, t))

    def info(self, id: int, reason: str, t: float) -> None:
        """Record that the outcome stays unknown: the client or its connection is gone."""
        self.events.append(Info(id, reason, t))


class SeatHistory:
    """The list of events of ops with seats. Thread-safe; times are monotonic seconds."""

    def __init__(self) -> None:
        self.events: list[SeatEvent] = []  # appending is atomic

    def asked(self, op: str, worker: int, request: object, t: float) -> None:
        """See Asked."""
        self.events.append(Asked(op, worker, request, t))

    def joined(self, op: str, worker: int, request: object, t: float) -> None:
        """See Joined."""
        self.events.append(Joined(op, worker, request, t))

    def stepped(self, op: str, worker: int, requests: Iterable[object], t: float) -> None:
        """See Stepped."""
        self.events.append(Stepped(op, worker, (*requests,), t))

    def left(self, op: str, worker: int, request: object, t: float) -> None:
        """See Left."""
        self.events.append(Left(op, worker, request, t))

    def released(self, op: str, worker: int, request: object, t: float) -> None:
        """See Released."""
        self.events.append(Released(op, worker, request, t))

    def worker_ended(self, op: str, worker: int, t: float) -> None:
        """See WorkerEnded."""
        self.events.append(WorkerEnded(op, worker, t))


class Recorder(Instrument):
    """The list of server events: an instrument that records the events of one engine."""

    def __init__(self) -> None:
        self.events: list[ServerEvent] = []
        # Holds references to dispatched batches, so that no new batch can have the same identity.
        self._numbers: dict[Batch, int] = {}
        self._next_number = 0

    def admitted(self, request: RequestInfo, now: float) -> None:
        """See Admitted."""
        self.events.append(Admitted(request.data_id, request.log_id, now, request.graph.name))

    def refused(self, request: RequestInfo, error: RequestError, now: float) -> None:
        """See NotAdmitted."""
        self.events.append(NotAdmitted(error.code, now))

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
"""Violations reported in full for each rule; the others are only counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The limits of a correct history; None, and ops that are not named, are not checked.

    Attributes:
        workers: op -> maximum number of running Works.
        dispatches: op -> maximum dispatches of one request: the op's attempts times the graph's.
        grace: seconds that an answer may arrive after the deadline in ``Invoke``.
        failures: maximum number of failed requests, such as batch size times kills; or a maximum
            for each named graph.
        seats: op -> the seats of each of its workers.
    """

    workers: Mapping[str, int] = field(default_factory=dict)
    dispatches: Mapping[str, int] = field(default_factory=dict)
    grace: float | None = None
    failures: int | Mapping[str, int] | None = None
    seats: Mapping[str, int] = field(default_factory=dict)


def check(
    client_events: Iterable[ClientEvent],
    server_events: Iterable[ServerEvent] | None = None,
    limits: Limits | None = None,
    seat_events: Iterable[SeatEvent] = (),
) -> list[str]:
    """Return the violations of a finished history as sentences.

    Args:
        client_events: the events of all clients. Those of one request must be in order.
        server_events: the events of one engine's Recorder, from its start until it is idle; None if
            they are not available.
        limits: see Limits.
        seat_events: the events of ops with seats. Those of one worker must be in order, and all
            that have joined must have left, or their worker must have ended.
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
    seats = _Seats(found, limits)
    seats.read(seat_events)
    return found.sentences()


class _Violations:
    """Collects sentences by rule, only a few for each rule."""

    def __init__(self) -> None:
        self._sentences: dict[str, list[str]] = {}
        self._more: Counter[str] = Counter()

    def add(self, rule: str, sentence: str) -> None:
        sentences = self._sentences.setdefault(rule, [])
        if len(sentences) < MOST_OF_A_KIND:
            sentences.append(sentence)
        else:
            self._more[rule] += 1

    def sentences(self) -> list[str]:
        lines: list[str] = []
        for rule, sentences in self._sentences.items():
            lines += sentences
            if self._more[rule]:
                lines.append(f"... and {self._more[rule]} more like it: {rule}")
        return lines


class _Clients:
    """Checks that each request has one completion, and the right one."""

    def __init__(self, found: _Violations, limits: Limits) -> None:
        self._found = found
        self._limits = limits
        self._open: dict[int, Invoke] = {}
        self._pieces: Counter[int] = Counter()  # of requests that have not ended
        self._ended: dict[int, str] = {}
        self._failures: Counter[str | None] = Counter()
        self.good: Counter[str | None] = Counter()

    def read(self, events: Iterable[ClientEvent]) -> None:
        for event in events:
            if isinstance(event, Invoke):
                if event.id in self._open or event.id in self._ended:
                    self._found.add("sent twice", f"request {event.id} was sent twice")
                self._open[event.id] = event
            elif isinstance(event, Piece):
                self._take_piece(event)
            else:
                self._complete(event)
        for invoked in self._open.values():
            self._found.add(
                "no completion", f"request {invoked.id}, sent at {invoked.t:.6f}, never ended"
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

    def _take_piece(self, event: Piece) -> None:
        number, invoked = event.number, self._open.get(event.id)
        what = f"request {event.id} got piece {number}"
        if invoked is None:
            before = self._ended.get(event.id)
            story = "but was never sent" if before is None else f"after it ended with {before}"
            self._found.add("piece after the end", f"{what} {story}")
            return
        wanted = self._pieces[event.id]
        self._pieces[event.id] += 1
        if number != wanted:
            self._found.add("gap between pieces", f"{what} where {wanted} was next")
        elif number >= (invoked.pieces or 0):
            self._found.add("too many pieces", f"{what} of {invoked.pieces or 0}")
        if event.nonce != invoked.nonce:
            self._found.add("swapped piece", f"{what} of {event.nonce!r}, not {invoked.nonce!r}")

    def _check_pieces(self, event: ClientEvent, invoked: Invoke) -> None:
        """Check the number of pieces at the end of an answer."""
        got = self._pieces.pop(event.id, 0)
        if type(event) is Ok and got < (invoked.pieces or 0):
            text = f"request {event.id} ended well after {got} of {invoked.pieces} pieces"
            self._found.add("missing pieces", text)
        elif type(event) is Refused and got:
            self._found.add("refused late", f"request {event.id} was refused after {got} pieces")

    def _complete(self, event: Ok | Refused | Failed | Info) -> None:
        kind = type(event).__name__.lower()
        invoked = self._open.pop(event.id, None)
        if invoked is None:
            before = self._ended.get(event.id)
            story = "but was never sent" if before is None else f"after it ended with {before}"
            self._found.add("double completion", f"request {event.id} ended with {kind} {story}")
            return
        self._ended[event.id] = kind
        self._check_pieces(event, invoked)
        self._failures[invoked.graph] += type(event) is Failed
        if type(event) is Ok:
            self.good[invoked.graph] += 1
            if event.nonce != invoked.nonce:
                self._found.add(
                    "swapped answer",
                    f"request {event.id} sent {invoked.nonce!r} and got {event.nonce!r} back",
                )
        grace = self._limits.grace
        if grace is not None and invoked.deadline is not None and type(event) is not Info:
            over = event.t - max(invoked.deadline, invoked.t)
            if over > grace:
                self._found.add(
                    "late answer",
                    f"request {event.id} ended with {kind} {over:.3f} s past its deadline",
                )


_Out: TypeAlias = tuple[tuple[int, ...], float | None]


class _Server:
    """Checks that every admitted request ends once, and its dispatches, deadlines and workers."""

    def __init__(self, found: _Violations, limits: Limits) -> None:
        self._found = found
        self._limits = limits
        self._inside: dict[int, dict[str, int]] = {}  # data id -> op -> number of its batches
        self._ended: dict[int, str] = {}
        self._graphs: dict[int, str | None] = {}
        # op -> dispatched batches -> (their ids, time of dispatch; None once their Work has ended
        # without them)
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
            elif not isinstance(event, NotAdmitted):
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
        """Forget the dispatch: the batch did not run, and its samples may be batched anew."""
        data_ids, _ = self._out.get(event.op, {}).pop(event.batch, ((), None))
        for data_id in data_ids:
            counts = self._inside.get(data_id)
            if counts is not None:
                counts[event.op] -= 1

    def _count_running(self, op: str, out: dict[int, _Out], t: float) -> None:
        # Batches of one Work have the same dispatch time, those of two Works on a real clock never
        # do; so this counts Works, or on a manual clock fewer.
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
        # A duplicate report looks the same, so the batch found here may still return.
        out = self._out.get(event.op, {})
        for batch, (data_ids, _) in out.items():
            if data_ids == event.data_ids:
                self._work_ended(out, batch)
                self._late.add(batch)
                return

    @staticmethod
    def _work_ended(out: dict[int, _Out], batch: int) -> None:
        """A Work reports all its batches at once, except those that were taken back from it."""
        _, moment = out.pop(batch)
        if moment is not None:
            for other, (data_ids, theirs) in out.items():
                if theirs == moment:
                    out[other] = (data_ids, None)


class _Worker:
    """What one worker with seats has at a moment."""

    def __init__(self) -> None:
        self.waiting: dict[object, None] = {}  # have asked and not joined, in this order
        self.joined: set[object] = set()
        self.fitting: set[object] = set()  # those of them that have run in no step


class _Seats:
    """Checks who joins, runs and leaves."""

    def __init__(self, found: _Violations, limits: Limits) -> None:
        self._found = found
        self._limits = limits
        self._workers: dict[tuple[str, int], _Worker] = {}

    def read(self, events: Iterable[SeatEvent]) -> None:
        for event in events:
            key = event.op, event.worker
            worker = self._workers.setdefault(key, _Worker())
            who = f"op {event.op!r}, worker {event.worker}"
            if isinstance(event, Stepped):
                self._step(event, worker, who)
            elif isinstance(event, Joined):
                self._join(event, worker, who)
            elif isinstance(event, Left):
                self._leave(event, worker, who)
            elif isinstance(event, Asked):
                worker.waiting[event.request] = None
            elif isinstance(event, Released):
                self._release(event, worker, who)
            elif isinstance(event, WorkerEnded):
                del self._workers[key]
            else:
                assert_never(event)
        for (op, number), worker in self._workers.items():
            for request in worker.joined:
                text = f"op {op!r}, worker {number}: request {request} never left"
                self._found.add("seat not given back", text)

    def _join(self, event: Joined, worker: _Worker, who: str) -> None:
        request = event.request
        if request in worker.joined:
            self._found.add("joined twice", f"{who}: request {request} joined twice")
        first = next(iter(worker.waiting), request)
        if first != request:
            text = f"{who}: request {request} joined before {first}, which had asked before it"
            self._found.add("overtaken", text)
        worker.waiting.pop(request, None)
        worker.joined.add(request)
        worker.fitting.add(request)
        seats = self._limits.seats.get(event.op)
        if seats is not None and len(worker.joined) > seats:
            text = f"{who}: {len(worker.joined)} requests have joined where {seats} seats are"
            self._found.add("too many joined", text)

    def _step(self, event: Stepped, worker: _Worker, who: str) -> None:
        requests = event.requests
        if len({*requests}) < len(requests):
            self._found.add("twice in a step", f"{who}: a step ran {requests}, one of them twice")
        for request in requests:
            if request not in worker.joined:
                text = f"{who}: request {request} ran in a step, but has not joined, or has left"
                self._found.add("unwanted step", text)
        worker.fitting.difference_update(requests)
        seats, taken = self._limits.seats.get(event.op), len(worker.joined)
        if seats is not None and worker.waiting and taken < seats and not worker.fitting:
            text = f"{who}: {taken} of {seats} seats are taken, and {[*worker.waiting]} wait"
            self._found.add("idle seat", text)

    def _leave(self, event: Left, worker: _Worker, who: str) -> None:
        request = event.request
        if request not in worker.joined:
            text = f"{who}: request {request} left, but has not joined, or has left before"
            self._found.add("left twice", text)
        worker.joined.discard(request)
        worker.fitting.discard(request)

    def _release(self, event: Released, worker: _Worker, who: str) -> None:
        if event.request in worker.joined:
            text = f"{who}: request {event.request} has ended and still has its seat"
            self._found.add("seat not given back in time", text)
        worker.waiting.pop(event.request, None)
