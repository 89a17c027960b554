"""Kinds of replies, and the size of large ones."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final, TypeAlias

from penstock.door.budget import Reservation
from penstock.errors import RequestError, ServiceBusy
from penstock.ops.ends import error_reply
from penstock.protocols import paddle, pb
from penstock.request import Feed

Reply: TypeAlias = paddle.Reply | pb.Response

_A_NUMBER: Final = 20
"""Usual maximum of bytes of an array's element in JSON."""

_log = logging.getLogger(__name__)


def take_room(held: Reservation, value: Feed) -> None:
    """Reserve the size of a large answer as text.

    Raises:
        ServiceBusy: it does not fit.
    """
    size = sum(getattr(each, "size", 0) for each in value.values()) * _A_NUMBER
    if size > held.limit:
        raise ServiceBusy("the answer exceeds the budget of bytes in flight")
    held.take(size)


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
