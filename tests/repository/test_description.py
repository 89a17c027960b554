"""The descriptions of versions."""

from __future__ import annotations

import json

import pytest

from penstock.errors import ModelError
from penstock.repository.description import description_of, versions_of
from penstock.repository.layout import FoundModel, read
from penstock.repository.pbtxt import Config, Step, of_plain, parse
from penstock.repository.served import Description
from tests.repository.test_pbtxt import STEPS

FOUND = read(["head/2/model.onnx", "head/config.pbtxt", "rank/config.pbtxt", "one.onnx"]).models


def described(model: FoundModel, version: str, config: Config | None = None) -> Description:
    def of_step(step: Step) -> Description:
        return {"name": step.model}

    return description_of(model, version, "/models", config, of_step)


def test_a_version_is_described_by_plain_data() -> None:
    config = parse("max_batch_size: 4")
    found = described(FOUND["head"], "2", config)
    assert json.loads(json.dumps(found)) == found
    assert found == {
        "name": "head",
        "version": "2",
        "path": "/models/head/2",
        "folder": "/models/head",
        "config": {"max_batch_size": 4},
    }
    assert of_plain(found["config"]) == config


def test_a_file_has_no_folder() -> None:
    found = described(FOUND["one"], "1")
    assert (found["path"], found["folder"], found["config"]) == ("/models/one.onnx", "", {})


def test_an_ensemble_has_the_descriptions_of_its_steps_and_the_version_1() -> None:
    config = parse(STEPS % "-1")
    assert versions_of(FOUND["rank"], config) == ["1"]
    found = described(FOUND["rank"], "1", config)
    assert found["path"] == ""
    assert found["steps"] == [{"name": "encoder"}, {"name": "head"}]


@pytest.mark.parametrize("signature", ["same", "any"])
def test_a_version_may_be_allowed_to_have_another_signature(signature: str) -> None:
    text = f'parameters {{ key: "penstock.signature" value {{ string_value: "{signature}" }} }}'
    assert described(FOUND["head"], "2", parse(text))["signature"] == signature
    with pytest.raises(ModelError, match=r"penstock\.signature: 'yes' is neither same nor any"):
        described(FOUND["head"], "2", parse(text.replace(signature, "yes")))


def test_what_is_not_there_has_no_description() -> None:
    assert versions_of(FOUND["rank"], None) == []
    with pytest.raises(ModelError, match="model 'head' has no version 3"):
        described(FOUND["head"], "3")
    with pytest.raises(ModelError, match=r"head/config\.pbtxt: name: 'tail' is not the name of"):
        described(FOUND["head"], "2", parse("name: 'tail'"))
