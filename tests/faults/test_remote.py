"""A pipeline whose op's model is in other servers, which stop, restart, and are slow.

Calls over HTTP do not verify certificates: httpx would read those of this machine, 30 ms of CPU,
for each call.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest

from penstock.protocols.standard_messages import inference_messages
from tests.kit.onnx_models import scale
from tests.services.process import ServiceProcess, free_port, running

pytestmark = pytest.mark.faults

SERVICE = Path(__file__).parent / "remote_service.py"
SERVE = (sys.executable, "-m", "penstock", "serve", "--model")
BACK = 10.0  # seconds within which a restarted endpoint is used again
ROW = {"x": [[1, 2, 3]]}
DOUBLED = {"y": [[2, 4, 6]], "twice": [[4, 8, 12]]}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return scale(tmp_path_factory.mktemp("models") / "double.onnx", 2.0)


@contextmanager
def model_server(model: Path, port: int | None = None) -> Iterator[ServiceProcess]:
    more = {} if port is None else {"PENSTOCK_RPC_PORT": str(port)}
    with running(model, command=SERVE, environment=more) as server:
        yield server


@contextmanager
def pipeline(
    *endpoints: str, name: str = "double", client_type: str = "grpc", options: tuple[str, ...] = ()
) -> Iterator[ServiceProcess]:
    with running(SERVICE, name, client_type, *endpoints, "--", *options) as service:
        yield service


def send_request(service: ServiceProcess, body: Any = ROW, **headers: str) -> tuple[int, Any]:
    url = f"{service.http_url}/pipe"
    reply = httpx.post(url, json=body, headers=headers, timeout=20, verify=False)
    return reply.status_code, reply.json()


def served(server: ServiceProcess) -> int:
    stats = httpx.get(f"{server.http_url}/v2/models/double/stats", verify=False).json()
    return int(stats["model_stats"][0]["inference_count"])


def test_an_op_calls_a_model_in_another_server(model: Path) -> None:
    with model_server(model) as server, pipeline(server.rpc_endpoint, name="-") as service:
        assert send_request(service) == (200, DOUBLED)
        status, found = send_request(service, {"x": [[1, 2]]})
        assert status == 400
        assert "expected the shape [?, 3], got [1, 2]" in json.dumps(found)


def test_requests_of_a_batch_are_sent_in_one_call(model: Path) -> None:
    options = ("batch_size=8", "concurrency=1")
    with (
        model_server(model) as server,
        pipeline(server.rpc_endpoint, options=options) as service,
        ThreadPoolExecutor(16) as pool,
    ):
        rows = [{"x": [[n, n, n]]} for n in range(200)]
        answers = [*pool.map(lambda row: send_request(service, row), rows)]
        assert answers == [(200, {"y": [[2 * n] * 3], "twice": [[4 * n] * 3]}) for n in range(200)]
        url = f"{server.http_url}/v2/models/double/stats"
        (stats,) = httpx.get(url, verify=False).json()["model_stats"]
        assert stats["inference_stats"]["success"]["count"] < 200


@pytest.fixture(scope="module")
def conf(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The key of an op with the client configuration, which has the model's aliases."""
    file = tmp_path_factory.mktemp("conf") / "serving_client_conf.prototxt"
    names = [("fetch", "y", "y"), ("fetch", "twice", "twice"), ("feed", "x", "x")]
    file.write_text(
        "".join(
            f'{kind}_var {{ name: "{name}" alias_name: "{alias}" {kind}_type: 1 shape: 3 }}\n'
            for kind, name, alias in names
        )
    )
    return f"client_config={file.parent}"


def test_an_op_calls_a_model_by_baidu_std(model: Path, conf: str) -> None:
    options = (conf, "batch_size=8", "concurrency=1")
    with (
        model_server(model) as server,
        pipeline(server.rpc_endpoint, name="-", client_type="brpc", options=options) as service,
        ThreadPoolExecutor(16) as pool,
    ):
        rows = [{"x": [[n, n, n]]} for n in range(200)]
        answers = [*pool.map(lambda row: send_request(service, row), rows)]
        assert answers == [(200, {"y": [[2 * n] * 3], "twice": [[4 * n] * 3]}) for n in range(200)]
        status, found = send_request(service, {"x": [[1, 2]]})
        assert status == 400
        assert "[E1003] input 'x' has the shape [-1, 3], got [1, 2]" in json.dumps(found)


