"""The runtime in docs/runtimes.md works."""

from pathlib import Path

import numpy as np
import pytest

from penstock.errors import InputMismatch, ModelError
from penstock.runtimes.model import Model
from penstock.runtimes.runtime import ModelOptions
from tests.documents import ROOT, blocks_of


def test_the_documented_runtime_opens_and_runs_a_model(tmp_path: Path) -> None:
    (block,) = [each for each in blocks_of(ROOT / "docs/runtimes.md") if each.language == "python"]
    names: dict = {}
    exec(block.text, names)
    runtime = names["AffineRuntime"]()
    file = tmp_path / "model.npz"
    np.savez(file, weight=np.ones((3, 2), np.float32), bias=np.float32([0, 1]))
    assert runtime.can_open(file)
    model = Model(runtime.open(file, ModelOptions(path=str(file))))
    got = model.run({"x": np.ones((1, 3), np.float32)})
    np.testing.assert_array_equal(got["y"], [[3, 4]])
    with pytest.raises(InputMismatch):
        model.run({"x": np.ones((1, 4), np.float32)})
    with pytest.raises(ModelError, match="precision: affine models are fp32"):
        runtime.open(file, ModelOptions(path=str(file), precision="int8"))
