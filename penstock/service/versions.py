"""Changes the versions of a running engine's graphs.

A version is made ready aside: its models are opened and its ``init_op`` run in a thread, its
workers started, and its examples run in it, while the engine's graphs serve. When all versions of
the wanted state are ready, requests get them at once; those that are in no state any more finish
their requests and end.

With a supervisor all engines do so, or none. Without one this engine has the same table of its own
(see ``supervisor/version_table.py``).

With ``swap: resource`` the versions that are to be replaced end first, and requests for them wait.
If the new ones cannot be served, the old ones are opened again.
"""

from __future__ import annotations

import asyncio
import gc
import itertools
import json
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from time import monotonic
from typing import Any, Final, NamedTuple, Protocol, TypeVar

from penstock.engine.engine import Engine
from penstock.engine.graph import GraphState, ServedGraph
from penstock.errors import StartupError
from penstock.executors.probing import VERIFYING
from penstock.executors.workers.pool import WorkerPool
from penstock.observe.swaps import NOT_STARTED, SERVED, Swap, Swaps
from penstock.repository.lifecycle import State
from penstock.repository.options import MODELS
from penstock.repository.parameters import ANY, SIGNATURE
from penstock.repository.served import Description, Served, Update
from penstock.service.blueprint import Blueprint
from penstock.service.build import LoadedDeployment, LoadedGraph, route
from penstock.service.daemon_pool import DaemonPool
from penstock.service.models import OPENING
from penstock.supervisor.messages import (
    Abort,
    Change,
    Changed,
    Commit,
    Hold,
    OfChange,
    Prepare,
    Restore,
    Retire,
    Stale,
)
from penstock.supervisor.version_table import Sends, VersionTable
from penstock.tensor import difference

_T = TypeVar("_T")

_log = logging.getLogger(__name__)

_GRACE: Final = 5.0
"""Seconds for the calls of a graph at rest to return, when its workers are ended."""

AGAIN: Final = (5.0, 60.0)
"""The first and the longest wait, in seconds, before a version that this engine could not open, and
that the others serve, is tried again."""

_THREADS: Final = 4
"""Threads that open models: versions of so many names are made ready at once."""

RESOURCE: Final = "resource"
"""The value of ``swap``, a key of the service and of a description, with which the versions that
one replaces end first."""

ALLOWED: Final = "; `signature: any` in its description allows that"
"""What is said of a version without it."""

ALLOWED_BY_CONFIG: Final = f"; `{SIGNATURE}: any` in the parameters of its config.pbtxt allows that"
"""The same, of a version of a repository."""


_PASSED: Final = {OPENING: "opened", VERIFYING: "probed"}
"""Steps of an op's start that swaps show."""


class Table(Protocol):
    """The table of versions, as an engine sees it: ``SupervisorClient``, or ``_OwnTable``."""

    async def change(
        self, base: int, state: Served, *, ended: bool = False, held: Sequence[str] = ()
    ) -> Stale | None:
        """Request a state."""

    def held(self, change: int) -> None:
        """The versions that are to be replaced have ended."""

    def restored(self, change: int, problem: str | None) -> None:
        """They serve again, or why one cannot."""

    def prepared(self, change: int, problem: str | None) -> None:
        """The versions of a change are ready, or why one cannot be."""

    def committed(self, change: int) -> None:
        """This engine serves the state of a change."""

    def retired(self, change: int) -> None:
        """The versions that it has removed have ended."""


class _Subject(NamedTuple):
    """What the record of a swap is about.

    Attributes:
        name: of a graph, or of the model of an op.
        versions: those that it brings.
        ends: those that it ends, as far as that is known before.
    """

    name: str | None
    versions: list[str]
    ends: list[str]


@dataclass(slots=True)
class _Step:
    """A change in which this engine takes part.

    Attributes:
        state: the wanted one.
        task: makes the versions ready.
        ready: the new versions, aside.
        old: graphs that serve no more.
        swap: its record.
        held: graphs whose workers have ended, and whose requests wait; None if it holds none.
    """

    state: Served
    swap: Swap
    task: asyncio.Task[None] | None = None
    ready: dict[str, ServedGraph] = field(default_factory=dict)
    old: list[ServedGraph] = field(default_factory=list)
    held: list[ServedGraph] | None = None


