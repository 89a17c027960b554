"""A graph in an engine: its name, version, stages and state.

A graph is built aside, where it runs its examples, added, drained, and removed when it is at rest,
while the engine's other graphs serve. A model's version can be replaced this way::

    aside ──> serving ──> draining ──> removed
      │          └─> held ──┘             │
      └──────────────────────┴────────────┘

Two graphs of the same name and version may share the stages of ops that are the same in both, with
their queues and workers. Such a stage is closed with the last graph that runs it.

The workers of a held graph have ended, or will, before its successor's begin; further requests for
it wait for that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, Protocol, TypeAlias

from penstock.batching.batcher import Batcher, FifoQueue
from penstock.batching.queue_policy import QueuePolicy
from penstock.engine.clock import Clock
from penstock.engine.promise import Promise
from penstock.engine.sizing import Sizing
from penstock.engine.stage import Stage
from penstock.engine.statistics import StageStatistics
from penstock.errors import GraphError
from penstock.executors.executor import Executor
from penstock.executors.work import WorkOptions
from penstock.graph.dag import Plan
from penstock.instrument import Instruments
from penstock.ops.ends import Ends
from penstock.request import Feed, Outcome, Sample
from penstock.tensor import Signature


class Host(Protocol):
    """The engine, as its graphs and their submissions see it."""

    clock: Clock
    instruments: Instruments
    time_limit: float
    queue_policies: tuple[QueuePolicy, ...]

    def settle(self, sample: Sample, outcome: Outcome) -> None:
        """Process an op's outcome of a sample."""

    def submit(self, submission: Any, on_answer: Callable[[Any, Outcome], None]) -> None:
        """Admit a request; see ``Engine``."""

    def cancel(self, submission: Any) -> None:
        """Cancel a request; see ``Engine``."""

    def complete(self, submission: Any) -> None:
        """Answer a request whose caller needs no further piece; see ``Engine``."""


OnAnswer: TypeAlias = Callable[[Any, Outcome], None]
"""Called once with a submission and its outcome, on the engine's loop."""
Watch: TypeAlias = Callable[[Any, OnAnswer], OnAnswer]


class GraphState(Enum):
    """The states of a graph."""

    ASIDE = "aside"
    SERVING = "serving"
    HELD = "held"
    DRAINING = "draining"
    REMOVED = "removed"


_MOVES: Final = {
    (GraphState.ASIDE, GraphState.SERVING),
    (GraphState.ASIDE, GraphState.DRAINING),
    (GraphState.ASIDE, GraphState.REMOVED),
    (GraphState.SERVING, GraphState.DRAINING),
    (GraphState.SERVING, GraphState.HELD),
    (GraphState.HELD, GraphState.DRAINING),
    (GraphState.DRAINING, GraphState.REMOVED),
}


