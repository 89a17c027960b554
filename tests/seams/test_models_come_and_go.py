"""A service that starts without a model: names come and go, over every protocol and engine."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.kit.onnx_models import scale
from tests.service.scripts import fetch, until
from tests.services.process import ROOT, ServiceProcess, running

pytestmark = pytest.mark.real

SCRIPT = """
import sys
sys.path.insert(0, {root!r})
from penstock import Op
from penstock.api.general_model import GeneralModelApplication
from penstock.service.model_server import Node, Workflow
from penstock.service.server import Service, Several, run
from tests.seams.toy_admin import Admin

class Models(Several):
    services = ()

    @property
    def base(self):
        applications = [GeneralModelApplication, Admin]
        op = Op(name="none")  # never runs
        return Service("models", op, applications=applications, http_port=0, {config})

def model(description):
    name, path = description["name"], description["path"]
    options = {{"executor": {executor!r}, "concurrency": 1}}
    node = Node(name=name, path=path, options=options)
    return Workflow(name=name, nodes=(node,)).service([], {{"http_port": 0}})

run(Models(), versions=model)
"""
ONE = ""
THREE = "build_dag_each_worker=True, worker_num=3"
ROW = {"inputs": [{"name": "x", "shape": [1, 3], "datatype": "FP32", "data": [1, 2, 3]}]}


@contextmanager
def models(folder: Path, executor: str, config: str = ONE) -> Iterator[ServiceProcess]:
    for factor in (2, 3):
        scale(folder / f"{factor}.onnx", float(factor))
    text = SCRIPT.format(root=str(ROOT), executor=executor, config=config)
    (folder / "service.py").write_text(text)
    with running(folder / "service.py", timeout=60) as server:
        yield server
        assert server.stop() == 0


def change(server: ServiceProcess, name: str, function: str, *arguments: Any) -> None:
    body = json.dumps([name, function, *arguments]).encode()
    answer = fetch(f"{server.http_url}/change", body, 60)
    assert answer.status == 200, answer.body


def about(folder: Path, name: str, version: str, factor: int) -> dict[str, str]:
    return {"name": name, "version": version, "path": str(folder / f"{factor}.onnx")}


def first_output(server: ServiceProcess, path: str) -> float | int:
    """Of the model at this path; its status if it is not answered."""
    answer = httpx.post(f"{server.http_url}/v2/models/{path}/infer", json=ROW)
    if answer.status_code != 200:
        return answer.status_code
    return float(answer.json()["outputs"][0]["data"][0])


@pytest.mark.parametrize(
    ("executor", "config"),
    [
        pytest.param("process", THREE, id="process-three engines"),
        pytest.param("thread", ONE, id="thread-one engine"),
        pytest.param("process", ONE, id="process-one engine", marks=pytest.mark.long),
        pytest.param("thread", THREE, id="thread-three engines", marks=pytest.mark.long),
    ],
)
def test_models_come_and_go_and_every_protocol_follows(
    tmp_path: Path, executor: str, config: str
) -> None:
    with models(tmp_path, executor, config) as server:
        url = server.http_url
        assert "penstock serves no model yet" in server.log()
        assert httpx.get(f"{url}/v2/health/ready").json() == {"ready": True}
        assert first_output(server, "twice") == 404
        assert httpx.post(f"{url}/GeneralModelService/inference", json={}).status_code == 404
        assert httpx.get(f"{url}/status").json()["graphs"] == []
        assert httpx.get(f"{url}/metrics").status_code == 200
        assert "/v2/models/twice/infer" not in httpx.get(f"{url}/openapi.json").json()["paths"]
        before = len(server.descendants())

        change(server, "twice", "with_version", about(tmp_path, "twice", "1", 2))
        change(server, "other", "with_version", about(tmp_path, "other", "7", 3))
        assert {first_output(server, "twice") for _ in range(9)} == {2.0}
        assert first_output(server, "other/versions/7") == 3.0
        assert httpx.post(f"{url}/other", json={"x": [[1, 2, 3]]}).json()["y"] == [[3, 6, 9]]
        assert "/v2/models/twice/infer" in httpx.get(f"{url}/openapi.json").json()["paths"]
        pairs = {"key": ["x"], "value": ["[[1, 2, 3]]"]}
        assert httpx.post(f"{url}/other/prediction", json=pairs).json()["err_no"] == 0
        general = {
            "tensor": [
                {"alias_name": "x", "float_data": [1, 2, 3], "shape": [1, 3], "elem_type": 1}
            ],
            "fetch_var_names": ["y"],
        }
        answer = httpx.post(f"{url}/GeneralModelService/other/inference", json=general)
        assert answer.json()["outputs"][0]["tensor"][0]["float_data"] == [3.0, 6.0, 9.0]

        change(server, "twice", "with_version", about(tmp_path, "twice", "2", 3))
        change(server, "twice", "with_label", "canary", "2")
        assert [first_output(server, f"twice{x}") for x in ("", "/versions/1")] == [2.0, 2.0]
        texts = ("/versions/2", "/versions/canary", "/versions/stable")
        assert [first_output(server, f"twice{each}") for each in texts] == [3.0, 3.0, 404]
        assert httpx.get(f"{url}/v2/models/twice").json()["versions"] == ["1", "2"]
        ready = httpx.get(f"{url}/v2/models/twice/versions/canary/ready")
        assert (ready.status_code, ready.json()) == (200, {"name": "twice", "ready": True})
        graphs = httpx.get(f"{url}/status").json()["graphs"]
        assert {(each["name"], each["version"]) for each in graphs} == {
            ("twice", "1"),
            ("twice", "2"),
            ("other", "7"),
        }

        for name in ("twice", "other"):
            change(server, name, "without_versions")
        assert first_output(server, "twice") == 404
        assert httpx.get(f"{url}/v2/models/twice/ready").status_code == 404
        assert httpx.get(f"{url}/status").json()["graphs"] == []
        until(lambda: len(server.descendants()) == before, "the end of all workers")
        change(server, "twice", "with_version", about(tmp_path, "twice", "1", 3))
        assert {first_output(server, "twice") for _ in range(9)} == {3.0}