class Versions:
    """See the module. Belongs to the engine's loop.

    Args:
        loaded: the graphs of the engine, and their deployment, which makes further versions.
        engine: runs the graphs.
        build: builds a graph for the engine.
        warm_up: runs the examples of a graph in it.
        models: the names of the ops' models, by label; completed here.
        table: of the service; None: this engine is the only one, without a supervisor.

    Attributes:
        arriving: makes the state with a further version of a name, which is to serve in place of
            the others.
        changed: called with each state that this engine serves from now on.
        ended: called with each graph that was removed, if no other one has its name and version.
        swaps: records what this engine does.
        gaps: what versions do, by name and version, for which requests wait; see
            ``Lifecycle.rows``.
    """

    def __init__(
        self,
        loaded: LoadedDeployment,
        engine: Engine,
        build: Callable[[LoadedGraph], ServedGraph],
        warm_up: Callable[[ServedGraph], Awaitable[None]],
        models: dict[str, str],
        table: Table | None = None,
    ) -> None:
        self._loaded = loaded
        self._engine = engine
        self._build = build
        self._warm_up = warm_up
        self._models = models
        self._has_op_models = bool(loaded.deployment.op_models)
        self._states: dict[str | None, Served] = {**loaded.deployment.states}
        self._numbers: dict[str | None, int] = {}  # of the changes that made them
        self._supervised = table is not None
        own = None if table is not None else _OwnTable(self._states, self.obey)
        self._own = own
        self._table: Table = table or own  # type: ignore[assignment] # one of them is there
        self._loading = DaemonPool(_THREADS, "versions")
        self._making = asyncio.Lock()  # the function that makes versions is the user's
        self._tasks: set[asyncio.Task[Any]] = set()
        self._steps: dict[int, _Step] = {}
        self._lost: dict[tuple[str | None, str], str] = {}
        self._again: asyncio.Task[None] | None = None
        self.arriving: Callable[[Description, Served | None], Served] = _at_once
        self.changed: Callable[[Served], object] = lambda state: None
        self.ended: Callable[[ServedGraph], object] = lambda graph: None
        self.swaps = Swaps()
        self.gaps: dict[tuple[str | None, str], State] = {}

    def names(self) -> list[str | None]:
        """See ``engine.Versions``."""
        return [*self._states]

    def served(self, name: str | None) -> Served | None:
        """See ``engine.Versions``."""
        return self._states.get(name)

    async def swap(self, description: Description) -> None:
        """See ``engine.Versions``."""
        await self.change(description.get("name"), partial(self.arriving, description))

    async def change(self, name: str | None, update: Update, *, ended: bool = False) -> None:
        """See ``engine.Versions``."""
        base, state = self._numbers.get(name, 0), self._states.get(name)
        while True:
            wanted = update(state)
            is_load = bool(_brought(state, wanted))
            loaded = self._subject(state, wanted).name
            try:
                self._check(name, state, wanted)
                held = self._to_hold(state, wanted)
                stale = await self._table.change(base, wanted, ended=ended, held=held)
            except StartupError:
                if is_load:
                    self.swaps.count(loaded, NOT_STARTED)
                raise
            if stale is None:
                if is_load:
                    self.swaps.count(loaded, SERVED)
                return
            base = stale.base
            state = None if stale.state is None else Served.of_plain(stale.state)

    def _subject(self, present: Served | None, wanted: Served) -> _Subject:
        """What a change is about. If another version of the model of one op is all that it brings,
        it is about that model.
        """
        brought = _brought(present, wanted)
        if self._has_op_models and present is not None:
            for version, description in brought.items():
                before = present.versions.get(version, {}).get(MODELS, {})
                models = description.get(MODELS, {})
                others = [op for op in models if op in before and models[op] != before[op]]
                if len(brought) == len(others) == 1:
                    old, new = before[others[0]], models[others[0]]
                    return _Subject(new["name"], [new["version"]], [old["version"]])
        return _Subject(wanted.name, [*brought], [])

    def _check(self, name: str | None, state: Served | None, wanted: Served) -> None:
        """Check a wanted state, as far as that is possible without making anything.

        Raises:
            StartupError: it is of another name, or has a version that the service cannot have.
        """
        if wanted.name != name:
            raise StartupError(f"a state of {name!r} was wanted, and one of {wanted.name!r} made")
        if state is None:
            self._loaded.deployment.check_name(name)
        for version, description in wanted.versions.items():
            if state is not None and state.versions.get(version) == description:
                continue
            self._loaded.deployment.check_description(description)
            try:
                json.dumps(description)
            except (TypeError, ValueError) as error:
                raise StartupError(f"a version's description is plain data: {error}") from error

    def _to_hold(self, state: Served | None, wanted: Served) -> list[str]:
        """The versions that are to end before the new ones are made ready.

        Raises:
            StartupError: a new one is to be rolled out, beside the one that it replaces.
        """
        before = {} if state is None else state.versions
        usual = self._loaded.deployment.config.swap
        new = _brought(state, wanted).values()
        if not any(each.get("swap", usual) == RESOURCE for each in new):
            return []
        if wanted.rolling is not None:
            raise StartupError(
                "swap: resource: it cannot be rolled out, as both versions would have to be open"
            )
        return [each for each in before if wanted.versions.get(each) != before[each]]

    def obey(self, order: OfChange) -> None:
        """Take part in a change of all engines."""
        match order:
            case Hold(change, name, versions):
                step = self._steps[change] = _Step(self._states[name], Swap(name, (), monotonic))
                step.task = self._start(self._hold(change, step, versions))
            case Restore(change):
                self._start(self._restore(change, self._steps.pop(change)))
            case Prepare(change, plain):
                state = Served.of_plain(plain)
                swap = Swap(state.name, (), monotonic)
                if not self._serves_the_same(state):
                    subject = self._subject(self._states.get(state.name), state)
                    swap = self.swaps.prepare(change, subject.name, subject.versions)
                    swap.ends = subject.ends
                step = self._steps.setdefault(change, _Step(state, swap))
                step.state, step.swap = state, swap
                step.task = self._start(self._answer(change, step))
            case Commit(change):
                self._serve(change, self._steps[change])
                self._table.committed(change)
            case Abort(change):
                self._abort(self._steps.pop(change, None))
            case Retire(change):
                self._start(self._retire(change, self._steps.pop(change)))

    def _abort(self, step: _Step | None) -> None:
        """Remove what was made ready; nothing if this engine has just reported a problem, too."""
        if step is None:
            return
        self.swaps.fail(step.swap, "")  # another engine says why
        if step.task is not None:
            step.task.cancel()
        for graph in step.ready.values():
            self._start(self._end(graph))

    async def open_all(self) -> None:
        """Open what the other engines of the service serve already, when this one starts. What
        cannot be opened is told, left out, and tried again: the others are served.
        """
        await self._open_missing()
        self._try_again()

    def _try_again(self) -> None:
        if self._lost and (self._again is None or self._again.done()):
            self._again = self._start(self._open_lost())

    async def _open_missing(self) -> None:
        present = {each.key for each in self._engine.graphs}
        await asyncio.gather(
            *(
                self._open(description)
                for state in [*self._states.values()]
                for description in state.versions.values()
                if (state.name, description["version"]) not in present
            )
        )

    async def _open(self, description: Description) -> None:
        """Open a version that the present state of its name has."""
        name, version = key = description["name"], description["version"]
        try:
            alone = Swap(name, [version], monotonic)
            graph = await self._in_time(description, alone, decided=True)
        except StartupError as error:
            why = str(error)
        except Exception as error:  # noqa: BLE001 - our bug: this engine serves on
            _log.exception("a version cannot be made ready")
            why = repr(error)
        else:
            state = self._states[name]
            changes = any(each.state.name == name for each in self._steps.values())
            if changes or state.versions.get(version) != description:  # it may be replaced
                await self._end(graph)
                return
            self._lost.pop(key, None)
            self._add(graph)
            route(self._engine, state)
            self._tell_lost(name)
            _log.info("graph %s serves", graph)
            return
        self._lose(name, version, why)

    def _lose(self, name: str | None, version: str, why: str) -> None:
        """A version of the present state cannot be served by this engine."""
        if self._lost.get((name, version)) != why:
            _log.error(
                "model %s: version %s cannot be opened again: %s; it is tried later, and all else"
                " serves", name, version, why,
            )  # fmt: skip
        self._lost[name, version] = why
        self._tell_lost(name)

    def _tell_lost(self, name: str | None) -> None:
        """Let requests for a name, and probes, be told if its default version is lost."""
        state = self._states[name]
        for key in [*self._lost]:
            if key[0] == name and key[1] not in state.versions:
                del self._lost[key]
        why = self._lost.get((name, state.default or ""))
        if why is None:
            self._engine.missing.pop(name, None)
        else:
            text = f"version {state.default} of {state.called} cannot be opened: {why}"
            self._engine.missing[name] = text

    async def _open_lost(self) -> None:
        """Try again what could not be opened, until it is."""
        wait, longest = AGAIN
        while self._lost:
            await asyncio.sleep(wait)
            wait = min(2 * wait, longest)
            if not self._steps:  # nothing changes now
                await self._open_missing()

    async def close(self) -> None:
        """End with the engine, which then ends the workers of all graphs."""
        if self._own is not None:
            self._own.close()
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

    async def _answer(self, change: int, step: _Step) -> None:
        """Make the versions of a change ready, and report it."""
        problem = None
        try:
            await self._prepare(step)
        except StartupError as error:
            problem = str(error)
        except Exception as error:  # noqa: BLE001 - our bug: this engine serves on
            _log.exception("a version cannot be made ready")
            problem = repr(error)
        if problem is not None:
            self.swaps.fail(step.swap, problem)
        if problem is not None and step.held is None:
            self._steps.pop(change, None)
        step.task = None
        with suppress(StartupError):  # the supervisor is gone, and this engine ends
            self._table.prepared(change, problem)

    async def _prepare(self, step: _Step) -> None:
        """Make the versions ready, aside, that this engine lacks.

        Raises:
            StartupError: one cannot be, within ``start_timeout``; nothing of them is left.
        """
        brought = _brought(self._states.get(step.state.name), step.state)
        try:
            for version, description in brought.items():
                step.ready[version] = await self._in_time(description, step.swap)
        except BaseException:
            # In tasks of their own: this one may have been cancelled.
            ends = [self._start(self._end(graph)) for graph in step.ready.values()]
            step.ready.clear()
            await asyncio.shield(asyncio.gather(*ends))
            raise

    async def _in_time(
        self, description: Description, swap: Swap, *, decided: bool = False
    ) -> ServedGraph:
        """Make a version ready, aside.

        Args:
            description: of the version.
            swap: its record.
            decided: whether the service has it already, so that its signature is right.

        Raises:
            StartupError: it cannot be, within ``start_timeout``; nothing of it is left.
        """
        limit = self._loaded.deployment.config.start_timeout or None
        try:
            async with asyncio.timeout(limit):
                return await self._make_ready(description, swap, decided=decided)
        except TimeoutError as error:
            text = f"version {description['version']} was not ready within {limit:g} s"
            raise StartupError(f"{text} (start_timeout)") from error

    async def _aside(self, function: Callable[..., _T], *arguments: Any) -> _T:
        """Call a function in a thread."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._loading, function, *arguments)

    async def _make_ready(
        self, description: Description, swap: Swap, *, decided: bool
    ) -> ServedGraph:
        deployment = self._loaded.deployment
        async with self._making:
            blueprint = await self._aside(deployment.version_of, description)
        who = f"version {blueprint.version} of {blueprint.called}"
        if blueprint.processes and not self._supervised:
            raise StartupError(f"{who} has ops in processes, and the service started without any")
        watched = partial(_watched, swap)
        before, kept = self._kept(blueprint)
        loaded = await self._aside(LoadedGraph, blueprint, deployment, watched, before, kept)
        await self._aside(loaded.make_workers)
        graph = self._build(loaded)
        self._engine.set_aside(graph)
        try:
            await _start(graph, swap)
            loaded.signatures.check_started(graph)
            if not decided:
                self._check_successor(loaded, graph, description)
            await self._warm_up(graph)
            swap.passed("warmed up")
        except BaseException:
            # In a task of its own: this one may have been cancelled.
            await asyncio.shield(self._start(self._end(graph)))
            raise
        loaded.served = graph
        self._loaded.graphs.append(loaded)
        return graph

    def _kept(self, blueprint: Blueprint) -> tuple[LoadedGraph | None, list[int]]:
        """The graph that serves in whose place another one is to come, with other models of its
        ops; and the indexes of the ops that are the same in both, and run on. Without room for two
        they have ended already.
        """
        default = self._engine.default_of(blueprint.name) if self._has_op_models else None
        if default is None or default.key != blueprint.key:
            return None, []
        before = next((each for each in self._loaded.graphs if each.served is default), None)
        if before is None or default.state is not GraphState.SERVING:
            return None, []
        same = same_ops(before.blueprint, blueprint)
        return before, [each for each in same if not default.stages[each].lost]

    def _check_successor(
        self, loaded: LoadedGraph, graph: ServedGraph, description: Description
    ) -> None:
        """Check that callers of the default version can call this one.

        Raises:
            StartupError: they cannot, and the description does not allow that.
        """
        default = self._engine.default_of(graph.name)
        if default is None or description.get("signature") == ANY:
            return
        before = next((x for x in self._loaded.graphs if x.served is default), None)
        for op in () if before is None else versioned(before.blueprint, loaded.blueprint):
            assert before is not None
            old, new = before.signatures.of_op(op, default), loaded.signatures.of_op(op, graph)
            why = difference(old, new)
            if old is not None and new is not None and why is not None:
                raise StartupError(
                    f"the model of op {op!r} has another signature than the one before: {why}"
                )
        why = difference(default.signature, graph.signature)
        if default.streams != graph.streams:
            why = "its answers come in pieces" if graph.streams else "its answers are in one piece"
        if why is not None:
            allowed = ALLOWED_BY_CONFIG if "config" in description else ALLOWED
            raise StartupError(
                f"version {graph.version} of {graph.name} has another signature than version"
                f" {default.version}: {why}{allowed}"
            )

    def _serve(self, change: int, step: _Step) -> None:
        """Let requests get the wanted state from now on."""
        engine, state = self._engine, step.state
        if self._serves_the_same(state):
            self._states[state.name] = state
            self._numbers[state.name] = change
            return
        for graph in step.ready.values():
            self._add(graph)
        step.old = route(engine, state)
        old = [graph.version for graph in (*(step.held or ()), *step.old)]
        step.swap.ends = step.swap.ends or old
        step.swap.serves = _described(state, op_models=self._has_op_models)
        step.swap.passed("swapped")
        self._release(step.held or ())
        self._states[state.name] = state
        self._numbers[state.name] = change
        for version, graph in step.ready.items():
            self._lost.pop((state.name, version), None)
            _log.info("graph %s serves", graph)
        self._tell_lost(state.name)
        _log.info("%s: %s", state.called, _described(state, op_models=self._has_op_models))
        self.changed(state)

    def _add(self, graph: ServedGraph) -> None:
        """Let a graph serve that is ready."""
        self._engine.add(graph, again=True)
        made = next(each for each in self._loaded.graphs if each.served is graph)
        self._models |= self._loaded.deployment.models_of(made.blueprint)

    def _serves_the_same(self, state: Served) -> bool:
        """Whether a wanted state differs only in what the engine that loads models must know."""
        present = self._states.get(state.name) or Served(name=state.name)
        same = replace(present, barred=state.barred, unloaded=state.unloaded, sent=state.sent)
        return same == state

    async def _retire(self, change: int, step: _Step) -> None:
        """End what serves no more, and report it."""
        await asyncio.gather(*(self._start(self._end(graph, step.swap)) for graph in step.old))
        step.swap.done()
        with suppress(StartupError):  # the supervisor is gone, and this engine ends
            self._table.retired(change)

    async def _hold(self, change: int, step: _Step, versions: Sequence[str]) -> None:
        """Let versions finish their requests, end their workers, and report it; further requests
        wait.
        """
        serving = {each.version: each for each in self._engine.serving(step.state.name)}
        held = step.held = [serving[each] for each in versions if each in serving]
        rests = []
        for graph in held:
            _ = graph.signature  # its workers tell it
            at_rest = asyncio.Event()
            self.gaps[graph.key] = State.DRAINING
            self._engine.hold_graph(graph, at_rest.set)
            rests.append(at_rest.wait())
            _log.info("graph %s makes room for its successor; its requests wait", graph)
        await asyncio.gather(*rests)
        await asyncio.gather(*(each.close(_GRACE) for each in held))
        self.gaps |= dict.fromkeys([each.key for each in held], State.REMOVED)
        gc.collect()
        with suppress(StartupError):  # the supervisor is gone, and this engine ends
            self._table.held(change)

    async def _restore(self, change: int, step: _Step) -> None:
        """Serve the held versions again, and report it."""
        self.swaps.fail(step.swap, "")  # another engine says why
        if step.task is not None:
            step.task.cancel()
            await asyncio.gather(step.task, return_exceptions=True)
        await asyncio.gather(*(self._start(self._end(each)) for each in step.ready.values()))
        problem = None
        state = self._states[step.state.name]
        self.gaps |= dict.fromkeys([each.key for each in step.held or ()], State.LOADING)
        for held in step.held or ():
            again = Swap(held.name, [held.version], monotonic)  # no one of its own
            try:
                graph = await self._in_time(state.versions[held.version], again, decided=True)
            except StartupError as error:
                problem = str(error)
            except Exception as error:  # noqa: BLE001 - our bug: this engine serves on
                _log.exception("a version cannot be made ready")
                problem = repr(error)
            else:
                self._add(graph)
                _log.info("graph %s serves again", graph)
                continue
            self._lose(state.name, held.version, problem)
        route(self._engine, state)
        self._release(step.held or ())
        self._try_again()
        with suppress(StartupError):  # the supervisor is gone, and this engine ends
            self._table.restored(change, problem)

    def _release(self, held: Sequence[ServedGraph]) -> None:
        """Let what has waited for held graphs run in those that serve in their places."""
        for graph in held:
            self.gaps.pop(graph.key, None)
            self._engine.release_graph(graph)
            self._remove(graph)

    async def _end(self, graph: ServedGraph, swap: Swap | None = None) -> None:
        """Let a graph finish its requests, and end its workers."""
        at_rest = asyncio.Event()
        self._engine.drain_graph(graph, at_rest.set)
        await at_rest.wait()
        if swap is not None:
            swap.passed("drained")
        await graph.close(_GRACE)
        self._remove(graph)
        if swap is not None:
            swap.passed("ended")
        del graph
        # Models are large, and would wait in cycles for the next full collection. It is short:
        # what was there at the start of the service is frozen.
        gc.collect()

    def _remove(self, graph: ServedGraph) -> None:
        self._engine.remove(graph)
        _log.info("graph %s has ended", graph)
        self._loaded.graphs[:] = [each for each in self._loaded.graphs if each.served is not graph]
        if graph.key in self._engine.removed:
            for stage in graph.stages:
                self._models.pop(stage.name, None)
            self.ended(graph)


def _brought(present: Served | None, wanted: Served) -> dict[str, Description]:
    """The versions of a wanted state that the present one lacks, or has with another content."""
    known = {} if present is None else present.versions
    return {each: about for each, about in wanted.versions.items() if known.get(each) != about}


@contextmanager
def _watched(swap: Swap, op: str, doing: str) -> Iterator[None]:
    """A step of an op's start in this process."""
    yield
    _pass(swap, doing)


