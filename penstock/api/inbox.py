"""The unread messages of a call: of a stream, or the pieces of one message."""

from __future__ import annotations

import asyncio
from collections import deque
from concurrent.futures import Executor
from typing import Any, Protocol

from penstock.api.body import SMALL
from penstock.api.threads import run_aside
from penstock.door.exchange import Exchange
from penstock.protocols import grpc

_MOST_AHEAD = 16
"""Most unread messages of a stream before its sender is paused."""


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
        return [piece] if piece else []

    def finish(self) -> None:
        """See ``Reader``."""


class Inbox:
    """Unread messages of one call, and the bytes of the next one.

    Used for streams, and for unary calls whose message arrives in several pieces.

    Attributes:
        closed: it ends for ``read`` before the caller has ended it.
    """

    __slots__ = (
        "_ahead",
        "_counted",
        "_ended",
        "_exchange",
        "_reader",
        "_threads",
        "_waiter",
        "closed",
    )

    def __init__(self, exchange: Exchange, reader: Reader, threads: Executor | None) -> None:
        self._exchange = exchange
        self._reader = reader
        self._threads = threads
        self._ahead: deque[tuple[bytes | grpc.Deferred, int]] = deque()
        self._counted = 0
        self._ended = self.closed = False
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
        self._ended = ended or self.closed
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    def close(self) -> None:
        """Let ``read`` end after the messages that have arrived."""
        self.closed = True
        self.wake(ended=True)

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
