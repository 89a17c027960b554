"""Ports are bound first and listened on last: a taken port fails at once, before models load."""

from __future__ import annotations

import errno
import os
import socket
from ipaddress import ip_address
from pathlib import Path

from penstock.errors import StartupError


def bind(host: str, port: int, what: str, *, shared: bool = False) -> socket.socket:
    """A bound TCP socket that does not listen yet.

    Args:
        host: address or name.
        port: 0 lets the system choose.
        what: names the port in the error.
        shared: other sockets of this user may be bound to the same port by the same wish, and the
            system deals new connections out among those that listen (SO_REUSEPORT): for several
            processes that each have a door of their own.

    Raises:
        StartupError: the address is taken or not ours.
    """
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except socket.gaierror as error:
        raise StartupError(f"host {host!r} is no address: {error.strerror}") from error
    family, kind, protocol, _, address = found[0]
    listener = socket.socket(family, kind, protocol)
    try:
        # So that a restart does not wait for old connections to be forgotten.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shared:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listener.bind(address)
    except OSError as error:
        listener.close()
        raise StartupError(
            f"{what} {port} on {host} cannot be bound: {error.strerror}; "
            f"is another service running there?"
        ) from error
    return listener


def bind_shared(host: str, port: int, what: str, count: int) -> list[socket.socket]:
    """Sockets bound to the same port, among which the system deals out new connections.

    The first is bound as if it were alone, so that a port on which somebody listens is refused,
    even if that one would share it.

    Args:
        host: address or name.
        port: 0 lets the system choose.
        what: names the port in the error.
        count: how many; one alone does not share.

    Raises:
        StartupError: the address is taken or not ours, or this system has no such ports.
    """
    if count > 1 and not hasattr(socket, "SO_REUSEPORT"):
        raise StartupError(f"{what}: this system cannot share a port (SO_REUSEPORT)")
    listeners = [bind(host, port, what)]
    try:
        if count > 1:
            listeners[0].setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        port = port_of(listeners[0])
        for _ in range(count - 1):
            listeners.append(bind(host, port, what, shared=True))
    except BaseException:
        for each in listeners:
            each.close()
        raise
    return listeners


def bind_unix(path: Path, what: str) -> socket.socket:
    """A bound Unix socket that does not listen yet; only this user may connect.

    Args:
        path: must not exist; whoever binds it removes it in the end.
        what: names the socket in the error.

    Raises:
        StartupError: the path is taken, or cannot be made.
    """
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    before = os.umask(0o177)  # so that there is no moment in which others could connect
    try:
        listener.bind(str(path))
    except OSError as error:
        listener.close()
        why = error.strerror or str(error)
        if error.errno == errno.EADDRINUSE:
            # Who is bound there may not listen yet, so whether it is forgotten cannot be tried.
            why = "it exists; unless a service is there, one that was killed has left it: remove it"
        raise StartupError(f"{what}: {path} cannot be bound: {why}") from error
    finally:
        os.umask(before)
    return listener


def is_free(host: str, port: int) -> bool:
    """Whether the port could be bound just now."""
    try:
        bind(host, port, "port").close()
    except StartupError:
        return False
    return True


def port_of(listener: socket.socket) -> int:
    """The number of a bound socket's port."""
    return int(listener.getsockname()[1])


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches the address."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
