"""The regression model of the compared servers: one linear layer of seven features."""

from __future__ import annotations

from pathlib import Path

import onnxruntime
from onnx import parser, save

from benchmarks.bodies import WEIGHTS

_TEXT = """<ir_version: 8, opset_import: ["": 17]> g (float[n, 7] x) => (float[n, 1] y)
{{ w = Constant<value = float[7, 1] {{{weights}}}>() y = MatMul(x, w) }}"""


def session_of(folder: Path) -> onnxruntime.InferenceSession:
    """Write and open the model, with one thread."""
    path = folder / "regression.onnx"
    save(parser.parse_model(_TEXT.format(weights=", ".join(map(str, WEIGHTS)))), str(path))
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
