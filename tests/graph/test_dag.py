"""Valid graphs compile; invalid ones are refused with the op's name and the fix."""

import re

import pytest

from penstock.errors import GraphError
from penstock.graph.dag import REQUEST, OpSpec, Plan, compile_graph


def plan_of(edges: dict[str, list[str]], last: str, **options: object) -> Plan:
    """Compiles ``{op: [inputs]}``; the input ``@`` is the request."""
    keys = {name: number for number, name in enumerate(edges, start=1)}
    specs = [OpSpec(key=0, name="request", is_request=True)] + [
        OpSpec(key=keys[n], name=n, inputs=tuple(keys.get(i, 0) for i in mine))
        for n, mine in edges.items()
    ]
    return compile_graph(specs, keys[last], **options)  # type: ignore[arg-type]


def test_a_diamond_compiles_with_every_op_after_its_inputs() -> None:
    plan = plan_of({"join": ["b", "a"], "b": ["top"], "a": ["top"], "top": ["@"]}, "join")
    at = plan.names.index
    assert plan.entry == (at("top"),)
    assert set(plan.consumers[at("top")]) == {at("a"), at("b")}
    assert plan.inputs[at("join")] == (at("b"), at("a")), "inputs keep the user's order"
    assert plan.last == at("join")
    assert plan.inputs[at("top")] == (REQUEST,)


def test_an_edge_may_skip_levels() -> None:
    plan = plan_of({"a": ["@"], "b": ["a"], "c": ["b"], "f": ["c", "a"]}, "f")
    assert plan.consumers[plan.names.index("a")] == (1, 3)


def test_a_cycle_is_refused_with_its_path() -> None:
    with pytest.raises(GraphError, match=re.escape("cycle through 'a' <- 'b' <- 'a'")):
        plan_of({"a": ["b"], "b": ["a"], "end": ["b", "@"]}, "end")


def test_a_cycle_through_the_last_op_is_refused() -> None:
    with pytest.raises(GraphError, match="cycle"):
        plan_of({"a": ["@", "end"], "end": ["a"]}, "end")


def test_two_ops_of_one_name_are_refused() -> None:
    specs = [
        OpSpec(key=0, name="request", is_request=True),
        OpSpec(key=1, name="twin", inputs=(0,)),
        OpSpec(key=2, name="twin", inputs=(1,)),
    ]
    with pytest.raises(GraphError, match="2 ops are named 'twin'"):
        compile_graph(specs, 2)


def test_two_requests_are_refused() -> None:
    specs = [
        OpSpec(key=0, name="request", is_request=True),
        OpSpec(key=9, name="request", is_request=True),
        OpSpec(key=1, name="left", inputs=(0,)),
        OpSpec(key=2, name="right", inputs=(9,)),
        OpSpec(key=3, name="end", inputs=(1, 2, 9)),
    ]
    text = "several RequestOps, read by 'left' and 'right', 'end': let all ops read the same one"
    with pytest.raises(GraphError, match=text):
        compile_graph(specs, 3)


@pytest.mark.parametrize(
    ("edges", "message"),
    [
        ({"a": [], "end": ["a", "@"]}, "op 'a' has no input"),
        ({"end": ["@", "@"]}, "names the same input op twice"),
        ({"@DAGExecutor": ["@"]}, "rename it"),
    ],
)
def test_other_illegal_graphs_are_refused(edges: dict[str, list[str]], message: str) -> None:
    with pytest.raises(GraphError, match=re.escape(message)):
        plan_of(edges, list(edges)[-1])


def test_a_graph_without_an_op_is_refused() -> None:
    with pytest.raises(GraphError, match="no op"):
        compile_graph([OpSpec(key=0, name="request", is_request=True)], 0)


def test_a_jump_to_an_op_that_is_not_downstream_is_refused() -> None:
    specs = [
        OpSpec(key=0, name="request", is_request=True),
        OpSpec(key=1, name="a", inputs=(0,)),
        OpSpec(key=2, name="b", inputs=(1,), jump_to=(1,)),
    ]
    with pytest.raises(GraphError, match="'b' jumps over 'a', which does not come after it"):
        compile_graph(specs, 2)
