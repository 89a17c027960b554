"""Graphs in an engine: found by name, added, drained, removed and replaced while others serve."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from random import Random
from typing import Any

import pytest

from penstock.batching.batcher import Batcher, BatchPolicy
from penstock.engine.engine import Engine, EngineOptions
from penstock.engine.graph import GraphState, ServedGraph
from penstock.engine.submission import Submission
from penstock.errors import GraphError, InputMismatch, ServiceClosed
from penstock.executors.work import WorkOptions
from penstock.request import Outcome
from penstock.tensor import Signature
from penstock.testing.clock import ManualClock
from penstock.testing.executor import FakeExecutor
from tests.graph.test_dag import plan_of


class DeadExecutor(FakeExecutor):
    """An executor whose workers have died."""

    @property
    def alive(self) -> bool:
        return False


class EngineOfGraphs:
    """An engine with graphs of one op each, whose fake workers finish on demand."""

    def __init__(self, **options: Any) -> None:
        self.clock = ManualClock()
        self.engine = Engine(self.clock, EngineOptions(**options))
        self.workers: dict[ServedGraph, FakeExecutor] = {}
        self.outcomes: list[Outcome] = []
        self.drained: list[ServedGraph] = []

    def build(
        self, name: str | None, version: str = "1", signature: Signature | None = None
    ) -> ServedGraph:
        plan = plan_of({"op": ["@"]}, "op")
        graph = ServedGraph(self.engine, plan, name, version, declared=lambda: signature)
        worker = self.workers[graph] = FakeExecutor(1)
        graph.add_op("op", queue=Batcher(BatchPolicy()), executor=worker, options=WorkOptions())
        return graph

    def add(self, name: str | None, version: str = "1") -> ServedGraph:
        graph = self.build(name, version)
        self.engine.add(graph)
        return graph

    def request(self, graph: ServedGraph, *, asked: str | None = None) -> Submission:
        submission = Submission(graph, {})
        submission.asked = asked
        submission.start(lambda _, outcome: self.outcomes.append(outcome))
        self.clock.run()
        return submission

    def finish(self, graph: ServedGraph) -> None:
        self.workers[graph].finish()
        self.clock.run()


def test_a_graph_is_chosen_by_its_name_and_version() -> None:
    harness = EngineOfGraphs()
    a, b, newer = harness.add("a"), harness.add("b"), harness.add("a", "2")
    for find in (harness.engine.choose, harness.engine.graph):
        assert (find("a"), find("b"), find("a", "1"), find("a", "2")) == (a, b, a, newer)
        assert (find("c"), find("a", "3")) == (None, None)


def test_the_default_version_is_the_one_that_was_made_it_not_the_one_added_last() -> None:
    harness = EngineOfGraphs()
    first, second = harness.add("a", "1"), harness.add("a", "2")
    harness.engine.make_default(second)
    assert harness.engine.choose("a") is harness.engine.choose("") is second
    harness.engine.drain_graph(first, lambda: None)
    harness.engine.remove(first)
    again = harness.add("a", "1")
    assert harness.engine.choose("a") is second
    harness.engine.drain_graph(second, lambda: None)
    assert harness.engine.choose("a") is None  # nobody said that version 1 is to take over
    with pytest.raises(GraphError, match="draining and cannot be the default"):
        harness.engine.make_default(second)
    harness.engine.make_default(again)
    assert harness.engine.choose("a") is again


def test_requests_for_a_graph_that_is_aside_run_in_it_and_callers_do_not_find_it() -> None:
    harness = EngineOfGraphs()
    old, new = harness.add("a", "1"), harness.build("a", "2")
    harness.engine.set_aside(new)
    harness.request(new)
    assert (old.inside, new.inside) == (0, 1)
    assert (harness.engine.choose("a"), harness.engine.choose("a", "2")) == (old, None)
    assert [each.state for each in harness.engine.statistics().graphs] == ["serving", "aside"]
    with pytest.raises(GraphError, match="two graphs a"):
        harness.engine.set_aside(harness.build("a", "2"))
    with pytest.raises(GraphError, match="1 requests inside"):
        harness.engine.remove(new)
    harness.finish(new)
    harness.engine.remove(new)
    assert (harness.engine.aside, harness.engine.graphs) == ([], [old])


def test_a_warm_up_request_takes_no_room_of_the_callers() -> None:
    harness = EngineOfGraphs(max_requests=1)
    old, new = harness.add("a", "1"), harness.build("a", "2")
    harness.engine.set_aside(new)
    assert not harness.request(old).refused
    warm_up = Submission(new, {})
    harness.engine.add_room(warm_up)
    warm_up.start(lambda _, outcome: harness.outcomes.append(outcome))
    harness.clock.run()
    assert (old.inside, new.inside) == (1, 1)
    harness.finish(old)
    assert not harness.request(old).refused
    harness.finish(new)
    assert harness.request(old).refused


def test_a_request_that_names_a_version_runs_in_that_version_or_is_refused() -> None:
    harness = EngineOfGraphs()
    old = harness.add("a", "1")
    harness.request(old, asked="1")
    harness.engine.replace(harness.build("a", "2"), harness.drained.append)
    assert harness.engine.choose("a", "1") is old  # it drains
    assert harness.request(old, asked="1").refused
    assert not harness.request(old).refused
    assert isinstance(harness.outcomes[0].error, ServiceClosed)


def test_a_label_names_one_of_several_versions_and_moves_at_once() -> None:
    harness = EngineOfGraphs()
    old, new = harness.add("a", "1"), harness.add("a", "2")
    harness.engine.route("a", default=old, labels={"stable": old, "canary": new})
    find = harness.engine.choose
    assert [find("a", text) for text in ("stable", "canary", "1", "2", "best")] == [
        old,
        new,
        old,
        new,
        None,
    ]
    assert find("a") is old
    chosen = find("a", "stable")
    harness.engine.route("a", default=new, labels={"stable": new})
    harness.engine.drain_graph(old, lambda: None)
    assert (find("a", "stable"), find("a", "canary")) == (new, None)
    assert chosen is old
    assert not harness.request(chosen, asked="stable").refused  # decoded before the label moved
    assert new.inside == 1
    assert harness.request(old, asked="1").refused
    with pytest.raises(GraphError, match="draining and cannot be the default"):
        harness.engine.route("a", default=new, labels={"stable": old})


def test_requests_that_name_no_version_are_drawn_by_the_weights() -> None:
    harness = EngineOfGraphs()
    old, new, b = harness.add("a", "1"), harness.add("a", "2"), harness.add("b")
    harness.engine.route("a", default=old, weights={old: 9, new: 1})
    drawn = Counter(harness.engine.choose("a") for _ in range(5000))
    assert 250 < drawn[new] < 800
    assert drawn.total() == drawn[old] + drawn[new]
    assert harness.engine.graph("a") is old  # descriptions are those of the default
    assert {harness.engine.choose("b") for _ in range(50)} == {b}
    assert {harness.engine.choose("a", "2") for _ in range(50)} == {new}
    harness.engine.route("a", default=old)
    assert {harness.engine.choose("a") for _ in range(200)} == {old}


class Door:
    """What a draw reads of a call: its header fields."""

    def __init__(self, **fields: bytes) -> None:
        self.exchange = self.head = self
        self.fields = {name.encode(): value for name, value in fields.items()}


@pytest.mark.parametrize("names", [{"a": "User"}, {"*": "user"}])
def test_requests_with_weights_are_drawn_by_a_header_field(names: dict[str, str]) -> None:
    harness = EngineOfGraphs(sticky=names)
    old, new = harness.add("a", "1"), harness.add("a", "2")

    def drawn(share: int) -> set[int]:
        harness.engine.route("a", default=old, weights={old: 100 - share, new: share})
        found = set()
        for user in range(1000):
            call = Door(user=b"%d" % user)
            graphs = {harness.engine.choose("a", call=call) for _ in range(3)}
            found |= {user} if graphs == {new} else set()
            assert len(graphs) == 1
        return found

    few = drawn(5)
    assert 20 < len(few) < 90
    assert few < drawn(10)
    assert {harness.engine.choose("a", call=Door()) for _ in range(500)} == {old, new}
    assert {harness.engine.choose("a") for _ in range(500)} == {old, new}
    assert harness.engine.choose("a", "1", Door(user=b"%d" % min(few))) is old


def test_requests_with_weights_are_drawn_by_their_log_ids() -> None:
    harness = EngineOfGraphs(sticky={"a": "log_id"})
    old, new = harness.add("a", "1"), harness.add("a", "2")
    harness.engine.route("a", default=old, weights={old: 1, new: 1})
    for log_id in range(1, 50):
        assert len({harness.engine.choose("a", log_id=log_id) for _ in range(20)}) == 1
    assert {harness.engine.choose("a", log_id=0) for _ in range(100)} == {old, new}


def test_a_state_says_itself_by_what_its_requests_are_drawn() -> None:
    harness = EngineOfGraphs(sticky={"*": "user"})
    old, new = harness.add("a", "1"), harness.add("a", "2")
    harness.engine.route("a", default=old, weights={old: 1, new: 1}, sticky="log_id")
    for log_id in range(1, 50):
        found = {harness.engine.choose("a", call=Door(), log_id=log_id) for _ in range(20)}
        assert len(found) == 1


def test_an_engine_knows_how_long_the_requests_of_a_version_wait() -> None:
    harness = EngineOfGraphs()
    old, new = harness.add("a", "1"), harness.add("a", "2")
    harness.request(old)
    assert harness.engine.waiting(old) == [0.0]
    assert harness.engine.waiting(new) == []


def test_a_version_takes_the_place_of_another_one_with_the_same_text() -> None:
    harness = EngineOfGraphs()
    old, again = harness.add("a", "1"), harness.build("a", "1")
    harness.engine.set_aside(again)
    with pytest.raises(GraphError, match="two graphs a"):
        harness.engine.add(again)
    harness.engine.add(again, again=True)
    assert harness.engine.choose("a") is harness.engine.choose("a", "1") is again
    harness.engine.drain_graph(old, lambda: harness.drained.append(old))
    assert not harness.request(old, asked="1").refused  # decoded before: version 1 is another one
    assert again.inside == 1
    harness.engine.remove(old)
    assert harness.engine.choose("a", "1") is again
    assert [*harness.engine.removed] == []  # reports still have the version


def test_an_engine_remembers_the_versions_that_were_removed_last() -> None:
    harness = EngineOfGraphs()
    for number in range(300):
        graph = harness.add("a", str(number))
        harness.engine.drain_graph(graph, lambda: None)
        harness.engine.remove(graph)
    assert [version for _, version in harness.engine.removed] == [*map(str, range(44, 300))]


def test_a_request_does_not_go_to_another_version_with_another_signature() -> None:
    harness = EngineOfGraphs()
    takes_x = Signature(inputs={"x": ("FP32", [-1])})
    old = harness.build("a", "1", takes_x)
    harness.engine.add(old)
    decoded = Submission(old, {})
    harness.engine.replace(harness.build("a", "2"), harness.drained.append)
    decoded.start(lambda _, outcome: harness.outcomes.append(outcome))
    assert decoded.refused
    assert isinstance(harness.outcomes[0].error, InputMismatch)
    assert str(harness.outcomes[0].error) == (
        "version 2 has taken the place of version 1 before this request began, and has another"
        " signature: it declares no inputs"
    )


@pytest.mark.parametrize("asked", [None, "1", "canary"])
def test_a_graph_runs_what_was_being_decoded_for_it_when_it_was_replaced(asked: str | None) -> None:
    harness = EngineOfGraphs()
    old = harness.build("a", "1", Signature(inputs={"x": ("FP32", [-1])}))
    harness.engine.add(old)
    harness.engine.route("a", default=old, labels={"canary": old})
    with harness.engine.arriving():
        decoded = Submission(old, {})
        decoded.asked = asked
        new = harness.build("a", "2", Signature(inputs={"x": ("FP32", [2])}))
        harness.engine.replace(new, harness.drained.append)
        harness.engine.route("a", default=new, labels={"canary": new})
        assert harness.drained == []
        with harness.engine.arriving():
            pass  # one that came after the change does not matter
        assert harness.drained == []
        decoded.start(lambda _, outcome: harness.outcomes.append(outcome))
    harness.clock.run()
    assert (old.inside, new.inside, harness.drained) == (1, 0, [])
    harness.finish(old)
    assert [each.error for each in harness.outcomes] == [None]
    assert harness.drained == [old]


def test_a_graph_ends_when_what_was_being_decoded_for_it_has_failed_or_runs_in_another_one() -> (
    None
):
    harness = EngineOfGraphs()
    first, second = harness.add("a", "1"), harness.build("a", "2")
    with suppress(ZeroDivisionError), harness.engine.arriving():
        harness.engine.replace(second, harness.drained.append)
        raise ZeroDivisionError
    assert harness.drained == [first]
    third = harness.build("a", "3")
    with harness.engine.arriving():
        decoded = Submission(second, {})
        harness.engine.replace(third, harness.drained.append)
        decoded.start(lambda _, outcome: harness.outcomes.append(outcome))
    assert (second.inside, third.inside, harness.drained) == (0, 1, [first, second])


@pytest.mark.parametrize("streams", [True, False])
def test_a_request_for_pieces_goes_to_no_version_without_them(streams: bool) -> None:
    harness = EngineOfGraphs()
    old, new = harness.build("a", "1"), harness.build("a", "2")
    old.streams, new.streams = streams, not streams
    harness.engine.add(old)
    decoded = Submission(old, {})
    harness.engine.replace(new, harness.drained.append)
    decoded.start(lambda _, outcome: harness.outcomes.append(outcome))
    assert decoded.refused
    assert isinstance(harness.outcomes[0].error, InputMismatch)


def test_an_empty_name_finds_the_only_graph() -> None:
    harness = EngineOfGraphs()
    a = harness.add("a")
    assert harness.engine.graph("") is a
    harness.add("b")
    assert harness.engine.graph("") is None


def test_a_graph_without_a_name_serves_every_name_that_no_other_has() -> None:
    harness = EngineOfGraphs()
    a, every = harness.add("a"), harness.add(None)
    find = harness.engine.graph
    assert (find("a"), find("x"), find("")) == (a, every, every)


def test_two_graphs_of_the_same_name_and_version_are_an_error() -> None:
    harness = EngineOfGraphs()
    harness.add("a")
    with pytest.raises(GraphError, match="two graphs a"):
        harness.add("a")


def test_limits_and_ids_are_common_to_all_graphs() -> None:
    harness = EngineOfGraphs(max_requests=2, id_step=3)
    a, b = harness.add("a"), harness.add("b")
    assert [harness.request(a).data_id, harness.request(b).data_id, harness.request(b).refused] == [
        0,
        3,
        True,
    ]


def test_a_drained_graph_finishes_its_requests_and_refuses_new_ones() -> None:
    harness = EngineOfGraphs()
    a, b = harness.add("a"), harness.add("b")
    harness.request(a)
    harness.request(a)
    harness.engine.drain_graph(a, lambda: harness.drained.append(a))
    assert harness.engine.graph("a") is None
    assert harness.request(a).refused
    (refusal,) = harness.outcomes
    assert isinstance(refusal.error, ServiceClosed)
    harness.request(b)
    harness.finish(b)
    with pytest.raises(GraphError, match="2 requests inside"):
        harness.engine.remove(a)
    harness.finish(a)
    assert harness.drained == []
    harness.finish(a)
    assert harness.drained == [a]
    harness.engine.remove(a)
    assert a.state is GraphState.REMOVED
    assert harness.engine.graphs == [b]
    assert [outcome.error for outcome in harness.outcomes[1:]] == [None] * 3


def test_an_idle_graph_is_drained_at_once_and_cannot_be_added_again() -> None:
    harness = EngineOfGraphs()
    a = harness.add("a")
    harness.engine.drain_graph(a, lambda: harness.drained.append(a))
    assert harness.drained == [a]
    with pytest.raises(GraphError, match="draining"):
        harness.engine.drain_graph(a, lambda: None)
    harness.engine.remove(a)
    with pytest.raises(GraphError, match="removed"):
        harness.engine.add(a)


def test_a_new_version_gets_new_requests_while_the_old_one_finishes() -> None:
    harness = EngineOfGraphs()
    old = harness.add("a")
    harness.request(old)
    decoded = Submission(old, {})  # made before the replacement, and started after it
    new = harness.build("a", "2")
    assert harness.engine.replace(new, harness.drained.append) == [old]
    assert harness.engine.graph("a") is new
    decoded.start(lambda _, outcome: harness.outcomes.append(outcome))
    harness.clock.run()
    assert (old.inside, new.inside, harness.drained) == (1, 1, [])
    harness.finish(old)
    assert harness.drained == [old]
    harness.finish(new)
    assert [outcome.error for outcome in harness.outcomes] == [None, None]


def test_a_graph_without_workers_makes_the_engine_unready_until_it_is_drained() -> None:
    harness = EngineOfGraphs()
    a = harness.add("a")
    harness.add("b")
    a.stages[0].executor = DeadExecutor()
    assert harness.engine.why_stuck() == "op 'op': it has no worker"
    harness.engine.drain_graph(a, lambda: None)
    assert harness.engine.why_stuck() is None


def test_a_version_without_workers_that_is_not_the_default_leaves_the_engine_ready() -> None:
    harness = EngineOfGraphs()
    harness.add("a", "1")
    canary = harness.add("a", "2")
    canary.stages[0].executor = DeadExecutor()
    assert harness.engine.why_stuck() is None
    assert canary.why_stuck() == "op 'op': it has no worker"
    harness.engine.make_default(canary)
    assert harness.engine.why_stuck() == "op 'op': it has no worker"


@pytest.mark.parametrize("seed", range(40))
def test_every_request_is_answered_once_while_graphs_are_replaced_at_random(seed: int) -> None:
    random = Random(seed)
    harness = EngineOfGraphs(
        max_requests=random.choice((3, 1024)), max_running=random.choice((None, 2))
    )
    versions = dict.fromkeys("ab", 0)
    retired: list[ServedGraph] = []
    answers: dict[Submission, int] = {}
    cancelled = 0
    serving = [harness.add(name, "0") for name in versions]

    def count(submission: Submission, _: Outcome) -> None:
        answers[submission] += 1

    for _ in range(400):
        step = random.random()
        if step < 0.6:
            submission = Submission(random.choice(serving), {})
            answers[submission] = 0
            submission.start(count)
        elif step < 0.9:
            busy = [worker for worker in harness.workers.values() if worker.running]
            if busy:
                random.choice(busy).finish()
        elif step < 0.94:
            open_ = [each for each in answers if not each.over]
            if open_:
                cancelled_one = random.choice(open_)
                cancelled_one.cancel()
                answers[cancelled_one] += 1
                cancelled += 1
        else:
            name = random.choice("ab")
            versions[name] += 1
            new = harness.build(name, str(versions[name]))
            harness.engine.replace(new, retired.append)
            serving.append(new)  # requests still reach old versions, as from slow decoders
        while retired:
            harness.engine.remove(retired.pop())
        harness.clock.run()
    harness.engine.drain(lambda: harness.drained.append(serving[0]))
    while any(worker.running for worker in harness.workers.values()):
        for worker in harness.workers.values():
            if worker.running:
                worker.finish()
        harness.clock.run()
    assert set(answers.values()) == {1}
    assert harness.drained
    stats = harness.engine.statistics()
    assert stats.admitted == stats.replied + stats.cancelled
    assert stats.admitted + stats.refused == len(answers)
    assert stats.cancelled == cancelled
