"""A call as its handler sees it: of a gRPC method, or of an HTTP route.

The call is also what the door gives the request's body to: it checks the limits, puts pieces
together, unpacks what is compressed, and then calls the handler. There are two kinds of handlers:
a *whole* one is a function that is called once with the one message or body, and answers now or
later through its call, without a task or a future; a *stream* handler is a coroutine that reads and
writes pieces. Everything runs on the door's loop.

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
"""Messages that a stream handler has not read yet before its sender is stopped."""

_MOST_UNSENT = 64 << 10
"""Bytes of answers that the caller has not read yet before a stream handler is made to wait."""

_UNCOPIED = 64 << 10
"""Bytes of a message from which on it is not copied behind its prefix."""

PUSH_BACK: Headers = ((b"grpc-retry-pushback-ms", b"1000"),)
"""Goes with the status of whoever is to come again later."""


@dataclass(slots=True)
class Shared:
    """What all calls of one router share.

    Attributes:
        most: bytes of a message or a body, before and after decompression.
        threads: put large bodies together, and unpack compressed ones; None for the loop's own.
        streams: calls whose stream handler runs.
    """

    most: int
    threads: Executor | None = None
    streams: set[Call] = field(default_factory=set)


class Call(ABC):
    """What calls of both kinds have in common.

    Attributes:
        exchange: what carries it.
        timeout: seconds that the caller gave it when it began; None when it gave none.
        inbox: what has arrived of a stream, or of a message in pieces.
        started: the head of the answer has been sent.
    """

    __slots__ = ("exchange", "inbox", "shared", "started", "timeout")

    # There is one for each request: each kind sets all of them in a method of its own.
    exchange: Exchange
    shared: Shared
    timeout: float | None
    inbox: Inbox | None
    started: bool
    is_grpc: ClassVar[bool]

    @property
    def metadata(self) -> Headers:
        """The caller's fields, the transport's own among them; ``-bin`` values as sent."""
        return self.exchange.head.headers

    @property
    @abstractmethod
    def label(self) -> str:
        """What serves it: the pattern of a route, or a gRPC method."""

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
        """The next message, or piece of the body, of a stream; None at its end.

        Raises:
            GrpcError: a message is not gzip, or unpacks to too much.
            ServiceBusy: it unpacks to more than there is room for.
        """
        assert self.inbox is not None, "only stream handlers read"
        return await self.inbox.read()

    async def writable(self) -> None:
        """Wait while the caller does not read."""
        exchange = self.exchange
        while exchange.unsent > _MOST_UNSENT:
            waiters = exchange.on_writable
            if not isinstance(waiters, _Waiters):
                waiters = exchange.on_writable = _Waiters()
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            waiters.append(waiter)
            await waiter

    def run(self, handler: Callable[[Any], Awaitable[None]], reader: Reader) -> None:
        """Start a stream's handler."""
        self.inbox = Inbox(self.exchange, reader, self.shared.threads)
        streams = self.shared.streams
        streams.add(self)
        self.aside(self._run(handler)).add_done_callback(lambda _: streams.discard(self))

    def expect_body(self) -> None:
        """A body that is still to come is late when the caller's own time is over."""
        if self.timeout is not None and self.exchange.whole is None:
            over = time.monotonic() + self.timeout
            self.exchange.body_deadline = min(self.exchange.body_deadline, over)

    def aside(self, work: Any) -> asyncio.Task[None]:
        """Go on with a coroutine, until the caller leaves."""
        task: asyncio.Task[None] = asyncio.get_running_loop().create_task(work)
        self.exchange.on_gone = task.cancel
        return task

    def stop(self) -> None:
        """Nobody is to answer this call any more but whoever asks for this."""
        gone, self.exchange.on_gone = self.exchange.on_gone, None
        if gone is not None:
            gone()

    async def _run(self, handler: Callable[[Any], Awaitable[None]]) -> None:
        """A stream's handler, with whatever ends it."""
        try:
            async with asyncio.timeout(self.timeout):
                await handler(self)
        except TimeoutError:
            self.fail(GrpcCode.DEADLINE_EXCEEDED, "the caller's deadline passed")
        except GrpcError as error:
            self.fail(error.code, error.text, error.headers)
        except RequestError as error:
            self.fail_with(error)
        except Exception:  # noqa: BLE001 - a promise is broken; the caller gets no traceback
            _log.exception("a call failed inside penstock; please report this")
            self.fail(GrpcCode.INTERNAL, "internal error")
        else:
            self.finish()


class _Waiters(list[asyncio.Future[None]]):
    """Writers of one stream that wait for its reader. Called, it wakes all of them."""

    def __call__(self) -> None:
        waiters = [*self]
        self.clear()
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)


class Reader(Protocol):
    """Takes a stream apart."""

    def feed(self, piece: bytes) -> list[Any]:
        """The messages that this piece completes."""

    def finish(self) -> None:
        """No more will come."""

    @property
    def announced(self) -> tuple[int, int]:
        """Bytes of the message that has begun to come, and how many of them are missing."""


