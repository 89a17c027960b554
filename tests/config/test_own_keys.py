"""Keys that ops declare themselves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from penstock import Op, PipelineServer, RequestOp, ResponseOp
from penstock.config.load import Loaded, load
from penstock.config.own_keys import problem_of_declaration
from penstock.errors import ConfigError

DECLARED = {
    "det": {
        "threshold": 0.5,
        "top": 5,
        "labels": "labels.txt",
        "classes": ["cat"],
        "names": {"a": 1},
        "draw": False,
        "more": None,
    }
}


def loaded(text: str, tmp_path: Path, **options: Any) -> Loaded:
    file = tmp_path / "config.yml"
    file.write_text(text)
    return load(yml_file=file, environ=options.pop("environ", {}), declared=DECLARED, **options)


def test_values_have_the_op_s_defaults(tmp_path: Path) -> None:
    assert loaded("rpc_port: 0", tmp_path).own == DECLARED
    assert loaded("{rpc_port: 0, op: {det: {threshold: , more: }}}", tmp_path).own == DECLARED


def test_values_come_from_file_environment_and_flags(tmp_path: Path) -> None:
    text = (
        "rpc_port: 0\n"
        "op:\n"
        "  det: {concurrency: 2, threshold: 1, classes: [1, b], names: {}, more: [1], draw: true}\n"
    )
    found = loaded(
        text,
        tmp_path,
        environ={"PENSTOCK_SET": "op.det.top=7"},
        overrides={"op.det.labels": "other.txt"},
    )
    assert found.own["det"] == {
        "threshold": 1.0,
        "top": 7,
        "labels": "other.txt",
        "classes": [1, "b"],
        "names": {},
        "draw": True,
        "more": [1],
    }
    assert found.config.op["det"].concurrency == 2


@pytest.mark.parametrize(
    ("entry", "text"),
    [
        ("det: {threshold: high}", "config.yml:3: op.det.threshold: must be a number, got the te"),
        ("det: {top: 1.5}", "config.yml:3: op.det.top: must be an integer, got 1.5"),
        ("det: {labels: 1}", 'op.det.labels: must be text, got 1: put it in quotes, "1"'),
        ("det: {classes: cat}", "op.det.classes: must be a list, such as [a, b], got the text"),
        ("det: {names: 1}", "op.det.names: must be a mapping of keys to values, got 1"),
        ("det: {draw: 1}", "op.det.draw: must be true or false, got 1"),
        ("det: {thresholds: 1}", "op.det.thresholds: is not a known key; did you mean threshold?"),
        ("det: {concurrencys: 1}", "op.det.concurrencys: is not a known key; did you mean concur"),
        ("rec: {threshold: 1}", "op.rec.threshold: is not a known key"),
    ],
)
def test_other_keys_and_types_are_errors(tmp_path: Path, entry: str, text: str) -> None:
    with pytest.raises(ConfigError) as raised:
        loaded(f"rpc_port: 0\nop:\n  {entry}\n", tmp_path)
    (problem,) = raised.value.problems
    assert text in problem


@pytest.mark.parametrize(
    ("declared", "text"),
    [
        ({"timeout": 1}, "timeout is a key of every op: choose another name"),
        ({"a.b": 1}, "'a.b' is no name of a key"),
        ({"a": (1,)}, "the default of a must be None or of bool, int, float, str, list, dict"),
        (["a"], "must be a dict of a default by key, got list"),
    ],
)
def test_a_declaration_that_cannot_be_used_is_refused(declared: Any, text: str) -> None:
    assert text in str(problem_of_declaration(declared))
    last = type("Own", (Op,), {"config_keys": declared})("own", input_ops=[RequestOp()])
    server = PipelineServer()
    server.set_response_op(ResponseOp(input_ops=[last]))
    with pytest.raises(ConfigError, match="op 'own': config_keys"):
        server.prepare_server(yml_dict={"rpc_port": 0})


def test_names_that_the_schema_s_library_reserves_can_be_keys(tmp_path: Path) -> None:
    declared = {"det": {"model_config": 1, "model_fields": 2, "copy": 3, "_private": 4}}
    found = load(
        yml_dict={"rpc_port": 0, "op": {"det": {"model_config": 5, "_private": 6}}},
        environ={},
        declared=declared,
    )
    assert found.own["det"] == {"model_config": 5, "model_fields": 2, "copy": 3, "_private": 6}


def test_an_op_without_a_service_has_the_defaults() -> None:
    op = type("Own", (Op,), {"config_keys": {"threshold": 0.5}})("own")
    assert op.config["threshold"] == 0.5
    assert Op("plain").config == {}
