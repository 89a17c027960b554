"""A made-up world around a real engine: virtual time, fake workers, fake clients, one seed.

Graph, flight, batcher, deadlines, stage and engine are the real ones. Drawn from the seed are the
graph, every option, what clients ask for and when they leave, and what workers answer. Who moves
next is decided by ``penstock.testing.simulate``. What must never happen is noted in ``problems``
at once, because the engine is right to survive a reply that raises.
"""

from __future__ import annotations

from random import Random

from penstock.batching.batcher import Batcher, BatchPolicy
from penstock.engine.engine import Engine, EngineOptions
from penstock.engine.journey import Journey
from penstock.errors import DeadlineExceeded, HookFailed, OpTimeout, RequestError
from penstock.executors.executor import Finished, LocalExecutor, Result, Work
from penstock.executors.work import WorkOptions, broken
from penstock.graph.dag import OpSpec, Plan, compile_graph
from penstock.request import Batch, Outcome, Request
from penstock.testing.clock import ManualClock
from penstock.testing.history import ClientHistory, Recorder

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
    """One request as its caller sees it."""

    __slots__ = ("deadline", "journey", "nonce", "open")

    def __init__(self, nonce: int, deadline: float) -> None:
        self.nonce = nonce
        self.deadline = deadline
        self.journey: Journey | None = None
        self.open = True


class Call:
    """One Work at one worker. ``stuck``: it hangs for now."""

    __slots__ = ("finished", "op", "results", "stuck", "work")

    def __init__(self, op: int, work: Work, finished: Finished) -> None:
        self.op = op
        self.work = work
        self.finished = finished
        self.results: list[Result] = []
        self.stuck = False


class Workers(LocalExecutor):
    """One op's fake executor: inline, threads (a call ends when it likes), or killed on abandon."""

    def __init__(self, world: World, op: int) -> None:
        self.kind = world.random.choice(("thread", "thread", "killed", "inline"))
        self.workers = 1 if self.kind == "inline" else world.random.choice((1, 1, 2, 3))
        self.takes_several = world.random.random() < 0.8
        self.seconds = world.random.choice((0.0, 1e-6, 1e-4, 0.01))
        self.running = 0
        self._world = world
        self._op = op

    def __repr__(self) -> str:
        return f"{self.workers} {self.kind} of {self.seconds} s"

    def submit(self, work: Work, finished: Finished) -> None:
        """Take a Work; its first batch stands before its ``process`` call."""
        world = self._world
        self.running += 1
        if self.running > self.workers:
            world.problems.append(f"op{self._op} has {self.workers} workers and got one Work more")
        for batch in work.pending:
            world.inspect(self._op, batch)
        work.begin_next()
        call = Call(self._op, work, finished)
        world.calls.append(call)
        if self.kind == "inline":
            world.take_turn(call)

    def abandon(self, work: Work) -> None:
        """The running batch was given up."""
        world = self._world
        if self.kind == "killed":
            (call,) = (call for call in world.calls if call.work is work)
            world.clock.soon(lambda: world.die(call))

    async def close(self, timeout: float) -> bool:
        """There is nothing to stop."""
        return True


