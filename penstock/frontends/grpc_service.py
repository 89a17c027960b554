"""gRPC calls over the door: every kind of method behind one small port for handlers.

A *unary* handler is a function that is called with the one message and answers now or later through
its call: no task, no future. A *stream* handler is a coroutine that reads and writes messages; it
serves client-streaming, server-streaming and bidirectional methods.

Source: the gRPC over HTTP/2 protocol.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, TypeAlias, cast

from penstock.errors import RequestError, ServiceBusy
from penstock.frontends.exchange import Exchange, Receiver
from penstock.protocols import grpc
from penstock.protocols.grpc import GrpcError
from penstock.protocols.heads import Headers, RequestHead
from penstock.protocols.status import GrpcCode, status_of

if TYPE_CHECKING:
    from penstock.frontends.http2_session import Http2Exchange

_log = logging.getLogger(__name__)

_MOST_AHEAD = 16
"""Messages that a stream handler has not read yet before its sender is stopped."""

_MOST_UNSENT = 64 << 10
"""Bytes of answers that the caller has not read yet before a stream handler is made to wait."""

_TWO = "the call has more than one message"

TOO_MANY = "too many calls are open; try again later"

_PUSH_BACK: Headers = ((b"grpc-retry-pushback-ms", b"1000"),)


class GrpcCall:
    """One call, as its handler sees it. Belongs to the door's loop.

    Attributes:
        exchange: what carries it.
        timeout: seconds that the caller gave it when it began; None when it gave none.
    """

    __slots__ = (
        "_ahead",
        "_counted",
        "_ended",
        "_room",
        "_started",
        "_waiter",
        "asked",
        "exchange",
        "reader",
        "timeout",
    )

    def __init__(self, exchange: Http2Exchange, timeout: float | None) -> None:
        self.exchange = exchange
        self.timeout = timeout
        self.reader: grpc.MessageReader | None = None
        self._ahead: deque[tuple[bytes, int]] | None = None
        self._counted = 0
        self.asked = False  # the handler of a unary call has its message
        self._ended = False
        self._started = False
        self._waiter: asyncio.Future[None] | None = None
        self._room: asyncio.Future[None] | None = None

    @property
    def metadata(self) -> Headers:
        """The caller's fields, the transport's own among them; ``-bin`` values as sent."""
        return self.exchange.head.headers

    def reply(self, message: bytes) -> None:
        """Answer a unary call."""
        self.exchange.reply_blocks(grpc.OK_HEAD, grpc.encode_message(message), grpc.OK_TRAILERS)

    def fail(self, code: GrpcCode, text: str, metadata: Headers = ()) -> None:
        """End the call with a status other than OK."""
        if self._started:
            self.exchange.finish_block(grpc.trailers_block(code, text, metadata))
        else:
            self.exchange.reply_blocks(grpc.trailers_only_block(code, text, metadata), b"", None)

    def fail_with(self, error: RequestError) -> None:
        """End the call with the status of an error."""
        push_back = _PUSH_BACK if isinstance(error, ServiceBusy) else ()
        self.fail(status_of(error).grpc, str(error), push_back)

    async def read(self) -> bytes | None:
        """The next message of a stream; None at its end."""
        assert self._ahead is not None, "only stream handlers read"
        while not self._ahead:
            if self._ended:
                return None
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        if len(self._ahead) == _MOST_AHEAD:
            self.exchange.resume()
        message, cost = self._ahead.popleft()
        self.exchange.held.give_back(cost)
        return message

    async def write(self, message: bytes) -> None:
        """Send a message of a stream; waits while the caller does not read."""
        exchange = self.exchange
        if not self._started:
            self._started = True
            exchange.start_block(grpc.OK_HEAD)
        exchange.send(grpc.encode_message(message))
        while exchange.unsent > _MOST_UNSENT:
            self._room = asyncio.get_running_loop().create_future()
            exchange.on_room = self._room_made
            await self._room

    def finish(self) -> None:
        """End a stream with OK."""
        if self._started:
            self.exchange.finish_block(grpc.OK_TRAILERS)
        else:
            self.exchange.reply_blocks(grpc.OK_HEAD, b"", grpc.OK_TRAILERS)

    def expect_stream(self) -> None:
        """Keep what arrives until ``read`` asks for it."""
        self._ahead = deque()

    @property
    def begun(self) -> bool:
        """Whether a message has arrived that is not read yet."""
        return bool(self._ahead)

    def feed(self, piece: bytes) -> None:
        """Take a piece apart. Bytes are held until the last message that they brought is read."""
        assert self.reader is not None
        assert self._ahead is not None
        messages = self.reader.feed(piece)
        self._counted += len(piece)
        if not messages:
            return
        more = sum(map(len, messages)) - self._counted
        if more > 0:  # they were packed
            self.exchange.held.take(more)
            self._counted += more
        before = len(self._ahead)
        self._ahead.extend((message, 0) for message in messages[:-1])
        self._ahead.append((messages[-1], self._counted))
        self._counted = 0
        if before < _MOST_AHEAD <= len(self._ahead):
            self.exchange.pause()

    def wake(self, *, ended: bool) -> None:
        """Let ``read`` go on."""
        self._ended = ended
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    def only_message(self) -> bytes | None:
        """The message of a unary call, if it has come."""
        if not self._ahead:
            return None
        if len(self._ahead) > 1:
            raise GrpcError(GrpcCode.INVALID_ARGUMENT, _TWO)
        return self._ahead.popleft()[0]

    def _room_made(self) -> None:
        if self._room is not None and not self._room.done():
            self._room.set_result(None)


UnaryHandler: TypeAlias = Callable[[GrpcCall, bytes], None]
StreamHandler: TypeAlias = Callable[[GrpcCall], Awaitable[None]]
Failed: TypeAlias = Callable[[GrpcCall, RequestError], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """One method of a service: ``unary`` or ``stream``.

    Attributes:
        failed: answers what goes wrong before the handler is called (too many bytes in flight).
        always: answered even when more calls are open than the door allows; for probes.
    """

    unary: UnaryHandler | None = None
    stream: StreamHandler | None = None
    failed: Failed = GrpcCall.fail_with
    always: bool = False


@dataclass(frozen=True, slots=True)
class _Plan:
    """What a head says, worked out once for all calls that share it; see RequestHead.note."""

    method: Method | None
    timeout: float | None
    encoding: bytes | None
    refusal: GrpcError | None


class GrpcService:
    """Every gRPC method of a door.

    Args:
        methods: ``/package.Service/Method`` to what serves it.
        max_message_bytes: of one message, after decompression.
    """

    def __init__(self, methods: Mapping[str, Method], *, max_message_bytes: int) -> None:
        self._methods = {path.encode(): method for path, method in methods.items()}
        self._most = max_message_bytes
        self._streams: set[GrpcCall] = set()

    def end_streams(self) -> None:
        """End the calls of stream handlers, which may have no end of their own: we shut down."""
        for call in list(self._streams):
            _stop(call.exchange)
            call.fail(GrpcCode.UNAVAILABLE, "the server is shutting down")

    def begin(self, exchange: Exchange) -> Receiver | None:
        """Find the method; a stream's handler starts at once."""
        head = exchange.head
        plan: _Plan | None = head.note
        if plan is None:
            plan = head.note = self._plan(head)
        # Only HTTP/2 brings gRPC here, and only its exchanges take blocks.
        call = GrpcCall(cast("Http2Exchange", exchange), plan.timeout)
        refusal = plan.refusal
        if refusal is not None:
            if refusal.http != 200:
                status = (b"grpc-status", b"%d" % refusal.code)
                exchange.reply(refusal.http, (*refusal.headers, status))
            else:
                call.fail(refusal.code, refusal.text, refusal.headers)
            return None
        method = plan.method
        assert method is not None
        if exchange.excess and not method.always:
            call.fail(GrpcCode.RESOURCE_EXHAUSTED, TOO_MANY, _PUSH_BACK)
            return None
        exchange.state = call
        if method.stream is not None:
            call.reader = grpc.MessageReader(self._most, plan.encoding)
            call.expect_stream()
            task = asyncio.get_running_loop().create_task(_run(method.stream, call))
            exchange.on_gone = task.cancel
            self._streams.add(call)
            task.add_done_callback(lambda _: self._streams.discard(call))
        return self

    def data(self, exchange: Exchange, piece: bytes, ended: bool) -> None:
        """Take messages as they arrive."""
        call: GrpcCall = exchange.state
        plan: _Plan = exchange.head.note
        method = plan.method
        assert method is not None
        message: bytes | None = None
        try:
            if piece:
                exchange.held.take(len(piece))
            if method.unary is None:
                self._stream(call, piece, ended)
                return
            if call.reader is None and not call.asked:
                message = grpc.unary_message(piece, self._most)
            if message is None:
                message = self._collect(call, plan, piece, ended)
                if message is None:
                    return
        except RequestError as error:
            _stop(exchange)
            method.failed(call, error)
        except GrpcError as error:
            _stop(exchange)
            call.fail(error.code, error.text, error.headers)
        else:
            call.asked = True
            if not ended:
                exchange.late_at = inf  # the message is whole, whatever becomes of the stream
            method.unary(call, message)

    def late(self, exchange: Exchange) -> None:
        """No message arrived in time."""
        call: GrpcCall = exchange.state
        _stop(exchange)
        call.fail(GrpcCode.DEADLINE_EXCEEDED, "no message arrived in time")

    def _collect(self, call: GrpcCall, plan: _Plan, piece: bytes, ended: bool) -> bytes | None:
        """The one message of a unary call as soon as it is whole; None while it is not."""
        if call.reader is None:
            call.reader = grpc.MessageReader(self._most, plan.encoding)
            call.expect_stream()
        call.feed(piece)
        message = call.only_message()
        if call.asked and message is not None:
            raise GrpcError(GrpcCode.INVALID_ARGUMENT, _TWO)
        if message is None and ended and not call.asked:
            raise GrpcError(GrpcCode.INVALID_ARGUMENT, "the call has no message")
        return message

    @staticmethod
    def _stream(call: GrpcCall, piece: bytes, ended: bool) -> None:
        assert call.reader is not None
        call.feed(piece)
        if ended:
            call.reader.finish()
        if call.begun:
            call.exchange.late_at = inf  # between two messages a caller may take its time
        call.wake(ended=ended)

    def _plan(self, head: RequestHead) -> _Plan:
        """What the head alone decides."""
        try:
            request = grpc.check_request(head)
            grpc.decode_metadata(head.headers)
        except GrpcError as error:
            error.__traceback__ = None  # its frames would live as long as the head
            return _Plan(None, None, None, error)
        method = self._methods.get(head.path)
        if method is None:
            refusal = GrpcError(GrpcCode.UNIMPLEMENTED, "no such method")
            return _Plan(None, None, None, refusal)
        return _Plan(method, request.timeout, request.encoding, None)


def _stop(exchange: Exchange) -> None:
    """Nobody is to answer this call any more but whoever asks for this."""
    gone, exchange.on_gone = exchange.on_gone, None
    if gone is not None:
        gone()


async def _run(handler: StreamHandler, call: GrpcCall) -> None:
    """A stream's handler, with whatever ends it."""
    try:
        async with asyncio.timeout(call.timeout):
            await handler(call)
    except TimeoutError:
        call.fail(GrpcCode.DEADLINE_EXCEEDED, "the caller's deadline passed")
    except GrpcError as error:
        call.fail(error.code, error.text, error.headers)
    except RequestError as error:
        call.fail_with(error)
    except Exception:  # noqa: BLE001 - a promise is broken; the caller gets no traceback
        _log.exception("a call failed inside penstock; please report this")
        call.fail(GrpcCode.INTERNAL, "internal error")
    else:
        call.finish()
