"""HTTP/1.1 load on loopback: N connections, one request in flight on each.

A generator for measuring, not a client: it reads only what such a server sends (a status line, a
Content-Length, a body). A response head is parsed once and remembered, because a server's heads
differ only by their date, once a second.

    python -m benchmarks.load_http --port 8000 --path /echo --body request.json --connections 32
"""

from __future__ import annotations

import argparse
import asyncio
import re
import sys
import time
from typing import Any, cast

import orjson
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

HEADS_KEPT = 256
_LENGTH = re.compile(rb"\r\ncontent-length:[ \t]*(\d+)[ \t]*\r\n", re.IGNORECASE)


class BadResponse(Exception):
    """The response is not the one that counts as an answer."""


def request_bytes(port: int, path: str, body: bytes) -> bytes:
    """The whole request, as it goes over the wire each time."""
    head = (
        f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode("ascii") + body


def length_of(head: bytes) -> int:
    """Bytes of the body that follow ``head`` (which ends with its empty line).

    Raises:
        BadResponse: any status but 200, or no Content-Length.
    """
    if not head.startswith(b"HTTP/1.1 200 "):
        status_line = head.split(b"\r\n", 1)[0]
        raise BadResponse(f"status line {status_line!r}")
    found = _LENGTH.search(head)
    if found is None:
        raise BadResponse("no Content-Length")
    return int(found[1])


def check_body(body: bytes, expected: bytes | None) -> None:
    """Raise BadResponse unless ``body`` is the right answer."""
    if expected is None:
        answer = orjson.loads(body)
        if answer.get("err_no") != 0:
            raise BadResponse(f"err_no {answer.get('err_no')!r}: {answer.get('err_msg')!r}")
    elif body != expected:
        raise BadResponse(f"body {body[:200]!r} is not the expected {expected[:200]!r}")


class HttpConnection(asyncio.Protocol):
    """One connection with one request in flight."""

    def __init__(
        self, request: bytes, expected: bytes | None, heads: dict[bytes, int], tally: Tally
    ) -> None:
        self.finished = asyncio.get_running_loop().create_future()
        self._request = request
        self._expected = expected
        self._heads = heads
        self._tally = tally
        self._transport: asyncio.Transport | None = None
        self._buffer = b""
        self._sent_ns = 0
        self._waiting = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport; ``start`` sends."""
        self._transport = cast(asyncio.Transport, transport)

    def start(self) -> None:
        """Send the first request."""
        self._send()

    def in_flight(self) -> int:
        """1 while an answer is owed."""
        return int(self._waiting)

    def close(self) -> None:
        """End the connection."""
        self._finish()
        if self._transport is not None:
            self._transport.close()

    def data_received(self, data: bytes) -> None:
        """Count an answer when it is complete, then send the next request."""
        if self._buffer:
            data = self._buffer + data
        end = data.find(b"\r\n\r\n") + 4
        if end == 3:
            self._buffer = data
            return
        head = data[:end]
        try:
            length = self._heads.get(head)
            if length is None:
                length = length_of(head)
                if len(self._heads) >= HEADS_KEPT:
                    self._heads.clear()
                self._heads[head] = length
            if len(data) < end + length:
                self._buffer = data
                return
            if not self._waiting or len(data) > end + length:
                raise BadResponse("more bytes than one response")
            check_body(data[end:], self._expected)
        except (BadResponse, ValueError) as error:
            self._fail(str(error))
            return
        self._buffer = b""
        self._waiting = False
        self._tally.answered(time.perf_counter_ns() - self._sent_ns)
        if self._tally.stopping:
            self._finish()
        else:
            self._send()

    def connection_lost(self, exc: Exception | None) -> None:
        """A connection that ends before we end it is a fault."""
        if not self.finished.done():
            self._fail(f"connection lost: {exc!r}")

    def _send(self) -> None:
        assert self._transport is not None
        self._waiting = True
        self._sent_ns = time.perf_counter_ns()
        self._transport.write(self._request)

    def _fail(self, text: str) -> None:
        self._waiting = False
        self._tally.fault(text)
        self.close()

    def _finish(self) -> None:
        if not self.finished.done():
            self.finished.set_result(None)


async def load_http(
    *,
    port: int,
    path: str,
    body: bytes,
    expected: bytes | None,
    connections: int,
    plan: Plan,
    patience: float = PATIENCE,
) -> Report:
    """Run the closed loop against a server on 127.0.0.1."""
    loop = asyncio.get_running_loop()
    tally = Tally(plan.count, CpuClock(plan.server_pid))
    heads: dict[bytes, int] = {}
    request = request_bytes(port, path, body)
    opened: list[Connection] = []
    for _ in range(connections):
        _, connection = await loop.create_connection(
            lambda: HttpConnection(request, expected, heads, tally), "127.0.0.1", port
        )
        opened.append(connection)
    return await run_closed_loop(opened, tally, plan, patience)


def parser_of(module: str) -> argparse.ArgumentParser:
    """The options of this generator, run as ``module``."""
    parser = plan_parser(module)
    parser.add_argument("--path", required=True)
    return parser


def asked(arguments: argparse.Namespace) -> dict[str, Any]:
    """What they ask of ``load_http``, or of whatever takes its place."""
    body = arguments.body.read_bytes()
    return {**asked_of_all(arguments), "path": arguments.path, "body": body}


def main() -> int:
    """Exit status 0 means that every answer was right."""
    return told(uvloop.run(load_http(**asked(parser_of("benchmarks.load_http").parse_args()))))


if __name__ == "__main__":
    sys.exit(main())
