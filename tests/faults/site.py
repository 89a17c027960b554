"""A running service with faults, and its state as seen from outside."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from penstock.testing import history
from tests.kit.load import SERVICE, Clients
from tests.kit.record import recorded
from tests.kit.usage import resources
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


class Call(NamedTuple):
    """The begin or the end of one ``process`` call; ``t`` is on the machine's monotonic clock."""

    what: str
    op: str
    nonce: str
    t: float


class Site:
    """A running service and its clients; made by ``site``."""

    def __init__(self, server: ServiceProcess, folder: Path, works: Mapping[str, int]) -> None:
        self.server = server
        self.clients = Clients(server)
        self._works = works
        self.pipe = folder / "pipe"
        self._calls = folder / "calls"
        self._history = folder / "history.json"

    def obstacle(self, op: str) -> Path:
        """The path of the file that blocks the start of this op's next workers."""
        return self._calls.with_name(f"calls.{op}")

    def calls(self, what: str = "begin", op: str | None = None) -> list[Call]:
        """The calls so far, in the order in which they were recorded."""
        fields = [line.split() for line in self._calls.read_text().splitlines()]
        found = [Call(a, b, c, float(t)) for a, b, c, t in fields]
        return [call for call in found if call.what == what and op in (None, call.op)]

    def most_at_once(self, op: str) -> int:
        """The largest number of concurrent calls of an op."""
        moments = [(call.t, 1) for call in self.calls("begin", op)]
        moments += [(call.t, -1) for call in self.calls("end", op)]
        running = most = 0
        for _, step in sorted(moments):
            running += step
            most = max(most, running)
        return most

    @asynccontextmanager
    async def held(self, calls: int = 1) -> AsyncIterator[None]:
        """Wait until this many held calls run; they continue when the block ends."""
        pipes: list[int] = []
        await until(lambda: reached(self.pipe, pipes))
        try:
            await until(lambda: len(self.calls("begin")) - len(self.calls("end")) >= calls)
            yield
        finally:
            os.close(pipes[0])

    @asynccontextmanager
    async def start_held(self, op: str) -> AsyncIterator[None]:
        """Hold the start of the op's next worker, caused by the test, until the block ends."""
        pipes: list[int] = []
        await until(lambda: reached(self.obstacle(op), pipes))
        self.obstacle(op).unlink()
        try:
            yield
        finally:
            os.close(pipes[0])

    def resources(self) -> dict[str, int]:
        """Threads, open descriptors and children."""
        return resources(self.server.pid)

    def events(self) -> list[Any]:
        """The engine's events."""
        return list(recorded(self._history))

    def end(self, **limits: Any) -> None:
        """Stop the service; it must exit with 0 and a correct history. See ``verdict``."""
        assert self.server.stop() == 0
        assert self.verdict(**limits) == []

    def verdict(
        self,
        *,
        attempts: int = 1,
        grace: float | None = None,
        failures: int | Mapping[str, int] | None = 0,
    ) -> list[str]:
        """Errors that the history checker finds in both sides' events; called after the end."""
        limits = history.Limits(
            workers=self._works,
            dispatches=dict.fromkeys(self._works, attempts),
            grace=grace,
            failures=failures,
        )
        return history.check(self.clients.history.events, self.events(), limits)


def reached(pipe: Path, pipes: list[int]) -> bool:
    """Open the pipe if a reader waits at its other end; it continues when the pipe is closed."""
    try:
        pipes.append(os.open(pipe, os.O_WRONLY | os.O_NONBLOCK))
    except OSError as error:
        if error.errno != errno.ENXIO:
            raise
    return bool(pipes)


async def until(condition: Callable[[], bool], seconds: float = 10.0) -> None:
    """Wait until a condition of the other process is true, which sends no notification."""
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.002)


class Service(NamedTuple):
    """One of several services: its graph, its ops' configuration, and other keys."""

    graph: str
    ops: Mapping[str, Mapping[str, Any]] = MappingProxyType({})
    dag: Mapping[str, Any] = MappingProxyType({})


def variables(folder: Path, services: Mapping[str, Service], **config: Any) -> dict[str, str]:
    """The environment of ``service.py``; ``config`` is the top of every service's configuration."""
    # Idle connections after a burst of requests must still be open at the next burst.
    kept = {"keep_alive": 3600.0, "door": {"half_close_probe": True}}
    top = {"http_port": 0, "rpc_port": 0, **kept, **config}
    described = {
        name: (one.graph, {**top, "op": dict(one.ops), "dag": dict(one.dag)})
        for name, one in services.items()
    }
    return {
        "FAULTS_SERVICES": json.dumps(described),
        "FAULTS_CALLS": str(folder / "calls"),
        "FAULTS_HISTORY": str(folder / "history.json"),
        "FAULTS_PIPE": str(folder / "pipe"),
    }


@asynccontextmanager
async def site(
    folder: Path,
    *,
    graph: str = "one",
    ops: Mapping[str, Mapping[str, Any]] | None = None,
    dag: Mapping[str, Any] | None = None,
    services: Mapping[str, Service] | None = None,
    command: Sequence[str] = (sys.executable,),
    environment: Mapping[str, str] | None = None,
    **config: Any,
) -> AsyncIterator[Site]:
    """Start the services of ``service.py``; they and all their clients end with the block.

    Args:
        folder: for their files.
        graph, ops, dag: of the only service.
        services: several services, by name, instead of these.
        command: the command before the script.
        environment: more variables.
        **config: the top of the configuration.
    """
    os.mkfifo(folder / "pipe")
    (folder / "calls").touch()
    services = services or {SERVICE: Service(graph, ops or {}, dag or {})}
    works = {
        f"{name}/{op}" if len(services) > 1 else op: int(one.ops.get(op, {}).get("concurrency", 1))
        for name, one in services.items()
        for op in GRAPHS[one.graph]
    }
    whole = variables(folder, services, **config) | dict(environment or {})
    with running(SCRIPT, command=command, environment=whole) as server:
        at = Site(server, folder, works)
        try:
            yield at
        finally:
            await at.clients.close()
