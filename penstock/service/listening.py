"""What a service listens on, for clients and for external workers, and the descriptors it takes."""

from __future__ import annotations

import hashlib
import logging
import os
import resource
import socket
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
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

# What an engine holds of a worker process: its two sockets, what it is signalled by, its standard
# error, its board and its memory's size; and slabs each way, as many as may lie idle.
_EACH_WORKER: Final = 6 + 2 * 8


def max_connections(configured: int | None, processes: int = 0) -> int:
    """The connection limit: below the descriptor limit, less a reserve for everything else."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    reserve = min(_RESERVE, soft // 4) + min(_EACH_WORKER * processes, soft // 4)
    most = max(_FEWEST, soft - reserve)
    return min(configured or _MOST_CONNECTIONS, most)


def raise_descriptor_limit(processes: int) -> str | None:
    """Have room for an engine's worker processes: where they would take more than a quarter of the
    descriptors, raise the soft limit as far as the hard one allows.

    Returns:
        What to tell whoever starts the service, if they may still take more than half.
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


Listeners: TypeAlias = Mapping[str, socket.socket]
"""One engine's, by the key that asks for them."""

_PORTS: Final = ("rpc_port", "http_port")
_UNIX: Final = "door.unix_socket"
METRICS: Final = "dag.prometheus_port"
"""Of a port with the metrics alone."""
_ANSWER: Final = 1.0  # seconds in which a service that lives lets somebody connect


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
    if config.dag.prometheus_port is not None and config.dag.enable_prometheus:
        share(METRICS, config.dag.prometheus_port)
    path = config.door.unix_socket
    if path is not None:
        take_over(Path(path), _UNIX, stack)
        listener = bind_unix(Path(path), _UNIX)
        stack.callback(listener.close)
        stack.callback(Path(path).unlink, missing_ok=True)
        for own in found:
            own[_UNIX] = listener
    return list(found)


def take_over(path: Path, key: str, stack: ExitStack) -> None:
    """Remove the socket file of a service that was killed.

    That nobody accepts there is not enough: a service that is about to start does not either. So
    whoever serves a path, or is about to, holds a name for it that ends with its process.

    Args:
        path: where a Unix socket will be bound.
        key: of the configuration, in the log.
        stack: gives the name back.
    """
    name = hashlib.sha256(os.fsencode(path.resolve())).hexdigest()
    held = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM))
    try:
        held.bind(f"\0penstock-{name}")
    except OSError:  # another service of ours is there
        return
    if not path.is_socket():
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as caller:
        caller.settimeout(_ANSWER)
        try:
            caller.connect(str(path))
        except ConnectionRefusedError:
            _log.info("%s: nobody serves %s any more: it is taken over", key, path)
            path.unlink(missing_ok=True)
        except OSError:
            return


def of_the_door(listeners: Listeners) -> list[socket.socket]:
    """Those that clients connect to; workers and scrapers connect to the others."""
    return [listeners[key] for key in (*_PORTS, _UNIX) if key in listeners]


def listen_on_all(config: ServiceConfig, engines: Sequence[Listeners]) -> None:
    """Listen: connections wait from now on to be accepted.

    Raises:
        StartupError: another process listens there by now.
    """
    for key in (*_PORTS, METRICS):
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
    http, metrics = listeners.get("http_port"), listeners.get(METRICS)
    return Addresses(
        host=config.host,
        rpc_port=port_of(listeners["rpc_port"]),
        http_port=None if http is None else port_of(http),
        metrics_port=None if metrics is None else port_of(metrics),
        unix_socket=config.door.unix_socket,
        tls=config.door.tls.certificate is not None,
    )


def key_of(op: str) -> str:
    """Under which key a service's listeners have an op's."""
    return f"op.{op}.socket"


def bind_worker_sockets(deployment: Deployment, stack: ExitStack) -> dict[str, socket.socket]:
    """Every op's socket by its key, bound and not listening yet.

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
