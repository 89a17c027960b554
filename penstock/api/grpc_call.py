"""One gRPC call, as its handler sees it."""

from __future__ import annotations

import asyncio
from collections import deque
from concurrent.futures import Executor
from typing import TYPE_CHECKING

from penstock.api.body import SMALL
from penstock.api.replies import run_aside
from penstock.errors import RequestError, ServiceBusy
from penstock.protocols import grpc
from penstock.protocols.heads import Headers
from penstock.protocols.status import GrpcCode, status_of

if TYPE_CHECKING:
    from penstock.door.exchange import Exchange

_MOST_AHEAD = 16
"""Messages that a stream handler has not read yet before its sender is stopped."""

_MOST_UNSENT = 64 << 10
"""Bytes of answers that the caller has not read yet before a stream handler is made to wait."""

_LARGE = 64 << 10
"""Bytes of a message from which on it is not copied behind its prefix."""

PUSH_BACK: Headers = ((b"grpc-retry-pushback-ms", b"1000"),)
"""Goes with the status of whoever is to come again later."""


class Inbox:
    """Messages of one call that nobody has read yet, and the bytes of the next one.

    Made for streams, and for a unary call whose message comes in several pieces.
    """

    __slots__ = ("_ahead", "_counted", "_ended", "_exchange", "_reader", "_threads", "_waiter")

    def __init__(
        self, exchange: Exchange, reader: grpc.MessageReader, threads: Executor | None
    ) -> None:
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


class GrpcCall:
    """One call. Belongs to the door's loop.

    Attributes:
        exchange: what carries it.
        timeout: seconds that the caller gave it when it began; None when it gave none.
        inbox: what has arrived of a stream, or of a message in pieces.
        asked: the handler of a unary call has its message.
        started: the head of the answer has been sent.
    """

    __slots__ = ("asked", "exchange", "inbox", "started", "timeout")

    def __init__(self, exchange: Exchange, timeout: float | None) -> None:
        self.exchange = exchange
        self.timeout = timeout
        self.inbox: Inbox | None = None
        self.asked = self.started = False

    @property
    def metadata(self) -> Headers:
        """The caller's fields, the transport's own among them; ``-bin`` values as sent."""
        return self.exchange.head.headers

    @property
    def _packs(self) -> bool:
        """Whether the caller compresses, perhaps without having been told what we can read."""
        return b"grpc-encoding" in self.exchange.head.fields

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
            or len(message) > _LARGE
            or (self.inbox is not None and self._packs)
        ):
            self.start()
            self.exchange.send(grpc.message_prefix(len(message)))
            self.exchange.send(message)
            self.finish(metadata)
            return
        self.exchange.reply(200, grpc.HEAD, grpc.encode_message(message), grpc.OK_TRAILERS)

    def fail(self, code: GrpcCode, text: str, metadata: Headers = ()) -> None:
        """End the call with a status other than OK."""
        if self.started:
            self.exchange.finish(grpc.trailers(code, text, metadata))
        else:
            self.exchange.reply(200, (*grpc.HEAD, *grpc.trailers(code, text, metadata)))

    def fail_with(self, error: RequestError) -> None:
        """End the call with the status of an error."""
        push_back = PUSH_BACK if isinstance(error, ServiceBusy) else ()
        self.fail(status_of(error).grpc, str(error), push_back)

    async def read(self) -> bytes | None:
        """The next message of a stream; None at its end."""
        assert self.inbox is not None, "only stream handlers read"
        return await self.inbox.read()

    async def write(self, message: bytes) -> None:
        """Send a message of a stream; waits while the caller does not read."""
        exchange = self.exchange
        self.start()
        exchange.send(grpc.encode_message(message))
        while exchange.unsent > _MOST_UNSENT:
            room: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            exchange.on_writable = lambda room=room: room.done() or room.set_result(None)
            await room

    def finish(self, metadata: Headers = ()) -> None:
        """End a stream with OK, and with metadata of the handler's own."""
        trailers = (*grpc.OK_TRAILERS, *metadata)
        if self.started:
            self.exchange.finish(trailers)
        else:
            self.exchange.reply(200, grpc.HEAD, b"", trailers)
