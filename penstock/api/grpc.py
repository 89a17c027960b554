"""gRPC methods, and their calls.

Source: the gRPC over HTTP/2 protocol.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from math import inf
from time import monotonic
from typing import TypeAlias

from penstock.api.body import LARGE, SMALL, SMALL_PACKED, PartialBody
from penstock.api.call import Call, Shared
from penstock.api.http import failure
from penstock.api.inbox import Inbox
from penstock.api.operation import Described
from penstock.door.exchange import Exchange, HttpReply, Limit, Receiver
from penstock.errors import RequestError
from penstock.protocols import grpc
from penstock.protocols.grpc import GrpcError
from penstock.protocols.heads import Headers
from penstock.protocols.status import GrpcCode, reply_metadata, status_of

_UNCOPIED = 64 << 10
"""Bytes of a message from which on it is not joined with its prefix."""


class GrpcCall(Call):
    """One gRPC call.

    Attributes:
        route: the called method.
        encoding: coding of its compressed messages; None if they must be plain.
        delivered: the message of a unary call was passed to its handler.
    """

    __slots__ = ("delivered", "encoding", "route")

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
        self.route = method
        self.encoding = encoding
        self.started = self.delivered = False

    @property
    def label(self) -> str:
        return self.route.path

    @property
    def _packs(self) -> bool:
        """Whether the caller compresses, with or without negotiation."""
        return b"grpc-encoding" in self.exchange.head.fields

    def begin(self) -> Receiver | None:
        """Begin the call: start a stream handler, or pass on a message that has arrived."""
        exchange, method = self.exchange, self.route
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
        self.exchange.count_error(code.name)
        if self.started:
            self.exchange.finish(grpc.trailers(code, text, metadata))
        else:
            self.exchange.reply(200, (*grpc.HEAD, *grpc.trailers(code, text, metadata)))

    def fail_with(self, error: RequestError) -> None:
        self.fail(status_of(error).grpc, str(error), reply_metadata(error))

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
        unary = self.route.unary
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
        assert self.route.unary is not None
        assert self.inbox is not None
        try:
            plain = await self.inbox.whole(message)
        except (RequestError, GrpcError) as error:
            self._refuse(error)
        else:
            self.exchange.on_gone = None
            self.route.unary(self, plain)

    def _refuse(self, error: RequestError | GrpcError) -> None:
        """Refuse the message."""
        if isinstance(error, GrpcError):
            if error.code is GrpcCode.RESOURCE_EXHAUSTED:
                self.exchange.count_refusal(Limit.BODY)
            self.fail(error.code, error.text, error.headers)
            return
        self.count_refusal(error)
        self.route.failed(self, error)

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


UnaryHandler: TypeAlias = Callable[[GrpcCall, bytes], None]
StreamHandler: TypeAlias = Callable[[GrpcCall], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Grpc(Described):
    """A gRPC method: ``unary`` or ``stream``.

    Attributes:
        path: ``/package.Service/Method``.
        failed: answers what goes wrong before the handler is called (a refused caller, too many
            bytes in flight).
        refusal: makes the answer to requests for its path that are no gRPC calls; see ``Http``.
        of_messages: whether each message of its stream is a request of its own.
    """

    path: str
    unary: UnaryHandler | None = None
    stream: StreamHandler | None = None
    failed: Callable[[GrpcCall, RequestError], None] = GrpcCall.fail_with
    refusal: Callable[[int, str], HttpReply] = failure
    of_messages: bool = False
