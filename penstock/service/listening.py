"""What a service listens on: bound at first, listened on when everything can serve."""

from __future__ import annotations

import logging
import socket
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final, TypeAlias

from penstock.config.ports import ports
from penstock.config.schema import ServiceConfig
from penstock.door.limits import DoorLimits
from penstock.door.listeners import bind, bind_shared, bind_unix, is_free, port_of
from penstock.errors import StartupError
from penstock.service.banner import Addresses

_log = logging.getLogger(__name__)

Listeners: TypeAlias = Mapping[str, socket.socket]
"""One engine's, by the key that asks for them."""

_UNIX: Final = "door.unix_socket"


def bind_all(config: ServiceConfig, stack: ExitStack) -> list[Listeners]:
    """Each engine's sockets, bound and not listening yet.

    Ports are shared, a socket for each engine; a Unix socket is one, on which all accept.

    Args:
        config: a checked configuration.
        stack: closes and removes them.

    Raises:
        StartupError: an address is taken or cannot be used.
    """
    engines = config.engines
    chosen = ports(config, lambda port: is_free(config.host, port))
    found: list[dict[str, socket.socket]] = [{} for _ in range(engines)]

    def share(key: str, port: int) -> None:
        for own, listener in zip(found, bind_shared(config.host, port, key, engines), strict=True):
            stack.callback(listener.close)
            own[key] = listener

    share("rpc_port", chosen.rpc)
    if chosen.http is not None:
        share("http_port", chosen.http)
    path = config.door.unix_socket
    if path is not None:
        listener = bind_unix(Path(path), _UNIX)
        stack.callback(listener.close)
        stack.callback(Path(path).unlink, missing_ok=True)
        for own in found:
            own[_UNIX] = listener
    if chosen.rpc_chosen:
        _log.info("rpc_port is not set: gRPC is served on port %s", port_of(found[0]["rpc_port"]))
    return list(found)


def listen_on_all(config: ServiceConfig, engines: Sequence[Listeners]) -> None:
    """Listen: connections wait from now on to be accepted.

    Raises:
        StartupError: another process listens there by now.
    """
    for key in ("rpc_port", "http_port"):
        if len(engines) > 1 and key in engines[0]:
            # The system would let another service of this user in that began when we did.
            bind(config.host, port_of(engines[0][key]), key).close()
    for own in engines:
        for key, listener in own.items():
            try:
                listener.listen(DoorLimits().backlog)
            except OSError as error:
                at = listener.getsockname()
                raise StartupError(f"{key}: cannot listen on {at}: {error.strerror}") from error


def addresses(config: ServiceConfig, listeners: Listeners) -> Addresses:
    """Where that is, for people."""
    http = listeners.get("http_port")
    return Addresses(
        host=config.host,
        rpc_port=port_of(listeners["rpc_port"]),
        http_port=None if http is None else port_of(http),
        unix_socket=config.door.unix_socket,
        tls=config.door.tls.certificate is not None,
    )
