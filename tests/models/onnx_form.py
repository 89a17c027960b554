"""The networks as ONNX files."""

from __future__ import annotations

from pathlib import Path

import onnx
from onnx import TensorProto, helper, numpy_helper

from tests.models.networks import B1, B2, EMBEDDING, W1, W2, W3


def save(folder: Path, network: str) -> Path:
    """Write ``model.onnx``; its names are the public ones."""
    node, value = helper.make_node, helper.make_tensor_value_info
    if network == "regression":
        nodes = [
            node("Gemm", ["x", "w1", "b1"], ["h"]),
            node("Relu", ["h"], ["r"]),
            node("Gemm", ["r", "w2", "b2"], ["price"]),
        ]
        inputs = [value("x", TensorProto.FLOAT, ["n", 13])]
        outputs = [value("price", TensorProto.FLOAT, ["n", 1])]
        weights = {"w1": W1, "b1": B1, "w2": W2, "b2": B2}
    else:
        nodes = [
            node("Gather", ["embedding", "words"], ["e"]),
            node("MatMul", ["e", "w3"], ["p"]),
            node("Tanh", ["p"], ["t"]),
            node("Unsqueeze", ["scale", "one"], ["s"]),
            node("Mul", ["t", "s"], ["scores"]),
            node("ReduceMax", ["scores"], ["best"], axes=[1], keepdims=0),
        ]
        inputs = [
            value("words", TensorProto.INT64, ["n", "length"]),
            value("scale", TensorProto.FLOAT, ["n", 1]),
        ]
        outputs = [
            value("scores", TensorProto.FLOAT, ["n", "length", 5]),
            value("best", TensorProto.FLOAT, ["n", 5]),
        ]
        weights = {"embedding": EMBEDDING, "w3": W3}
    initializers = [numpy_helper.from_array(each, name) for name, each in weights.items()]
    if network == "sequence":
        initializers.append(helper.make_tensor("one", TensorProto.INT64, [1], [1]))
    graph = helper.make_graph(nodes, network, inputs, outputs, initializers)
    # Versions that every supported ONNX Runtime can read.
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, str(folder / "model.onnx"))
    return folder
