"""Balances calls over the endpoints of one client, in turn, and skips those that fail."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from math import ceil

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
        self._channels = [
            EndpointChannel(endpoint, loop, security, rounding, on_health, protocol)
            for endpoint in endpoints
        ]
        self._turn = 0
        self.names = [str(endpoint) for endpoint in endpoints]

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
        for channel in self._channels:
            channel.close()

    async def closed(self) -> None:
        """After ``close``, wait until all their tasks have ended."""
        await asyncio.gather(*(channel.closed() for channel in self._channels))
