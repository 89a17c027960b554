"""A random graph's answers do not depend on its executors and its batching."""

from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.request import Feed
from tests.differential.graphs import KINDS, StepSpec, answers, comparable, loaded_of


@st.composite
def graphs(draw: st.DrawFn) -> list[StepSpec]:
    """One to five ops, each with a path to the last one."""
    count = draw(st.integers(1, 5))
    inputs = [
        draw(st.lists(st.integers(-1, number - 1), min_size=1, max_size=3, unique=True))
        for number in range(count)
    ]
    used = {before for of_op in inputs for before in of_op}
    inputs[-1] += [number for number in range(count - 1) if number not in used]
    return [
        StepSpec(
            kind=draw(st.sampled_from(KINDS)),
            inputs=tuple(of_op),
            factor=draw(st.integers(-3, 3)),
            bad=draw(st.sampled_from([0, 3, 5, 11])),
        )
        for of_op in inputs
    ]


@st.composite
def requests(draw: st.DrawFn) -> Feed:
    rows, columns = draw(st.integers(1, 3)), draw(st.sampled_from([2, 2, 3]))
    dtype = draw(st.sampled_from(["int64", "int64", "float64"]))
    start = draw(st.integers(-20, 20))
    return {"x": np.arange(start, start + rows * columns, dtype=dtype).reshape(rows, columns)}


@given(graph=graphs(), feeds=st.lists(requests(), min_size=1, max_size=12))
@settings(max_examples=60, deadline=None)
def test_the_answers_do_not_depend_on_executor_and_batch_size(
    graph: list[StepSpec], feeds: list[Feed]
) -> None:
    def outcomes_with(executor: str, batch_size: int) -> Any:
        return [comparable(each) for each in answers(loaded_of(graph, executor, batch_size), feeds)]

    plain = outcomes_with("inline", 1)
    assert outcomes_with("inline", 8) == plain
    assert outcomes_with("thread", 1) == plain
    assert outcomes_with("thread", 8) == plain
    assert outcomes_with("coroutine", 8) == plain


def test_the_graphs_batch_requests_and_fail_some_of_them() -> None:
    graph = [StepSpec(kind="raises", inputs=(-1,), factor=2, bad=3)]
    feeds = [{"x": np.array([[n]])} for n in range(8)]
    loaded = loaded_of(graph, "inline", 8, "fifo")
    sizes: list[int] = []
    op = loaded.graphs[0].blueprint.graph.ops[0]
    plain = op.process

    def record_size(feed_batch: list[Feed], typical_logid: int = 0) -> Any:
        sizes.append(len(feed_batch[0]["x"]))
        return plain(feed_batch, typical_logid)

    op.process = record_size  # type: ignore[method-assign]
    outcomes = answers(loaded, feeds)
    assert sizes[0] == 8
    assert [outcome.error is None for outcome in outcomes] == [n % 3 != 0 for n in range(8)]
