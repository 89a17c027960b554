"""A random graph: its plan, its ops' options and workers, and the inputs that each op may get."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

from penstock.batching.batcher import BatchPolicy
from penstock.batching.queue_policy import delays
from penstock.batching.queues import batcher_for
from penstock.engine.graph import ServedGraph
from penstock.engine.stage import Stage
from penstock.errors import HookFailed, OpTimeout
from penstock.executors.work import WorkOptions
from penstock.graph.dag import OpSpec, Plan, compile_graph
from penstock.request import Batch, Outcome
from tests.simulation.processes import ProcessWorkers
from tests.simulation.seats import SeatedProcessWorkers, SeatedThreads
from tests.simulation.streams import StreamingProcessWorkers, StreamingWorkers
from tests.simulation.workers import Workers

if TYPE_CHECKING:
    from tests.simulation.world import World


def draw_plan(random: Random) -> Plan:
    """Any valid graph of one to eight ops, each an ancestor of the last."""
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


class RandomGraph:
    """One version of a graph; everything is drawn from the world's seed.

    Attributes:
        served: the engine's graph.
        plan: its compiled graph.
        streams: whether its last op streams.
        workers: the workers of each op.
        drained: how often a drain was requested.
        rests: how often the engine has reported the end of a drain.
    """

    def __init__(self, world: World, name: str, version: int) -> None:
        self.world = world
        self.name = name
        self.plan = draw_plan(world.random)
        self.streams = world.random.random() < 0.4
        self.workers = [self._draw_workers(op) for op in range(len(self.plan.names))]
        self.processes = [each for each in self.workers if isinstance(each, ProcessWorkers)]
        self.served = ServedGraph(world.engine, self.plan, name, str(version))
        self.drained = self.rests = 0
        self._poisoned: dict[int, set[int]] = {}  # op -> nonces that kill its processes
        for op in range(len(self.plan.names)):
            self._add_op(op)
        self.served.streams = self.stages[self.plan.last].streams = self.streams
        self._traces = self._allowed_traces()

    def __repr__(self) -> str:
        lines = [f"{self.served} attempts={self.plan.attempts} first={self.plan.first_arrival}"]
        for op, stage in enumerate(self.stages):
            lines.append(
                f"op{op} {stage.name!r} after {self.plan.inputs[op]} jumps to "
                f"{self.plan.jump_to[op]}: {self.workers[op]}, {stage.batcher.policy}, "
                f"{stage.options}"
            )
        return "\n".join(lines)

    @property
    def stages(self) -> list[Stage]:
        """The stages of its ops."""
        return self.served.stages

    def _draw_workers(self, op: int) -> Workers:
        streams = self.streams and op == self.plan.last
        kinds = ["thread", "thread", "killed", "process", "process"]
        kinds += ["seats", "seats", "seated process"] if streams else ["inline"]
        kind = self.world.random.choice(kinds)
        if streams:
            if kind == "process":
                return StreamingProcessWorkers(self, op)
            if kind == "seats":
                return SeatedThreads(self, op)
            if kind == "seated process":
                return SeatedProcessWorkers(self, op)
            return StreamingWorkers(self, op, kind)
        return ProcessWorkers(self, op) if kind == "process" else Workers(self, op, kind)

    def _add_op(self, op: int) -> None:
        random = self.world.random
        policy = BatchPolicy(
            max_rows=1 if self.streams and op == self.plan.last else random.choice((1, 1, 2, 4, 8)),
            window=random.choice((None, None, 0.002, 0.02, 0.1)),
            capacity=random.choice((None, None, 1, 2, 4, 8)),
            levels=self.world.engine.options.levels,
            delays=delays(self.world.engine.options.queue),
            ageing=self.world.engine.options.ageing,
            learned=op % 2 == 1,
        )
        executor = self.workers[op]
        options = WorkOptions(
            timeout=random.choice((None, 0.01, 0.05, 0.2, 1.0)),
            retry=random.choice((1, 1, 2, 3)),
            retry_on_crash=executor.retry_on_crash,
        )
        # Each version has its own op names, so that the history can distinguish them.
        name = f"{self.name}/{self.plan.names[op]}.{self.served.version}"
        self.served.add_op(name, queue=batcher_for(policy), executor=executor, options=options)

    def _allowed_traces(self) -> list[set[str]]:
        """Per op, the allowed keys of its input dicts: traces of the ops before it, and no
        others."""
        allowed: list[set[str]] = []
        for inputs in self.plan.inputs:
            names = {"nonce", "graph"}
            for op in inputs:
                if op >= 0:
                    names |= allowed[op] | {f"trace{op}"}
            allowed.append(names)
        return allowed

    def poison(self, nonce: int) -> None:
        """Makes the processes of one of its ops die of this nonce."""
        op = self.world.random.choice(self.processes).op
        self._poisoned.setdefault(op, set()).add(nonce)

    # Behaviour of its workers.

    def inspect(self, op: int, batch: Batch) -> None:
        """Checks a batch that a worker is given."""
        world = self.world
        now = world.clock.now()
        name = self.stages[op].name
        most = self.stages[op].batcher.policy.max_rows
        if not 0 < len(batch.samples) <= most:
            world.problems.append(f"{name} takes 1 to {most} and got {batch}")
        for sample in batch.samples:
            client = world.open.get(sample.data_id)
            if client is None or sample.gone or sample.flight is not client.submission:
                world.problems.append(f"{name} got {sample}, which nobody waits for any more")
            elif client.deadline <= now:
                world.problems.append(f"{name} got {sample} {now - client.deadline:.6f} s too late")
            else:
                if client.has_begun and op == self.plan.last:
                    world.problems.append(f"{name} got {sample} after its answer has begun")
                for feed in sample.inputs.values():
                    mine = feed["nonce"] == client.nonce and feed["graph"] == self.name
                    if not mine or not feed.keys() <= self._traces[op]:
                        world.problems.append(f"{name} got {sample} with another's dict: {feed}")
            if self.plan.plain and len(sample.inputs) != len(self.plan.inputs[op]):
                world.problems.append(f"{name} got {sample} with {list(sample.inputs)} only")

    def is_poisoned(self, op: int, batch: Batch) -> bool:
        """Whether the op's processes die of this batch."""
        nonces = self._poisoned.get(op)
        return nonces is not None and any(
            feed["nonce"] in nonces for sample in batch.samples for feed in sample.inputs.values()
        )

    def outcomes(self, op: int, batch: Batch, *, copies: bool = False) -> list[Outcome]:
        """Random outcomes. The op leaves a trace in its inputs, and may return one of them as its
        output.

        Args:
            op: the op's index.
            batch: the batch that ran.
            copies: whether the op got copies, as a process does.
        """
        world = self.world
        random = world.random
        jump = bool(self.plan.jump_to[op]) and random.random() < 0.3
        made: list[Outcome] = []
        for sample in batch.samples:
            feeds = [dict(f) if copies else f for f in sample.inputs.values()]
            for feed in feeds:
                feed[f"trace{op}"] = True
            if world.errors and random.random() < world.errors:
                kind = OpTimeout if random.random() < 0.2 else HookFailed
                made.append(Outcome(None, kind("made up"), jump))
            elif random.random() < 0.5:
                made.append(Outcome(feeds[0], None, jump))
            else:
                plain = {"nonce": feeds[0]["nonce"], "graph": self.name}
                made.append(Outcome(plain, None, jump))
        return made
