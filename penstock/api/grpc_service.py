"""gRPC calls over the door: every kind of method behind one small port for handlers.

A *unary* handler is a function that is called with the one message and answers now or later through
its call: no task, no future. A *stream* handler is a coroutine that reads and writes messages; it
serves client-streaming, server-streaming and bidirectional methods.

Source: the gRPC over HTTP/2 protocol.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass
from math import inf
from typing import TypeAlias

from penstock.api.body import LARGE, SMALL, SMALL_PACKED, PartialBody
from penstock.api.grpc_call import PUSH_BACK, GrpcCall, Inbox
from penstock.door.exchange import Exchange, Limit, Receiver
from penstock.errors import RequestError, ServiceBusy
from penstock.protocols import grpc
from penstock.protocols.grpc import GrpcError
from penstock.protocols.heads import RequestHead
from penstock.protocols.status import GrpcCode

_log = logging.getLogger(__name__)

TOO_MANY = "too many calls are open; try again later"

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
class Plan:
    """What a head says, worked out once for all calls that share it; see RequestHead.route.

    Attributes:
        unary: the method's handler, where the call is not refused.
    """

    method: Method | None
    timeout: float | None
    encoding: bytes | None
    refusal: GrpcError | None
    unary: UnaryHandler | None = None


class GrpcService:
    """Every gRPC method of a door.

    Args:
        methods: ``/package.Service/Method`` to what serves it.
        max_message_bytes: of one message, after decompression.
        threads: put large messages together, and unpack compressed ones; None for the loop's own.
    """

    def __init__(
        self,
        methods: Mapping[str, Method],
        *,
        max_message_bytes: int,
        threads: Executor | None = None,
    ) -> None:
        self._threads = threads
        self._methods = {path.encode(): method for path, method in methods.items()}
        self._most = max_message_bytes
        self._streams: set[GrpcCall] = set()

    def end_streams(self) -> None:
        """End the calls of stream handlers, which may have no end of their own: we shut down."""
        for call in list(self._streams):
            _stop(call.exchange)
            call.fail(GrpcCode.UNAVAILABLE, "the server is shutting down")

    def begin(self, exchange: Exchange) -> Receiver | None:
        """Find the method; a stream's handler starts at once, as does one whose message is here."""
        head = exchange.head
        plan: Plan | None = head.route
        if plan is None:
            plan = head.route = self._plan(head)
        whole, unary = exchange.whole, plan.unary
        if whole is not None and unary is not None and not exchange.over_limit:
            # What nearly every call is, without the steps that others need.
            message = grpc.unary_message(whole, self._most)
            size = len(whole)
            if message is not None and size <= SMALL and exchange.try_small(size):
                unary(GrpcCall(exchange, plan.timeout), message)
                return None
        call = GrpcCall(exchange, plan.timeout)
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
        if exchange.over_limit and not method.always:
            exchange.count_refusal(Limit.CALLS)
            call.fail(GrpcCode.RESOURCE_EXHAUSTED, TOO_MANY, PUSH_BACK)
            return None
        exchange.state = call
        if method.stream is not None:
            call.inbox = self._inbox(call, plan)
            task = asyncio.get_running_loop().create_task(_run(method.stream, call))
            exchange.on_gone = task.cancel
            self._streams.add(call)
            task.add_done_callback(lambda _: self._streams.discard(call))
        return self

    def data(self, exchange: Exchange, piece: bytes, ended: bool) -> None:
        """Take messages as they arrive."""
        call: GrpcCall = exchange.state
        plan: Plan = exchange.head.route
        method = plan.method
        assert method is not None
        unary = method.unary
        message: bytes | grpc.Deferred | None = None
        try:
            if exchange.to_come:
                exchange.arrive(len(piece))
            elif len(piece) <= SMALL:
                exchange.take_small(len(piece))
            else:
                exchange.take(len(piece))
            if unary is None:
                self._stream(call, piece, ended)
                return
            if call.inbox is None and not call.asked:
                message = grpc.unary_message(piece, self._most)
            if message is None:
                message = self._collect(call, plan, piece, ended)
                if message is None:
                    return
            if isinstance(message, grpc.Deferred) and message.packed:
                size = len(message)
                if size <= SMALL_PACKED:
                    message = message.take()
                    exchange.take(max(0, len(message) - size))
        except (RequestError, GrpcError) as error:
            _stop(exchange)
            self._refuse(method, call, error)
        else:
            call.asked = True
            if not ended:
                exchange.body_deadline = inf  # the message is whole, whatever becomes of the stream
            if isinstance(message, bytes):
                unary(call, message)
            else:
                task = asyncio.get_running_loop().create_task(self._open(method, call, message))
                exchange.on_gone = task.cancel

    async def _open(self, method: Method, call: GrpcCall, message: grpc.Deferred) -> None:
        """A large or compressed message, which others do not have to wait for."""
        assert method.unary is not None
        assert call.inbox is not None
        try:
            plain = await call.inbox.whole(message)
        except (RequestError, GrpcError) as error:
            self._refuse(method, call, error)
        else:
            call.exchange.on_gone = None
            method.unary(call, plain)

    @staticmethod
    def _refuse(method: Method, call: GrpcCall, error: RequestError | GrpcError) -> None:
        """The message is not taken."""
        if isinstance(error, GrpcError):
            if error.code is GrpcCode.RESOURCE_EXHAUSTED:
                call.exchange.count_refusal(Limit.BODY)
            call.fail(error.code, error.text, error.headers)
            return
        if isinstance(error, ServiceBusy):
            call.exchange.count_refusal(Limit.BUDGET)
        method.failed(call, error)

    def late(self, exchange: Exchange) -> None:
        """No message arrived in time."""
        call: GrpcCall = exchange.state
        _stop(exchange)
        call.fail(GrpcCode.DEADLINE_EXCEEDED, "no message arrived in time")

    def _collect(
        self, call: GrpcCall, plan: Plan, piece: bytes, ended: bool
    ) -> bytes | grpc.Deferred | None:
        """The one message of a unary call as soon as it is whole; None while it is not."""
        inbox = call.inbox
        if inbox is None:
            inbox = call.inbox = self._inbox(call, plan)
        inbox.feed(piece)
        if not inbox:
            if ended and not call.asked:
                raise GrpcError(GrpcCode.INVALID_ARGUMENT, "the call has no message")
            if not (ended or call.asked or call.exchange.to_come):
                inbox.announce()
            return None
        if len(inbox) > 1 or call.asked:
            raise GrpcError(GrpcCode.INVALID_ARGUMENT, "the call has more than one message")
        return inbox.take()

    def _inbox(self, call: GrpcCall, plan: Plan) -> Inbox:
        reader = grpc.MessageReader(self._most, plan.encoding, PartialBody, defer=LARGE)
        return Inbox(call.exchange, reader, self._threads)

    @staticmethod
    def _stream(call: GrpcCall, piece: bytes, ended: bool) -> None:
        inbox = call.inbox
        assert inbox is not None
        inbox.feed(piece)
        if ended:
            inbox.end()
        if inbox:
            call.exchange.body_deadline = inf  # between two messages a caller may take its time
        inbox.wake(ended=ended)

    def _plan(self, head: RequestHead) -> Plan:
        """What the head alone decides."""
        try:
            request = grpc.check_request(head)
            grpc.decode_metadata(head.headers)
        except GrpcError as error:
            error.__traceback__ = None  # its frames would live as long as the head
            return Plan(None, None, None, error)
        method = self._methods.get(head.path)
        if method is None:
            refusal = GrpcError(GrpcCode.UNIMPLEMENTED, "no such method")
            return Plan(None, None, None, refusal)
        return Plan(method, request.timeout, request.encoding, None, method.unary)


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
