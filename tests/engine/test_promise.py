"""Results are as their graph declares them, or an error."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from penstock import Signature, op
from penstock.engine.promise import Promise
from penstock.engine.submission import Submission
from penstock.errors import WrongType
from penstock.request import Outcome
from penstock.service.blueprint import deploy
from penstock.service.build import LoadedDeployment
from tests.service.in_process import blueprint_of, root


def promise(datatype: Any = "FP32", shape: Any = (1, 1)) -> Promise:
    return Promise(
        "work", Signature(inputs={"x": ("FP32", ["n", 3])}, outputs={"y": (datatype, shape)})
    )


def test_a_result_as_declared_is_returned_unchanged() -> None:
    result = {"y": np.ones((1, 1), np.float32), "more": object()}
    assert promise().kept(result, {}) is result


@pytest.mark.parametrize(
    ("datatype", "shape", "value", "expected"),
    [
        ("FP32", [1, 1], 1.5, [[1.5]]),
        ("FP32", [1, 1], np.float64(0.1), [[np.float32(0.1)]]),
        ("FP32", [-1], [1, 2], [1.0, 2.0]),
        ("FP32", [-1], np.ones(2, ">f4"), [1.0, 1.0]),
        ("FP32", [], 3, 3.0),
        ("INT8", [2], np.array([1, 127]), [1, 127]),
        ("INT64", None, [[True]], [[1]]),
        ("BOOL", [1], [True], [True]),
        ("BYTES", [-1], ["a", "b"], ["a", "b"]),
        ("BYTES", [1], "a", ["a"]),
    ],
)
def test_a_result_is_cast_where_that_is_safe(
    datatype: str, shape: Any, value: Any, expected: Any
) -> None:
    result = {"y": value}
    kept = promise(datatype, shape).kept(result, {})["y"]
    assert kept.dtype == Signature(inputs={}, outputs={"y": (datatype, shape)}).outputs[0].dtype
    assert kept.tolist() == expected
    assert result["y"] is value


@pytest.mark.parametrize(
    ("datatype", "shape", "value", "got"),
    [
        ("FP32", [1, 1], np.ones(1, np.float32), r"float32\[1, 1\], got float32\[1\]"),
        ("FP32", [1, 1], [[1.0], [2.0]], r"float32\[1, 1\], got float32\[2, 1\]"),
        ("FP32", [2], 1.5, r"got float32\[\]"),
        ("FP32", [1], [1e300], r"got float64\[1\]"),
        ("INT64", [1], [1.0], r"int64\[1\], got float64\[1\]"),
        ("INT8", [1], [300], r"got int64\[1\]"),
        ("FP32", [1], ["a"], r"got str\[1\]"),
        ("BYTES", [1], np.ones(1, np.int64), r"str\[1\], got int64\[1\]"),
        ("FP32", [-1], [[1], [1, 2]], "got a list"),
        ("FP32", ["n"], np.ones(1, np.float32), r"got float32\[1\], where 'n' is 3"),
        ("FP32", ["m", "m"], np.ones((1, 2), np.float32), r"where 'm' is 1"),
    ],
)
def test_another_result_is_an_error_with_op_output_wanted_and_got(
    datatype: str, shape: Any, value: Any, got: str
) -> None:
    of = promise(datatype, shape)
    with pytest.raises(WrongType, match=r"^op 'work': the output 'y' is declared as .*" + got):
        of.kept({"y": value}, of.sizes_of({"x": [[1, 2, 3]] * 3}))
    with pytest.raises(WrongType, match=r"^op 'work': the declared output 'y' is missing"):
        of.kept({"z": value}, {})


async def test_an_engine_gives_answers_as_declared() -> None:
    @op(root())
    def mean(feed: dict[str, Any]) -> dict[str, Any]:
        given = feed["x"]
        return {"y": float(given.mean()), "rows": given[:, 0][: int(given[0, 0])]}

    outputs = {"y": ("FP32", [1, 1]), "rows": ("FP32", ["n"])}
    declared = Signature(inputs={"x": ("FP32", ["n", 2])}, outputs=outputs)
    loaded = LoadedDeployment(deploy([replace(blueprint_of(mean), signature=declared)]))
    engine = loaded.engine(asyncio.get_running_loop())

    async def answer(*rows: Any) -> Outcome:
        outcome: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        submission = Submission(engine.graphs[0], {"x": np.array(rows, np.float32)})
        submission.start(lambda _, found: outcome.set_result(found))
        return await outcome

    try:
        good = (await answer([2, 3], [4, 5])).value
        assert good is not None
        assert (good["y"].dtype, good["y"].tolist()) == (np.float32, [[3.5]])
        assert good["rows"].tolist() == [2, 4]
        wrong = (await answer([1, 3], [4, 5])).error
        assert isinstance(wrong, WrongType)
        assert str(wrong).startswith("op 'mean': the output 'rows' is declared as float32[?], got")
    finally:
        engine.close()
        await engine.stages[0].executor.close(5.0)
