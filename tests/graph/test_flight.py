"""A flight runs each op once, with all its inputs, and ends exactly once, in any order of
arrivals."""

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import HookFailed, OpTimeout, RequestError, ValueLost
from penstock.graph.dag import OpSpec, Plan, compile_graph
from penstock.graph.flight import Flight, Put
from penstock.request import Outcome

from .test_dag import plan_of


def run_flight(
    plan: Plan, outcomes: dict[str, Outcome], chooser: random.Random
) -> tuple[Outcome | None, list[str], dict[str, dict[str, Any]]]:
    """Runs a graph. Ops without a given outcome return a dict with their own name. Returns the
    flight's end, the ops in order, and the inputs of each."""
    flight = Flight(plan)
    ready: list[Put] = flight.begin({"from": "request"})
    ran: list[str] = []
    inputs_of: dict[str, dict[str, Any]] = {}
    end: Outcome | None = None
    while ready:
        op, inputs_now = ready.pop(chooser.randrange(len(ready)))
        name = plan.names[op]
        ran.append(name)
        inputs_of[name] = {sender: dict(feed) for sender, feed in inputs_now.items()}
        answer = flight.arrived(op, outcomes.get(name, Outcome({"from": name})))
        if isinstance(answer, Outcome):
            assert end is None, "a flight ends once"
            end = answer
        else:
            ready.extend(answer)
    return end, ran, inputs_of


@st.composite
def graphs(draw: st.DrawFn) -> Plan:
    """Any valid graph of up to eight ops, each an ancestor of the last op."""
    size = draw(st.integers(1, 8))
    edges: dict[str, list[str]] = {}
    for number in range(size):
        before = ["@", *(f"op{i}" for i in range(number))]
        edges[f"op{number}"] = draw(
            st.lists(st.sampled_from(before), min_size=1, max_size=3, unique=True)
        )
    fed = {name for inputs in edges.values() for name in inputs}
    last = edges[f"op{size - 1}"]
    last.extend(name for name in edges if name not in fed and name != f"op{size - 1}")
    if len(last) > 1 and "@" in last and size > 1:
        last.remove("@")
    return plan_of(edges, f"op{size - 1}")


@given(plan=graphs(), seed=st.integers())
def test_every_op_runs_once_after_its_inputs_and_the_last_one_replies(
    plan: Plan, seed: int
) -> None:
    end, ran, inputs_of = run_flight(plan, {}, random.Random(seed))
    assert end is not None
    assert end.value == {"from": plan.names[plan.last]}
    assert sorted(ran) == sorted(plan.names)
    for op, name in enumerate(plan.names):
        senders = {plan.names[i] if i >= 0 else "@DAGExecutor" for i in plan.inputs[op]}
        assert set(inputs_of[name]) == senders
        assert all(
            ran.index(sender) < ran.index(name) for sender in senders if sender in plan.names
        )


@given(plan=graphs(), seed=st.integers(), data=st.data())
def test_the_first_error_in_producer_order_wins_whatever_the_timing(
    plan: Plan, seed: int, data: st.DataObject
) -> None:
    failing = data.draw(st.lists(st.sampled_from(plan.names), min_size=1, unique=True))
    outcomes = {name: Outcome(None, HookFailed(name)) for name in failing}
    answers = []
    for salt in range(4):
        end, ran, _ = run_flight(plan, outcomes, random.Random(seed + salt))
        assert end is not None
        assert end.error is not None
        answers.append((str(end.error), sorted(ran)))
    assert len(set(map(repr, answers))) == 1


def test_an_error_skips_the_hooks_of_later_ops() -> None:
    plan = plan_of({"a": ["@"], "b": ["a"], "c": ["b"]}, "c")
    end, ran, _ = run_flight(plan, {"a": Outcome(None, HookFailed("broken"))}, random.Random(0))
    assert ran == ["a"]
    assert end is not None
    assert str(end.error) == "broken"


