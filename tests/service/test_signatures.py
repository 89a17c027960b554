from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from penstock.errors import ModelError
from penstock.ops.short import Model
from penstock.service.blueprint import deploy
from penstock.service.build import load
from tests.kit.onnx_models import save, scale
from tests.service.in_process import blueprint_of, root, service_of
from tests.service.scripts import PENSTOCK
from tests.service.test_run import run_failing


@pytest.mark.parametrize(
    ("fetched", "error"),
    [
        (["y"], None),
        (["twice"], None),
        (None, r"op 'second': its model takes \['x'\], and op 'first' .* \['y', 'twice'\]"),
    ],
)
def test_a_model_after_another_finds_its_inputs_among_the_outputs_or_the_start_fails(
    tmp_path: Path, fetched: list[str] | None, error: str | None
) -> None:
    first = Model(scale(tmp_path / "first.onnx", 2), inputs=root(), fetch_list=fetched)
    second = Model(negative(tmp_path / "second.onnx", "float[n, 3]"), inputs=first)
    deployment = deploy([blueprint_of(second)])
    if error is None:
        load(deployment)
        return
    with pytest.raises(ModelError, match=error):
        load(deployment)


def negative(file: Path, x: str) -> Path:
    """A model of ``z = -x``."""
    return save(file, f"({x} x) => ({x} z) {{ z = Neg(x) }}")


@pytest.mark.parametrize(
    ("taken", "fits"),
    [
        ("float[n, 3]", True),
        ("double[m, k]", True),
        ("float[1, 3]", True),
        ("float[n, 4]", False),
        ("float[n, 3, 1]", False),
        ("int64[n, 3]", False),
    ],
)
def test_edges_that_can_never_fit_are_refused_at_the_start(
    tmp_path: Path, taken: str, fits: bool
) -> None:
    wide = Model(scale(tmp_path / "wide.onnx", 2), inputs=root(), fetch_list=["y"])
    narrow = Model(negative(tmp_path / "narrow.onnx", taken), inputs=wide)
    deployment = deploy([blueprint_of(narrow)])
    if fits:
        load(deployment)
        return
    both = (
        r"op 'narrow': its model's input x \S+\[.*\] can never .* y float32\[\?, 3\] of op 'wide'"
    )
    with pytest.raises(ModelError, match=both):
        load(deployment)


async def test_what_only_shows_at_run_time_between_two_models_is_not_the_callers_error(
    tmp_path: Path,
) -> None:
    first = Model(negative(tmp_path / "first.onnx", "float[n, m]"), inputs=root())
    last = Model(negative(tmp_path / "last.onnx", "float[n, 3]"), inputs=first)
    async with service_of(last) as service:
        reply = await service.call(x=np.ones((1, 4), np.float32))
        assert (reply.err_no, "expected the shape [?, 3], got [1, 4]" in reply.err_msg) == (
            7000,
            True,
        )
        assert (await service.call(x=np.ones((1, 3), np.float32))).err_no == 0


@pytest.mark.real
def test_edges_are_checked_with_the_models_of_worker_processes(tmp_path: Path) -> None:
    scale(tmp_path / "wide.onnx", 2)
    negative(tmp_path / "narrow.onnx", "float[n, 4]")
    service = tmp_path / "service.py"
    service.write_text(
        "from penstock import Model, Service, run\n"
        'wide = Model("wide.onnx", fetch_list=["y"])\n'
        'op = {"wide": {"executor": "process"}}\n'
        'run(Service("chain", Model("narrow.onnx", wide), op=op))\n'
    )
    done = run_failing(service, PENSTOCK)
    assert done.returncode == 1
    assert "input x float32[?, 4] can never take the output y float32[?, 3] of op" in done.stderr
