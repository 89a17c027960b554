"""A call of a gRPC method or an HTTP route, as handlers see it.

The call also receives the request's body from the door: it checks the limits, joins pieces,
decompresses, and then calls the handler. There are two kinds of handlers: a *whole* handler is a
function that is called once with the one message or body, and answers now or later through its
call, without a task or a future; a *stream* handler is a coroutine that reads and writes pieces.
Everything runs on the door's loop.

Source: the gRPC over HTTP/2 protocol, RFC 9110.
"""

from __future__ import annotations

import asyncio
import logging
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from math import inf
from time import monotonic
from typing import Any, ClassVar, Protocol, TypeAlias, TypeVar

from penstock.api.body import LARGE, SMALL, SMALL_PACKED, PartialBody, decompress
from penstock.api.replies import run_aside, what_is_left
from penstock.door.exchange import Exchange, HttpReply, Limit, Receiver
from penstock.errors import RequestError, ServiceBusy, TooLarge
from penstock.protocols import grpc, paddle_json
from penstock.protocols.grpc import GrpcError
from penstock.protocols.heads import Headers
from penstock.protocols.status import GRPC_OF_HTTP, GrpcCode, status_of

_log = logging.getLogger(__name__)

Decoded = TypeVar("Decoded")

JSON = (b"content-type", b"application/json")

_MOST_AHEAD = 16
"""Most unread messages of a stream before its sender is paused."""

_MOST_UNSENT = 64 << 10
"""Most unsent bytes of answers before a stream handler must wait."""

_UNCOPIED = 64 << 10
"""Bytes of a message from which on it is not joined with its prefix."""

PUSH_BACK: Headers = ((b"grpc-retry-pushback-ms", b"1000"),)
"""Sent with a status after which the caller should retry later."""


@dataclass(slots=True)
class Shared:
    """The shared settings of one router's calls.

    Attributes:
        most: most bytes of a message or a body, before and after decompression.
        threads: join large bodies, and decompress; None for the loop's default threads.
        streams: calls with a running stream handler.
    """

    most: int
    threads: Executor | None = None
    streams: set[Call] = field(default_factory=set)


class Call(ABC):
    """The base class of calls.

    Attributes:
        exchange: its exchange, from the door.
        timeout: the caller's timeout in seconds, from its begin; None if it sets none.
        inbox: the received messages of a stream, or pieces of a message.
        started: the head of the answer has been sent.
    """

    __slots__ = ("exchange", "inbox", "shared", "started", "timeout")

    # Created for each request: each kind sets all attributes in its own method.
    exchange: Exchange
    shared: Shared
    timeout: float | None
    inbox: Inbox | None
    started: bool
    is_grpc: ClassVar[bool]

    @property
    def metadata(self) -> Headers:
        """The request's header fields, including the transport's; ``-bin`` values as sent."""
        return self.exchange.head.headers

    @property
    @abstractmethod
    def label(self) -> str:
        """Its label for logs: the pattern of a route, or a gRPC method."""

    @abstractmethod
    def fail_with(self, error: RequestError) -> None:
        """End the call with the status of an error."""

    @abstractmethod
    def finish(self) -> None:
        """End a stream's answer."""

    @abstractmethod
    def fail(self, code: GrpcCode, text: str, metadata: Headers = ()) -> None:
        """End the call with a status other than OK."""

    async def read(self) -> bytes | None:
        """Read the next message, or piece of the body, of a stream; None at its end.

        Raises:
            GrpcError: a message is not gzip, or decompresses to too much.
            ServiceBusy: decompressed, it exceeds the budget of bytes in flight.
        """
        assert self.inbox is not None, "only stream handlers read"
        return await self.inbox.read()

    async def writable(self) -> None:
        """Wait until the caller has read enough."""
        exchange = self.exchange
        while exchange.unsent > _MOST_UNSENT:
            waiters = exchange.on_writable
            if not isinstance(waiters, _Waiters):
                waiters = exchange.on_writable = _Waiters()
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            waiters.append(waiter)
            await waiter

    def run(self, handler: Callable[[Any], Awaitable[None]], reader: Reader) -> None:
        """Start a stream handler."""
        self.inbox = Inbox(self.exchange, reader, self.shared.threads)
        streams = self.shared.streams
        streams.add(self)
        self.aside(self._run(handler)).add_done_callback(lambda _: streams.discard(self))

    def expect_body(self) -> None:
        """Let a missing body time out at the caller's deadline."""
        if self.timeout is not None and self.exchange.whole is None:
            over = time.monotonic() + self.timeout
            self.exchange.body_deadline = min(self.exchange.body_deadline, over)

    def aside(self, work: Any) -> asyncio.Task[None]:
        """Run a coroutine for this call, until the caller disconnects."""
        task: asyncio.Task[None] = asyncio.get_running_loop().create_task(work)
        self.exchange.on_gone = task.cancel
        return task

    def stop(self) -> None:
        """Stop all other tasks that may answer this call."""
        gone, self.exchange.on_gone = self.exchange.on_gone, None
        if gone is not None:
            gone()

    async def _run(self, handler: Callable[[Any], Awaitable[None]]) -> None:
        """Run a stream handler, and handle its end."""
        try:
            async with asyncio.timeout(self.timeout):
                await handler(self)
        except TimeoutError:
            self.fail(GrpcCode.DEADLINE_EXCEEDED, "the caller's deadline passed")
        except GrpcError as error:
            self.fail(error.code, error.text, error.headers)
        except RequestError as error:
            self.fail_with(error)
        except Exception:  # noqa: BLE001 - our bug; the caller gets no traceback
            _log.exception("a call failed inside penstock; please report this")
            self.fail(GrpcCode.INTERNAL, "internal error")
        else:
            self.finish()


