"""Calls a route whose answer comes in pieces, for threads and for an event loop.

Each call has a connection of its own, which its end closes; closing it cancels the call. Proxies of
the environment are not used, and redirects not followed.
"""

from __future__ import annotations

import asyncio
import json as json_module
import math
import socket
import ssl
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import suppress
from copy import copy
from typing import Any, Final, Generic, NamedTuple, Self, TypeVar
from urllib.parse import urlsplit

from penstock.client.errors import CallFailed, NotConnected
from penstock.client.http_request import Encoded
from penstock.client.piece_reader import Piece, PieceReader, value_of
from penstock.client.token import Token, hint, with_token
from penstock.protocols.status import GrpcCode

T = TypeVar("T")

_AT_ONCE: Final = 64 << 10


def stream(
    url: str,
    json: Any = None,
    *,
    body: Encoded | None = None,
    method: str | None = None,
    headers: Sequence[tuple[str, str]] = (),
    timeout: float | None = 60.0,
    ca_file: str | None = None,
    token: Token | None = None,
) -> HttpPieces[Any]:
    """Call a route whose answer comes in pieces, such as a typed function that yields.

        with stream("http://127.0.0.1:8080/spell", {"word": "ab"}) as pieces:
            for piece in pieces:
                print(piece)

    Args:
        url: an http or https URL.
        json: the body, a value that is sent as JSON; None for none.
        body: another body instead.
        method: by default POST with a body, else GET.
        headers: further header fields. ``("Accept", "application/x-ndjson")`` requests lines
            instead of events.
        timeout: seconds to wait for each piece, the first one included; None for no limit.
        ca_file: certificates to trust instead of the system's.
        token: a key or token for a service with ``security``, or a function that returns it.

    Returns:
        An iterator of the values: of an event's data, or a line, the value of its JSON; of an
        answer of another type the bytes as they arrive. The request is sent by its first
        ``next()``, which raises the errors below. Closing the iterator, or dropping it, cancels the
        call.

    Raises:
        NotConnected: the URL, a header field or the file of certificates is invalid.
        TypeError, ValueError: the value cannot be sent as JSON; the timeout is not positive.
        CallFailed: raised by ``next()``: there was no answer, or it is an error, or ends with one;
            it was cut off; it does not come in pieces; or the timeout has passed.
    """
    request = request_of(
        url, json, body=body, method=method, headers=headers, ca_file=ca_file, token=token
    )
    return HttpPieces(request, _checked(timeout), value_of)


def stream_async(
    url: str,
    json: Any = None,
    *,
    body: Encoded | None = None,
    method: str | None = None,
    headers: Sequence[tuple[str, str]] = (),
    timeout: float | None = 60.0,
    ca_file: str | None = None,
    token: Token | None = None,
) -> AsyncHttpPieces[Any]:
    """``stream`` for the running event loop.

        async with stream_async("http://127.0.0.1:8080/spell", {"word": "ab"}) as pieces:
            async for piece in pieces:
                print(piece)

    Arguments, values and errors as in ``stream``. Cancelling a task that waits for a piece cancels
    the call.
    """
    request = request_of(
        url, json, body=body, method=method, headers=headers, ca_file=ca_file, token=token
    )
    return AsyncHttpPieces(request, _checked(timeout), value_of)


def _checked(timeout: float | None) -> float | None:
    if timeout is not None and not (math.isfinite(timeout) and timeout > 0):
        raise ValueError(f"timeout must be a positive number of seconds or None, got {timeout}")
    return timeout


class HttpRequest(NamedTuple):
    """A request, ready to be sent; ``tls`` is None for plain text."""

    url: str
    host: str
    port: int
    tls: ssl.SSLContext | None
    content: bytes
    token: Token | None


