"""Balances calls over the endpoints of one client, in turn, and skips those that fail."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from math import ceil
from typing import Any

from penstock.client.call import Call
from penstock.client.connection import CallProtocol
from penstock.client.endpoint_channel import EndpointChannel
from penstock.client.endpoints import Endpoint
from penstock.client.grpc import GRPC
from penstock.client.health import State, in_order
from penstock.client.tls import Security


class Endpoints:
    """The endpoints of one client on one loop.

    A call is sent to the next endpoint as long as no endpoint can have processed it. Unconnected
    endpoints connect in the background, so that no call waits for that while another endpoint is
    ready.

    Attributes:
        names: their addresses.
        on_close: called by ``close`` before it ends the calls.
    """

    def __init__(
        self,
        endpoints: Sequence[Endpoint],
        loop: asyncio.AbstractEventLoop,
        security: Security | None,
        rounding: Callable[[float], int] = ceil,
        on_health: Callable[[Endpoint, str | None], object] | None = None,
        protocol: CallProtocol = GRPC,
    ) -> None:
        """Connect nothing yet. The arguments are those of ``EndpointChannel``."""
        self._loop = loop
        self._make = partial(
            EndpointChannel,
            loop=loop,
            security=security,
            rounding=rounding,
            on_health=on_health,
            protocol=protocol,
        )
        self._channels = [self._make(endpoint) for endpoint in endpoints]
        self._retired: set[EndpointChannel] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._turn = 0
        self.names = [str(endpoint) for endpoint in endpoints]
        self.on_close: Callable[[], object] | None = None

    def run(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run a task until ``close``."""
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def put(self, at: int, endpoint: Endpoint, named: Endpoint) -> None:
        """Set the endpoint of an index, behind the last one or instead of one without calls.

        ``named``: see ``EndpointChannel``.
        """
        channel = self._make(endpoint, named=named)
        if at == len(self._channels):
            self._channels.append(channel)
            self.names.append(str(endpoint))
        else:
            self.retire(at)
            self._channels[at] = channel
            self.names[at] = str(endpoint)

    def retire(self, at: int) -> None:
        """Disconnect one endpoint, which has no calls."""
        self._retired = {each for each in self._retired if each.connected}
        self._channels[at].close()
        self._retired.add(self._channels[at])

    def start(self, call: Call) -> None:
        """Send a call, now or when a connection has a free stream."""
        channels = self._channels
        if len(channels) == 1:
            channels[0].start(call)
            return
        now = time.monotonic()
        first, *others = in_order(self.states(now), self._turn)
        self._turn = (self._turn + 1) % len(channels)
        call.untried = [channels[at] for at in reversed(others)]
        self.send(call, first, now)

    def states(self, now: float) -> list[State]:
        """Return the endpoints' states at ``now``."""
        return [each.state(now) for each in self._channels]

    def send(self, call: Call, at: int, now: float) -> None:
        """Send a call to one endpoint; the others connect in the background."""
        channels = self._channels
        if len(channels) > 1:
            for other, channel in enumerate(channels):
                if other != at:
                    channel.probe(now)
        channels[at].chosen(now)
        channels[at].start(call)

    def probe(self) -> None:
        """Connect to all endpoints."""
        for channel in self._channels:
            channel.probe(time.monotonic())

    def close(self) -> None:
        """Disconnect; calls end with CANCELLED. Closing twice is allowed."""
        if self.on_close is not None:
            self.on_close()
        for task in self._tasks:
            task.cancel()
        for channel in self._channels:
            channel.close()

    async def closed(self) -> None:
        """After ``close``, wait until all their tasks have ended."""
        ended = (channel.closed() for channel in {*self._channels, *self._retired})
        await asyncio.gather(*ended)
        if self._tasks:
            await asyncio.wait(self._tasks)
