"""Which address this machine calls from."""

from __future__ import annotations

import socket
import time
from contextlib import suppress

# Addresses reserved for documentation: routed like any other, and never answered by anyone.
_ELSEWHERE = ((socket.AF_INET, "192.0.2.1"), (socket.AF_INET6, "2001:db8::1"))
_DISCARD_PORT = 9

_FRESH_SECONDS = 5.0
"""A guess: a machine rarely moves, and its address in a request is for the server's log."""


def own_address() -> str:
    """The address the system would call from; ``127.0.0.1`` on a machine without a route.

    It asks the routing table by connecting a datagram socket, which sends nothing. Resolving the
    host's own name, as the original did, waits for a name server and fails where there is none.
    """
    for family, remote in _ELSEWHERE:
        with suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((remote, _DISCARD_PORT))
            return str(probe.getsockname()[0])
    return "127.0.0.1"


class KnownAddress:
    """``own_address``, remembered for a while: asking costs more than a call does. Any thread."""

    __slots__ = ("_address", "_until")

    def __init__(self) -> None:
        self._address = ""
        self._until = 0.0

    def __call__(self) -> str:
        """The address as it was a few seconds ago at the most."""
        now = time.monotonic()
        if now >= self._until:
            self._address = own_address()
            self._until = now + _FRESH_SECONDS
        return self._address
