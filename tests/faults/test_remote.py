"""A pipeline whose op's model is in other servers, which die, come back, and are slow.

The calls over HTTP verify nothing: httpx would read the certificates of this machine, 30 ms of CPU,
for each of them.
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
from tests.service.models import scale
from tests.services.process import ServiceProcess, free_port, running

pytestmark = pytest.mark.faults

SERVICE = Path(__file__).parent / "remote_service.py"
SERVE = (sys.executable, "-m", "penstock", "serve", "--model")
BACK = 10.0  # seconds within which an endpoint's return is noticed
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


def ask(service: ServiceProcess, body: Any = ROW, **headers: str) -> tuple[int, Any]:
    url = f"{service.http_url}/pipe"
    reply = httpx.post(url, json=body, headers=headers, timeout=20, verify=False)
    return reply.status_code, reply.json()


def served(server: ServiceProcess) -> int:
    stats = httpx.get(f"{server.http_url}/v2/models/double/stats", verify=False).json()
    return int(stats["model_stats"][0]["inference_count"])


def test_an_op_calls_a_model_elsewhere(model: Path) -> None:
    with model_server(model) as server, pipeline(server.rpc_endpoint, name="-") as service:
        assert ask(service) == (200, DOUBLED)
        status, found = ask(service, {"x": [[1, 2]]})
        assert status == 400
        assert "expected the shape [?, 3], got [1, 2]" in json.dumps(found)


def test_requests_share_a_call(model: Path) -> None:
    options = ("batch_size=8", "concurrency=1")
    with (
        model_server(model) as server,
        pipeline(server.rpc_endpoint, options=options) as service,
        ThreadPoolExecutor(16) as pool,
    ):
        rows = [{"x": [[n, n, n]]} for n in range(200)]
        answers = [*pool.map(lambda row: ask(service, row), rows)]
        assert answers == [(200, {"y": [[2 * n] * 3], "twice": [[4 * n] * 3]}) for n in range(200)]
        url = f"{server.http_url}/v2/models/double/stats"
        (stats,) = httpx.get(url, verify=False).json()["model_stats"]
        assert stats["inference_stats"]["success"]["count"] < 200


@pytest.fixture(scope="module")
def conf(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The key of an op that names the model's aliases."""
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
        answers = [*pool.map(lambda row: ask(service, row), rows)]
        assert answers == [(200, {"y": [[2 * n] * 3], "twice": [[4 * n] * 3]}) for n in range(200)]
        status, found = ask(service, {"x": [[1, 2]]})
        assert status == 400
        assert "[E1003] input 'x' has the shape [-1, 3], got [1, 2]" in json.dumps(found)


def test_of_two_servers_called_by_baidu_std_one_stops_and_one_dies(model: Path, conf: str) -> None:
    kind = {"name": "double", "client_type": "brpc", "options": (conf,)}
    with model_server(model) as stays, model_server(model) as leaves:
        with pipeline(stays.rpc_endpoint, leaves.rpc_endpoint, **kind) as service:  # type: ignore[arg-type]
            load = Load(service, 8)
            try:
                until(lambda: calls(stays) > 50 and calls(leaves) > 50, "both are called")
                assert leaves.stop() == 0
                before = load.good()
                until(lambda: load.good() > before + 200, "the other goes on")
                assert [seen for seen in load.seen if seen[1] != 200] == []
                with model_server(model, leaves.rpc_port) as back:
                    until(lambda: calls(back) > 50, "its return is noticed")
                    back.stop(signal.SIGKILL)
                    before = load.good()
                    until(lambda: load.good() > before + 200, "the other goes on again")
            finally:
                load.end()
            failed = [seen for seen in load.seen if seen[1] != 200]
            assert len(failed) <= 8, "those on its connection"
            assert {status for _, status, _ in failed} <= {503}
            assert "is skipped for a while" in service.log()


def calls(server: ServiceProcess) -> int:
    """Requests that a server has answered, by whatever protocol."""
    stats = httpx.get(f"{server.http_url}/status", verify=False).json()
    return int(stats["requests"]["answered"])


def test_an_op_calls_a_pipeline_elsewhere(model: Path) -> None:
    with (
        model_server(model) as server,
        pipeline(server.rpc_endpoint) as inner,
        pipeline(inner.rpc_endpoint, name="pipe", client_type="pipeline_grpc") as outer,
    ):
        assert ask(outer) == (200, DOUBLED)


def test_a_model_that_is_not_there_is_said(model: Path) -> None:
    with model_server(model) as server, pipeline(server.rpc_endpoint, name="triple") as service:
        assert ask(service)[0] == 503
        said = f"op scale: process: NOT_FOUND: {server.rpc_endpoint}: there is no model 'triple'"
        until(lambda: said in service.log(), said)


