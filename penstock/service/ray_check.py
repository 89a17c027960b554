"""Tries the clusters of Ray that a service's ops name, for ``penstock check --open``."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Iterable
from typing import Final

from penstock.config.resolve import OpOptions
from penstock.errors import StartupError
from penstock.executors.ray.link import COMMAND, Holder, label_of
from penstock.executors.workers.pool import NoWorkerError

LIMIT: Final = 30.0
"""Seconds for a cluster to answer first: what is no Ray may never do so."""


def try_clusters(
    options: Iterable[OpOptions],
    command: tuple[str, ...] = COMMAND,
    timeout: float | None = None,
    limit: float = LIMIT,
) -> list[str]:
    """Connect to each cluster, and start that of the service, for which this machine is compared.

    Args:
        options: the options of all ops.
        command: the program that talks to Ray.
        timeout: seconds for the service's own cluster to start; None is no limit.
        limit: seconds for another one to answer first.

    Returns:
        Warnings: ops whose workers have room on no node, which may come later.

    Raises:
        StartupError: a cluster cannot be used: it does not answer, or has other versions; or
            this machine has no room for the workers of the service's own cluster.
    """
    of_ray = [each for each in options if each.executor.name == "ray"]
    return asyncio.run(_try(of_ray, command, timeout, limit))


async def _try(
    options: list[OpOptions], command: tuple[str, ...], timeout: float | None, limit: float
) -> list[str]:
    holders: dict[str, Holder] = {}
    warnings = []
    try:
        for each in options:
            local = each.ray.address is None
            key = _key(each)
            if key not in holders:
                holders[key] = Holder(
                    asyncio.get_running_loop(),
                    label_of(each.ray.address),
                    each.ray.cluster,
                    command,
                    timeout if local else limit,
                    limit="start_timeout" if local else "the limit of this check",
                    output_level=logging.DEBUG,
                )
            try:
                text = await holders[key].what_no_node_has(each.ray.wants)
            except NoWorkerError as error:
                raise StartupError(f"op {each.name!r}: {error}") from error
            if text and local:
                raise StartupError(f"op {each.name!r}: {holders[key].label}: {text}")
            if text:
                warnings.append(f"op {each.name}: {text}")
        for key, wants in _of_own_clusters(options).items():
            text = await holders[key].what_no_node_has(wants)
            if text:
                raise StartupError(f"{holders[key].label}: {text}: all workers of its ops together")
    finally:
        for holder in holders.values():
            await holder.close()
    return warnings


def _of_own_clusters(options: list[OpOptions]) -> dict[str, dict[str, float]]:
    """What all workers want together of each cluster that the service starts: it has one node."""
    found: dict[str, dict[str, float]] = {}
    for each in options:
        if each.ray.address is None:
            wants = found.setdefault(_key(each), {})
            for resource, amount in each.ray.wants.items():
                more = each.concurrency * amount
                wants[resource] = round(wants.get(resource, 0.0) + more, 4)
    return found


def _key(options: OpOptions) -> str:
    """Ops with equal keys share a cluster."""
    return json.dumps(options.ray.cluster, sort_keys=True)
