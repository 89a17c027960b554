"""The door: accepts connections, and serves their requests with an application.

    door = Door(application, DoorLimits(), budget)
    await door.listen(bind("127.0.0.1", 8000, "http_port"))
    ...
    door.drain()
    door.refuse_partial()
    await door.close(10.0)

One door serves any number of listeners, over TCP and Unix sockets, with TLS or without, and speaks
HTTP/1.1, HTTP/2 and baidu_std on each. ``DoorLimits`` bounds everything that clients send; output
that they do not read counts in the budget. Belongs to one loop.
"""

from __future__ import annotations

import asyncio
import dataclasses
import socket
import ssl
from contextlib import suppress
from functools import partial
from time import monotonic
from typing import Final

from penstock.door.budget import ByteBudget
from penstock.door.certificates import Certificates, prepared
from penstock.door.detection import ProtocolDetection
from penstock.door.exchange import Application, Failure, plain_failure
from penstock.door.limits import DoorLimits, DoorStatistics
from penstock.door.listeners import TlsListener, accept_backlog
from penstock.door.state import DoorState
from penstock.instrument import Instruments

__all__ = ["Door", "DoorLimits", "DoorStatistics"]

# Dead peers are detected after two minutes, even on idle streams.
_KEEPALIVE: Final = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 60),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 15),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 4),
)

_FIRST_BYTES_TIMEOUT: Final = 0.5
"""Seconds for a new client to send its first bytes while the door closes; they cover a TLS
handshake across a network."""


