"""Changes the versions of a running engine's graphs.

A version is made ready aside: its models are opened and its ``init_op`` run in a thread, its
workers started, and its examples run in it, while the engine's graphs serve. Then it becomes the
default version of its name, and the others of that name finish their requests and end.

With a supervisor all engines do so, or none (see ``supervisor/version_table.py``).
"""

from __future__ import annotations

import asyncio
import gc
import json
import logging
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import nullcontext, suppress
from typing import Any, Final, TypeVar

from penstock.engine.engine import Engine
from penstock.engine.graph import GraphState, ServedGraph
from penstock.errors import StartupError
from penstock.service.build import LoadedDeployment, LoadedGraph
from penstock.service.daemon_pool import DaemonPool
from penstock.supervisor.client import SupervisorClient
from penstock.supervisor.messages import Abort, Commit, OfChange, Prepare, Retire
from penstock.supervisor.version_table import Description

_T = TypeVar("_T")

_log = logging.getLogger(__name__)

_GRACE: Final = 5.0
"""Seconds for the calls of a graph at rest to return, when its workers are ended."""


class Versions:
    """See the module. Belongs to the engine's loop.

    Args:
        loaded: the graphs of the engine, and their deployment, which makes further versions.
        engine: runs the graphs.
        build: builds a graph for the engine.
        warm_up: runs the examples of a graph in it.
        models: the names of the ops' models, by label; completed here.
        supervisor: the client of this engine's supervisor; None without one.
    """

    def __init__(
        self,
        loaded: LoadedDeployment,
        engine: Engine,
        build: Callable[[LoadedGraph], ServedGraph],
        warm_up: Callable[[ServedGraph], Awaitable[None]],
        models: dict[str, str],
        supervisor: SupervisorClient | None = None,
    ) -> None:
        self._loaded = loaded
        self._engine = engine
        self._build = build
        self._warm_up = warm_up
        self._models = models
        self._supervisor = supervisor
        self._loading = DaemonPool(1, "versions")
        self._swapping = False
        self._tasks: set[asyncio.Task[Any]] = set()
        self._preparing: asyncio.Task[Any] | None = None
        self._candidate: ServedGraph | None = None  # of the supervisor's change

    async def swap(self, description: Description) -> None:
        """See ``engine.Versions``."""
        self._loaded.deployment.check_description(description)
        try:
            json.dumps(description)
        except (TypeError, ValueError) as error:
            raise StartupError(f"a version's description is plain data: {error}") from error
        if self._supervisor is not None:
            await self._supervisor.change(description)
            return
        if self._swapping:
            raise StartupError("another version is being made ready: try again later")
        self._swapping = True
        try:
            graph = await self._prepare(description)
            self._serve(graph)
            self._retire_others(graph)
        finally:
            self._swapping = False

    def description(self, name: str | None) -> Description | None:
        """What the default version of a graph was made of; None for one with which the service
        started.
        """
        graph = self._engine.graph(name or "")
        for each in self._loaded.graphs:
            if graph is not None and each.blueprint.key == graph.key:
                return each.blueprint.description
        return None

    def obey(self, order: OfChange) -> None:
        """Take part in a change of all engines."""
        match order:
            case Prepare(change, description):
                self._preparing = self._start(self._answer(change, description))
            case Commit(change):
                self._serve(self._ready())
                assert self._supervisor is not None
                self._supervisor.committed(change)
            case Abort():
                if self._candidate is not None:
                    self._start(self._end(self._candidate))
                elif self._preparing is not None:
                    self._preparing.cancel()
                self._candidate = None
            case Retire():
                self._retire_others(self._ready())
                self._candidate = None

    def _ready(self) -> ServedGraph:
        assert self._candidate is not None, "the supervisor knows that it is ready"
        return self._candidate

    async def close(self) -> None:
        """End with the engine, which then ends the workers of all graphs."""
        tasks = [*self._tasks]
        for each in tasks:
            each.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._loading.shutdown(wait=False, cancel_futures=True)

    def _start(self, step: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(step)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _answer(self, change: int, description: Description) -> None:
        """Make a version ready, and report it to the supervisor."""
        assert self._supervisor is not None
        problem = None
        try:
            self._candidate = await self._prepare(description)
        except StartupError as error:
            problem = str(error)
        except Exception as error:  # noqa: BLE001 - our bug: this engine serves on
            _log.exception("a version cannot be made ready")
            problem = repr(error)
        with suppress(StartupError):  # the supervisor is gone, and this engine ends
            self._supervisor.prepared(change, problem)

    async def _prepare(self, description: Description) -> ServedGraph:
        """Make a version ready, aside.

        Raises:
            StartupError: it cannot be, within ``start_timeout``; nothing of it is left.
        """
        limit = self._loaded.deployment.config.start_timeout or None
        try:
            async with asyncio.timeout(limit):
                graph = await self._make_ready(description)
        except TimeoutError as error:
            text = f"version {description['version']} was not ready within {limit:g} s"
            raise StartupError(f"{text} (start_timeout)") from error
        return graph

    async def _aside(self, function: Callable[..., _T], *arguments: Any) -> _T:
        """Call a function in a thread."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._loading, function, *arguments)

    async def _make_ready(self, description: Description) -> ServedGraph:
        deployment = self._loaded.deployment
        blueprint = await self._aside(deployment.version_of, description)
        who = f"version {blueprint.version} of {blueprint.called}"
        if any(each.key == blueprint.key for each in self._engine.all_graphs):
            raise StartupError(f"{who} is there already")
        if blueprint.processes and self._supervisor is None:
            raise StartupError(f"{who} has ops in processes, and the service started without any")
        loaded = await self._aside(LoadedGraph, blueprint, deployment, lambda *_: nullcontext())
        await self._aside(loaded.make_workers)
        graph = self._build(loaded)
        self._engine.set_aside(graph)
        try:
            await graph.start()
            loaded.signatures.check_started(graph)
            await self._warm_up(graph)
        except BaseException:
            # In a task of its own: this one may have been cancelled.
            await asyncio.shield(self._start(self._end(graph)))
            raise
        self._loaded.graphs.append(loaded)
        self._models |= deployment.models_of(blueprint)
        return graph

    def _serve(self, graph: ServedGraph) -> None:
        """Make a graph that is aside the default version of its name."""
        self._engine.add(graph, default=True)
        _log.info("graph %s serves", graph)

    def _retire_others(self, graph: ServedGraph) -> None:
        for each in [*self._engine.graphs]:
            others = each.name == graph.name and each is not graph
            if others and each.state is GraphState.SERVING:
                self._start(self._end(each))

    async def _end(self, graph: ServedGraph) -> None:
        """Let a graph finish its requests, and end its workers."""
        at_rest = asyncio.Event()
        self._engine.drain_graph(graph, at_rest.set)
        await at_rest.wait()
        await graph.close(_GRACE)
        self._engine.remove(graph)
        _log.info("graph %s has ended", graph)
        self._loaded.graphs[:] = [x for x in self._loaded.graphs if x.blueprint.key != graph.key]
        del graph
        # Models are large, and would wait in cycles for the next full collection. It is short:
        # what was there at the start of the service is frozen.
        gc.collect()
