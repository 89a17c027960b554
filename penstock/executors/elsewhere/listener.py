"""The socket to which workers elsewhere connect: each shows its token first, once."""

from __future__ import annotations

import asyncio
import hmac
import logging
import secrets
import socket
from typing import Final, TypeAlias

from penstock.executors.elsewhere.keepalive import keep_alive, limit_unsent

_log = logging.getLogger(__name__)

Connected: TypeAlias = "asyncio.Future[socket.socket]"

_TOKEN_BYTES: Final = 64
_TOKEN_TIMEOUT: Final = 10.0  # seconds for a connection to show its token
_MOST_STRANGERS: Final = 64  # most connections that have not shown theirs
_PAUSE: Final = 0.25  # seconds without accepting after an error, such as no free descriptor


class Listener:
    """See the module. Belongs to the engine's loop.

    Args:
        op: the op's name, for messages.
        host: the address on which it listens.
    """

    def __init__(self, op: str, host: str, loop: asyncio.AbstractEventLoop) -> None:
        self._op = op
        self._loop = loop
        self._expected: dict[str, Connected] = {}  # by token
        self._strangers: set[asyncio.Task[None]] = set()
        self._paused: asyncio.TimerHandle | None = None
        self._socket = socket.create_server((host, 0))
        self._socket.setblocking(False)
        self.host, self.port = self._socket.getsockname()[:2]
        loop.add_reader(self._socket, self._accept)

    def expect(self) -> tuple[str, Connected]:
        """Expect a worker.

        Returns:
            Its token, and a future of its connection; cancelled when it will not come any more.
        """
        token = secrets.token_hex(_TOKEN_BYTES // 2)
        connected = self._expected[token] = self._loop.create_future()
        connected.add_done_callback(lambda _: self._expected.pop(token, None))
        return token, connected

    def close(self) -> None:
        """Close the socket, and connections that have not shown a token."""
        if self._paused is not None:
            self._paused.cancel()
        self._loop.remove_reader(self._socket)
        self._socket.close()
        for each in self._strangers:
            each.cancel()

    def _accept(self) -> None:
        try:
            link, _ = self._socket.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return
        except OSError as error:
            _log.warning("op %s: workers cannot be accepted: %s", self._op, error.strerror)
            self._loop.remove_reader(self._socket)
            self._paused = self._loop.call_later(_PAUSE, self._accept_again)
            return
        if len(self._strangers) >= _MOST_STRANGERS:
            link.close()
            return
        task = self._loop.create_task(self._admit(link))
        self._strangers.add(task)
        task.add_done_callback(self._strangers.discard)

    def _accept_again(self) -> None:
        self._loop.add_reader(self._socket, self._accept)

    async def _admit(self, link: socket.socket) -> None:
        link.setblocking(False)
        connected: Connected | None = None
        try:
            async with asyncio.timeout(_TOKEN_TIMEOUT):
                shown = b""
                while len(shown) < _TOKEN_BYTES:
                    data = await self._loop.sock_recv(link, _TOKEN_BYTES - len(shown))
                    if not data:
                        break
                    shown += data
            connected = self._find(shown)
            if connected is None:
                _log.warning("op %s: a connection without a valid token is closed", self._op)
        except (OSError, TimeoutError):
            _log.warning("op %s: a connection that showed no token is closed", self._op)
        finally:
            if connected is None:
                link.close()
        if connected is not None:
            link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            keep_alive(link)
            limit_unsent(link)
            connected.set_result(link)

    def _find(self, shown: bytes) -> Connected | None:
        """The worker that is expected with this token."""
        for token, connected in self._expected.items():
            if hmac.compare_digest(token.encode(), shown) and not connected.done():
                return connected
        return None
