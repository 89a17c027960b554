"""Tries the clusters of Ray that a service's ops name, for ``penstock check --open``."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable

from penstock.config.resolve import OpOptions
from penstock.errors import StartupError
from penstock.executors.ray.link import COMMAND, Holder, label_of
from penstock.executors.workers.pool import NoWorkerError


def try_clusters(
    options: Iterable[OpOptions],
    command: tuple[str, ...] = COMMAND,
    timeout: float | None = None,
) -> list[str]:
    """Connect to each cluster that is not started by the service itself.

    Args:
        options: the options of all ops.
        command: the program that talks to Ray.
        timeout: seconds for a cluster to answer; None is no limit.

    Returns:
        Warnings: ops whose workers have room on no node, which may come later.

    Raises:
        StartupError: a cluster cannot be used: it does not answer, or has other versions.
    """
    of_ray = [each for each in options if each.executor.name == "ray"]
    there = [each for each in of_ray if each.ray.address is not None]
    return asyncio.run(_try(there, command, timeout))


async def _try(
    options: list[OpOptions], command: tuple[str, ...], timeout: float | None
) -> list[str]:
    holders: dict[str, Holder] = {}
    warnings = []
    try:
        for each in options:
            given = each.ray.cluster
            key = json.dumps(given, sort_keys=True)
            if key not in holders:
                loop = asyncio.get_running_loop()
                holders[key] = Holder(loop, label_of(each.ray.address), given, command, timeout)
            try:
                text = await holders[key].what_no_node_has(each.ray.wants)
            except NoWorkerError as error:
                raise StartupError(f"op {each.name!r}: {error}") from error
            if text:
                warnings.append(f"op {each.name}: {text}")
    finally:
        for holder in holders.values():
            await holder.close()
    return warnings
