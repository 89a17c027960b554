"""The pipeline protocol above any transport: a decoded call in, a reply out.

Both ports use it, so they cannot disagree. It decides which errors are answers (``err_no``) and
which end the call itself; the transports only translate. Source: ``docs/compatibility.md``.
"""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeAlias

from penstock.engine.engine import Engine
from penstock.errors import (
    DeadlineExceeded,
    RequestError,
    ServiceBusy,
    ServiceClosed,
    UnknownService,
)
from penstock.ops.ends import Ends, error_reply
from penstock.protocols import paddle, pb
from penstock.request import Outcome, Request

Reply: TypeAlias = paddle.Reply | pb.Response

NO_ID = -1
"""Stands for the data id of a request that ended before it was admitted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineOptions:
    """How the protocol behaves.

    Attributes:
        name: the service's name; None accepts every name.
        deadline: seconds a request may take; a caller may lower it, never raise it.
        strict_status: busy fails the call (429, RESOURCE_EXHAUSTED) instead of answering 3004.
    """

    name: str | None
    deadline: float = 60.0
    strict_status: bool = False


class PipelineProtocol:
    """One pipeline service. Belongs to the engine's loop.

    Args:
        engine: answers requests.
        ends: the graph's two ends.
        options: see PipelineOptions.
        pool: runs the ends' user code; None when both are the defaults.
    """

    def __init__(
        self,
        engine: Engine,
        ends: Ends,
        options: PipelineOptions,
        pool: ThreadPoolExecutor | None = None,
    ) -> None:
        self._engine = engine
        self._ends = ends
        self._pool = pool
        self.options = options

    async def answer(self, call: paddle.Call, client_timeout: float | None = None) -> Reply:
        """Answer one call.

        Args:
            call: as decoded.
            client_timeout: seconds the caller gives it, from now.

        Raises:
            DeadlineExceeded: the caller's own limit passed (the server's own is an answer).
            ServiceClosed: draining; the request was not admitted.
            ServiceBusy: at capacity, with ``strict_status``.
            asyncio.CancelledError: the caller went away; its work is dropped.
        """
        options = self.options
        if call.name and options.name is not None and call.name != options.name:
            return error_reply(UnknownService("Failed to inference: Service name error."))
        now = time.monotonic()
        limit, by_client = options.deadline, False
        if client_timeout is not None:
            by_client = client_timeout <= limit
            limit = min(client_timeout, limit)
        deadline = now + limit
        outcome, data_id, log_id = await self._run(call, deadline, by_client)
        error = outcome.error
        if isinstance(error, DeadlineExceeded) and error.by_client:
            raise error
        if self._ends.blocking_pack:
            reply: Reply = await self._in_pool(
                self._ends.pack, outcome, data_id, log_id, call.typed
            )
            return reply
        return self._ends.pack(outcome, data_id, log_id, call.typed)

    async def _run(
        self, call: paddle.Call, deadline: float, by_client: bool
    ) -> tuple[Outcome, int, int]:
        """The graph's outcome, the data id and the log id."""
        if self._ends.blocking_unpack:
            try:
                async with asyncio.timeout(deadline - time.monotonic()):
                    feed, log_id, error = await self._in_pool(self._ends.unpack, call)
            except TimeoutError:
                late = DeadlineExceeded("the request's deadline passed", by_client=by_client)
                return Outcome(None, late), NO_ID, call.logid
        else:
            feed, log_id, error = self._ends.unpack(call)
        if error is not None:
            return Outcome(None, error), NO_ID, log_id
        request = Request(feed=feed, log_id=log_id, deadline=deadline, deadline_by_client=by_client)
        future: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        try:
            journey = self._engine.submit(request, future.set_result)
        except ServiceClosed:
            raise
        except ServiceBusy as busy:
            if self.options.strict_status:
                raise
            return Outcome(None, busy), NO_ID, log_id
        except RequestError as refused:
            return Outcome(None, refused), NO_ID, log_id
        try:
            return await future, journey.data_id, log_id
        except asyncio.CancelledError:
            self._engine.cancel(journey)
            raise

    def _in_pool(self, function: Any, *args: Any) -> asyncio.Future[Any]:
        return asyncio.get_running_loop().run_in_executor(self._pool, function, *args)
