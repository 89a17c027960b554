"""A made-up world around a real engine: virtual time, fake workers, fake clients, one seed.

Graph, flight, batcher, deadlines, stage and engine are the real ones. Drawn from the seed are the
graph, every option, what clients ask for and when they leave, and what workers answer. Who moves
next is decided by ``tests.simulation.simulate``. What must never happen is noted in ``problems``
at once, because the engine is right to survive a reply that raises.
"""

from __future__ import annotations

from random import Random

from penstock.batching.batcher import BatchPolicy, batcher_for
from penstock.engine.engine import Engine, EngineOptions
from penstock.engine.graph import ServedGraph
from penstock.engine.submission import Submission
from penstock.errors import (
    DeadlineExceeded,
    HookFailed,
    KillsWorkers,
    OpTimeout,
    RequestError,
    WorkerDied,
)
from penstock.executors.executor import Finished, Result, Work
from penstock.executors.work import WorkOptions
from penstock.graph.dag import OpSpec, Plan, compile_graph
from penstock.instrument import Instruments
from penstock.request import Batch, Outcome
from penstock.testing.clock import ManualClock
from penstock.testing.history import ClientHistory, Recorder
from tests.simulation.processes import ProcessWorkers
from tests.simulation.workers import Doer, Workers

NEARLY = 1e-6
"""Seconds; virtual time is a sum of floats."""


def draw_plan(random: Random) -> Plan:
    """Any legal graph of one to eight ops in which every op reaches the last."""
    size = 1 + int(8 * random.random() ** 2)
    inputs: dict[int, list[int]] = {}
    for key in range(1, size + 1):
        inputs[key] = random.sample(range(key), random.randint(1, min(3, key)))
    fed = {before for keys in inputs.values() for before in keys}
    inputs[size] += [key for key in range(1, size) if key not in fed]
    jumps = _draw_jumps(random, inputs) if random.random() < 0.2 else {}
    specs = [OpSpec(key=0, name="request", is_request=True)]
    for key, before in inputs.items():
        jump_to = tuple(jumps.get(key, ()))
        specs.append(OpSpec(key=key, name=f"op{key}", inputs=tuple(before), jump_to=jump_to))
    attempts = random.choice((1, 1, 1, 2, 3))
    return compile_graph(specs, size, attempts=attempts, first_arrival=random.random() < 0.2)


def _draw_jumps(random: Random, inputs: dict[int, list[int]]) -> dict[int, list[int]]:
    after: dict[int, set[int]] = {key: set() for key in (0, *inputs)}
    for key in sorted(inputs, reverse=True):
        for before in inputs[key]:
            after[before] |= {key} | after[key]
    jumps: dict[int, list[int]] = {}
    for key in inputs:
        targets = sorted(after[key])
        if targets and random.random() < 0.5:
            jumps[key] = random.sample(targets, random.randint(1, min(2, len(targets))))
    return jumps


class Client:
    """One request as its caller sees it; two that ask the same have one nonce."""

    __slots__ = ("deadline", "nonce", "number", "open", "submission")

    def __init__(self, number: int, nonce: int, deadline: float) -> None:
        self.number = number
        self.nonce = nonce
        self.deadline = deadline
        self.submission: Submission | None = None
        self.open = True


