"""Real servers on loopback: a well-behaved one of bytes, and one that says what it is told."""

import queue
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import h2.config
import h2.connection
import h2.events
import pytest

from penstock.protocols import pb

PATIENCE = 10.0  # seconds; what an event that must come may take on a busy machine

Answer = Callable[[bytes, grpc.ServicerContext], bytes]


class Service(grpc.GenericRpcHandler):
    """A gRPC server that hands each request's bytes to ``answer`` and remembers them."""

    def __init__(self, answer: Answer, credentials: grpc.ServerCredentials | None = None) -> None:
        self.answer = answer
        self.received: queue.Queue[bytes] = queue.Queue()
        self.paths: set[str] = set()
        size = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
        self._server = grpc.server(ThreadPoolExecutor(8), handlers=(self,), options=size)
        address = "127.0.0.1:0"
        if credentials is None:
            self.port = self._server.add_insecure_port(address)
        else:
            self.port = self._server.add_secure_port(address, credentials)
        self._server.start()

    @property
    def endpoint(self) -> str:
        return f"127.0.0.1:{self.port}"

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler:
        self.paths.add(details.method)

        def handle(request: bytes, context: grpc.ServicerContext) -> bytes:
            self.received.put(request)
            return self.answer(request, context)

        return grpc.unary_unary_rpc_method_handler(handle)

    def next_request(self) -> pb.Request:
        return pb.Request.FromString(self.received.get(timeout=PATIENCE))

    def stop(self) -> None:
        assert self._server.stop(0).wait(PATIENCE)


def good(request: bytes, context: grpc.ServicerContext) -> bytes:
    return pb.Response().SerializeToString()


def echo(request: bytes, context: grpc.ServicerContext) -> bytes:
    """Answer with the request's own pairs and tensors."""
    asked = pb.Request.FromString(request)
    reply = pb.Response(key=asked.key, value=asked.value, tensors=asked.tensors)
    return reply.SerializeToString()


class Stuck:
    """Answers only when released; tells when a call came and when its caller went away."""

    def __init__(self) -> None:
        self.entered = threading.Event()
        self.abandoned = threading.Event()
        self.released = threading.Event()

    def __call__(self, request: bytes, context: grpc.ServicerContext) -> bytes:
        context.add_callback(self.abandoned.set)
        self.entered.set()
        self.released.wait(PATIENCE)
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
    """An address that refuses: the port is taken, and nobody listens."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{taken.getsockname()[1]}"


Headers = list[tuple[str, str]]


class Liar:
    """Speaks HTTP/2 and answers every call with the same headers, body and trailers."""

    def __init__(self, headers: Headers, body: bytes, trailers: Headers) -> None:
        self._answer = (headers, body, trailers)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.settimeout(PATIENCE)
        self.endpoint = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        peer, _ = self._listener.accept()
        with peer:
            peer.settimeout(PATIENCE)
            http = h2.connection.H2Connection(
                h2.config.H2Configuration(client_side=False, validate_outbound_headers=False)
            )
            http.initiate_connection()
            peer.sendall(http.data_to_send())
            try:
                while data := peer.recv(65536):
                    for event in http.receive_data(data):
                        if isinstance(event, h2.events.StreamEnded):
                            self._lie(http, event.stream_id)
                    peer.sendall(http.data_to_send())
            except OSError:
                return  # the client left, as it may

    def _lie(self, http: h2.connection.H2Connection, stream: int) -> None:
        headers, body, trailers = self._answer
        http.send_headers(stream, headers)
        if body:
            http.send_data(stream, body)
        http.send_headers(stream, trailers, end_stream=True)

    def stop(self) -> None:
        self._listener.close()
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive()


@pytest.fixture
def lie() -> Iterator[Callable[[Headers, bytes, Headers], Liar]]:
    liars: list[Liar] = []

    def start(headers: Headers, body: bytes, trailers: Headers) -> Liar:
        liars.append(Liar(headers, body, trailers))
        return liars[-1]

    yield start
    for liar in liars:
        liar.stop()
