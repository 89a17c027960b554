"""A call of a gRPC method, an HTTP route or a baidu_std method, as handlers see it.

A call receives its body from the door: it checks the limits, joins pieces, decompresses, and then
calls the handler. There are two kinds of handlers: a *whole* handler is a function that is called
once with the one message or body, and answers now or later through its call, without a task or a
future; a *stream* handler is a coroutine that reads and writes pieces. Everything runs on the
door's loop.
"""

from __future__ import annotations

import asyncio
import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar

from penstock.api.inbox import Inbox, Reader
from penstock.door.exchange import Exchange, Limit
from penstock.errors import RequestError, ServiceBusy, TooLarge
from penstock.protocols.grpc import GrpcError
from penstock.protocols.heads import Headers
from penstock.protocols.status import GrpcCode

ENDING = "the server is shutting down"
"""The text of streams that end with their service."""

_log = logging.getLogger(__name__)

_MOST_UNSENT = 64 << 10
"""Most unsent bytes of answers before a stream handler must wait."""


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
    def caller(self) -> Any:
        """Who makes it, as the service's ``Admission`` says; None without one."""
        return self.exchange.caller

    @property
    def metadata(self) -> Headers:
        """The request's header fields, including the transport's; ``-bin`` values as sent."""
        return self.exchange.head.headers

    @property
    @abstractmethod
    def label(self) -> str:
        """Its label for logs: the pattern of a route, or a gRPC method."""

    def count_refusal(self, error: RequestError) -> None:
        """Count the reason of a refused body in the door's statistics."""
        if isinstance(error, TooLarge):
            self.exchange.count_refusal(Limit.BODY)
        elif isinstance(error, ServiceBusy):
            self.exchange.count_refusal(Limit.BUDGET)

    @abstractmethod
    def fail_with(self, error: RequestError) -> None:
        """End the call with the status of an error."""

    def refuse_beyond_limit(self) -> None:
        """End the call: more are open than the door allows."""
        self.fail_with(ServiceBusy("too many calls are open; try again later"))

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
        while self.exchange.unsent > _MOST_UNSENT:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self.when_writable(partial(_wake, waiter))
            await waiter

    def when_writable(self, wake: Callable[[], object]) -> None:
        """Call a function, once, when the caller has read enough."""
        waiters = self.exchange.on_writable
        if not isinstance(waiters, _Waiters):
            waiters = self.exchange.on_writable = _Waiters()
        waiters.append(wake)

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
        """Run a coroutine for this call, until the caller disconnects. If it raises, the call
        fails.
        """
        task: asyncio.Task[None] = asyncio.get_running_loop().create_task(work)
        self.exchange.on_gone = task.cancel
        task.add_done_callback(self._ended_aside)
        return task

    def _ended_aside(self, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is None:
            return
        _log.error("a call failed inside penstock; please report this", exc_info=error)
        if not self.exchange.over:
            self.fail(GrpcCode.INTERNAL, "internal error")

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
            assert self.inbox is not None, "it reads from one"
            if self.inbox.closed:
                self.fail(GrpcCode.UNAVAILABLE, ENDING)
            else:
                self.finish()


@dataclass(frozen=True, slots=True)
class OfStream:
    """What stands for the call of a request that is one message of a stream: the stream's other
    requests have the same call, and its exchange is not theirs.

    Attributes:
        caller: who has sent the message.
        stream: the call of the stream.
    """

    caller: Any
    stream: Any

    @property
    def route(self) -> Any:
        """That of the stream."""
        return self.stream.route


def exchange_of(call: Any) -> Exchange:
    """The exchange over which a request came, which may be that of a stream."""
    exchange: Exchange = (call.stream if isinstance(call, OfStream) else call).exchange
    return exchange


class _Waiters(list[Callable[[], object]]):
    """What waits for one stream's reader. Calling it calls all of them."""

    def __call__(self) -> None:
        waiters = [*self]
        self.clear()
        for wake in waiters:
            wake()


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
