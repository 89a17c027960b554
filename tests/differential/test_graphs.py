"""A random graph answers alike wherever its ops run and however requests are joined."""

from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.request import Feed
from tests.differential.graphs import KINDS, StepSpec, answers, exactly, works_of


@st.composite
def graphs(draw: st.DrawFn) -> list[StepSpec]:
    """One to five ops, each of which reaches the last."""
    count = draw(st.integers(1, 5))
    inputs = [
        draw(st.lists(st.integers(-1, number - 1), min_size=1, max_size=3, unique=True))
        for number in range(count)
    ]
    used = {before for mine in inputs for before in mine}
    inputs[-1] += [number for number in range(count - 1) if number not in used]
    return [
        StepSpec(
            kind=draw(st.sampled_from(KINDS)),
            inputs=tuple(mine),
            factor=draw(st.integers(-3, 3)),
            bad=draw(st.sampled_from([0, 3, 5, 11])),
        )
        for mine in inputs
    ]


@st.composite
def requests(draw: st.DrawFn) -> Feed:
    rows, columns = draw(st.integers(1, 3)), draw(st.sampled_from([2, 2, 3]))
    dtype = draw(st.sampled_from(["int64", "int64", "float64"]))
    start = draw(st.integers(-20, 20))
    return {"x": np.arange(start, start + rows * columns, dtype=dtype).reshape(rows, columns)}


@given(graph=graphs(), feeds=st.lists(requests(), min_size=1, max_size=12))
@settings(max_examples=60, deadline=None)
def test_the_executor_and_the_batch_size_change_no_answer(
    graph: list[StepSpec], feeds: list[Feed]
) -> None:
    def ask(executor: str, batch_size: int) -> Any:
        return [exactly(each) for each in answers(works_of(graph, executor, batch_size), feeds)]

    plain = ask("inline", 1)
    assert ask("inline", 8) == plain
    assert ask("thread", 1) == plain
    assert ask("thread", 8) == plain
    assert ask("coroutine", 8) == plain


def test_the_graphs_do_join_requests_and_do_fail_some_of_them() -> None:
    graph = [StepSpec(kind="raises", inputs=(-1,), factor=2, bad=3)]
    feeds = [{"x": np.array([[n]])} for n in range(8)]
    works = works_of(graph, "inline", 8)
    sizes: list[int] = []
    op = works.graphs[0].blueprint.graph.ops[0]
    plain = op.process

    def noted(feed_batch: list[Feed], typical_logid: int = 0) -> Any:
        sizes.append(len(feed_batch[0]["x"]))
        return plain(feed_batch, typical_logid)

    op.process = noted  # type: ignore[method-assign]
    outcomes = answers(works, feeds)
    assert sizes[0] == 8
    assert [outcome.error is None for outcome in outcomes] == [n % 3 != 0 for n in range(8)]
