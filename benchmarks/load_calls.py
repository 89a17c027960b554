"""gRPC load on loopback, cheaper than any server: C connections with S unary calls in flight each.

The heads were encoded beforehand (``benchmarks.calls``); the calls answered in one read are
repeated in one write. Every message is compared with the expected one, every status is checked. A
connection whose encoded calls have all been made is closed, and a new one makes them again.
Sources: RFC 9113 (frames, flow control), RFC 7541 (header blocks), the gRPC HTTP/2 protocol.

    python -m benchmarks.load_calls --port 9000 --body request.bin --connections 8 --streams 4
"""

from __future__ import annotations

import asyncio
import struct
import sys
import time
from array import array
from collections import deque
from enum import Enum
from pathlib import Path
from typing import cast

import hpack
import uvloop

from benchmarks.calls import INFERENCE, Heads, heads_of
from benchmarks.load import SERVER_OPTIONS, CpuClock, Plan, Report, options_of, plan_of, report_of

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE = 0, 1, 3, 4, 6, 7, 8
END_STREAM, ACK = 0x1, 0x1
TABLE_SIZE, STREAM_WINDOW, FRAME_SIZE = 0x1, 0x4, 0x5
OUR_STREAM_WINDOW, OUR_WINDOW = 16 << 20, 256 << 20
LONGEST = 60.0
"""Seconds to wait for the answer that ends a measurement."""
CACHE = Path(__file__).parent / "results" / "heads"

frame_head = struct.Struct("!HBBBI").pack


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    """One HTTP/2 frame."""
    return frame_head(len(payload) >> 8, len(payload) & 0xFF, kind, flags, stream) + payload


def grpc_message(message: bytes) -> bytes:
    """A message with gRPC's five-byte prefix, not compressed."""
    return struct.pack("!BI", 0, len(message)) + message


OPENING = (
    PREFACE
    + frame(SETTINGS, 0, 0, struct.pack("!HIHI", 0x2, 0, STREAM_WINDOW, OUR_STREAM_WINDOW))
    + frame(WINDOW_UPDATE, 0, 0, struct.pack("!I", OUR_WINDOW - 65_535))
)


class BadAnswer(Exception):
    """The answer is wrong or an error."""


class Phase(Enum):
    """The phases of a run."""

    WARMING = "warming"
    OPENING = "opening"
    MEASURING = "measuring"
    CLOSING = "closing"
    CLOSED = "closed"


class Measurement:
    """Counts answers between the first one after the warm-up and the first one after the end.

    So it contains whole cycles of a server that answers in bursts.
    """

    def __init__(self, server: CpuClock) -> None:
        self.phase = Phase.WARMING
        self.latencies_ns = array("q")
        self.faults: list[str] = []
        self.closed = asyncio.Event()
        self.seconds = self.server_cpu_s = self.client_cpu_s = 0.0
        self._server = server

    def answered(self, latencies_ns: list[int]) -> None:
        """Count calls that ended in one read."""
        if self.phase is Phase.OPENING:
            self._read_clocks(-1)
            self.phase = Phase.MEASURING
        elif self.phase in (Phase.MEASURING, Phase.CLOSING):
            self.latencies_ns.extend(latencies_ns)
            if self.phase is Phase.CLOSING:
                self._close()

    def fault(self, text: str) -> None:
        """Record a fault; the run is invalid."""
        self.faults.append(text)
        if self.phase in (Phase.MEASURING, Phase.CLOSING):
            self._close()
        self.phase = Phase.CLOSED
        self.closed.set()

    def _close(self) -> None:
        self._read_clocks(+1)
        self.phase = Phase.CLOSED
        self.closed.set()

    def _read_clocks(self, sign: int) -> None:
        self.seconds += sign * time.perf_counter()
        self.server_cpu_s += sign * self._server.seconds()
        self.client_cpu_s += sign * time.process_time()

    def report(self) -> Report:
        """The report of the run."""
        return report_of(
            self.latencies_ns,
            seconds=self.seconds,
            server_cpu_s=self.server_cpu_s,
            client_cpu_s=self.client_cpu_s,
            faults=self.faults,
        )


