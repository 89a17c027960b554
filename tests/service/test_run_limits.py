"""Configuration keys that limit clients, set to small values in whole services."""

from __future__ import annotations

import signal
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tests.service.scripts import fetch, post, script
from tests.services.process import running

pytestmark = pytest.mark.real

HANGING = """
def process(self, feed_batch, typical_logid):
    import pathlib
    while not pathlib.Path("gate").exists():
        time.sleep(0.005)
    return feed_batch[0]
"""
SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


def test_a_stuck_op_makes_the_service_unready_over_http_and_grpc(tmp_path: Path) -> None:
    path = script(tmp_path, HANGING, '"op": {"work": {"timeout": 50}}')
    with running(path) as server, grpc.insecure_channel(server.rpc_endpoint) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        request = health_pb2.HealthCheckRequest()
        watch = stub.Watch(request, timeout=30)
        assert next(watch).status == SERVING

        assert post(server, a="1").json["err_no"] == 6000  # its worker remains blocked

        assert next(watch).status == NOT_SERVING
        assert stub.Check(request, timeout=5).status == NOT_SERVING
        unready = fetch(f"{server.http_url}/readyz")
        assert (unready.status, unready.body) == (503, b"op 'work': no worker returns\n")

        (tmp_path / "gate").touch()

        assert next(watch).status == SERVING
        assert stub.Check(request, timeout=5).status == SERVING
        assert server.is_ready()
        watch.cancel()
        assert server.stop(signal.SIGTERM) == 0
