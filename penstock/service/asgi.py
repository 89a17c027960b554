"""A service as an ASGI application: ``app.asgi`` runs under uvicorn, or mounts into FastAPI.

The engine starts with the server's lifespan; if the application is mounted into another one, which
does not forward the lifespan, with the first request. A mounted application sees the path below its
mount point.

An engine belongs to one event loop. Test clients may run each request on a loop of its own: such
requests are passed to an engine on a loop in a thread, so that models are opened once.
Source: the ASGI specification 3.0 (HTTP, lifespan).
"""

from __future__ import annotations

import asyncio
import atexit
import logging
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, MutableMapping
from contextlib import suppress
from time import monotonic
from typing import Any, Final, TypeAlias, TypeVar

from penstock.api.errors import error_body
from penstock.door.budget import ByteBudget
from penstock.door.exchange import WRITABLE, Exchange, Peer, Receiver
from penstock.errors import PenstockError
from penstock.protocols.heads import Headers, RequestHead, parse_length
from penstock.service.in_process import InProcessService

Scope: TypeAlias = Mapping[str, Any]
Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]

_T = TypeVar("_T")

_ENDING: Final = 10.0
"""Seconds for the end of a service with its process; a guess."""

_UNKNOWN: Final = "unknown"
"""The address of a client of which the server does not tell it."""

_log = logging.getLogger(__name__)


class AsgiApplication:
    """A service as an ASGI application.

    Args:
        make: creates the service; called once, at the start.
    """

    def __init__(self, make: Callable[[], InProcessService]) -> None:
        self._make = make
        self._started: asyncio.Task[InProcessService] | None = None
        self._elsewhere: _Elsewhere | None = None
        self._end: AsyncGenerator[None] | None = None

    def __repr__(self) -> str:
        return f"<AsgiApplication {'started' if self._started else 'not started'}>"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request, or the server's lifespan; see ASGI."""
        match scope["type"]:
            case "http":
                try:
                    if self._is_elsewhere():
                        await self._pass_on(scope, receive, send)
                        return
                    service = await self.start()
                except PenstockError as error:
                    _log.error("the service cannot start: %s", error)
                    await _refuse(send)
                    return
                await _answer(service, scope, receive, send)
            case "lifespan":
                await self._lifespan(receive, send)
            case other:
                raise RuntimeError(f"penstock serves HTTP, not {other}")

    async def start(self) -> InProcessService:
        """Start the service on this loop, once, and return it.

        Raises:
            StartupError: it cannot start.
        """
        started = self._started
        if started is None or started.get_loop() is not asyncio.get_running_loop():
            started = self._started = asyncio.create_task(self._start())
        return await asyncio.shield(started)

    def _is_elsewhere(self) -> bool:
        """Whether this loop's requests belong to an engine on another loop: not if it has one; else
        if there was one on another loop, or this is a thread's, which may be of one request.
        """
        if self._elsewhere is not None:
            return True
        if self._started is not None:
            return self._started.get_loop() is not asyncio.get_running_loop()
        return threading.current_thread() is not threading.main_thread()

    async def _pass_on(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request on the other loop.

        Raises:
            StartupError: the service cannot start.
        """
        elsewhere = self._elsewhere
        if elsewhere is None:
            elsewhere = self._elsewhere = _Elsewhere(AsgiApplication(self._make))
        await elsewhere.handle(scope, receive, send)

    async def stop(self) -> None:
        """Finish the admitted requests, and end the workers."""
        started, self._started = self._started, None
        if started is not None and not started.cancelled() and started.exception() is None:
            await started.result().stop()
            if self._end is not None:
                end, self._end = self._end, None
                await end.aclose()

    async def _start(self) -> InProcessService:
        service = self._make()
        await service.start()
        self._end = _at_the_end_of_the_loop(service)
        await anext(self._end)
        return service

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        while True:
            message = await receive()
            if message["type"] == "lifespan.startup":
                try:
                    await self.start()
                except Exception as error:
                    await send({"type": "lifespan.startup.failed", "message": str(error)})
                    raise
                await send({"type": "lifespan.startup.complete"})
            else:
                await self.stop()
                await send({"type": "lifespan.shutdown.complete"})
                return


async def _at_the_end_of_the_loop(service: InProcessService) -> AsyncGenerator[None]:
    """Stop a service with its loop, if it was not stopped before: a server closes the asynchronous
    generators of its loop, and the application into which it is mounted may not stop it.
    """
    try:
        yield
    finally:
        await service.stop()


class _Elsewhere:
    """An application on an event loop in a thread, which ends with the process."""

    def __init__(self, application: AsgiApplication) -> None:
        self._application = application
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, name="penstock-asgi", daemon=True).start()
        # Before asyncio's threads end, which happens earlier than the functions of atexit.
        register = getattr(threading, "_register_atexit", atexit.register)
        register(self._stop)

    def _stop(self) -> None:
        """Run the hooks ``close``, at the end of the process."""
        stopped = asyncio.run_coroutine_threadsafe(self._application.stop(), self._loop)
        with suppress(TimeoutError):
            stopped.result(_ENDING)

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request of the running loop.

        Raises:
            StartupError: the service cannot start.
        """
        here = asyncio.get_running_loop()

        async def receive_here() -> Message:
            received = asyncio.run_coroutine_threadsafe(_awaited(receive()), here)
            return await asyncio.wrap_future(received)

        async def send_here(message: Message) -> None:
            await asyncio.wrap_future(
                asyncio.run_coroutine_threadsafe(_awaited(send(message)), here)
            )

        async def answer() -> None:
            service = await self._application.start()
            feeding = await _answer(service, scope, receive_here, send_here)
            if feeding is not None:  # it waits on the other loop, which may end with the request
                await asyncio.wait((feeding,))

        await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(answer(), self._loop))


