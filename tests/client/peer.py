"""A server on the test's own loop whose every move the test makes."""

from __future__ import annotations

import asyncio
import struct
from types import TracebackType
from typing import Self, cast

import h2.config
import h2.connection
import h2.errors
import h2.events
import h2.settings

from .conftest import PATIENCE

REPLY_HEAD = [(":status", "200"), ("content-type", "application/grpc")]


class Request:
    """One call as it arrived."""

    def __init__(self, line: PeerConnection, stream: int, headers: dict[str, str]) -> None:
        self.line = line
        self.stream = stream
        self.headers = headers
        self.body = b""

    def answer(self, message: bytes = b"good", status: str = "0") -> None:
        http = self.line.http
        http.send_headers(self.stream, REPLY_HEAD)
        http.send_data(self.stream, struct.pack(">BI", 0, len(message)) + message)
        http.send_headers(self.stream, [("grpc-status", status)], end_stream=True)
        self.line.flush()

    def reset(self, code: h2.errors.ErrorCodes) -> None:
        self.line.http.reset_stream(self.stream, code)
        self.line.flush()

    @property
    def message(self) -> bytes:
        return self.body[5:]


class PeerConnection(asyncio.Protocol):
    """One connection that a client made."""

    def __init__(self, peer: Peer) -> None:
        self.requests: asyncio.Queue[Request] = asyncio.Queue()
        self.events: list[h2.events.Event] = []
        self.lost = asyncio.Event()
        self.goodbye = asyncio.Event()
        self.resets: asyncio.Queue[h2.events.StreamReset] = asyncio.Queue()
        self.begun: asyncio.Queue[Request] = asyncio.Queue()
        self._peer = peer
        self._open: dict[int, Request] = {}
        self.deaf = False
        self.http = h2.connection.H2Connection(
            h2.config.H2Configuration(client_side=False, validate_outbound_headers=False)
        )

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self._peer.connections.put_nowait(self)
        if self._peer.greets:
            self.http.initiate_connection()
            self.http.update_settings(self._peer.settings)
            self.flush()

    def data_received(self, data: bytes) -> None:
        if self.deaf or not self._peer.greets:
            return
        for event in self.http.receive_data(data):
            self.events.append(event)
            if isinstance(event, h2.events.RequestReceived):
                headers = {bytes(k).decode(): bytes(v).decode() for k, v in event.headers or []}
                stream = event.stream_id
                self._open[stream] = Request(self, stream, headers)
                self.begun.put_nowait(self._open[stream])
            elif isinstance(event, h2.events.DataReceived):
                self._open[event.stream_id].body += event.data
                if self._peer.reads:
                    self.http.acknowledge_received_data(
                        event.flow_controlled_length, event.stream_id
                    )
            elif isinstance(event, h2.events.StreamEnded):
                self.requests.put_nowait(self._open.pop(event.stream_id))
            elif isinstance(event, h2.events.StreamReset):
                self.resets.put_nowait(event)
            elif isinstance(event, h2.events.ConnectionTerminated):
                self.goodbye.set()
        self.flush()

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost.set()

    def flush(self) -> None:
        self.transport.write(self.http.data_to_send())

    async def request(self) -> Request:
        return await asyncio.wait_for(self.requests.get(), PATIENCE)

    async def reset(self) -> tuple[int, int]:
        """The stream and the code of the next reset by the client."""
        event = await asyncio.wait_for(self.resets.get(), PATIENCE)
        return event.stream_id, int(event.error_code or 0)

    def go_away(self, last_stream: int) -> None:
        self.http.close_connection(last_stream_id=last_stream)
        self.flush()


class Peer:
    """Listens on loopback and hands out the connections that clients make."""

    def __init__(
        self, *, settings: dict[int, int] | None = None, greets: bool = True, reads: bool = True
    ) -> None:
        self.settings = settings or {}
        self.greets = greets
        self.reads = reads
        self.connections: asyncio.Queue[PeerConnection] = asyncio.Queue()

    async def __aenter__(self) -> Self:
        loop = asyncio.get_running_loop()
        self._made: list[PeerConnection] = []

        def make() -> PeerConnection:
            self._made.append(PeerConnection(self))
            return self._made[-1]

        self._server = await loop.create_server(make, "127.0.0.1", 0)
        self.port: int = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._server.close()
        for connection in self._made:
            connection.transport.abort()
        await self._server.wait_closed()

    @property
    def endpoint(self) -> str:
        return f"127.0.0.1:{self.port}"

    async def connection(self) -> PeerConnection:
        return await asyncio.wait_for(self.connections.get(), PATIENCE)
