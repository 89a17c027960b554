"""Models whose inputs and outputs have declared names, types and shapes."""

from __future__ import annotations

from pathlib import Path
from warnings import catch_warnings, simplefilter

import numpy as np
import pytest

from penstock.errors import InferenceFailed, ModelError
from penstock.runtimes.declared import DeclaredSession
from penstock.runtimes.model import Model
from penstock.runtimes.runtime import ModelOptions
from penstock.tensor import DeclaredTensor, DeclaredTensors, TensorSpec
from tests.kit.onnx_models import scale
from tests.kit.python_session import PythonSession
from tests.runtimes.forms import needs

FLOAT = np.dtype(np.float32)


def spec(name: str, *shape: int | None, axes: tuple[str | None, ...] = ()) -> TensorSpec:
    return TensorSpec(name=name, alias=name, dtype=FLOAT, shape=shape, axes=axes)


def tensor(
    name: str,
    *shape: int | None,
    inside: tuple[int | None, ...] | None = None,
    dtype: type[np.generic] = np.float32,
    batched: bool = False,
) -> DeclaredTensor:
    return DeclaredTensor(
        name=name, dtype=np.dtype(dtype), shape=shape, inside=inside, batched=batched
    )


def session(inside: TensorSpec, output: TensorSpec | None = None) -> PythonSession:
    outputs = [output or TensorSpec(name="y", alias="y", dtype=FLOAT, shape=inside.shape)]
    return PythonSession(lambda feeds: {"y": feeds[inside.name] * 2}, [inside], outputs)


def declared(
    inside: TensorSpec, *inputs: DeclaredTensor, outputs: tuple[DeclaredTensor, ...] = ()
) -> DeclaredSession:
    tensors = DeclaredTensors(inputs=inputs, outputs=outputs, source="m/config.pbtxt")
    return DeclaredSession(session(inside), tensors, {})


def test_tensors_are_found_by_name_by_alias_or_by_place() -> None:
    inside = spec("x", None, 3)
    by_place = declared(inside, tensor("INPUT__0", None, 3), outputs=(tensor("OUT__0", None, 3),))
    (value,) = by_place.run({"INPUT__0": np.ones((2, 3), FLOAT)}, ["OUT__0"])
    assert value.tolist() == [[2, 2, 2], [2, 2, 2]]
    tensors = DeclaredTensors(inputs=(tensor("rows", None, 3),))
    by_alias = DeclaredSession(session(inside), tensors, {"rows": "x"})
    assert [each.name for each in by_alias.inputs] == ["rows"]
    assert [each.name for each in by_alias.outputs] == ["y"]
    assert by_alias.run({"rows": np.ones((1, 3), FLOAT)}, ["y"])[0].tolist() == [[2, 2, 2]]


def test_of_declared_and_own_dimensions_those_that_are_fixed_hold() -> None:
    found = declared(spec("x", None, 3, None, axes=("n", None, "w")), tensor("x", None, None, 5))
    assert found.inputs[0].shape == (None, 3, 5)
    assert found.inputs[0].axes == ("n", None, "w")


