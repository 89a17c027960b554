import subprocess
import sys
from importlib import metadata
from pathlib import Path

import numpy as np
import pytest

from penstock.errors import ModelError
from penstock.runtimes import runtime
from penstock.runtimes.onnx import OnnxRuntime
from penstock.runtimes.python import PythonSession
from penstock.runtimes.runtime import (
    ModelOptions,
    OptionProblem,
    load_runtime,
    model_problems,
    open_session,
    runtime_names,
)


class ToyRuntime:
    name = "toy"

    def problems(self, path: Path, options: ModelOptions) -> list[OptionProblem]:
        return [OptionProblem(key="precision", text="toys have none")]

    def can_open(self, path: Path) -> bool:
        return path.suffix == ".toy"

    def open(self, path: Path, options: ModelOptions) -> PythonSession:
        return PythonSession(lambda feeds: {}, (), ())


@pytest.fixture
def entry_points(monkeypatch: pytest.MonkeyPatch):
    def install(**values: str) -> None:
        entries = metadata.EntryPoints(
            metadata.EntryPoint(name=name, value=value, group=runtime.ENTRY_POINTS)
            for name, value in values.items()
        )
        monkeypatch.setattr(runtime.metadata, "entry_points", entries.select)

    return install


def test_onnx_is_built_in() -> None:
    assert isinstance(load_runtime("onnx"), OnnxRuntime)
    assert runtime_names()[0] == "onnx"


def test_a_runtime_of_somebody_else_is_found_by_its_entry_point(entry_points, tmp_path) -> None:
    entry_points(toy=f"{__name__}:ToyRuntime")
    (tmp_path / "m.toy").touch()
    assert runtime_names() == ("onnx", "toy")
    assert isinstance(open_session(ModelOptions(path=str(tmp_path / "m.toy"))), PythonSession)


def test_an_entry_point_cannot_replace_a_built_in_runtime(entry_points) -> None:
    entry_points(onnx=f"{__name__}:ToyRuntime")
    assert runtime_names() == ("onnx",)
    assert isinstance(load_runtime("onnx"), OnnxRuntime)


def test_a_runtime_that_cannot_be_imported_is_named(entry_points, tmp_path) -> None:
    entry_points(broken="no_such_module_here:Runtime")
    (tmp_path / "m.bin").touch()
    with pytest.raises(ModelError, match=r"'broken' \(no_such_module_here:Runtime\) cannot be imp"):
        open_session(ModelOptions(path=str(tmp_path / "m.bin")))


def test_an_unknown_runtime_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ModelError, match=r"no runtime 'torchy'; known: onnx"):
        load_runtime("torchy")


def test_a_path_that_does_not_exist_is_named(tmp_path) -> None:
    with pytest.raises(ModelError, match=r"nowhere': no such file or folder"):
        open_session(ModelOptions(path=str(tmp_path / "nowhere")))


def test_an_unusable_path_is_a_model_error() -> None:
    with pytest.raises(ModelError, match="cannot be read"):
        open_session(ModelOptions(path="x" * 5000))


def test_a_folder_without_a_model_tells_what_was_looked_for_and_found(tmp_path) -> None:
    for number in range(10):
        (tmp_path / f"note{number}.txt").touch()
    with pytest.raises(ModelError) as caught:
        open_session(ModelOptions(path=str(tmp_path)))
    assert "looked for files of onnx" in str(caught.value)
    assert "found note0.txt" in str(caught.value)
    assert "note7.txt and 2 more" in str(caught.value)


def test_an_empty_folder_is_told_so(tmp_path) -> None:
    with pytest.raises(ModelError, match="found nothing"):
        open_session(ModelOptions(path=str(tmp_path)))


@pytest.mark.parametrize("file", ["__model__", "model.pdmodel", "params.pdiparams"])
def test_a_paddle_model_gets_a_hint_about_conversion(tmp_path, file: str) -> None:
    (tmp_path / file).touch()
    for path in (tmp_path, tmp_path / file):
        with pytest.raises(ModelError, match="paddle2onnx"):
            open_session(ModelOptions(path=str(path)))


def test_importing_the_room_imports_no_inference_library() -> None:
    code = (
        "import sys, penstock.runtimes.onnx, penstock.runtimes.model,"
        " penstock.runtimes.local_service;"
        "assert 'onnxruntime' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_runtime_that_would_open_a_model_is_asked_for_its_problems(
    entry_points, tmp_path
) -> None:
    entry_points(toy=f"{__name__}:ToyRuntime")
    file = tmp_path / "m.toy"
    missing, own = model_problems(ModelOptions(path=str(file)))
    assert str(missing).endswith("m.toy': no such file or folder")
    assert str(own) == "local_service_conf.precision: toys have none"
    file.touch()
    assert model_problems(ModelOptions(path=str(file))) == [own]


def test_a_missing_folder_is_nobody_s_model_unless_there_is_one_runtime_only(
    entry_points, tmp_path
) -> None:
    asked = ModelOptions(path=str(tmp_path / "folder"), precision="int8")
    entry_points()
    assert [problem.key for problem in model_problems(asked)] == ["model_config", "precision"]
    entry_points(toy=f"{__name__}:ToyRuntime")
    assert [problem.key for problem in model_problems(asked)] == ["model_config"]


@pytest.mark.parametrize("path", ["x" * 5000, "."])
def test_a_path_that_holds_no_model_is_a_problem(
    path: str, tmp_path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert [problem.key for problem in model_problems(ModelOptions(path=path))] == ["model_config"]


def test_a_runtime_that_cannot_be_imported_is_a_problem(entry_points, tmp_path) -> None:
    entry_points(broken="no_such_module_here:Runtime")
    (tmp_path / "m.bin").touch()
    (problem,) = model_problems(ModelOptions(path=str(tmp_path / "m.bin")))
    assert "no_such_module_here" in problem.text


def test_options_have_the_documented_defaults() -> None:
    options = ModelOptions(path="m")
    assert (options.thread_num, options.device_type, options.precision) == (2, -1, "fp32")
    assert options.fetch_list is None
    assert options.mem_optim is True
    assert options.ir_optim is None
    assert np.all([not options.use_calib, not options.use_mkldnn])
    assert options.min_subgraph_size == 3
