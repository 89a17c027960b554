"""The ONNX models under test, built once with seeded random weights and kept in a folder.

Speed does not depend on what a model has learnt, so nothing is downloaded: the layers have the real
shapes, the weights are random and scaled so that values neither vanish nor overflow (either would
change the speed of floating point).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

OPSET = 17
IR_VERSION = 8

LINEAR_FEATURES = 13
MLP_FEATURES = 256
IMAGE_SHAPE = (3, 224, 224)
_STAGES = ((64, 3), (128, 4), (256, 6), (512, 3))  # ResNet-50: width, blocks


class GraphBuilder:
    """Collects nodes and weights; each method appends a layer and gives its output's name."""

    def __init__(self, seed: int) -> None:
        self._random = np.random.default_rng(seed)
        self._nodes: list[Any] = []
        self._weights: list[Any] = []

    def _weight(self, shape: Sequence[int], scale: float) -> str:
        values = self._random.standard_normal(shape, dtype=np.float32) * np.float32(scale)
        name = f"w{len(self._weights)}"
        self._weights.append(numpy_helper.from_array(values, name))
        return name

    def node(self, kind: str, inputs: Sequence[str], **attributes: Any) -> str:
        """Any operator with one output."""
        name = f"t{len(self._nodes)}"
        self._nodes.append(helper.make_node(kind, list(inputs), [name], **attributes))
        return name

    def dense(self, x: str, width_in: int, width_out: int) -> str:
        """A matrix and a bias."""
        weight = self._weight((width_in, width_out), (2 / width_in) ** 0.5)
        return self.node("Gemm", [x, weight, self._weight((width_out,), 0.1)])

    def convolution(
        self,
        x: str,
        depth_in: int,
        depth_out: int,
        *,
        kernel: int,
        stride: int = 1,
        gain: float = 1,
    ) -> str:
        """A convolution with its normalisation folded in, as a converter leaves it."""
        scale = gain * (2 / (depth_in * kernel * kernel)) ** 0.5
        weight = self._weight((depth_out, depth_in, kernel, kernel), scale)
        return self.node(
            "Conv",
            [x, weight, self._weight((depth_out,), 0.01)],
            kernel_shape=[kernel, kernel],
            strides=[stride, stride],
            pads=[kernel // 2] * 4,
        )

    def relu(self, x: str) -> str:
        """The rectifier."""
        return self.node("Relu", [x])

    def model(self, x: str, x_shape: Sequence[int], y: str, y_shape: Sequence[int]) -> bytes:
        """The checked, serialised model with input ``x`` and output ``y``, batch axis free."""
        self._nodes[-1].output[0] = y
        graph = helper.make_graph(
            self._nodes,
            "benchmark",
            [helper.make_tensor_value_info(x, TensorProto.FLOAT, ["batch", *x_shape])],
            [helper.make_tensor_value_info(y, TensorProto.FLOAT, ["batch", *y_shape])],
            self._weights,
        )
        model = helper.make_model(
            graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION
        )
        onnx.checker.check_model(model)
        return bytes(model.SerializeToString())


def linear() -> bytes:
    """A regression on 13 features: as small as a model gets."""
    graph = GraphBuilder(13)
    graph.dense("x", LINEAR_FEATURES, 1)
    return graph.model("x", (LINEAR_FEATURES,), "price", (1,))


def mlp(seed: int) -> bytes:
    """Three dense layers on 256 features, two classes: some tenths of a millisecond."""
    graph = GraphBuilder(seed)
    hidden = graph.relu(graph.dense("x", MLP_FEATURES, 1024))
    hidden = graph.relu(graph.dense(hidden, 1024, 1024))
    graph.node("Softmax", [graph.dense(hidden, 1024, 2)], axis=1)
    return graph.model("x", (MLP_FEATURES,), "prediction", (2,))


def resnet50() -> bytes:
    """The layers of ResNet-50 (He et al. 2015, table 1): 25.5 million weights, 1,000 scores."""
    graph = GraphBuilder(50)
    x = graph.relu(graph.convolution("x", 3, 64, kernel=7, stride=2))
    x = graph.node("MaxPool", [x], kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    depth = 64
    for number, (width, blocks) in enumerate(_STAGES):
        for block in range(blocks):
            stride = 2 if number > 0 and block == 0 else 1
            shortcut = x
            if block == 0:
                shortcut = graph.convolution(x, depth, 4 * width, kernel=1, stride=stride)
            y = graph.relu(graph.convolution(x, depth, width, kernel=1))
            y = graph.relu(graph.convolution(y, width, width, kernel=3, stride=stride))
            # The small gain keeps the sum of sixteen blocks from growing without bound.
            y = graph.convolution(y, width, 4 * width, kernel=1, gain=0.3)
            x = graph.relu(graph.node("Add", [y, shortcut]))
            depth = 4 * width
    x = graph.node("Flatten", [graph.node("GlobalAveragePool", [x])])
    graph.dense(x, depth, 1000)
    return graph.model("x", IMAGE_SHAPE, "score", (1000,))


BUILDERS: dict[str, Callable[[], bytes]] = {
    "linear": linear,
    "mlp-a": lambda: mlp(1),
    "mlp-b": lambda: mlp(2),
    "resnet50": resnet50,
}


def model_folder(name: str, cache: Path) -> Path:
    """The folder that holds the model ``name``, built now unless it is there already."""
    folder = cache / name
    file = folder / "model.onnx"
    if not file.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        unfinished = folder / "unfinished"
        unfinished.write_bytes(BUILDERS[name]())
        unfinished.rename(file)
    return folder


def input_rows(shape: Sequence[int], rows: int) -> NDArray[np.float32]:
    """Seeded input of ``rows`` rows, standard normal, float32."""
    return np.random.default_rng(7).standard_normal((rows, *shape), dtype=np.float32)
