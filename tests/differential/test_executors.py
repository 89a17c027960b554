"""Every executor gives bitwise equal results for the same batches."""

import asyncio
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.executors.work import BoundOp, WorkOptions, run_batch
from penstock.request import REQUEST_OP_NAME, Batch, CloseReason, Sample
from tests.differential.graphs import comparable
from tests.executors.harness import KINDS, ExecutorHarness, body_op, executor_of


def softmax(feed: dict[str, Any]) -> dict[str, Any]:
    weights = np.linspace(-1, 1, 64, dtype=np.float32).reshape(8, 8)
    exponentials = np.exp(feed["x"] @ weights)
    return {"y": exponentials / exponentials.sum(axis=1, keepdims=True)}


def best(feed: dict[str, Any]) -> dict[str, Any]:
    return {"best": np.argmax(feed["x"], axis=1), "words": [f"{row[0]:.3f}" for row in feed["x"]]}


def raises_for_large_numbers(feed: dict[str, Any]) -> dict[str, Any]:
    if (feed["x"][:, 0] > 1).any():
        raise ValueError("too large")
    return {"y": feed["x"].astype(np.float16)}


def batches_of(seed: int, sizes: list[list[int]]) -> list[Batch]:
    """Batches of samples with these numbers of rows, of normally distributed numbers."""
    rng = np.random.default_rng(seed)
    numbers = iter(range(10_000))
    return [
        Batch(
            [
                Sample(
                    next(numbers),
                    {REQUEST_OP_NAME: {"x": rng.normal(size=(n, 8)).astype(np.float32)}},
                    float("inf"),
                )
                for n in rows
            ],
            CloseReason.FULL,
            0.0,
        )
        for rows in sizes
    ]


@pytest.mark.parametrize("body", [softmax, best, raises_for_large_numbers])
@given(
    seed=st.integers(0, 2**32 - 1),
    sizes=st.lists(st.lists(st.integers(1, 4), min_size=1, max_size=8), min_size=1, max_size=5),
)
@settings(max_examples=20, deadline=None)
def test_every_executors_results_equal_those_of_a_plain_call(
    body: Callable[[dict[str, Any]], dict[str, Any]], seed: int, sizes: list[list[int]]
) -> None:
    async def results_of(kind: str) -> list[Any]:
        harness = ExecutorHarness(executor_of(kind, body_op(kind, body)))
        results = await harness.run(*batches_of(seed, sizes))
        assert await harness.executor.close(5.0)
        return [comparable(outcomes) for _, outcomes in results]

    bound = BoundOp(body_op("inline", body), None, WorkOptions())
    expected = [comparable(run_batch(bound, batch)) for batch in batches_of(seed, sizes)]
    for kind in KINDS:
        assert asyncio.run(results_of(kind)) == expected
