"""Which address this machine calls from."""

from __future__ import annotations

import socket
from contextlib import suppress

# Addresses reserved for documentation: routed like any other, and never answered by anyone.
_ELSEWHERE = ((socket.AF_INET, "192.0.2.1"), (socket.AF_INET6, "2001:db8::1"))
_DISCARD_PORT = 9


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
