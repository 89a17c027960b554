"""Valid graphs, through the public classes; each error names the op and the fix."""

from __future__ import annotations

from typing import Any

import pytest

from penstock import Op, PipelineServer, RequestOp, ResponseOp
from penstock.errors import GraphError
from penstock.service.graph import graph_of
from tests.service.in_process import blueprint_of, pairs, service_of


class JoinPaths(Op):
    def preprocess(self, input_dicts: Any) -> Any:
        return {"path": "+".join(sorted(feed["path"] for feed in input_dicts.values()))}


class AppendName(Op):
    def preprocess(self, input_dicts: Any) -> Any:
        (feed,) = input_dicts.values()
        return {"path": f"{feed.get('path', '')}{self.name}"}


@pytest.mark.parametrize("end", [Op("a"), None, "x"])
def test_the_end_of_a_graph_must_be_a_response_op(end: Any) -> None:
    with pytest.raises(GraphError, match=r"needs a ResponseOp.*give it ResponseOp\("):
        PipelineServer().set_response_op(end)


def test_a_response_op_with_several_inputs_is_refused_with_the_fix() -> None:
    source = RequestOp()
    text = r"has 2 inputs, 'a', 'b', but takes exactly one: put an op before it that combines them"
    with pytest.raises(GraphError, match=text):
        ResponseOp(input_ops=[Op("a", input_ops=[source]), Op("b", input_ops=[source])])
    with pytest.raises(GraphError, match=r"has 0 inputs, .*: give it input_ops=\[last_op\]"):
        ResponseOp(input_ops=[])


@pytest.mark.parametrize("count", [0, 2])
def test_a_response_op_whose_inputs_were_changed_is_checked_again(count: int) -> None:
    source = RequestOp()
    end = ResponseOp(input_ops=[Op("a", input_ops=[source])])
    end.set_input_ops([Op(f"b{n}", input_ops=[source]) for n in range(count)])
    with pytest.raises(GraphError, match=f"the ResponseOp has {count} inputs"):
        graph_of(end)


def after_request_op_with_inputs() -> Op:
    source = RequestOp()
    last = Op("last", input_ops=[source])
    source.set_input_ops([Op("before")])
    return last


END = ResponseOp(input_ops=[Op("a", input_ops=[RequestOp()])])


@pytest.mark.parametrize(
    ("last", "message"),
    [
        (
            after_request_op_with_inputs(),
            "the RequestOp has inputs, 'before': it is the graph's root",
        ),
        (RequestOp(), "the graph has no op: put one between the RequestOp and the ResponseOp"),
        (Op("b", input_ops=[END]), "a ResponseOp feeds another op, 'b': it may only be the end"),
        (END, r"a ResponseOp feeds another one: give the last its input_ops="),
        (
            Op("alone"),
            "op 'alone' has no input: give it input_ops=",
        ),  # and the other errors of the plan
    ],
)
def test_misplaced_request_and_response_ops_are_refused(last: Op, message: str) -> None:
    with pytest.raises(GraphError, match=message):
        graph_of(ResponseOp(input_ops=[last]))


async def test_fan_out_fan_in_and_an_edge_over_levels_work() -> None:
    source = RequestOp()
    a = AppendName("a", input_ops=[source])
    b = AppendName("b", input_ops=[a])
    c = AppendName("c", input_ops=[b])
    d = AppendName("d", input_ops=[a])
    last = JoinPaths("join", input_ops=[a, c, d])
    async with service_of(last) as service:
        assert pairs(await service.call(path="")) == {"path": "a+abc+ad"}


async def test_an_op_may_edit_its_inputs_without_effect_on_others() -> None:
    class Editing(Op):
        def preprocess(self, input_dicts: Any) -> Any:
            (feed,) = input_dicts.values()
            feed["path"] += self.name
            return feed

    source = RequestOp()
    left, right = (Editing(name, input_ops=[source]) for name in ("left", "right"))
    async with service_of(JoinPaths("join", input_ops=[left, right])) as service:
        assert pairs(await service.call(path="x")) == {"path": "xleft+xright"}


def test_ops_without_a_path_to_the_response_op_are_warned_about_once_each() -> None:
    def build(source: RequestOp) -> Op:
        # As in get_pipeline_response: nothing else refers to the lost ops.
        kept = Op("kept", input_ops=[source])
        lost = Op("lost", input_ops=[kept])
        Op("more", input_ops=[lost])
        return Op("last", input_ops=[kept])

    blueprint = blueprint_of(build(RequestOp()))
    assert blueprint.graph.left_out == ("lost", "more")
    assert list(blueprint.warnings) == [
        "op 'lost' does not reach the ResponseOp and is not part of the graph",
        "op 'more' does not reach the ResponseOp and is not part of the graph",
    ]


def test_other_response_ops_and_moved_ops_are_not_warned_about() -> None:
    source = RequestOp()
    last = Op("last", input_ops=[source])
    ResponseOp(input_ops=[last])
    moved = Op("moved", input_ops=[source])
    moved.set_input_ops([Op("elsewhere")])
    assert blueprint_of(last).graph.left_out == ()
