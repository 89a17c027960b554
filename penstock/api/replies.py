"""Kinds of replies, and threads that encode large replies and decode large bodies."""

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
"""Usual maximum of bytes of an array's element in JSON."""

_log = logging.getLogger(__name__)


def run_aside(
    threads: Executor | None, function: Callable[..., Result], *args: Any
) -> asyncio.Future[Result]:
    """Call it in a thread, or here if none can be started. Not called after a cancellation."""
    loop = asyncio.get_running_loop()
    try:
        return loop.run_in_executor(threads, function, *args)
    except RuntimeError:
        done: asyncio.Future[Result] = loop.create_future()
        try:
            done.set_result(function(*args))
        except Exception as error:  # noqa: BLE001 - raised in the waiting caller
            done.set_exception(error)
        return done


class Pipeline(Protocol):
    """The part of the pipeline protocol that is used here."""

    threads: Executor | None

    def prepare(self, call: paddle.Call) -> None:
        """Make the feed, in any thread, unless user code makes it."""


async def decode_aside(
    protocol: Pipeline, exchange: Exchange, size: int, decode: Callable[[], paddle.Call]
) -> paddle.Call:
    """Decode a large body in a thread, including its feed.

    Args:
        protocol: the call's protocol.
        exchange: the request's exchange, which reserves the decoded size.
        size: bytes of the body.
        decode: decodes the call.

    Raises:
        RequestError: the body is invalid or too large.
    """
    exchange.decode(size)
    exchange.arrive(size)  # it is being decoded

    def decoded() -> paddle.Call:
        call = decode()
        protocol.prepare(call)
        return call

    try:
        call = await run_aside(protocol.threads, decoded)
    except RequestError:
        raise
    except Exception as error:  # noqa: BLE001 - our bug
        raise ours(error) from None
    exchange.decoded(size, call.decoded_bytes())
    return call


def take_room(held: Reservation, value: Feed) -> None:
    """Reserve the size of a large answer as text.

    Raises:
        ServiceBusy: it does not fit.
    """
    size = sum(getattr(each, "size", 0) for each in value.values()) * _A_NUMBER
    if size > held.limit:
        raise ServiceBusy("the answer exceeds the budget of bytes in flight")
    held.take(size)


def what_is_left(timeout: float | None, begun: float) -> float | None:
    """The rest of a caller's timeout, in seconds, after decoding."""
    return None if timeout is None else max(0.0, timeout - (time.monotonic() - begun))


def encoded(encode: Callable[[Reply], bytes], reply: Reply) -> bytes:
    """A reply in a port's format; or an error reply, if it cannot be encoded."""
    try:
        return encode(reply)
    except Exception as error:  # noqa: BLE001 - ops and hooks may put anything into it
        return encode(error_reply(ours(error)))


def ours(error: BaseException) -> RequestError:
    """Log a bug of ours; the caller gets no traceback."""
    _log.error("a request failed inside penstock; please report this", exc_info=error)
    return RequestError("internal error")