class Door:
    """Accepts connections and passes their requests to an application.

    Args:
        application: answers the requests.
        limits: limits of connections.
        budget: bytes in flight, shared by all ports.
        failure: makes the door's own error answers.
        instruments: notified of connections.
    """

    def __init__(
        self,
        application: Application,
        limits: DoorLimits,
        budget: ByteBudget,
        failure: Failure = plain_failure,
        instruments: Instruments | None = None,
    ) -> None:
        self._shared = DoorState(application, limits, budget, failure, instruments)
        self._listeners: list[tuple[asyncio.AbstractServer | TlsListener, socket.socket]] = []
        self._stopped: list[TlsListener] = []  # which may have handshakes under way

    async def listen(
        self, listener: socket.socket, tls: ssl.SSLContext | Certificates | None = None
    ) -> None:
        """Listen on a bound socket, TCP or Unix; returns when connections are accepted.

        Args:
            listener: closed by ``close``. Sockets that it accepts inherit its options.
            tls: has the server's certificate. A context is changed to offer HTTP/2 and HTTP/1.1 by
                ALPN, and at least TLS 1.2.

        Raises:
            OSError: another socket listens on the address.
        """
        shared = self._shared
        shared.sweeper.start()
        quota = shared.add_listener()
        if listener.family != socket.AF_UNIX:
            for option in _KEEPALIVE:
                listener.setsockopt(*option)
        if tls is not None:
            current = tls.current if isinstance(tls, Certificates) else partial(prepared, tls)
            self._listeners.append((TlsListener(shared, quota, listener, current), listener))
            return
        loop = asyncio.get_running_loop()
        is_unix = listener.family == socket.AF_UNIX
        serve = loop.create_unix_server if is_unix else loop.create_server
        backlog = shared.limits.backlog
        server = await serve(
            lambda: ProtocolDetection(shared, quota), sock=listener, backlog=backlog
        )
        self._listeners.append((server, listener))

    def statistics(self) -> DoorStatistics:
        """A copy of the counters."""
        shared = self._shared
        return dataclasses.replace(
            shared.counters,
            abuses=shared.counters.abuses.copy(),
            caller_refusals=shared.counters.caller_refusals.copy(),
            error_answers=shared.counters.error_answers.copy(),
            open=len(shared.connections) + shared.handshakes,
            calls=shared.calls,
            unsent=sum(connection.unread() for connection in shared.connections),
        )

    def drain(self) -> None:
        """Announce the shutdown to clients. New connections are still accepted and served.

        From now on, an HTTP/1.1 connection closes after its next answer, HTTP/2 clients get GOAWAY,
        and baidu_std calls are refused with ELOGOFF.
        """
        shared = self._shared
        if not shared.draining:
            shared.draining = True
            for connection in list(shared.connections):
                connection.drain()

    async def drain_acknowledged(self) -> None:
        """Wait, after ``drain``, until every HTTP/2 client has acknowledged it.

        Requests that clients sent before the acknowledgement have then arrived. A client that does
        not acknowledge is waited for during two periods of ``DoorLimits.period``.
        """
        shared = self._shared
        if shared.unacknowledged:
            acknowledged = asyncio.Event()
            shared.on_all_acknowledged = acknowledged.set
            await acknowledged.wait()

    def refuse_partial(self) -> None:
        """Answer incomplete requests with 503 or UNAVAILABLE. Later requests are still served."""
        for connection in list(self._shared.connections):
            if not connection.closing:
                connection.refuse_partial()

    async def hand_over(self, timeout: float) -> bool:
        """Drain for another process that listens on the same sockets: stop accepting, and wait.

        For half of the time, an HTTP/1.1 connection waits for its next request, whose answer closes
        it. Then those without a request are closed, so that no request begins shortly before the
        end.

        Args:
            timeout: seconds.

        Returns:
            Whether all connections have ended in time.
        """
        self.stop_accepting()
        self.drain()
        shared = self._shared
        empty = asyncio.Event()
        try:
            async with asyncio.timeout(timeout):
                for one in self._stopped:
                    await one.wait_closed()
                shared.on_empty = empty.set
                if shared.connections and not await _within(timeout / 2, empty):
                    for connection in list(shared.connections):
                        connection.end_idle()
                    if shared.connections:
                        await empty.wait()
        except TimeoutError:
            return False
        return True

    def stop_accepting(self) -> None:
        """Stop accepting. Open connections are served on, and pending handshakes may complete."""
        for one, _ in self._listeners:
            if isinstance(one, TlsListener):
                one.stop()
                self._stopped.append(one)
            else:
                one.close()
        self._listeners.clear()

    async def end_accepting(self, timeout: float) -> None:
        """Stop accepting, if no other process accepts on these sockets, now or later.

        Connections in the backlog are accepted. Returns when the client of each connection has sent
        something, but soon in any case: a proxy that has connected has a request.

        Args:
            timeout: seconds.
        """
        if not self._listeners:
            return
        shared = self._shared
        await accept_backlog([listener for _, listener in self._listeners], timeout)
        self.stop_accepting()
        heard = asyncio.Event()
        shared.on_all_heard = heard.set
        with suppress(TimeoutError):
            async with asyncio.timeout(min(_FIRST_BYTES_TIMEOUT, timeout)):
                for one in self._stopped:
                    await one.wait_closed()
                if shared.silent:
                    await heard.wait()
        # HTTP/2 clients that have connected since ``drain`` have no GOAWAY yet.
        for connection in list(shared.connections):
            connection.drain()

    async def close(self, timeout: float, *, for_good: bool = False) -> None:
        """Stop accepting, refuse incomplete requests, let the others finish, close.

        Args:
            timeout: seconds after which open exchanges are aborted.
            for_good: no other process accepts on these sockets, now or later. Connections in the
                backlog are then accepted, and served if they send a request soon.
        """
        self.drain()
        loop = asyncio.get_running_loop()
        end = loop.time() + timeout
        shared = self._shared
        empty = asyncio.Event()
        shared.leaving = True
        soon = min(_FIRST_BYTES_TIMEOUT, timeout)
        shared.last_head = monotonic() + soon
        self.refuse_partial()
        for connection in list(shared.connections):
            if not connection.closing:
                connection.leave()
        if for_good and self._listeners:
            await accept_backlog([listener for _, listener in self._listeners], timeout)
        self.stop_accepting()
        with suppress(TimeoutError):
            async with asyncio.timeout(soon):
                for one in self._stopped:
                    await one.wait_closed()
        for one in self._stopped:
            one.close()
            await one.wait_closed()
        if shared.connections:
            shared.on_empty = empty.set
            if not await _within(end - loop.time(), empty):
                for connection in list(shared.connections):
                    shared.counters.cut += 1
                    connection.abort()
                await _within(1.0, empty)
        shared.sweeper.stop()


async def _within(seconds: float, event: asyncio.Event) -> bool:
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return False
    return True
