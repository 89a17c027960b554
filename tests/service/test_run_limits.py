"""Keys of the configuration that bound what clients may do, set small in whole services."""

from __future__ import annotations

import signal
import socket
from http.client import HTTPConnection
from pathlib import Path

import grpc
import psutil
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from penstock import PipelineClient
from penstock.client import CallFailed
from penstock.protocols.status import GrpcCode
from tests.service.scripts import NAME, fetch, post, script, until
from tests.services.process import running

pytestmark = pytest.mark.real

HANGING = """
def process(self, feed_batch, typical_logid):
    import pathlib
    while not pathlib.Path("gate").exists():
        time.sleep(0.005)
    return feed_batch[0]
"""
LARGE = 'def process(self, feed_batch, typical_logid): return {"x": "x" * (16 << 20)}'
BODY = b'{"key": ["a"], "value": ["1"]}'
SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


@pytest.mark.parametrize("key", ["deadline", "max_deadline"])
def test_no_caller_is_given_more_time_than_the_service_allows(key: str, tmp_path: Path) -> None:
    path = script(tmp_path, HANGING, f'"{key}": 0.3, "op": {{"work": {{"concurrency": 4}}}}')
    with running(path) as server, PipelineClient() as client:
        client.connect([server.rpc_endpoint])
        assert post(server, a="1").json["err_no"] == 6000
        assert client.predict({"a": "1"}).err_no == 6000
        connection = HTTPConnection("127.0.0.1", server.http_port, timeout=20)
        more = {"Penstock-Timeout": "1000"}
        connection.request("POST", f"/{NAME}/prediction", BODY, more)
        with connection.getresponse() as answer:
            # The service's own limit, so it is an answer.
            assert answer.status == 200
            assert b'"err_no":6000' in answer.read()
        connection.close()
        assert client.predict({"a": "1"}, timeout=1000).err_no == 6000
        (tmp_path / "gate").touch()


def test_a_caller_may_ask_for_less(tmp_path: Path) -> None:
    path = script(tmp_path, HANGING, '"max_deadline": 50')
    with running(path) as server, PipelineClient() as client:
        client.connect([server.rpc_endpoint])
        with pytest.raises(CallFailed) as caught:
            client.predict({"a": "1"}, timeout=0.3)
        assert caught.value.status is GrpcCode.DEADLINE_EXCEEDED
        (tmp_path / "gate").touch()


def test_a_client_that_reads_nothing_for_write_timeout_is_cut_off(tmp_path: Path) -> None:
    request = b"POST /%s/prediction HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s" % (
        NAME.encode(),
        len(BODY),
        BODY,
    )
    with running(script(tmp_path, LARGE, '"write_timeout": 0.2')) as server:
        with socket.socket() as client:
            # Little room, so that the answer stays with the server.
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.settimeout(20)
            client.connect(("127.0.0.1", server.http_port))
            client.sendall(request)
            client.recv(1, socket.MSG_PEEK)  # the answer has begun
            until(lambda: connections(server.pid, server.http_port) == 0, "the cut")
            assert bytes_until_the_end(client) < 16 << 20
        assert len(post(server, a="1").json["value"][0]) == 16 << 20


def connections(pid: int, port: int) -> int:
    return sum(
        each.laddr.port == port and each.status == psutil.CONN_ESTABLISHED
        for each in psutil.Process(pid).net_connections("tcp")
    )


def bytes_until_the_end(client: socket.socket) -> int:
    got = 0
    try:
        while data := client.recv(1 << 20):
            got += len(data)
    except ConnectionResetError:
        return got
    return got


def test_max_calls_bounds_the_open_grpc_calls(tmp_path: Path) -> None:
    path = script(tmp_path, HANGING, '"max_calls": 2, "op": {"work": {"concurrency": 4}}')
    with running(path) as server, PipelineClient() as client:
        client.connect([server.rpc_endpoint])
        futures = [client.predict({"a": "1"}, asyn=True, timeout=20) for _ in range(3)]
        # Two wait for the gate, so the one that fails ends first.
        until(lambda: any(future.done() for future in futures), "a refusal")
        (failed,) = (future for future in futures if future.done())
        with pytest.raises(CallFailed) as caught:
            failed.result()
        assert caught.value.status is GrpcCode.RESOURCE_EXHAUSTED
        (tmp_path / "gate").touch()
        assert [each.result().err_no for each in futures if each is not failed] == [0, 0]


def test_a_stuck_op_is_told_alike_over_http_and_grpc(tmp_path: Path) -> None:
    path = script(tmp_path, HANGING, '"op": {"work": {"timeout": 50}}')
    with running(path) as server, grpc.insecure_channel(server.rpc_endpoint) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        request = health_pb2.HealthCheckRequest()
        watch = stub.Watch(request, timeout=30)
        assert next(watch).status == SERVING

        assert post(server, a="1").json["err_no"] == 6000  # and its worker does not return

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
