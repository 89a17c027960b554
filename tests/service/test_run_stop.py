"""The time that whole services need to stop while clients stall and ops hang."""

from __future__ import annotations

import itertools
import json
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from penstock.protocols.status import GrpcCode
from tests.service.scripts import NAME, BackgroundCall, post, script, until
from tests.service.test_run import GATED
from tests.services.process import running

pytestmark = pytest.mark.real

METHOD = "/baidu.paddle_serving.pipeline_serving.PipelineService/inference"
HALF = (
    f"POST /{NAME}/prediction HTTP/1.1\r\nHost: localhost\r\nContent-Length: 30\r\n\r\n".encode()
    + b'{"key": ["a"],'
)
ABANDONED = "calls did not return in time and were abandoned: ['work|0']"


WHOLE = HALF + b' "value": ["1"]}'


@pytest.fixture
def no_messages() -> Iterator[Iterator[bytes]]:
    """Messages of a gRPC call: none, and no end before the test's."""
    test_ended = threading.Event()

    def wait_for_end() -> Iterator[bytes]:
        test_ended.wait()
        yield from ()

    yield wait_for_end()
    test_ended.set()


@pytest.mark.parametrize(
    "config",
    ["", '"dag": {"is_thread_op": False}', '"build_dag_each_worker": True, "worker_num": 2'],
    ids=["threads", "processes", "engines"],
)
def test_clients_connected_before_a_stop_are_answered(config: str, tmp_path: Path) -> None:
    with running(script(tmp_path, config=config)) as server, ExitStack() as stack:
        family = [server.pid, *(each.pid for each in server.descendants())]
        for pid in family:
            os.kill(pid, signal.SIGSTOP)  # so that only the kernel accepts connections
        address = ("127.0.0.1", server.http_port)
        clients = [
            stack.enter_context(socket.create_connection(address, timeout=20)) for _ in range(200)
        ]
        for client in clients:
            client.sendall(WHOLE)
        server.send_signal(signal.SIGTERM)
        for pid in family:
            os.kill(pid, signal.SIGCONT)
        for client in clients:
            answer = b"".join(iter(lambda client=client: client.recv(4096), b""))
            assert answer.startswith((b"HTTP/1.1 200 ", b"HTTP/1.1 503 "))
            client.close()
        assert server.wait_exit() == 0
        assert "Traceback" not in server.log()


@pytest.mark.parametrize(
    "config", ["", '"build_dag_each_worker": True, "worker_num": 2'], ids=["threads", "engines"]
)
def test_clients_that_reconnect_at_once_are_answered_until_they_are_refused(
    config: str, tmp_path: Path
) -> None:
    with running(script(tmp_path, config=config)) as server:
        first = threading.Barrier(25)

        def call_until_refused() -> bool:
            """Whether every connection got an answer."""
            for number in itertools.count():
                if number == 1:
                    first.wait(20)
                try:
                    link = socket.create_connection(("127.0.0.1", server.http_port), timeout=20)
                except ConnectionRefusedError:
                    return True
                with link:
                    link.sendall(WHOLE.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))
                    answer = b"".join(iter(lambda link=link: link.recv(4096), b""))
                    if not answer.startswith((b"HTTP/1.1 200 ", b"HTTP/1.1 503 ")):
                        return False
            raise AssertionError

        clients = [BackgroundCall(call_until_refused) for _ in range(24)]
        first.wait(20)
        assert server.stop() == 0
        assert all(client.result() for client in clients)


def test_stalled_requests_are_refused_at_a_stop_and_do_not_delay_the_exit(
    no_messages: Iterator[bytes], tmp_path: Path
) -> None:
    with running(script(tmp_path)) as server, grpc.insecure_channel(server.rpc_endpoint) as channel:
        call = channel.stream_unary(METHOD, None, None).future(no_messages, timeout=60)
        stub = health_pb2_grpc.HealthStub(channel)
        watch = stub.Watch(health_pb2.HealthCheckRequest(), timeout=60)
        assert (
            next(watch).status == health_pb2.HealthCheckResponse.SERVING
        )  # after the call on the same connection
        with socket.create_connection(("127.0.0.1", server.http_port), timeout=20) as client:
            client.sendall(HALF)
            assert post(server, a="1").status == 200  # accepted after it
            began = time.monotonic()
            server.send_signal(signal.SIGTERM)
            answer = b"".join(iter(lambda: client.recv(1 << 16), b""))
        assert server.wait_exit() == 0
        assert time.monotonic() - began < 10  # less than drain_timeout, which is 30
        assert call.code() is grpc.StatusCode.UNAVAILABLE
        assert call.details() == "the service is shutting down"
        assert next(watch).status == health_pb2.HealthCheckResponse.NOT_SERVING
        with pytest.raises(grpc.RpcError) as ended:
            next(watch)
        assert ended.value.code() is grpc.StatusCode.UNAVAILABLE
        log = server.log()
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 503 ")
    assert b"connection: close" in head
    assert json.loads(body)["code"] == GrpcCode.UNAVAILABLE
    assert "stopped: 1 admitted, 1 answered, 0 cancelled, 0 refused" in log


