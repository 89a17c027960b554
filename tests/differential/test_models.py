"""Real ONNX models: joined with others a request gets what it gets alone."""

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from penstock.ops.ends import RequestOp
from penstock.ops.op import Op
from penstock.request import Feed
from tests.differential.graphs import answers, exactly, works_from
from tests.runtimes.conftest import save, value

NEAR = 1e-5


def network(file: Path) -> Path:
    """Two layers and a softmax over 16 numbers; the best class; the caller's own words again."""
    chance = np.random.default_rng(3)

    def constant(name: str, *shape: int) -> Any:
        return numpy_helper.from_array(chance.normal(size=shape).astype(np.float32), name)

    nodes = [
        helper.make_node("Gemm", ["x", "w1", "b1"], ["h"]),
        helper.make_node("Relu", ["h"], ["r"]),
        helper.make_node("Gemm", ["r", "w2", "b2"], ["z"]),
        helper.make_node("Softmax", ["z"], ["p"], axis=1),
        helper.make_node("ArgMax", ["p"], ["best"], axis=1, keepdims=0),
        helper.make_node("Identity", ["text"], ["said"]),
    ]
    inputs = [value("x", TensorProto.FLOAT, ["n", 16]), value("text", TensorProto.STRING, ["n"])]
    outputs = [
        value("p", TensorProto.FLOAT, ["n", 10]),
        value("best", TensorProto.INT64, ["n"]),
        value("said", TensorProto.STRING, ["n"]),
    ]
    weights = [
        constant("w1", 16, 64),
        constant("b1", 64),
        constant("w2", 64, 10),
        constant("b2", 10),
    ]
    return save(file, nodes, inputs, outputs, weights)


class Noting(Op):
    """The default hooks on the op's model, and the rows of every run."""

    def init_op(self) -> None:
        self.rows: list[int] = []

    def process(self, feed_batch: list[Feed], typical_logid: int = 0) -> Any:
        self.rows.append(len(next(iter(feed_batch[0].values()))))
        return super().process(feed_batch, typical_logid)


def run(model: Path, feeds: list[Feed], batch_size: int) -> tuple[list[Feed], int]:
    """Every request's answer, and the most rows that the model ran at once."""
    op = Noting(name="op", input_ops=[RequestOp()])
    conf = {"model_config": str(model), "thread_num": 1}
    works = works_from([op], {"batch_size": batch_size, "local_service_conf": conf})
    outcomes = answers(works, feeds)
    assert [outcome.error for outcome in outcomes] == [None] * len(feeds)
    return [outcome.value or {} for outcome in outcomes], max(op.rows)


def same_or_near(one: Feed, other: Feed) -> None:
    assert one.keys() == other.keys()
    for name, mine in one.items():
        theirs = other[name]
        if mine.dtype.kind == "f":
            assert (mine.dtype, mine.shape) == (theirs.dtype, theirs.shape)
            np.testing.assert_allclose(mine, theirs, rtol=NEAR, atol=NEAR)
        else:
            assert mine.tolist() == theirs.tolist()
            assert exactly(mine.dtype.str) == exactly(theirs.dtype.str)


def test_numbers_are_near_and_integers_and_texts_the_same(tmp_path: Path) -> None:
    model = network(tmp_path / "network.onnx")
    chance = np.random.default_rng(4)
    sizes = [1, 2, 1, 3, 1, 1, 2, 1, 4, 1, 1, 1]
    feeds: list[Feed] = [
        {
            "x": chance.normal(size=(size, 16)).astype(np.float32),
            "text": np.array([f"request {number}, row {row}" for row in range(size)], dtype=object),
        }
        for number, size in enumerate(sizes)
    ]
    alone, most_alone = run(model, feeds, 1)
    joined, most_joined = run(model, feeds, 8)
    assert (most_alone, most_joined) == (4, sum(sizes[:8]))
    for number, (one, other) in enumerate(zip(alone, joined, strict=True)):
        same_or_near(one, other)
        assert one["said"].tolist() == feeds[number]["text"].tolist()


def test_a_published_classifier_judges_pictures_alike_alone_and_in_company() -> None:
    judge = find_spec("rapidocr_onnxruntime")
    assert judge is not None, "`make setup` installs it"
    assert judge.submodule_search_locations is not None
    folder = Path(judge.submodule_search_locations[0]) / "models"
    model = folder / "ch_ppocr_mobile_v2.0_cls_infer.onnx"
    chance = np.random.default_rng(5)
    pictures = chance.uniform(-1, 1, size=(12, 3, 48, 192)).astype(np.float32)
    feeds: list[Feed] = [{"x": picture[None]} for picture in pictures]
    alone, most_alone = run(model, feeds, 1)
    joined, most_joined = run(model, feeds, 6)
    assert (most_alone, most_joined) == (1, 6)
    for one, other in zip(alone, joined, strict=True):
        same_or_near(one, other)


@pytest.mark.parametrize("batch_size", [1, 8])
def test_answers_of_one_request_are_never_anothers(tmp_path: Path, batch_size: int) -> None:
    model = network(tmp_path / "network.onnx")
    x = np.zeros((1, 16), np.float32)
    feeds: list[Feed] = [
        {"x": x, "text": np.array([str(number)], dtype=object)} for number in range(200)
    ]
    got, _ = run(model, feeds, batch_size)
    assert [each["said"][0] for each in got] == [str(number) for number in range(200)]
