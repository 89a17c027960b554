"""``Client`` and ``HttpClient`` with a model server started by the original's command line."""

from __future__ import annotations

import base64
import json
import os
import shutil
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from paddle_serving_client import Client, HttpClient
from penstock.errors import ModelError
from penstock.protocols.standard_messages import general_model_messages
from tests.kit.onnx_models import scale
from tests.services.process import ServiceProcess, free_port, running

SERVE = (sys.executable, "-m", "paddle_serving_server.serve", "--model")
CONF = """
feed_var { name: "x" alias_name: "x" feed_type: 1 shape: 3 }
fetch_var { name: "y" alias_name: "doubled" fetch_type: 1 shape: 3 }
fetch_var { name: "twice" alias_name: "quadrupled" fetch_type: 1 shape: 3 }
"""
ROW = np.float32([1, 2, 3])

pytestmark = pytest.mark.real


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model and the client's configuration, in one folder each."""
    folder = tmp_path_factory.mktemp("models")
    for name in ("serving_server", "serving_client"):
        (folder / name).mkdir()
        (folder / name / f"{name}_conf.prototxt").write_text(CONF)
    scale(folder / "serving_server/model.onnx", 2.0)
    return folder


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[ServiceProcess]:
    with running(folder / "serving_server", "--thread", "4", command=SERVE) as server:
        yield server


@pytest.fixture(params=["http_port", "rpc_port"])
def endpoint(server: ServiceProcess, request: pytest.FixtureRequest) -> str:
    """Each of the two ports, which both serve every protocol."""
    return f"127.0.0.1:{getattr(server, request.param)}"


@pytest.fixture
def client(folder: Path, endpoint: str) -> Iterator[Client]:
    client = Client()
    client.load_client_config(str(folder / "serving_client"))
    client.connect([endpoint])
    yield client
    client.release()


def test_the_server_listens_for_other_machines(server: ServiceProcess) -> None:
    assert "to every machine that can reach this one" in server.log()


def test_predict_returns_arrays_by_alias(client: Client) -> None:
    assert client.get_feed_names() == ["x"]
    assert client.get_fetch_names() == ["doubled", "quadrupled"]
    feed = {"x": ROW}
    for given in (feed, [feed], [1, 2, 3]):
        found = client.predict(feed=given, fetch=["doubled"])
        assert {name: value.tolist() for name, value in found.items()} == {"doubled": [[2, 4, 6]]}
    assert feed["x"] is ROW
    assert ROW.shape == (3,)
    batch = client.predict(feed={"x": np.stack([ROW, ROW])}, batch=True, log_id=7)
    assert [*batch] == ["doubled", "quadrupled"]
    assert batch["quadrupled"].tolist() == [[4, 8, 12]] * 2


def test_names_of_inputs_and_outputs_are_attributes_too(client: Client) -> None:
    assert (client.feed_names_, client.fetch_names_) == (["x"], ["doubled", "quadrupled"])
    assert (Client().feed_names_, HttpClient().fetch_names_) == ([], [])


def test_unknown_fetch_names_are_ignored(client: Client) -> None:
    assert [*client.predict({"x": ROW}, ["none", "doubled"])] == ["doubled"]
    assert [*client.predict({"x": ROW}, "none")] == ["doubled", "quadrupled"]


@pytest.mark.parametrize(
    ("feed", "text"),
    [
        (None, "feed is missing"),
        ([{"x": ROW}, {"x": ROW}], "give one dict"),
        ({"y": ROW}, "Wrong feed name: y"),
        ({}, "lacks"),
        ({"x": ["a"]}, "input 'x'"),
    ],
)
def test_an_invalid_feed_raises_value_error(client: Client, feed: Any, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        client.predict(feed, ["doubled"])
    assert client.predict({"x": ROW}) is not None


def test_a_client_can_be_used_by_threads_and_after_a_fork(client: Client) -> None:
    def doubled_value(value: int) -> float:
        return float(client.predict({"x": np.float32([value, 0, 0])})["doubled"][0, 0])

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(doubled_value, range(32))) == [2.0 * value for value in range(32)]
    child = os.fork()
    if not child:
        status = 1
        try:
            status = 0 if doubled_value(4) == 8 else 2
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    assert doubled_value(5) == 10


def test_predict_returns_the_variants_tag(folder: Path, server: ServiceProcess) -> None:
    client = Client()
    client.load_client_config(str(folder / "serving_client/serving_client_conf.prototxt"))
    client.add_variant("a", [f"127.0.0.1:{server.http_port}"], 50)
    client.add_variant("b", [f"127.0.0.1:{server.rpc_port}"], 50)
    client.connect()
    tags = set()
    for _ in range(60):  # one draw in 2 ** 59 is of one tag only
        found, tag = client.predict({"x": ROW}, need_variant_tag=True)
        assert found["doubled"].tolist() == [[2, 4, 6]]
        tags.add(tag)
    assert tags == {"a", "b"}
    client.release()
    with pytest.raises(ValueError, match=r"call connect\(\) first"):
        client.predict({"x": ROW})


