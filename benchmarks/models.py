"""The ONNX models of the benchmarks, built once with seeded random weights and kept in a folder.

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

IMAGE_SHAPE = (3, 224, 224)
CLASSIFIED_SHAPE = (3, 32, 32)
PICTURE_SHAPE = (1, 128, 128)
CROP_SHAPE = (1, 16, 16)
MOST_CROPS = 9
VOCABULARY = 5000
FEATURES = 13
_STAGES = ((64, 3), (128, 4), (256, 6), (512, 3))  # ResNet-50: width, blocks


class GraphBuilder:
    """Collects nodes and weights; each method appends a layer and returns its output's name."""

    def __init__(self, seed: int) -> None:
        self._random = np.random.default_rng(seed)
        self._nodes: list[Any] = []
        self._weights: list[Any] = []

    def weight(self, shape: Sequence[int], scale: float) -> str:
        """Random weights."""
        values = self._random.standard_normal(shape, dtype=np.float32) * np.float32(scale)
        return self.constant(values)

    def constant(self, values: NDArray[Any]) -> str:
        """A constant with these values."""
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
        weight = self.weight((width_in, width_out), (2 / width_in) ** 0.5)
        return self.node("Gemm", [x, weight, self.weight((width_out,), 0.1)])

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
        """A convolution with its normalisation folded in, as converters do it."""
        scale = gain * (2 / (depth_in * kernel * kernel)) ** 0.5
        weight = self.weight((depth_out, depth_in, kernel, kernel), scale)
        return self.node(
            "Conv",
            [x, weight, self.weight((depth_out,), 0.01)],
            kernel_shape=[kernel, kernel],
            strides=[stride, stride],
            pads=[kernel // 2] * 4,
        )

    def relu(self, x: str) -> str:
        """The rectifier."""
        return self.node("Relu", [x])

    def model(
        self,
        x: str,
        x_shape: Sequence[int | str],
        y: str,
        y_shape: Sequence[int],
        x_type: int = TensorProto.FLOAT,
    ) -> bytes:
        """The checked, serialised model with input ``x`` and output ``y``, batch axis free."""
        self._nodes[-1].output[0] = y
        graph = helper.make_graph(
            self._nodes,
            "benchmark",
            [helper.make_tensor_value_info(x, x_type, ["batch", *x_shape])],
            [helper.make_tensor_value_info(y, TensorProto.FLOAT, ["batch", *y_shape])],
            self._weights,
        )
        model = helper.make_model(
            graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION
        )
        onnx.checker.check_model(model)
        return bytes(model.SerializeToString())


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


def classifier(seed: int) -> bytes:
    """Convolutions on a picture of 32 x 32 in colours, ten classes: some milliseconds."""
    graph = GraphBuilder(seed)
    x, depth = "x", CLASSIFIED_SHAPE[0]
    for wider, stride in ((48, 1), (80, 1), (80, 2), (128, 1), (128, 2)):
        x = graph.relu(graph.convolution(x, depth, wider, kernel=3, stride=stride))
        depth = wider
    x = graph.node("Flatten", [graph.node("GlobalAveragePool", [x])])
    graph.node("Softmax", [graph.dense(x, depth, 10)], axis=1)
    return graph.model("x", CLASSIFIED_SHAPE, "scores", (10,))


def detector() -> bytes:
    """Convolutions on a picture of 128 x 128, then nine places of texts, from 0 to 1."""
    graph = GraphBuilder(31)
    x, depth = "picture", 1
    for wider in (24, 40, 64, 64):
        x = graph.relu(graph.convolution(x, depth, wider, kernel=3, stride=2))
        depth = wider
    x = graph.node("Flatten", [x])
    x = graph.node("Sigmoid", [graph.dense(x, depth * 8 * 8, 2 * MOST_CROPS)])
    shape = graph.constant(np.array([-1, MOST_CROPS, 2], np.int64))
    graph.node("Reshape", [x, shape])
    return graph.model("picture", PICTURE_SHAPE, "places", (MOST_CROPS, 2))


def recogniser() -> bytes:
    """Convolutions on a crop of 16 x 16, then the scores of 36 letters."""
    graph = GraphBuilder(32)
    x = graph.relu(graph.convolution("crop", 1, 24, kernel=3))
    x = graph.relu(graph.convolution(x, 24, 48, kernel=3, stride=2))
    x = graph.relu(graph.convolution(x, 48, 96, kernel=3, stride=2))
    graph.dense(graph.node("Flatten", [x]), 96 * 4 * 4, 36)
    return graph.model("crop", CROP_SHAPE, "letter", (36,))


def reader() -> bytes:
    """Token numbers, 0 for padding, to the mean of two dense layers' outputs."""
    graph, width = GraphBuilder(33), 128
    x = graph.node("Gather", [graph.weight((VOCABULARY, width), 1), "tokens"])
    for _ in range(2):
        wide = graph.relu(graph.node("MatMul", [x, graph.weight((width, 4 * width), 0.15)]))
        x = graph.node(
            "Add", [x, graph.node("MatMul", [wide, graph.weight((4 * width, width), 0.05)])]
        )
    there = graph.node("Greater", ["tokens", graph.constant(np.array(0, np.int64))])
    there = graph.node("Cast", [there], to=TensorProto.FLOAT)
    count = graph.node("ReduceSum", [there, graph.constant(np.array([1], np.int64))], keepdims=1)
    there = graph.node("Unsqueeze", [there, graph.constant(np.array([2], np.int64))])
    total = graph.node(
        "ReduceSum",
        [graph.node("Mul", [x, there]), graph.constant(np.array([1], np.int64))],
        keepdims=0,
    )
    graph.dense(graph.node("Div", [total, count]), width, 8)
    return graph.model("tokens", ("length",), "topic", (8,), TensorProto.INT64)


def small_resnet() -> bytes:
    """Eight blocks shaped like those of ResNet, narrow, on pictures of any height and width."""
    graph = GraphBuilder(51)
    x = graph.relu(graph.convolution("x", 3, 16, kernel=3, stride=2))
    depth = 16
    for width in (16, 32, 64, 128):
        for stride in (2, 1) if width > 16 else (1, 1):
            shortcut = x
            if depth != width:
                shortcut = graph.convolution(x, depth, width, kernel=1, stride=stride)
            y = graph.relu(graph.convolution(x, depth, width, kernel=3, stride=stride))
            y = graph.convolution(y, width, width, kernel=3, gain=0.3)
            x = graph.relu(graph.node("Add", [y, shortcut]))
            depth = width
    x = graph.node("Flatten", [graph.node("GlobalAveragePool", [x])])
    graph.dense(x, depth, 100)
    return graph.model("x", (3, "height", "width"), "score", (100,))


def small_dense() -> bytes:
    """13 numbers through a layer of 64 to one."""
    graph = GraphBuilder(52)
    graph.dense(graph.relu(graph.dense("x", 13, 64)), 64, 1)
    return graph.model("x", (13,), "y", (1,))


def wide_dense() -> bytes:
    """13 numbers through two layers of 1024 to one: four megabytes of weights, read in each run."""
    graph = GraphBuilder(53)
    x = graph.relu(graph.dense("x", 13, 1024))
    graph.dense(graph.relu(graph.dense(x, 1024, 1024)), 1024, 1)
    return graph.model("x", (13,), "y", (1,))


def price() -> bytes:
    """13 features to a price by 64 hidden units.

    Its weights are small multiples of 1/8: if the features are such multiples, too, every sum is
    exact, so that the answer does not depend on the other rows of a batch.
    """
    graph, random = GraphBuilder(34), np.random.default_rng(34)

    def weight(*shape: int) -> str:
        return graph.constant((random.integers(-8, 9, shape) / 8).astype(np.float32))

    hidden = graph.relu(graph.node("Gemm", ["x", weight(FEATURES, 64), weight(64)]))
    graph.node("Gemm", [hidden, weight(64, 1), weight(1)])
    return graph.model("x", (FEATURES,), "price", (1,))


BUILDERS: dict[str, Callable[[], bytes]] = {
    "resnet50": resnet50,
    "classifier-a": lambda: classifier(21),
    "classifier-b": lambda: classifier(22),
    "detector": detector,
    "recogniser": recogniser,
    "reader": reader,
    "small-resnet": small_resnet,
    "small-dense": small_dense,
    "wide-dense": wide_dense,
    "price": price,
}


def model_folder(name: str, cache: Path) -> Path:
    """The folder of the model ``name``, which is built unless it exists already."""
    folder = cache / name
    file = folder / "model.onnx"
    if not file.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        unfinished = folder / "unfinished"
        unfinished.write_bytes(BUILDERS[name]())
        unfinished.rename(file)
    return folder