class PlainReader:
    """A body without messages in it: every piece is one."""

    announced = (0, 0)

    def feed(self, piece: bytes) -> list[Any]:
        """See ``Reader``."""
        return [piece] if piece else []

    def finish(self) -> None:
        """See ``Reader``."""


class Inbox:
    """Messages of one call that nobody has read yet, and the bytes of the next one.

    Made for streams, and for a unary call whose message comes in several pieces.
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
        """Take a piece apart. Bytes are held until the last message that they brought is read.

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
        """Reserve the message that has begun to come, if it is a large one.

        Raises:
            ServiceBusy: it does not fit.
        """
        size, missing = self._reader.announced
        if size > SMALL:
            self._exchange.announce(size, size - missing)

    def end(self) -> None:
        """No more comes.

        Raises:
            GrpcError: a message was cut off.
        """
        self._reader.finish()

    def wake(self, *, ended: bool) -> None:
        """Let ``read`` go on."""
        self._ended = ended
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    def take(self) -> bytes | grpc.Deferred:
        """The message that came first; its bytes stay held."""
        return self._ahead.popleft()[0]

    async def whole(self, message: bytes | grpc.Deferred) -> bytes:
        """The message, put together and unpacked.

        Raises:
            GrpcError: it is not gzip, or unpacks to too much.
            ServiceBusy: it unpacks to more than there is room for.
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
        method: what serves it.
        encoding: of its compressed messages; None when they must be plain.
        asked: the handler of a unary call has its message.
    """

    __slots__ = ("asked", "encoding", "method")

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
        self.started = self.asked = False

    @property
    def label(self) -> str:
        """See ``Call``."""
        return self.method.path

    @property
    def _packs(self) -> bool:
        """Whether the caller compresses, perhaps without having been told what we can read."""
        return b"grpc-encoding" in self.exchange.head.fields

    def begin(self) -> Receiver | None:
        """The call may be answered: a stream's handler starts, a message that is here is given."""
        exchange, method = self.exchange, self.method
        whole, unary = exchange.whole, method.unary
        if whole is not None and unary is not None:
            # What nearly every call is, without the steps that others need.
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
        """Send the head of the answer, with metadata of the handler's own; at most once.

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
            metadata: goes behind it, with the status; as ``grpc.encode_metadata`` gives it.
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
        """Send a message of a stream; waits while the caller does not read."""
        self.start()
        self.exchange.send(grpc.encode_message(message))
        await self.writable()

    def finish(self, metadata: Headers = ()) -> None:
        """End a stream with OK, and with metadata of the handler's own."""
        trailers = (*grpc.OK_TRAILERS, *metadata)
        if self.started:
            self.exchange.finish(trailers)
        else:
            self.exchange.reply(200, grpc.HEAD, b"", trailers)

    def data(self, exchange: Exchange, piece: bytes, ended: bool) -> None:
        """See ``Receiver``: takes messages as they arrive."""
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
            if self.inbox is None and not self.asked:
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
            self.asked = True
            if not ended:
                exchange.body_deadline = inf  # the message is whole, whatever becomes of the stream
            if isinstance(message, bytes):
                unary(self, message)
            else:
                self.aside(self._open(message))

    def late(self, exchange: Exchange) -> None:
        """See ``Receiver``: no message arrived in time."""
        self.stop()
        self.fail(GrpcCode.DEADLINE_EXCEEDED, "no message arrived in time")

    async def _open(self, message: grpc.Deferred) -> None:
        """A large or compressed message, which others do not have to wait for."""
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
        """The message is not taken."""
        if isinstance(error, GrpcError):
            if error.code is GrpcCode.RESOURCE_EXHAUSTED:
                self.exchange.count_refusal(Limit.BODY)
            self.fail(error.code, error.text, error.headers)
            return
        if isinstance(error, ServiceBusy):
            self.exchange.count_refusal(Limit.BUDGET)
        self.method.failed(self, error)

    def _collect(self, piece: bytes, ended: bool) -> bytes | grpc.Deferred | None:
        """The one message of a unary call as soon as it is whole; None while it is not."""
        inbox = self.inbox
        if inbox is None:
            inbox = self.inbox = Inbox(self.exchange, self._reader(), self.shared.threads)
        inbox.feed(piece)
        if not inbox:
            if ended and not self.asked:
                raise GrpcError(GrpcCode.INVALID_ARGUMENT, "the call has no message")
            if not (ended or self.asked or self.exchange.to_come):
                inbox.announce()
            return None
        if len(inbox) > 1 or self.asked:
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
            self.exchange.body_deadline = inf  # between two messages a caller may take its time
        inbox.wake(ended=ended)


