"""Real ONNX models: a request gets the same answer in a batch as alone."""

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock.ops.ends import RequestOp
from penstock.ops.op import Op
from penstock.request import Feed
from tests.differential.graphs import answers, comparable, loaded_from
from tests.kit.onnx_models import save

TOLERANCE = 1e-5


def network(file: Path) -> Path:
    """Two layers and a softmax over 16 numbers, the best class, and the text unchanged."""
    rng = np.random.default_rng(3)

    def constant(*shape: int) -> Any:
        return rng.normal(size=shape).astype(np.float32)

    return save(
        file,
        "(float[n, 16] x, string[n] text) => (float[n, 10] p, int64[n] best, string[n] said)"
        " { h = Gemm(x, w1, b1) r = Relu(h) z = Gemm(r, w2, b2) p = Softmax<axis = 1>(z)"
        " best = ArgMax<axis = 1, keepdims = 0>(p) said = Identity(text) }",
        w1=constant(16, 64),
        b1=constant(64),
        w2=constant(64, 10),
        b2=constant(10),
    )


class RecordingOp(Op):
    """An op with the default hooks that records the number of rows of every run."""

    def init_op(self) -> None:
        self.rows: list[int] = []

    def process(self, feed_batch: list[Feed], typical_logid: int = 0) -> Any:
        self.rows.append(len(next(iter(feed_batch[0].values()))))
        return super().process(feed_batch, typical_logid)


def run(model: Path, feeds: list[Feed], batch_size: int) -> tuple[list[Feed], int]:
    """Every request's answer, and the largest number of rows in one run of the model."""
    op = RecordingOp(name="op", input_ops=[RequestOp()])
    conf = {"model_config": str(model), "thread_num": 1}
    options = {"batch_size": batch_size, "policy": "fifo", "local_service_conf": conf}
    loaded = loaded_from([op], options)
    outcomes = answers(loaded, feeds)
    assert [outcome.error for outcome in outcomes] == [None] * len(feeds)
    return [outcome.value or {} for outcome in outcomes], max(op.rows)


def check_same(one: Feed, other: Feed) -> None:
    assert one.keys() == other.keys()
    for name, value_of_one in one.items():
        value_of_other = other[name]
        if value_of_one.dtype.kind == "f":
            assert (value_of_one.dtype, value_of_one.shape) == (
                value_of_other.dtype,
                value_of_other.shape,
            )
            np.testing.assert_allclose(value_of_one, value_of_other, rtol=TOLERANCE, atol=TOLERANCE)
        else:
            assert value_of_one.tolist() == value_of_other.tolist()
            assert comparable(value_of_one.dtype.str) == comparable(value_of_other.dtype.str)


def test_batched_floats_are_close_and_integers_and_texts_equal(tmp_path: Path) -> None:
    model = network(tmp_path / "network.onnx")
    rng = np.random.default_rng(4)
    sizes = [1, 2, 1, 3, 1, 1, 2, 1, 4, 1, 1, 1]
    feeds: list[Feed] = [
        {
            "x": rng.normal(size=(size, 16)).astype(np.float32),
            "text": np.array([f"request {number}, row {row}" for row in range(size)], dtype=object),
        }
        for number, size in enumerate(sizes)
    ]
    alone, most_alone = run(model, feeds, 1)
    batched, most_batched = run(model, feeds, 8)
    assert (most_alone, most_batched) == (4, sum(sizes[:8]))
    for number, (one, other) in enumerate(zip(alone, batched, strict=True)):
        check_same(one, other)
        assert one["said"].tolist() == feeds[number]["text"].tolist()


def test_a_published_classifier_gives_close_answers_alone_and_in_a_batch() -> None:
    package = find_spec("rapidocr_onnxruntime")
    assert package is not None, "`make setup` installs it"
    assert package.submodule_search_locations is not None
    folder = Path(package.submodule_search_locations[0]) / "models"
    model = folder / "ch_ppocr_mobile_v2.0_cls_infer.onnx"
    rng = np.random.default_rng(5)
    pictures = rng.uniform(-1, 1, size=(12, 3, 48, 192)).astype(np.float32)
    feeds: list[Feed] = [{"x": picture[None]} for picture in pictures]
    alone, most_alone = run(model, feeds, 1)
    batched, most_batched = run(model, feeds, 6)
    assert (most_alone, most_batched) == (1, 6)
    for one, other in zip(alone, batched, strict=True):
        check_same(one, other)


@pytest.mark.parametrize("batch_size", [1, 8])
def test_no_request_gets_another_requests_answer(tmp_path: Path, batch_size: int) -> None:
    model = network(tmp_path / "network.onnx")
    x = np.zeros((1, 16), np.float32)
    feeds: list[Feed] = [
        {"x": x, "text": np.array([str(number)], dtype=object)} for number in range(200)
    ]
    replies, _ = run(model, feeds, batch_size)
    assert [each["said"][0] for each in replies] == [str(number) for number in range(200)]