def test_baidu_std_calls_go_to_another_server_if_one_stops_or_is_killed(
    model: Path, conf: str
) -> None:
    kind = {"name": "double", "client_type": "brpc", "options": (conf,)}
    with model_server(model) as running_server, model_server(model) as second_server:
        with pipeline(running_server.rpc_endpoint, second_server.rpc_endpoint, **kind) as service:  # type: ignore[arg-type]
            load = Load(service, 8)
            try:
                until(
                    lambda: calls(running_server) > 50 and calls(second_server) > 50,
                    "both are called",
                )
                assert second_server.stop() == 0
                before = load.good()
                until(lambda: load.good() > before + 200, "the other goes on")
                assert [seen for seen in load.seen if seen[1] != 200] == []
                with model_server(model, second_server.rpc_port) as restarted:
                    until(lambda: calls(restarted) > 50, "its return is noticed")
                    restarted.stop(signal.SIGKILL)
                    before = load.good()
                    until(lambda: load.good() > before + 200, "the other goes on again")
            finally:
                load.end()
            failed = [seen for seen in load.seen if seen[1] != 200]
            assert len(failed) <= 8, "those on its connection"
            assert {status for _, status, _ in failed} <= {503}
            assert "is skipped for a while" in service.log()


def calls(server: ServiceProcess) -> int:
    """The number of requests that a server has answered, over all protocols."""
    stats = httpx.get(f"{server.http_url}/status", verify=False).json()
    return int(stats["requests"]["answered"])


def test_an_op_calls_a_pipeline_in_another_server(model: Path) -> None:
    with (
        model_server(model) as server,
        pipeline(server.rpc_endpoint) as inner,
        pipeline(inner.rpc_endpoint, name="pipe", client_type="pipeline_grpc") as outer,
    ):
        assert send_request(outer) == (200, DOUBLED)


def test_an_unknown_remote_model_is_logged(model: Path) -> None:
    with model_server(model) as server, pipeline(server.rpc_endpoint, name="triple") as service:
        assert send_request(service)[0] == 500  # a retry would not help
        message = f"op scale: process: NOT_FOUND: {server.rpc_endpoint}: there is no model 'triple'"
        until(lambda: message in service.log(), message)


def test_a_service_can_start_before_its_model_server(model: Path) -> None:
    port = free_port()
    with pipeline(f"127.0.0.1:{port}") as service:
        assert send_request(service)[0] == 503
        message = f"op scale: process: UNAVAILABLE: 127.0.0.1:{port}: cannot connect"
        until(lambda: message in service.log(), message)
        assert httpx.get(f"{service.http_url}/readyz").status_code == 200
        with model_server(model, port):
            deadline = time.monotonic() + BACK
            while send_request(service)[0] != 200:
                assert time.monotonic() < deadline, service.log()
        assert "is skipped for a while: cannot connect" in service.log()


