"""Binds the sockets of a service, for clients and external workers, and raises the descriptor
limit.
"""

from __future__ import annotations

import errno
import hashlib
import logging
import os
import resource
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final, TypeAlias

from penstock.config.checks import ports
from penstock.config.schema import ServiceConfig
from penstock.door.limits import DoorLimits
from penstock.door.listeners import bind, bind_shared, bind_unix, is_free, port_of
from penstock.errors import StartupError
from penstock.service.banner import Addresses
from penstock.service.blueprint import Deployment

_log = logging.getLogger(__name__)

_MOST_CONNECTIONS: Final = 1024
_RESERVE: Final = 128
_FEWEST: Final = 16

# Descriptors of an engine per worker process: two sockets, eventfd, standard error, status page,
# memory statistics; and idle slabs in both directions.
_EACH_WORKER: Final = 6 + 2 * 8


def max_connections(configured: int | None, processes: int = 0) -> int:
    """The connection limit: the descriptor limit minus a reserve for everything else."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    reserve = min(_RESERVE, soft // 4) + min(_EACH_WORKER * processes, soft // 4)
    most = max(_FEWEST, soft - reserve)
    return min(configured or _MOST_CONNECTIONS, most)


def raise_descriptor_limit(processes: int) -> str | None:
    """Raise the soft descriptor limit, up to the hard limit, if an engine's worker processes would
    use more than a quarter of it.

    Returns:
        a warning for the operator, if they may still use more than half.
    """
    need = _EACH_WORKER * processes
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return None
    if need > soft // 4:
        soft = 4 * need if hard == resource.RLIM_INFINITY else max(soft, min(4 * need, hard))
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    if need <= soft // 2:
        return None
    return (
        f"the {processes} worker processes of an engine may take up to {need} descriptors, and it"
        f" may open {soft} (ulimit -n), those of connections among them: allow it {4 * need}, or"
        f" have fewer workers"
    )


@contextmanager
def too_few_descriptors_end_the_start() -> Iterator[None]:
    """Turn the error that no descriptor is left into one of the start.

    Raises:
        StartupError: no descriptor is left.
    """
    try:
        yield
    except OSError as error:
        if error.errno != errno.EMFILE:
            raise
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        text = f"this process may open {soft} files, too few for its workers: raise ulimit -n"
        raise StartupError(f"{text} (LimitNOFILE of systemd)") from error


Listeners: TypeAlias = Mapping[str, socket.socket]
"""One engine's listening sockets, by configuration key."""

_PORTS: Final = ("rpc_port", "http_port")
_UNIX: Final = "door.unix_socket"
METRICS: Final = "dag.prometheus_port"
"""The key of the port that serves only metrics."""
ADMIN: Final = "admin_port"
"""The key of the port for operators."""
_ANSWER: Final = 1.0  # seconds in which a running service accepts a connection


def bind_all(config: ServiceConfig, stack: ExitStack, *, one_port: bool = False) -> list[Listeners]:
    """Bind each engine's sockets; they do not listen yet.

    TCP ports are shared, with a socket for each engine; all engines accept on one Unix socket.

    Args:
        config: a checked configuration.
        stack: closes and removes them.
        one_port: see ``ports``.

    Raises:
        StartupError: an address is taken or cannot be used.
    """
    engines = config.engines
    chosen = ports(config, lambda port: is_free(config.host, port), one_port=one_port)
    found: list[dict[str, socket.socket]] = [{} for _ in range(engines)]

    def share(key: str, port: int) -> None:
        shared = bind_shared(_host_of(config, key), port, key, engines)
        for own, listener in zip(found, shared, strict=True):
            stack.callback(listener.close)
            own[key] = listener

    if chosen.rpc is not None:
        share("rpc_port", chosen.rpc)
    if chosen.http is not None:
        share("http_port", chosen.http)
    if config.dag.prometheus_port is not None and config.dag.enable_prometheus:
        share(METRICS, config.dag.prometheus_port)
    if config.admin_port is not None:
        share(ADMIN, config.admin_port)
    path = config.door.unix_socket
    if path is not None:
        take_over(Path(path), _UNIX, stack)
        listener = bind_unix(Path(path), _UNIX)
        stack.callback(listener.close)
        stack.callback(Path(path).unlink, missing_ok=True)
        for own in found:
            own[_UNIX] = listener
    return list(found)


