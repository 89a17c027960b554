"""Detects that the other machine of a connection has gone: it sends nothing then."""

from __future__ import annotations

import socket
from typing import Final

_IDLE: Final = 10  # seconds without data before the first probe
_BETWEEN: Final = 5  # seconds between two probes
_MOST: Final = 4  # probes without an answer
UNSENT_MS: Final = 30_000
"""Milliseconds after which data that the other machine does not take end the connection; as long as
all the probes together."""


def keep_alive(link: socket.socket) -> None:
    """Let the kernel ask the other machine whether it is there, when nothing is sent."""
    link.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _IDLE)
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _BETWEEN)
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, _MOST)


def limit_unsent(link: socket.socket) -> None:
    """End the connection when the other machine takes no data for a while; for one that reads what
    it is sent at once.
    """
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, UNSENT_MS)
