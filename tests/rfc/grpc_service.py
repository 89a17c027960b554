"""A real door with small gRPC methods behind it, and connections to it by hand."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from penstock.api.calls import Grpc, GrpcCall
from penstock.api.health import Health, HealthApplication
from penstock.api.paddle import PaddleApplication
from penstock.api.pipeline import Port
from penstock.api.router import Router
from penstock.door.door import DoorLimits
from penstock.errors import RequestError
from penstock.protocols import paddle
from penstock.protocols.grpc import GrpcError, encode_metadata
from penstock.protocols.status import GrpcCode
from tests.door.site import Site
from tests.kit.http1 import TIMEOUT
from tests.kit.http2 import Link

MOST = 1 << 16
TEXT = "50 % of ä\n\x7f~"
BEFORE = encode_metadata([("x-a", "1"), ("x-b-bin", b"\xfb\xff\xbf\0")])
BEHIND = encode_metadata([("x-c", "some ~ text"), ("x-c", "again")])


class Nothing:
    """The pipeline behind the HTTP routes: there is none."""

    names = ()

    def start(self, call: paddle.Call, timeout: float | None, port: Port, context: Any) -> Any:
        raise AssertionError("no case asks the pipeline")

    def as_reply(self, error: RequestError) -> None:
        return None


class Service:
    """The methods of ``/a.B/``; what its callers did is written down."""

    def __init__(self) -> None:
        self.health = Health()
        nothing: Any = Nothing()
        self.heads: list[tuple[tuple[bytes, bytes], ...]] = []
        self.timeouts: list[float | None] = []
        self.entered = threading.Semaphore(0)
        self.cancelled = threading.Semaphore(0)
        routes = [
            Grpc("/a.B/Echo", unary=self._echo),
            Grpc("/a.B/Echoes", stream=self._echoes),
            Grpc("/a.B/Fails", unary=self._fails),
            Grpc("/a.B/FailsLate", stream=self._fails_late),
            Grpc("/a.B/Sleeps", stream=self._sleeps),
            Grpc("/a.B/Answers", stream=self._answers),
            Grpc("/a.B/Tells", stream=self._tells),
            Grpc("/a.B/TellsOnce", unary=self._tells_once),
            *HealthApplication(self.health, ["a.B"]).routes(),
            *PaddleApplication(nothing).routes(),
        ]
        self.grpc = self.frontend = Router(routes, max_message_bytes=MOST)

    def _note(self, call: GrpcCall) -> None:
        self.heads.append(call.metadata)
        self.timeouts.append(call.timeout)

    def _echo(self, call: GrpcCall, message: bytes) -> None:
        self._note(call)
        call.reply(message)

    async def _echoes(self, call: GrpcCall) -> None:
        self._note(call)
        while (message := await call.read()) is not None:
            await call.write(message)

    def _fails(self, call: GrpcCall, message: bytes) -> None:
        call.fail(GrpcCode.FAILED_PRECONDITION, TEXT)

    async def _fails_late(self, call: GrpcCall) -> None:
        await call.write(b"some")
        raise GrpcError(GrpcCode.ABORTED, TEXT)

    async def _sleeps(self, call: GrpcCall) -> None:
        self._note(call)
        self.entered.release()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.cancelled.release()
            raise

    async def _answers(self, call: GrpcCall) -> None:
        """One message without reading any."""
        await call.write(b"early")

    async def _tells(self, call: GrpcCall) -> None:
        """Metadata before and behind a message."""
        call.start(BEFORE)
        await call.write(b"told")
        call.finish(BEHIND)

    def _tells_once(self, call: GrpcCall, message: bytes) -> None:
        call.start(BEFORE)
        call.reply(message, BEHIND)


class Served:
    """A door with the service behind it.

    Attributes:
        service: what is served.
        site: the door.
        link: a connection that has been greeted; its first stream is 1.
    """

    def __init__(self) -> None:
        self.service = Service()
        limits = DoorLimits(linger=0.1)
        self.site = Site(asyncio.new_event_loop, limits, application=self.service.frontend)
        self._links: list[socket.socket] = []
        self.link = self.connect()

    def connect(self) -> Link:
        """Another connection."""
        self._links.append(socket.create_connection(("127.0.0.1", self.site.port), TIMEOUT))
        link = Link(self._links[-1])
        link.greet()
        return link

    def call(self, function: Callable[[], object]) -> None:
        """Call something on the door's loop."""
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