def _host_of(config: ServiceConfig, key: str) -> str:
    """The address of a port."""
    return (config.admin_host if key == ADMIN else None) or config.host


def take_over(path: Path, key: str, stack: ExitStack) -> None:
    """Remove the stale socket file of a service that was killed.

    A failing connection is no proof: a service that is starting does not accept either. So a
    service that uses a path holds an abstract socket name for it, which ends with its process.

    Args:
        path: where a Unix socket will be bound.
        key: the configuration key, for the log.
        stack: releases the name.
    """
    name = hashlib.sha256(os.fsencode(path.resolve())).hexdigest()
    held = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM))
    try:
        held.bind(f"\0penstock-{name}")
    except OSError:  # another Penstock service uses the path
        return
    if not path.is_socket():
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as caller:
        caller.settimeout(_ANSWER)
        try:
            caller.connect(str(path))
        except ConnectionRefusedError:
            _log.info("%s: the stale socket file %s is replaced", key, path)
            path.unlink(missing_ok=True)
        except OSError:
            return


def door_sockets(listeners: Listeners) -> list[socket.socket]:
    """The sockets for clients, without those for workers, scrapers and operators."""
    return [listeners[key] for key in (*_PORTS, _UNIX) if key in listeners]


def listen_on_all(config: ServiceConfig, engines: Sequence[Listeners]) -> None:
    """Listen: from now on connections wait in the backlog.

    Raises:
        StartupError: another process listens on the address.
    """
    for key in (*_PORTS, METRICS, ADMIN):
        if len(engines) > 1 and key in engines[0]:
            # SO_REUSEPORT would admit another service of this user that started at the same time.
            bind(_host_of(config, key), port_of(engines[0][key]), key).close()
    for own in engines:
        for key, listener in own.items():
            try:
                listener.listen(DoorLimits().backlog)
            except OSError as error:
                at = listener.getsockname()
                raise StartupError(f"{key}: cannot listen on {at}: {error.strerror}") from error


def addresses(config: ServiceConfig, listeners: Listeners) -> Addresses:
    """The addresses, for the start lines."""
    http, metrics = listeners.get("http_port"), listeners.get(METRICS)
    admin = listeners.get(ADMIN)
    rpc = listeners.get("rpc_port", http)
    assert rpc is not None
    return Addresses(
        host=config.host,
        rpc_port=port_of(rpc),
        http_port=None if http is None else port_of(http),
        metrics_port=None if metrics is None else port_of(metrics),
        admin_port=None if admin is None else port_of(admin),
        admin_host=_host_of(config, ADMIN),
        unix_socket=config.door.unix_socket,
        tls=config.door.tls.certificate is not None,
    )


def key_of(op: str) -> str:
    """The key of an op's socket among a service's listeners."""
    return f"op.{op}.socket"


def bind_worker_sockets(deployment: Deployment, stack: ExitStack) -> dict[str, socket.socket]:
    """Bind every op's socket, by key; they do not listen yet.

    Args:
        deployment: what is served.
        stack: closes and removes them.

    Raises:
        StartupError: a path is taken or cannot be used.
    """
    found: dict[str, socket.socket] = {}
    for graph in deployment.graphs:
        for name, options in zip(graph.graph.plan.names, graph.options, strict=True):
            if options.executor.needs_socket and options.socket is not None:
                path, key = Path(options.socket), key_of(deployment.op_name(graph, name))
                take_over(path, key, stack)
                listener = found[key] = bind_unix(path, key)
                stack.callback(listener.close)
                stack.callback(path.unlink, missing_ok=True)
    return found
