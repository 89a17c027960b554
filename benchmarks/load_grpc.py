"""gRPC load on loopback: C connections with S unary calls in flight on each.

A generator for measuring, not a client: HTTP/2 frames by hand, one header block that never changes
(literals without indexing, so the server's table stays empty), one write per turn of the loop.
Response header blocks are decoded by ``hpack`` and remembered for as long as they leave the
decoder's table alone, so that every call's ``grpc-status`` is checked at the price of a dictionary.
Sources: RFC 9113 (frames, flow control), RFC 7541 (header blocks), the gRPC HTTP/2 protocol.

    python -m benchmarks.load_grpc --port 9000 --body request.bin --connections 8 --streams 4
"""

from __future__ import annotations

import argparse
import asyncio
import struct
import sys
import time
from collections import deque
from collections.abc import Callable
from typing import Any, cast

import hpack
import uvloop

from benchmarks.load import (
    PATIENCE,
    Connection,
    CpuClock,
    Plan,
    Report,
    Tally,
    asked_of_all,
    plan_parser,
    run_closed_loop,
    told,
)
from penstock.protocols.pb import Response

INFERENCE = "/baidu.paddle_serving.pipeline_serving.PipelineService/inference"
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE = 0, 1, 3, 4, 6, 7, 8
PUSH_PROMISE, CONTINUATION = 5, 9
END_STREAM, ACK, END_HEADERS, PADDED, PRIORITY = 0x1, 0x1, 0x4, 0x8, 0x20
DEFAULT_WINDOW, DEFAULT_FRAME = 65_535, 16_384
OUR_STREAM_WINDOW = 16 << 20
OUR_WINDOW = 256 << 20
FIRST_SETTINGS = struct.pack("!HIHI", 0x2, 0, 0x4, OUR_STREAM_WINDOW)  # no push; our window
BLOCKS_KEPT = 64


class BadAnswer(Exception):
    """What arrived is not an answer that counts."""


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    """One HTTP/2 frame."""
    head = struct.pack("!HBBBI", len(payload) >> 8, len(payload) & 0xFF, kind, flags, stream)
    return head + payload


def _literal(text: bytes) -> bytes:
    assert len(text) < 127
    return bytes([len(text)]) + text


def header_block(port: int, path: str) -> bytes:
    """The request's headers, none of them entering the server's dynamic table."""
    return b"".join(
        [
            b"\x83\x86",  # :method POST, :scheme http
            b"\x04" + _literal(path.encode("ascii")),
            b"\x01" + _literal(b"127.0.0.1:%d" % port),
            b"\x00" + _literal(b"te") + _literal(b"trailers"),  # codespell:ignore te
            b"\x0f\x10" + _literal(b"application/grpc"),  # content-type
        ]
    )


def grpc_message(message: bytes) -> bytes:
    """A message with gRPC's five-byte prefix, not compressed."""
    return struct.pack("!BI", 0, len(message)) + message


def check_message(body: bytes, expected: bytes | None) -> None:
    """Raise BadAnswer unless ``body``, one prefixed message, is the right answer."""
    if expected is not None:
        if body != expected:
            raise BadAnswer(f"message {body[:200]!r} is not the expected {expected[:200]!r}")
        return
    if body[:5] != struct.pack("!BI", 0, len(body) - 5):
        raise BadAnswer(f"{len(body)} bytes are not one uncompressed message")
    answer = Response.FromString(body[5:])
    if answer.err_no != 0:
        raise BadAnswer(f"err_no {answer.err_no}: {answer.err_msg!r}")


class HeaderMemory:
    """Decodes response header blocks, each distinct one only once while the table stands still."""

    def __init__(self) -> None:
        self._decoder = hpack.Decoder()
        self._decoder.max_allowed_table_size = 4096
        self._known: dict[bytes, dict[str, str]] = {}

    def decode(self, block: bytes) -> dict[str, str]:
        """The block's fields. Every block of a connection must pass through here, in order."""
        fields = self._known.get(block)
        if fields is not None:
            return fields
        before = self._state()
        fields = {str(name): str(value) for name, value in self._decoder.decode(block)}
        if self._state() != before:
            self._known.clear()
        elif len(self._known) < BLOCKS_KEPT:
            self._known[block] = fields
        return fields

    def _state(self) -> tuple[int, int, int]:
        table = self._decoder.header_table
        entries = table.dynamic_entries
        # A new entry always comes first, and evicts from the end; the newest one stays referenced
        # by the table itself, so its identity is not reused while it counts.
        return (id(entries[0]) if entries else 0, len(entries), table.maxsize)


class Call:
    """One unary call in flight."""

    __slots__ = ("left", "pieces", "sent_ns", "size", "window")

    def __init__(self, sent_ns: int, window: int) -> None:
        self.sent_ns = sent_ns
        self.window = window
        self.left = 0
        self.pieces: list[bytes] = []
        self.size = 0


