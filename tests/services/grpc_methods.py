"""A real door with small gRPC methods, and hand-made connections to it."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from penstock.api.grpc import Grpc, GrpcCall
from penstock.api.health import Health, HealthApplication
from penstock.api.paddle import PaddleApplication
from penstock.api.router import Router
from penstock.door.door import DoorLimits
from penstock.protocols.grpc import GrpcError, encode_metadata
from penstock.protocols.status import GrpcCode
from tests.kit.held_protocol import HeldProtocol
from tests.kit.http1 import connect
from tests.kit.http2 import Link
from tests.services.door import Site

MOST = 1 << 16
TEXT = "50 % of ä\n\x7f~"
BEFORE = encode_metadata([("x-a", "1"), ("x-b-bin", b"\xfb\xff\xbf\0")])
AFTER = encode_metadata([("x-c", "some ~ text"), ("x-c", "again")])


class Service:
    """The methods of ``/a.B/``, which record their calls."""

    def __init__(self) -> None:
        self.health = Health()
        unused: Any = HeldProtocol()
        self.heads: list[tuple[tuple[bytes, bytes], ...]] = []
        self.timeouts: list[float | None] = []
        self.entered = threading.Semaphore(0)
        self.cancelled = threading.Semaphore(0)
        routes = [
            Grpc("/a.B/Echo", unary=self._echo),
            Grpc("/a.B/Echoes", stream=self._echo_stream),
            Grpc("/a.B/Fails", unary=self._fail),
            Grpc("/a.B/FailsLate", stream=self._fail_late),
            Grpc("/a.B/Sleeps", stream=self._sleep),
            Grpc("/a.B/Answers", stream=self._send_early),
            Grpc("/a.B/Tells", stream=self._send_metadata),
            Grpc("/a.B/TellsOnce", unary=self._reply_with_metadata),
            *HealthApplication(self.health, ["a.B"]).routes(),
            *PaddleApplication(unused).routes(),
        ]
        self.grpc = self.frontend = Router(routes, max_message_bytes=MOST)

    def _record(self, call: GrpcCall) -> None:
        self.heads.append(call.metadata)
        self.timeouts.append(call.timeout)

    def _echo(self, call: GrpcCall, message: bytes) -> None:
        self._record(call)
        call.reply(message)

    async def _echo_stream(self, call: GrpcCall) -> None:
        self._record(call)
        while (message := await call.read()) is not None:
            await call.write(message)

    def _fail(self, call: GrpcCall, message: bytes) -> None:
        call.fail(GrpcCode.FAILED_PRECONDITION, TEXT)

    async def _fail_late(self, call: GrpcCall) -> None:
        await call.write(b"some")
        raise GrpcError(GrpcCode.ABORTED, TEXT)

    async def _sleep(self, call: GrpcCall) -> None:
        self._record(call)
        self.entered.release()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.cancelled.release()
            raise

    async def _send_early(self, call: GrpcCall) -> None:
        """Sends one message without reading any."""
        await call.write(b"early")

    async def _send_metadata(self, call: GrpcCall) -> None:
        """Sends metadata before and after a message."""
        call.start(BEFORE)
        await call.write(b"told")
        call.finish(AFTER)

    def _reply_with_metadata(self, call: GrpcCall, message: bytes) -> None:
        call.start(BEFORE)
        call.reply(message, AFTER)


class Served:
    """A door with the service behind it.

    Attributes:
        service: the service.
        site: the door.
        link: a connection after its handshake; its first stream is 1.
    """

    def __init__(self) -> None:
        self.service = Service()
        limits = DoorLimits(linger=0.1)
        self.site = Site(asyncio.new_event_loop, limits, application=self.service.frontend)
        self._links: list[socket.socket] = []
        self.link = self.connect()

    def connect(self) -> Link:
        """Another connection."""
        self._links.append(connect(self.site.port))
        link = Link(self._links[-1])
        link.greet()
        return link

    def call(self, function: Callable[[], object]) -> None:
        """Calls a function on the door's loop."""
        self.site.call(function)

    def close(self) -> None:
        for link in self._links:
            link.close()
        self.call(self.service.grpc.end_streams)
        self.site.close()


@contextmanager
def served() -> Iterator[Served]:
    one = Served()
    try:
        yield one
    finally:
        one.close()
