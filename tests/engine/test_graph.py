"""Graphs in an engine: found by name, added, drained, removed and replaced while others serve."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from penstock.batching.batcher import Batcher, BatchPolicy
from penstock.engine.engine import Engine, EngineOptions
from penstock.engine.graph import GraphState, ServedGraph
from penstock.engine.submission import Submission
from penstock.errors import GraphError, ServiceClosed
from penstock.executors.work import WorkOptions
from penstock.request import Outcome
from penstock.testing.clock import ManualClock
from penstock.testing.executor import FakeExecutor
from tests.graph.test_dag import plan_of


class Gone(FakeExecutor):
    """Its workers have died."""

    @property
    def alive(self) -> bool:
        return False


class Site:
    """An engine with graphs of one op each, whose workers do as told."""

    def __init__(self, **options: Any) -> None:
        self.clock = ManualClock()
        self.engine = Engine(self.clock, EngineOptions(**options))
        self.workers: dict[ServedGraph, FakeExecutor] = {}
        self.told: list[Outcome] = []
        self.rested: list[ServedGraph] = []

    def build(self, name: str | None, version: str = "1") -> ServedGraph:
        graph = ServedGraph(self.engine, plan_of({"op": ["@"]}, "op"), name, version)
        worker = self.workers[graph] = FakeExecutor(1)
        graph.add_op("op", queue=Batcher(BatchPolicy()), executor=worker, options=WorkOptions())
        return graph

    def add(self, name: str | None, version: str = "1") -> ServedGraph:
        graph = self.build(name, version)
        self.engine.add(graph)
        return graph

    def ask(self, graph: ServedGraph) -> Submission:
        asked = Submission(graph, {})
        asked.start(lambda _, outcome: self.told.append(outcome))
        self.clock.run()
        return asked

    def finish(self, graph: ServedGraph) -> None:
        self.workers[graph].finish()
        self.clock.run()


def test_a_graph_is_found_by_its_name_and_version() -> None:
    site = Site()
    a, b, newer = site.add("a"), site.add("b"), site.add("a", "2")
    find = site.engine.graph
    assert (find("a"), find("b"), find("a", "1"), find("a", "2")) == (newer, b, a, newer)
    assert (find("c"), find("a", "3")) == (None, None)


def test_no_name_means_the_only_graph_there_is() -> None:
    site = Site()
    a = site.add("a")
    assert site.engine.graph("") is a
    site.add("b")
    assert site.engine.graph("") is None


def test_a_graph_without_a_name_takes_every_name_that_no_other_has() -> None:
    site = Site()
    a, every = site.add("a"), site.add(None)
    find = site.engine.graph
    assert (find("a"), find("x"), find("")) == (a, every, every)


def test_two_of_one_name_and_version_are_an_error() -> None:
    site = Site()
    site.add("a")
    with pytest.raises(GraphError, match="two graphs a"):
        site.add("a")


def test_limits_and_ids_are_the_engines() -> None:
    site = Site(max_requests=2, id_step=3)
    a, b = site.add("a"), site.add("b")
    assert [site.ask(a).data_id, site.ask(b).data_id, site.ask(b).refused] == [0, 3, True]


def test_a_drained_graph_finishes_what_it_has_and_takes_nothing_new() -> None:
    site = Site()
    a, b = site.add("a"), site.add("b")
    site.ask(a)
    site.ask(a)
    site.engine.drain_graph(a, lambda: site.rested.append(a))
    assert site.engine.graph("a") is None
    assert site.ask(a).refused
    (refusal,) = site.told
    assert isinstance(refusal.error, ServiceClosed)
    site.ask(b)
    site.finish(b)
    with pytest.raises(GraphError, match="2 requests inside"):
        site.engine.remove(a)
    site.finish(a)
    assert site.rested == []
    site.finish(a)
    assert site.rested == [a]
    site.engine.remove(a)
    assert a.state is GraphState.REMOVED
    assert site.engine.graphs == [b]
    assert [outcome.error for outcome in site.told[1:]] == [None] * 3


def test_a_graph_at_rest_is_drained_at_once_and_does_not_come_back() -> None:
    site = Site()
    a = site.add("a")
    site.engine.drain_graph(a, lambda: site.rested.append(a))
    assert site.rested == [a]
    with pytest.raises(GraphError, match="draining"):
        site.engine.drain_graph(a, lambda: None)
    site.engine.remove(a)
    with pytest.raises(GraphError, match="removed"):
        site.engine.add(a)


def test_a_new_version_takes_the_name_over_while_the_old_one_finishes() -> None:
    site = Site()
    old = site.add("a")
    site.ask(old)
    decoded = Submission(old, {})  # before the change, and started after it
    new = site.build("a", "2")
    assert site.engine.replace(new, site.rested.append) == [old]
    assert site.engine.graph("a") is new
    decoded.start(lambda _, outcome: site.told.append(outcome))
    site.clock.run()
    assert (old.inside, new.inside, site.rested) == (1, 1, [])
    site.finish(old)
    assert site.rested == [old]
    site.finish(new)
    assert [outcome.error for outcome in site.told] == [None, None]


def test_a_stuck_graph_makes_the_engine_unready_until_it_is_drained() -> None:
    site = Site()
    a = site.add("a")
    site.add("b")
    a.stages[0].executor = Gone()
    assert site.engine.why_stuck() == "op 'op': it has no worker"
    site.engine.drain_graph(a, lambda: None)
    assert site.engine.why_stuck() is None


@pytest.mark.parametrize("seed", range(40))
def test_graphs_come_and_go_at_random_and_every_request_is_answered_once(seed: int) -> None:
    random = Random(seed)
    site = Site(max_requests=random.choice((3, 1024)), max_running=random.choice((None, 2)))
    versions = dict.fromkeys("ab", 0)
    rested: list[ServedGraph] = []
    asked: dict[Submission, int] = {}
    cancelled = 0
    serving = [site.add(name, "0") for name in versions]

    def told(submission: Submission, _: Outcome) -> None:
        asked[submission] += 1

    for _ in range(400):
        step = random.random()
        if step < 0.6:
            submission = Submission(random.choice(serving), {})
            asked[submission] = 0
            submission.start(told)
        elif step < 0.9:
            busy = [worker for worker in site.workers.values() if worker.running]
            if busy:
                random.choice(busy).finish()
        elif step < 0.94:
            open_ = [each for each in asked if not each.over]
            if open_:
                gone = random.choice(open_)
                gone.cancel()
                asked[gone] += 1
                cancelled += 1
        else:
            name = random.choice("ab")
            versions[name] += 1
            new = site.build(name, str(versions[name]))
            site.engine.replace(new, rested.append)
            serving.append(new)  # those of old versions are asked on, as decoders may
        while rested:
            site.engine.remove(rested.pop())
        site.clock.run()
    site.engine.drain(lambda: site.rested.append(serving[0]))
    while any(worker.running for worker in site.workers.values()):
        for worker in site.workers.values():
            if worker.running:
                worker.finish()
        site.clock.run()
    assert set(asked.values()) == {1}
    assert site.rested
    stats = site.engine.statistics()
    assert stats.admitted == stats.replied + stats.cancelled
    assert stats.admitted + stats.refused == len(asked)
    assert stats.cancelled == cancelled
