"""Opening an op's model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from penstock import LocalServiceHandler, Op
from penstock.errors import ConfigError
from penstock.service.models import card_of, open_model
from tests.kit.onnx_models import scale
from tests.service.in_process import blueprint_of, root
from tests.service.scripts import fetch, script
from tests.services.process import running


@pytest.mark.parametrize(
    ("given", "alone", "conf", "threads"),
    [
        ({}, True, {}, 1),  # with hundreds of workers for the CPUs
        ({}, True, {"thread_num": 5}, 5),
        ({}, False, {}, 2),
        ({"thread_num": 3}, True, {}, 3),
        ({"thread_num": 3}, True, {"thread_num": 5}, 3),
    ],
)
def test_a_handler_without_thread_num_has_its_worker_s_share_of_threads(
    tmp_path: Path, given: dict[str, Any], alone: bool, conf: dict[str, Any], threads: int
) -> None:
    handler = LocalServiceHandler(str(scale(tmp_path / "m.onnx", 2.0)), **given)
    op = Op("work", input_ops=[root()], local_service_handler=handler)
    entry = {"executor": "process", "concurrency": 1000, "local_service_conf": conf}
    blueprint = blueprint_of(op, {"op": {"work": entry}})
    assert handler.options.thread_num == given.get("thread_num", 2)
    model = open_model(op, blueprint.options[0], blueprint.config.op["work"], alone=alone)
    assert model is not None
    assert handler.options.thread_num == threads
    assert handler.get_client().model.fetch_names == model.fetch_names


@pytest.mark.real
@pytest.mark.parametrize("place", ["thread", "process"])
def test_a_model_s_inputs_and_outputs_are_in_the_status_for_every_executor(
    tmp_path: Path, place: str
) -> None:
    scale(tmp_path / "m.onnx", 2.0)
    model = '"local_service_conf": {"model_config": "m.onnx"}, "fetch_list": ["twice"]'
    config = f'"op": {{"work": {{"executor": "{place}", {model}}}}}'
    with running(script(tmp_path, "pass", config)) as server:
        report = json.loads(fetch(f"{server.http_url}/status").body)
    rows = {"dtype": "float32", "shape": [None, 3], "shape_is_hint": False, "bf16": False}
    signature = {"inputs": [{"name": "x", **rows}], "outputs": [{"name": "twice", **rows}]}
    (graph,) = report["graphs"]
    assert graph["signature"] == signature
    (op,) = graph["ops"]
    signature_of_model = {"runtime": "onnx", **signature}
    assert [each["model"] for each in op["loaded"]] == [signature_of_model] * (place == "process")


ENSEMBLE = """
from penstock import Model, Service, op, run

first, second = Model("m.onnx", name="first"), Model("m.onnx", name="second")

@op(first, second)
def both(first, second):
    return {"sum": first["twice"] + second["twice"]}

