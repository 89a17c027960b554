"""Replies: their kinds, and the threads that write large ones."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Any, TypeAlias

from penstock.errors import RequestError
from penstock.ops.ends import error_reply
from penstock.protocols import paddle, pb

Reply: TypeAlias = paddle.Reply | pb.Response

_log = logging.getLogger(__name__)


class Writers:
    """Threads that make replies of results that take long to be written.

    Args:
        threads: None for the loop's own.

    Threads: the loop's only.
    """

    def __init__(self, threads: Executor | None) -> None:
        self._threads = threads
        self._loop = asyncio.get_running_loop()

    def __repr__(self) -> str:
        return f"<Writers {self._threads!r}>"

    def write(self, pack: Callable[..., Reply], *args: Any) -> asyncio.Future[Reply]:
        """The reply that ``pack`` makes. Cancelled before its turn, it is not made."""
        try:
            return self._loop.run_in_executor(self._threads, pack, *args)
        except RuntimeError:  # there is no thread, and none can be started
            reply: asyncio.Future[Reply] = self._loop.create_future()
            reply.set_result(pack(*args))
            return reply


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
