"""A connection of a client: what all protocols of calls share.

A connection moves bytes between a transport and its protocol, and ends calls with their outcomes.
Its owner, an ``EndpointChannel``, decides when to connect, and which calls it sends. Use on the
loop's thread only.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Collection, Iterable
from typing import NamedTuple, Protocol

from penstock.client.call import Call, Outcome, failure, nonsense
from penstock.client.errors import CallFailed
from penstock.protocols.http2 import encode_block
from penstock.protocols.status import GrpcCode


class Owner(Protocol):
    """What a connection needs of its owner.

    Attributes:
        authority: the server's name in requests.
        is_secure: connections use TLS.
        waiting: queued calls, in order; some may have ended.
    """

    authority: str
    is_secure: bool
    waiting: deque[Call]

    async def dial(self, connection: Connection, protocol: asyncio.Protocol) -> None:
        """Make a further connection to the server of ``connection``.

        Raises:
            OSError: none could be made.
        """

    def left_ms(self, call: Call) -> int | None:
        """Return the milliseconds until the call's deadline, rounded; None without a deadline."""

    def call_ended(self, outcome: Outcome) -> None:
        """Update the health: a call has ended."""

    def capacity_freed(self, connection: Connection) -> None:
        """Send queued calls while the connection accepts them."""

    def retry_unprocessed(self, call: Call) -> None:
        """Send a call again that the server has certainly not processed."""

    def leaving(self, connection: Connection) -> None:
        """The connection accepts no further calls; the next one is made on demand."""

    def lost(self, connection: Connection) -> None:
        """The connection was closed; if it had calls but no answer, the attempt has failed."""


class Connection(asyncio.Protocol, ABC):
    """One connection; a protocol for the loop's ``create_connection``.

    Args:
        owner: decides about the connection.
        loop: its loop.
        name: the endpoint, for error texts.

    Attributes:
        settled: done when the connection accepts calls, or has failed.
        gone: done when the transport is closed.
        problem: why the connection ends.
        server_drains: the server has announced, without an error, that it shuts down.
        opened: number of calls sent.
        has_answered: the server has answered a call.
        given_up: the client has closed it, to cancel calls.
        host: the address to which it was made.
    """

    def __init__(self, owner: Owner, loop: asyncio.AbstractEventLoop, name: str) -> None:
        self._owner = owner
        self._loop = loop
        self._name = name
        self._transport: asyncio.Transport | None = None
        self._leaving = False
        self.opened = 0
        self.problem = "the connection was closed"
        self.server_drains = False
        self.has_answered = False
        self.given_up = False
        self.host = ""
        self.settled: asyncio.Future[None] = loop.create_future()
        self.gone: asyncio.Future[None] = loop.create_future()

    @property
    def usable(self) -> bool:
        """Whether it accepts calls; False before it is connected and when it is about to close."""
        transport = self._transport
        return transport is not None and not (self._leaving or transport.is_closing())

    @abstractmethod
    def open(self, call: Call) -> bool:
        """Send a call. Returns False if the call must wait, or use another connection."""

    @abstractmethod
    def leave(self, call: Call) -> None:
        """Cancel a call on this connection."""

    def consumed(self, call: Call, count: int) -> None:
        """Return bytes of a call's answer to the server's window, if the protocol has one."""

    @abstractmethod
    def close(self, failed: CallFailed | None = None) -> None:
        """Disconnect; open calls end with ``failed``, or with UNAVAILABLE."""

    @abstractmethod
    def _take_calls(self) -> Collection[Call]:
        """Forget all open calls, and return them."""

    def abort(self) -> None:
        """Disconnect at once."""
        if self._transport is not None:
            self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """The transport was closed, by either side or by an error. Called once."""
        if self.gone.done():
            return
        if exc is not None:
            self.problem = f"the connection broke: {exc}"
        self._transport = None
        if not self.settled.done():
            self.settled.set_result(None)
        self._end_calls(None)
        self._owner.lost(self)
        self.gone.set_result(None)

    def _leave(self) -> None:
        """Accept no further calls."""
        if not self._leaving:
            self._leaving = True
            self._owner.leaving(self)

    def _fail(self, problem: str) -> None:
        """End the connection: the server does not follow the protocol."""
        self.problem = problem
        self.close(nonsense(f"{self._name}: {problem}"))

    def _end_calls(self, failed: CallFailed | None) -> None:
        text = f"{self._name}: {self.problem}"
        for call in self._take_calls():
            call.end(failed or failure(GrpcCode.UNAVAILABLE, text))


class CallProtocol(NamedTuple):
    """The protocol of calls.

    Attributes:
        frame: encodes a request for sending.
        connect: makes a connection of an owner on a loop; the text names the endpoint.
        connect_seconds: timeout of an attempt to connect; None for the default.
        encode_fields: encodes header fields, for ``Call.fields``.
        alpn: its name in TLS.
    """

    frame: Callable[[bytes], bytes]
    connect: Callable[[Owner, asyncio.AbstractEventLoop, str], Connection]
    connect_seconds: float | None = None
    encode_fields: Callable[[Iterable[tuple[bytes, bytes]]], bytes] = encode_block
    alpn: str = "h2"