config = {"op": {"first": {"executor": "process"}}}
run(Service("ensemble", both, **config), Service("alone", Model("m.onnx")))
"""


@pytest.mark.real
def test_the_openapi_schema_comes_from_the_models_at_a_graph_s_ends(tmp_path: Path) -> None:
    scale(tmp_path / "m.onnx", 2.0)
    service = tmp_path / "service.py"
    service.write_text(ENSEMBLE)
    with running(service) as server:
        description = json.loads(fetch(f"{server.http_url}/openapi.json").body)
    words = {"enum": ["NaN", "Infinity", "-Infinity"]}
    number = {
        "description": "a number; null is NaN",
        "anyOf": [{"type": "number"}, {"type": "null"}, words],
    }
    row = {"type": "array", "items": number, "minItems": 3, "maxItems": 3}
    rows = {"type": "array", "items": row, "description": "array of float32, any × 3"}

    def schema(path: str, *keys: str) -> Any:
        part = description["paths"][path]["post"]
        for key in (*keys, "content", "application/json", "schema"):
            part = part[key]
        return part

    for path in ("/alone", "/ensemble"):
        expected = {"type": "object", "required": ["x"], "properties": {"x": rows}}
        assert schema(path, "requestBody") == expected
    assert schema("/alone", "responses", "200")["properties"] == {"y": rows, "twice": rows}
    assert schema("/ensemble", "responses", "200") == {"type": "object"}


def op_on_card(device: str, folder: Path, given: dict[str, Any]) -> tuple[Op, dict[str, Any]]:
    """An op whose model needs a card, by its handler or by its configuration."""
    path = str(scale(folder / "m.onnx", 2.0))
    if device == "handler":
        handler = LocalServiceHandler(path, devices="7", precision="fp16")
        return Op("work", input_ops=[root()], local_service_handler=handler), given
    conf = {"model_config": path, "devices": "7", "precision": "fp16"}
    return Op("work", input_ops=[root()]), {"op": {"work": {"local_service_conf": conf}}, **given}


@pytest.mark.parametrize("place", ["handler", "configuration"])
def test_a_missing_card_is_an_error_unless_missing_device_allows_the_cpu(
    tmp_path: Path, place: str
) -> None:
    op, config = op_on_card(place, tmp_path, {})
    with pytest.raises(ConfigError, match=r"devices: .*card 7 was requested"):
        blueprint_of(op, config)
    op, config = op_on_card(place, tmp_path, {"missing_device": "cpu"})
    blueprint = blueprint_of(op, config)
    (warning,) = blueprint.warnings
    assert warning.startswith("op 'work' runs on the CPU in fp32, as missing_device: cpu allows: ")
    where = "" if place == "handler" else "op.work."
    assert f"{where}local_service_conf.devices: card 7" in warning
    entry = blueprint.config.op.get("work")
    assert card_of(op, blueprint.options[0], entry, 0) is None
    model = open_model(op, blueprint.options[0], entry)
    assert model is not None
    assert model.notes == ()


OF_CARD = """
import sys
from penstock import Op, PipelineServer, RequestOp, ResponseOp, WebService

config = {
    "rpc_port": 0,
    "dag": {"is_thread_op": False},
    "op": {"work": {"local_service_conf": {"model_config": "m.onnx", "devices": "0"}}},
}

class Work(WebService):
    def get_pipeline_response(self, read_op):
        return Op("work", input_ops=[read_op])

if sys.argv[1] == "web":
    service = Work()
    service.prepare_pipeline_config(yml_dict=config)
    service.run_service()
else:
    server = PipelineServer("work")
    server.set_response_op(ResponseOp(input_ops=[Op("work", input_ops=[RequestOp()])]))
    server.prepare_server(yml_dict=config)
    server.run_server()
"""


@pytest.mark.real
@pytest.mark.parametrize("way", ["web", "server"])
def test_an_environment_variable_can_unset_a_key_of_a_script(tmp_path: Path, way: str) -> None:
    scale(tmp_path / "m.onnx", 2.0)
    service = tmp_path / "service.py"
    service.write_text(OF_CARD)
    keys = "op.work.local_service_conf.devices=;dag.is_thread_op=true"
    with running(service, way, environment={"PENSTOCK_SET": keys}) as server:
        assert "op    work  after request  1 thread, m.onnx" in server.log()
        assert server.stop() == 0


@pytest.mark.real
@pytest.mark.parametrize("executor", ["thread", "process"])
def test_a_service_for_a_card_runs_on_the_cpu_if_missing_device_allows_it(
    tmp_path: Path, executor: str
) -> None:
    scale(tmp_path / "m.onnx", 2.0)
    model = '"local_service_conf": {"model_config": "m.onnx", "device_type": 2, "devices": "0"}'
    config = f'"op": {{"work": {{"concurrency": 2, "executor": "{executor}", {model}}}}}'
    path = script(tmp_path, "pass", config)
    with running(path, environment={"PENSTOCK_MISSING_DEVICE": "cpu"}) as server:
        assert server.log().count("op 'work' runs on the CPU") == 1
        report = json.loads(fetch(f"{server.http_url}/status").body)
    (op,) = report["graphs"][0]["ops"]
    assert [each["device"] for each in op["loaded"]] == [None] * 2 * (executor == "process")
    with running(path, ready=False) as server:
        assert server.wait_exit() == 1
        assert "op.work.local_service_conf.device_type: 2 (GPU with TensorRT)" in server.log()