class GrpcConnection(asyncio.Protocol):
    """One HTTP/2 connection with ``streams`` calls in flight."""

    def __init__(
        self, block: bytes, message: bytes, expected: bytes | None, streams: int, tally: Tally
    ) -> None:
        self.finished = asyncio.get_running_loop().create_future()
        self.greeted = asyncio.get_running_loop().create_future()
        """Done when the server's settings are known, which the first calls must obey."""
        self._block = block
        self._message = message
        self._expected = expected
        self._streams = streams
        self._tally = tally
        self._transport: asyncio.Transport | None = None
        self._memory = HeaderMemory()
        self._buffer = b""
        self._calls: dict[int, Call] = {}
        self._waiting: deque[int] = deque()  # calls with a part of their message not sent yet
        self._next_stream = 1
        self._window = DEFAULT_WINDOW
        self._stream_window = DEFAULT_WINDOW
        self._max_frame = DEFAULT_FRAME
        self._consumed = 0
        self._out: list[bytes] = []
        self._on_frame: dict[int, Callable[[int, int, bytes], None]] = {
            DATA: self._data,
            HEADERS: self._headers,
            RST_STREAM: self._reset,
            SETTINGS: self._settings,
            PING: self._ping,
            GOAWAY: self._goaway,
            WINDOW_UPDATE: self._window_update,
            PUSH_PROMISE: self._unexpected,
            CONTINUATION: self._unexpected,
        }

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Greet the server."""
        self._transport = cast(asyncio.Transport, transport)
        grown = struct.pack("!I", OUR_WINDOW - DEFAULT_WINDOW)
        self._out += [PREFACE, frame(SETTINGS, 0, 0, FIRST_SETTINGS)]
        self._out.append(frame(WINDOW_UPDATE, 0, 0, grown))
        self._flush()

    def start(self) -> None:
        """Send the first calls."""
        for _ in range(self._streams):
            self._call()
        self._flush()

    def in_flight(self) -> int:
        """Calls without a complete answer."""
        return len(self._calls)

    def close(self) -> None:
        """End the connection."""
        for awaited in (self.greeted, self.finished):
            if not awaited.done():
                awaited.set_result(None)
        if self._transport is not None:
            self._transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """A connection that ends before we end it is a fault."""
        if not self.finished.done():
            self._fail(f"connection lost with {len(self._calls)} calls in flight: {exc!r}")

    def data_received(self, data: bytes) -> None:
        """Work through the complete frames, then write everything they asked for at once."""
        if self._buffer:
            data = self._buffer + data
        start, size = 0, len(data)
        try:
            while size - start >= 9:
                end = start + 9 + (data[start] << 16 | data[start + 1] << 8 | data[start + 2])
                if end > size:
                    break
                handle = self._on_frame.get(data[start + 3])
                if handle is not None:
                    stream = int.from_bytes(data[start + 5 : start + 9], "big")
                    handle(stream, data[start + 4], data[start + 9 : end])
                start = end
        except (BadAnswer, hpack.HPACKError, struct.error, ValueError) as error:
            self._fail(str(error) or repr(error))
            return
        self._buffer = data[start:]
        self._flush()
        if self._tally.stopping and not self._calls and not self.finished.done():
            self.finished.set_result(None)

    def _flush(self) -> None:
        if self._out and self._transport is not None:
            self._transport.write(b"".join(self._out))
            self._out.clear()

    def _fail(self, text: str) -> None:
        self._tally.fault(text)
        self._calls.clear()
        self.close()

    def _call(self) -> None:
        stream, self._next_stream = self._next_stream, self._next_stream + 2
        call = Call(time.perf_counter_ns(), self._stream_window)
        self._calls[stream] = call
        self._out.append(frame(HEADERS, END_HEADERS, stream, self._block))
        call.left = len(self._message)
        self._waiting.append(stream)
        self._send_waiting()

    def _send_waiting(self) -> None:
        """Send what the windows allow, calls in turn; one whose own window is shut steps aside."""
        for _ in range(len(self._waiting)):
            if self._window <= 0:
                return
            stream = self._waiting.popleft()
            call = self._calls.get(stream)
            if call is None:
                continue
            while call.left and (room := min(self._window, call.window, self._max_frame)) > 0:
                size = min(room, call.left)
                done = len(self._message) - call.left
                call.left -= size
                call.window -= size
                self._window -= size
                flags = 0 if call.left else END_STREAM
                self._out.append(frame(DATA, flags, stream, self._message[done : done + size]))
            if call.left:
                self._waiting.append(stream)

    def _answered(self, stream: int, call: Call) -> None:
        check_message(b"".join(call.pieces), self._expected)
        del self._calls[stream]
        self._tally.answered(time.perf_counter_ns() - call.sent_ns)
        if not self._tally.stopping:
            self._call()

    def _known(self, stream: int) -> Call:
        call = self._calls.get(stream)
        if call is None:
            raise BadAnswer(f"a frame for stream {stream}, which is not open")
        return call

    def _data(self, stream: int, flags: int, payload: bytes) -> None:
        if flags & PADDED:
            raise BadAnswer("padded DATA, which no server measured here sends")
        if flags & END_STREAM:
            raise BadAnswer("the call ended without trailers")
        call = self._known(stream)
        call.pieces.append(payload)
        call.size += len(payload)
        self._consumed += len(payload)
        if call.size > OUR_STREAM_WINDOW // 2:
            raise BadAnswer("an answer larger than half the stream's window")
        if self._consumed > OUR_WINDOW // 2:
            update = struct.pack("!I", self._consumed)
            self._out.append(frame(WINDOW_UPDATE, 0, 0, update))
            self._consumed = 0

    def _headers(self, stream: int, flags: int, payload: bytes) -> None:
        if flags & (PADDED | PRIORITY) or not flags & END_HEADERS:
            raise BadAnswer("a header block in a form that no server measured here sends")
        fields = self._memory.decode(payload)
        if fields.get(":status", "200") != "200":
            raise BadAnswer(f"HTTP status {fields[':status']}")
        call = self._known(stream)
        if not flags & END_STREAM:
            return
        if fields.get("grpc-status") != "0":
            raise BadAnswer(
                f"grpc-status {fields.get('grpc-status')}: {fields.get('grpc-message')}"
            )
        self._answered(stream, call)

    def _reset(self, stream: int, flags: int, payload: bytes) -> None:
        raise BadAnswer(f"stream {stream} reset with code {int.from_bytes(payload, 'big')}")

    def _settings(self, stream: int, flags: int, payload: bytes) -> None:
        if flags & ACK:
            return
        for number, value in struct.iter_unpack("!HI", payload):
            if number == 0x4:
                for call in self._calls.values():
                    call.window += value - self._stream_window
                self._stream_window = value
            elif number == 0x5:
                self._max_frame = value
        self._out.append(frame(SETTINGS, ACK, 0, b""))
        if not self.greeted.done():
            self.greeted.set_result(None)
        self._send_waiting()

    def _ping(self, stream: int, flags: int, payload: bytes) -> None:
        if not flags & ACK:
            self._out.append(frame(PING, ACK, 0, payload))

    def _goaway(self, stream: int, flags: int, payload: bytes) -> None:
        raise BadAnswer(f"GOAWAY with code {int.from_bytes(payload[4:8], 'big')}: {payload[8:]!r}")

    def _window_update(self, stream: int, flags: int, payload: bytes) -> None:
        size = int.from_bytes(payload, "big")
        if stream == 0:
            self._window += size
        elif (call := self._calls.get(stream)) is not None:
            call.window += size
        self._send_waiting()

    def _unexpected(self, stream: int, flags: int, payload: bytes) -> None:
        raise BadAnswer("a PUSH_PROMISE or CONTINUATION, which no server measured here sends")


async def load_grpc(
    *,
    port: int,
    message: bytes,
    expected: bytes | None,
    connections: int,
    streams: int,
    plan: Plan,
    path: str = INFERENCE,
    patience: float = PATIENCE,
) -> Report:
    """Run the closed loop against a server on 127.0.0.1; messages come without gRPC's prefix."""
    loop = asyncio.get_running_loop()
    tally = Tally(plan.count, CpuClock(plan.server_pid))
    block = header_block(port, path)
    framed = grpc_message(message)
    right = grpc_message(expected) if expected is not None else None
    opened: list[Connection] = []
    for _ in range(connections):
        _, connection = await loop.create_connection(
            lambda: GrpcConnection(block, framed, right, streams, tally), "127.0.0.1", port
        )
        await asyncio.wait_for(connection.greeted, patience)
        opened.append(connection)
    return await run_closed_loop(opened, tally, plan, patience)


def arguments_of(module: str) -> argparse.Namespace:
    """The options that this process was started with, as ``module``."""
    parser = plan_parser(module)
    parser.add_argument("--streams", type=int, default=1, help="calls in flight per connection")
    return parser.parse_args()


def asked(arguments: argparse.Namespace) -> dict[str, Any]:
    """What they ask of ``load_grpc``, or of whatever takes its place."""
    message = arguments.body.read_bytes()
    return {**asked_of_all(arguments), "message": message, "streams": arguments.streams}


def main() -> int:
    """Exit status 0 means that every answer was right."""
    return told(uvloop.run(load_grpc(**asked(arguments_of("benchmarks.load_grpc")))))


if __name__ == "__main__":
    sys.exit(main())
