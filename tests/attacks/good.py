"""The good client, in a process of its own: sequential calls with a short pause between them.

    python -m tests.attacks.good http|grpc PORT

A line with a number of seconds on its input begins a measurement on a new connection; it prints
``begun`` when the first call is answered, and the figures as JSON at the end.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import grpc

from tests.kit.http1 import Connection, pairs, request
from tests.kit.http2 import METHOD
from tests.kit.load import percentile
from tests.kit.pipeline import decode, encode

ROOT = Path(__file__).parents[2]
TIMEOUT = 20.0
PAUSE = 0.001
"""Seconds between an answer and the next call: the client itself must not load the machine."""


class Figures(NamedTuple):
    """The result of one measurement; times in milliseconds."""

    calls: int
    p99: float
    worst: float
    failures: list[str]


class Good:
    """A running good client; ``good`` starts it."""

    def __init__(self, kind: str, port: int) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.attacks.good", kind, str(port)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def begin(self, seconds: float) -> None:
        """Begin a measurement; returns when a new connection's first call was answered."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{seconds}\n")
        self._process.stdin.flush()
        assert self._line() == "begun"

    def figures(self) -> Figures:
        """The figures of the measurement since ``begin``; waits for its end."""
        return Figures(*json.loads(self._line()))

    def _line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def close(self) -> None:
        """End it."""
        self._process.kill()
        self._process.communicate()


@contextmanager
def good(kind: str, port: int) -> Iterator[Good]:
    """Start a good client, which waits for ``begin``."""
    client = Good(kind, port)
    try:
        yield client
    finally:
        client.close()


@contextmanager
def http(port: int) -> Iterator[Callable[[str], bool]]:
    """A function that makes one call over HTTP, on a persistent connection."""
    connection = Connection(port, patience=1e6)
    connection.socket.settimeout(TIMEOUT)

    def call(nonce: str) -> bool:
        connection.send(request(pairs(x=nonce), target=b"/echo/prediction"))
        reply = connection.reply()
        return bool(reply.status == 200 and reply.json()["value"] == [nonce])

    try:
        yield call
    finally:
        connection.socket.close()


@contextmanager
def by_grpc(port: int) -> Iterator[Callable[[str], bool]]:
    """A function that makes one call over gRPC."""
    options = [("grpc.use_local_subchannel_pool", 1)]
    with grpc.insecure_channel(f"127.0.0.1:{port}", options) as channel:
        stub = channel.unary_unary(METHOD)  # type: ignore[call-arg]

        def call(nonce: str) -> bool:
            message = stub(encode({"key": ["x"], "value": [nonce]}), timeout=TIMEOUT)
            return bool(decode(message)["value"] == [nonce])

        yield call


def measure(call: Callable[[str], bool], seconds: float, begun: Callable[[], None]) -> Figures:
    """Call until the time is over."""
    times: list[float] = []
    failures: list[str] = []
    assert call("0")
    begun()
    end = time.monotonic() + seconds
    while (now := time.monotonic()) < end and len(failures) < 5:
        try:
            if not call(str(now)):
                failures.append("another answer")
        except (OSError, AssertionError, grpc.RpcError) as error:
            failures.append(repr(error)[:300])
        times.append((time.monotonic() - now) * 1000)
        time.sleep(PAUSE)  # a constant pace
    return Figures(len(times), percentile(times, 99), max(times), failures)


if __name__ == "__main__":
    client = {"http": http, "grpc": by_grpc}[sys.argv[1]]
    for line in sys.stdin:
        with client(int(sys.argv[2])) as one:
            measured = measure(one, float(line), lambda: print("begun", flush=True))
        print(json.dumps(measured), flush=True)