def test_stalled_requests_are_refused_at_once_while_admitted_ones_finish(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    with running(script(tmp_path, GATED)) as server:
        admitted = BackgroundCall(lambda: post(server, gate=str(gate)))
        until(lambda: "inside" in server.log(), "work")
        with socket.create_connection(("127.0.0.1", server.http_port), timeout=20) as client:
            client.sendall(HALF)
            assert server.is_ready()  # accepted after it
            server.send_signal(signal.SIGTERM)
            assert client.recv(1 << 16).startswith(b"HTTP/1.1 503 ")
        gate.touch()
        assert admitted.result().status == 200
        assert server.wait_exit() == 0


@pytest.mark.parametrize("seconds", [0, 3])
def test_a_stop_takes_no_longer_than_drain_timeout_while_an_op_hangs(
    seconds: int, tmp_path: Path
) -> None:
    with running(script(tmp_path, GATED, f'"drain_timeout": {seconds}')) as server:
        stuck = BackgroundCall(lambda: post(server, gate=str(tmp_path / "never")))
        until(lambda: "inside" in server.log(), "work")
        began = time.monotonic()
        assert server.stop(timeout=20) == 0
        took = time.monotonic() - began
        assert seconds * 0.8 < took < seconds + 3.0  # much less than the 5 s for a worker
        assert stuck.result().json["err_no"] == 3001
        assert ABANDONED in server.log()


IGNORES_CANCELLATION = """
async def process(self, feed_batch, typical_logid):
    import asyncio
    print("inside", flush=True)
    while True:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            continue
"""


IN_A_THREAD = """
async def process(self, feed_batch, typical_logid):
    import asyncio
    print("inside", flush=True)
    await asyncio.to_thread(threading.Event().wait)
"""


@pytest.mark.parametrize(
    ("hooks", "message"),
    [
        (IGNORES_CANCELLATION, "tasks ignore their cancellation, and are abandoned: op work"),
        (IN_A_THREAD, "calls in asyncio.to_thread did not return and are abandoned: 1"),
    ],
    ids=["goes on though it is cancelled", "its thread hangs"],
)
@pytest.mark.parametrize("more", ["", '"build_dag_each_worker": True, "worker_num": 1, '])
def test_a_hanging_coroutine_does_not_delay_the_exit(
    more: str, hooks: str, message: str, tmp_path: Path
) -> None:
    with running(script(tmp_path, hooks, f'{more}"drain_timeout": 0')) as server:
        stuck = BackgroundCall(lambda: post(server, a="1"))
        until(lambda: "inside" in server.log(), "work")
        began = time.monotonic()
        assert server.stop(timeout=20) == 0
        assert time.monotonic() - began < 5.0  # an engine process would be killed after 6 s
        assert stuck.result().json["err_no"] == 3001
        assert message in server.log()
        assert "Traceback" not in server.log()


def test_a_call_past_its_deadline_may_return_before_the_exit(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    with running(script(tmp_path, GATED, '"deadline": 0.2')) as server:
        assert post(server, gate=str(gate)).json["err_no"] == 6000
        server.send_signal(signal.SIGTERM)
        until(lambda: "stopped: 1 admitted" in server.log(), "the drain")
        gate.touch()
        assert server.wait_exit() == 0
        assert "abandoned" not in server.log()


def test_threads_that_block_the_interpreter_s_exit_are_logged(tmp_path: Path) -> None:
    before = """
import threading
threading.Thread(target=threading.Event().wait, name="idler").start()
threading.Thread(target=threading.Event().wait, name="no matter", daemon=True).start()
"""
    with running(script(tmp_path, before=before)) as server:
        server.send_signal(signal.SIGTERM)
        message = "threads of the script, which its end waits for: idler\n"
        until(lambda: message in server.log(), "a line")
