"""One HTTP connection of uvicorn's, with the bounds and the strictness that it lacks.

Heads are bounded in bytes, fields and time, chunked bodies in the number of chunks and in what is
not body; an upgrade is ignored, whatever follows it; trailers never become headers; a refusal never
overtakes an earlier answer, and is not lost when the client still sends; a client that does not
read is cut off. Everything is counted as bytes pass; time is looked at by one sweep for all
connections. Source: RFC 9112.
"""

from __future__ import annotations

import asyncio
import fcntl
import sys
import termios
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, TypeAlias

import httptools
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from penstock.frontends.http import HttpReply, failure

Scope: TypeAlias = dict[str, Any]
Message: TypeAlias = dict[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]

_MAX_CHUNKS = 65_536
_CHUNK_BYTES = 20 + 256  # size in 16 digits, two line ends, an extension
_TRAILER_BYTES = 8 << 10
_LINGER = 2.0  # seconds; a guess that covers a round trip and a client's look at its input
_NOT_HTTP = "the request is not HTTP"


@dataclass(frozen=True, slots=True, kw_only=True)
class UvicornLimits:
    """What a connection enforces beside the routes' own limits.

    Attributes:
        max_connections: beyond it a connection gets 503 and is closed.
        header_timeout: seconds for a request's headers to arrive.
        keep_alive: seconds an idle connection is kept.
        write_timeout: seconds within which a client must read some of its answer.
        max_header_bytes: of one request's head, request line aside.
        max_field_bytes: of one field of it.
        max_headers: how many fields a head may have.
        max_target_bytes: of the request line's target.
    """

    max_connections: int = 1024
    header_timeout: float = 10.0
    keep_alive: float = 5.0
    write_timeout: float = 30.0
    max_header_bytes: int = 16 << 10
    max_field_bytes: int = 8 << 10
    max_headers: int = 100
    max_target_bytes: int = 8 << 10


class _Transport(asyncio.Transport):
    """The transport as uvicorn sees it: it ends without losing the last answer.

    Closing a socket with unread input makes the kernel send a reset, and the client may lose an
    answer that it has not read yet. So then only our half is closed, and input is thrown away until
    the client closes its half, or for two seconds.
    """

    def __init__(self, real: asyncio.Transport, connection: Connection) -> None:
        self.real = real
        self._connection = connection
        # Bound once: these are called for every request.
        self.write = real.write  # type: ignore[method-assign]
        self.get_extra_info = real.get_extra_info  # type: ignore[method-assign]
        self.pause_reading = real.pause_reading  # type: ignore[method-assign]
        self.resume_reading = real.resume_reading  # type: ignore[method-assign]
        self.is_closing = real.is_closing  # type: ignore[method-assign]

    def close(self) -> None:
        connection = self._connection
        if connection.leaving_since is None and connection.expects_input():
            connection.leaving_since = time.monotonic()
            connection.deaf = True
            self.is_closing = lambda: True  # type: ignore[method-assign]
            self.real.write_eof()
            connection.flow.resume_reading()
        else:
            self.real.close()


TASK = "penstock.task"
"""Where a request's scope holds the task that answers it."""