class BodyCall(Call):
    """A call whose one body comes in pieces, perhaps packed.

    A kind says what the body is for (``take``), how it is unpacked, and how it is refused.
    """

    __slots__ = ("partial",)

    partial: PartialBody | None

    @property
    @abstractmethod
    def is_packed(self) -> bool:
        """Whether the body is compressed."""

    @abstractmethod
    def unpack(self, body: bytes) -> bytes:
        """The body in plain; from any thread.

        Raises:
            RequestError: it is corrupt, or unpacks to too much.
        """

    @abstractmethod
    def take(self, body: bytes) -> None:
        """All of the body is here, unpacked."""

    @abstractmethod
    def refuse(self, error: RequestError) -> None:
        """The body is not taken."""

    def expect(self, announced: int) -> bool:
        """Reserve a body of so many bytes that is to come. Returns False when it is refused."""
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
        """Put the pieces together, and unpack them. None while they are not all there, and where a
        thread goes on: a large or compressed body is not waited for by others.

        Raises:
            RequestError: they are too many, or not packed as was said.
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
        """The body is not taken, perhaps in the middle of it."""
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
        route: what serves it.
        values: what stands in the path for the placeholders of the route's pattern, decoded once.
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
        """The request may be answered. What was announced is reserved before it is read."""
        exchange, route = self.exchange, self.route
        body = exchange.whole
        if body is None:
            if self.timeout is not None:
                exchange.deadline = monotonic() + self.timeout
        elif route.whole is not None and route.method != "GET" and self._encoding is None:
            # What nearly every request is, without the steps that others need.
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
        """Begin an answer that is written in pieces; at most once."""
        if not self.started:
            self.started = True
            self.exchange.start(status, headers)

    async def write(self, piece: bytes) -> None:
        """Send a piece of an answer that was started; waits while the caller does not read."""
        self.exchange.send(piece)
        await self.writable()

    def finish(self) -> None:
        """End an answer that was started; one that was not is 204."""
        if self.started:
            self.exchange.finish()
        else:
            self.exchange.reply(204, ())

    def data(self, exchange: Exchange, piece: bytes, ended: bool) -> None:
        """See ``Receiver``: takes the body, which is whole in one piece as a rule."""
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
    """What ends a call itself, as the original's gateway says it."""
    status = status_of(error)
    extra: Headers = ((b"retry-after", b"1"),) if isinstance(error, ServiceBusy) else ()
    body = paddle_json.gateway_error(status.grpc, str(error))
    return HttpReply(status.http, (JSON, *extra), body, isinstance(error, TooLarge))


def failure(status: int, text: str) -> HttpReply:
    """A failure of the transport, as the gateway says it; an HTTP/1.1 connection ends with it."""
    other = GrpcCode.INVALID_ARGUMENT if status < 500 else GrpcCode.UNIMPLEMENTED
    body = paddle_json.gateway_error(GRPC_OF_HTTP.get(status, other), text)
    return HttpReply(status, (JSON,), body, close=True)


Whole: TypeAlias = Callable[[HttpCall, bytes], None]
UnaryHandler: TypeAlias = Callable[[GrpcCall, bytes], None]
StreamHandler: TypeAlias = Callable[[GrpcCall], Awaitable[None]]


Contents: TypeAlias = Mapping[str, Mapping[str, Any]]
"""Media types of a body, each with the JSON Schema of what it holds, whose references point into
its own ``$defs``. The schema of plain bytes is empty."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a description of the interface tells of the answers with one status.

    Attributes:
        text: when it is given.
        contents: its bodies; none for an answer without a body.
        headers: names of header fields that go with it, each with its meaning.
    """

    text: str
    contents: Contents = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Described:
    """What a description of the interface tells of a route or a method.

    Attributes:
        summary: one line.
        description: more than that, in Markdown.
        group: what it is listed with.
        request: bodies that it reads.
        answers: by status, every one that it can give.
        examples: bodies of requests, as plain values, each with the answer that is expected (None
            where none is).
        always: answered even when more requests are open than the door allows; for probes.
    """

    summary: str = ""
    description: str = ""
    group: str = ""
    request: Contents = field(default_factory=dict)
    answers: Mapping[int, Answer] = field(default_factory=dict)
    examples: Sequence[tuple[Any, Any]] = ()
    always: bool = False


@dataclass(frozen=True, slots=True)
class Http(Described):
    """A route: ``whole`` or ``stream``.

    Attributes:
        method: of HTTP; one of GET answers HEAD too, and gets no body.
        pattern: the path; a segment such as ``{name}`` stands for any one segment.
        failed: answers what goes wrong before the handler is called (too many bytes in flight).
        refusal: makes the answer to what is refused without an error: a status and a text. A
            connection of HTTP/1.1 ends with it, if it says so.
        listed: the routes that a description lists instead of the pattern, such as one for each
            name that is served; None for the pattern itself.
        there: whether something is served for these values of the placeholders, so that another
            method is 405 and not 404; None: always.
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
    """Decode a body or a message, and submit what it asks.

    Args:
        call: whose it is.
        size: of it. Beyond ``SMALL`` bytes the decoded form is counted beside it.
        decode: gives what is asked.
        submit: is given that, and the seconds that the caller has left.
        failed: answers what cannot be decoded.
        aside: decode in a thread: others would wait for it.
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
    """Tell the door's statistics why a body is not taken."""
    if isinstance(error, TooLarge):
        exchange.count_refusal(Limit.BODY)
    elif isinstance(error, ServiceBusy):
        exchange.count_refusal(Limit.BUDGET)
