"""The pipeline protocol above any transport: a decoded call in, a reply out.

Both ports use it, so they cannot disagree. It decides which errors are answers (``err_no``) and
which end the call itself; the transports only translate. Source: ``docs/compatibility.md``.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import Executor
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

_LATE = "the request's deadline passed"
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
        pool: Executor | None = None,
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
            feed, log_id, error = await self._unpack_in_pool(call, deadline)
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
        # Not what the error says of itself: a worker that finds it first does not know whose it is.
        if by_client and isinstance(error, DeadlineExceeded):
            raise error
        if ends.blocking_pack:
            return await self._pack_in_pool(deadline, by_client, outcome, data_id, log_id, call)
        return ends.pack(outcome, data_id, log_id, call.typed)

    def as_reply(self, error: RequestError) -> Reply | None:
        """The reply that an error is, where it ends no call; None where the call itself fails."""
        # Its frames hold the request, and hold the error: together they would outlive the call.
        error.__traceback__ = None
        if isinstance(error, ServiceBusy) and not self.options.strict_status:
            return error_reply(error)
        return None

    def _refused(self, refusal: RequestError) -> Outcome:
        """What was not admitted is answered, unless the call itself is to fail."""
        refusal.__traceback__ = None
        strict = isinstance(refusal, ServiceBusy) and self.options.strict_status
        if strict or isinstance(refusal, ServiceClosed):
            raise refusal
        return Outcome(None, refusal)

    async def _unpack_in_pool(
        self, call: paddle.Call, deadline: float
    ) -> tuple[Feed, int, RequestError | None]:
        """The user's ``unpack_request_package``, in a thread, until the deadline."""
        try:
            unpacked: tuple[Feed, int, RequestError | None] = await self._until(
                deadline, self._ends.unpack, call
            )
        except TimeoutError:
            return {}, call.logid, DeadlineExceeded(_LATE)
        return unpacked

    async def _pack_in_pool(
        self,
        deadline: float,
        by_client: bool,
        outcome: Outcome,
        data_id: int,
        log_id: int,
        call: paddle.Call,
    ) -> Reply:
        """The user's ``pack_response_package``, in a thread, until the deadline."""
        try:
            reply: Reply = await self._until(
                deadline, self._ends.pack, outcome, data_id, log_id, call.typed
            )
        except TimeoutError:
            late = DeadlineExceeded(_LATE, by_client=by_client)
            if by_client:
                raise late from None
            return error_reply(late)
        return reply

    async def _until(self, deadline: float, function: Callable[..., Any], *args: Any) -> Any:
        """The user's code in a thread; TimeoutError at the deadline, whatever it does by then."""
        async with asyncio.timeout(deadline - time.monotonic()):
            return await self._loop.run_in_executor(self._pool, function, *args)


def _hand_in(future: asyncio.Future[Outcome], outcome: Outcome) -> None:
    """Complete the future, unless its caller went away in this very turn."""
    if not future.done():
        future.set_result(outcome)
