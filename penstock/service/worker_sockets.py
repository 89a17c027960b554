"""The sockets that external workers connect to: which ops have one, and what they are bound by."""

from __future__ import annotations

import socket
from contextlib import ExitStack
from pathlib import Path

from penstock.door.listeners import bind_unix
from penstock.service.blueprint import Deployment
from penstock.service.listening import take_over


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
