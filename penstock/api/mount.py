"""Mounts an ASGI application, such as one of FastAPI or Starlette, beside the routes.

The application gets every request below its path, and its lifespan: it starts before the service is
ready, and ends after the last request. It runs on the engine's loop, in each engine.

WebSockets are refused with 501.
Source: the ASGI specification 3.0 (HTTP, lifespan).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, MutableMapping
from typing import Any, Final, TypeAlias
from urllib.parse import unquote

from penstock.api.application import Section
from penstock.api.errors import error_body, failed, refusal
from penstock.api.http import Http, HttpCall
from penstock.errors import StartupError
from penstock.protocols.heads import Headers, is_lower_token, is_value

Message: TypeAlias = MutableMapping[str, Any]
AsgiApp: TypeAlias = Callable[
    [
        MutableMapping[str, Any],
        Callable[[], Awaitable[Message]],
        Callable[[Message], Awaitable[None]],
    ],
    Awaitable[None],
]

_VERSIONS: Final = {"version": "3.0", "spec_version": "2.4"}
_FRAMING: Final = frozenset((
    b"connection", b"content-length", b"date", b"keep-alive", b"transfer-encoding",
))  # fmt: skip
"""Fields that the connection sets."""
_ENDING: Final = 5.0
"""Seconds for the end of its lifespan, and of calls whose callers have left; a guess."""

_log = logging.getLogger(__name__)


_CORS: Final = b"access-control-"


class MountApplication:
    """Serves an ASGI application below a path. Belongs to the engine's loop.

    Args:
        path: such as ``/web``.
        app: the ASGI application.
    """

    def __init__(self, path: str, app: AsgiApp) -> None:
        self._path = path
        self._app = app
        self._lifespan = _Lifespan(path, app)
        self._running: set[asyncio.Task[Any]] = set()

    def __repr__(self) -> str:
        return f"<MountApplication {self._path}>"

    def routes(self) -> Iterator[Http | Section]:
        """What to serve."""
        yield Section(self._path)
        yield Http(
            "GET",
            self._path,
            stream=self._handle,
            failed=failed,
            refusal=refusal,
            listed=lambda: (),
            below=True,
        )

    async def start(self) -> None:
        """Start the application.

        Raises:
            StartupError: it says that it cannot start.
        """
        await self._lifespan.start()

    async def stop(self) -> None:
        """End its running calls, and the application."""
        if self._running:
            await asyncio.wait(self._running, timeout=_ENDING)
        for each in self._running:
            each.cancel()
        await self._lifespan.stop()

    async def _handle(self, call: HttpCall) -> None:
        head = call.exchange.head
        if b"websocket" in head.fields.get(b"upgrade", b"").lower():
            text = "WebSockets are not supported here: serve the application by a server of its own"
            call.send(error_body(501, "not_implemented", text)._replace(close=True))
            return
        task = asyncio.current_task()
        assert task is not None
        self._running.add(task)
        answer = _Answer(call)
        # The application learns it from ``receive``, as from other servers, and ends by itself.
        call.exchange.on_gone = answer.over.set
        try:
            await self._app(self._scope(call), answer.receive, answer.send)
        except Exception as error:  # noqa: BLE001 - the application's
            if not (isinstance(error, OSError) and call.exchange.over):
                _log.exception("the application at %s raised", self._path)
        finally:
            self._running.discard(task)
        answer.end()  # unless its time is over, which the call answers

    def _scope(self, call: HttpCall) -> dict[str, Any]:
        exchange = call.exchange
        head, peer = exchange.head, exchange.peer
        headers = [*head.headers]
        if head.authority and b"host" not in head.fields:
            headers.insert(0, (b"host", head.authority))
        host, _, port = head.authority.decode("latin-1").rpartition(":")
        usual = 443 if exchange.is_secure else 80
        if not port.isdigit():
            host, port = head.authority.decode("latin-1"), str(usual)
        return {
            "type": "http",
            "asgi": _VERSIONS,
            "http_version": head.version,
            "method": head.method,
            "scheme": "https" if exchange.is_secure else "http",
            "path": unquote(head.path.decode("latin-1"), errors="replace"),
            "raw_path": head.path,
            "query_string": head.query,
            "root_path": self._path,
            "headers": headers,
            "client": (peer.address, peer.port) if peer.address else None,
            "server": (host, int(port)),
            "state": {**self._lifespan.state},
            "extensions": {},
        }


class _Answer:
    """The answer of the application to one call.

    Attributes:
        over: the answer is complete, or the caller has left.
    """

    def __init__(self, call: HttpCall) -> None:
        self.over = asyncio.Event()
        self._call = call
        self._received = False
        self._head: tuple[int, Headers] | None = None

    async def receive(self) -> Message:
        """See ASGI."""
        if self._received or self.over.is_set():
            await self.over.wait()
            return {"type": "http.disconnect"}
        piece = await self._call.read()
        self._received = piece is None
        return {"type": "http.request", "body": piece or b"", "more_body": piece is not None}

    async def send(self, message: Message) -> None:
        """See ASGI.

        Raises:
            RuntimeError: the messages are in another order.
            ValueError: a header field cannot be sent.
            OSError: the caller has left.
        """
        call, kind = self._call, message["type"]
        if call.exchange.over or self.over.is_set():
            raise OSError("the caller has left, or the answer is complete")
        if kind == "http.response.start":
            if self._head is not None:
                raise RuntimeError("a second http.response.start")
            self._head = message["status"], _fields(message.get("headers", ()))
            if any(name.startswith(_CORS) for name, _ in self._head[1]):
                # The application has its own CORS: browsers refuse a field that is there twice.
                added = (each for each in call.exchange.added if not each[0].startswith(_CORS))
                call.exchange.added = tuple(added)
        elif kind == "http.response.body":
            if self._head is None:
                raise RuntimeError("http.response.body before http.response.start")
            body, more = message.get("body", b""), message.get("more_body", False)
            if not call.started and not more and call.exchange.head.method != "HEAD":
                call.reply(*self._head, bytes(body))
                self.over.set()
                return
            call.start(*self._head)
            if body:
                await call.write(bytes(body))
            if not more:
                call.exchange.finish()
                self.over.set()
        else:
            raise RuntimeError(f"penstock sends HTTP, not {kind}")

    def end(self) -> None:
        """The application has returned, or raised."""
        call = self._call
        if self.over.is_set() or call.exchange.over:
            self.over.set()
            return
        self.over.set()
        if call.started:
            call.exchange.abort()
        else:
            call.send(error_body(500, "internal", "the application failed; the log says why"))


def _fields(headers: Any) -> Headers:
    """The header fields of an answer, without those of the connection.

    Raises:
        ValueError: one cannot be sent.
    """
    found = tuple((bytes(name).lower(), bytes(value).strip(b" \t")) for name, value in headers)
    for name, value in found:
        if is_lower_token(name) is None or is_value(value) is None:
            raise ValueError(f"the header {name!r} cannot be sent")
    return tuple(pair for pair in found if pair[0] not in _FRAMING)


class _Lifespan:
    """The lifespan of an ASGI application, which may lack it.

    Attributes:
        state: what the application has set at its start; each request gets a copy.
    """

    def __init__(self, path: str, app: AsgiApp) -> None:
        self.state: dict[str, Any] = {}
        self._path = path
        self._app = app
        self._task: asyncio.Task[None] | None = None
        self._messages: asyncio.Queue[Message] = asyncio.Queue()
        self._answers: asyncio.Queue[Message] = asyncio.Queue()

    async def start(self) -> None:
        self._task = asyncio.create_task(self._run())
        answer = await self._ask("lifespan.startup")
        if answer is not None and answer["type"] == "lifespan.startup.failed":
            text = answer.get("message", "")
            raise StartupError(f"the application at {self._path} cannot start: {text}")

    async def stop(self) -> None:
        task, self._task = self._task, None
        if task is None or task.done():
            return
        self._task = task
        try:
            async with asyncio.timeout(_ENDING):
                answer = await self._ask("lifespan.shutdown")
        except TimeoutError:
            answer = {"type": "lifespan.shutdown.failed", "message": "it takes too long"}
        if answer is not None and answer["type"] == "lifespan.shutdown.failed":
            _log.error("the application at %s: its end failed: %s", self._path, answer["message"])
        self._task = None
        task.cancel()
        await asyncio.wait((task,), timeout=_ENDING)

    async def _ask(self, kind: str) -> Message | None:
        """Send a message of the lifespan; returns the answer, or None if the application ended."""
        assert self._task is not None
        self._messages.put_nowait({"type": kind})
        answer = asyncio.create_task(self._answers.get())
        await asyncio.wait((answer, self._task), return_when=asyncio.FIRST_COMPLETED)
        if answer.done():
            return answer.result()
        answer.cancel()
        return None if self._answers.empty() else self._answers.get_nowait()

    async def _run(self) -> None:
        scope = {"type": "lifespan", "asgi": _VERSIONS, "state": self.state}
        try:
            await self._app(scope, self._messages.get, self._answers.put)
        except asyncio.CancelledError:
            raise
        except Exception as error:  # noqa: BLE001 - many applications raise because they have no lifespan
            _log.debug("the application at %s has no lifespan: %r", self._path, error)


def problem_of(path: Any, app: Any) -> str | None:
    """Why an application cannot be mounted at a path; None if it can."""
    good = isinstance(path, str) and path.startswith("/") and not set(path) & set("{}?#%")
    if not good or path == "/" or path.endswith("/") or "//" in path:
        return f"an application is mounted below a path such as '/web', not {path!r}"
    if not callable(app):
        return f"an ASGI application is called with scope, receive and send, unlike {app!r}"
    return None
