"""What stays as it is while a service runs, whatever its program says when a reload runs it again:
the sockets, the number of engines, and what the main process has started for all of them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from typing import Any

from penstock.service import op_servers
from penstock.service.blueprint import Deployment


def fixed_settings(deployment: Deployment) -> dict[str, Any]:
    """The settings that a reload cannot change, by name. Plain data."""
    config = deployment.config
    found: dict[str, Any] = {
        "host": config.host,
        "http_port": config.http_port,
        "rpc_port": config.rpc_port,
        "gRPC on the HTTP port": deployment.one_port,
        "admin_port": config.admin_port,
        "admin_host": config.admin_host,
        "dag.enable_prometheus": config.dag.enable_prometheus,
        "dag.prometheus_port": config.dag.prometheus_port,
        "door.unix_socket": config.door.unix_socket,
        "the number of engines": config.engines,
        "log_format": config.log_format,
        "log_dir": config.log_dir,
    }
    for graph in deployment.graphs:
        for options in graph.options:
            if options.executor.needs_socket:
                name = deployment.op_name(graph, options.name)
                found[f"op.{name}.socket"] = options.socket
    for name, server in op_servers.described(deployment).items():
        text = json.dumps(server, sort_keys=True).encode()
        found[f"the model server of op {name!r}"] = hashlib.sha256(text).hexdigest()[:12]
    return found


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    """What differs between two results of ``fixed_settings``, as texts."""
    for name in dict.fromkeys((*before, *now)):
        old, new = before.get(name), now.get(name)
        if old != new:
            yield f"{name} is {new!r}, and the running service has {old!r}"
