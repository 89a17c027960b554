"""Small real ONNX models, written in ONNX's text format."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx
from numpy.typing import NDArray
from onnx import numpy_helper, parser


def save(file: Path, text: str, **weights: NDArray[Any]) -> Path:
    """Write a model: ``(inputs) => (outputs) { nodes }``, and weights by name."""
    # Versions that all supported versions of ONNX Runtime can read.
    model = parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]> g {text}')
    model.graph.initializer.extend(numpy_helper.from_array(w, n) for n, w in weights.items())
    onnx.save(model, str(file))
    return file


def scale(file: Path, factor: float, output: str = "y") -> Path:
    """A model of ``output = x * factor`` and ``twice = output * 2``; ``x`` is float32 ``[n,
    3]``."""
    return save(
        file,
        f"(float[n, 3] x) => (float[n, 3] {output}, float[n, 3] twice) <float[1] factor ="
        f" {{{float(factor)}}}> {{ {output} = Mul(x, factor) twice = Add({output}, {output}) }}",
    )


def plus_one(file: Path) -> Path:
    """A model of ``y = x + 1`` for float32 of any shape ``[n, height, width]``."""
    axes = "float[n, height, width]"
    return save(file, f"({axes} x) => ({axes} y) <float[1] one = {{1.0}}> {{ y = Add(x, one) }}")
