"""Small servers on asyncio that answer correctly or wrongly, to test the load generators."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import hpack

Protocol = Callable[[], asyncio.Protocol]

RIGHT_BODY = b'{"err_no":0,"err_msg":"","key":["x"],"value":["1"],"tensors":[]}'


def http_response(body: bytes = RIGHT_BODY, status: str = "200 OK", date: int = 0) -> bytes:
    head = f"HTTP/1.1 {status}\r\ndate: {date}\r\ncontent-length: {len(body)}\r\n\r\n"
    return head.encode() + body


class FakeHttp(asyncio.Protocol):
    """Sends ``answers(n)`` to the n-th request of the connection; records every received line."""

    def __init__(self, answers: Callable[[int], bytes], lines: set[bytes] | None = None) -> None:
        self._answers = answers
        self.lines: set[bytes] = set() if lines is None else lines
        self._seen = 0
        self._buffer = b""

    def copy(self) -> FakeHttp:
        """A protocol for another connection, with the same recorded lines."""
        return FakeHttp(self._answers, self.lines)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        self.lines.update(data.split(b"\r\n"))
        while (end := self._buffer.find(b"\r\n\r\n") + 4) > 3:
            head = self._buffer[:end].lower()
            length = int(head.split(b"content-length:")[1].split(b"\r\n")[0])
            if len(self._buffer) < end + length:
                return
            self._buffer = self._buffer[end + length :]
            self._transport.write(self._answers(self._seen))
            self._seen += 1


class FakeGrpc(asyncio.Protocol):
    """A minimal HTTP/2 server: echoes each call's message, or has the fault ``misbehave``.

    Flow control: ``window`` bytes a stream at first, with updates as data arrives.
    """

    def __init__(self, misbehave: str = "", window: int = 65_535, max_frame: int = 16_384) -> None:
        self._misbehave = misbehave
        self._window = window
        self._max_frame = max_frame
        self._buffer = b""
        self._has_preface = False
        self._bodies: dict[int, bytes] = {}
        self._encoder = hpack.Encoder()
        self._received = {0: 65_535}
        self.calls = 0
        self.pings_acked = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        settings = struct.pack("!HIHI", 0x4, self._window, 0x5, self._max_frame)
        self._send(4, 0, 0, settings)
        self._send(6, 0, 0, b"pingpong")

    def _send(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        head = struct.pack("!I", len(payload))[1:] + struct.pack("!BBI", kind, flags, stream)
        self._transport.write(head + payload)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        if not self._has_preface:
            if len(self._buffer) < 24:
                return
            assert self._buffer.startswith(b"PRI * HTTP/2.0")
            self._buffer, self._has_preface = self._buffer[24:], True
        while len(self._buffer) >= 9:
            size = int.from_bytes(self._buffer[:3], "big")
            if len(self._buffer) < 9 + size:
                return
            kind, flags, stream = struct.unpack("!BBI", self._buffer[3:9])
            payload, self._buffer = self._buffer[9 : 9 + size], self._buffer[9 + size :]
            self._frame(kind, flags, stream, payload)

    def _frame(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        if kind == 6:
            assert flags & 1
            assert payload == b"pingpong"
            self.pings_acked += 1
        elif kind == 1:
            self._bodies[stream] = b""
            self._received[stream] = self._window
        elif kind == 0:
            self._data(flags, stream, payload)

    def _data(self, flags: int, stream: int, payload: bytes) -> None:
        assert len(payload) <= self._max_frame, "over SETTINGS_MAX_FRAME_SIZE"
        for window in (0, stream):
            self._received[window] -= len(payload)
            assert self._received[window] >= 0, "more than flow control allows"
        self._bodies[stream] += payload
        if flags & 1:
            self._answer(stream, self._bodies.pop(stream))
        for window in (0, stream):
            if payload and (window == 0 or not flags & 1):
                self._received[window] += len(payload)
                self._send(8, 0, window, struct.pack("!I", len(payload)))

    def _answer(self, stream: int, body: bytes) -> None:
        self.calls += 1
        fault = self._misbehave if self.calls > 5 else ""
        if fault == "drop":
            self._transport.close()
        elif fault == "reset":
            self._send(3, 0, stream, struct.pack("!I", 2))
        elif fault == "goaway":
            self._send(7, 0, 0, struct.pack("!II", 0, 11) + b"calm down")
        elif fault == "silence":
            pass
        elif fault == "http 503":
            self._headers(stream, 1, [(":status", "503")])
        elif fault == "status 14":
            trailers = [("grpc-status", "14"), ("grpc-message", "gone")]
            self._headers(stream, 1, [(":status", "200"), *trailers])
        else:
            self._headers(stream, 0, [(":status", "200"), ("content-type", "application/grpc")])
            if fault == "body":
                body = body[:-1] + b"?"
            half = len(body) // 2
            if fault != "no message":
                self._send(0, 0, stream, body[:half])
                self._send(0, 0, stream, body[half:])
            self._headers(stream, 1, [("grpc-status", "0"), ("grpc-message", "")])

    def _headers(self, stream: int, end: int, fields: list[tuple[str, str]]) -> None:
        self._send(1, 4 | end, stream, self._encoder.encode(fields))


@asynccontextmanager
async def serving(protocol: Protocol) -> AsyncIterator[int]:
    """Serve on a free port of loopback and yield it; the connections are closed at the end."""
    connections: list[Any] = []

    def connection() -> asyncio.Protocol:
        connections.append(protocol())
        return connections[-1]  # type: ignore[no-any-return]

    server = await asyncio.get_running_loop().create_server(connection, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for each in connections:
            each._transport.abort()
        await asyncio.sleep(0)  # one iteration of the loop, in which they close
        await server.wait_closed()