class Caller(asyncio.Protocol):
    """One connection, with ``streams`` calls in flight.

    ``messages`` are sent in turn, with their prefixes; ``expected`` is the only right answer, or
    None where any answer without an error is right.
    """

    def __init__(
        self,
        heads: Heads,
        messages: list[bytes],
        expected: bytes | None,
        streams: int,
        measurement: Measurement,
    ) -> None:
        self._heads = heads
        self._messages = messages
        self._expected = expected
        self._streams = streams
        self._measurement = measurement
        self._sent_ns: dict[int, int] = {}
        self._parts: dict[int, bytes] = {}
        self._right: set[int] = set()
        self._waiting: deque[tuple[int, memoryview]] = deque()
        self._next = 0
        self._rest = b""
        self._window = self._stream_window = 65_535
        self._windows: dict[int, int] = {}
        self._frame_size = 16_384
        self._consumed = 0
        self._decoder = hpack.Decoder()
        self._good_blocks: set[bytes] = set()
        self.used_up = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send the preface; the first calls follow the server's settings."""
        self._transport = cast(asyncio.Transport, transport)
        self._transport.write(OPENING)

    def connection_lost(self, error: Exception | None) -> None:
        """A connection lost before the end of the measurement is a fault."""
        if self._sent_ns and self._measurement.phase is not Phase.CLOSED:
            self._measurement.fault(f"connection lost: {error}")
        if not self.used_up.done():
            self.used_up.set_result(None)

    def data_received(self, data: bytes) -> None:
        """Check every answer, and make the same number of calls again."""
        try:
            self._read(self._rest + data if self._rest else data)
        except BadAnswer as error:
            self._measurement.fault(str(error))
            self._transport.close()

    def _read(self, data: bytes) -> None:
        at, size, now = 0, len(data), time.perf_counter_ns()
        latencies = []
        while size - at >= 9:
            end = at + 9 + (data[at] << 16 | data[at + 1] << 8 | data[at + 2])
            if end > size:
                break
            kind, flags = data[at + 3], data[at + 4]
            stream = data[at + 6] << 16 | data[at + 7] << 8 | data[at + 8]
            payload = data[at + 9 : end]
            at = end
            if kind == DATA:
                self._consumed += len(payload)
                if payload == self._expected:
                    self._right.add(stream)
                else:
                    self._parts[stream] = self._parts.get(stream, b"") + payload
            elif kind == HEADERS:
                if payload not in self._good_blocks:
                    self._judge_block(payload)
                if flags & END_STREAM:
                    if stream in self._right:
                        self._right.remove(stream)
                    else:
                        self._judge_parts(stream)
                    latencies.append(now - self._sent_ns.pop(stream))
            else:
                self._control(kind, flags, stream, payload)
        self._rest = data[at:]
        if latencies:
            self._measurement.answered(latencies)
            if self._measurement.phase is not Phase.CLOSED:
                self._call(len(latencies))
        if self._consumed > OUR_WINDOW // 2:
            update = struct.pack("!I", self._consumed)
            self._transport.write(frame(WINDOW_UPDATE, 0, 0, update))
            self._consumed = 0

    def _call(self, count: int) -> None:
        """Make ``count`` calls in one write."""
        first = self._next
        self._next = min(first + count, len(self._heads))
        out = []
        offsets, frames, now = self._heads.offsets, self._heads.frames, time.perf_counter_ns()
        for number in range(first, self._next):
            stream = 2 * number + 1
            self._sent_ns[stream] = now
            out.append(frames[offsets[number] : offsets[number + 1]])
            message = self._messages[number % len(self._messages)]
            size = len(message)
            if size <= self._window and size <= min(self._frame_size, self._stream_window):
                self._window -= size
                out.append(frame_head(size >> 8, size & 0xFF, DATA, END_STREAM, stream))
                out.append(message)
            else:
                self._windows[stream] = self._stream_window
                self._waiting.append((stream, memoryview(message)))
        self._transport.write(b"".join(out))
        if self._waiting:
            self._send_waiting()
        if not self._sent_ns and not self.used_up.done():
            self.used_up.set_result(None)

    def _send_waiting(self) -> None:
        out: list[bytes | memoryview] = []
        for _ in range(len(self._waiting)):
            stream, left = self._waiting.popleft()
            while left and (room := min(self._window, self._windows[stream])) > 0:
                piece, left = (
                    left[: min(room, self._frame_size)],
                    left[min(room, self._frame_size) :],
                )
                size = len(piece)
                self._window -= size
                self._windows[stream] -= size
                flags = 0 if left else END_STREAM
                out += (frame_head(size >> 8, size & 0xFF, DATA, flags, stream), piece)
            if left:
                self._waiting.append((stream, left))
            else:
                del self._windows[stream]
        self._transport.writelines(out)

    def _judge_block(self, block: bytes) -> None:
        """Decode and check a block; an equal one that does not change the table is right again."""
        entries = self._decoder.header_table.dynamic_entries
        before = (len(entries), entries[0] if entries else None)
        fields = {str(name): str(value) for name, value in self._decoder.decode(block)}
        if fields.get(":status", "200") != "200":
            raise BadAnswer(f"HTTP status {fields[':status']}")
        if fields.get("grpc-status", "0") != "0":
            raise BadAnswer(f"grpc-status {fields['grpc-status']}: {fields.get('grpc-message')}")
        if before == (len(entries), entries[0] if entries else None):
            self._good_blocks.add(block)
        else:
            self._good_blocks.clear()

    def _judge_parts(self, stream: int) -> None:
        message = self._parts.pop(stream, b"")
        if message == self._expected:
            return
        if self._expected is not None:
            raise BadAnswer(f"message {message[:200]!r} is not {self._expected[:200]!r}")
        # Field 1 of a Response is err_no, which is left out when it is 0.
        if len(message) < 6 or message[5] == 0x08:
            raise BadAnswer(f"an error: {message[:200]!r}")

    def _control(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        if kind == SETTINGS and not flags & ACK:
            self._settings(dict(struct.iter_unpack("!HI", payload)))
        elif kind == PING and not flags & ACK:
            self._transport.write(frame(PING, ACK, 0, payload))
        elif kind == WINDOW_UPDATE:
            size = int.from_bytes(payload, "big")
            if stream == 0:
                self._window += size
            elif stream in self._windows:
                self._windows[stream] += size
            self._send_waiting()
        elif kind == RST_STREAM:
            raise BadAnswer(f"stream {stream} reset with code {int.from_bytes(payload, 'big')}")
        elif kind == GOAWAY:
            raise BadAnswer(f"GOAWAY: {payload!r}")

    def _settings(self, found: dict[int, int]) -> None:
        if found.get(TABLE_SIZE, 4096) < 4096:
            raise BadAnswer("the heads were encoded for a table of 4,096 octets")
        wider = found.get(STREAM_WINDOW, self._stream_window) - self._stream_window
        self._stream_window += wider
        self._windows = {stream: room + wider for stream, room in self._windows.items()}
        self._frame_size = found.get(FRAME_SIZE, self._frame_size)
        self._transport.write(frame(SETTINGS, ACK, 0, b""))
        if not self._next:
            self._call(self._streams)

    def close(self) -> None:
        """End the connection."""
        self._transport.close()


async def load_calls(
    *,
    port: int,
    messages: list[bytes],
    expected: bytes | None,
    heads: list[Heads],
    streams: int,
    plan: Plan,
    longest: float = LONGEST,
) -> Report:
    """Load a server on 127.0.0.1, a connection for each of ``heads``.

    Messages and the expected one are without gRPC's prefix; each connection sends the messages in
    turn, starting at another one.
    """
    loop = asyncio.get_running_loop()
    measurement = Measurement(CpuClock(plan.server_pid))
    framed = [grpc_message(message) for message in messages]
    right = None if expected is None else grpc_message(expected)

    async def call_repeatedly(number: int) -> None:
        start = number * len(framed) // len(heads)
        turn = framed[start:] + framed[:start]
        while measurement.phase is not Phase.CLOSED:
            _, caller = await loop.create_connection(
                lambda: Caller(heads[number], turn, right, streams, measurement), "127.0.0.1", port
            )
            try:
                await caller.used_up
            finally:
                caller.close()

    callers = [asyncio.ensure_future(call_repeatedly(number)) for number in range(len(heads))]

    async def until_closed(seconds: float) -> None:
        waiter = asyncio.ensure_future(measurement.closed.wait())
        await asyncio.wait([waiter, *callers], timeout=seconds, return_when="FIRST_COMPLETED")
        waiter.cancel()

    await until_closed(plan.warmup_seconds)
    for phase, seconds in ((Phase.OPENING, plan.seconds), (Phase.CLOSING, longest)):
        if measurement.phase is not Phase.CLOSED:
            measurement.phase = phase
            await until_closed(seconds)
    if measurement.phase is not Phase.CLOSED:
        measurement.fault(f"no answer in {longest:g} s")
    for caller in callers:
        caller.cancel()
    for error in await asyncio.gather(*callers, return_exceptions=True):
        if isinstance(error, Exception):
            measurement.fault(f"{type(error).__name__}: {error}")
    return measurement.report()


def messages_of(path: Path) -> list[bytes]:
    """The content of a file, or of every file in a folder, by name."""
    if path.is_dir():
        return [file.read_bytes() for file in sorted(path.iterdir())]
    return [path.read_bytes()]


def main() -> int:
    """Exit status 0 means that every answer was right."""
    streams = {"type": int, "default": 1, "help": "calls in flight per connection"}
    method: dict[str, object] = {"default": INFERENCE, "help": "path of the method to call"}
    options = options_of(
        "benchmarks.load_calls", *SERVER_OPTIONS, ("--streams", streams), ("--method", method)
    )
    loading = load_calls(
        port=options.port,
        messages=messages_of(options.body),
        expected=options.expect.read_bytes() if options.expect is not None else None,
        heads=heads_of(options.heads, options.connections, CACHE, method=options.method),
        streams=options.streams,
        plan=plan_of(options),
    )
    return uvloop.run(loading).print()


if __name__ == "__main__":
    sys.exit(main())