class Connection(HttpToolsProtocol):
    """See the module. ``limits`` is set by a subclass made for each port."""

    limits: UvicornLimits

    transport: _Transport
    deaf = False  # input is thrown away
    leaving_since: float | None = None
    head_since: float | None = None
    judged: Any = None  # the scope of the last request whose head is complete
    read_bytes = 0  # by the last read
    head_bytes = 0  # by reads after the one that ended the last request
    extra_bytes = 0  # since the head's end, body aside
    chunks = 0
    running: RequestResponseCycle | None = None
    stalled_since: float | None = None
    unsent = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Refuse what is over the limit; the connections that are there are left alone."""
        self.head_since = time.monotonic()
        super().connection_made(_Transport(transport, self))
        if len(self.connections) > self.limits.max_connections:
            self._write(failure(503, "too many connections"))
            self.deaf = True
            # Without lingering: whoever opens many connections must not keep them.
            transport.close()

    def data_received(self, data: bytes) -> None:
        """Feed the parser, and count."""
        self._unset_keepalive_if_required()
        if self.deaf:
            return
        if self.head_since is None and (self.cycle is None or self.cycle.response_complete):
            self.head_since = time.monotonic()
        self.read_bytes = len(data)
        self.head_bytes += self.read_bytes
        self.extra_bytes += self.read_bytes
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._ignore_upgrades(memoryview(data)[upgrade.args[0] :])
        except httptools.HttpParserError:
            self.refuse(400, _NOT_HTTP)
        if self.scope is not self.judged:
            if self.head_bytes > self.limits.max_header_bytes:
                self._refuse_head(in_target=not self.headers)
        elif self.extra_bytes > _TRAILER_BYTES + _CHUNK_BYTES * self.chunks:
            self.refuse(400, "the request has too much around its body")

    def on_headers_complete(self) -> None:
        """Judge the head's size, then hand it on; called by the parser, as all ``on_`` methods."""
        if self.parser.should_upgrade():
            if self.parser.get_method() == b"CONNECT":
                raise ValueError("CONNECT is for proxies")
            return
        self.judged = self.scope
        self.head_since = None
        self.extra_bytes = 0
        self.chunks = 0
        limits = self.limits
        if len(self.url) > limits.max_target_bytes:
            self._refuse_head(in_target=True)
        elif b"#" in self.url:
            self.app = refusing(failure(400, "the request's target has a fragment"))
        elif len(self.headers) > limits.max_headers:
            self._refuse_head()
        elif self.head_bytes + self.read_bytes > limits.max_field_bytes:
            sizes = [len(name) + len(value) + 4 for name, value in self.headers]
            if max(sizes, default=0) > limits.max_field_bytes or sum(sizes) > (
                limits.max_header_bytes
            ):
                self._refuse_head()
        super().on_headers_complete()
        # The scope keeps the headers; trailers, which the parser reports alike, go nowhere.
        self.headers = []

    def on_body(self, body: bytes) -> None:
        """Keep a piece; stop reading while too much of it waits."""
        self.extra_bytes -= len(body)
        cycle = self.cycle
        if cycle.response_complete:
            return
        cycle.body += body
        if len(cycle.body) > HIGH_WATER_LIMIT:
            self.flow.pause_reading()
        cycle.message_event.set()

    def on_chunk_header(self) -> None:
        """Called by the parser for each chunk."""
        self.chunks += 1
        if self.chunks > _MAX_CHUNKS:
            raise ValueError("too many chunks")

    def on_message_complete(self) -> None:
        """The body's end."""
        self.head_bytes = 0
        if self.scope is self.judged and not self.cycle.response_complete:
            self.cycle.more_body = False
            self.cycle.message_event.set()

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell the request that runs."""
        running = self.running
        if running is not None and not running.response_complete:
            # uvicorn tells the last request only, which may be one that waits behind this.
            running.disconnected = True
            running.message_event.set()
        super().connection_lost(exc)

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self.running = cycle
        task = self.loop.create_task(cycle.run_asgi(app))
        # For whoever must cancel it: asking asyncio for the current task is a system call.
        cycle.scope[TASK] = task  # type: ignore[literal-required]
        task.add_done_callback(self.tasks.discard)
        self.tasks.add(task)

    def _in_head(self) -> bool:
        """Whether a request has begun whose head is not complete: uvicorn begins a new scope."""
        return self.scope is not self.judged

    def expects_input(self) -> bool:
        """Whether the client may still be sending what nobody will read."""
        return self.deaf or (self.cycle is not None and self.cycle.more_body)

    def refuse(self, status: int, text: str) -> None:
        """Answer outside of any exchange, after those that are open, and close."""
        if self.deaf:
            return
        self.deaf = True
        reply = failure(status, text)
        cycle = self.cycle
        if cycle is None or cycle.response_complete:
            self._write(reply)
            self.transport.close()
        elif not cycle.more_body:
            # Complete requests are open. The last one's answer ends the connection.
            cycle.keep_alive = False
        elif self.pipeline:
            self.pipeline[0] = (cycle, refusing(reply))
        else:
            cycle.disconnected = True
            cycle.message_event.set()
            self._write(reply)
            self.transport.close()

    def _refuse_head(self, *, in_target: bool = False) -> None:
        status, text = 431, "the head of the request is too large"
        if in_target:
            status, text = 414, "the request's target is too long"
        if self._in_head():
            self.refuse(status, text)
        else:
            self.app = refusing(failure(status, text))

    def _write(self, reply: HttpReply) -> None:
        head = b"HTTP/1.1 %d %s\r\n" % (reply.status, HTTPStatus(reply.status).phrase.encode())
        fields = b"".join(b"%s: %s\r\n" % pair for pair in reply.headers)
        length = b"content-length: %d\r\n\r\n" % len(reply.body)
        self.transport.write(head + fields + length + reply.body)

    def _ignore_upgrades(self, rest: memoryview) -> None:
        """Parse each head again without its upgrade: the parser would not read the body."""
        try:
            while True:
                version = self.parser.get_http_version().encode()
                lines = [b"%s %s HTTP/%s" % (self.parser.get_method(), self.url, version)]
                lines += [b"%s: %s" % pair for pair in self.headers if pair[0] != b"upgrade"]
                self.parser = httptools.HttpRequestParser(self)
                self.parser.feed_data(b"\r\n".join(lines) + b"\r\n\r\n")
                try:
                    return self.parser.feed_data(rest)
                except httptools.HttpParserUpgrade as upgrade:
                    rest = rest[upgrade.args[0] :]
        except httptools.HttpParserError:
            self.refuse(400, _NOT_HTTP)

    def sweep(self, now: float) -> None:
        """End what takes too long."""
        limits = self.limits
        leaving = self.leaving_since
        if self._stalls(now) or (leaving is not None and now - leaving > _LINGER):
            self.transport.real.abort()
        elif self.head_since is not None and now - self.head_since > limits.header_timeout:
            if self._in_head():
                self.refuse(408, "the head of the request took too long to arrive")
            else:
                self.transport.real.close()

    def _stalls(self, now: float) -> bool:
        """Whether the client has read nothing of its answer for too long."""
        unsent = self.transport.real.get_write_buffer_size()
        if unsent:
            # The kernel takes more only in bursts, of a megabyte even; what it holds shrinks
            # steadily while the client reads.
            sent = self.transport.get_extra_info("socket")
            queue = fcntl.ioctl(sent.fileno(), termios.TIOCOUTQ, bytes(4))
            unsent += int.from_bytes(queue, sys.byteorder)
        if not unsent or unsent != self.unsent or self.stalled_since is None:
            self.unsent = unsent
            self.stalled_since = now if unsent else None
            return False
        return now - self.stalled_since > self.limits.write_timeout


def refusing(reply: HttpReply) -> Any:
    """An ASGI callable that reads nothing."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send_reply(send, reply)

    return app


async def send_reply(send: Send, reply: HttpReply, *more: tuple[bytes, bytes]) -> None:
    """Send a whole answer, with more headers."""
    head = [*reply.headers, (b"content-length", b"%d" % len(reply.body)), *more]
    await send({"type": "http.response.start", "status": reply.status, "headers": head})
    await send({"type": "http.response.body", "body": reply.body})