def request_of(
    url: str,
    json: Any = None,
    *,
    body: Encoded | None = None,
    method: str | None = None,
    headers: Sequence[tuple[str, str]] = (),
    ca_file: str | None = None,
    token: Token | None = None,
) -> HttpRequest:
    """Make a request; arguments and errors as in ``stream``."""
    if body is None and json is not None:
        body = Encoded(json_module.dumps(json).encode(), "application/json")
    try:
        place = urlsplit(url)
        host, port = place.hostname, place.port
        if place.scheme not in ("http", "https") or not host or "@" in place.netloc:
            raise ValueError("write http://HOST:PORT/PATH")
        if not url.isascii() or not url.isprintable() or " " in url:
            raise ValueError("a URL has ASCII without spaces; others are written with %")
        given = with_token(headers, token)
    except ValueError as error:
        raise NotConnected(f"{url}: {error}") from error
    path = (place.path or "/") + (f"?{place.query}" if place.query else "")
    fields = {"host": place.netloc, "accept": "*/*", "user-agent": "penstock"}
    if body is not None:
        fields["content-type"] = body.media
    fields |= {name.lower(): value for name, value in given}
    fields |= {"accept-encoding": "identity", "connection": "close"}
    content = b"" if body is None else body.content
    method = method or ("GET" if body is None else "POST")
    if body is not None or method not in ("GET", "HEAD", "DELETE"):
        fields["content-length"] = str(len(content))
    lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {fields[name]}" for name in fields)]
    try:
        if not all(line.isprintable() for line in lines) or not method.isalpha():
            raise ValueError("a method or a header field has characters that cannot be sent")
        head = "".join(f"{line}\r\n" for line in (*lines, "")).encode("latin-1")
        tls = ssl.create_default_context(cafile=ca_file) if place.scheme == "https" else None
    except OSError as error:
        raise NotConnected(f"{ca_file}: {error}") from error
    except ValueError as error:
        raise NotConnected(f"{url}: {error}") from error
    usual = 443 if place.scheme == "https" else 80
    return HttpRequest(url, host, port or usual, tls, head + content, token)


class _Pieces(Generic[T]):
    """What both iterators share."""

    def __init__(
        self, request: HttpRequest, timeout: float | None, decode: Callable[[Piece], T]
    ) -> None:
        self._request = request
        self._timeout = timeout
        self._decode = decode
        self._reader = PieceReader(request.url)

    def _failure(self) -> CallFailed | None:
        """Why there are no further pieces; None after the last one."""
        end = self._reader.end
        if not isinstance(end, CallFailed):
            return None
        if end.status is GrpcCode.UNAUTHENTICATED:
            return CallFailed(end.status, end.args[1] + hint(401, self._request.token))
        return copy(end)  # a copy: raising an exception changes its traceback

    def _late(self) -> CallFailed:
        text = f"{self._request.url}: no piece came within {self._timeout:g} s"
        return CallFailed(GrpcCode.DEADLINE_EXCEEDED, text, retryable=True)

    def _lost(self, error: Exception) -> CallFailed:
        return CallFailed(GrpcCode.UNAVAILABLE, f"{self._request.url}: {error}")

    def _fail(self, failed: CallFailed) -> None:
        if self._reader.end is None:
            self._reader.end = failed

    def _cancel(self) -> None:
        """Drop what has arrived; no effect after the last piece was taken."""
        reader = self._reader
        if reader.end is not True or reader.pieces:
            reader.pieces.clear()
            reader.end = CallFailed(GrpcCode.CANCELLED, "cancelled by the caller")


