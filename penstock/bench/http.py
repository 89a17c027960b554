"""Requests over HTTP/1.1: each request in flight has a connection, which is reused.

Like those of real clients, each request has its own trace context and id; the context is not
sampled, so that collectors are not flooded. Sources: RFC 9112, W3C Trace Context.
"""

from __future__ import annotations

import asyncio
import os
import ssl
import time
from typing import Any, cast

import orjson

from penstock.bench.generator import Arrived, Attempt, Ended, Failure
from penstock.bench.pieces import has_content
from penstock.bench.responses import Response, ResponseReader
from penstock.bench.results import TIMEOUT
from penstock.bench.target import Target
from penstock.client.errors import CallFailed
from penstock.client.http_answer import BrokenAnswer
from penstock.client.piece_reader import PieceReader
from penstock.protocols.status import GrpcCode

_MOST_TEXT = 200
_BROKEN_OFF = "connection lost"
_KINDS = {GrpcCode.UNAVAILABLE: _BROKEN_OFF, GrpcCode.UNKNOWN: "error in the answer"}
"""Failures of answers in pieces, by their status."""


class HttpSender:
    """The connections to one service.

    Args:
        target: the service and its requests.
        timeout: seconds for an answer, including connecting.
        ended: called for every attempt.
        arrived: called for pieces, if the answers come in pieces.
    """

    def __init__(
        self, target: Target, timeout: float, ended: Ended, arrived: Arrived = lambda *_: None
    ) -> None:
        self.timeout = timeout
        self.ended = ended
        self.arrived = arrived
        self._kind = PiecesConnection if target.in_pieces else HttpConnection
        self.loop = asyncio.get_running_loop()
        self.idle: list[HttpConnection] = []
        self.connections: set[HttpConnection] = set()
        self._target = target
        self._tls = ssl.create_default_context(cafile=target.ca_file) if target.tls else None
        fields = (("host", target.authority), ("user-agent", "penstock-bench"), *target.headers)
        lines = [f"{target.method} {target.path} HTTP/1.1"]
        lines += [f"{name}: {value}" for name, value in fields]
        self._head = "".join(f"{line}\r\n" for line in lines).encode("latin-1")
        self._bodies = [
            b"%bcontent-length: %d\r\n\r\n%b"
            % (
                b"".join(b"%b: %b\r\n" % (name.encode(), value.encode()) for name, value in fields),
                len(content),
                content,
            )
            for content, fields in target.bodies
        ]
        self._run = os.urandom(8).hex()
        self._number = 0
        self._connecting: dict[asyncio.Task[None], Attempt] = {}

    def send(self, attempt: Attempt) -> None:
        """Send the next request on a free connection, or on a new one."""
        number = self._number
        self._number = number + 1
        request = b"%btraceparent: 00-%b%016x-%016x-00\r\nx-request-id: %b-%d\r\n%b" % (
            self._head,
            self._run.encode(),
            number,
            number + 1,
            self._run.encode(),
            number,
            self._bodies[number % len(self._bodies)],
        )
        if self.idle:
            self.idle.pop().send(attempt, request)
        else:
            task = self.loop.create_task(self._connect(attempt, request))
            self._connecting[task] = attempt
            task.add_done_callback(self._connecting.pop)

    async def close(self) -> None:
        """Disconnect; in-flight requests end."""
        connecting = dict(self._connecting)
        for task, attempt in connecting.items():
            task.cancel()
            self.ended(attempt, Failure(_BROKEN_OFF, reached=False))
        if connecting:
            await asyncio.wait(connecting)
        for connection in list(self.connections):
            connection.abort()

    async def _connect(self, attempt: Attempt, request: bytes) -> None:
        host = self._target.host
        name = host if self._tls is not None else None
        try:
            async with asyncio.timeout_at(self.loop.time() + self.timeout):
                _, made = await self.loop.create_connection(
                    lambda: self._kind(self),
                    host,
                    self._target.port,
                    ssl=self._tls,
                    server_hostname=name,
                )
        except TimeoutError:
            self.ended(attempt, Failure(TIMEOUT, "no connection", reached=False))
        except OSError as error:
            self.ended(attempt, Failure("cannot connect", str(error), reached=False))
        else:
            made.send(attempt, request)


