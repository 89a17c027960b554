"""Trains the classifier of handwritten digits and writes it as digits.onnx, with a picture to try.

The data are scikit-learn's: 1,797 digits of 8 × 8. Every fifth is kept out of the training.

    python train.py [FOLDER]
"""

import sys
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from PIL import Image
from sklearn.datasets import load_digits
from sklearn.neural_network import MLPClassifier


def main(folder: Path) -> float:
    """Write the model; gives the share of the digits kept out that it names rightly."""
    digits = load_digits()
    pictures = digits.images.reshape(-1, 64).astype(np.float32) / 16
    kept_out = np.arange(len(pictures)) % 5 == 0
    # Each also a pixel off in every direction: drawn ones are never quite in the middle.
    learn, labels = shifted(pictures[~kept_out]), np.tile(digits.target[~kept_out], 5)
    net = MLPClassifier((64,), random_state=1, max_iter=200)
    net.fit(learn, labels)
    folder.mkdir(parents=True, exist_ok=True)
    export(net, folder / "digits.onnx")
    seven = Image.fromarray((255 - digits.images[7] * 15).astype(np.uint8))
    seven.resize((128, 128), Image.Resampling.BICUBIC).convert("RGB").save(folder / "seven.jpg")
    return float(net.score(pictures[kept_out], digits.target[kept_out]))


def shifted(pictures: np.ndarray) -> np.ndarray:
    squares = pictures.reshape(-1, 8, 8)
    ways = [(0, 0), (1, 0), (-1, 0), (0, 1), (0, -1)]
    return np.concatenate([np.roll(squares, way, (1, 2)) for way in ways]).reshape(-1, 64)


def export(net: MLPClassifier, path: Path) -> None:
    (first, second), (first_bias, second_bias) = net.coefs_, net.intercepts_
    weights = {"w1": first, "b1": first_bias, "w2": second, "b2": second_bias}
    graph = helper.make_graph(
        [
            helper.make_node("Gemm", ["x", "w1", "b1"], ["hidden"]),
            helper.make_node("Relu", ["hidden"], ["active"]),
            helper.make_node("Gemm", ["active", "w2", "b2"], ["logits"]),
            helper.make_node("Softmax", ["logits"], ["scores"]),
        ],
        "digits",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 64])],
        [helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["batch", 10])],
        [numpy_helper.from_array(each.astype(np.float32), name) for name, each in weights.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model, full_check=True)
    path.write_bytes(model.SerializeToString(deterministic=True))


if __name__ == "__main__":
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parent / "models")
    print(f"{folder}: {main(folder):.1%} of the digits kept out are named rightly")