def _pass(swap: Swap, doing: str) -> None:
    if doing in _PASSED:
        swap.passed(_PASSED[doing])


async def _start(graph: ServedGraph, swap: Swap) -> None:
    """Start the workers of a graph, aside.

    Raises:
        StartupError: see ``ServedGraph.start``.
    """
    pools = [each.executor for each in graph.own if isinstance(each.executor, WorkerPool)]
    for each in pools:
        each.passed = partial(_pass, swap)
    try:
        await graph.start()
    finally:
        for each in pools:
            each.passed = None
    swap.passed("started")


def versioned(before: Blueprint, after: Blueprint) -> list[str]:
    """The ops of two versions of a graph whose models have versions."""
    known = {each.name for each in before.options if each.versions is not None}
    return [each.name for each in after.options if each.versions is not None and each.name in known]


def same_ops(before: Blueprint, after: Blueprint) -> list[int]:
    """The indexes of ops that are the same in two graphs of the same code, which may differ in the
    versions of the ops' models.
    """
    pairs = zip(before.options, after.options, strict=True)
    return [
        index
        for index, (old, new) in enumerate(pairs)
        if (old.model, old.model_version) == (new.model, new.model_version)
    ]


def _at_once(description: Description, state: Served | None) -> Served:
    return (state or Served(name=description.get("name"))).only(description)


