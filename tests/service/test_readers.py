"""Who reads an op's output outside of worker processes."""

from __future__ import annotations

from typing import Any

import pytest

from penstock import Op
from tests.service.inside import drawn, root


class Join(Op):
    def preprocess(self, input_dicts: Any, data_id: int = 0, log_id: int = 0) -> Any:
        return {}


def readers(jump: bool = False, **executors: str) -> dict[str, str | None]:
    """Of ``a``, which ``b`` and ``c`` read, whom ``d`` joins."""
    source = Op("a", input_ops=[root()])
    left, right = Op("b", input_ops=[source]), Op("c", input_ops=[source])
    last = Join("d", input_ops=[left, right])
    if jump:
        source.set_jump_to_ops([left])
    keys = {name: {"executor": executors.get(name, "process")} for name in "abcd"}
    blueprint = drawn(last, {"op": keys})
    return {
        name: blueprint.outside_reader(at) for at, name in enumerate(blueprint.graph.plan.names)
    }


def test_the_reply_is_made_outside_and_everything_else_may_be_inside() -> None:
    assert readers() == {"a": None, "b": None, "c": None, "d": "the ResponseOp"}


@pytest.mark.parametrize("executor", ["thread", "inline"])
def test_one_reader_of_several_that_is_outside_is_named(executor: str) -> None:
    assert readers(c=executor)["a"] == "op 'c'"
    assert readers(d=executor) == {
        "a": None,
        "b": "op 'd'",
        "c": "op 'd'",
        "d": "the ResponseOp",
    }


def test_who_jumps_is_read_by_those_behind_its_targets_too() -> None:
    assert readers(jump=False, d="thread")["a"] is None
    assert readers(jump=True, d="thread")["a"] == "op 'd'"
