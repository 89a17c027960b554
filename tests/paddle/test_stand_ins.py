"""Projects of ``paddle/examples``, unmodified, with models of the same names and numbers in ONNX.

They need no Paddle: a sample of ``test_examples.py`` for machines without it.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper
from onnx.numpy_helper import from_array

from tests.paddle.test_examples import (
    EXAMPLES,
    check_ensemble,
    numbers,
    over_grpc,
    over_http,
    serving,
)
from tests.runtimes.conftest import save, value

pytestmark = pytest.mark.real

WORTH = {
    "i": 0,
    "am": 0,
    "this": 0,
    "movie": 0,
    "is": 0,
    "good": 2,
    "great": 3,
    "bad": -2,
    "sad": -1,
}
LENGTH = 16
CLIENT = """
feed_var { name: "words" alias_name: "words" feed_type: 0 shape: 16 }
fetch_var { name: "prediction" alias_name: "prediction" fetch_type: 1 shape: 2 }
"""


def test_a_web_service_in_processes(tmp_path: Path) -> None:
    folder = shutil.copytree(EXAMPLES / "simple_web_service", tmp_path / "uci")
    (folder / "uci_housing_model").mkdir()
    weights, bias = np.arange(13, dtype=np.float32)[:, None], np.float32([22.5])
    save(
        folder / "uci_housing_model/model.onnx",
        [
            helper.make_node("MatMul", ["x", "weights"], ["product"]),
            helper.make_node("Add", ["product", "bias"], ["price"]),
        ],
        [value("x", TensorProto.FLOAT, ["n", 13])],
        [value("price", TensorProto.FLOAT, ["n", 1])],
        [from_array(weights, "weights"), from_array(bias, "bias")],
    )
    with serving(folder) as server:
        (reply,) = over_http(server, folder)
        first, second = numbers(reply["price"])
        assert first == second == pytest.approx(numbers(over_grpc(server, folder)["price"])[0])
        house = [0.0137, -0.1136, 0.2553, -0.0692, 0.0582, -0.0727, -0.1583]
        house += [-0.0584, 0.6283, 0.4919, 0.1856, 0.0795, -0.0332]
        assert first == pytest.approx(np.dot(house, weights[:, 0]) + 22.5, abs=1e-4)


def test_an_ensemble_of_two_model_servers(tmp_path: Path) -> None:
    folder = shutil.copytree(EXAMPLES / "ensemble", tmp_path / "imdb")
    (folder / "imdb.vocab").write_text("\n".join(WORTH) + "\n")
    words = np.ones(LENGTH)
    pairs = np.r_[0.5, np.full(LENGTH - 2, 1.5), 1.0]  # each word, and half of the one before
    for name, weights in (("bow", words), ("cnn", pairs)):
        for kind in ("model", "client_conf"):
            (folder / f"imdb_{name}_{kind}").mkdir()
        (folder / f"imdb_{name}_client_conf/serving_client_conf.prototxt").write_text(CLIENT)
        save(
            folder / f"imdb_{name}_model/model.onnx",
            [
                helper.make_node("Gather", ["worth", "words"], ["worths"]),
                helper.make_node("MatMul", ["worths", "weights"], ["both"]),
                helper.make_node("Softmax", ["both"], ["prediction"], axis=1),
            ],
            [value("words", TensorProto.INT64, ["n", LENGTH])],
            [value("prediction", TensorProto.FLOAT, ["n", 2])],
            [
                from_array(np.float32([*WORTH.values(), 0]), "worth"),
                from_array(np.float32(np.c_[-weights, weights]), "weights"),
            ],
        )
    check_ensemble(folder)