class HttpPieces(_Pieces[T], Iterator[T]):
    """The pieces of one answer; see ``stream``. One thread at a time iterates; any may close it."""

    _socket: socket.socket | None = None
    _closed = False

    def __init__(
        self, request: HttpRequest, timeout: float | None, decode: Callable[[Piece], T]
    ) -> None:
        super().__init__(request, timeout, decode)
        self._reading = threading.Lock()

    def __next__(self) -> T:
        """Wait for the next piece.

        Raises:
            StopIteration: the answer is complete.
            CallFailed: see ``stream``; CANCELLED after ``close``.
        """
        with self._reading:
            until = None if self._timeout is None else time.monotonic() + self._timeout
            try:
                while not self._reader.pieces and self._reader.end is None:
                    self._receive(until)
            except TimeoutError:
                self._fail(self._late())
            except (OSError, UnicodeError) as error:  # UnicodeError: of the host's name
                self._fail(self._lost(error))
            except BaseException:  # an interrupt: the caller no longer waits
                self._cancel()
                self._disconnect()
                raise
            if self._closed:
                self._cancel()
            if self._reader.pieces:
                return self._decode(self._reader.pieces.popleft())
            self._disconnect()
        failed = self._failure()
        if failed is not None:
            raise failed
        raise StopIteration

    def _receive(self, until: float | None) -> None:
        connection = self._socket
        if connection is None:
            connection = self._connect(until)
        if self._closed:  # meanwhile, before there was a connection to shut down
            self._cancel()
            return
        connection.settimeout(_left(until))
        self._reader.receive(connection.recv(_AT_ONCE))

    def _connect(self, until: float | None) -> socket.socket:
        request = self._request
        self._socket = made = socket.create_connection(
            (request.host, request.port), timeout=_left(until)
        )
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if request.tls is not None:
            made.settimeout(_left(until))
            self._socket = made = request.tls.wrap_socket(made, server_hostname=request.host)
        made.settimeout(_left(until))
        # A server may answer and close before it has read a large body.
        with suppress(BrokenPipeError, ConnectionResetError):
            made.sendall(request.content)
        return made

    def close(self) -> None:
        """Cancel the call, unless it has ended; a thread that waits for a piece gets CallFailed."""
        self._closed = True
        connection = self._socket
        if connection is not None:
            with suppress(OSError):  # it has been disconnected
                connection.shutdown(socket.SHUT_RDWR)  # wakes a thread that reads
        with self._reading:
            self._cancel()
            self._disconnect()

    def _disconnect(self) -> None:
        connection, self._socket = self._socket, None
        if connection is not None:
            connection.close()

    def __iter__(self) -> Self:
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        self._disconnect()


def _left(until: float | None) -> float | None:
    """The seconds that are left.

    Raises:
        TimeoutError: none.
    """
    if until is None:
        return None
    left = until - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left


class AsyncHttpPieces(_Pieces[T], AsyncIterator[T]):
    """The pieces of one answer; see ``stream_async``. One task at a time."""

    _writer: asyncio.StreamWriter | None = None
    _input: asyncio.StreamReader
    _loop: asyncio.AbstractEventLoop

    async def __anext__(self) -> T:
        """Wait for the next piece.

        Raises:
            StopAsyncIteration: the answer is complete.
            CallFailed: see ``stream``; CANCELLED after ``aclose``.
        """
        reader = self._reader
        if not reader.pieces and reader.end is None:
            try:
                async with asyncio.timeout(self._timeout):
                    while not reader.pieces and reader.end is None:
                        await self._receive()
            except TimeoutError:
                self._fail(self._late())
            except (OSError, UnicodeError) as error:
                self._fail(self._lost(error))
            except BaseException:
                self._cancel()
                self._disconnect()
                raise
        if reader.pieces:
            return self._decode(reader.pieces.popleft())
        self._disconnect()
        failed = self._failure()
        if failed is not None:
            raise failed
        raise StopAsyncIteration

    async def _receive(self) -> None:
        if self._writer is None:
            await self._connect()
        self._reader.receive(await self._input.read(_AT_ONCE))

    async def _connect(self) -> None:
        request = self._request
        self._loop = asyncio.get_running_loop()
        name = request.host if request.tls is not None else None
        self._input, self._writer = await asyncio.open_connection(
            request.host, request.port, ssl=request.tls, server_hostname=name
        )
        self._writer.write(request.content)

    async def aclose(self) -> None:
        """Cancel the call, unless it has ended."""
        self._cancel()
        self._disconnect()

    def _disconnect(self) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            _abort(writer)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def __del__(self) -> None:
        writer = self._writer
        if writer is not None:
            with suppress(RuntimeError):  # the loop is closed, and its transports with it
                self._loop.call_soon_threadsafe(_abort, writer)


def _abort(writer: asyncio.StreamWriter) -> None:
    writer.transport.abort()