@pytest.mark.parametrize(
    ("shape", "inside", "given", "got"),
    [
        ((4,), (2, 2), (4,), (2, 2)),
        ((None, 1), (None,), (5, 1), (5,)),
        ((None, None, 2, None), (None, None, 1, 2, None), (3, 4, 2, 0), (3, 4, 1, 2, 0)),
    ],
)
def test_tensors_are_reshaped_before_and_after(
    shape: tuple[int | None, ...],
    inside: tuple[int | None, ...],
    given: tuple[int, ...],
    got: tuple[int, ...],
) -> None:
    seen: list[tuple[int, ...]] = []

    def run(feeds: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        seen.append(feeds["x"].shape)
        return {"y": feeds["x"]}

    model = PythonSession(run, [spec("x", *inside)], [spec("y", *inside)])
    tensors = DeclaredTensors(
        inputs=(tensor("x", *shape, inside=inside),), outputs=(tensor("y", *shape, inside=inside),)
    )
    found = DeclaredSession(model, tensors, {}).clone()
    (value,) = found.run({"x": np.zeros(given, FLOAT)}, ["y"])
    assert seen == [got]
    assert value.shape == given
    assert found.inputs[0].shape == shape


def test_an_output_of_another_size_than_declared_is_an_error() -> None:
    model = PythonSession(lambda _: {"y": np.zeros(3)}, [], [spec("y", None)])
    tensors = DeclaredTensors(outputs=(tensor("y", 2, 2, inside=(4,)),))
    with pytest.raises(InferenceFailed, match="the model's output is not as declared"):
        DeclaredSession(model, tensors, {}).run({}, ["y"])


@pytest.mark.parametrize(
    ("tensors", "problem"),
    [
        ((tensor("z", None, 3),), "the model has no input 'z'; it has x float32[?, 3]"),
        ((tensor("x__7", None, 3),), "the model has no input 'x__7'; it has x float32[?, 3]"),
        (
            (tensor("x", None, 3), tensor("x__0", None, 3)),
            "the model's input 'x' is declared twice",
        ),
        (
            (tensor("x", None, 3, dtype=np.int64),),
            "input 'x' is declared as int64, and the model has float32",
        ),
        (
            (tensor("x", None, 1, 3, batched=True),),
            "input 'x' is declared with the shape [-1, 1, 3] (max_batch_size is above 0, so that"
            " dims have no batch axis), and the model has [-1, 3]",
        ),
        (
            (tensor("x", None, 4),),
            "input 'x' is declared with the shape [-1, 4], and the model has",
        ),
    ],
)
def test_a_declaration_that_does_not_fit_the_model_is_refused(
    tensors: tuple[DeclaredTensor, ...], problem: str
) -> None:
    with pytest.raises(ModelError) as raised:
        declared(spec("x", None, 3), *tensors)
    assert any(
        line.startswith(f"m/config.pbtxt: {problem}") for line in str(raised.value).splitlines()
    )


def test_every_input_of_the_model_must_be_declared() -> None:
    model = PythonSession(dict, [spec("x", 1), spec("y", 1)], [])
    with pytest.raises(ModelError, match=r"the model's inputs \['y'\] are not declared"):
        DeclaredSession(model, DeclaredTensors(inputs=(tensor("x", 1),)), {})


def test_outputs_that_are_not_declared_are_left_out(tmp_path: Path) -> None:
    tensors = DeclaredTensors(outputs=(tensor("twice", None, 3),))
    path = str(scale(tmp_path / "m.onnx", 2.0))
    model = Model.open(ModelOptions(path=path, tensors=tensors))
    assert model.fetch_names == ("twice",)
    assert model.run({"x": np.ones((1, 3), FLOAT)})["twice"].tolist() == [[4, 4, 4]]


def test_aliases_of_a_folder_are_names_too(tmp_path: Path) -> None:
    scale(tmp_path / "m.onnx", 2.0)
    conf = 'feed_var { name: "x" alias_name: "rows" } fetch_var { name: "y" alias_name: "doubled" }'
    (tmp_path / "serving_server_conf.prototxt").write_text(conf)
    tensors = DeclaredTensors(inputs=(tensor("rows", None, 3),))
    model = Model.open(ModelOptions(path=str(tmp_path), tensors=tensors))
    assert (model.feed_names, model.fetch_names) == (("rows",), ("doubled",))
    assert model.run({"rows": np.ones((1, 3), FLOAT)})["doubled"].tolist() == [[2, 2, 2]]


@needs("torch")
def test_a_module_of_torchscript_gets_types_and_shapes_by_the_declaration(tmp_path: Path) -> None:
    import torch

    class Double(torch.nn.Module):
        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            return ids * 2

    with catch_warnings():
        simplefilter("ignore")  # TorchScript is deprecated
        torch.jit.script(Double()).save(str(tmp_path / "model.pt"))
    tensors = DeclaredTensors(
        inputs=(tensor("INPUT__0", None, 2, dtype=np.int64),),
        outputs=(tensor("OUTPUT__0", None, 2, dtype=np.int64),),
    )
    model = Model.open(ModelOptions(path=str(tmp_path), tensors=tensors))
    (found,) = model.inputs
    assert model.notes == ()
    assert (found.dtype, found.shape) == (np.int64, (None, 2))
    assert model.run({"INPUT__0": np.array([[1, 2]])})["OUTPUT__0"].tolist() == [[2, 4]]
