"""A listener with TLS that counts the handshakes under way.

The loop's own server tells nobody of a connection before its handshake is over, so that clients
which never finish theirs could take every descriptor.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from typing import Final

from penstock.door.detection import PROTOCOLS, Greeting
from penstock.door.state import DoorState, Entrance

_log = logging.getLogger(__name__)

_PAUSE: Final = 0.25
"""Seconds without accepting after the system refused: it lacks descriptors or memory."""

_TURN: Final = 64
"""Connections accepted in one turn of the loop."""


class TlsListener:
    """Accepts on a listening socket, which it closes at the end.

    Args:
        shared: of the door.
        entrance: its own.
        listener: bound; it listens from now on.
        tls: is made to offer HTTP/2 and HTTP/1.1, and nothing older than TLS 1.2.
    """

    def __init__(
        self,
        shared: DoorState,
        entrance: Entrance,
        listener: socket.socket,
        tls: ssl.SSLContext,
    ) -> None:
        self._shared = shared
        self._entrance = entrance
        self._listener = listener
        self._tls = tls
        self._loop = asyncio.get_running_loop()
        self._retry: asyncio.TimerHandle | None = None
        self._handshakes: set[asyncio.Task[None]] = set()
        tls.set_alpn_protocols(PROTOCOLS)
        tls.minimum_version = max(tls.minimum_version, ssl.TLSVersion.TLSv1_2)
        listener.setblocking(False)
        listener.listen(shared.limits.backlog)
        self._loop.add_reader(listener.fileno(), self._accept)

    def stop(self) -> None:
        """Accept no more; handshakes under way come to their end."""
        if self._retry is not None:
            self._retry.cancel()
        if self._listener.fileno() >= 0:
            self._loop.remove_reader(self._listener.fileno())
            self._listener.close()

    def close(self) -> None:
        """Accept no more; break off the handshakes under way."""
        self.stop()
        for task in self._handshakes:
            task.cancel()

    async def wait_closed(self) -> None:
        """Return when no handshake is left."""
        await asyncio.gather(*self._handshakes, return_exceptions=True)

    def _accept(self) -> None:
        for _ in range(_TURN):
            try:
                link, _ = self._listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                _log.warning("connections cannot be accepted: %s", error.strerror)
                self._loop.remove_reader(self._listener.fileno())
                self._retry = self._loop.call_later(_PAUSE, self._accept_again)
                return
            if self._shared.is_full(self._entrance):
                self._shared.counters.refused += 1
                link.close()
                continue
            self._shared.handshakes += 1
            self._entrance.open += 1
            task = self._loop.create_task(self._shake_hands(link))
            self._handshakes.add(task)
            task.add_done_callback(self._handshakes.discard)

    def _accept_again(self) -> None:
        self._loop.add_reader(self._listener.fileno(), self._accept)

    async def _shake_hands(self, link: socket.socket) -> None:
        shared = self._shared
        try:
            link.setblocking(False)
            await self._loop.connect_accepted_socket(
                lambda: Greeting(shared, self._entrance, counted=True),
                link,
                ssl=self._tls,
                ssl_handshake_timeout=shared.limits.tls_timeout,
                ssl_shutdown_timeout=shared.limits.linger,
            )
        except OSError as error:  # TimeoutError and SSLError are some
            shared.counters.tls_failed += 1
            _log.debug("a TLS handshake failed: %s", error)
        finally:
            shared.handshakes -= 1
            self._entrance.open -= 1