async def _awaited(awaitable: Awaitable[_T]) -> _T:
    return await awaitable


async def _refuse(send: Send) -> None:
    """Answer while the service has not started; its log says why."""
    reply = error_body(503, "startup", "the service could not start; its log says why")
    headers = [*reply.headers, (b"content-length", str(len(reply.body)).encode())]
    await send({"type": "http.response.start", "status": reply.status, "headers": headers})
    await send({"type": "http.response.body", "body": reply.body, "more_body": False})


async def _answer(
    service: InProcessService, scope: Scope, receive: Receive, send: Send
) -> asyncio.Task[None] | None:
    """Handle one request; returns the cancelled task that waits for its client to disconnect."""
    exchange = _AsgiExchange(_head(scope), scope, service.budget)
    first = await receive()
    if first["type"] == "http.disconnect":
        return None
    if not first.get("more_body", False):
        exchange.whole = first.get("body", b"")
    receiver = service.router.begin(exchange)
    feeding = asyncio.create_task(exchange.feed(receiver, first, receive))
    try:
        while True:
            message = await exchange.messages.get()
            if message is None:
                return feeding  # aborted, or the client has left
            await send(message)
            exchange.sent(message)
            if message["type"] == "http.response.body" and not message["more_body"]:
                return feeding
    finally:
        feeding.cancel()
        exchange.leave()
        notify = service.instruments.exchange_ended
        if notify is not None:
            notify(exchange, exchange.status, monotonic())


def _head(scope: Scope) -> RequestHead:
    raw = scope.get("raw_path")
    path = raw if raw is not None else scope["path"].encode()
    root = scope.get("root_path", "").encode()
    if root and path.startswith(root):
        path = path[len(root) :] or b"/"
    query = scope.get("query_string", b"")
    headers: Headers = tuple((name.lower(), value) for name, value in scope["headers"])
    fields = dict(headers)
    return RequestHead(
        scope["method"],
        path + b"?" + query if query else path,
        headers,
        version=scope.get("http_version", "1.1"),
        authority=fields.get(b"host", b""),
        content_length=parse_length(fields[b"content-length"])
        if b"content-length" in fields
        else None,
    )


class _AsgiExchange(Exchange):
    """The exchange of a request of an ASGI server; its answer is ASGI messages."""

    __slots__ = ("_feeds", "_scope", "_started", "_unsent", "messages")

    def __init__(self, head: RequestHead, scope: Scope, budget: ByteBudget) -> None:
        super().__init__(head, budget)
        self.messages: asyncio.Queue[Message | None] = asyncio.Queue()
        self._scope = scope
        self.over = self._started = False
        self._unsent = 0
        self._feeds = asyncio.Event()
        self._feeds.set()

    async def feed(self, receiver: Receiver | None, message: Message, receive: Receive) -> None:
        """Pass the body to the receiver; then wait for the client to disconnect."""
        while message["type"] == "http.request":
            ended = not message.get("more_body", False)
            if receiver is not None and not self.over:
                receiver.data(self, message.get("body", b""), ended)
            await self._feeds.wait()
            message = await receive()
        self.leave()

    def leave(self) -> None:
        """The answer is complete, or the client has left: see ``on_gone``."""
        over, self.over = self.over, True
        on_gone, self.on_gone = self.on_gone, None
        if not over:
            if on_gone is not None:
                on_gone()
            self.messages.put_nowait(None)
        if self.taken:
            self.release()
        on_over, self.on_over = self.on_over, None
        if on_over is not None:
            on_over()

    def sent(self, message: Message) -> None:
        """The server has accepted a message."""
        self._unsent -= len(message.get("body", b""))
        if self.on_writable is not None and self._unsent <= WRITABLE:
            self.on_writable()

    @property
    def peer(self) -> Peer:
        # Not the empty address of a Unix socket, which is this machine's: it is not known.
        address, port = self._scope.get("client") or (_UNKNOWN, 0)
        return Peer(address, port or 0, None)

    @property
    def is_secure(self) -> bool:
        return self._scope.get("scheme") == "https"

    def reply(
        self,
        status: int,
        headers: Headers,
        body: bytes = b"",
        trailers: Headers = (),
        *,
        close: bool = False,
    ) -> None:
        # Trailers cannot be sent.
        if self.over:
            return
        length = (b"content-length", str(len(body)).encode())
        bodiless = status in (204, 304)
        self.start(status, headers if bodiless else (*headers, length))
        self._put(b"" if bodiless or self.head.method == "HEAD" else body, more=False)

    def start(self, status: int, headers: Headers) -> None:
        if not self.over and not self._started:
            self._started = True
            self.status = status
            fields = [*headers, *self.added]
            start = {"type": "http.response.start", "status": status, "headers": fields}
            self.messages.put_nowait(start)

    def send(self, piece: bytes) -> None:
        if not self.over and self.head.method != "HEAD":
            self._put(piece, more=True)

    def finish(self, trailers: Headers = ()) -> None:
        if not self.over:
            self._put(b"", more=False)

    def abort(self) -> None:
        # The server gets no end of the answer, and aborts it.
        if not self.over:
            self.over = True
            self.messages.put_nowait(None)

    @property
    def unsent(self) -> int:
        return self._unsent

    def pause(self) -> None:
        self._feeds.clear()

    def resume(self) -> None:
        self._feeds.set()

    def _put(self, body: bytes, *, more: bool) -> None:
        self._unsent += len(body)
        self.messages.put_nowait({"type": "http.response.body", "body": body, "more_body": more})
        if not more:
            self.over = True
            self.on_gone = None