def test_each_consumer_gets_its_own_copy_of_a_dict() -> None:
    plan = plan_of({"a": ["@"], "b": ["@"], "c": ["a", "b"]}, "c")
    (_, first), (_, second) = Flight(plan).begin({"x": 1})
    first["@DAGExecutor"]["x"] = 2
    assert second["@DAGExecutor"]["x"] == 1


@pytest.mark.parametrize("error", [OpTimeout("slow"), ValueLost("gone")])
def test_a_graph_that_timed_out_or_lost_a_value_is_retried_with_the_original_feed(
    error: RequestError,
) -> None:
    plan = plan_of({"a": ["@"]}, "a", attempts=2)
    flight = Flight(plan)
    [(_, inputs)] = flight.begin({"x": 1})
    inputs["@DAGExecutor"]["x"] = "edited in place"
    again = flight.arrived(0, Outcome(None, error))
    assert again == [(0, {"@DAGExecutor": {"x": 1}})]
    end = flight.arrived(0, Outcome(None, error))
    assert isinstance(end, Outcome)
    assert flight.ended


def test_only_timeouts_are_retried() -> None:
    flight = Flight(plan_of({"a": ["@"]}, "a", attempts=3))
    flight.begin({})
    assert isinstance(flight.arrived(0, Outcome(None, HookFailed("no"))), Outcome)


def test_a_join_on_first_arrival_runs_with_one_input_and_ignores_the_others() -> None:
    plan = plan_of({"a": ["@"], "b": ["@"], "c": ["a", "b"]}, "c", first_arrival=True)
    flight = Flight(plan)
    flight.begin({})
    names = plan.names
    assert flight.arrived(names.index("b"), Outcome({"v": 1})) == [(2, {"b": {"v": 1}})]
    assert flight.arrived(names.index("a"), Outcome({"v": 2})) == []
    end = flight.arrived(2, Outcome({"done": 1}))
    assert isinstance(end, Outcome)


def jumping(edges: dict[str, list[str]], last: str, jumper: str, targets: list[str]) -> Plan:
    keys = {name: number for number, name in enumerate(edges, start=1)}
    specs = [OpSpec(key=0, name="request", is_request=True)] + [
        OpSpec(
            key=keys[n],
            name=n,
            inputs=tuple(keys.get(i, 0) for i in mine),
            jump_to=tuple(keys[t] for t in targets) if n == jumper else (),
        )
        for n, mine in edges.items()
    ]
    return compile_graph(specs, keys[last])


@pytest.mark.parametrize("seed", range(5))
def test_a_jump_skips_the_ops_between_and_its_value_replaces_the_target_s(seed: int) -> None:
    edges = {"a": ["@"], "b": ["a"], "t": ["b"], "side": ["a"], "end": ["t", "side"]}
    plan = jumping(edges, "end", "a", ["t"])
    end, ran, inputs_of = run_flight(plan, {"a": Outcome({"v": 7}, jump=True)}, random.Random(seed))
    assert end is not None
    assert ran == ["a", "end"], "b and t are jumped over; side lost its only input"
    assert inputs_of["end"] == {"a": {"v": 7}}


def test_a_jump_to_the_last_op_ends_the_flight() -> None:
    plan = jumping({"a": ["@"], "b": ["a"]}, "b", "a", ["b"])
    end, ran, _ = run_flight(plan, {"a": Outcome({"v": 7}, jump=True)}, random.Random(0))
    assert ran == ["a"]
    assert end is not None
    assert end.value == {"v": 7}


def test_an_error_passes_through_a_graph_deeper_than_the_call_stack() -> None:
    edges = {"op0": ["@"], **{f"op{i}": [f"op{i - 1}"] for i in range(1, 3000)}}
    end, ran, _ = run_flight(
        plan_of(edges, "op2999"), {"op0": Outcome(None, HookFailed("first"))}, random.Random(0)
    )
    assert ran == ["op0"]
    assert end is not None
    assert str(end.error) == "first"
