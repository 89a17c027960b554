"""Listening sockets: bind, TLS handshakes, and close.

Ports are bound first and listened on last: a taken port fails at once, before models load.
"""

from __future__ import annotations

import asyncio
import ctypes
import errno
import logging
import os
import select
import socket
import ssl
import struct
from collections.abc import Callable, Sequence
from ipaddress import ip_address
from pathlib import Path
from typing import Final

from penstock.door.detection import ProtocolDetection
from penstock.door.state import DoorState, ListenerQuota
from penstock.errors import StartupError

_log = logging.getLogger(__name__)

_PAUSE: Final = 0.25
"""Seconds for which accepting pauses after an error, such as a lack of descriptors or memory."""

_TURN: Final = 64
"""Maximum connections accepted in one turn of the loop."""

_HANDSHAKE: Final = 0.1
"""Seconds in which a handshake that has begun usually ends: a few round trips in a network."""


_SO_ATTACH_FILTER: Final = 26  # <asm-generic/socket.h>; the module socket does not have it
_DROP_SYN: Final = (
    (0x30, 0, 0, 13),  # load the byte of TCP's header with the flags
    (0x54, 0, 0, 0x12),  # SYN and ACK
    (0x15, 0, 1, 0x02),  # SYN alone?
    (0x06, 0, 0, 0),  # drop
    (0x06, 0, 0, 0xFFFFFFFF),  # accept
)
"""Instructions of a classic BPF filter: code, jumps if true and if false, operand."""


def bind(host: str, port: int, what: str, *, shared: bool = False) -> socket.socket:
    """Bind a TCP socket, without listening.

    Args:
        host: address or name.
        port: 0 lets the system choose.
        what: names the port in the error.
        shared: other sockets of this user may bind the same port with this option, and the system
            distributes new connections among those that listen (SO_REUSEPORT): for several
            processes with a door each.

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
        # So that a restart does not wait for old connections in TIME_WAIT.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shared:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listener.bind(address)
    except OSError as error:
        listener.close()
        served = "grpc_port" if what == "rpc_port" else "port"
        advice = (
            f"choose another port: --{what.replace('_', '-')} of penstock run,"
            f" --{served} of a model server, or the key {what}"
        )
        if error.errno == errno.EADDRNOTAVAIL:
            advice = "set host to an address of this machine, or to 0.0.0.0 for all of them"
        raise StartupError(
            f"{what} {port} on {host} cannot be bound: {error.strerror}; {advice}"
        ) from error
    return listener


def bind_shared(host: str, port: int, what: str, count: int) -> list[socket.socket]:
    """Bind ``count`` sockets to one port; the system distributes new connections among them.

    The first is bound without sharing, so that a port with another listener is refused even if that
    listener shares it. Arguments and errors as of ``bind``; a single socket does not share.
    """
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
    """Bind a Unix socket, without listening; only this user may connect.

    Args:
        path: must not exist; the caller removes it.
        what: names the socket in the error.

    Raises:
        StartupError: the path is taken, or cannot be made.
    """
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    before = os.umask(0o177)  # so that other users can never connect
    try:
        listener.bind(str(path))
    except OSError as error:
        listener.close()
        why = error.strerror or str(error)
        if error.errno == errno.EADDRINUSE:
            # A refused connection would not prove that it is stale: its owner may not listen yet.
            why = "another program has this socket, or has left it: stop it, or choose another path"
            if not path.is_socket():
                why = "a file of this name exists, and is no socket: choose another path"
        raise StartupError(f"{what}: {path} cannot be bound: {why}") from error
    finally:
        os.umask(before)
    return listener


def is_free(host: str, port: int) -> bool:
    """Whether the port can be bound now."""
    try:
        bind(host, port, "port").close()
    except StartupError:
        return False
    return True


def port_of(listener: socket.socket) -> int:
    """Return the port of a bound socket."""
    return int(listener.getsockname()[1])


def is_loopback(host: str) -> bool:
    """Whether the address is a loopback address."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class TlsListener:
    """Accepts TLS connections on a socket, which it closes at the end, and counts handshakes.

    asyncio's server does not report a connection before its handshake has ended, so clients that
    never finish theirs could use up all descriptors.

    Args:
        shared: the door's state.
        quota: the listener's quota.
        listener: a bound socket; it listens from now on.
        tls: gives the context of each new connection.
    """

    def __init__(
        self,
        shared: DoorState,
        quota: ListenerQuota,
        listener: socket.socket,
        tls: Callable[[], ssl.SSLContext],
    ) -> None:
        self._shared = shared
        self._quota = quota
        self._listener = listener
        self._tls = tls
        self._loop = asyncio.get_running_loop()
        self._retry: asyncio.TimerHandle | None = None
        self._handshakes: set[asyncio.Task[None]] = set()
        listener.setblocking(False)
        listener.listen(shared.limits.backlog)
        self._loop.add_reader(listener.fileno(), self._accept)

    def stop(self) -> None:
        """Stop accepting; pending handshakes may complete."""
        if self._retry is not None:
            self._retry.cancel()
        if self._listener.fileno() >= 0:
            self._loop.remove_reader(self._listener.fileno())
            self._listener.close()

    def close(self) -> None:
        """Stop accepting; abort pending handshakes."""
        self.stop()
        for task in self._handshakes:
            task.cancel()

    async def wait_closed(self) -> None:
        """Wait until no handshake is pending."""
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
            if self._shared.is_full(self._quota):
                self._shared.refuse()
                link.close()
                continue
            self._shared.handshakes += 1
            self._quota.open += 1
            task = self._loop.create_task(self._handshake(link))
            self._handshakes.add(task)
            task.add_done_callback(self._handshakes.discard)

    def _accept_again(self) -> None:
        self._loop.add_reader(self._listener.fileno(), self._accept)

    async def _handshake(self, link: socket.socket) -> None:
        shared = self._shared
        try:
            link.setblocking(False)
            await self._loop.connect_accepted_socket(
                lambda: ProtocolDetection(shared, self._quota, counted=True),
                link,
                ssl=self._tls(),
                ssl_handshake_timeout=shared.limits.tls_timeout,
                ssl_shutdown_timeout=shared.limits.linger,
            )
        except OSError as error:  # includes TimeoutError and SSLError
            shared.counters.tls_failed += 1
            _log.debug("a TLS handshake failed: %s", error)
        finally:
            shared.handshakes -= 1
            self._quota.open -= 1


