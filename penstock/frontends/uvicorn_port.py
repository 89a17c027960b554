"""HTTP through uvicorn: the ASGI side of the routes, and the port.

Nothing above this file knows uvicorn. What it adds: a time-out for bodies, cancellation when the
client goes away; ``uvicorn_connection`` has what concerns a connection.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import time

import uvicorn

from penstock.engine.budget import ByteBudget, Reservation
from penstock.frontends.http import CLOSE, HttpLimits, HttpRoutes, failure
from penstock.frontends.uvicorn_connection import (
    TASK,
    Connection,
    Receive,
    Scope,
    Send,
    UvicornLimits,
    send_reply,
)

__all__ = ["AsgiApp", "UvicornLimits", "UvicornPort"]

_log = logging.getLogger(__name__)

_LOOK = 0.025
"""Seconds between looks at exchanges that take long: who left is noticed within two of them."""


_LARGE = 64 << 10
"""Bytes of an answer that a transport takes without making its writer wait."""


class ClientGone(Exception):
    """The client closed its connection before its request was complete."""


class _Exchange:
    """One request from its headers to its last byte of answer."""

    __slots__ = ("deadline", "pace", "reading", "receive", "task", "timed_out", "watcher")

    def __init__(self, scope: Scope, receive: Receive, limits: HttpLimits) -> None:
        self.receive = receive
        self.task: asyncio.Task[None] = scope[TASK]
        self.deadline = time.monotonic() + limits.body_timeout
        self.pace = limits.body_pace
        self.reading = True
        self.timed_out = False
        self.watcher: asyncio.Task[None] | None = None

    @property
    def ended_by_us(self) -> bool:
        """Whether its task was cancelled because the sender was too slow, or had left."""
        return self.timed_out or (self.watcher is not None and self.watcher.done())

    async def read(self) -> bytes | None:
        """The next piece of the body; None at its end."""
        if not self.reading:
            return None
        message = await self.receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        body: bytes = message.get("body", b"")
        if message.get("more_body", False):
            self.deadline += len(body) / self.pace
        else:
            self.reading = False
        return body


class AsgiApp:
    """The ASGI callable. A look every few milliseconds serves all exchanges that take long."""

    def __init__(self, routes: HttpRoutes, limits: HttpLimits, budget: ByteBudget) -> None:
        self._routes = routes
        self._budget = budget
        self._limits = limits
        self.closing = False
        self._young: dict[_Exchange, None] = {}
        self._old: dict[_Exchange, None] = {}
        self._looking: asyncio.TimerHandle | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        held = Reservation(self._budget)
        try:
            await self._answer(scope, receive, send, held)
        finally:
            held.release()

    async def _answer(self, scope: Scope, receive: Receive, send: Send, held: Reservation) -> None:
        exchange = _Exchange(scope, receive, self._limits)
        self._young[exchange] = None
        if self._looking is None:
            self._looking = asyncio.get_running_loop().call_later(_LOOK, self._look)
        try:
            reply = await self._routes.respond(
                scope["method"],
                scope["raw_path"],
                scope["headers"],
                exchange.read,
                held,
                version=scope["http_version"],
            )
        except ClientGone:
            return
        except asyncio.CancelledError:
            if not exchange.ended_by_us:
                raise
            if not exchange.timed_out:
                return
            exchange.task.uncancel()
            reply = failure(408, "the request took too long to arrive")
        except Exception:  # noqa: BLE001 - a promise is broken; the caller gets no traceback
            _log.exception("a request failed inside penstock; please report this")
            reply = failure(500, "internal error")
        finally:
            self._young.pop(exchange, None)
            self._old.pop(exchange, None)
            if exchange.watcher is not None:
                exchange.watcher.cancel()
        # uvicorn's own receive knows whether the body is still coming, which nobody will read.
        ends = self.closing or receive.__self__.more_body  # type: ignore[attr-defined]
        if ends and CLOSE not in reply.headers:
            await send_reply(send, reply, CLOSE)
        else:
            await send_reply(send, reply)
        if len(reply.body) > _LARGE:
            # Until the client has read most of it, it counts as in flight.
            await receive.__self__.flow.drain()  # type: ignore[attr-defined]

    def _look(self) -> None:
        """Exchanges that were there at the last look already take long: watch them."""
        now = time.monotonic()
        for exchange in self._old:
            if exchange.reading:
                if now > exchange.deadline and not exchange.timed_out:
                    exchange.timed_out = True
                    exchange.task.cancel()
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
        exchange.task.cancel()


class UvicornPort:
    """The HTTP port.

    Args:
        routes: answer requests.
        limits: of connections and heads.
        body_limits: of bodies.
        budget: bytes in flight, shared with the gRPC port.
    """

    def __init__(
        self,
        routes: HttpRoutes,
        limits: UvicornLimits,
        body_limits: HttpLimits,
        budget: ByteBudget,
    ) -> None:
        self._limits = limits
        self._app = AsgiApp(routes, body_limits, budget)
        config = uvicorn.Config(
            self._app,
            http=type("_Connection", (Connection,), {"limits": limits}),
            ws="none",
            lifespan="off",
            interface="asgi3",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
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
        """End connections that take too long."""
        while True:
            await asyncio.sleep(min(1.0, self._limits.header_timeout / 4))
            now = time.monotonic()
            for connection in list(self._server.server_state.connections):
                if isinstance(connection, Connection):
                    connection.sweep(now)
