"""Where the time of a small gRPC request goes: CPU by layer, in one process and without sockets.

Eight connections of HTTP/2 that exist in memory only send four calls each, again and again. Behind
them stand, one after the other: an application that answers at once (what is counted is HTTP/2 and
the door), gRPC messages, the pipeline's own messages, and the whole service with one echo op. The
difference between two of them is what the second one adds. CPU time of the process is counted, the
driver's own included, in the first row.

    python -m benchmarks.layers
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import time
from collections.abc import Callable
from typing import Any

import hpack
import uvloop

from benchmarks.hop import chain
from penstock.api.frontend import Frontend
from penstock.api.grpc_call import GrpcCall
from penstock.api.grpc_pipeline import SERVICE, PipelineService
from penstock.api.grpc_service import GrpcService, Method
from penstock.api.pipeline import PipelineProtocol
from penstock.door.budget import ByteBudget
from penstock.door.exchange import Application, Exchange, Receiver
from penstock.door.http2_session import Http2Session
from penstock.door.limits import DoorLimits
from penstock.door.state import DoorState
from penstock.protocols import grpc, paddle
from penstock.protocols.pb import Request, Response

CONNECTIONS, CALLS = 8, 4
PATH = f"/{SERVICE}/inference"
TEXT = "The quick brown fox jumps over the lazy dog."
_MOST = 1 << 20
_HEAD = [
    (":method", "POST"),
    (":scheme", "http"),
    (":path", PATH),
    (":authority", "localhost"),
    ("content-type", "application/grpc"),
    ("te", "trailers"),
]


class _AtOnce:
    """Answers with what it was sent."""

    def begin(self, exchange: Exchange) -> Receiver:
        return self

    def data(self, exchange: Any, piece: bytes, ended: bool) -> None:
        exchange.reply(200, grpc.HEAD, piece, grpc.OK_TRAILERS)

    def late(self, exchange: Exchange) -> None:
        raise AssertionError("nothing is late")


def _echo(call: GrpcCall, message: bytes) -> None:
    call.reply(message)


def _echo_pairs(call: GrpcCall, message: bytes) -> None:
    feed = paddle.decode_message(message, ("echo",)).feed
    assert feed is not None, "one pair has its feed from the start"
    written = paddle.write_texts(feed, feed.values())
    assert written is not None, "there are texts only"
    call.reply(written)


def _grpc(method: Method) -> Frontend:
    return Frontend(GrpcService({PATH: method}, max_message_bytes=_MOST), _AtOnce())


def _service(executor: str) -> Frontend:
    loop = asyncio.get_running_loop()
    protocol = PipelineProtocol(chain(1, executor, loop))
    methods = PipelineService(protocol).methods()
    return Frontend(GrpcService(methods, max_message_bytes=_MOST), _AtOnce())


LAYERS: dict[str, Callable[[], Application]] = {
    "HTTP/2 and the door": _AtOnce,
    "gRPC messages": lambda: _grpc(Method(unary=_echo)),
    "the pipeline's messages": lambda: _grpc(Method(unary=_echo_pairs)),
    "engine and op, inline": lambda: _service("inline"),
}


class _Transport(asyncio.Transport):
    """Takes everything at once and keeps the last of it."""

    def __init__(self) -> None:
        super().__init__()
        self.last = b""

    def write(self, data: Any) -> None:
        self.last = bytes(data)

    def get_write_buffer_size(self) -> int:
        return 0

    def is_closing(self) -> bool:
        return False


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return (
        len(payload).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + payload
    )


class _Client:
    """One connection: sends calls, and sees whether the last one was answered rightly."""

    def __init__(self, shared: DoorState) -> None:
        self._transport = _Transport()
        self.session = Http2Session(shared, self._transport)
        encoder = hpack.Encoder()
        self._block = encoder.encode(_HEAD)
        self._again = encoder.encode(_HEAD)
        request = Request(name="echo", method="prediction", key=["x"], value=[TEXT])
        self._message = grpc.encode_message(request.SerializeToString())
        self._next = 1
        windows = _frame(8, 0, 0, (2**30).to_bytes(4, "big"))
        preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + _frame(4, 0, 0, b"") + _frame(4, 1, 0, b"")
        self.session.data_received(preface + windows)

    def send(self) -> None:
        """All heads, then all messages, as clients send who have several calls to make at once."""
        ids = range(self._next, self._next + 2 * CALLS, 2)
        self._next = ids.stop
        out = []
        for id in ids:
            out.append(_frame(1, 4, id, self._block))
            self._block = self._again
        out += [_frame(0, 1, id, self._message) for id in ids]
        self.session.data_received(b"".join(out))

    def check(self, layer: str) -> None:
        """Raises RuntimeError when the last answer is not the echo."""
        pairs = Response(key=["x"], value=[TEXT]).SerializeToString()
        if self._message not in self._transport.last and pairs not in self._transport.last:
            raise RuntimeError(f"{layer}: another answer: {self._transport.last!r}")


async def cpu_us_per_request(layer: str, seconds: float) -> float:
    """CPU microseconds of one request behind a layer's application.

    Raises:
        RuntimeError: an answer is not the echo.
    """
    shared = DoorState(LAYERS[layer](), DoorLimits(), ByteBudget(1 << 30))
    clients = [_Client(shared) for _ in range(CONNECTIONS)]

    async def load(until: float) -> int:
        turns = 0
        while time.perf_counter() < until:
            for client in clients:
                client.send()
            while any(client.session.core.streams for client in clients):
                await asyncio.sleep(0)
            await asyncio.sleep(0)
            turns += 1
        return turns * CONNECTIONS * CALLS

    await load(time.perf_counter() + seconds * 0.2)
    before = time.process_time()
    count = await load(time.perf_counter() + seconds)
    spent = time.process_time() - before
    for client in clients:
        client.check(layer)
    return spent / count * 1e6


def measure(seconds: float, rounds: int) -> dict[str, float]:
    """Each layer's CPU microseconds, all below it included: the least of the rounds.

    The least, because what disturbs a run only ever adds to it.
    """
    found: dict[str, list[float]] = {layer: [] for layer in LAYERS}
    for _ in range(rounds):
        for layer in LAYERS:
            found[layer].append(uvloop.run(cpu_us_per_request(layer, seconds)))
    return {layer: min(times) for layer, times in found.items()}


def main() -> int:
    """Print a line for each layer."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.layers")
    parser.add_argument("--seconds", type=float, default=0.5)
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    costs = measure(options.seconds, options.rounds)
    whole = list(costs.values())[-1]
    below = 0.0
    for layer, cost in costs.items():
        print(f"{layer:<26}{cost - below:6.1f} us{(cost - below) / whole:6.0%}")
        below = cost
    print(f"{'together':<26}{whole:6.1f} us")
    return 0


if __name__ == "__main__":
    sys.exit(main())
