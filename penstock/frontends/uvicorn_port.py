"""HTTP through uvicorn: the ASGI side of the routes, and the limits uvicorn lacks.

Nothing above this file knows uvicorn. What it adds: time-outs for headers and bodies, a bound on
the size of headers, cancellation when the client goes away, 503 beyond the connection limit.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, TypeAlias

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from penstock.frontends.http import CLOSE, HttpLimits, HttpReply, HttpRoutes, failure

Scope: TypeAlias = dict[str, Any]
Message: TypeAlias = dict[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]

_LOOK = 0.025
"""Seconds between looks at exchanges that take long: who left is noticed within two of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UvicornLimits:
    """What this port enforces beside the routes' own limits.

    Attributes:
        max_connections: beyond it a connection gets 503 and is closed.
        header_timeout: seconds for a request's headers to arrive.
        keep_alive: seconds an idle connection is kept.
        max_header_bytes: of one request's head, request line aside.
        max_headers: how many fields a head may have.
        max_target_bytes: of the request line's target.
    """

    max_connections: int = 1024
    header_timeout: float = 10.0
    keep_alive: float = 5.0
    max_header_bytes: int = 16 << 10
    max_headers: int = 100
    max_target_bytes: int = 8 << 10


class ClientGone(Exception):
    """The client closed its connection before its request was complete."""


class _Exchange:
    """One request from its headers to its last byte of answer."""

    __slots__ = ("deadline", "reading", "receive", "task", "timed_out", "watcher")

    def __init__(self, receive: Receive, deadline: float) -> None:
        self.receive = receive
        self.task = asyncio.current_task()
        self.deadline = deadline
        self.reading = True
        self.timed_out = False
        self.watcher: asyncio.Task[None] | None = None


class AsgiApp:
    """The ASGI callable. A look every few milliseconds serves all exchanges that take long."""

    def __init__(self, routes: HttpRoutes, limits: HttpLimits) -> None:
        self._routes = routes
        self._limits = limits
        self.closing = False
        self._young: dict[_Exchange, None] = {}
        self._old: dict[_Exchange, None] = {}
        self._looking: asyncio.TimerHandle | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        exchange = _Exchange(receive, time.monotonic() + self._limits.body_timeout)
        self._young[exchange] = None
        if self._looking is None:
            self._looking = asyncio.get_running_loop().call_later(_LOOK, self._look)
        try:
            reply = await self._answer(exchange, scope)
        finally:
            if exchange in self._young:
                del self._young[exchange]
            else:
                self._old.pop(exchange, None)
            if exchange.watcher is not None:
                exchange.watcher.cancel()
        if reply is not None:
            await (_send(send, reply, CLOSE) if self.closing else _send(send, reply))

    async def _answer(self, exchange: _Exchange, scope: Scope) -> HttpReply | None:
        """The reply; None when nobody is there to read it."""
        done = False

        async def read() -> bytes | None:
            nonlocal done
            if done:
                return None
            message = await exchange.receive()
            if message["type"] == "http.disconnect":
                raise ClientGone
            done = not message.get("more_body", False)
            exchange.reading = not done
            body: bytes = message.get("body", b"")
            exchange.deadline += len(body) / self._limits.body_pace
            return body

        try:
            return await self._routes.respond(
                scope["method"],
                scope["raw_path"],
                scope["headers"],
                read,
                needs_host=scope["http_version"] == "1.1",
            )
        except ClientGone:
            return None
        except asyncio.CancelledError:
            task = exchange.task
            if exchange.timed_out and task is not None:
                task.uncancel()
                return failure(408, "the request took too long to arrive")
            if exchange.watcher is not None and exchange.watcher.done():
                return None
            raise

    def _look(self) -> None:
        """Exchanges that were there at the last look already take long: watch them."""
        now = time.monotonic()
        for exchange in self._old:
            task = exchange.task
            if task is None:
                continue
            if exchange.reading:
                if now > exchange.deadline and not exchange.timed_out:
                    exchange.timed_out = True
                    task.cancel()
            elif exchange.watcher is None:
                exchange.watcher = asyncio.get_running_loop().create_task(self._watch(exchange))
        self._old.update(self._young)
        self._young.clear()
        self._looking = (
            asyncio.get_running_loop().call_later(_LOOK, self._look) if self._old else None
        )

    @staticmethod
    async def _watch(exchange: _Exchange) -> None:
        """Cancel the exchange when its client goes away."""
        while (await exchange.receive())["type"] != "http.disconnect":
            pass
        if exchange.task is not None:
            exchange.task.cancel()


