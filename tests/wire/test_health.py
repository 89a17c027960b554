"""Health and readiness, over HTTP and gRPC's health service: at start, running, and at the stop."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from tests.hostile.holding import START, held
from tests.kit import http2
from tests.kit.http1 import Reply, ask, pairs
from tests.services.process import ServiceProcess, running

pytestmark = pytest.mark.real

SERVICE = "baidu.paddle_serving.pipeline_serving.PipelineService"
HEALTH = "grpc.health.v1.Health"
SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING

# Its op becomes ready once the named pipe has been opened and written to.
SLOW_START = """
import os
from penstock import Op, WebService

class Slow(Op):
    def init_op(self):
        with open(os.environ["HOSTILE_PIPE"], "rb", buffering=0) as pipe:
            pipe.read(1)

class Service(WebService):
    def get_pipeline_response(self, read_op):
        return Slow(name="slow", input_ops=[read_op])

service = Service(name="uci")
service.prepare_pipeline_config(yml_dict={"http_port": 0, "rpc_port": 0})
service.run_service()
"""


@contextmanager
def slow_service(folder: Path) -> Iterator[tuple[ServiceProcess, Path]]:
    script, pipe = folder / "slow.py", folder / "pipe"
    script.write_text(SLOW_START)
    os.mkfifo(pipe)
    environment = {"HOSTILE_PIPE": str(pipe), "PENSTOCK_DRAIN_DELAY": "60"}
    with running(script, environment=environment, ready=False) as server:
        yield server, pipe


def probe(server: ServiceProcess, path: bytes, method: bytes = b"GET") -> Reply:
    return ask(server.http_port, b"", method=method, target=path)


def check(channel: grpc.Channel, service: str) -> int:
    stub = health_pb2_grpc.HealthStub(channel)
    request = health_pb2.HealthCheckRequest(service=service)
    status: int = stub.Check(request, timeout=5).status
    return status


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def test_health_and_readiness_follow_start_and_stop(tmp_path: Path) -> None:
    with slow_service(tmp_path) as (server, pipe):
        with held(pipe, START):  # the op is starting and not ready
            assert not listens(server.http_port)
            assert not listens(server.rpc_port)
        server.wait_ready()
        for path in (b"/livez", b"/readyz"):
            assert (probe(server, path).status, probe(server, path).body) == (200, b"ok\n")
        with grpc.insecure_channel(server.rpc_endpoint) as channel:
            assert [check(channel, name) for name in ("", SERVICE)] == [SERVING, SERVING]
            stub = health_pb2_grpc.HealthStub(channel)
            watches = [
                stub.Watch(health_pb2.HealthCheckRequest(service=name), timeout=30)
                for name in ("", SERVICE)
            ]
            assert [next(watch).status for watch in watches] == [SERVING, SERVING]

            server.send_signal(signal.SIGTERM)

            assert [next(watch).status for watch in watches] == [NOT_SERVING, NOT_SERVING]
            assert [check(channel, name) for name in ("", SERVICE)] == [NOT_SERVING, NOT_SERVING]
            unready = probe(server, b"/readyz")
            assert (unready.status, unready.body) == (503, b"shutting down\n")
            assert probe(server, b"/livez").status == 200
            # Load balancers react first; until then requests are accepted.
            assert ask(server.http_port, pairs(x="1")).json()["err_no"] == 0
            http2.check_good(server.rpc_port)

            server.send_signal(signal.SIGTERM)  # the second signal ends the drain

            assert server.wait_exit() == 0
            for watch in watches:
                with pytest.raises(grpc.RpcError):
                    next(watch)
        assert not listens(server.http_port)
        assert not listens(server.rpc_port)


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    with slow_service(tmp_path_factory.mktemp("health")) as (server, pipe):
        with held(pipe, START):
            pass
        server.wait_ready()
        yield server


def test_reflection_lists_the_services_and_their_files(service: ServiceProcess) -> None:
    requests = [
        reflection_pb2.ServerReflectionRequest(list_services=""),
        reflection_pb2.ServerReflectionRequest(file_containing_symbol=SERVICE),
        reflection_pb2.ServerReflectionRequest(file_containing_symbol="nowhere.Nothing"),
    ]
    with grpc.insecure_channel(service.rpc_endpoint) as channel:
        stub = reflection_pb2_grpc.ServerReflectionStub(channel)
        listed, file, unknown = stub.ServerReflectionInfo(iter(requests), timeout=5)
    assert [one.name for one in listed.list_services_response.service] == [
        SERVICE,
        HEALTH,
        "inference.GRPCInferenceService",
    ]
    assert len(file.file_descriptor_response.file_descriptor_proto) == 1
    assert unknown.error_response.error_code == grpc.StatusCode.NOT_FOUND.value[0]