class _OwnTable:
    """The table of an engine without a supervisor: its orders are obeyed at once."""

    def __init__(
        self, states: Mapping[str | None, Served], obey: Callable[[OfChange], None]
    ) -> None:
        self._table = VersionTable(states)
        self._obey = obey
        self._numbers = itertools.count(1)
        self._asked: dict[int, asyncio.Future[Stale | None]] = {}

    async def change(
        self, base: int, state: Served, *, ended: bool = False, held: Sequence[str] = ()
    ) -> Stale | None:
        """See ``Table``."""
        number = next(self._numbers)
        answer: asyncio.Future[Stale | None] = asyncio.get_running_loop().create_future()
        self._asked[number] = answer
        try:
            wanted = Change(number, base, state.plain(), ended, [*held])
            self._tell(self._table.want(self, wanted, [self]))
            return await answer
        finally:
            del self._asked[number]

    def held(self, change: int) -> None:
        """See ``Table``."""
        self._tell(self._table.held(self, change))

    def restored(self, change: int, problem: str | None) -> None:
        """See ``Table``."""
        self._tell(self._table.restored(self, change, problem))

    def prepared(self, change: int, problem: str | None) -> None:
        """See ``Table``."""
        self._tell(self._table.prepared(self, change, problem))

    def committed(self, change: int) -> None:
        """See ``Table``."""
        self._tell(self._table.committed(self, change))

    def retired(self, change: int) -> None:
        """See ``Table``."""
        self._tell(self._table.retired(self, change))

    def close(self) -> None:
        """The engine ends: nothing changes any more."""
        for answer in self._asked.values():
            if not answer.done():
                answer.set_exception(StartupError("the service is shutting down"))
                answer.exception()  # marks it as retrieved, in case nothing waits

    def _tell(self, sends: Sends) -> None:
        for _, message in sends:
            match message:
                case Changed(number, problem):
                    error = None if problem is None else StartupError(problem)
                    self._answer(number, None, error)
                case Stale(number):
                    self._answer(number, message)
                case Hold() | Prepare() | Commit() | Abort() | Restore() | Retire():
                    self._obey(message)

    def _answer(self, number: int, value: Stale | None, error: StartupError | None = None) -> None:
        answer = self._asked.get(number)
        if answer is None or answer.done():  # its caller has left
            return
        if error is not None:
            answer.set_exception(error)
        else:
            answer.set_result(value)


def _described(state: Served, *, op_models: bool) -> str:
    """A state in the log.

    Args:
        state: the state.
        op_models: whether ops of the service have versions.
    """
    if state.default is None:
        return "no version is served"
    parts = [f"version {state.default} is the default of {', '.join(state.versions)}"]
    if op_models:
        models = state.versions[state.default].get(MODELS, {})
        parts += [f"op {op} runs version {each['version']}" for op, each in models.items()]
    if state.labels:
        parts.append("labels " + ", ".join(f"{k}={v}" for k, v in state.labels.items()))
    if state.weights:
        parts.append("weights " + ", ".join(f"{k}={v}" for k, v in state.weights.items()))
    return "; ".join(parts)