class _Waiters(list[asyncio.Future[None]]):
    """Writers of one stream that wait for its reader. Calling it wakes all of them."""

    def __call__(self) -> None:
        waiters = [*self]
        self.clear()
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)


class Reader(Protocol):
    """Splits a stream into messages."""

    def feed(self, piece: bytes) -> list[Any]:
        """Add a piece; returns the messages that it completes."""

    def finish(self) -> None:
        """The stream has ended."""

    @property
    def announced(self) -> tuple[int, int]:
        """The size of the incomplete message, and its missing bytes."""


class PlainReader:
    """A body without messages: every piece counts as one."""

    announced = (0, 0)

    def feed(self, piece: bytes) -> list[Any]:
        """See ``Reader``."""
        return [piece] if piece else []

    def finish(self) -> None:
        """See ``Reader``."""


class Inbox:
    """Unread messages of one call, and the bytes of the next one.

    Used for streams, and for unary calls whose message arrives in several pieces.
    """

    __slots__ = ("_ahead", "_counted", "_ended", "_exchange", "_reader", "_threads", "_waiter")

    def __init__(self, exchange: Exchange, reader: Reader, threads: Executor | None) -> None:
        self._exchange = exchange
        self._reader = reader
        self._threads = threads
        self._ahead: deque[tuple[bytes | grpc.Deferred, int]] = deque()
        self._counted = 0
        self._ended = False
        self._waiter: asyncio.Future[None] | None = None

    def __len__(self) -> int:
        return len(self._ahead)

    def feed(self, piece: bytes) -> None:
        """Split a piece into messages. Its bytes stay reserved until its last message is read.

        Raises:
            GrpcError: the bytes are no message.
        """
        messages = self._reader.feed(piece)
        self._counted += len(piece)
        if not messages:
            return
        before = len(self._ahead)
        self._ahead.extend((message, 0) for message in messages[:-1])
        self._ahead.append((messages[-1], self._counted))
        self._counted = 0
        if before < _MOST_AHEAD <= len(self._ahead):
            self._exchange.pause()

    def announce(self) -> None:
        """Reserve the incomplete message, if it is large.

        Raises:
            ServiceBusy: it does not fit.
        """
        size, missing = self._reader.announced
        if size > SMALL:
            self._exchange.announce(size, size - missing)

    def end(self) -> None:
        """The stream has ended.

        Raises:
            GrpcError: the last message is incomplete.
        """
        self._reader.finish()

    def wake(self, *, ended: bool) -> None:
        """Wake ``read``."""
        self._ended = ended
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    def take(self) -> bytes | grpc.Deferred:
        """Take the oldest message; its bytes stay reserved."""
        return self._ahead.popleft()[0]

    async def whole(self, message: bytes | grpc.Deferred) -> bytes:
        """The message, joined and decompressed.

        Raises:
            GrpcError: it is not gzip, or decompresses to too much.
            ServiceBusy: decompressed, it exceeds the budget of bytes in flight.
        """
        if isinstance(message, bytes):
            return message
        plain = await run_aside(self._threads, message.take)
        if len(plain) > len(message):
            self._exchange.take(len(plain) - len(message))
        return plain

    async def read(self) -> bytes | None:
        """The next message; None at the end. Raises as ``whole`` does."""
        while not self._ahead:
            if self._ended:
                return None
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        if len(self._ahead) == _MOST_AHEAD:
            self._exchange.resume()
        message, cost = self._ahead.popleft()
        plain = await self.whole(message)
        self._exchange.give_back(cost + max(0, len(plain) - len(message)))
        return plain


