"""Parses addresses of endpoints, and finds the local address.

Source: ``docs/compatibility.md`` (pipeline client). Host names are allowed, which the original
refused; nothing is resolved here.
"""

from __future__ import annotations

import ipaddress
import re
import socket
from contextlib import suppress
from dataclasses import dataclass

# Underscores are not allowed in host names, but container networks use them.
_HOST_NAME = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9_.-]{0,252})")
_PORT = re.compile(r"[0-9]{1,5}")

# Addresses reserved for documentation: routed like any other, and used by no host.
_ELSEWHERE = ((socket.AF_INET, "192.0.2.1"), (socket.AF_INET6, "2001:db8::1"))
_DISCARD_PORT = 9


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """The address of a server.

    Attributes:
        host: a name or a literal address; IPv6 without brackets.
        port: 1 to 65535.
    """

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_endpoints(endpoints: object) -> tuple[Endpoint, ...]:
    """Parse a list of ``host:port`` texts.

    Raises:
        TypeError: the argument is not a list or tuple of texts.
        ValueError: it is empty, or an entry is not ``host:port``; IPv6 is written ``[::1]:9993``.
    """
    if not isinstance(endpoints, list | tuple):
        raise TypeError(f"endpoints must be a list of host:port, got {type(endpoints)}")
    if not endpoints:
        raise ValueError("endpoints must name at least one host:port")
    return tuple(_parse(endpoint) for endpoint in endpoints)


def _parse(text: object) -> Endpoint:
    if not isinstance(text, str):
        raise TypeError(f"an endpoint must be a text host:port, got {type(text)}")
    host, _, port = text.rpartition(":")
    if not _PORT.fullmatch(port) or not 1 <= int(port) <= 65535:
        raise ValueError(f"an endpoint must be host:port, got {text!r}")
    if host.startswith("[") and host.endswith("]"):
        try:
            host = ipaddress.IPv6Address(host[1:-1]).compressed
        except ValueError as error:
            raise ValueError(f"not an IPv6 address in the endpoint {text!r}") from error
    elif not _HOST_NAME.fullmatch(host):
        raise ValueError(f"an endpoint must be host:port, got {text!r}")
    return Endpoint(host=host, port=int(port))


def own_address() -> str:
    """Return the local address of outgoing connections; ``127.0.0.1`` on a machine without a route.

    It connects a datagram socket, which consults the routing table and sends nothing. The original
    resolved the host's own name, which needs a name server.
    """
    for family, remote in _ELSEWHERE:
        with suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((remote, _DISCARD_PORT))
            return str(probe.getsockname()[0])
    return "127.0.0.1"
