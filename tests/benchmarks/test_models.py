from pathlib import Path

import numpy as np
import onnx
import pytest

from benchmarks.models import (
    BUILDERS,
    IMAGE_SHAPE,
    LINEAR_FEATURES,
    MLP_FEATURES,
    input_rows,
    model_folder,
)
from benchmarks.runtime_loop import open_session, run_loop


@pytest.mark.parametrize(
    ("name", "features"), [("linear", LINEAR_FEATURES), ("mlp-a", MLP_FEATURES)]
)
def test_a_small_model_runs_on_any_number_of_rows(tmp_path: Path, name: str, features: int) -> None:
    session = open_session(model_folder(name, tmp_path))
    for rows in (1, 3):
        (out,) = session.run(None, {"x": input_rows((features,), rows)})
        assert out.shape[0] == rows
        assert np.isfinite(out).all()


def test_a_model_is_built_the_same_each_time_and_only_once(tmp_path: Path) -> None:
    assert BUILDERS["linear"]() == BUILDERS["linear"]()
    assert BUILDERS["mlp-a"]() != BUILDERS["mlp-b"]()
    folder = model_folder("linear", tmp_path)
    (folder / "model.onnx").write_bytes(b"kept")
    assert (model_folder("linear", tmp_path) / "model.onnx").read_bytes() == b"kept"


def test_the_resnet_has_the_layers_and_weights_of_resnet_50() -> None:
    model = onnx.load_from_string(BUILDERS["resnet50"]())
    kinds = [node.op_type for node in model.graph.node]
    assert kinds.count("Conv") == 53
    assert kinds.count("Gemm") == 1
    weights = sum(int(np.prod(weight.dims)) for weight in model.graph.initializer)
    assert weights == pytest.approx(25.53e6, rel=0.002)  # with the normalisation folded in
    (x,) = model.graph.input
    dims = [dim.dim_value for dim in x.type.tensor_type.shape.dim]
    assert tuple(dims[1:]) == IMAGE_SHAPE


def test_the_bare_loop_counts_rows(tmp_path: Path) -> None:
    folder = model_folder("linear", tmp_path)
    report = run_loop([folder, folder], batch=4, seconds=0.05, warmup_seconds=0.0)
    assert report.requests % 4 == 0
    assert report.rps == pytest.approx(report.requests / report.seconds)
    assert report.server_cpu_s is not None
    assert report.seconds >= 0.05
