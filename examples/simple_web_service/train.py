"""Trains the house price model of this example and writes it as an ONNX model folder.

One linear layer on the thirteen features of the Boston housing data, which mlxtend ships. Requests
carry features scaled as ``(value - mean) / (max - min)``; ``scale`` does that to a table of raw
ones. Every fifth house is kept out of the training, and tells how good the model is.

    python train.py            writes models/uci
"""

import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from mlxtend.data import boston_housing_data
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

FEATURES = 13

SERVING_CONF = """\
feed_var {
  name: "x"
  alias_name: "x"
  is_lod_tensor: false
  feed_type: 1
  shape: 13
}
fetch_var {
  name: "fc_0.tmp_1"
  alias_name: "price"
  is_lod_tensor: false
  fetch_type: 1
  shape: 1
}
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Houses:
    """Scaled features ``[n, 13]`` and prices ``[n, 1]`` in thousands of dollars, float32."""

    x: NDArray[np.float32]
    price: NDArray[np.float32]


def scale(raw: NDArray[np.float64]) -> NDArray[np.float32]:
    spread = raw.max(axis=0) - raw.min(axis=0)
    return ((raw - raw.mean(axis=0)) / spread).astype(np.float32)


def load() -> tuple[Houses, Houses]:
    """The houses to learn from, and those kept out."""
    raw, price = boston_housing_data()
    x = scale(raw)
    y = price.reshape(-1, 1).astype(np.float32)
    kept_out = np.arange(len(x)) % 5 == 4
    return Houses(x=x[~kept_out], price=y[~kept_out]), Houses(x=x[kept_out], price=y[kept_out])


def fit(houses: Houses) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Least squares: weights ``[13, 1]`` and bias ``[1]``."""
    with_one = np.hstack([houses.x, np.ones_like(houses.price)]).astype(np.float64)
    solution, *_ = np.linalg.lstsq(with_one, houses.price.astype(np.float64), rcond=None)
    return solution[:-1].astype(np.float32), solution[-1].astype(np.float32)


def error_of(weights: NDArray[np.float32], bias: NDArray[np.float32], houses: Houses) -> float:
    """Root mean square error, in thousands of dollars."""
    return float(np.sqrt(np.mean((houses.x @ weights + bias - houses.price) ** 2)))


def export(weights: NDArray[np.float32], bias: NDArray[np.float32], folder: Path) -> None:
    """Write the model and its aliases; how many houses a call carries stays open."""
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["x", "fc_0.w_0"], ["fc_0.tmp_0"]),
            helper.make_node("Add", ["fc_0.tmp_0", "fc_0.b_0"], ["fc_0.tmp_1"]),
        ],
        "uci_housing",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", FEATURES])],
        [helper.make_tensor_value_info("fc_0.tmp_1", TensorProto.FLOAT, ["batch", 1])],
        [
            numpy_helper.from_array(weights, "fc_0.w_0"),
            numpy_helper.from_array(bias, "fc_0.b_0"),
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model, full_check=True)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "uci.onnx").write_bytes(model.SerializeToString(deterministic=True))
    # Last, because the service takes this file as the sign that the folder is complete.
    (folder / "serving_server_conf.prototxt").write_text(SERVING_CONF)


def main(folder: Path) -> None:
    learn, kept_out = load()
    weights, bias = fit(learn)
    export(weights, bias, folder)
    error = error_of(weights, bias, kept_out)
    print(f"{folder}: error {error:.2f} thousand dollars on {len(kept_out.x)} houses kept out")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parent / "models/uci"))
