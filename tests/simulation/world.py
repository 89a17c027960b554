"""A simulated world around a real engine: virtual time, fake workers, fake clients, one seed.

Graph, flight, batcher, deadlines, stage and engine are the real ones. Drawn from the seed are one
or two graphs and their later versions, every option, the clients' requests and cancellations, and
the workers' outcomes (``tests.simulation.graphs``). The order of events is chosen by
``tests.simulation.simulate``. Violations are added to ``problems`` at once, because the engine
rightly survives a reply that raises."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import count
from random import Random

from penstock.batching.queue_policy import QueuePolicy
from penstock.engine.engine import Engine, EngineOptions
from penstock.engine.graph import GraphState, ServedGraph
from penstock.engine.stage import Stage
from penstock.engine.submission import Submission
from penstock.errors import DeadlineExceeded, KillsWorkers, RequestError, ServiceBusy, WorkerDied
from penstock.executors.executor import Finished, Result, Work
from penstock.executors.stream import MOST_PIECES
from penstock.instrument import Instrument, Instruments, RequestInfo
from penstock.request import Batch, Feed, Outcome, Sample
from penstock.testing.clock import ManualClock
from penstock.testing.history import ClientHistory, Invoke, Recorder, SeatHistory
from tests.simulation.graphs import RandomGraph
from tests.simulation.processes import ProcessWorkers
from tests.simulation.streams import Gatherer, Reader, pieces_of
from tests.simulation.workers import RunningWork

NEARLY = 1e-6
"""Seconds; virtual time is a sum of floats."""

_MOST_GRAPHS = 6
"""The number of versions of all graphs."""


class Client:
    """One request from its client's view; equal requests have the same nonce."""

    __slots__ = ("deadline", "event", "has_begun", "nonce", "number", "open", "reads", "submission")
    __slots__ += ("unread",)

    def __init__(self, number: int, nonce: int, deadline: float) -> None:
        self.number = number
        self.nonce = nonce
        self.deadline = deadline
        self.event = 0  # the index of its Invoke in the history
        self.unread = 0  # pieces that came while it did not read
        self.reads, self.has_begun = True, False
        self.submission: Submission | None = None
        self.open = True

    def is_in(self, graph: ServedGraph) -> bool:
        """Whether the request is in that graph."""
        return self.submission is not None and self.submission.graph is graph


class Priorities(Instrument):
    """Checks the order of requests of several priority levels, and who is shed."""

    def __init__(self, world: World) -> None:
        self._world = world

    def batch_closed(self, op: str, batch: Batch, now: float) -> None:
        """No waiting sample is overtaken, but by one of a higher level while it is young."""
        ageing = self._world.engine.options.ageing
        for stage, left in self._world.waiting():
            if stage.name != op or left.deadline <= now:
                continue
            for taken in batch.samples:
                if left.late or taken.late:
                    if taken.late and taken.level == left.level and not left.late:
                        self._world.problems.append(f"{op}: {taken} is late and overtakes {left}")
                    continue
                head_start = (left.level - taken.level) * ageing
                if taken.arrived > left.arrived + head_start + NEARLY:
                    self._world.problems.append(f"{op}: {taken} overtakes {left}")

    def replied(self, request: RequestInfo, error: RequestError | None, now: float) -> None:
        """A request that makes room for another one is the newest of the lowest level."""
        if error is None or "took its place" not in str(error):
            return
        assert isinstance(request, Submission)
        mine = [sample for sample in request.samples if sample.waiting]
        if request.level == 0 or (request.samples and not mine):
            self._world.problems.append(f"{request.data_id} of level {request.level} is shed")
        if mine and not any(self._is_last(sample) for sample in mine):
            self._world.problems.append(f"{mine} are shed before others")

    def _is_last(self, shed: Sample) -> bool:
        stage = shed.flight.graph.stages[shed.op]
        there = [
            (s.level, s.late, s.arrived) for where, s in self._world.waiting() if where is stage
        ]
        return (shed.level, shed.late, shed.arrived) == max(there)


