"""The readers of an op's output outside of worker processes."""

from __future__ import annotations

from typing import Any

import pytest

from penstock import Op
from tests.service.in_process import blueprint_of, root


class Join(Op):
    def preprocess(self, input_dicts: Any, data_id: int = 0, log_id: int = 0) -> Any:
        return {}


def readers(jump: bool = False, **executors: str) -> dict[str, str | None]:
    """The outside readers in a graph where ``b`` and ``c`` read ``a``, and ``d`` reads both."""
    source = Op("a", input_ops=[root()])
    left, right = Op("b", input_ops=[source]), Op("c", input_ops=[source])
    last = Join("d", input_ops=[left, right])
    if jump:
        source.set_jump_to_ops([left])
    keys = {name: {"executor": executors.get(name, "process")} for name in "abcd"}
    blueprint = blueprint_of(last, {"op": keys})
    return {
        name: blueprint.outside_reader(at) for at, name in enumerate(blueprint.graph.plan.names)
    }


def test_only_the_response_op_is_outside_if_all_ops_run_in_processes() -> None:
    assert readers() == {"a": None, "b": None, "c": None, "d": "the ResponseOp"}


@pytest.mark.parametrize("executor", ["thread", "inline"])
def test_a_reader_outside_of_processes_is_named(executor: str) -> None:
    assert readers(c=executor)["a"] == "op 'c'"
    assert readers(d=executor) == {
        "a": None,
        "b": "op 'd'",
        "c": "op 'd'",
        "d": "the ResponseOp",
    }


def test_an_op_that_jumps_is_also_read_by_the_readers_of_its_targets() -> None:
    assert readers(jump=False, d="thread")["a"] is None
    assert readers(jump=True, d="thread")["a"] == "op 'd'"
