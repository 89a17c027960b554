"""A gRPC server on loopback with a given reply function, and a reply function that blocks."""

import queue
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest

from penstock.protocols import pb

TIMEOUT = 10.0  # seconds; the limit for an expected event on a busy machine

Answer = Callable[[bytes, grpc.ServicerContext], bytes]


class Service(grpc.GenericRpcHandler):
    """A gRPC server that passes each request's bytes to ``answer`` and records them."""

    def __init__(
        self,
        answer: Answer,
        credentials: grpc.ServerCredentials | None = None,
        address: str = "127.0.0.1:0",
    ) -> None:
        self.answer = answer
        self.received: queue.Queue[bytes] = queue.Queue()
        self.paths: set[str] = set()
        size = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
        self._server = grpc.server(ThreadPoolExecutor(8), handlers=(self,), options=size)
        self.host = address.rpartition(":")[0]
        if credentials is None:
            self.port = self._server.add_insecure_port(address)
        else:
            self.port = self._server.add_secure_port(address, credentials)
        self._server.start()

    @property
    def endpoint(self) -> str:
        return f"{self.host}:{self.port}"

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler:
        self.paths.add(details.method)

        def handle(request: bytes, context: grpc.ServicerContext) -> bytes:
            self.received.put(request)
            return self.answer(request, context)

        return grpc.unary_unary_rpc_method_handler(handle)

    def next_request(self) -> pb.Request:
        return pb.Request.FromString(self.received.get(timeout=TIMEOUT))

    def stop(self) -> None:
        assert self._server.stop(0).wait(TIMEOUT)


def good(request: bytes, context: grpc.ServicerContext) -> bytes:
    return pb.Response().SerializeToString()


def echo(request: bytes, context: grpc.ServicerContext) -> bytes:
    """Answer with the request's own pairs and tensors."""
    received_request = pb.Request.FromString(request)
    reply = pb.Response(
        key=received_request.key, value=received_request.value, tensors=received_request.tensors
    )
    return reply.SerializeToString()


class Stuck:
    """Replies only when released; events report a call's arrival and its cancellation."""

    def __init__(self) -> None:
        self.entered = threading.Event()
        self.abandoned = threading.Event()
        self.released = threading.Event()

    def __call__(self, request: bytes, context: grpc.ServicerContext) -> bytes:
        context.add_callback(self.abandoned.set)
        self.entered.set()
        self.released.wait(TIMEOUT)
        return good(request, context)


@pytest.fixture
def serve() -> Iterator[Callable[..., Service]]:
    running: list[Service] = []

    def start(answer: Answer = good, **options: Any) -> Service:
        running.append(Service(answer, **options))
        return running[-1]

    yield start
    for service in running:
        service.stop()


@pytest.fixture
def stuck() -> Iterator[Stuck]:
    answer = Stuck()
    yield answer
    answer.released.set()


@pytest.fixture
def dead_endpoint() -> Iterator[str]:
    """An address that refuses connections: its port is bound, but does not listen."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{bound.getsockname()[1]}"