class World:
    """The whole state of one seed, and the actions of clients, workers and operators."""

    def __init__(self, seed: int) -> None:
        self.random = random = Random(seed)
        self.clock = ManualClock()
        self.recorder = Recorder()
        self.history = ClientHistory()
        self.seats = SeatHistory()
        self.seat_numbers = count()
        self.problems: list[str] = []
        self.calls: list[RunningWork] = []
        self.reported: list[tuple[Work, Finished, list[Result]]] = []
        self.open: dict[int, Client] = {}
        self.prepared: list[tuple[Client, Submission]] = []  # made, but not submitted yet
        self.requests_sent = 0
        self.refused = 0
        self.errors = random.choice((0.0, 0.05, 0.3))
        self.slowness = random.choice((0.0, 0.05, 0.5))
        self.mischief = random.choice((0.0, 0.0, 0.1, 0.4))
        self.poison = random.choice((0.0, 0.0, 0.05, 0.3))
        self.same = random.choice((0.0, 0.3, 0.6)) if self.poison else 0.0
        self.engine = self._draw_engine()
        self.names = ("left", "right")[: random.choice((1, 1, 2))]
        self.graphs: list[RandomGraph] = []  # including removed ones
        for name in self.names:
            self._build(name)

    @property
    def processes(self) -> list[ProcessWorkers]:
        """The process workers of all graphs."""
        return [each for graph in self.graphs for each in graph.processes]

    @property
    def stages(self) -> list[Stage]:
        """The stages of all graphs."""
        return [stage for graph in self.graphs for stage in graph.stages]

    def _draw_engine(self) -> Engine:
        random = self.random
        levels = random.choice((1, 1, 2, 3))
        options = EngineOptions(
            max_requests=random.choice((1, 4, 16, 1024)),
            max_running=random.choice((None, None, 1, 2, 5)),
            stream_limit=random.choice((0.1, 120.0)),
            levels=levels,
            ageing=random.choice((0.0, 0.01, 0.5, 100.0)),
            queue=tuple(self._draw_queue_policy() for _ in range(levels * random.randint(0, 1))),
            first_id=random.randint(0, 2),
            id_step=random.randint(1, 3),
        )
        engine = Engine(self.clock, options, Instruments([self.recorder, Priorities(self)]))
        engine.level_of = lambda _: random.randrange(options.levels)
        return engine

    def _draw_queue_policy(self) -> QueuePolicy:
        timeout = self.random.choice((None, 0.01, 0.3))
        return QueuePolicy(timeout=timeout, delay=self.random.random() < 0.5)

    # Operators.

    def change_graphs(self) -> object:
        """Replaces or removes a graph; its requests finish meanwhile."""
        if len(self.graphs) >= _MOST_GRAPHS or self.engine.statistics().draining:
            return None
        name = self.random.choice(self.names)
        served = self.engine.graph(name)
        if served is not None and self.random.random() < 0.3:
            self._random_graph_of(served).drained += 1
            self.engine.drain_graph(served, partial(self._at_rest, served))
            return f"{served} goes"
        return f"{self._build(name).served} comes"

    def _build(self, name: str) -> RandomGraph:
        graph = RandomGraph(self, name, len(self.graphs))
        self.graphs.append(graph)
        for old in self.graphs:
            old.drained += old.name == name and old.served.state is GraphState.SERVING
        self.engine.replace(graph.served, self._at_rest)
        return graph

    def _random_graph_of(self, served: ServedGraph) -> RandomGraph:
        return next(graph for graph in self.graphs if graph.served is served)

    def _at_rest(self, served: ServedGraph) -> None:
        self._random_graph_of(served).rests += 1
        remaining = [number for number, each in self.open.items() if each.is_in(served)]
        if remaining:
            self.problems.append(f"{served} is at rest, and {remaining} have no answer")
        self.engine.remove(served)

    # Time.

    def let_time_pass(self) -> object:
        """A little time passes."""
        seconds = self.random.choice((0.0005, 0.005, 0.05, 0.5)) * self.random.random()
        self.clock.advance(seconds)
        return seconds

    def wait_for_alarm(self) -> float | None:
        """Time passes until the next alarm."""
        due = self.clock.next_event()
        if due is not None:
            self.clock.advance(max(0.0, due - self.clock.now()))
        return due

    # Clients.

    def request(self) -> object:
        """A client sends a request."""
        now = self.clock.now()
        name = self.random.choice(self.names)
        graph = self.engine.graph(name)
        if graph is None:
            return f"no {name}"
        timeout: float | None
        timeout = self.random.choice((0.02, 0.2, 2.0, 60.0, 60.0)) * (self.random.random() - 0.01)
        if graph.streams and self.random.random() < 0.4:
            timeout = None
        limit = self.engine.time_limit if timeout is None else timeout
        client = Client(
            self.requests_sent, self._draw_nonce(self._random_graph_of(graph)), now + limit
        )
        self.requests_sent += 1
        feed = {"nonce": client.nonce, "graph": name}
        kind = Submission
        if graph.streams:
            kind = Reader if self.random.random() < 0.8 else Gatherer
        submission = kind(graph, feed, timeout, client.number)
        if isinstance(submission, Gatherer):
            submission.client, submission.world = client, self
        if self.random.random() < 0.1:  # as while its body is being decoded
            self.prepared.append((client, submission))
            return "prepared"
        return self._submit(client, submission)

    def start_prepared(self) -> object:
        """Submits a request that was made earlier; its graph may have been removed."""
        return self._submit(*self.prepared.pop(0)) if self.prepared else None

    def _submit(self, client: Client, submission: Submission) -> object:
        now, name = self.clock.now(), submission.graph.name
        client.event = len(self.history.events)
        deadline = client.deadline if submission.deadline_by_client else None
        pieces = pieces_of(client.nonce) if isinstance(submission, Reader) else None
        self.history.invoke(client.number, client.nonce, now, deadline, name, pieces)
        try:
            self.engine.submit(submission, lambda _, outcome: self.reply(client, outcome))
        except RequestError as refusal:
            self.refused += 1
            if isinstance(refusal, ServiceBusy) and not self.mischief:
                self._check_no_lower(submission, str(refusal))
            self.history.refused(client.number, refusal.code, now)
            return refusal.code
        client.submission = submission
        self.open[submission.data_id] = client
        return submission.data_id

    def _check_no_lower(self, submission: Submission, refusal: str) -> None:
        """Checks that no request of a lower priority waits in whose place this one could be."""
        graph, level = submission.graph, submission.level
        full = [stage for stage in graph.bounded if stage.batcher.full]
        late = submission.deadline <= self.clock.now()
        if late or graph.state is not GraphState.SERVING or len(full) > 1:
            return  # it would be refused in any case
        for stage, sample in self.waiting():
            if sample.level > level and stage in (full or [stage]):
                self.problems.append(f"level {level}: {refusal}, and {sample} of a lower one waits")

    def waiting(self) -> Iterator[tuple[Stage, Sample]]:
        """The samples in queues."""
        for client in self.open.values():
            assert client.submission is not None
            for sample in client.submission.samples:
                if sample.waiting:
                    yield client.submission.graph.stages[sample.op], sample

    def _draw_nonce(self, graph: RandomGraph) -> int:
        """The nonce of a request: new, perhaps poison, or that of an earlier request."""
        random = self.random
        nonce = self.requests_sent
        if self.same and nonce and random.random() < self.same:
            return random.randrange(max(0, nonce - 8), nonce)
        if self.poison and graph.processes and random.random() < self.poison:
            graph.poison(nonce)
        return nonce

    def reply(self, client: Client, outcome: Outcome) -> None:
        """The transport's callback for a reply, which may do anything."""
        now = self.clock.now()
        if not client.open or client.submission is None:
            self.problems.append(f"request {client.number} is over, or not yet in: {outcome}")
            return
        client.open = False
        del self.open[client.submission.data_id]
        if outcome.error is None:
            nonce = self._nonce_of(client, client.submission, outcome.value or {})
            self.history.ok(client.number, nonce, now)
        else:
            self.history.failed(client.number, outcome.error.code, now)
            self._check_error(client, client.submission.data_id, outcome.error)
        if self.mischief and self.random.random() < self.mischief:
            self.random.choice((self.request, self.cancel, self.cancel))()
            if self.random.random() < 0.5:
                raise ConnectionResetError("the transport broke")

    @staticmethod
    def _nonce_of(client: Client, submission: Submission, value: Feed) -> object:
        """The nonce of a good answer."""
        if isinstance(submission, Reader):
            return client.nonce  # its pieces have had theirs
        if not submission.graph.streams:
            return value.get("nonce")
        pieces = value["result"]
        numbers = [each.get("piece") for each in pieces]
        if numbers not in ([None], [*range(pieces_of(client.nonce))]):
            return f"pieces {numbers}"
        return next((each["nonce"] for each in pieces), client.nonce)

    def begin_answer(self, client: Client) -> None:
        """A piece of the answer is there: the first one changes the deadline."""
        assert client.submission is not None
        if not client.has_begun and not client.submission.deadline_by_client:
            client.deadline = self.clock.now() + self.engine.options.stream_limit
        client.has_begun = True

    def take_piece(self, client: Client, piece: Feed) -> bool:
        """The transport's callback for a piece, which may do anything; whether the client reads."""
        now = self.clock.now()
        submission = client.submission
        if not client.open or submission is None:
            self.problems.append(f"request {client.number} is over, or not yet in: {piece}")
            return True
        number = piece.get("piece")
        if number is None:  # another op has jumped over the one that streams
            number, invoked = 0, self.history.events[client.event]
            assert isinstance(invoked, Invoke)
            self.history.events[client.event] = invoked._replace(pieces=1)
        else:
            self.begin_answer(client)
        self.history.piece(client.number, number, piece["nonce"], now)
        if not client.reads:
            client.unread += 1
            if client.unread > MOST_PIECES:
                self.problems.append(f"request {client.number} does not read, and gets {number}")
            return False
        client.reads = self.random.random() >= self.slowness
        if self.mischief and self.random.random() < self.mischief / 4:
            self.random.choice((self.request, self.cancel, self.cancel))()
            if self.random.random() < 0.5:
                raise ConnectionResetError("the transport broke")
        return client.reads

    def read(self) -> object:
        """A client that has not read for a while reads everything."""
        slow = self._slow
        return self._resume(self.random.choice(slow)) if slow else None

    def read_all(self) -> None:
        """All such clients read everything."""
        for each in self._slow:
            self._resume(each)

    @property
    def _slow(self) -> list[Client]:
        return [each for each in self.open.values() if not each.reads]

    @staticmethod
    def _resume(client: Client) -> int:
        client.reads, client.unread = True, 0
        assert client.submission is not None
        client.submission.resume()
        return client.number

    def _check_error(self, client: Client, data_id: int, error: RequestError) -> None:
        """Checks that there is a reason for this error."""
        who = f"request {client.number}"
        if isinstance(error, DeadlineExceeded) and self.clock.now() < client.deadline - NEARLY:
            self.problems.append(f"{who} was too late before its deadline")
        elif isinstance(error, WorkerDied):
            if not any(each.deaths.lost_request(data_id) for each in self.processes):
                self.problems.append(f"{who} fails by a death, but no worker has died with it")
        elif isinstance(error, KillsWorkers) and not any(
            each.deaths.killer(client.nonce) for each in self.processes
        ):
            self.problems.append(f"{who} is refused, but no two workers have died of it")

    def cancel(self) -> object:
        """A client cancels its request."""
        if not self.open:
            return None
        data_id = self.random.choice(list(self.open))
        client = self.open.pop(data_id)
        assert client.submission is not None
        client.open = False
        self.history.info(client.number, "left", self.clock.now())
        self.engine.cancel(client.submission)
        return data_id

    # Workers.

    def pick(self) -> RunningWork | None:
        """Some worker that could continue; None if there is none or the chosen one hangs."""
        call = self.random.choice(self.calls) if self.calls else None
        return None if call is None or call.stuck else call

    def unstick(self) -> None:
        """Lets all hanging workers continue."""
        for call in self.calls:
            call.stuck = False
        for each in self.processes:
            each.unstick()

    def kill(self) -> object:
        """Kills some process from outside, whatever it does."""
        processes = self.processes
        return self.random.choice(processes).kill_any() if processes else None

    def remember(self, work: Work, finished: Finished, results: list[Result]) -> None:
        """Records a report, so that it may be repeated."""
        self.reported.append((work, finished, results))
        if len(self.reported) > 5:
            del self.reported[0]
