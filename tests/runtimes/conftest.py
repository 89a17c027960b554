"""Small real ONNX models, built by the tests; and networks in the form of every library."""

import fcntl
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

Build = Callable[..., Path]


@pytest.fixture(scope="session")
def networks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Output of ``python -m tests.models``, made once for all workers of pytest; read-only."""
    base = tmp_path_factory.getbasetemp()
    root = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "networks"
    with open(f"{root}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not root.exists():
            # In a separate process: Paddle's two generations of programs change global state.
            making = root.with_suffix(".making")
            command = [sys.executable, "-m", "tests.models", str(making)]
            subprocess.run(command, check=True, timeout=150)  # a test's own limit may be less
            making.rename(root)
    return root


def save(file: Path, nodes, inputs, outputs, initializers=()) -> Path:
    graph = helper.make_graph(nodes, "g", inputs, outputs, list(initializers))
    # Versions that every supported ONNX Runtime can read.
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, str(file))
    return file


def value(name: str, kind: int, shape) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


@pytest.fixture
def regression(tmp_path: Path) -> Build:
    """``price = x @ ones(13, 1) + 0.5``, in a separate folder."""

    def build(folder: str = "uci_housing_model", file: str = "model.onnx") -> Path:
        (tmp_path / folder).mkdir(exist_ok=True)
        return save(
            tmp_path / folder / file,
            [
                helper.make_node("MatMul", ["x", "w"], ["xw"]),
                helper.make_node("Add", ["xw", "b"], ["price"]),
            ],
            [value("x", TensorProto.FLOAT, ["batch", 13])],
            [value("price", TensorProto.FLOAT, ["batch", 1])],
            [
                numpy_helper.from_array(np.ones((13, 1), np.float32), "w"),
                numpy_helper.from_array(np.full(1, 0.5, np.float32), "b"),
            ],
        )

    return build


@pytest.fixture
def two_inputs(tmp_path: Path) -> Path:
    """``sum = a + float(ids)``, ``twice = a + a``; a is float32 [n, 2], ids int64 [n, 2]."""
    return save(
        tmp_path / "two.onnx",
        [
            helper.make_node("Cast", ["ids"], ["f"], to=TensorProto.FLOAT),
            helper.make_node("Add", ["a", "f"], ["sum"]),
            helper.make_node("Add", ["a", "a"], ["twice"]),
        ],
        [value("a", TensorProto.FLOAT, ["n", 2]), value("ids", TensorProto.INT64, ["n", 2])],
        [value("sum", TensorProto.FLOAT, ["n", 2]), value("twice", TensorProto.FLOAT, ["n", 2])],
    )


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    """``same = text``, strings of any batch."""
    return save(
        tmp_path / "texts.onnx",
        [helper.make_node("Identity", ["text"], ["same"])],
        [value("text", TensorProto.STRING, ["n"])],
        [value("same", TensorProto.STRING, ["n"])],
    )