_COMES: Final = (GraphState.ASIDE, GraphState.SERVING)
"""States of graphs to which more requests come."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphStatistics:
    """A snapshot of one graph.

    Attributes:
        inside: requests that are admitted and not ended.
        stages: of its ops, in the plan's order.
    """

    name: str | None
    version: str
    state: str
    inside: int
    stages: tuple[StageStatistics, ...]


class ServedGraph:
    """One version of a graph. ``add_op`` or ``share`` give it its stages, in the plan's order.

    Args:
        engine: admits its requests, and runs them through it.
        plan: what runs after what.
        name: its name in requests; None for a graph that serves every name that no other graph has.
        version: distinguishes graphs of the same name.
        ends: converts messages to feeds, and outcomes to messages; None if no protocol needs it.
        declared: returns its inputs and outputs if they are known, maybe only after its workers
            have started.
        promise: checks its results; None if no outputs are declared.
        started: called when its workers have started.
        label: its name in timelines; by default the name.
        configuration: of its model, as a repository has it; None for other graphs.
        queue_policies: how long its requests may wait in a queue, for each priority level; None: as
            the engine says.

    Attributes:
        key: name and version.
        state: see GraphState.
        inside: requests that are admitted and not ended.
        waiting: those of them that wait for its successor, in order of arrival.
        arriving: requests that were being decoded when it began to drain, and are still.
        stages: those of its ops, in the plan's order.
        own: those of them that were made for it.
        bounded: the stages with a limited queue.
        kept_away: the indexes of ops whose large outputs may go to the external store.
        streams: whether its answers come in pieces.
        guarded: whether the engine must check more before it admits a request.
        watch: called with each admitted request and what is to be called with its answer; returns
            what to call instead. None: nobody wants to know. See ``watch_requests``.
        time_limit: deadline of a request in seconds.
        now: the engine's clock.
    """

    def __init__(
        self,
        engine: Host,
        plan: Plan,
        name: str | None = None,
        version: str = "1",
        ends: Ends | None = None,
        declared: Callable[[], Signature | None] = lambda: None,
        promise: Promise | None = None,
        started: Callable[[], None] = lambda: None,
        label: str | None = None,
        configuration: Mapping[str, Any] | None = None,
        queue_policies: tuple[QueuePolicy, ...] | None = None,
    ) -> None:
        self.engine = engine
        self.plan = plan
        self.name = name
        self.version = version
        self.key = name, version
        self.label = label if label is not None else name or ""
        self.configuration = configuration
        self.queue_policies = engine.queue_policies if queue_policies is None else queue_policies
        self.ends = ends
        self.state = GraphState.ASIDE
        self.inside = 0
        self.waiting: dict[Any, None] = {}
        self.arriving: set[object] = set()
        self._closed = False
        self.stages: list[Stage] = []
        self.own: list[Stage] = []
        self.bounded: list[Stage] = []
        self.guarded = True
        self.watch: Watch | None = None
        self.kept_away: frozenset[int] = frozenset()
        self.streams = False
        self._declared = declared
        self.promise = promise
        self._started = started
        self._signature: Signature | None = None
        self.time_limit = engine.time_limit
        self.now = engine.clock.now

    def __str__(self) -> str:
        return f"{self.name or 'without a name'} (version {self.version})"

    @property
    def signature(self) -> Signature | None:
        """Its inputs and outputs; None if they are unknown, or not known yet."""
        if self._signature is None:
            self._signature = self._declared()
        return self._signature

    def add_op(
        self,
        name: str,
        *,
        queue: Batcher | FifoQueue,
        executor: Executor,
        options: WorkOptions,
        key_of: Callable[[dict[str, Feed]], Hashable] | None = None,
        sizing: Sizing | None = None,
    ) -> Stage:
        """Make the stage of the plan's next op, with the engine's clock, instruments and answers.

        The arguments are those of ``Stage``.
        """
        engine = self.engine
        stage = Stage(
            name,
            queue,
            executor,
            options,
            engine.clock,
            engine.settle,
            engine.instruments,
            key_of,
            sizing,
        )
        if self.queue_policies:
            stage.limit_queue(self.queue_policies)
        self.own.append(stage)
        self._run_by(stage)
        return stage

    def share(self, stage: Stage) -> None:
        """Run the plan's next op by the stage of another graph, as the op is the same in both.

        Raises:
            GraphError: that graph has ended.
        """
        if not stage.graphs:
            raise GraphError(f"op {stage.name!r} has ended, and cannot be shared")
        self._run_by(stage)

    def _run_by(self, stage: Stage) -> None:
        stage.graphs.append(self)
        self.stages.append(stage)
        if stage.batcher.policy.capacity is not None:
            self.bounded.append(stage)

    def work_after(self, stage: Stage) -> float:
        """For how many seconds the ops after one have work without it; 0 if one of them may be
        idle, or if it may jump over them.
        """
        index = self.stages.index(stage)
        if self.plan.jump_to[index]:
            return 0.0
        after = self.plan.consumers[index]
        return min((self.stages[each].backlog for each in after), default=0.0)

    def why_stuck(self) -> str | None:
        """Why its requests cannot be answered now, for probes; None if they can."""
        if self.state is GraphState.HELD:
            return f"graph {self} is being replaced, and its requests wait (swap: resource)"
        if self.state is not GraphState.SERVING:
            return f"graph {self} is {self.state.value}"
        for stage in self.stages:
            if stage.lost:
                why = "no worker returns" if stage.executor.alive else "it has no worker"
                return f"op {stage.name!r}: {why}"
        return None

    async def start(self) -> None:
        """Make every worker ready.

        Raises:
            StartupError: a worker cannot start; the workers of its op are ended, others may run.
        """
        starts = [asyncio.ensure_future(stage.executor.start()) for stage in self.own]
        try:
            await asyncio.gather(*starts)
        except BaseException:
            for each in starts:
                each.cancel()
            await asyncio.gather(*starts, return_exceptions=True)
            raise
        self._started()

    async def close(self, timeout: float) -> bool:
        """Stop the workers that no other graph runs, once; returns whether every call ended within
        ``timeout`` seconds.
        """
        if self._closed:
            return True
        for stage in self.stages:
            if self in stage.graphs:
                stage.graphs.remove(self)
        closing = [stage.executor.close(timeout) for stage in self.stages if not stage.graphs]
        self._closed = all(await asyncio.gather(*closing))
        return self._closed

    def become(self, state: GraphState) -> None:
        """Change the state; for the engine.

        Raises:
            GraphError: the transition is illegal.
        """
        if (self.state, state) not in _MOVES:
            raise GraphError(f"graph {self} is {self.state.value} and cannot be {state.value}")
        self.state = state
        self._guard()

    def watch_requests(self, watch: Watch | None) -> None:
        """Call a function for each request, see ``watch``; None ends that."""
        self.watch = watch
        self._guard()

    def _guard(self) -> None:
        serves = self.state is GraphState.SERVING
        self.guarded = bool(self.bounded) or self.watch is not None or not serves

    def drain_stages(self, *, engine: bool = False) -> None:
        """No more requests will come: batches need not wait to fill.

        Args:
            engine: whether that holds for all graphs of the engine; else stages that others share
                go on as before.
        """
        for stage in self.stages:
            others = (each for each in stage.graphs if each is not self)
            if engine or not any(each.state in _COMES for each in others):
                stage.drain()

    def count_also(self, before: ServedGraph) -> None:
        """Count what another graph of its name and version has counted, in whose place it serves:
        counters never decrease.
        """
        found = {stage.name: stage for stage in self.stages}
        for stage in before.stages:
            successor = found.get(stage.name)
            if successor is not None and successor is not stage:
                successor.count_also(stage.statistics())

    def statistics(self) -> GraphStatistics:
        """A snapshot of its state."""
        return GraphStatistics(
            name=self.name,
            version=self.version,
            state=self.state.value,
            inside=self.inside,
            stages=tuple(stage.statistics() for stage in self.stages),
        )