def test_predict_returns_none_without_a_server_and_logs_the_error(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    client = Client()
    client.load_client_config(str(folder / "serving_client"))
    with pytest.raises(ValueError, match="give endpoints"):
        client.connect()
    client.set_rpc_timeout_ms(5000)
    client.connect([f"127.0.0.1:{free_port()}"])
    assert client.predict({"x": ROW}, need_variant_tag=True) is None
    assert "no answer: UNAVAILABLE" in caplog.text
    client.release()
    http = HttpClient()
    http.load_client_config(str(folder / "serving_client"))
    http.connect(f"127.0.0.1:{free_port()}")
    http.set_max_retries(1)
    assert http.predict({"x": ROW}) is None
    assert "http post error" in caplog.text
    http.set_use_grpc_client(True)
    assert http.predict({"x": ROW}) is None
    assert "Grpc inference error occur: UNAVAILABLE" in caplog.text


def test_predict_returns_none_for_a_refused_request_and_logs_the_error(
    client: Client, folder: Path, endpoint: str, caplog: pytest.LogCaptureFixture
) -> None:
    feed = {"x": np.ones((1, 4), np.float32)}
    assert client.predict(feed, batch=True) is None
    assert "INVALID_ARGUMENT" in caplog.text
    http = HttpClient()
    http.load_client_config(str(folder / "serving_client"))
    http.connect([endpoint])
    assert http.predict(feed, batch=True) is None
    assert "http post error: HTTP 400" in caplog.text


MESSAGE = general_model_messages()[1]


@pytest.mark.parametrize("compress", [False, True], ids=["plain", "packed"])
@pytest.mark.parametrize("form", ["proto", "json", "grpc"])
def test_an_http_client_supports_protobuf_json_and_grpc(
    folder: Path, endpoint: str, form: str, compress: bool
) -> None:
    client = HttpClient()
    client.load_client_config([str(folder / "serving_client")] * 2)
    client.connect(f"http://{endpoint}" if form == "json" else endpoint)
    client.set_timeout_ms(10_000)
    client.set_http_proto(form == "proto")
    client.set_use_grpc_client(form == "grpc")
    client.set_request_compress(compress)
    client.set_response_compress(compress)
    client.add_http_headers({"x-of-the-caller": "1"})
    rows = np.arange(3000, dtype=np.float32).reshape(1000, 3)
    found = client.predict({"x": rows}, ["doubled"], batch=True, log_id=9)
    if form == "json":
        (tensor,) = found["outputs"][0]["tensor"]
        assert (found["log_id"], found["err_no"], tensor["alias_name"]) == (9, 0, "doubled")
        values, shape = tensor["float_data"], tensor["shape"]
    else:
        assert type(found) is MESSAGE
        (tensor_message,) = found.outputs[0].tensor
        assert (found.log_id, found.err_no, tensor_message.alias_name) == (9, 0, "doubled")
        values, shape = tensor_message.float_data, tensor_message.shape
    assert list(shape) == [1000, 3]
    np.testing.assert_array_equal(np.array(values, np.float32), 2 * rows.ravel())
    one = client.predict([1, 2, 3])
    first = one["outputs"][0]["tensor"][0]["float_data"] if form == "json" else None
    assert list(first or one.outputs[0].tensor[0].float_data) == [2, 4, 6]


def test_a_client_without_configuration_raises_an_error(tmp_path: Path) -> None:
    for client in (Client(), HttpClient()):
        with pytest.raises(ValueError, match=r"load_client_config\(\) first"):
            client.predict({"x": ROW}) if isinstance(client, HttpClient) else client.connect(
                ["a:1"]
            )
        with pytest.raises(ModelError, match=r"serving_client_conf\.prototxt: cannot be read"):
            client.load_client_config(str(tmp_path))


def test_invalid_settings_are_refused() -> None:
    with pytest.raises(ValueError, match="int of milliseconds"):
        Client().set_rpc_timeout_ms("1")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="http or https"):
        HttpClient().connect("ftp://127.0.0.1:1")
    with pytest.raises(ValueError, match="host:port"):
        HttpClient().connect("nowhere")


class KeyServer(BaseHTTPRequestHandler):
    """The first server of an encrypted model: receives the key and returns another port."""

    keys: ClassVar[list[Any]] = []
    port = 0

    def do_POST(self) -> None:
        self.keys.append(json.loads(self.rfile.read(int(self.headers["content-length"]))))
        answer = {"endpoint_list": [self.port]} if "key" in self.keys[-1] else {"message": "no"}
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps(answer).encode())

    def log_message(self, *_: Any) -> None:
        pass


def test_the_key_is_sent_before_the_first_prediction(
    folder: Path, server: ServiceProcess, tmp_path: Path
) -> None:
    (tmp_path / "key").write_bytes(b"secret")
    KeyServer.port = server.http_port
    KeyServer.keys.clear()
    with HTTPServer(("127.0.0.1", 0), KeyServer) as keys:
        threading.Thread(target=keys.serve_forever, daemon=True).start()
        endpoint = f"127.0.0.1:{keys.server_port}"
        for client in (Client(), HttpClient()):
            client.load_client_config(str(folder / "serving_client"))
            with pytest.raises(ValueError, match="does not serve the model"):
                client.connect([endpoint], encryption=True)
            client.use_key(str(tmp_path / "key"))
            client.connect([endpoint], encryption=True)
            assert client.predict({"x": ROW}) is not None
        keys.shutdown()
    key = {"key": base64.b64encode(b"secret").decode()}
    assert KeyServer.keys == [{}, key] * 2


def test_the_gpu_packages_command_serves_the_model_on_a_machine_without_a_gpu(
    folder: Path, tmp_path: Path
) -> None:
    model = shutil.copytree(folder / "serving_server", tmp_path / "model")
    command = (sys.executable, "-m", "paddle_serving_server_gpu.serve", "--model")
    flags = ("--host", "127.0.0.1", "--gpu_ids", "0", "--use_lite", "--ir_optim", "True")
    with running(model, *flags, command=command) as server:
        log = server.log()
        assert "to this machine only" in log
        assert "runs on the CPU, as missing_device: cpu allows: " in log
        assert "--use_lite has no effect: " in log
        assert server.stop() == 0
