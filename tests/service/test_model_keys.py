"""Ops that call an encrypted model in another server: its key service gets the key first."""

from __future__ import annotations

import base64
import json
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any, ClassVar

import httpx
import pytest

from penstock import Op
from penstock.errors import ModelError
from penstock.service.blueprint import deploy
from penstock.service.model_keys import send_keys
from tests.kit.onnx_models import scale
from tests.service.in_process import blueprint_of, root
from tests.services.process import running

KEY = bytes(range(16))


class KeyService(BaseHTTPRequestHandler):
    reply: ClassVar[Any] = None
    bodies: ClassVar[list[bytes]] = []

    def do_POST(self) -> None:
        self.bodies.append(self.rfile.read(int(self.headers["content-length"])))
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps(self.reply).encode())

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def keys() -> Iterator[str]:
    """The address of a key service."""
    KeyService.bodies.clear()
    with HTTPServer(("127.0.0.1", 0), KeyService) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()


def entry(folder: Path, *endpoints: str) -> dict[str, Any]:
    (folder / "key").write_bytes(KEY)
    return {
        "client_type": "grpc",
        "server_endpoints": [*endpoints],
        "use_encryption_model": True,
        "encryption_key": str(folder / "key"),
    }


def endpoints_called(options: dict[str, Any]) -> list[str]:
    """The endpoints that an op calls after the key was sent."""
    deployment = deploy([blueprint_of(Op("scale", input_ops=[root()]), {"op": {"scale": options}})])
    (graph,) = send_keys(deployment).graphs
    remote = graph.options[0].remote
    assert remote is not None
    return [str(each) for each in remote.endpoints]


def test_the_first_endpoint_gets_the_key_and_replies_the_model_s_port(
    tmp_path: Path, keys: str
) -> None:
    KeyService.reply = {"endpoint_list": [4321]}
    assert endpoints_called(entry(tmp_path, keys, "127.0.0.1:1")) == ["127.0.0.1:4321"]
    assert [json.loads(each) for each in KeyService.bodies] == [
        {"key": base64.b64encode(KEY).decode()}
    ]
    plain = {**entry(tmp_path, keys), "use_encryption_model": False}
    assert endpoints_called(plain) == [keys]
    assert len(KeyService.bodies) == 1


@pytest.mark.parametrize(
    ("reply", "message"),
    [
        ({"message": "start serving failed"}, "does not serve the model: start serving failed"),
        ({"endpoint_list": []}, "does not serve the model: None"),
        ([1], "does not serve the model: invalid answer"),
    ],
)
def test_a_key_service_that_does_not_serve_the_model_fails_the_start(
    tmp_path: Path, keys: str, reply: Any, message: str
) -> None:
    KeyService.reply = reply
    with pytest.raises(ModelError, match=f"op 'scale': use_encryption_model: {keys} {message}"):
        endpoints_called(entry(tmp_path, keys))


def test_a_key_is_not_sent_to_another_machine(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"in plain text to models\.example:80: the first of"):
        endpoints_called(entry(tmp_path, "models.example:80"))
    with pytest.raises(ModelError, match=r"the key service at 127\.0\.0\.1:1 does not answer"):
        endpoints_called(entry(tmp_path, "127.0.0.1:1"))


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
        return Op("last", input_ops=[ScaleOp("scale", input_ops=[read_op])])

if {threads}:
    threading.Thread(target=threading.Event().wait, daemon=True).start()
service = Scale("scale")
config = {{"rpc_port": 0, "dag": {{"is_thread_op": False}}, "op": {{"scale": {entry!r}}}}}
service.prepare_pipeline_config(yml_dict=config)
service.run_service()
"""


@pytest.mark.real
@pytest.mark.parametrize("threads", [False, True], ids=["forked", "spawned"])
def test_a_service_calls_the_model_decrypted_with_its_key(
    tmp_path: Path, keys: str, threads: bool
) -> None:
    model = scale(tmp_path / "scale.onnx", 2.0)
    command = (sys.executable, "-m", "penstock", "serve", "--model")
    with running(model, command=command) as server:
        KeyService.reply = {"endpoint_list": [server.rpc_port]}
        script = tmp_path / "service.py"
        script.write_text(SERVICE.format(entry=entry(tmp_path, keys), threads=threads))
        with running(script) as service:
            reply = httpx.post(f"{service.http_url}/scale", json={"x": [[1, 2, 3]]}, timeout=20)
            assert reply.json()["y"] == [[2, 4, 6]], reply.text
            assert base64.b64encode(KEY).decode() not in service.log()
