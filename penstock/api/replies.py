"""Replies: their kinds, and the threads that write large ones."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Any, Final, Protocol, TypeAlias, TypeVar

from penstock.door.budget import Reservation
from penstock.door.exchange import Exchange
from penstock.errors import RequestError, ServiceBusy
from penstock.ops.ends import error_reply
from penstock.protocols import paddle, pb
from penstock.request import Feed

Reply: TypeAlias = paddle.Reply | pb.Response

Result = TypeVar("Result")

_A_NUMBER: Final = 20
"""Bytes that an element of an array takes in JSON, at most as a rule."""

_log = logging.getLogger(__name__)


def run_aside(
    threads: Executor | None, function: Callable[..., Result], *args: Any
) -> asyncio.Future[Result]:
    """Call it in a thread; here, where none can be started. Not called once it is cancelled."""
    loop = asyncio.get_running_loop()
    try:
        return loop.run_in_executor(threads, function, *args)
    except RuntimeError:
        done: asyncio.Future[Result] = loop.create_future()
        try:
            done.set_result(function(*args))
        except Exception as error:  # noqa: BLE001 - it belongs to whoever waits
            done.set_exception(error)
        return done


class Pipeline(Protocol):
    """What is needed here of the pipeline protocol."""

    threads: Executor | None

    def prepare(self, call: paddle.Call) -> None:
        """Make the feed, in any thread, where users' code does not make it."""


async def decode_aside(
    protocol: Pipeline, exchange: Exchange, size: int, decode: Callable[[], paddle.Call]
) -> paddle.Call:
    """Decode a large body in a thread, down to the feed.

    Args:
        protocol: whose call it is.
        exchange: the request's; it reserves what a body of ``size`` bytes decodes to.
        size: of the body.
        decode: makes the call.

    Raises:
        RequestError: the body is not taken.
    """
    exchange.decode(size)
    exchange.arrive(size)  # it is being made

    def decoded() -> paddle.Call:
        call = decode()
        protocol.prepare(call)
        return call

    try:
        call = await run_aside(protocol.threads, decoded)
    except RequestError:
        raise
    except Exception as error:  # noqa: BLE001 - a promise is broken
        raise ours(error) from None
    exchange.decoded(size, call.decoded_bytes())
    return call


def take_room(held: Reservation, value: Feed) -> None:
    """Reserve what a large answer takes as text.

    Raises:
        ServiceBusy: there is no room for it.
    """
    size = sum(getattr(each, "size", 0) for each in value.values()) * _A_NUMBER
    if size > held.limit:
        raise ServiceBusy("the answer is larger than what may be in flight")
    held.take(size)


def what_is_left(timeout: float | None, begun: float) -> float | None:
    """Of the seconds that a caller gave, what a thread that decoded has left."""
    return None if timeout is None else max(0.0, timeout - (time.monotonic() - begun))


def encoded(encode: Callable[[Reply], bytes], reply: Reply) -> bytes:
    """A reply in a port's form; where it has none, one that says so: who asked waits for one."""
    try:
        return encode(reply)
    except Exception as error:  # noqa: BLE001 - ops and hooks may put anything into it
        return encode(error_reply(ours(error)))


def ours(error: BaseException) -> RequestError:
    """A promise is broken; the caller gets no traceback."""
    _log.error("a request failed inside penstock; please report this", exc_info=error)
    return RequestError("internal error")
