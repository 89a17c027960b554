"""The layouts of repositories."""

from __future__ import annotations

import pytest

from penstock.repository.layout import read


def test_a_repository_of_triton_has_configurations_and_folders_of_versions() -> None:
    (model,) = read(
        [
            "rank/config.pbtxt",
            "rank/labels.txt",
            "rank/warmup/x",
            "rank/10/model.onnx",
            "rank/9/model.onnx",
            "rank/9/model.onnx.data",
        ]
    ).models.values()
    assert (model.name, model.folder, model.config) == ("rank", "rank", "rank/config.pbtxt")
    assert [*model.versions] == ["9", "10"]
    assert model.versions["9"].path == "rank/9"
    assert model.versions["9"].files == ("rank/9/model.onnx", "rank/9/model.onnx.data")
    assert model.shared == ("rank/labels.txt", "rank/warmup/x")
    assert model.notes == ()


def test_a_repository_of_tensorflow_serving_has_folders_of_versions_only() -> None:
    (model,) = read(["half/00000123/model.onnx", "half/00000123/assets/words.txt"]).models.values()
    assert model.config is None
    assert [*model.versions] == ["123"]
    assert model.versions["123"].path == "half/00000123"


@pytest.mark.parametrize(
    "files",
    [
        ["uci/serving_server_conf.prototxt", "uci/__model__", "uci/fc_0.w_0"],
        ["uci/inference.pdmodel", "uci/inference.pdiparams"],
        ["uci/model.onnx", "uci/weights/a"],
        ["uci/model.xml", "uci/model.bin"],
    ],
)
def test_a_folder_with_a_model_has_the_version_1(files: list[str]) -> None:
    (model,) = read(files).models.values()
    assert model.versions["1"].path == "uci"
    assert model.versions["1"].files == tuple(sorted(files))


def test_a_file_that_is_a_model_has_the_version_1() -> None:
    found = read(["double.onnx", "README.md", "requirements.txt", "half.pt"]).models
    assert {name: each.versions["1"].path for name, each in found.items()} == {
        "double": "double.onnx",
        "half": "half.pt",
    }


def test_an_ensemble_may_have_no_folder() -> None:
    (model,) = read(["pipeline/config.pbtxt"]).models.values()
    assert model.config == "pipeline/config.pbtxt"
    assert model.versions == {}


def test_layouts_are_read_side_by_side_and_hidden_files_ignored() -> None:
    found = read(
        [
            "b/1/model.onnx",
            "a.onnx",
            ".git/config",
            "b/.cache/x",
            "b/2/._model.onnx",
            "c/1/model.pt",
        ]
    )
    assert [*found.models] == ["a", "b", "c"]
    assert [*found.models["b"].versions] == ["1"]
    assert found.problems == {}


def note_of(*files: str) -> str:
    (model,) = read(files).models.values()
    (note,) = model.notes
    return note


def test_folders_whose_names_are_no_numbers_are_told() -> None:
    note = note_of("m/1/model.onnx", "m/v0.1/model.onnx", "m/warmup/x")
    assert note == "folders of versions have numbers as names; ignored: v0.1"


def test_two_folders_of_one_number_are_no_version() -> None:
    note = note_of("m/01/model.onnx", "m/1/model.onnx", "m/2/model.onnx")
    assert note == "the folders 01 and 1 have the same number: none of them is served"


@pytest.mark.parametrize(
    ("files", "problem"),
    [
        (["m/v1/model.onnx"], "it has no version: folders of versions have numbers as names;"),
        (["m/notes.txt"], "it has no version: a folder with a number as its name, such as 1,"),
        (["m.onnx", "m/1/model.onnx"], "m is the name of a folder and of a file: rename one"),
        (["m.onnx", "m.pt"], "m is the name of a folder and of a file: rename one"),
    ],
)
def test_what_is_no_model_has_a_reason(files: list[str], problem: str) -> None:
    found = read([*files, "good/1/model.onnx"])
    assert [*found.models] == ["good"]
    assert found.problems["m"].startswith(problem)


@pytest.mark.parametrize(
    "path",
    ["../m/1/model.onnx", "/m/1/model.onnx", "m//model.onnx", "m/./1/x", "m\\1\\x", "m/1/a\0"],
)
def test_paths_that_leave_the_repository_are_refused(path: str) -> None:
    with pytest.raises(ValueError, match="leaves the repository, or is none"):
        read([path])


def test_the_folder_of_one_model_is_no_repository() -> None:
    with pytest.raises(ValueError, match=r"versions of one model \(1, 2\): give the folder above"):
        read(["1/model.onnx", "2/model.onnx", "config.pbtxt"])
