"""Calls over several equal servers, for an event loop: of remote ops.

The least busy server that works gets a call. If it refuses the call before it has begun it, such as
at capacity, the others get it, each once, without a pause. Nothing that may have run is repeated.
"""

from __future__ import annotations

import asyncio
from copy import copy

from penstock.client.call import METHOD, failure
from penstock.client.channels import AsyncChannel
from penstock.client.errors import CallFailed
from penstock.client.routed_call import Ended, Replicas, RoutedCall, Sent
from penstock.client.routing import Attempts, HedgeBudget
from penstock.protocols.status import GrpcCode


class RoutedChannel:
    """See the module. Use on the channel's loop only; it is closed with the channel.

    Args:
        channel: calls the servers.
    """

    def __init__(self, channel: AsyncChannel) -> None:
        self._channel = channel
        self._loop = asyncio.get_running_loop()
        budget = HedgeBudget(0.0)
        self._replicas = Replicas(
            channel.opened, self._loop, "least_requests", budget, logs_rows=False
        )

    async def call(
        self, request: bytes, *, deadline: float | None, method: str = METHOD, fields: bytes = b""
    ) -> bytes:
        """Make one call. Cancelling the task cancels the call.

        Raises:
            CallFailed: there was no reply.
        """
        future: asyncio.Future[Ended] = self._loop.create_future()

        def on_end(ended: Ended) -> None:
            if not future.done():
                future.set_result(ended)

        frame, block = self._channel.framed(request, fields)
        sent = Sent(frame=frame, method=method, fields=block, deadline=deadline, decode=_as_it_is)
        most = len(self._replicas.names)
        attempts = Attempts(most, deadline, idempotent=False, rounds=False)
        call = RoutedCall(self._replicas, sent, attempts, on_end)
        call.start()
        try:
            ended = await future
        except asyncio.CancelledError:
            call.cancel(failure(GrpcCode.CANCELLED, "cancelled by the caller"))
            raise
        if isinstance(ended.value, CallFailed):
            raise copy(ended.value)  # raising an exception changes its traceback
        reply: bytes = ended.value
        return reply


def _as_it_is(reply: bytes) -> bytes:
    return reply
