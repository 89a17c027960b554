"""The graphs of models: their requests, their right answers, their bare models."""

from pathlib import Path

import numpy as np
import onnx
import pytest

from benchmarks.graphs import GRAPHS, Bare, crops_of, is_right, requests, run_loop, token_lists
from benchmarks.models import BUILDERS, IMAGE_SHAPE, model_folder
from penstock.protocols.paddle import unpack
from penstock.protocols.pb import Request, Response, Tensor

CHEAP = ("texts", "ragged")


@pytest.mark.parametrize("graph", CHEAP)
def test_requests_carry_the_inputs_that_the_bare_models_run_on(graph: str) -> None:
    messages, found = requests(graph), GRAPHS[graph]
    for message, expected in zip(messages, found.inputs(), strict=True):
        feed, _ = unpack(Request.FromString(message))
        assert np.array_equal(feed[found.name], expected)


def test_token_lists_are_padded_with_what_the_model_does_not_read(tmp_path: Path) -> None:
    bare = Bare("ragged", tmp_path)
    alone = bare._run(0, token_lists()[0][np.newaxis])
    assert np.allclose(bare.answers()[0], alone[0], rtol=1e-3, atol=1e-5)


def test_a_picture_has_as_many_crops_as_it_says() -> None:
    picture = np.arange(128 * 128, dtype=np.float32).reshape(1, 128, 128)
    picture[0, 0, 0] = 4
    places = np.linspace(0, 1, 18, dtype=np.float32).reshape(9, 2)
    crops = crops_of(picture, places)
    assert crops.shape == (4, 1, 16, 16)
    y, x = (places[3] * 112).astype(int)
    assert np.array_equal(crops[3, 0], picture[0, y : y + 16, x : x + 16])


def test_an_answer_must_be_what_the_bare_models_say() -> None:
    right = np.array([0.25, 0.75], np.float32)

    def answer(*values: float) -> bytes:
        tensor = Tensor(name="y", elem_type=1, shape=[1, 2], float_data=values)
        return Response(tensors=[tensor]).SerializeToString()

    assert is_right(answer(0.25, 0.75), right)
    assert not is_right(answer(0.25, 0.76), right)
    assert not is_right(answer(0.25), right)
    assert not is_right(Response(err_no=5000).SerializeToString(), right)
    assert is_right(Response(key=["text"], value=["ABC"]).SerializeToString(), "ABC")
    assert not is_right(Response(key=["text"], value=["ABX"]).SerializeToString(), "ABC")


def test_the_bare_loop_counts_rows_and_runs_every_batch(tmp_path: Path) -> None:
    report = run_loop("texts", tmp_path, seconds=0.01, warmup_seconds=0.0)
    assert report.answers % len(GRAPHS["texts"].inputs()) == 0
    assert report.cpu_us > 0


def test_a_model_is_built_the_same_each_time_and_only_once(tmp_path: Path) -> None:
    assert BUILDERS["recogniser"]() == BUILDERS["recogniser"]()
    assert BUILDERS["classifier-a"]() != BUILDERS["classifier-b"]()
    folder = model_folder("recogniser", tmp_path)
    (folder / "model.onnx").write_bytes(b"kept")
    assert (model_folder("recogniser", tmp_path) / "model.onnx").read_bytes() == b"kept"


def test_the_resnet_has_the_layers_and_weights_of_resnet_50() -> None:
    model = onnx.load_from_string(BUILDERS["resnet50"]())
    kinds = [node.op_type for node in model.graph.node]
    assert (kinds.count("Conv"), kinds.count("Gemm")) == (53, 1)
    weights = sum(int(np.prod(weight.dims)) for weight in model.graph.initializer)
    assert weights == pytest.approx(25.53e6, rel=0.002)  # with the normalisation folded in
    (x,) = model.graph.input
    assert tuple(dim.dim_value for dim in x.type.tensor_type.shape.dim)[1:] == IMAGE_SHAPE