class World:
    """Everything of one seed, and what clients and workers can do in it."""

    def __init__(self, seed: int) -> None:
        self.random = random = Random(seed)  # noqa: S311 - chance, not secrets
        self.clock = ManualClock()
        self.plan = draw_plan(random)
        self.recorder = Recorder()
        self.history = ClientHistory()
        self.problems: list[str] = []
        self.calls: list[Call] = []
        self.reported: list[tuple[Work, Finished, list[Result]]] = []
        self.open: dict[int, Client] = {}
        self.asked = 0
        self.refused = 0
        self.errors = random.choice((0.0, 0.05, 0.3))
        self.mischief = random.choice((0.0, 0.0, 0.1, 0.4))
        self.workers = [Workers(self, op) for op in range(len(self.plan.names))]
        self.engine = self._draw_engine()
        self._traces = self._allowed_traces()

    def _draw_engine(self) -> Engine:
        random = self.random
        options = EngineOptions(
            max_requests=random.choice((1, 4, 16, 1024)),
            max_running=random.choice((None, None, 1, 2, 5)),
            first_id=random.randint(0, 2),
            id_step=random.randint(1, 3),
        )
        engine = Engine(self.plan, self.clock, options, self.recorder)
        for op, name in enumerate(self.plan.names):
            policy = BatchPolicy(
                max_rows=random.choice((1, 1, 2, 4, 8)),
                window=random.choice((None, None, 0.002, 0.02, 0.1)),
                capacity=random.choice((None, None, 1, 2, 4, 8)),
            )
            work = WorkOptions(
                timeout=random.choice((None, 0.01, 0.05, 0.2, 1.0)),
                retry=random.choice((1, 1, 2, 3)),
            )
            engine.add_op(name, queue=Batcher(policy), executor=self.workers[op], options=work)
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
        client = Client(self.asked, now + life)
        self.asked += 1
        self.history.invoke(client.nonce, client.nonce, now, client.deadline)
        request = Request(
            feed={"nonce": client.nonce}, log_id=client.nonce, deadline=client.deadline
        )
        try:
            client.journey = self.engine.submit(request, lambda got: self.reply(client, got))
        except RequestError as refusal:
            self.refused += 1
            self.history.refused(client.nonce, refusal.code, now)
            return refusal.code
        self.open[client.journey.data_id] = client
        return client.journey.data_id

    def reply(self, client: Client, outcome: Outcome) -> None:
        """The transport gets an answer, and may do anything then."""
        now = self.clock.now()
        if not client.open or client.journey is None:
            self.problems.append(f"request {client.nonce} is over, or not yet in: {outcome}")
            return
        client.open = False
        del self.open[client.journey.data_id]
        if outcome.error is None:
            self.history.ok(client.nonce, (outcome.value or {}).get("nonce"), now)
        else:
            self.history.failed(client.nonce, outcome.error.code, now)
            if isinstance(outcome.error, DeadlineExceeded) and now < client.deadline - NEARLY:
                self.problems.append(f"request {client.nonce} was too late before its deadline")
        if self.mischief and self.random.random() < self.mischief:
            self.random.choice((self.ask, self.leave, self.leave))()
            if self.random.random() < 0.5:
                raise ConnectionResetError("the transport broke")

    def leave(self) -> object:
        """A client goes away."""
        if not self.open:
            return None
        data_id = self.random.choice(list(self.open))
        client = self.open.pop(data_id)
        assert client.journey is not None
        client.open = False
        self.history.info(client.nonce, "left", self.clock.now())
        self.engine.cancel(client.journey)
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
            if client is None or sample.gone or sample.flight is not client.journey:
                self.problems.append(f"op{op} got {sample}, which nobody waits for any more")
            elif client.deadline <= now:
                self.problems.append(f"op{op} got {sample} {now - client.deadline:.6f} s too late")
            else:
                for feed in sample.inputs.values():
                    if feed["nonce"] != client.nonce or not feed.keys() <= self._traces[op]:
                        self.problems.append(f"op{op} got {sample} with another's dict: {feed}")
            if self.plan.plain and len(sample.inputs) != len(self.plan.inputs[op]):
                self.problems.append(f"op{op} got {sample} with {list(sample.inputs)} only")

    def pick(self) -> Call | None:
        """Some call that could go on; None when there is none, or the one picked hangs."""
        call = self.random.choice(self.calls) if self.calls else None
        return None if call is None or call.stuck else call

    def unstick(self) -> None:
        """Calls that hang go on."""
        for call in self.calls:
            call.stuck = False

    def advance(self, call: Call) -> list[int]:
        """This worker ends one batch, and its Work with the last."""
        batch = self._run(call)
        if call.work.begin_next() is None:
            self._report(call)
        return batch.data_ids

    def take_turn(self, call: Call) -> None:
        """This worker ends some of what it was given; for the rest its turn was too short."""
        self._run(call)
        while self.random.random() < 0.9 and call.work.begin_next() is not None:
            self._run(call)
        call.work.current = None
        self._report(call)

    def _run(self, call: Call) -> Batch:
        batch = call.work.current
        assert batch is not None
        batch.started = None
        batch.ran = self.workers[call.op].seconds
        call.results.append((batch, self._outcomes(call.op, batch)))
        return batch

    def end(self, call: Call) -> list[int]:
        """This worker ends everything it was given."""
        ids: list[int] = []
        while call.work.current is not None:
            ids += self.advance(call)
        return ids

    def die(self, call: Call) -> object:
        """This worker ends in the middle; what it had not begun has not run."""
        batch = call.work.current
        if batch is None or call not in self.calls:
            return None
        call.results.append((batch, broken(batch)))
        call.work.current = None
        self._report(call)
        return batch.data_ids

    def _outcomes(self, op: int, batch: Batch) -> list[Outcome]:
        """Made up. The op leaves a trace in its inputs, and may give one of them on as output."""
        random = self.random
        jump = bool(self.plan.jump_to[op]) and random.random() < 0.3
        made: list[Outcome] = []
        for sample in batch.samples:
            feeds = list(sample.inputs.values())
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

    def _report(self, call: Call) -> None:
        self.workers[call.op].running -= 1
        self.calls.remove(call)
        if len(call.results) > 1 and self.random.random() < 0.3:
            self.random.shuffle(call.results)
        self.reported.append((call.work, call.finished, call.results))
        if len(self.reported) > 5:
            del self.reported[0]
        call.finished(call.work, call.results)
