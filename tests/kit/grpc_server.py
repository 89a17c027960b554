"""A scripted gRPC server, and the package's client connected to it."""

from __future__ import annotations

import queue
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from penstock.client.call import Call, Outcome
from penstock.client.channels import Channel
from penstock.client.endpoints import Endpoint
from penstock.client.errors import CallFailed
from penstock.protocols.status import GrpcCode
from tests.kit import frames as f
from tests.kit.frames import StreamContent, message
from tests.kit.http1 import TIMEOUT
from tests.kit.http2 import GRPC, Link

HEAD: tuple[f.Field, ...] = ((b":status", b"200"), GRPC)
OK: tuple[f.Field, ...] = ((b"grpc-status", b"0"),)


def answer(
    stream: int,
    body: bytes | None = None,
    trailers: tuple[f.Field, ...] = OK,
    head: tuple[f.Field, ...] = HEAD,
) -> bytes:
    """A head, a body and trailers."""
    return (
        f.headers(stream, f.block(head))
        + f.data(stream, message(b"good") if body is None else body)
        + f.headers(stream, f.block(trailers), end=True)
    )


def only(stream: int, *fields: f.Field) -> bytes:
    """An answer that consists of a head only."""
    return f.headers(stream, f.block(fields), end=True)


def status(code: int, *more: f.Field) -> tuple[f.Field, ...]:
    """The trailers with a call's status."""
    return ((b"grpc-status", b"%d" % code), *more)


@dataclass
class StartedCall:
    """A call made by the client."""

    call: Call
    outcomes: queue.Queue[Outcome]

    def outcome(self) -> Outcome:
        return self.outcomes.get(timeout=TIMEOUT)

    def reply(self) -> bytes:
        outcome = self.outcome()
        assert isinstance(outcome, bytes), outcome
        return outcome

    def failure(self) -> CallFailed:
        outcome = self.outcome()
        assert isinstance(outcome, CallFailed), outcome
        return outcome

    def code(self) -> GrpcCode:
        return self.failure().status


class ScriptedServer:
    """A listening server, and a client's channel to it.

    Attributes:
        channel: the client.
        link: the last accepted connection.
    """

    link: Link

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.settimeout(TIMEOUT)
        self._links: list[Link] = []
        port = self._listener.getsockname()[1]
        self.channel = Channel([Endpoint(host="127.0.0.1", port=port)], None)

    def start(self, body: bytes = b"ask", seconds: float | None = TIMEOUT) -> StartedCall:
        """Begin a call."""
        outcomes: queue.Queue[Outcome] = queue.Queue()
        deadline = None if seconds is None else time.monotonic() + seconds
        return StartedCall(self.channel.start(body, outcomes.put, deadline=deadline), outcomes)

    @property
    def endpoint(self) -> str:
        host, port = self._listener.getsockname()
        return f"{host}:{port}"

    def accept(self, *settings: tuple[int, int], greet: bool = True) -> Link:
        """Accept a connection and send the server's preface."""
        self.link = Link(self._listener.accept()[0], serves=True)
        self._links.append(self.link)
        if greet:
            self.link.greet(*settings)
        return self.link

    def has_no_new_connection(self) -> bool:
        """Whether no connection is waiting to be accepted."""
        self._listener.settimeout(0)
        try:
            self._links.append(Link(self._listener.accept()[0], serves=True))
        except BlockingIOError:
            return True
        finally:
            self._listener.settimeout(TIMEOUT)
        return False

    def request(self, stream: int = 1) -> StreamContent:
        """The complete request received on a stream."""
        return self.link.answer(stream)

    def first(self, body: bytes = b"ask", seconds: float | None = TIMEOUT) -> StartedCall:
        """The first call, on a new connection, completely received by the server."""
        started = self.start(body, seconds)
        self.accept()
        self.request()
        return started

    def call_answered_with(self, *parts: bytes, stream: int = 1) -> StartedCall:
        """A call answered with these frames; the first call opens the connection."""
        started = self.start()
        if stream == 1:
            self.accept()
        self.request(stream)
        self.link.send(*parts)
        return started

    def close(self) -> None:
        self.channel.close()
        for link in self._links:
            link.socket.close()
        self._listener.close()


@contextmanager
def scripted_server() -> Iterator[ScriptedServer]:
    one = ScriptedServer()
    try:
        yield one
    finally:
        one.close()
