"""Small real ONNX models."""

from __future__ import annotations

from pathlib import Path

import onnx
from onnx import TensorProto, helper


def scale(file: Path, factor: float, output: str = "y") -> Path:
    """A model of ``output = x * factor`` and ``twice = output * 2``; ``x`` is float32 ``[n,
    3]``."""
    rows = ["n", 3]
    graph = helper.make_graph(
        [
            helper.make_node("Mul", ["x", "factor"], [output]),
            helper.make_node("Add", [output, output], ["twice"]),
        ],
        "scale",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, rows)],
        [
            helper.make_tensor_value_info(output, TensorProto.FLOAT, rows),
            helper.make_tensor_value_info("twice", TensorProto.FLOAT, rows),
        ],
        [helper.make_tensor("factor", TensorProto.FLOAT, [1], [factor])],
    )
    # Versions that all supported versions of ONNX Runtime can read.
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, str(file))
    return file


def plus_one(file: Path) -> Path:
    """A model of ``y = x + 1`` for float32 of any shape ``[n, height, width]``."""
    axes = ["n", "height", "width"]
    graph = helper.make_graph(
        [helper.make_node("Add", ["x", "one"], ["y"])],
        "plus_one",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, axes)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, axes)],
        [helper.make_tensor("one", TensorProto.FLOAT, [1], [1.0])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, str(file))
    return file