def _begin_no_handshakes(listener: socket.socket) -> bool:
    """Let the system drop the SYN of new connections; handshakes that have begun are completed.

    Returns whether that is possible; a Unix socket has no handshakes.
    """
    if listener.family == socket.AF_UNIX:
        return False
    program = b"".join(struct.pack("HBBI", *each) for each in _DROP_SYN)
    kept = ctypes.create_string_buffer(program)
    code = struct.pack("HP", len(_DROP_SYN), ctypes.addressof(kept))
    try:
        listener.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, code)
    except OSError as error:
        _log.debug("connections that arrive at the end may be reset: %s", error.strerror)
        return False
    return True


async def accept_backlog(listeners: Sequence[socket.socket], timeout: float) -> None:
    """Wait until the loop has accepted the connections in the backlogs, or for the timeout.

    The system completes handshakes by itself and queues the connections; when a listening socket
    closes, the queued connections are reset. Under load new ones always arrive, so from now on no
    handshake begins: those clients repeat their SYN, and are refused when the socket has closed, or
    reach the next process that listens. Where this is not possible, the wait is short.

    Args:
        listeners: sockets on which the running loop accepts.
        timeout: seconds.
    """
    loop = asyncio.get_running_loop()
    queues = select.poll()
    ends = True
    for each in listeners:
        ends = _begin_no_handshakes(each) and ends
        queues.register(each, select.POLLIN)
    await asyncio.sleep(min(_HANDSHAKE, timeout))
    until = loop.time() + (timeout if ends else min(_HANDSHAKE, timeout))
    while queues.poll(0) and loop.time() < until:
        await asyncio.sleep(0)