def test_a_service_starts_before_what_it_calls(model: Path) -> None:
    port = free_port()
    with pipeline(f"127.0.0.1:{port}") as service:
        assert ask(service)[0] == 503
        said = f"op scale: process: UNAVAILABLE: 127.0.0.1:{port}: cannot connect"
        until(lambda: said in service.log(), said)
        assert httpx.get(f"{service.http_url}/readyz").status_code == 200
        with model_server(model, port):
            deadline = time.monotonic() + BACK
            while ask(service)[0] != 200:
                assert time.monotonic() < deadline, service.log()
        assert "is skipped for a while: cannot connect" in service.log()


def test_the_second_server_is_told_less_than_what_is_left() -> None:
    told: list[float] = []
    _, metadata = inference_messages("ModelMetadata")
    about = metadata(name="double")
    about.inputs.add(name="x", datatype="FP32", shape=[-1, 3])

    class Slow(grpc.GenericRpcHandler):
        def service(self, details: Any) -> Any:
            def handle(request: bytes, context: Any) -> bytes:
                if details.method.endswith("ModelMetadata"):
                    return bytes(about.SerializeToString())
                told.append(context.time_remaining())
                if len(told) == 1:
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
            assert ask(service)[0] == 503
            began = time.monotonic()
            status, _ = ask(service, **{"penstock-timeout": "0.3"})
            assert status == 504, "the caller's own time is over, whichever server says so first"
            assert time.monotonic() - began < 3
            until(lambda: len(told) == 2, "the call has come")
            assert told[0] <= 10.0
            assert 0 < told[1] < 0.3
    finally:
        server.stop(0).wait(10)


def test_a_call_that_may_have_run_is_not_repeated_for_halves_of_its_batch() -> None:
    ran: list[bytes] = []
    _, metadata = inference_messages("ModelMetadata")
    about = metadata(name="double")
    about.inputs.add(name="x", datatype="FP32", shape=[-1, 3])

    class Fails(grpc.GenericRpcHandler):
        def service(self, details: Any) -> Any:
            def handle(request: bytes, context: Any) -> bytes:
                if details.method.endswith("ModelMetadata"):
                    return bytes(about.SerializeToString())
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
            assert [status for status, _ in pool.map(ask, [service] * 8)] == [503] * 8
            assert len(ran) == 1
    finally:
        server.stop(0).wait(10)


def test_a_server_that_stops_in_order_costs_no_request(model: Path) -> None:
    with model_server(model) as stays, model_server(model) as stops:
        with pipeline(stays.rpc_endpoint, stops.rpc_endpoint) as service:
            load = Load(service, 8)
            try:
                until(lambda: served(stops) > 50, "it is called")
                assert stops.stop() == 0
                before = load.good()
                until(lambda: load.good() > before + 100, "the other goes on")
            finally:
                load.end()
            assert [seen for seen in load.seen if seen[1] != 200] == []


def test_check_says_what_is_called() -> None:
    command = (sys.executable, "-m", "penstock", "check", str(SERVICE), "m", "grpc", "127.0.0.1:1")
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert "calls model m at 127.0.0.1:1" in done.stdout
    done = subprocess.run((*command[:-1], "nowhere"), capture_output=True, text=True, timeout=60)
    assert done.returncode != 0
    assert "op.scale.server_endpoints[0]: must be host:port" in done.stderr


class Load:
    """Callers that ask all the time, and what they get."""

    def __init__(self, service: ServiceProcess, callers: int) -> None:
        self._service = service
        self.seen: list[tuple[float, int, str]] = []
        self._ended = threading.Event()
        self._threads = [threading.Thread(target=self._ask) for _ in range(callers)]
        for thread in self._threads:
            thread.start()

    def _ask(self) -> None:
        with httpx.Client(timeout=20, verify=False) as client:
            while not self._ended.is_set():
                reply = client.post(f"{self._service.http_url}/pipe", json=ROW)
                self.seen.append((time.monotonic(), reply.status_code, reply.text))

    def end(self) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join(20)

    def good(self) -> int:
        return sum(status == 200 for _, status, _ in self.seen)


def until(condition: Any, what: str, seconds: float = BACK) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


def test_a_server_that_is_killed_costs_only_the_calls_on_its_connection(model: Path) -> None:
    callers = 8
    with model_server(model) as stays, model_server(model) as dies:
        with pipeline(stays.rpc_endpoint, dies.rpc_endpoint) as service:
            load = Load(service, callers)
            try:
                until(lambda: served(stays) > 50 and served(dies) > 50, "both are called")
                dies.stop(signal.SIGKILL)
                before = load.good()
                until(lambda: load.good() > before + 200, "the other goes on")
                with model_server(model, dies.rpc_port) as back:
                    until(lambda: served(back) > 50, "its return is noticed")
            finally:
                load.end()
            bad = [seen for seen in load.seen if seen[1] != 200]
            # Once when it is killed, and once when its successor is.
            assert len(bad) <= 2 * callers, bad
            assert {status for _, status, _ in bad} <= {503}