def test_a_remote_call_gets_the_requests_remaining_time_as_its_timeout() -> None:
    remaining: list[float] = []
    _, metadata = inference_messages("ModelMetadata")
    model_metadata = metadata(name="double")
    model_metadata.inputs.add(name="x", datatype="FP32", shape=[-1, 3])

    class Slow(grpc.GenericRpcHandler):
        def service(self, details: Any) -> Any:
            def handle(request: bytes, context: Any) -> bytes:
                if details.method.endswith("ModelMetadata"):
                    return bytes(model_metadata.SerializeToString())
                remaining.append(context.time_remaining())
                if len(remaining) == 1:
                    context.abort(grpc.StatusCode.UNAVAILABLE, "the first one only connects")
                ended = threading.Event()
                context.add_callback(ended.set)
                ended.wait(10)
                return b""

            return grpc.unary_unary_rpc_method_handler(handle)

    server = grpc.server(ThreadPoolExecutor(4), handlers=(Slow(),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        with pipeline(f"127.0.0.1:{port}") as service:
            assert send_request(service)[0] == 503
            began = time.monotonic()
            status, _ = send_request(service, **{"penstock-timeout": "0.3"})
            assert status == 504, "the caller's own time is over, whichever server says so first"
            assert time.monotonic() - began < 3
            until(lambda: len(remaining) == 2, "the call has come")
            assert remaining[0] <= 10.0
            assert 0 < remaining[1] < 0.3
    finally:
        server.stop(0).wait(10)


def test_a_failed_call_that_may_have_run_is_not_repeated_for_halves_of_its_batch() -> None:
    ran: list[bytes] = []
    _, metadata = inference_messages("ModelMetadata")
    model_metadata = metadata(name="double")
    model_metadata.inputs.add(name="x", datatype="FP32", shape=[-1, 3])

    class Fails(grpc.GenericRpcHandler):
        def service(self, details: Any) -> Any:
            def handle(request: bytes, context: Any) -> bytes:
                if details.method.endswith("ModelMetadata"):
                    return bytes(model_metadata.SerializeToString())
                ran.append(request)
                context.abort(grpc.StatusCode.UNAVAILABLE, "lost")
                raise AssertionError

            return grpc.unary_unary_rpc_method_handler(handle)

    server = grpc.server(ThreadPoolExecutor(4), handlers=(Fails(),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    options = ("batch_size=8", "concurrency=1", "auto_batching_timeout=2000")
    try:
        with (
            pipeline(f"127.0.0.1:{port}", options=options) as service,
            ThreadPoolExecutor(8) as pool,
        ):
            assert [status for status, _ in pool.map(send_request, [service] * 8)] == [503] * 8
            assert len(ran) == 1
    finally:
        server.stop(0).wait(10)


def test_no_request_fails_when_a_remote_server_stops(model: Path) -> None:
    with model_server(model) as running_server, model_server(model) as stopped_server:
        with pipeline(running_server.rpc_endpoint, stopped_server.rpc_endpoint) as service:
            load = Load(service, 8)
            try:
                until(lambda: served(stopped_server) > 50, "it is called")
                assert stopped_server.stop() == 0
                before = load.good()
                until(lambda: load.good() > before + 100, "the other goes on")
            finally:
                load.end()
            assert [seen for seen in load.seen if seen[1] != 200] == []


def test_penstock_check_prints_the_remote_model_and_its_endpoint() -> None:
    command = (sys.executable, "-m", "penstock", "check", str(SERVICE), "m", "grpc", "127.0.0.1:1")
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert "calls model m at 127.0.0.1:1" in done.stdout
    done = subprocess.run((*command[:-1], "nowhere"), capture_output=True, text=True, timeout=60)
    assert done.returncode != 0
    assert "op.scale.server_endpoints[0]: must be host:port" in done.stderr


class Load:
    """Clients that send requests without pauses, and their replies."""

    def __init__(self, service: ServiceProcess, clients: int) -> None:
        self._service = service
        self.seen: list[tuple[float, int, str]] = []
        self._stopping = threading.Event()
        self._threads = [threading.Thread(target=self._send_requests) for _ in range(clients)]
        for thread in self._threads:
            thread.start()

    def _send_requests(self) -> None:
        with httpx.Client(timeout=20, verify=False) as client:
            while not self._stopping.is_set():
                reply = client.post(f"{self._service.http_url}/pipe", json=ROW)
                self.seen.append((time.monotonic(), reply.status_code, reply.text))

    def end(self) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join(20)

    def good(self) -> int:
        return sum(status == 200 for _, status, _ in self.seen)


def until(condition: Any, what: str, seconds: float = BACK) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


def test_only_calls_on_its_connection_fail_when_a_remote_server_is_killed(model: Path) -> None:
    clients = 8
    with model_server(model) as running_server, model_server(model) as killed_server:
        with pipeline(running_server.rpc_endpoint, killed_server.rpc_endpoint) as service:
            load = Load(service, clients)
            try:
                until(
                    lambda: served(running_server) > 50 and served(killed_server) > 50,
                    "both are called",
                )
                killed_server.stop(signal.SIGKILL)
                before = load.good()
                until(lambda: load.good() > before + 200, "the other goes on")
                with model_server(model, killed_server.rpc_port) as restarted:
                    until(lambda: served(restarted) > 50, "its return is noticed")
            finally:
                load.end()
            bad = [seen for seen in load.seen if seen[1] != 200]
            # Failures at two kills: of the server and of its successor.
            assert len(bad) <= 2 * clients, bad
            assert {status for _, status, _ in bad} <= {503}