class GrpcCall(Call):
    """One gRPC call.

    Attributes:
        method: the called method.
        encoding: coding of its compressed messages; None if they must be plain.
        delivered: the message of a unary call was passed to its handler.
    """

    __slots__ = ("delivered", "encoding", "method")

    is_grpc = True

    def __init__(
        self,
        exchange: Exchange,
        shared: Shared,
        method: Grpc,
        timeout: float | None = None,
        encoding: bytes | None = None,
    ) -> None:
        self.exchange = exchange
        self.shared = shared
        self.timeout = timeout
        self.inbox = None
        self.method = method
        self.encoding = encoding
        self.started = self.delivered = False

    @property
    def label(self) -> str:
        """See ``Call``."""
        return self.method.path

    @property
    def _packs(self) -> bool:
        """Whether the caller compresses, with or without negotiation."""
        return b"grpc-encoding" in self.exchange.head.fields

    def begin(self) -> Receiver | None:
        """Begin the call: start a stream handler, or pass on a message that has arrived."""
        exchange, method = self.exchange, self.method
        whole, unary = exchange.whole, method.unary
        if whole is not None and unary is not None:
            # The fast path of nearly every call.
            message = grpc.unary_message(whole, self.shared.most)
            size = len(whole)
            if message is not None and size <= SMALL and exchange.try_small(size):
                unary(self, message)
                return None
        if self.timeout is not None:
            exchange.deadline = monotonic() + self.timeout
        if method.stream is not None:
            self.run(method.stream, self._reader())
        elif whole is None:
            self.expect_body()
        return self

    def start(self, metadata: Headers = ()) -> None:
        """Send the head of the answer, with the handler's metadata; at most once.

        Args:
            metadata: as ``grpc.encode_metadata`` gives it.
        """
        if not self.started:
            self.started = True
            if self._packs:
                metadata = (grpc.ACCEPTED, *metadata)
            self.exchange.start(200, (*grpc.HEAD, *metadata) if metadata else grpc.HEAD)

    def reply(self, message: bytes, metadata: Headers = ()) -> None:
        """Answer a unary call.

        Args:
            message: the answer.
            metadata: trailing metadata, from ``grpc.encode_metadata``.
        """
        if (
            metadata
            or self.started
            or len(message) > _UNCOPIED
            or (self.inbox is not None and self._packs)
        ):
            self.start()
            self.exchange.send(grpc.message_prefix(len(message)))
            self.exchange.send(message)
            self.finish(metadata)
            return
        self.exchange.reply(200, grpc.HEAD, grpc.encode_message(message), grpc.OK_TRAILERS)

    def fail(self, code: GrpcCode, text: str, metadata: Headers = ()) -> None:
        """See ``Call``."""
        self.exchange.count_error(code.name)
        if self.started:
            self.exchange.finish(grpc.trailers(code, text, metadata))
        else:
            self.exchange.reply(200, (*grpc.HEAD, *grpc.trailers(code, text, metadata)))

    def fail_with(self, error: RequestError) -> None:
        """See ``Call``."""
        push_back = PUSH_BACK if isinstance(error, ServiceBusy) else ()
        self.fail(status_of(error).grpc, str(error), push_back)

    async def write(self, message: bytes) -> None:
        """Send a message of a stream; waits until the caller has read enough."""
        self.start()
        self.exchange.send(grpc.encode_message(message))
        await self.writable()

    def finish(self, metadata: Headers = ()) -> None:
        """End a stream with OK, and the handler's trailing metadata."""
        trailers = (*grpc.OK_TRAILERS, *metadata)
        if self.started:
            self.exchange.finish(trailers)
        else:
            self.exchange.reply(200, grpc.HEAD, b"", trailers)

    def data(self, exchange: Exchange, piece: bytes, ended: bool) -> None:
        """See ``Receiver``: handles messages as they arrive."""
        unary = self.method.unary
        message: bytes | grpc.Deferred | None = None
        try:
            if exchange.to_come:
                exchange.arrive(len(piece))
            elif len(piece) <= SMALL:
                exchange.take_small(len(piece))
            else:
                exchange.take(len(piece))
            if unary is None:
                self._stream(piece, ended)
                return
            if self.inbox is None and not self.delivered:
                message = grpc.unary_message(piece, self.shared.most)
            if message is None:
                message = self._collect(piece, ended)
                if message is None:
                    return
            if not isinstance(message, bytes) and message.packed:
                size = len(message)
                if size <= SMALL_PACKED:
                    message = message.take()
                    exchange.take(max(0, len(message) - size))
        except (RequestError, GrpcError) as error:
            self.stop()
            self._refuse(error)
        else:
            self.delivered = True
            if not ended:
                exchange.body_deadline = inf  # the message is complete, even if the stream is not
            if isinstance(message, bytes):
                unary(self, message)
            else:
                self.aside(self._open(message))

    def late(self, exchange: Exchange) -> None:
        """See ``Receiver``: no message arrived in time."""
        self.stop()
        self.fail(GrpcCode.DEADLINE_EXCEEDED, "no message arrived in time")

    async def _open(self, message: grpc.Deferred) -> None:
        """Decompress a large or compressed message in a thread."""
        assert self.method.unary is not None
        assert self.inbox is not None
        try:
            plain = await self.inbox.whole(message)
        except (RequestError, GrpcError) as error:
            self._refuse(error)
        else:
            self.exchange.on_gone = None
            self.method.unary(self, plain)

    def _refuse(self, error: RequestError | GrpcError) -> None:
        """Refuse the message."""
        if isinstance(error, GrpcError):
            if error.code is GrpcCode.RESOURCE_EXHAUSTED:
                self.exchange.count_refusal(Limit.BODY)
            self.fail(error.code, error.text, error.headers)
            return
        if isinstance(error, ServiceBusy):
            self.exchange.count_refusal(Limit.BUDGET)
        self.method.failed(self, error)

    def _collect(self, piece: bytes, ended: bool) -> bytes | grpc.Deferred | None:
        """The message of a unary call, once it is complete; None before."""
        inbox = self.inbox
        if inbox is None:
            inbox = self.inbox = Inbox(self.exchange, self._reader(), self.shared.threads)
        inbox.feed(piece)
        if not inbox:
            if ended and not self.delivered:
                raise GrpcError(GrpcCode.INVALID_ARGUMENT, "the call has no message")
            if not (ended or self.delivered or self.exchange.to_come):
                inbox.announce()
            return None
        if len(inbox) > 1 or self.delivered:
            raise GrpcError(GrpcCode.INVALID_ARGUMENT, "the call has more than one message")
        return inbox.take()

    def _reader(self) -> grpc.MessageReader:
        return grpc.MessageReader(self.shared.most, self.encoding, PartialBody, defer=LARGE)

    def _stream(self, piece: bytes, ended: bool) -> None:
        inbox = self.inbox
        assert inbox is not None
        inbox.feed(piece)
        if ended:
            inbox.end()
        if inbox:
            self.exchange.body_deadline = inf  # no timeout between two messages
        inbox.wake(ended=ended)