class World:
    """Everything of one seed, and what clients and workers can do in it."""

    def __init__(self, seed: int) -> None:
        self.random = random = Random(seed)
        self.clock = ManualClock()
        self.plan = draw_plan(random)
        self.recorder = Recorder()
        self.history = ClientHistory()
        self.problems: list[str] = []
        self.calls: list[Doer] = []
        self.reported: list[tuple[Work, Finished, list[Result]]] = []
        self.open: dict[int, Client] = {}
        self.asked = 0
        self.refused = 0
        self.errors = random.choice((0.0, 0.05, 0.3))
        self.mischief = random.choice((0.0, 0.0, 0.1, 0.4))
        self.poison = random.choice((0.0, 0.0, 0.05, 0.3))
        self.same = random.choice((0.0, 0.3, 0.6)) if self.poison else 0.0
        self._poisoned: dict[int, set[int]] = {}  # op -> nonces that its processes die of
        self.workers = [self._draw_workers(op) for op in range(len(self.plan.names))]
        self.processes = [each for each in self.workers if isinstance(each, ProcessWorkers)]
        self.engine = self._draw_engine()
        self._traces = self._allowed_traces()

    def _draw_workers(self, op: int) -> Workers:
        kinds = ("thread", "thread", "killed", "inline", "process", "process")
        kind = self.random.choice(kinds)
        return ProcessWorkers(self, op) if kind == "process" else Workers(self, op, kind)

    def _draw_engine(self) -> Engine:
        random = self.random
        options = EngineOptions(
            max_requests=random.choice((1, 4, 16, 1024)),
            max_running=random.choice((None, None, 1, 2, 5)),
            first_id=random.randint(0, 2),
            id_step=random.randint(1, 3),
        )
        engine = Engine(self.clock, options, Instruments([self.recorder]))
        graph = ServedGraph(engine, self.plan)
        for op, name in enumerate(self.plan.names):
            policy = BatchPolicy(
                max_rows=random.choice((1, 1, 2, 4, 8)),
                window=random.choice((None, None, 0.002, 0.02, 0.1)),
                capacity=random.choice((None, None, 1, 2, 4, 8)),
            )
            work = WorkOptions(
                timeout=random.choice((None, 0.01, 0.05, 0.2, 1.0)),
                retry=random.choice((1, 1, 2, 3)),
                retry_on_crash=self.workers[op].retry_on_crash,
            )
            graph.add_op(name, queue=batcher_for(policy), executor=self.workers[op], options=work)
        engine.add(graph)
        return engine

    def _allowed_traces(self) -> list[set[str]]:
        """Per op, the keys of a dict that reaches it: traces of the ops before it, no others."""
        allowed: list[set[str]] = []
        for inputs in self.plan.inputs:
            names = {"nonce"}
            for op in inputs:
                if op >= 0:
                    names |= allowed[op] | {f"trace{op}"}
            allowed.append(names)
        return allowed

    # Time.

    def let_time_pass(self) -> object:
        """A little time passes."""
        seconds = self.random.choice((0.0005, 0.005, 0.05, 0.5)) * self.random.random()
        self.clock.advance(seconds)
        return seconds

    def wait_for_alarm(self) -> float | None:
        """Time passes until something is due."""
        due = self.clock.next_event()
        if due is not None:
            self.clock.advance(max(0.0, due - self.clock.now()))
        return due

    # Clients.

    def ask(self) -> object:
        """A client sends a request."""
        now = self.clock.now()
        life = self.random.choice((0.02, 0.2, 2.0, 60.0, 60.0)) * (self.random.random() - 0.01)
        client = Client(self.asked, self._draw_nonce(), now + life)
        self.asked += 1
        self.history.invoke(client.number, client.nonce, now, client.deadline)
        (graph,) = self.engine.graphs
        submission = Submission(graph, {"nonce": client.nonce}, life, client.number)
        try:
            self.engine.submit(submission, lambda _, got: self.reply(client, got))
        except RequestError as refusal:
            self.refused += 1
            self.history.refused(client.number, refusal.code, now)
            return refusal.code
        client.submission = submission
        self.open[submission.data_id] = client
        return submission.data_id

    def _draw_nonce(self) -> int:
        """What a client asks for: something new, perhaps poison, or what another has asked for."""
        random = self.random
        nonce = self.asked
        if self.same and nonce and random.random() < self.same:
            return random.randrange(max(0, nonce - 8), nonce)
        if self.poison and self.processes and random.random() < self.poison:
            self._poisoned.setdefault(random.choice(self.processes).op, set()).add(nonce)
        return nonce

    def reply(self, client: Client, outcome: Outcome) -> None:
        """The transport gets an answer, and may do anything then."""
        now = self.clock.now()
        if not client.open or client.submission is None:
            self.problems.append(f"request {client.number} is over, or not yet in: {outcome}")
            return
        client.open = False
        del self.open[client.submission.data_id]
        if outcome.error is None:
            self.history.ok(client.number, (outcome.value or {}).get("nonce"), now)
        else:
            self.history.failed(client.number, outcome.error.code, now)
            self._judge(client, client.submission.data_id, outcome.error)
        if self.mischief and self.random.random() < self.mischief:
            self.random.choice((self.ask, self.leave, self.leave))()
            if self.random.random() < 0.5:
                raise ConnectionResetError("the transport broke")

    def _judge(self, client: Client, data_id: int, error: RequestError) -> None:
        """Whether there is a reason for such an answer."""
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

    def leave(self) -> object:
        """A client goes away."""
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

    def inspect(self, op: int, batch: Batch) -> None:
        """A worker looks at what it is given."""
        now = self.clock.now()
        most = self.engine.stages[op].batcher.policy.max_rows
        if not 0 < len(batch.samples) <= most:
            self.problems.append(f"op{op} takes 1 to {most} and got {batch}")
        for sample in batch.samples:
            client = self.open.get(sample.data_id)
            if client is None or sample.gone or sample.flight is not client.submission:
                self.problems.append(f"op{op} got {sample}, which nobody waits for any more")
            elif client.deadline <= now:
                self.problems.append(f"op{op} got {sample} {now - client.deadline:.6f} s too late")
            else:
                for feed in sample.inputs.values():
                    if feed["nonce"] != client.nonce or not feed.keys() <= self._traces[op]:
                        self.problems.append(f"op{op} got {sample} with another's dict: {feed}")
            if self.plan.plain and len(sample.inputs) != len(self.plan.inputs[op]):
                self.problems.append(f"op{op} got {sample} with {list(sample.inputs)} only")

    def pick(self) -> Doer | None:
        """Some worker that could go on; None when there is none, or the one picked hangs."""
        call = self.random.choice(self.calls) if self.calls else None
        return None if call is None or call.stuck else call

    def unstick(self) -> None:
        """Whoever hangs goes on."""
        for call in self.calls:
            call.stuck = False
        for each in self.processes:
            each.unstick()

    def kill(self) -> object:
        """Some process is killed from outside, whatever it does."""
        return self.random.choice(self.processes).kill_any() if self.processes else None

    def is_poisoned(self, op: int, batch: Batch) -> bool:
        """Whether the op's processes die of this batch."""
        nonces = self._poisoned.get(op)
        return nonces is not None and any(
            feed["nonce"] in nonces for sample in batch.samples for feed in sample.inputs.values()
        )

    def remember(self, work: Work, finished: Finished, results: list[Result]) -> None:
        """A Work is reported; it may be reported again."""
        self.reported.append((work, finished, results))
        if len(self.reported) > 5:
            del self.reported[0]

    def outcomes(self, op: int, batch: Batch, *, copies: bool = False) -> list[Outcome]:
        """Made up. The op leaves a trace in its inputs, and may give one of them on as output.

        Args:
            op: which.
            batch: what it ran.
            copies: whether it got copies, as a process does.
        """
        random = self.random
        jump = bool(self.plan.jump_to[op]) and random.random() < 0.3
        made: list[Outcome] = []
        for sample in batch.samples:
            feeds = [dict(f) if copies else f for f in sample.inputs.values()]
            for feed in feeds:
                feed[f"trace{op}"] = True
            if self.errors and random.random() < self.errors:
                kind = OpTimeout if random.random() < 0.2 else HookFailed
                made.append(Outcome(None, kind("made up"), jump))
            elif random.random() < 0.5:
                made.append(Outcome(feeds[0], None, jump))
            else:
                made.append(Outcome({"nonce": feeds[0]["nonce"]}, None, jump))
        return made
