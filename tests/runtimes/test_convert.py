"""``penstock convert`` with a model in the form of every library."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from penstock.runtimes.model import Model
from penstock.runtimes.runtime import ModelOptions
from penstock.store.convert import convert
from tests.models.networks import NETWORKS
from tests.runtimes.forms import every_form

NETWORK = next(iter(NETWORKS))


@pytest.mark.parametrize(("runtime", "form"), every_form())
def test_a_version_opens_as_its_source_does(
    networks: Path, tmp_path: Path, runtime: str, form: str
) -> None:
    before = Model.open(ModelOptions(path=str(networks / NETWORK / form)))
    made = convert(networks / NETWORK / form, tmp_path, name="m")
    assert made.runtime == runtime
    after = Model.open(ModelOptions(path=str(made.path)))
    assert (after.inputs, after.outputs) == (before.inputs, before.outputs)
    signature = json.loads((made.path / "signature.json").read_text())
    assert [each["name"] for each in signature["inputs"]] == [each.name for each in before.inputs]


@pytest.mark.parametrize(("runtime", "form"), every_form())
def test_a_models_file_alone_is_enough(
    networks: Path, tmp_path: Path, runtime: str, form: str
) -> None:
    if form == "paddle_separate":
        pytest.skip("its parameters are files of their own")
    suffixes = (".onnx", ".pdmodel", ".pt", ".pt2", ".xml", ".json")
    (file,) = [
        each
        for each in (networks / NETWORK / form).iterdir()
        if (each.suffix in suffixes or each.name == "__model__") and each.name != "signature.json"
    ]
    alone = tmp_path / "alone"
    alone.mkdir()
    for each in (networks / NETWORK / form).iterdir():
        if "prototxt" not in each.name and each.name != "signature.json":
            shutil.copy(each, alone)
    file = alone / file.name
    made = convert(file, tmp_path, name="m")
    after = Model.open(ModelOptions(path=str(made.path)))
    before = Model.open(ModelOptions(path=str(file)))
    assert (after.inputs, after.outputs) == (before.inputs, before.outputs)