class BodyCall(Call):
    """A call with one body, which may arrive in pieces, and compressed.

    Subclasses define its processing (``take``), decompression, and refusal.
    """

    __slots__ = ("partial",)

    partial: PartialBody | None

    @property
    @abstractmethod
    def is_packed(self) -> bool:
        """Whether the body is compressed."""

    @abstractmethod
    def unpack(self, body: bytes) -> bytes:
        """Decompress the body; from any thread.

        Raises:
            RequestError: it is corrupt, or decompresses to too much.
        """

    @abstractmethod
    def take(self, body: bytes) -> None:
        """Process the complete, decompressed body."""

    @abstractmethod
    def refuse(self, error: RequestError) -> None:
        """Refuse the body."""

    def expect(self, announced: int) -> bool:
        """Reserve an announced body. Returns False if it is refused."""
        exchange = self.exchange
        try:
            if announced > self.shared.most:
                raise TooLarge(f"the body is over {self.shared.most} bytes")
            if announced <= SMALL:
                exchange.take_small(announced)
            elif self.is_packed:
                exchange.take(announced)
            else:
                exchange.announce(announced)
        except RequestError as error:
            self.refuse(error)
            return False
        self.expect_body()
        return True

    def collect(self, piece: bytes, ended: bool) -> bytes | None:
        """Join and decompress the pieces. None while pieces are missing, or if a thread continues
        with a large or compressed body.

        Raises:
            RequestError: they are too large, or not compressed as declared.
        """
        most = self.shared.most
        body = piece
        partial = self.partial
        if partial is not None or not ended:
            if partial is None:
                partial = self.partial = PartialBody()
            partial.add(piece)
            if partial.size > most:
                raise TooLarge(f"the body is over {most} bytes")
            if not ended:
                return None
            self.partial = None
            if partial.size > LARGE:
                self.aside(self._open(partial))
                return None
            body = partial.join()
        if self.is_packed:
            if len(body) > SMALL_PACKED:
                partial = PartialBody()
                partial.add(body)
                self.aside(self._open(partial))
                return None
            body = self.unpack(body)
            self.exchange.take(len(body))
        return body

    def give_up(self, error: RequestError) -> None:
        """Refuse the body, maybe before its end."""
        self.partial = None
        self.stop()
        self.refuse(error)

    async def _open(self, partial: PartialBody) -> None:
        try:
            body = await run_aside(self.shared.threads, self._whole, partial)
            if self.is_packed:
                self.exchange.take(len(body))
        except RequestError as error:
            self.refuse(error)
        else:
            self.exchange.on_gone = None
            self.take(body)

    def _whole(self, partial: PartialBody) -> bytes:
        body = partial.join()
        return self.unpack(body) if self.is_packed else body


