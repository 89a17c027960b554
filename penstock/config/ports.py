"""Which ports a configuration means."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain

from penstock.config.schema import ServiceConfig
from penstock.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class Ports:
    """The ports to bind. ``http`` None: gRPC only. 0: any free port. ``rpc_chosen``: to be told."""

    rpc: int
    http: int | None
    rpc_chosen: bool = False


def ports(config: ServiceConfig, free: Callable[[int], bool]) -> Ports:
    """The gRPC port is the next free one after the HTTP port when it is left out.

    Args:
        config: a checked configuration.
        free: whether a port can be bound now; only asked for a port that is chosen here.

    Raises:
        ConfigError: no port is set, or none is free.

    Source: ``docs/compatibility.md``.
    """
    rpc, http = config.rpc_port, config.http_port
    if rpc is not None:
        return Ports(rpc=rpc, http=http)
    if http is None:
        raise ConfigError(["rpc_port or http_port must be set, or nobody can reach the service"])
    if http == 0:
        return Ports(rpc=0, http=0, rpc_chosen=True)
    for port in chain(range(http + 1, 65536), range(1024, http)):
        if free(port):
            return Ports(rpc=port, http=http, rpc_chosen=True)
    raise ConfigError(["rpc_port: no port is free"])
