"""The servers behind a name, which come and go: such as the pods of a Kubernetes service.

Source: gRPC's name resolution, from which the notation ``dns:///name:port`` is.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Collection, Sequence
from typing import Final

SCHEME: Final = "dns:///"
"""Before a name in a cluster: each of its addresses is a replica."""

AGAIN: Final = 10.0
"""Seconds after which a name that is in use is looked up again; a server that leaves is noticed
before, by its connection."""


async def lookup(loop: asyncio.AbstractEventLoop, host: str, port: int) -> list[str]:
    """Look up the addresses of a name, each once.

    Raises:
        OSError: it has none.
        UnicodeError: it cannot be a name.
    """
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP)
    return list(dict.fromkeys(str(address[4][0]) for address in found))


def changes(before: Collection[str], found: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the addresses that have come, and those that have gone. Pure."""
    come = [each for each in dict.fromkeys(found) if each not in before]
    return come, [each for each in before if each not in found]