class HttpCall(BodyCall):
    """One request to an HTTP route.

    Attributes:
        route: the called route.
        values: the path's values of the pattern's placeholders, percent-decoded.
    """

    __slots__ = ("_encoding", "route", "values")

    is_grpc = False

    def __init__(
        self,
        exchange: Exchange,
        shared: Shared,
        route: Http,
        values: tuple[str, ...] = (),
        timeout: float | None = None,
        encoding: bytes | None = None,
    ) -> None:
        self.exchange = exchange
        self.shared = shared
        self.timeout = timeout
        self.started = False
        self.route = route
        self.values = values
        self._encoding = encoding
        self.inbox = self.partial = None

    @property
    def label(self) -> str:
        """See ``Call``."""
        return self.route.pattern

    def begin(self) -> Receiver | None:
        """Begin the request. An announced body is reserved before it is read."""
        exchange, route = self.exchange, self.route
        body = exchange.whole
        if body is None:
            if self.timeout is not None:
                exchange.deadline = monotonic() + self.timeout
        elif route.whole is not None and route.method != "GET" and self._encoding is None:
            # The fast path of nearly every request.
            size = len(body)
            if size <= SMALL and size <= self.shared.most and exchange.try_small(size):
                route.whole(self, body)
                return None
        if route.whole is not None and route.method == "GET":
            route.whole(self, b"")
            return None
        if route.stream is not None:
            self.run(route.stream, PlainReader())
            return self
        announced = exchange.head.content_length
        if announced is None:
            self.expect_body()
            return self
        return self if self.expect(announced) else None

    def reply(self, status: int, headers: Headers, body: bytes, *, close: bool = False) -> None:
        """Give the whole answer."""
        self.exchange.reply(status, headers, body, close=close)

    def send(self, reply: HttpReply) -> None:
        """Give the whole answer."""
        status, headers, body, close = reply
        self.exchange.reply(status, headers, body, close=close)

    def fail(self, code: GrpcCode, text: str, metadata: Headers = ()) -> None:
        """See ``Call``."""
        if self.started:
            self.exchange.abort()
        else:
            status = 504 if code is GrpcCode.DEADLINE_EXCEEDED else 500
            self.send(self.route.refusal(status, text))

    def fail_with(self, error: RequestError) -> None:
        """See ``Call``."""
        if self.started:
            self.exchange.abort()
        else:
            self.send(gateway_failure(error))

    def start(self, status: int, headers: Headers) -> None:
        """Begin a streamed answer; at most once."""
        if not self.started:
            self.started = True
            self.exchange.start(status, headers)

    async def write(self, piece: bytes) -> None:
        """Send a piece of a streamed answer; waits until the caller has read enough."""
        self.exchange.send(piece)
        await self.writable()

    def finish(self) -> None:
        """End a streamed answer; if none was started, answer 204."""
        if self.started:
            self.exchange.finish()
        else:
            self.exchange.reply(204, ())

    def data(self, exchange: Exchange, piece: bytes, ended: bool) -> None:
        """See ``Receiver``: handles the body, which is usually a single piece."""
        most = self.shared.most
        try:
            if exchange.head.content_length is None or self.inbox is not None:
                if len(piece) > most:
                    raise TooLarge(f"the body is over {most} bytes")
                exchange.take(len(piece))
            elif exchange.to_come:
                exchange.arrive(len(piece))
            if self.inbox is not None:
                self.inbox.feed(piece)
                self.inbox.wake(ended=ended)
                return
            body = self.collect(piece, ended)
        except RequestError as error:
            self.give_up(error)
            return
        if body is not None:
            assert self.route.whole is not None
            self.route.whole(self, body)

    def late(self, exchange: Exchange) -> None:
        """See ``Receiver``: the body took too long to arrive."""
        self.stop()
        if self.started:
            exchange.abort()
        else:
            self.send(self.route.refusal(408, "the request took too long to arrive"))

    @property
    def is_packed(self) -> bool:
        """See ``BodyCall``."""
        return self._encoding is not None

    def unpack(self, body: bytes) -> bytes:
        """See ``BodyCall``."""
        assert self._encoding is not None
        return decompress(self._encoding, body, self.shared.most)

    def take(self, body: bytes) -> None:
        """See ``BodyCall``."""
        assert self.route.whole is not None
        self.route.whole(self, body)

    def refuse(self, error: RequestError) -> None:
        """See ``BodyCall``."""
        count_refusal(self.exchange, error)
        self.route.failed(self, error)


