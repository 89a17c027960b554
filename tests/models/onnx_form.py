"""The networks as ONNX files."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tests.kit import onnx_models
from tests.models.networks import B1, B2, EMBEDDING, W1, W2, W3


def save(folder: Path, network: str) -> Path:
    """Write ``model.onnx``; its names are the public ones."""
    if network == "regression":
        text = (
            "(float[n, 13] x) => (float[n, 1] price)"
            " { h = Gemm(x, w1, b1) r = Relu(h) price = Gemm(r, w2, b2) }"
        )
        weights = {"w1": W1, "b1": B1, "w2": W2, "b2": B2}
    else:
        text = (
            "(int64[n, length] words, float[n, 1] scale)"
            " => (float[n, length, 5] scores, float[n, 5] best)"
            " { e = Gather(embedding, words) p = MatMul(e, w3) t = Tanh(p)"
            " s = Unsqueeze(scale, one) scores = Mul(t, s)"
            " best = ReduceMax<axes = [1], keepdims = 0>(scores) }"
        )
        weights = {"embedding": EMBEDDING, "w3": W3, "one": np.array([1])}
    onnx_models.save(folder / "model.onnx", text, **weights)
    return folder
