"""A graph that ends before its successor is there: its requests wait, within their deadlines."""

from __future__ import annotations

import pytest

from penstock.engine.graph import GraphState, ServedGraph
from penstock.engine.submission import Submission
from penstock.errors import DeadlineExceeded, InputMismatch, ServiceBusy, ServiceClosed
from penstock.tensor import Signature
from tests.engine.test_graph import EngineOfGraphs


class Held(EngineOfGraphs):
    """An engine whose graph "a" is held."""

    def __init__(self, **options: object) -> None:
        super().__init__(**options)
        self.old = self.add("a")
        self.engine.hold_graph(self.old, lambda: self.drained.append(self.old))

    def succeed(self, version: str = "2", signature: Signature | None = None) -> ServedGraph:
        """Serve a successor in its place."""
        new = self.build("a", version, signature)
        self.engine.add(new, default=True, again=True)
        self.engine.release_graph(self.old)
        self.clock.run()
        return new


def test_a_held_graph_finishes_its_requests_and_others_wait_for_its_successor() -> None:
    harness = EngineOfGraphs()
    old = harness.add("a")
    running = harness.request(old)
    harness.engine.hold_graph(old, lambda: harness.drained.append(old))
    found = harness.engine.choose("a")
    assert found is old
    waiting = [harness.request(found) for _ in range(3)]
    assert (harness.drained, harness.outcomes) == ([], [])
    harness.finish(old)
    assert (harness.drained, running.over) == ([old], True)
    assert [each.over for each in waiting] == [False] * 3
    new = harness.build("a", "2")
    harness.engine.add(new, again=True, default=True)
    harness.engine.release_graph(old)
    assert [each.graph for each in waiting] == [new] * 3
    harness.engine.remove(old)
    harness.clock.run()
    while not all(each.over for each in waiting):
        harness.finish(new)
    assert [each.error for each in harness.outcomes] == [None] * 4
    seen = harness.engine.statistics()
    assert (seen.admitted, seen.replied, seen.inside, new.inside) == (4, 4, 0, 0)


def test_who_waits_is_answered_at_its_deadline() -> None:
    harness = Held(time_limit=5.0)
    harness.request(harness.old)
    harness.clock.advance(6.0)
    assert isinstance(harness.outcomes[0].error, DeadlineExceeded)
    harness.succeed()
    assert harness.engine.statistics().inside == 0
    assert len(harness.outcomes) == 1


def test_who_waits_may_leave() -> None:
    harness = Held()
    harness.engine.cancel(harness.request(harness.old))
    new = harness.succeed()
    assert (new.inside, harness.engine.statistics().cancelled) == (0, 1)
    harness.engine.remove(harness.old)


def test_a_named_version_waits_for_itself_and_for_no_other() -> None:
    harness = Held()
    harness.request(harness.old, asked="1")
    harness.succeed("2")
    assert isinstance(harness.outcomes[0].error, ServiceClosed)

    again = Held()
    again.request(again.old, asked="1")
    new = again.succeed("1")
    again.finish(new)
    assert again.outcomes[0].error is None


def test_who_waits_is_refused_if_there_is_no_successor_that_may_run_it() -> None:
    harness = Held()
    harness.request(harness.old)
    harness.succeed("2", Signature(inputs={"x": ("FP32", [-1])}))
    assert isinstance(harness.outcomes[0].error, InputMismatch)

    alone = Held()
    alone.request(alone.old)
    alone.engine.release_graph(alone.old)
    assert isinstance(alone.outcomes[0].error, ServiceClosed)
    assert alone.engine.choose("a") is None


def test_those_who_wait_leave_half_of_the_capacity_to_others() -> None:
    harness = Held(max_requests=6)
    other = harness.add("b")
    for _ in range(3):
        harness.request(harness.old)
    refused = harness.request(harness.old)
    assert refused.refused
    assert isinstance(harness.outcomes[0].error, ServiceBusy)
    assert not harness.request(other).refused


@pytest.mark.parametrize("levels", [1, 2])
def test_those_who_wait_are_not_among_the_running_ones(levels: int) -> None:
    harness = Held(max_running=1, levels=levels)
    other = harness.add("b")
    waiting = [harness.request(harness.old) for _ in range(2)]
    beside = harness.request(other)
    harness.finish(other)
    assert beside.over
    new = harness.succeed()
    assert new.inside == 2
    for _ in waiting:
        assert len([each for each in waiting if each.samples]) <= 1  # they run one by one
        harness.finish(new)
    assert [each.over for each in waiting] == [True, True]
    assert harness.engine.statistics().waiting == 0


def test_the_service_is_ready_while_requests_wait_and_the_model_is_not() -> None:
    harness = Held()
    assert harness.engine.why_stuck() is None
    assert "is being replaced" in str(harness.old.why_stuck())
    assert harness.engine.serving("a") == []


def test_the_end_of_the_service_answers_who_waits() -> None:
    harness = Held()
    harness.request(harness.old)
    decoded = Submission(harness.old, {})
    harness.engine.drain(lambda: None)
    decoded.start(lambda _, outcome: harness.outcomes.append(outcome))
    assert isinstance(harness.outcomes[0].error, ServiceClosed)
    harness.engine.close()
    assert [type(each.error) for each in harness.outcomes] == [ServiceClosed] * 2
    assert harness.old.state is GraphState.HELD
