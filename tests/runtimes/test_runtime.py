import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

from penstock.errors import ModelError
from penstock.runtimes import runtime
from penstock.runtimes.onnx import OnnxRuntime
from penstock.runtimes.runtime import (
    BUILT_IN,
    ModelOptions,
    OptionProblem,
    check_installed,
    load_runtime,
    model_problems,
    open_session,
    runtime_names,
)
from tests.kit.python_session import PythonSession


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
    runtime._added.cache_clear()

    def install(**values: str) -> None:
        entries = metadata.EntryPoints(
            metadata.EntryPoint(name=name, value=value, group=runtime.ENTRY_POINTS)
            for name, value in values.items()
        )
        monkeypatch.setattr(runtime.metadata, "entry_points", entries.select)

    yield install
    runtime._added.cache_clear()


def test_the_onnx_runtime_is_built_in() -> None:
    assert isinstance(load_runtime("onnx"), OnnxRuntime)
    assert runtime_names()[0] == "onnx"


def test_an_external_runtime_is_found_by_its_entry_point(entry_points, tmp_path) -> None:
    entry_points(toy=f"{__name__}:ToyRuntime")
    (tmp_path / "m.toy").touch()
    assert runtime_names() == (*BUILT_IN, "toy")
    assert isinstance(open_session(ModelOptions(path=str(tmp_path / "m.toy"))), PythonSession)


def test_an_entry_point_cannot_replace_a_built_in_runtime(entry_points) -> None:
    entry_points(onnx=f"{__name__}:ToyRuntime")
    assert runtime_names() == (*BUILT_IN,)
    assert isinstance(load_runtime("onnx"), OnnxRuntime)


def test_the_installed_packages_are_read_once(
    monkeypatch: pytest.MonkeyPatch, entry_points
) -> None:
    entry_points()
    runtime_names()
    monkeypatch.setattr(runtime.metadata, "entry_points", None)  # which takes 20 ms
    assert runtime_names() == (*BUILT_IN,)
    assert isinstance(load_runtime("onnx"), OnnxRuntime)


def test_what_most_workers_need_is_imported_before_they_are_forked() -> None:
    code = (
        "import sys; from penstock.runtimes.runtime import preload; preload(); print(*sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert {"onnxruntime", "numpy.random", "penstock.runtimes.onnx"} <= {*done.stdout.split()}
    assert {"torch", "paddle", "openvino"}.isdisjoint(done.stdout.split())  # unsafe in forks


def test_a_runtime_that_cannot_be_imported_is_named_in_the_error(entry_points, tmp_path) -> None:
    entry_points(broken="no_such_module_here:Runtime")
    (tmp_path / "m.bin").touch()
    options = ModelOptions(path=str(tmp_path / "m.bin"))
    with pytest.raises(ModelError, match=r"'broken' \(no_such_module_here:Runtime\) cannot be imp"):
        open_session(options)
    (problem,) = model_problems(options)
    assert "no_such_module_here" in problem.text


def test_an_unknown_runtime_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ModelError, match=r"no runtime 'torchy'; known: onnx"):
        load_runtime("torchy")


@pytest.mark.parametrize(
    ("files", "path", "message"),
    [
        ((), "nowhere", "nowhere': no such file or folder"),
        ((), "x" * 5000, "cannot be read"),
        ((), ".", "found nothing"),
        (
            [f"note{n}.txt" for n in range(10)],
            ".",
            "files of onnx, .*, found note0.txt, .* and 2 more",
        ),
        (["saved_model.pb"], ".", "found saved_model.pb; saved_model.pb is .*: convert it to ONNX"),
        (["model.plan"], "model.plan", "; model.plan is an engine of TensorRT: give the ONNX file"),
        (["model.py"], ".", "; model.py is a model of Triton's Python backend: write it as an op"),
    ],
)
def test_a_path_without_a_model_is_refused_and_reported_as_a_problem(
    files: list[str], path: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for file in files:
        (tmp_path / file).touch()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ModelError, match=message):
        open_session(ModelOptions(path=path))
    assert model_problems(ModelOptions(path=path))[0].key == "model_config"


def test_importing_runtimes_imports_no_inference_library() -> None:
    rooms = ", ".join(entry.module for entry in BUILT_IN.values())
    code = (
        f"import sys, {rooms}, penstock.runtimes.local_service;"
        "assert not sys.modules.keys() & {'onnxruntime', 'paddle', 'torch', 'openvino'}"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_checking_options_for_gpus_does_not_import_paddle(tmp_path: Path) -> None:
    version = tmp_path / "paddle" / "version" / "__init__.py"
    version.parent.mkdir(parents=True)
    version.write_text("cuda_version     = 'False'\n")
    (tmp_path / "paddle" / "__init__.py").write_text("raise SystemExit('imported')")
    (tmp_path / "__model__").touch()
    code = (
        "from penstock.runtimes.runtime import ModelOptions, model_problems;"
        f"options = ModelOptions(path={str(tmp_path)!r}, device_type=1, devices=('0',));"
        "print(*model_problems(options))"
    )
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, check=True, capture_output=True, text=True
    )
    assert "penstock-serving[paddle]" not in done.stdout
    assert "compiled for the CPU only" in done.stdout


def test_a_folder_without_init_is_not_an_installed_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "only_a_folder").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ImportError, match="No module named 'only_a_folder'"):
        check_installed("only_a_folder")
    check_installed("json")


def test_model_problems_include_those_of_the_models_runtime(entry_points, tmp_path) -> None:
    entry_points(toy=f"{__name__}:ToyRuntime")
    file = tmp_path / "m.toy"
    missing, own = model_problems(ModelOptions(path=str(file)))
    assert str(missing).endswith("m.toy': no such file or folder")
    assert str(own) == "local_service_conf.precision: toys have none"
    file.touch()
    assert model_problems(ModelOptions(path=str(file))) == [own]


def test_a_missing_file_is_checked_by_the_runtime_of_its_suffix(tmp_path) -> None:
    def keys(name: str) -> list[str]:
        requested = ModelOptions(path=str(tmp_path / name), precision="int8")
        return [problem.key for problem in model_problems(requested)]

    assert keys("folder") == ["model_config"]
    assert keys("model.onnx") == ["model_config", "precision"]


def test_a_folder_of_versions_is_refused_with_the_folder_to_give(tmp_path: Path) -> None:
    for version in ("2", "10"):
        (tmp_path / version).mkdir()
    with pytest.raises(ModelError, match=rf"give the folder of a version: {tmp_path}/10$"):
        open_session(ModelOptions(path=str(tmp_path)))


def test_a_repository_is_refused_with_the_folders_to_give(tmp_path: Path) -> None:
    for folder in ("encoder/1", "encoder/3", "head/1", "rank"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "README").touch()
    pattern = rf"give the folder of a version of each model: {tmp_path}/encoder/3 and 1 more$"
    with pytest.raises(ModelError, match=pattern):
        open_session(ModelOptions(path=str(tmp_path)))
