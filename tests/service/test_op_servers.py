"""Ops whose model server is started by the service: ``local_service_conf`` with a client type."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from penstock import Op, WebService
from penstock.errors import StartupError
from tests.kit.onnx_models import scale
from tests.services.process import ServiceProcess, running

CHECK = (sys.executable, "-m", "penstock", "check")
ROW = {"x": [[1, 2, 3]]}
SERVICE = """
import threading
import numpy as np
from penstock import Op, WebService

class ScaleOp(Op):
    def preprocess(self, input_dicts, data_id, log_id):
        (feed,) = input_dicts.values()
        return {{"x": np.array(feed["x"])}}

class Scale(WebService):
    def get_pipeline_response(self, read_op):
        scale = ScaleOp("scale", input_ops=[read_op])
        return Op("last", input_ops=[scale])

if {threads}:
    threading.Thread(target=threading.Event().wait, daemon=True).start()
service = Scale("scale")
service.prepare_pipeline_config("config.yml")
service.run_service()
"""
CONFIG = """
http_port: 0
op:
  scale:
    concurrency: 4
    local_service_conf: {{client_type: {client_type}, model_config: {model}, thread_num: 2}}
  last: {{executor: {executor}}}
"""


def write(folder: Path, *, executor: str, threads: bool = False, **conf: str) -> Path:
    scale(folder / "double.onnx", 2.0)
    conf = {"client_type": "grpc", "model": "double.onnx", "executor": executor, **conf}
    (folder / "config.yml").write_text(CONFIG.format(**conf))
    script = folder / "service.py"
    script.write_text(SERVICE.format(threads=threads))
    return script


@contextmanager
def started(folder: Path, **options: Any) -> Iterator[ServiceProcess]:
    with running(write(folder, **options)) as service:
        yield service


def send(service: ServiceProcess, row: Mapping[str, Any] = ROW) -> tuple[int, Any]:
    reply = httpx.post(f"{service.http_url}/scale", json=row, timeout=20)
    return reply.status_code, reply.json()


def server_of(service: ServiceProcess) -> psutil.Process:
    """The supervisor of the service's model server."""
    (server,) = [
        each
        for each in service.descendants()
        if "serve" in each.cmdline() and each.ppid() == service.pid
    ]
    return server


@pytest.mark.real
@pytest.mark.parametrize(
    ("executor", "threads"),
    [("thread", False), ("process", False), ("process", True)],
    ids=["one process", "forked", "spawned"],
)
def test_an_op_calls_the_model_server_that_was_started_for_it(
    executor: str, threads: bool, tmp_path: Path
) -> None:
    with started(tmp_path, executor=executor, threads=threads, client_type="brpc") as service:
        assert send(service) == (200, {"y": [[2.0, 4.0, 6.0]], "twice": [[4.0, 8.0, 12.0]]})
        status, answer = send(service, {"x": [[1, 2]]})
        assert (status, answer["error"]) == (400, "input_mismatch")
        server = server_of(service)
        assert f"op scale: its model server has started: pid {server.pid}" in service.log()
        assert service.log().count("penstock serves") == 1
        assert service.stop() == 0
        assert service.leftovers() == []
        assert "killed" not in service.log()


@pytest.mark.real
def test_a_model_server_replaces_its_engine_and_ends_with_its_service(tmp_path: Path) -> None:
    with started(tmp_path, executor="process") as service:
        (engine,) = server_of(service).children()
        engine.kill()
        deadline = time.monotonic() + 20
        while send(service)[0] != 200:
            assert time.monotonic() < deadline, service.log()
        service.send_signal(signal.SIGKILL)
        service.wait_exit()
        assert service.leftovers() == []


@pytest.mark.real
def test_a_model_server_that_fails_to_start_fails_the_service_s_start(tmp_path: Path) -> None:
    script = write(tmp_path, executor="thread")
    (tmp_path / "double.onnx").write_bytes(b"no model")
    with running(script, ready=False) as service:
        assert service.wait_exit() == 1
        assert "op 'scale': its model server has not started; the log says why" in service.log()
        assert "double.onnx" in service.log()
        assert service.leftovers() == []


@pytest.mark.real
def test_a_missing_card_fails_the_start_unless_missing_device_allows_the_cpu(
    tmp_path: Path,
) -> None:
    script = write(tmp_path, executor="thread", model="double.onnx, device_type: 1, devices: '0,1'")
    with running(script, ready=False) as service:
        assert service.wait_exit() == 1
        assert "local_service_conf.devices: card 0 was requested" in service.log()
    with (tmp_path / "config.yml").open("a") as file:
        file.write("missing_device: cpu\n")
    with running(script) as service:
        assert send(service)[0] == 200
        assert service.log().count("its model server has started") == 1


def problems(conf: dict[str, Any], op: type[Op] = Op) -> str:
    class Scale(WebService):
        def get_pipeline_response(self, read_op: Any) -> Op:
            return op("scale", input_ops=[read_op])

    service = Scale("scale")
    entry = {"scale": {"local_service_conf": {"client_type": "grpc", **conf}}}
    service.prepare_pipeline_config(yml_dict={"http_port": 0, "op": entry})
    with pytest.raises(StartupError) as raised:
        service.blueprint()
    return str(raised.value)


class OwnProcess(Op):
    def process(self, feed_batch: Any, typical_logid: int = 0) -> Any:
        return {}


def test_configuration_errors_are_found_before_a_model_server_is_started(tmp_path: Path) -> None:
    model = str(scale(tmp_path / "double.onnx", 2.0))
    assert "client_type: a model server needs model_config" in problems({})
    assert "local_service_conf.model_config: " in problems({"model_config": "nowhere.onnx"})
    assert "precision: int8 is not" in problems({"model_config": model, "precision": "int8"})
    own = problems({"model_config": model}, OwnProcess)
    assert "local_service_conf.client_type: the op overrides process" in own


@pytest.mark.real
def test_check_shows_that_a_model_server_is_started(tmp_path: Path) -> None:
    script = write(tmp_path, executor="thread")
    with running(script, "--open", command=CHECK, ready=False) as checked:
        assert checked.wait_exit() == 0
        assert "4 coroutines, double.onnx, in a model server that is started" in checked.log()
        assert "opened" not in checked.log()