class _Protocol(HttpToolsProtocol):
    """uvicorn's connection, with bounds on heads and on the time they take."""

    limits: UvicornLimits
    head_since: float | None = None
    head_bytes = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self.head_since = time.monotonic()
        super().connection_made(transport)

    def data_received(self, data: bytes) -> None:
        if self.head_since is None and (self.cycle is None or self.cycle.response_complete):
            self.head_since = time.monotonic()
        self.head_bytes += len(data)
        super().data_received(data)
        if self.head_since is not None and self.head_bytes > self.limits.max_header_bytes:
            self.refuse(431, "the head of the request is too large")

    def on_headers_complete(self) -> None:
        self.head_since = None
        if len(self.url) > self.limits.max_target_bytes:
            self.app = _refusing(414, "the request's target is too long")
        elif len(self.headers) > self.limits.max_headers or (
            self.head_bytes > self.limits.max_header_bytes
            and sum(len(n) + len(v) + 4 for n, v in self.headers) > self.limits.max_header_bytes
        ):
            self.app = _refusing(431, "the head of the request is too large")
        self.head_bytes = 0
        super().on_headers_complete()

    def on_response_complete(self) -> None:
        self.head_bytes = 0
        super().on_response_complete()

    def send_400_response(self, msg: str) -> None:
        self.refuse(400, "the request is not HTTP")

    def _unsupported_upgrade_warning(self) -> None:
        """An upgrade is ignored, without a word in the log."""

    def refuse(self, status: int, text: str) -> None:
        """Answer outside of any exchange and close."""
        reply = failure(status, text)
        head = b"HTTP/1.1 %d %s\r\n" % (status, HTTPStatus(status).phrase.encode())
        fields = b"".join(b"%s: %s\r\n" % pair for pair in reply.headers)
        length = b"content-length: %d\r\n\r\n" % len(reply.body)
        self.transport.write(head + fields + length + reply.body)
        self.transport.close()


def _refusing(status: int, text: str) -> Any:
    """An ASGI callable that reads nothing and closes."""
    reply = failure(status, text)

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await _send(send, reply)

    return app


async def _send(send: Send, reply: HttpReply, *more: tuple[bytes, bytes]) -> None:
    head = [*reply.headers, (b"content-length", b"%d" % len(reply.body)), *more]
    await send({"type": "http.response.start", "status": reply.status, "headers": head})
    await send({"type": "http.response.body", "body": reply.body})


class UvicornPort:
    """The HTTP port.

    Args:
        routes: answer requests.
        limits: of connections and heads.
        body_limits: of bodies.
    """

    def __init__(self, routes: HttpRoutes, limits: UvicornLimits, body_limits: HttpLimits) -> None:
        self._limits = limits
        self._app = AsgiApp(routes, body_limits)
        config = uvicorn.Config(
            self._app,
            http=type("_LimitedProtocol", (_Protocol,), {"limits": limits}),
            ws="none",
            lifespan="off",
            interface="asgi3",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            limit_concurrency=limits.max_connections,
            timeout_keep_alive=max(1, round(limits.keep_alive)),
        )
        config.load()
        self._server = uvicorn.Server(config)
        self._server.lifespan = config.lifespan_class(config)
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self, listener: socket.socket) -> None:
        """Listen on a bound socket; returns when connections are accepted."""
        # The steps of uvicorn's own `serve`, which would take the signals as well.
        await self._server.startup([listener])
        self._tasks = [
            asyncio.create_task(self._server.main_loop(), name="http port"),
            asyncio.create_task(self._sweep(), name="http sweeper"),
        ]

    def drain(self) -> None:
        """Every answer from now on closes its connection."""
        self._app.closing = True

    async def stop(self, timeout: float) -> None:
        """Stop accepting, let open exchanges finish, close.

        Args:
            timeout: seconds after which open exchanges are cut off.
        """
        self._server.should_exit = True
        self._server.config.timeout_graceful_shutdown = max(1, round(timeout))
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._server.shutdown()

    async def _sweep(self) -> None:
        """End connections whose heads take too long."""
        while True:
            await asyncio.sleep(min(1.0, self._limits.header_timeout / 4))
            late = time.monotonic() - self._limits.header_timeout
            for connection in list(self._server.server_state.connections):
                if not isinstance(connection, _Protocol):
                    continue
                if connection.head_since is None or connection.head_since > late:
                    continue
                if connection.head_bytes:
                    connection.refuse(408, "the head of the request took too long to arrive")
                else:
                    connection.transport.close()
