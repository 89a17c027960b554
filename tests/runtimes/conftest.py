"""Small real ONNX models, built by the tests; and networks in the form of every library."""

import fcntl
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.kit.onnx_models import save

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


@pytest.fixture
def regression(tmp_path: Path) -> Build:
    """``price = x @ ones(13, 1) + 0.5``, in a separate folder."""

    def build(folder: str = "uci_housing_model", file: str = "model.onnx") -> Path:
        (tmp_path / folder).mkdir(exist_ok=True)
        return save(
            tmp_path / folder / file,
            "(float[batch, 13] x) => (float[batch, 1] price)"
            " { xw = MatMul(x, w) price = Add(xw, b) }",
            w=np.ones((13, 1), np.float32),
            b=np.full(1, 0.5, np.float32),
        )

    return build


@pytest.fixture
def two_inputs(tmp_path: Path) -> Path:
    """``sum = a + float(ids)``, ``twice = a + a``; a is float32 [n, 2], ids int64 [n, 2]."""
    return save(
        tmp_path / "two.onnx",
        "(float[n, 2] a, int64[n, 2] ids) => (float[n, 2] sum, float[n, 2] twice)"
        " { f = Cast<to = 1>(ids) sum = Add(a, f) twice = Add(a, a) }",
    )


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    """``same = text``, strings of any batch."""
    text = "(string[n] text) => (string[n] same) { same = Identity(text) }"
    return save(tmp_path / "texts.onnx", text)