def gateway_failure(error: RequestError) -> HttpReply:
    """An error that fails the call itself, in the format of the original's gateway."""
    status = status_of(error)
    extra: Headers = ((b"retry-after", b"1"),) if isinstance(error, ServiceBusy) else ()
    body = paddle_json.gateway_error(status.grpc, str(error))
    return HttpReply(status.http, (JSON, *extra), body, isinstance(error, TooLarge))


def failure(status: int, text: str) -> HttpReply:
    """A transport error in the gateway's format; it ends an HTTP/1.1 connection."""
    other = GrpcCode.INVALID_ARGUMENT if status < 500 else GrpcCode.UNIMPLEMENTED
    body = paddle_json.gateway_error(GRPC_OF_HTTP.get(status, other), text)
    return HttpReply(status, (JSON,), body, close=True)


Whole: TypeAlias = Callable[[HttpCall, bytes], None]
UnaryHandler: TypeAlias = Callable[[GrpcCall, bytes], None]
StreamHandler: TypeAlias = Callable[[GrpcCall], Awaitable[None]]


Contents: TypeAlias = Mapping[str, Mapping[str, Any]]
"""Media types of a body, each with its JSON Schema, whose references point into its own ``$defs``.
The schema of plain bytes is empty."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The OpenAPI description of the answers with one status.

    Attributes:
        text: when it is given.
        contents: its bodies; empty for an answer without a body.
        headers: its header fields, each with a description.
    """

    text: str
    contents: Contents = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Described:
    """The OpenAPI description of a route or a method.

    Attributes:
        summary: one line.
        description: more than that, in Markdown.
        group: its group in the list.
        query: the JSON Schema of each query parameter; all are optional.
        request: request bodies.
        bodiless: whether the body may be empty.
        answers: all possible answers, by status.
        examples: request bodies as plain values, each with its expected answer or None.
        always: answered even beyond the door's limit of open requests; for probes.
    """

    summary: str = ""
    description: str = ""
    group: str = ""
    query: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    request: Contents = field(default_factory=dict)
    bodiless: bool = False
    answers: Mapping[int, Answer] = field(default_factory=dict)
    examples: Sequence[tuple[Any, Any]] = ()
    always: bool = False


