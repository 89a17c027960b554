"""HttpClient: an ``httpx.Client`` whose requests are calls of an ASGI application.

Answers arrive message by message: one that is streamed is read while it is made, and one that is
cut off is an error, as over a connection. Needs the package ``httpx``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterator, MutableMapping
from typing import Any, TypeAlias, TypeVar

import httpx

from penstock.client.errors import CallFailed
from penstock.client.piece_reader import PieceReader, value_of
from penstock.protocols import media
from penstock.protocols.pieces import EVENTS

Message: TypeAlias = MutableMapping[str, Any]
Application: TypeAlias = Callable[
    [Message, Callable[[], Awaitable[Message]], Callable[[Message], Awaitable[None]]],
    Awaitable[None],
]

_Result = TypeVar("_Result")


class HttpClient(httpx.Client):
    """See the module.

    Args:
        application: is called on the loop.
        loop: runs in another thread.
    """

    def __init__(self, application: Application, loop: asyncio.AbstractEventLoop) -> None:
        transport = _Transport(application, loop)
        super().__init__(transport=transport, base_url="http://service")

    def pieces(self, path: str, *, method: str = "POST", **request: Any) -> Iterator[Any]:
        """Yield the pieces of an answer, each when it is made.

        Leaving the loop over them disconnects, which cancels the request.

        Args:
            path: of the route.
            method: of the route.
            request: further arguments of ``httpx.Client.stream``, such as ``json``.

        Yields:
            the piece as plain values; ``bytes`` as they arrive, of an answer that is no
            server-sent events. ``[DONE]``, with which OpenAI's API ends, is no piece.

        Raises:
            httpx.HTTPStatusError: the answer is an error without any piece.
            httpx.RemoteProtocolError: it has ended in the middle; the text has the error.
        """
        with self.stream(method, path, **request) as answer:
            if answer.is_error:
                answer.read()
                answer.raise_for_status()
            if media.essence(answer.headers.get("content-type", "")) == EVENTS:
                yield from _values(answer)
            else:
                yield from answer.iter_bytes()


def _values(answer: httpx.Response) -> Iterator[Any]:
    """The pieces of an answer of server-sent events."""
    reader = PieceReader("")
    reader.begin(EVENTS)
    parts = answer.iter_bytes()
    while reader.end is None:
        try:
            part = next(parts, None)
        except httpx.RemoteProtocolError:
            reader.cut_off()
        else:
            if part is None:
                reader.finish()
            else:
                reader.add((part,))
        while reader.pieces:
            yield value_of(reader.pieces.popleft())
    if isinstance(reader.end, CallFailed):
        raise httpx.RemoteProtocolError(f"the answer has ended in the middle: {reader.end}")


class _Transport(httpx.BaseTransport):
    def __init__(self, application: Application, loop: asyncio.AbstractEventLoop) -> None:
        self._application = application
        self._loop = loop

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        call = _Call(self._application, self._loop, request.read())
        url = request.url
        call.begin(
            {
                "type": "http",
                "asgi": {"version": "3.0"},
                "http_version": "1.1",
                "method": request.method,
                "headers": [(name.lower(), value) for name, value in request.headers.raw],
                "scheme": url.scheme,
                "path": url.path,
                "raw_path": url.raw_path.split(b"?")[0],
                "query_string": url.query,
                "server": (url.host, url.port),
                "client": ("127.0.0.1", 123),
                "root_path": "",
            }
        )
        start = call.next()
        return httpx.Response(start["status"], headers=start["headers"], stream=_Body(call))


class _Call:
    """One call of the application. ``begin``, ``next`` and ``close`` are the test's, and wait."""

    def __init__(
        self, application: Application, loop: asyncio.AbstractEventLoop, body: bytes
    ) -> None:
        self._application = application
        self._loop = loop
        self._bodies = [body]
        self._gone = asyncio.Event()
        # Of one message: who does not read holds up the application.
        self._messages: asyncio.Queue[Message | Exception] = asyncio.Queue(1)
        self._task: asyncio.Future[None] | None = None

    def begin(self, scope: Message) -> None:
        async def begin() -> None:
            self._task = asyncio.ensure_future(self._answer(scope))

        self._run(begin())

    def next(self) -> Message:
        """The next message of the application; raises what it has raised."""
        message = self._run(self._messages.get())
        if isinstance(message, Exception):
            raise message
        return message

    def close(self) -> None:
        """Disconnect, and wait for the application's end."""
        self._run(self._leave())

    def _run(self, coroutine: Coroutine[Any, Any, _Result]) -> _Result:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    async def _answer(self, scope: Message) -> None:
        end: Exception = httpx.RemoteProtocolError("the service has ended its answer in the middle")
        try:
            await self._application(scope, self._receive, self._send)
        except Exception as error:  # noqa: BLE001 - raised in the test
            end = error
        await self._send(end)

    async def _leave(self) -> None:
        self._gone.set()
        while not self._messages.empty():
            self._messages.get_nowait()
        if self._task is not None:
            await asyncio.wait((self._task,))

    async def _receive(self) -> Message:
        if self._bodies:
            return {"type": "http.request", "body": self._bodies.pop(), "more_body": False}
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Message | Exception) -> None:
        if not self._gone.is_set():
            await self._messages.put(message)


class _Body(httpx.SyncByteStream):
    def __init__(self, call: _Call) -> None:
        self._call = call

    def __iter__(self) -> Iterator[bytes]:
        more = True
        while more:
            message = self._call.next()
            more = message.get("more_body", False)
            yield message.get("body", b"")

    def close(self) -> None:
        self._call.close()
