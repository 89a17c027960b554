"""Warnings at start about configurations that work, but probably not as intended."""

from __future__ import annotations

import functools
import os
from typing import Any

import pytest

from penstock import FunctionOp, Op
from penstock.errors import ConfigError
from tests.service.in_process import blueprint_of, root


async def answer(self: Op, feed_batch: list[Any]) -> Any:
    return feed_batch[0]


@functools.wraps(answer)
def around(self: Op, feed_batch: list[Any]) -> Any:
    return answer(self, feed_batch)


@pytest.mark.parametrize("executor", ["thread", "inline", "process"])
def test_a_coroutine_op_with_an_executor_is_warned_about(executor: str) -> None:
    op = type("Own", (Op,), {"process": answer})("work", input_ops=[root()], concurrency=4)
    assert blueprint_of(op, {"op": {"work": {"executor": executor}}}).warnings == (
        f"op 'work' is a coroutine, which runs on the loop: its executor '{executor}' "
        f"has no effect",
    )


def test_a_coroutine_op_without_an_executor_is_not_warned_about() -> None:
    op = type("Own", (Op,), {"process": answer})("work", input_ops=[root()], concurrency=4)
    assert blueprint_of(op, {"op": {"work": {"timeout": 5}}}).warnings == ()


@pytest.mark.parametrize("batch_size", [1, 2])
def test_a_window_without_batches_is_warned_about(batch_size: int) -> None:
    entry = {"auto_batching_timeout": 2000, "batch_size": batch_size}
    warnings = blueprint_of(Op("work", input_ops=[root()]), {"op": {"work": entry}}).warnings
    text = "op 'work' has a batch_size of 1: its auto_batching_timeout of 2000 ms has no effect"
    assert warnings == ((text,) if batch_size == 1 else ())


def test_a_plain_process_around_a_coroutine_is_warned_about() -> None:
    op = type("Own", (Op,), {"process": around})("work", input_ops=[root()])
    (warning,) = blueprint_of(op).warnings
    assert warning.startswith("op 'work' is a coroutine inside a plain function, and runs like the")


def test_a_plain_function_around_a_coroutine_is_warned_about() -> None:
    async def inner(request: Any) -> Any:
        return request

    @functools.wraps(inner)
    def outer(request: Any) -> Any:
        return inner(request)

    (warning,) = blueprint_of(FunctionOp(outer, [root()], name="work")).warnings
    assert warning.startswith("op 'work' is a coroutine inside a plain function, and runs like the")


def test_an_entry_of_an_unknown_op_is_warned_about_with_the_nearest_name() -> None:
    op = Op("score", input_ops=[root()])
    assert blueprint_of(op, {"op": {"scores": {"timeout": 5}}}).warnings == (
        "op.scores: the graph has no such op, and the entry no effect; did you mean score?",
    )
    assert blueprint_of(op, {"op": {"other": {"timeout": 5}}}).warnings == (
        "op.other: the graph has no such op, and the entry no effect; the ops are score",
    )


def test_a_flag_of_an_unknown_op_is_an_error() -> None:
    op = Op("iris", input_ops=[root()])
    with pytest.raises(ConfigError) as caught:
        blueprint_of(op, flags={"op.iriss.batch_size": 4})
    assert caught.value.problems == [
        "flag: op.iriss.batch_size: there is no such op; did you mean iris?"
    ]


class Misspelt(Op):
    def preproces(self, input_dicts: Any, data_id: int, log_id: int) -> Any:
        return {}

    def process_image(self, image: Any) -> Any:
        return image


def test_a_misspelt_hook_is_warned_about() -> None:
    assert blueprint_of(Misspelt("work", input_ops=[root()])).warnings == (
        "op 'work' has a method 'preproces', which nothing calls: did you mean preprocess?",
    )


def test_a_method_named_like_a_hook_is_accepted_if_the_hook_exists() -> None:
    both = type("Both", (Misspelt,), {"preprocess": lambda self, inputs: {}})
    assert blueprint_of(both("work", input_ops=[root()])).warnings == ()


def test_one_engine_for_lack_of_worker_num_is_warned_about() -> None:
    op = Op("work", input_ops=[root()])
    assert blueprint_of(op, {"build_dag_each_worker": True}).warnings == (
        "build_dag_each_worker is true without worker_num: there will be one engine",
    )
    assert blueprint_of(op, {"build_dag_each_worker": True, "worker_num": 1}).warnings == ()


def test_a_byte_limit_per_engine_below_the_message_limit_is_warned_about() -> None:
    op = Op("work", input_ops=[root()])
    config = {"max_inflight_bytes": 600, "max_message_bytes": 100}
    assert blueprint_of(op, config).warnings == ()
    several = {**config, "build_dag_each_worker": True}
    assert blueprint_of(op, {**several, "worker_num": 2}).warnings == ()
    assert blueprint_of(op, {**several, "worker_num": 3}).warnings == (
        "max_inflight_bytes, 600, divided among 3 engines, does not allow requests above "
        "73 bytes, as one takes three times its size while it is decoded: they will always be "
        "refused, though max_message_bytes, 100, allows them",
    )


@pytest.mark.parametrize(("executor", "warned"), [("thread", True), ("process", False)])
def test_cpu_affinity_of_an_op_without_processes_is_warned_about(
    executor: str, warned: bool
) -> None:
    entry = {"executor": executor, "cpu_affinity": min(os.sched_getaffinity(0))}
    warnings = blueprint_of(Op("work", input_ops=[root()]), {"op": {"work": entry}}).warnings
    assert any("cpu_affinity has no effect" in each for each in warnings) == warned


def test_row_axes_of_an_op_that_runs_no_model_are_warned_about() -> None:
    own = type("Own", (Op,), {"process": lambda self, feed_batch, log_id: feed_batch[0]})
    (warning,) = blueprint_of(
        own("work", input_ops=[root()]), {"op": {"work": {"rows": "first"}}}
    ).warnings
    assert "'work' runs no model here" in warning
    assert "rows has no effect" in warning
