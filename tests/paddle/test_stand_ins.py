"""Projects of ``paddle/examples``, unmodified, with models of the same names and numbers in ONNX.

They need no Paddle: a sample of ``test_examples.py`` for machines without it.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from tests.kit.onnx_models import save
from tests.paddle.test_examples import (
    EXAMPLES,
    check_ensemble,
    numbers,
    over_grpc,
    over_http,
    serving,
)

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
        "(float[n, 13] x) => (float[n, 1] price)"
        " { product = MatMul(x, weights) price = Add(product, bias) }",
        weights=weights,
        bias=bias,
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
            f"(int64[n, {LENGTH}] words) => (float[n, 2] prediction)"
            " { worths = Gather(worth, words) both = MatMul(worths, weights)"
            " prediction = Softmax<axis = 1>(both) }",
            worth=np.float32([*WORTH.values(), 0]),
            weights=np.float32(np.c_[-weights, weights]),
        )
    check_ensemble(folder)