class HttpConnection(asyncio.Protocol):
    """One connection, with one request at a time."""

    def __init__(self, owner: HttpSender) -> None:
        self._owner = owner
        self._reader = ResponseReader()
        self._attempt: Attempt | None = None
        self._timer: asyncio.TimerHandle | None = None

    def send(self, attempt: Attempt, request: bytes) -> None:
        """Send a request; none must be in flight."""
        self._attempt = attempt
        self._timer = self._owner.loop.call_later(self._owner.timeout, self._give_up)
        self._transport.write(request)

    def abort(self) -> None:
        """Disconnect at once; an in-flight request ends."""
        self._end(Failure(_BROKEN_OFF, reached=False))
        self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._owner.connections.add(self)

    def data_received(self, data: bytes) -> None:
        if self._attempt is None:
            self._transport.abort()  # no request is in flight
            return
        try:
            response = self._reader.receive(data)
        except BrokenAnswer as error:
            self._transport.abort()
            self._end(Failure("no HTTP answer", str(error)))
            return
        if response is not None:
            self._answered(response)

    def eof_received(self) -> None:
        response = self._reader.eof()
        if response is not None and self._attempt is not None:
            self._answered(response)

    def connection_lost(self, exc: Exception | None) -> None:
        self._owner.connections.discard(self)
        if self in self._owner.idle:
            self._owner.idle.remove(self)
        if self._attempt is not None:
            self._end(Failure(_BROKEN_OFF, str(exc or ""), reached=False))

    def _answered(self, response: Response) -> None:
        if response.reusable:
            self._owner.idle.append(self)
        else:
            self._transport.close()
        self._end(failure_of(response))

    def _give_up(self) -> None:
        self._transport.abort()
        self._end(Failure(TIMEOUT))

    def _end(self, failure: Failure | None) -> None:
        attempt, self._attempt = self._attempt, None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if attempt is not None:
            self._owner.ended(attempt, failure)


class PiecesConnection(HttpConnection):
    """A connection whose answers come in pieces."""

    _pieces: PieceReader

    def send(self, attempt: Attempt, request: bytes) -> None:
        """Send a request; none must be in flight."""
        self._pieces = PieceReader("")
        super().send(attempt, request)

    def data_received(self, data: bytes) -> None:
        attempt, reader = self._attempt, self._pieces
        if attempt is None:
            self._transport.abort()  # no request is in flight
            return
        now = time.monotonic()
        reader.receive(data)
        count = sum(map(has_content, reader.pieces))
        reader.pieces.clear()
        if count:
            self._owner.arrived(attempt, count, now)
        if reader.end is True:
            if reader.reusable:
                self._owner.idle.append(self)
            else:
                self._transport.close()
            self._end(None)
        elif reader.end is not None:
            self._transport.abort()
            self._end(_failure_of_pieces(reader, reader.end))

    def eof_received(self) -> None:
        if self._attempt is not None:
            self.data_received(b"")


def _failure_of_pieces(reader: PieceReader, failed: CallFailed) -> Failure:
    """The failure of an answer in pieces."""
    text = str(failed.args[1])[:_MOST_TEXT]
    status = reader.status
    if status is not None and not 200 <= status < 300:
        return Failure(f"HTTP {status}", text.removeprefix(f"HTTP {status}").removeprefix(": "))
    kind = _KINDS.get(failed.status, "no answer in pieces")
    return Failure(kind, text, reached=status is not None)


def failure_of(response: Response) -> Failure | None:
    """Return the failure of an answer; a pipeline's errors have status 200. None for a good one."""
    status, body = response.status, response.body
    if not 200 <= status < 300:
        return Failure(f"HTTP {status}", body[:_MOST_TEXT].decode("utf-8", "replace").strip())
    if body.startswith(b'{"err_no":') and not body.startswith(b'{"err_no":0,'):
        try:
            found: dict[str, Any] = orjson.loads(body)
        except orjson.JSONDecodeError:
            return Failure("no JSON", body[:_MOST_TEXT].decode("utf-8", "replace"))
        return Failure(f"err_no {found['err_no']}", str(found.get("err_msg", ""))[:_MOST_TEXT])
    return None
