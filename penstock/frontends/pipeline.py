"""The pipeline protocol above any transport: a decoded call in, a reply out.

Both ports use it, so they cannot disagree. It decides which errors are answers (``err_no``) and
which end the call itself; the transports only translate. Source: ``docs/compatibility.md``.
"""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
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
from penstock.request import Feed, Outcome, Request

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
        self._loop = asyncio.get_running_loop()
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
        ends = self._ends
        if ends.blocking_unpack:
            feed, log_id, error = await self._unpack_in_pool(call, deadline, by_client)
        else:
            feed, log_id, error = ends.unpack(call)
        data_id = NO_ID
        if error is not None:
            outcome = Outcome(None, error)
        else:
            future: asyncio.Future[Outcome] = self._loop.create_future()
            request = Request(
                feed=feed, log_id=log_id, deadline=deadline, deadline_by_client=by_client
            )
            try:
                journey = self._engine.submit(request, partial(_hand_in, future))
            except RequestError as refusal:
                outcome = self._refused(refusal)
            else:
                data_id = journey.data_id
                try:
                    outcome = await future
                except asyncio.CancelledError:
                    self._engine.cancel(journey)
                    raise
        error = outcome.error
        if error is not None and isinstance(error, DeadlineExceeded) and error.by_client:
            raise error
        if ends.blocking_pack:
            reply: Reply = await self._in_pool(ends.pack, outcome, data_id, log_id, call.typed)
            return reply
        return ends.pack(outcome, data_id, log_id, bool(call.tensors))

    def _refused(self, refusal: RequestError) -> Outcome:
        """What was not admitted is answered, unless the call itself is to fail."""
        if isinstance(refusal, ServiceClosed):
            raise refusal
        if isinstance(refusal, ServiceBusy) and self.options.strict_status:
            raise refusal
        return Outcome(None, refusal)

    async def _unpack_in_pool(
        self, call: paddle.Call, deadline: float, by_client: bool
    ) -> tuple[Feed, int, RequestError | None]:
        """The user's ``unpack_request_package``, in a thread, until the deadline."""
        try:
            async with asyncio.timeout(deadline - time.monotonic()):
                unpacked: tuple[Feed, int, RequestError | None] = await self._in_pool(
                    self._ends.unpack, call
                )
                return unpacked
        except TimeoutError:
            late = DeadlineExceeded("the request's deadline passed", by_client=by_client)
            return {}, call.logid, late

    def _in_pool(self, function: Any, *args: Any) -> asyncio.Future[Any]:
        return self._loop.run_in_executor(self._pool, function, *args)


def _hand_in(future: asyncio.Future[Outcome], outcome: Outcome) -> None:
    """Complete the future, unless its caller went away in this very turn."""
    if not future.done():
        future.set_result(outcome)
