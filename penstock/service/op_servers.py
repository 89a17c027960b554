"""Starts model servers for ops whose ``local_service_conf.client_type`` is ``grpc`` or ``brpc``.

Each is ``penstock serve`` on a free port of this machine, with the op's ``local_service_conf``, one
for each card. It starts before the service, ends after it, and dies with it. It replaces its own
engine if that dies.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, TypeAlias

from penstock.client.endpoints import Endpoint
from penstock.config.resolve import OpOptions
from penstock.config.schema import ServiceConfig
from penstock.errors import StartupError
from penstock.observe.logs import default_format
from penstock.runtimes.runtime import ModelOptions
from penstock.service.blueprint import Blueprint, Deployment
from penstock.supervisor.child_processes import Child, ends_within, fork, status_text

_log = logging.getLogger(__name__)

Ports: TypeAlias = Mapping[str, Sequence[int]]
"""The ports of the model servers, by the op's name in its engine."""

_HOST: Final = "127.0.0.1"
_MODEL: Final = "model"
VARIABLE: Final = "_PENSTOCK_OP_SERVERS"
"""Passes the chosen ports to processes that run the script again."""
_EXCLUDED: Final = ("PENSTOCK_", "_PENSTOCK_", "SERVING_LOG_PATH")
"""Prefixes of variables that configure this service, and not the model servers."""
_LARGEST: Final = 512 << 20
"""Most bytes of a request to a model server: the limit of our client."""
_KEYS: Final = (
    *("device_type", "mem_optim", "ir_optim", "precision", "use_calib", "use_mkldnn"),
    *("mkldnn_cache_capacity", "mkldnn_op_list", "mkldnn_bf16_op_list", "min_subgraph_size"),
)
"""Of ``local_service_conf``, which a server has from its op."""
_POLL: Final = 0.05  # seconds between two attempts to connect to a starting server
_STOP: Final = 5.0  # seconds for an idle server to end; a guess


def start(deployment: Deployment, stack: ExitStack) -> Deployment:
    """Start the model servers of a deployment's ops, and wait until they are ready.

    Args:
        deployment: what is served.
        stack: ends them.

    Returns:
        The deployment with the addresses of the servers.

    Raises:
        StartupError: a server does not start; its output is in the log.
    """
    wanted = _wanted(deployment)
    if not wanted:
        return deployment
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="penstock-")))
    ports: dict[str, list[int]] = {}
    started: list[tuple[str, int, Child]] = []
    stack.callback(_end, started)
    for name, model in wanted.items():
        for card in model.devices or ("",):
            port = _free_port()
            ports.setdefault(name, []).append(port)
            file = folder / f"{port}.yml"
            file.write_text(json.dumps(_config(model, card, port, deployment.config)))
            started.append((name, port, _started(name, file, deployment.config)))
    for name, port, child in started:
        _await(name, port, child)
    os.environ[VARIABLE] = json.dumps(ports)
    stack.callback(os.environ.pop, VARIABLE, None)
    return _calling(deployment, ports)


def found(deployment: Deployment) -> Deployment:
    """The deployment with the addresses that ``start`` chose in the parent process."""
    ports = os.environ.get(VARIABLE)
    return deployment if ports is None else _calling(deployment, json.loads(ports))


def described(deployment: Deployment) -> dict[str, dict[str, Any]]:
    """The configurations of the model servers that a deployment needs, by the op's name in its
    engine, but for their cards and ports.
    """
    return {
        name: {"devices": model.devices, **_config(model, "", 0, deployment.config)}
        for name, model in _wanted(deployment).items()
    }


def _wanted(deployment: Deployment) -> dict[str, ModelOptions]:
    """The models to serve, by the op's name in its engine."""
    return {
        deployment.op_name(graph, options.name): options.model
        for graph in deployment.graphs
        for options in graph.options
        if options.starts_server and options.model is not None
    }


def _calling(deployment: Deployment, ports: Ports) -> Deployment:
    def of(name: str, options: OpOptions) -> OpOptions:
        if name not in ports or options.remote is None:
            return options
        at = tuple(Endpoint(host=_HOST, port=port) for port in ports[name])
        return replace(options, remote=replace(options.remote, endpoints=at, name=_MODEL))

    def calling(graph: Blueprint) -> Blueprint:
        options = (of(deployment.op_name(graph, each.name), each) for each in graph.options)
        return replace(graph, options=tuple(options))

    return deployment.each(calling)


def _config(model: ModelOptions, card: str, port: int, service: ServiceConfig) -> dict[str, Any]:
    """The model server's configuration file."""
    given = {key: getattr(model, key) for key in _KEYS}
    conf = {key: each for key, each in given.items() if each not in (None, ())} | {"devices": card}
    path = str(Path(model.path).resolve())
    entry = {"path": path, "concurrency": model.thread_num, "local_service_conf": conf}
    if model.encryption_key is not None:
        entry |= {"use_encryption_model": True, "encryption_key": model.encryption_key}
    return {
        "models": {_MODEL: entry},
        "server": {
            "http_port": port,
            "host": _HOST,
            "build_dag_each_worker": True,  # a supervisor, which replaces the engine
            "worker_num": 1,
            "max_message_bytes": _LARGEST,
            "deadline": service.deadline,
            "max_deadline": service.max_deadline,
            "start_timeout": service.start_timeout,
            "log_level": service.log_level,
            "log_format": service.log_format or default_format(),
        },
    }


def _started(name: str, file: Path, service: ServiceConfig) -> Child:
    command = [sys.executable, "-P", "-m", "penstock", "serve", "--config", str(file)]
    kept = {key: each for key, each in os.environ.items() if not key.startswith(_EXCLUDED)}

    def main() -> int:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 1)  # its start lines would be mistaken for ours
        os.execve(command[0], command, kept)  # noqa: S606 - no shell is wanted

    return fork(f"model server of op {name}", main, lambda: None, stoppable=True, spawns=True)


def _await(name: str, port: int, child: Child) -> None:
    while not ends_within(child.pidfd, _POLL):
        try:
            socket.create_connection((_HOST, port), 1.0).close()
        except OSError:
            continue
        _log.info("op %s: its model server has started: pid %s, port %s", name, child.pid, port)
        return
    raise StartupError(f"op {name!r}: its model server has not started; the log says why")


def _end(started: Sequence[tuple[str, int, Child]]) -> None:
    """End the servers, which have no more requests."""
    for _, _, child in started:
        child.signal(signal.SIGTERM)
    until = time.monotonic() + _STOP
    for name, _, child in started:
        if not ends_within(child.pidfd, max(0.0, until - time.monotonic())):
            _log.warning("op %s: its model server does not end, and is killed", name)
            child.kill()
        status = os.waitstatus_to_exitcode(child.reap())
        if status:
            _log.warning("op %s: its model server: %s", name, status_text(status))


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((_HOST, 0))
        return int(probe.getsockname()[1])
