"""A running service with planted faults, and what is known about it from outside."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from penstock.testing import history
from tests.faults.load import Clients
from tests.services.process import ServiceProcess, running

SCRIPT = Path(__file__).parent / "service.py"
GRAPHS = {
    "one": ("work",),
    "poison": ("work",),
    "chain": ("first", "second"),
    "branches": ("slow", "fast", "join"),
}
"""The script's graphs, and their ops."""


MIB = 1 << 20


def memory(pid: int, line: str) -> int:
    """Bytes, from the kernel's account of a process."""
    for text in Path(f"/proc/{pid}/status").read_text().splitlines():
        if text.startswith(line + ":"):
            return int(text.split()[1]) * 1024
    raise AssertionError(f"no {line}")


class Call(NamedTuple):
    """The begin or the end of one ``process`` call; ``t`` is on the machine's monotonic clock."""

    what: str
    op: str
    nonce: str
    t: float


class Site:
    """Made by ``site``."""

    def __init__(self, server: ServiceProcess, folder: Path, works: Mapping[str, int]) -> None:
        self.server = server
        self.clients = Clients(server.http_port)
        self._works = works
        self.pipe = folder / "pipe"
        self._calls = folder / "calls"
        self._history = folder / "history.json"

    def obstacle(self, op: str) -> Path:
        """What stands in the way of this op's next workers, if there is something at this path."""
        return self._calls.with_name(f"calls.{op}")

    def calls(self, what: str = "begin", op: str | None = None) -> list[Call]:
        """The calls so far, in the order in which they were noted."""
        fields = [line.split() for line in self._calls.read_text().splitlines()]
        found = [Call(a, b, c, float(t)) for a, b, c, t in fields]
        return [call for call in found if call.what == what and op in (None, call.op)]

    def most_at_once(self, op: str) -> int:
        """The most calls of an op that ever ran at the same moment."""
        moments = [(call.t, 1) for call in self.calls("begin", op)]
        moments += [(call.t, -1) for call in self.calls("end", op)]
        running = most = 0
        for _, step in sorted(moments):
            running += step
            most = max(most, running)
        return most

    @asynccontextmanager
    async def held(self, calls: int = 1) -> AsyncIterator[None]:
        """Waits until so many held calls run; they go on when the block is left."""
        pipes: list[int] = []
        await until(lambda: reached(self.pipe, pipes))
        try:
            await until(lambda: len(self.calls("begin")) - len(self.calls("end")) >= calls)
            yield
        finally:
            os.close(pipes[0])

    @asynccontextmanager
    async def start_held(self, op: str) -> AsyncIterator[None]:
        """The op's next worker waits in its start until the block is left; to be caused before."""
        pipes: list[int] = []
        await until(lambda: reached(self.obstacle(op), pipes))
        self.obstacle(op).unlink()
        try:
            yield
        finally:
            os.close(pipes[0])

    def resources(self) -> dict[str, int]:
        """Threads and open descriptors."""
        process = Path(f"/proc/{self.server.pid}")
        return {
            "threads": len(os.listdir(process / "task")),
            "descriptors": len(os.listdir(process / "fd")),
            "children": len(psutil.Process(self.server.pid).children()),
        }

    def events(self) -> list[Any]:
        """What the engine told; only after the service has ended."""
        lists = map(json.loads, self._history.read_text().splitlines())
        return [
            getattr(history, kind)(*[tuple(v) if isinstance(v, list) else v for v in values])
            for kind, *values in lists
        ]

    def verdict(
        self,
        *,
        attempts: int = 1,
        grace: float | None = None,
        failures: int | None = 0,
    ) -> list[str]:
        """What the judge of histories finds wrong with both sides; after the end."""
        limits = history.Limits(
            workers=self._works,
            dispatches=dict.fromkeys(self._works, attempts),
            grace=grace,
            failures=failures,
        )
        return history.check(self.clients.history.events, self.events(), limits)


def reached(pipe: Path, pipes: list[int]) -> bool:
    """Open the pipe, if somebody waits at its other end; to be kept, or he goes on."""
    try:
        pipes.append(os.open(pipe, os.O_WRONLY | os.O_NONBLOCK))
    except OSError as error:
        if error.errno != errno.ENXIO:
            raise
    return bool(pipes)


async def until(condition: Callable[[], bool], seconds: float = 10.0) -> None:
    """Return when something has become true of the other process, which cannot tell us itself."""
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.002)


@asynccontextmanager
async def site(
    folder: Path,
    *,
    graph: str = "one",
    ops: Mapping[str, Mapping[str, Any]] | None = None,
    command: Sequence[str] = (sys.executable,),
    environment: Mapping[str, str] | None = None,
    **config: Any,
) -> AsyncIterator[Site]:
    """Start the service of ``service.py``; it and all its clients are gone in the end.

    Args:
        folder: for its files.
        graph: which of the script's graphs.
        ops: op name -> its configuration; absent ops have one worker.
        command: what comes before the script.
        environment: more variables.
        **config: the top of the configuration.
    """
    os.mkfifo(folder / "pipe")
    (folder / "calls").touch()
    ops = ops or {}
    whole = {"http_port": 0, "rpc_port": 0, "op": ops, "door": {"half_close_probe": True}, **config}
    names = GRAPHS[graph]
    works = {name: int(ops.get(name, {}).get("concurrency", 1)) for name in names}
    variables = {
        "FAULTS_CONFIG": json.dumps(whole),
        "FAULTS_GRAPH": graph,
        "FAULTS_CALLS": str(folder / "calls"),
        "FAULTS_HISTORY": str(folder / "history.json"),
        "FAULTS_PIPE": str(folder / "pipe"),
        **(environment or {}),
    }
    with running(SCRIPT, command=command, environment=variables) as server:
        at = Site(server, folder, works)
        try:
            yield at
        finally:
            await at.clients.close()