@dataclass(frozen=True, slots=True)
class Http(Described):
    """A route: ``whole`` or ``stream``.

    Attributes:
        method: the HTTP method; GET includes HEAD, and gets no body.
        pattern: the path; a segment such as ``{name}`` matches any one segment.
        failed: answers errors before the handler is called (too many bytes in flight).
        refusal: makes the answer of a refusal from a status and a text; it may end an HTTP/1.1
        connection.
        listed: the routes listed in OpenAPI instead of the pattern, such as one for each served
            name; None for the pattern itself.
        there: whether these values of the placeholders are served, so that another method gets 405,
            not 404; None: always.
    """

    method: str
    pattern: str
    whole: Whole | None = None
    stream: Callable[[HttpCall], Awaitable[None]] | None = None
    failed: Callable[[HttpCall, RequestError], None] = HttpCall.fail_with
    refusal: Callable[[int, str], HttpReply] = failure
    listed: Callable[[], Iterable[Http]] | None = None
    there: Callable[[tuple[str, ...]], bool] | None = None


@dataclass(frozen=True, slots=True)
class Grpc(Described):
    """A gRPC method: ``unary`` or ``stream``.

    Attributes:
        path: ``/package.Service/Method``.
        failed: answers what goes wrong before the handler is called (too many bytes in flight).
    """

    path: str
    unary: UnaryHandler | None = None
    stream: StreamHandler | None = None
    failed: Callable[[GrpcCall, RequestError], None] = GrpcCall.fail_with


def decode_body(
    call: Call,
    size: int,
    decode: Callable[[], Decoded],
    submit: Callable[[Decoded, float | None], None],
    failed: Callable[[Any, RequestError], None],
    *,
    aside: bool,
) -> None:
    """Decode a body or a message, and submit its request.

    Args:
        call: its call.
        size: its bytes. Beyond ``SMALL`` the decoded form is counted as well.
        decode: returns the request.
        submit: called with the request, and the rest of the caller's timeout.
        failed: answers undecodable bodies.
        aside: decode in a thread.
    """
    if aside:
        call.aside(_decode_aside(call, size, decode, submit, failed))
        return
    try:
        if size > SMALL:
            call.exchange.decode(size)
        found = decode()
    except RequestError as error:
        count_refusal(call.exchange, error)
        failed(call, error)
    else:
        submit(found, call.timeout)


async def _decode_aside(
    call: Call,
    size: int,
    decode: Callable[[], Decoded],
    submit: Callable[[Decoded, float | None], None],
    failed: Callable[[Any, RequestError], None],
) -> None:
    begun = monotonic()
    try:
        call.exchange.decode(size)
        found = await run_aside(call.shared.threads, decode)
    except RequestError as error:
        count_refusal(call.exchange, error)
        failed(call, error)
    else:
        submit(found, what_is_left(call.timeout, begun))


def count_refusal(exchange: Exchange, error: RequestError) -> None:
    """Count the reason of a refused body in the door's statistics."""
    if isinstance(error, TooLarge):
        exchange.count_refusal(Limit.BODY)
    elif isinstance(error, ServiceBusy):
        exchange.count_refusal(Limit.BUDGET)
