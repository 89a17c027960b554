"""Two graphs of one name and version that share the stages of ops that are the same in both."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from penstock.batching.batcher import Batcher, BatchPolicy
from penstock.engine.engine import Engine, EngineOptions
from penstock.engine.graph import ServedGraph
from penstock.engine.stage import Stage
from penstock.engine.submission import Submission
from penstock.errors import GraphError
from penstock.executors.work import WorkOptions
from penstock.request import Outcome
from penstock.testing.clock import ManualClock
from penstock.testing.executor import FakeExecutor
from tests.graph.test_dag import plan_of

PLAN = plan_of({"det": ["@"], "rec": ["det"]}, "rec")


class Workers(FakeExecutor):
    """Counts its starts and ends."""

    def __init__(self) -> None:
        super().__init__()
        self.started = self.closed = 0

    async def start(self) -> None:
        self.started += 1

    async def close(self, timeout: float) -> bool:
        self.closed += 1
        return True


class Graphs:
    """An engine with graphs of a detector and a recogniser."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.engine = Engine(self.clock, EngineOptions())
        self.outcomes: list[Outcome] = []

    def build(self, before: ServedGraph | None = None) -> ServedGraph:
        """A graph, which shares the detector of another one."""
        graph = ServedGraph(self.engine, PLAN, "read")
        if before is None:
            self._add(graph, "det")
        else:
            graph.share(before.stages[0])
        self._add(graph, "rec")
        return graph

    def _add(self, graph: ServedGraph, name: str) -> None:
        queue = Batcher(BatchPolicy(max_rows=2, window=5.0))
        graph.add_op(name, queue=queue, executor=Workers(), options=WorkOptions())

    def serving(self) -> ServedGraph:
        graph = self.build()
        self.engine.add(graph)
        return graph

    def replaced(self, old: ServedGraph) -> ServedGraph:
        """Another one, which serves in the place of the one that it shares the detector with."""
        new = self.build(old)
        self.engine.set_aside(new)
        self.engine.add(new, again=True)
        self.engine.drain_graph(old, lambda: None)
        return new

    def request(self) -> Submission:
        graph = self.engine.choose("read")
        assert graph is not None
        submission = Submission(graph, {"x": graph})
        submission.start(lambda _, outcome: self.outcomes.append(outcome))
        self.clock.run()
        return submission

    def finish(self, stage: Stage) -> None:
        workers_of(stage).finish()
        self.clock.run()


def workers_of(stage: Stage) -> Workers:
    assert isinstance(stage.executor, Workers)
    return stage.executor


def samples_of(stage: Stage) -> list[Any]:
    """The requests of the batches that run."""
    return [sample.flight for each in workers_of(stage).batches() for sample in each.samples]


def test_a_request_runs_in_one_graph_to_its_end_and_shares_batches_of_the_shared_op() -> None:
    graphs = Graphs()
    old = graphs.serving()
    before = graphs.request()  # waits for its batch to fill
    new = graphs.build(old)
    graphs.engine.set_aside(new)
    graphs.engine.add(new, again=True)
    after = graphs.request()
    assert samples_of(old.stages[0]) == [before, after]
    graphs.engine.drain_graph(old, lambda: None)
    graphs.finish(old.stages[0])
    assert (old.inside, new.inside) == (1, 1)
    assert samples_of(old.stages[1]) == [before]  # no further one comes: its batch is not filled
    assert samples_of(new.stages[1]) == []  # it waits for one
    graphs.finish(old.stages[1])
    graphs.clock.advance(5.0)
    graphs.clock.run()
    assert samples_of(new.stages[1]) == [after]
    graphs.finish(new.stages[1])
    assert [each.error for each in graphs.outcomes] == [None, None]


def test_a_shared_op_waits_to_fill_its_batches_until_the_last_graph_drains() -> None:
    graphs = Graphs()
    old = graphs.serving()
    new = graphs.replaced(old)
    assert [each.draining for each in (*old.stages, *new.own)] == [False, True, False]
    graphs.engine.drain(lambda: None)
    assert all(each.draining for each in new.stages)


def test_a_graph_that_fails_aside_leaves_the_shared_op_as_it_was() -> None:
    graphs = Graphs()
    old = graphs.serving()
    new = graphs.build(old)
    graphs.engine.set_aside(new)
    graphs.engine.drain_graph(new, lambda: None)
    assert [each.draining for each in new.stages] == [False, True]
    asyncio.run(new.close(1.0))
    graphs.engine.remove(new)
    assert [workers_of(each).closed for each in new.stages] == [0, 1]
    assert old.stages[0].graphs == [old]


def test_workers_are_started_by_their_graph_and_end_with_the_last_one() -> None:
    graphs = Graphs()
    old = graphs.serving()
    asyncio.run(old.start())
    new = graphs.replaced(old)
    asyncio.run(new.start())
    assert [workers_of(each).started for each in (*old.stages, *new.own)] == [1, 1, 1]
    asyncio.run(old.close(1.0))
    asyncio.run(old.close(1.0))
    graphs.engine.remove(old)
    assert [workers_of(each).closed for each in (*old.stages, *new.own)] == [0, 1, 0]
    last = graphs.replaced(new)
    asyncio.run(new.close(1.0))
    assert [workers_of(each).closed for each in new.stages] == [0, 1]
    asyncio.run(last.close(1.0))
    assert [workers_of(each).closed for each in last.stages] == [1, 1]
    with pytest.raises(GraphError, match="op 'det' has ended"):
        graphs.build(last)


def test_an_engine_has_a_shared_op_once_and_its_counters_never_decrease() -> None:
    graphs = Graphs()
    old = graphs.serving()
    for _ in range(2):
        graphs.request()
    for stage in old.stages:
        graphs.finish(stage)
    new = graphs.replaced(old)
    assert graphs.engine.stages == [*old.stages, *new.own]
    asyncio.run(old.close(1.0))
    graphs.engine.remove(old)
    assert graphs.engine.stages == new.stages
    assert [each.samples for each in new.statistics().stages] == [2, 2]
