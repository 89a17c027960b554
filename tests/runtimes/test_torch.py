"""PyTorch: files that are opened and refused, and models without signatures."""

from __future__ import annotations

import io
import json
import os
import pickle
import re
import sys
import zipfile
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from penstock.errors import InputMismatch, ModelError
from penstock.runtimes.model import Model
from penstock.runtimes.runtime import ModelOptions, model_problems, open_session
from penstock.runtimes.torch import option_problems
from penstock.runtimes.torch_files import is_torch, kind_of, torch_file
from tests.models.networks import feed_of
from tests.runtimes.forms import needs

with_torch = needs("torch")


class Bomb:
    """Makes a folder when it is unpickled."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self):
        return os.mkdir, (str(self.folder),)


def archive(file: Path, entries: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(file, "w") as written:
        for name, data in entries.items():
            written.writestr(f"model/{name}", data)
    return file


# Files


def test_a_folder_must_have_exactly_one_model(tmp_path: Path) -> None:
    assert not is_torch(tmp_path)
    (tmp_path / "model.pt").touch()
    assert is_torch(tmp_path)
    assert torch_file(tmp_path) == torch_file(tmp_path / "model.pt") == tmp_path / "model.pt"
    (tmp_path / "model.pt2").touch()
    with pytest.raises(ModelError, match=r"exactly one file of .*, found model\.pt2, model\.pt"):
        torch_file(tmp_path)


@pytest.mark.parametrize("name", ["m.pt", "m.pth", "m.pt2", "m.ts"])
def test_pickles_are_refused_without_the_library(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    bomb = pickle.dumps(Bomb(tmp_path / "gone off"))
    file = tmp_path / name
    for write in (
        lambda: file.write_bytes(bomb),
        lambda: archive(file, {"data.pkl": bomb, "version": b"3"}),
        lambda: archive(file, {"data.pkl": bomb, "constants.pkl": bomb}),
        lambda: file.write_bytes(b""),
    ):
        write()
        with pytest.raises(ModelError, match=r"pickle.*torch\.jit\.save or torch\.export\.save"):
            open_session(ModelOptions(path=str(file)))
    assert not (tmp_path / "gone off").exists()


@pytest.mark.parametrize(
    ("entries", "pattern"),
    [
        (
            {
                "models/model.json": b"{}",
                "data/weights/model_weights_config.json": b'{"config":{"w":{"use_pickle":true}}}',
            },
            "holds 'w' as a pickle",
        ),
        ({"models/model.json": b"{}", "data/aotinductor/m/a.so": b""}, "compiled by AOTInductor"),
        ({"data/aotinductor/m/a.so": b""}, "compiled by AOTInductor"),
    ],
)
def test_exported_programs_with_pickles_or_machine_code_are_refused(
    tmp_path: Path, entries: dict[str, bytes], pattern: str
) -> None:
    with pytest.raises(ModelError, match=pattern):
        kind_of(archive(tmp_path / "m.pt2", entries))


@with_torch
def test_example_inputs_of_an_exported_program_are_not_unpickled(
    networks: Path, tmp_path: Path
) -> None:
    source = networks / "regression/torch_exported/model.pt2"
    bomb = io.BytesIO()
    import torch

    torch.save((Bomb(tmp_path / "gone off"),), bomb)
    with zipfile.ZipFile(source) as read, zipfile.ZipFile(tmp_path / "m.pt2", "w") as written:
        for name in read.namelist():
            is_samples = "sample_inputs" in name
            written.writestr(name, bomb.getvalue() if is_samples else read.read(name))
    with pytest.raises(ModelError, match="cannot open"):
        open_session(ModelOptions(path=str(tmp_path / "m.pt2")))
    assert not (tmp_path / "gone off").exists()


@with_torch
@pytest.mark.parametrize("form", ["torch_script/model.pt", "torch_exported/model.pt2"])
def test_a_truncated_or_damaged_file_raises_model_error(
    networks: Path, tmp_path: Path, form: str
) -> None:
    source = networks / "regression" / form
    file = tmp_path / source.name
    file.write_bytes(source.read_bytes()[:-200])
    with pytest.raises(ModelError, match=re.escape(str(file))):
        open_session(ModelOptions(path=str(file)))
    with zipfile.ZipFile(source) as read, zipfile.ZipFile(file, "w") as written:
        for name in read.namelist():
            spoilt = name.endswith(("data.pkl", "models/model.json"))
            written.writestr(name, b"{}" if spoilt else read.read(name))
    with pytest.raises(ModelError, match="PyTorch cannot open"):
        open_session(ModelOptions(path=str(file)))


def test_without_pytorch_the_extra_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive(tmp_path / "m.pt", {"constants.pkl": b"", "code/m.py": b""})
    monkeypatch.setitem(sys.modules, "torch", None)
    options = ModelOptions(path=str(tmp_path))
    with pytest.raises(ModelError, match=r"install 'penstock-serving\[torch\]'"):
        open_session(options)
    assert "install 'penstock-serving[torch]'" in str(model_problems(options)[0])


# Signatures


def script(file: Path, body: str, arguments: str = "x", **more) -> Path:
    """A TorchScript module whose forward is this."""
    import torch

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(2, 2))

    net = torch.jit.script(Net())
    net.define(f"def forward(self, {arguments}):\n    {body}\n")
    torch.jit.save(net, str(file))
    return file


@pytest.fixture(autouse=True)
def _quiet(recwarn: pytest.WarningsRecorder) -> None:
    import warnings

    warnings.simplefilter("ignore", DeprecationWarning)  # of TorchScript, in tests that write it


@with_torch
def test_without_a_signature_inputs_are_float32_of_any_shape_with_a_note(
    tmp_path: Path,
) -> None:
    file = script(tmp_path / "m.pt", "return x + y, x * y", "x, y")
    session = open_session(ModelOptions(path=str(file)))
    assert [(spec.name, spec.dtype, spec.shape) for spec in session.inputs] == [
        ("x", np.float32, None),
        ("y", np.float32, None),
    ]
    assert [spec.name for spec in session.outputs] == ["output_0", "output_1"]
    (note,) = session.notes
    assert "assumed to be float32 of any shape; signature.json" in note
    x = np.ones((2, 3), np.float32)
    (product,) = session.run({"x": x, "y": 2 * x}, ["output_1"])
    np.testing.assert_array_equal(product, 2 * x)
    with pytest.raises(InputMismatch, match="must match the size"):
        session.run({"x": x, "y": np.ones((2, 4), np.float32)}, ["output_0"])


@with_torch
def test_a_signature_sets_types_and_names_of_a_dicts_outputs(tmp_path: Path) -> None:
    file = script(tmp_path / "m.pt", 'return {"twice": x * 2, "first": x[0]}')
    with pytest.raises(ModelError, match=r"name its outputs in signature\.json"):
        open_session(ModelOptions(path=str(file)))
    signature = {
        "inputs": [{"name": "x", "dtype": "int64", "shape": [None, 2]}],
        "outputs": [{"name": "first", "dtype": "int64", "shape": [2]}],
    }
    (tmp_path / "signature.json").write_text(json.dumps(signature))
    model = Model.open(ModelOptions(path=str(tmp_path)))
    assert model.inputs[0].dtype == np.int64
    assert model.run({"x": np.array([[1, 2], [3, 4]])})["first"].tolist() == [1, 2]
    assert model.notes == ()
    with pytest.raises(InputMismatch, match="expected int64"):
        model.run({"x": np.ones((1, 2))})


@with_torch
@pytest.mark.parametrize(
    ("signature", "pattern"),
    [
        ("{", "cannot be read"),
        ("[]", "cannot be read"),
        ('{"inputs": [{"name": "x", "dtype": "float33"}]}', "cannot be read.*float33"),
        ('{"inputs": [{"name": "z"}]}', r"inputs \['z'\], the model's: \['x'\]"),
    ],
)
def test_an_invalid_signature_raises_model_error(
    tmp_path: Path, signature: str, pattern: str
) -> None:
    file = script(tmp_path / "m.pt", "return x")
    (tmp_path / "signature.json").write_text(signature)
    with pytest.raises(ModelError, match=pattern):
        open_session(ModelOptions(path=str(file)))


@with_torch
@pytest.mark.parametrize(
    ("body", "arguments", "pattern"),
    [("return x", "x, n: int", "forward takes n"), ("return [x]", "x", "forward gives List")],
)
def test_a_forward_with_other_types_than_tensors_is_refused(
    tmp_path: Path, body: str, arguments: str, pattern: str
) -> None:
    with pytest.raises(ModelError, match=pattern):
        open_session(ModelOptions(path=str(script(tmp_path / "m.pt", body, arguments))))


@with_torch
@pytest.mark.parametrize(
    "body",
    [
        "return x",
        "return x[:, :1]",
        "x.add_(1)\n    return x",
        "if x.sum() > 0:\n        x.mul_(2)\n    return x",
        "return self.weight",
        "return self.weight.t()",
    ],
)
@pytest.mark.parametrize("ir_optim", [None, False])
def test_changing_results_does_not_change_inputs_or_weights(
    tmp_path: Path, body: str, ir_optim: bool | None
) -> None:
    file = script(tmp_path / "m.pt", body)
    session = open_session(ModelOptions(path=str(file), ir_optim=ir_optim))
    x = np.ones((2, 2), np.float32)
    (first,) = session.run({"x": x}, ["output_0"])
    kept = first.copy()
    first += 7
    np.testing.assert_array_equal(x, np.ones((2, 2)))
    (again,) = session.run({"x": x}, ["output_0"])
    np.testing.assert_array_equal(again, kept)


@with_torch
def test_an_exported_program_can_have_keyword_inputs_and_a_dict_of_outputs(tmp_path: Path) -> None:
    import torch

    class Net(torch.nn.Module):
        def forward(self, x, *, scale):
            return {"scaled": x * scale, "sum": x.sum().to(torch.bfloat16)}

    rows = torch.export.Dim("rows")
    program = torch.export.export(
        Net(),
        (torch.ones(2, 3),),
        {"scale": torch.ones(1)},
        dynamic_shapes={"x": {0: rows}, "scale": None},
    )
    torch.export.save(program, str(tmp_path / "m.pt2"))
    session = open_session(ModelOptions(path=str(tmp_path)))
    assert [(spec.name, spec.shape) for spec in session.inputs] == [
        ("x", (None, 3)),
        ("scale", (1,)),
    ]
    assert [(spec.name, spec.dtype) for spec in session.outputs] == [
        ("scaled", np.float32),
        ("sum", np.float32),
    ]
    feeds = {"x": np.ones((4, 3), np.float32), "scale": np.float32([3])}
    total, scaled = session.run(feeds, ["sum", "scaled"])
    assert (total, total.dtype, scaled.tolist()) == (12, np.float32, [[3, 3, 3]] * 4)


@with_torch
def test_inputs_and_outputs_of_bfloat16_are_float32(tmp_path: Path) -> None:
    import torch

    class Net(torch.nn.Module):
        def forward(self, x):
            return x * 2

    program = torch.export.export(Net(), (torch.ones(2, 3, dtype=torch.bfloat16),))
    torch.export.save(program, str(tmp_path / "m.pt2"))
    session = open_session(ModelOptions(path=str(tmp_path)))
    for spec in (*session.inputs, *session.outputs):
        assert (spec.dtype, spec.bf16) == (np.float32, True)
    (y,) = session.run({"x": np.full((2, 3), 3.14159274, np.float32)}, [session.outputs[0].name])
    assert (y.dtype, y.tolist()) == (np.float32, [[6.28125] * 3] * 2)


@with_torch
def test_a_program_that_changes_its_own_state_is_refused(tmp_path: Path) -> None:
    import torch

    class Counter(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("seen", torch.zeros(1))

        def forward(self, x):
            self.seen.add_(1)
            return x + self.seen

    program = torch.export.export(Counter(), (torch.ones(2),))
    torch.export.save(program, str(tmp_path / "m.pt2"))
    with pytest.raises(ModelError, match="changes its own state"):
        open_session(ModelOptions(path=str(tmp_path)))


@with_torch
def test_an_exported_program_that_changes_its_input_gets_a_copy(tmp_path: Path) -> None:
    import torch

    class Net(torch.nn.Module):
        def forward(self, x):
            return x.mul_(2).relu_()

    torch.export.save(torch.export.export(Net(), (torch.ones(2),)), str(tmp_path / "m.pt2"))
    x = np.ones(2, np.float32)
    (got,) = open_session(ModelOptions(path=str(tmp_path))).run({"x": x}, ["output_0"])
    assert (got.tolist(), x.tolist()) == ([2, 2], [1, 1])


# Options


def fake(*, cuda: bool) -> SimpleNamespace:
    return SimpleNamespace(cuda=SimpleNamespace(is_available=lambda: cuda))


@pytest.mark.parametrize(
    ("options", "cuda", "key", "pattern"),
    [
        ({"thread_num": 0}, False, "thread_num", "0 is below 1"),
        ({"precision": "int8"}, False, "precision", "int8 is not available with PyTorch"),
        ({"use_calib": True}, False, "use_calib", "calibration is not available"),
        ({"devices": ("0",)}, False, "devices", "card 0 .* reaches no card"),
        ({"devices": ("x",)}, True, "devices", "'x' is not the id of a card"),
        ({"device_type": 1}, True, "devices", "needs the id of a card"),
        ({"device_type": 2}, True, "device_type", "TensorRT.* use 0 .CPU. or 1 .GPU."),
        ({"device_type": 4}, False, "device_type", "Kunlun XPU"),
    ],
)
def test_an_unsupported_option_is_a_problem_with_its_key(
    options: dict, cuda: bool, key: str, pattern: str
) -> None:
    (problem,) = option_problems(ModelOptions(path="/m", **options), fake(cuda=cuda))
    assert problem.key == key
    assert re.search(pattern, problem.text)
    assert option_problems(ModelOptions(path="/m", devices=("0",)), fake(cuda=True)) == []


@with_torch
@pytest.mark.parametrize("form", ["torch_script", "torch_exported"])
@pytest.mark.parametrize("precision", ["bf16", "FP16"])
def test_the_model_runs_with_the_configured_precision(
    networks: Path, form: str, precision: str
) -> None:
    path = str(networks / "regression" / form)
    feed = feed_of("regression", 5)
    plain = Model.open(ModelOptions(path=path)).run(feed)["price"]
    model = Model.open(ModelOptions(path=path, precision=precision))
    for _ in range(4):  # TorchScript recompiles in its first runs
        got = model.run(feed)["price"]
        assert np.abs(got - plain).max() > 1e-6
        np.testing.assert_allclose(got, plain, rtol=0, atol=0.05)


@with_torch
def test_threads_are_set_and_keys_without_effect_are_noted(networks: Path) -> None:
    import torch

    path = str(networks / "regression/torch_exported")
    session = open_session(
        ModelOptions(path=path, thread_num=2, use_mkldnn=True, ir_optim=True, mem_optim=False)
    )
    assert torch.get_num_threads() == 2
    assert [note.split()[0] for note in session.notes] == [
        "local_service_conf.ir_optim",
        "local_service_conf.mem_optim",
        "local_service_conf.use_mkldnn",
    ]
    assert session.thread_safe
    assert session.clone() is session
    script_session = open_session(
        ModelOptions(path=str(networks / "regression/torch_script"), ir_optim=True)
    )
    assert script_session.notes == ()
