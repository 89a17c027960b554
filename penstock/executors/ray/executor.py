"""The executor whose workers a cluster of Ray places; docs/many-machines.md.

A worker is a child process of an actor, and everything between it and the engine goes over a
connection of our own. Ray is in another process of this machine, the holder, which all ops of an
engine with the same cluster share.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from penstock.errors import StartupError
from penstock.executors.elsewhere.executor import ElsewhereExecutor
from penstock.executors.elsewhere.opening import Opening
from penstock.executors.kinds import ExecutorKind, ExecutorSpec
from penstock.executors.ray.link import COMMAND, Holder, Placed, label_of
from penstock.executors.workers.places import Lack
from penstock.executors.workers.pool import NoWorkerError

_Key: TypeAlias = tuple[asyncio.AbstractEventLoop, str]  # with the arguments of ray.init


@dataclass(slots=True)
class _Shared:
    holder: Holder
    users: int = 0


_holders: dict[_Key, _Shared] = {}


class RayExecutor(ElsewhereExecutor):
    """See the module.

    Args:
        spec: the op.
        command: the program of the holder.
    """

    logs_output = True

    def __init__(self, spec: ExecutorSpec, command: tuple[str, ...] = COMMAND) -> None:
        super().__init__(spec, self._place)
        self._options = options = spec.ray
        self._given = options.cluster
        self._key = (spec.loop, json.dumps(self._given, sort_keys=True))
        self._command = command
        self._holder: Holder | None = None

    async def start(self) -> None:
        timeout = self._supervision.start_timeout
        self._holder = holder = _acquire(self._key, self._given, self._command, timeout)
        try:
            try:
                address = await holder.address()
            except NoWorkerError as error:
                raise StartupError(f"op {self.op!r}: {error}") from error
            if self._options.address is not None:
                self._host = address
            await super().start()
        except BaseException:
            await self._release_holder()
            raise

    async def close(self, timeout: float) -> bool:
        in_time = await super().close(timeout)
        await self._release_holder()
        return in_time

    async def _place(self, opening: Opening) -> Placed:
        options, holder = self._options, self._holder
        assert holder is not None
        order = {
            "opening": opening.encode().decode(),
            "folder_is_here": "working_dir" in options.runtime_env,
            "wants": options.wants,
            "placement": options.placement,
        }
        who = f"op {self.op}: worker {opening.index}"

        def waits(lack: Lack) -> None:
            self._places.waits(opening.index, lack)

        return await holder.start_worker(who, order, self._supervision.start_timeout, waits)

    async def _release_holder(self) -> None:
        if self._holder is not None:
            self._holder = None
            await _release(self._key)


def _acquire(
    key: _Key, given: dict[str, Any], command: tuple[str, ...], timeout: float | None
) -> Holder:
    """The holder for these arguments, which the engine's ops share."""
    if key not in _holders:
        label = label_of(given["address"])
        _holders[key] = _Shared(Holder(key[0], label, given, command, timeout))
    shared = _holders[key]
    shared.users += 1
    return shared.holder


async def _release(key: _Key) -> None:
    shared = _holders[key]
    shared.users -= 1
    if not shared.users:
        del _holders[key]
        await shared.holder.close()


RAY: Final = ExecutorKind(name="ray", make=RayExecutor, elsewhere=True)
