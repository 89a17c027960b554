"""The description of a service before models are opened and processes started.

A Blueprint is one checked graph with the options of each op. A Deployment is the set of graphs that
are served together, behind one door and in one engine, or in several identical engines.

A service may get further versions of its graphs while it runs. A version is described by plain
data, which can be sent to every process; the Deployment, which every process has, makes a Blueprint
of it.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

from penstock.api.application import Application
from penstock.batching.queue_policy import QueuePolicy
from penstock.config.load import Loaded
from penstock.config.problems import Problem
from penstock.config.resolve import CONSTRUCTOR, OpOptions, advice, resolve_op
from penstock.config.schema import ServiceConfig
from penstock.engine.engine import Engine
from penstock.errors import ConfigError, HookError, StartupError
from penstock.executors.executor import OpSource
from penstock.executors.kinds import COROUTINE, PROCESS, REMOTE, THREAD, ExecutorKind
from penstock.executors.workers.watchdog import Supervision
from penstock.instrument import Instrument
from penstock.ops.ends import RequestOp, ResponseOp, problem_of_messages
from penstock.ops.functions import runs_on_loop
from penstock.ops.hooks import asks_caller, bind, overrides
from penstock.ops.op import Op
from penstock.ops.short import Model
from penstock.ops.words import COROUTINES
from penstock.protocols import media
from penstock.repository.options import ONLY, OpModel, Repositories
from penstock.repository.served import (
    Description,
    Served,
    at_start,
    check_text,
    is_at_start,
)
from penstock.runtimes.cpus import usable_cpus
from penstock.runtimes.options import settled
from penstock.service.affinity import available, cpu_problems
from penstock.service.config_warnings import HOOKS, config_warnings, unknown_ops_of_flags
from penstock.service.external_store import problems_of_store, store_warning
from penstock.service.graph import Graph, graph_of
from penstock.service.instruments import imported, named_instruments, originals
from penstock.service.models import on_this_machine, problems_of_model
from penstock.service.ray_problems import problems_of_ray
from penstock.supervisor.engine_id import EngineId
from penstock.tensor import Signature

_OF_ONE_GRAPH = frozenset({"name", "service", "missing_device", "dag", "op"})
"""Top-level keys of a graph; all others belong to the door and the engine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Blueprint:
    """One checked graph.

    Attributes:
        config: of its service.
        graph: what runs after what.
        options: each op's options, by the plan's index.
        warnings: warnings, to be logged once.
        notes: further start lines.
        name: its name in requests, the first part of its URL; None accepts any name.
        version: distinguishes graphs of the same name.
        instruments: the instruments of its service.
        applications: the applications of its service: called with the engine, each returns an
            object whose ``routes`` the door serves.
        signature: its declared inputs and outputs; None: those of its models.
        app: the name of its app; None for a separate service.
        method, route: the HTTP method and the path of its route in the app.
        shape: the route's request and answer types in one line.
        legacy: whether it was written for the original, see ``Servable.legacy``.
        one_port: see ``Servable.one_port``.
        description: the data that it was made of; None for a version with which the service starts.
        configuration: of its model, as a repository has it; None for other graphs.
        queue: how long its requests may wait, by priority, and by 0 for others; None: as the
            service's key ``queue`` says.
    """

    config: ServiceConfig
    graph: Graph
    options: tuple[OpOptions, ...]
    warnings: tuple[str, ...]
    name: str | None = None
    version: str = "1"
    instruments: tuple[Instrument, ...] = ()
    applications: tuple[MakeApplication, ...] = ()
    signature: Signature | None = None
    app: str | None = None
    method: str = "POST"
    route: str | None = None
    shape: str = ""
    notes: tuple[str, ...] = ()
    legacy: bool = False
    one_port: bool = False
    description: Description | None = None
    configuration: Mapping[str, Any] | None = None
    queue: Mapping[int, QueuePolicy] | None = None

    @property
    def key(self) -> tuple[str | None, str]:
        """Its name and version."""
        return self.name, self.version

    @property
    def processes(self) -> int:
        """The number of worker processes that an engine has for it."""
        return sum(each.concurrency for each in self.options if each.executor.own_processes)

    @property
    def called(self) -> str:
        """Its name in messages."""
        return self.name or "a service without a name"

    def outside_reader(self, op: int) -> str | None:
        """The first reader of the op's output that is no worker process; None if all are.

        Args:
            op: the op's index.
        """
        plan = self.graph.plan
        senders = (op, *plan.jump_to[op])  # if it jumps, its output replaces theirs
        for sender in senders:
            for reader in plan.consumers[sender]:
                if not self.options[reader].executor.own_processes:
                    return f"op {plan.names[reader]!r}"
        return "the ResponseOp" if plan.last in senders else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """The graphs that are served together.

    Attributes:
        graphs: every version that is served.
        config: the keys of the door and the engine, on which they agree.
        engine_id: the id of this engine.
        service: how many services the script ran before this one; None if it does not run it, but
            another server or a test does.
        make: makes further versions; None: there are none.
        first: the graphs of the service's own code; None: all.
        changed: the states of the names whose versions are others than those of ``first``.
        open_ended: whether names may come that ``first`` does not have; it may have none.
        base: has what belongs to the service and not to one of its graphs (warnings, instruments,
            applications) if there may be no graph; not served itself.
        repositories: where further models come from; None without any.
        op_models: the models of ops that have versions.
    """

    graphs: tuple[Blueprint, ...]
    config: ServiceConfig
    engine_id: EngineId = field(default_factory=EngineId)
    service: int | None = None
    make: MakeVersion | None = None
    first: tuple[Blueprint, ...] | None = None
    changed: Mapping[str | None, Served] = field(default_factory=dict)
    open_ended: bool = False
    base: Blueprint | None = None
    repositories: Repositories | None = None
    op_models: tuple[OpModel, ...] = ()

    @property
    def processes(self) -> int:
        """The number of worker processes of an engine."""
        return sum(graph.processes for graph in self.graphs)

    @property
    def legacy(self) -> bool:
        """Whether a graph was written for the original."""
        return any(graph.legacy for graph in self.graphs)

    @property
    def one_port(self) -> bool:
        """Whether gRPC shares the HTTP port if ``rpc_port`` is not set."""
        return all(graph.one_port for graph in self.graphs)

    @property
    def has_op_versions(self) -> bool:
        """Whether the model of an op has versions."""
        options = (each for graph in self.graphs for each in graph.options)
        return any(each.versions is not None and each.model is not None for each in options)

    @property
    def is_supervised(self) -> bool:
        """Whether parts of it run in processes other than the one that starts the service."""
        config = self.config
        own = config.build_dag_each_worker or config.supervised
        return bool(self.processes) or own or self.open_ended

    @property
    def _parts(self) -> tuple[Blueprint, ...]:
        """The graphs of the service's own code, and the base: versions in their places have no
        instruments and applications.
        """
        return self._originals if self.base is None else (self.base, *self._originals)

    @property
    def warnings(self) -> tuple[str, ...]:
        """Of all graphs, each once."""
        return tuple(dict.fromkeys(text for graph in self._parts for text in graph.warnings))

    @property
    def instruments(self) -> tuple[Instrument, ...]:
        """Of all graphs, each once."""
        return tuple(dict.fromkeys(each for graph in self._parts for each in graph.instruments))

    @property
    def applications(self) -> tuple[MakeApplication, ...]:
        """Of all graphs, each once."""
        return tuple(dict.fromkeys(each for graph in self._parts for each in graph.applications))

    @property
    def models(self) -> dict[str, str]:
        """The names of the ops' models, by label."""
        return {label: name for each in self.graphs for label, name in self.models_of(each).items()}

    def models_of(self, graph: Blueprint) -> dict[str, str]:
        """The same of one graph."""
        found = {}
        for op, options in zip(graph.graph.ops, graph.options, strict=True):
            path = options.model.path if options.model else op.model_path
            if options.model_version is not None:
                name = Path(options.model_place or "").name
                found[self.op_name(graph, op.name)] = f"{name} {options.model_version}"
            elif path:
                found[self.op_name(graph, op.name)] = Path(path).stem
        return found

    def in_threads(self) -> Deployment:
        """A copy with threads instead of workers that open the ops themselves."""
        make = self.make
        return replace(
            self.each(_in_threads),
            make=make and (lambda description: _in_threads(make(description))),
        )

    def each(self, change: Callable[[Blueprint], Blueprint]) -> Deployment:
        """A copy with changed graphs; each is changed once."""
        made = {id(graph): change(graph) for graph in (*self.graphs, *(self.first or ()))}
        graphs = tuple(made[id(graph)] for graph in self.graphs)
        first = None if self.first is None else tuple(made[id(graph)] for graph in self.first)
        return replace(self, graphs=graphs, first=first)

    def at(self, engine_id: EngineId) -> Deployment:
        """A copy for another engine."""
        return replace(self, engine_id=engine_id)

    @property
    def _originals(self) -> tuple[Blueprint, ...]:
        return self.graphs if self.first is None else self.first

    @property
    def states(self) -> dict[str | None, Served]:
        """The state of each name."""
        found: dict[str | None, Served] = {}
        for each in self._originals:
            before = found.get(each.name) or Served(name=each.name)
            found[each.name] = before.with_version(at_start(*each.key), default=True)
        return {**found, **self.changed}

    def _suffix(self, graph: Blueprint) -> str:
        """The version, in labels, if it is not the one that is the default at the start."""
        named = [each.version for each in self._originals if each.name == graph.name]
        return "" if named[-1:] == [graph.version] else f"@{graph.version}"

    def label_of(self, graph: Blueprint) -> str:
        """A graph's name for people."""
        return f"{graph.name or ''}{self._suffix(graph)}"

    def op_name(self, graph: Blueprint, op: str) -> str:
        """An op's label, unique in the engine: with its graph's name, if the service started with
        several graphs or without that one, but for an op that is called as its graph in a service
        that started without any; and with its version, if that is not the default at the start.
        """
        names = [*dict.fromkeys(each.name for each in self._originals)]
        alone = names == [graph.name] or (not names and op == graph.name)
        name = op if alone else f"{graph.name or '*'}/{op}"
        return name + self._suffix(graph)

    def source_of(self, graph: Blueprint, op: str) -> OpSource:
        """An op of a graph, for a process that is to open it."""
        description = graph.description
        if description is not None and self.op_models:
            # Models of other ops may change, and their files go, while this one runs on.
            description = {**description, ONLY: op}
        return OpSource(
            graph=graph.name,
            version=graph.version,
            op=op,
            label=self.op_name(graph, op),
            description=description,
        )

    def find_op(self, source: OpSource) -> tuple[Blueprint, int]:
        """The graph and the op's index.

        Raises:
            StartupError: the version cannot be made of its description, or has no such op.
        """
        if source.description is None:
            key = source.graph, source.version
            graph = next(each for each in self._originals if each.key == key)
        else:
            graph = self.version_of(source.description)
        names = graph.graph.plan.names
        if source.op not in names:
            raise StartupError(f"version {graph.version} of {graph.called} has no op {source.op!r}")
        return graph, names.index(source.op)

    def version_of(self, description: Description) -> Blueprint:
        """The version with this description, checked.

        Args:
            description: plain data with ``name`` and ``version``, texts, and whatever ``make``
                needs.

        Raises:
            StartupError: no version can be made of it, or it cannot run in this service.
        """
        self.check_description(description)
        if is_at_start(description):
            key = description["name"], description["version"]
            return next(each for each in self._originals if each.key == key)
        assert self.make is not None
        made, version = self.make(description), description["version"]
        if made.name != description["name"]:
            wanted = description["name"]
            raise StartupError(f"a version of {wanted!r} was wanted, and one of {made.name!r} made")
        problems = [*self._problems_of(made)]
        if problems:
            where = f"version {version} of {made.called}: "
            raise StartupError("\n".join(where + each for each in problems))
        return replace(made, version=version, description=dict(description))

    def check_description(self, description: Description) -> None:
        """Check name and version.

        Raises:
            StartupError: the service takes no versions, or has no such graph, or they are no texts.
        """
        name = description.get("name")
        version = check_text("a version", description.get("version"))
        if is_at_start(description):
            if (name, version) not in [each.key for each in self._originals]:
                raise StartupError(f"the service did not start with version {version} of {name!r}")
            return
        if self.make is None:
            raise StartupError("this service takes no further versions: see penstock.run")
        self.check_name(name)

    def check_name(self, name: str | None) -> None:
        """Check that there may be versions of this name.

        Raises:
            StartupError: the service has no such graph, and takes no others.
        """
        if self.open_ended:
            if not name or not isinstance(name, str) or not name.isprintable() or "/" in name:
                raise StartupError(f"a model's name is printable text without '/': {name!r}")
        elif name not in [each.name for each in self._originals]:
            raise StartupError(f"there is no graph {name!r} to have a further version")

    def with_states(self, states: Iterable[Served]) -> Deployment:
        """A copy with these states of names, in place of those that it has. If names come and go,
        the graphs are those of its own code: what is described is opened when the engine runs.

        Raises:
            StartupError: see ``version_of``.
        """
        changed = {**self.changed, **{each.name: each for each in states}}
        graphs = tuple(
            self.version_of(description)
            for state in {**self.states, **changed}.values()
            for description in state.versions.values()
            if not self.open_ended or is_at_start(description)
        )
        return replace(self, graphs=graphs, first=self._originals, changed=changed)

    def _problems_of(self, graph: Blueprint) -> Iterator[str]:
        """What a further version cannot have, because the service has it once."""
        for key in sorted(graph.config.model_fields_set - _OF_ONE_GRAPH):
            here, there = getattr(graph.config, key), getattr(self.config, key)
            if here != there:
                yield f"{key} is {here!r}, and the service has {there!r}"
        if graph.instruments or graph.applications:
            yield "instruments and applications belong to the service"
        for options in graph.options:
            if options.executor.needs_socket:
                yield f"op {options.name!r} has external workers, whose socket the service opens"
            if options.starts_server:
                yield f"op {options.name!r} needs a model server, which starts with the service"
            if options.remote is not None and options.remote.encryption_key is not None:
                yield f"op {options.name!r} has a key, which is sent when the service starts"


def draw_blueprint(
    response_op: ResponseOp,
    loaded: Loaded,
    name: str | None = None,
    instruments: Sequence[Instrument] = (),
    applications: Sequence[MakeApplication] = (),
    other_ops: Container[str] = (),
) -> Blueprint:
    """Check a graph, its hooks and every op's options, without opening or starting anything.

    Args:
        response_op: the graph's end.
        loaded: the service's configuration.
        name: the service's name.
        instruments: those of the service's code, before those of the configuration.
        applications: likewise.
        other_ops: names of ops of other services, to which flags may also refer.

    Raises:
        GraphError: the graph is not legal.
        ConfigError: every problem of the ops' options and models at once.
        HookError: hooks have wrong signatures; names all of them.
    """
    config = loaded.config
    dag = config.dag
    graph = graph_of(response_op, attempts=dag.retry, first_arrival=dag.channel_recv_frist_arrive)
    usual = THREAD if dag.is_thread_op else PROCESS
    cpus = available()
    problems = [loaded.place(each) for each in unknown_ops_of_flags(graph, config, other_ops)]
    options: list[OpOptions] = []
    fallbacks: list[str] = []
    for op in graph.ops:
        if op.config_keys:
            op.config = loaded.own.get(op.name, op.config_keys)
        try:
            entry = config.op.get(op.name)
            versioned = entry is not None and entry.versions is not None
            place = PROCESS if versioned else usual
            resolved = _resolved(op, config, place, usable_cpus())
        except ConfigError as error:
            problems.extend(error.problems)
            continue
        resolved, fallback = on_this_machine(op, resolved, loaded)
        fallbacks += [] if fallback is None else [fallback]
        options.append(resolved)
        problems.extend(cpu_problems(resolved, cpus))
        problems.extend(_function_problems(op, resolved))
        problems.extend(_caller_problems(op, resolved))
        problems.extend(_stream_problems(op, resolved, graph))
        problems.extend(_joining_problems(op, resolved))
        problems.extend(loaded.place(each) for each in process_only_problems(resolved))
        problems.extend(loaded.place(each) for each in problems_of_socket(resolved, config))
        problems.extend(loaded.place(each) for each in problems_of_ray(resolved, config))
        problems.extend(
            _version_problems(op, resolved)
            if versioned
            else problems_of_model(op, resolved, loaded)
        )
    problems.extend(loaded.place(each) for each in problems_of_store(config))
    instruments = [*instruments, *named_instruments(config, problems)]
    applications = [*applications, *imported("applications", config, problems)]
    if problems:
        raise ConfigError(problems)
    _check_hooks(graph)
    warnings = [
        *loaded.warnings,
        *advice(config.most_running, options),
        *config_warnings(graph, options, config),
        *store_warning(graph.plan, graph.ops, options, config),
        *fallbacks,
    ]
    return Blueprint(
        config=config,
        graph=graph,
        options=tuple(options),
        warnings=tuple(warnings),
        name=name,
        instruments=tuple(instruments),
        applications=tuple(applications),
    )


def _version_problems(op: Op, options: OpOptions) -> Iterator[str]:
    """Why the model of an op cannot have versions."""
    if op.local_service_handler is not None or options.remote is not None:
        yield f"op.{op.name}.versions: the model is not one that this service opens by its path"
    elif options.model is None:
        yield f"op.{op.name}.versions: the op has no model: local_service_conf.model_config has it"


def needs_callers(op: str) -> str:
    """The problem of an op that cannot run for unknown callers."""
    return (
        f"op {op!r} needs to know who calls, and the service admits everybody: set `security`, or"
        " write Caller | None for that parameter"
    )


def _may_admit(make: Callable[..., Any]) -> bool:
    """Whether what makes an application may make one that admits callers, as far as can be known
    without a call.
    """
    while isinstance(make, partial):
        make = make.func
    if isinstance(make, type):
        return hasattr(make, "admit")
    return not str(getattr(make, "__module__", "")).startswith("penstock.")


def _in_threads(graph: Blueprint) -> Blueprint:
    return replace(graph, options=tuple(map(_in_thread, graph.options)))


def _in_thread(options: OpOptions) -> OpOptions:
    if not options.executor.opens_again:
        return options
    model = options.model
    if model is not None and options.executor.elsewhere:  # this machine may lack the GPU
        model, _ = settled(replace(model, missing_device="cpu"))
    return replace(options, executor=THREAD, model=model)


def deploy(
    graphs: Sequence[Blueprint],
    make: MakeVersion | None = None,
    *,
    base: Blueprint | None = None,
) -> Deployment:
    """Put graphs behind one door, and into one engine.

    Args:
        graphs: the graphs; there may be none if there is a base. Of several versions of a name the
            last one is the default.
        make: makes further versions of them; None: there will be none.
        base: see ``Deployment``; with it, further names may come.

    Raises:
        ConfigError: two of them have the same name and version, or differ in keys of the door or
            the engine.
        HookError: an op needs to know who calls, and no admission of callers is possible.
    """
    problems: list[str] = []
    keys = [graph.key for graph in graphs]
    problems += [
        f"{keys.count(key)} services are called {key[0]!r}: give each a name of its own"
        if key[0] is not None
        else f"{keys.count(key)} services have no name: only one may serve every name"
        for key in dict.fromkeys(keys)
        if keys.count(key) > 1
    ]
    given: dict[str, Blueprint] = {}
    parts = [*([] if base is None else [base]), *graphs]
    for graph in parts:
        for key in sorted(graph.config.model_fields_set - _OF_ONE_GRAPH):
            first = given.setdefault(key, graph)
            here, there = getattr(graph.config, key), getattr(first.config, key)
            if here != there:
                by_apps = first.app != graph.app  # not by two graphs of one app
                one, other = (
                    f"App({each.app!r})" if by_apps and each.app else each.called
                    for each in (first, graph)
                )
                problem = (
                    f"{key}: {one} sets {there!r} and {other} {here!r}, but they share one door:"
                    " set it once, or to the same value"
                )
                if problem not in problems:  # as for each route of an app
                    problems.append(problem)
    measured = [graph.config.dag for graph in parts if graph.config.dag.enable_prometheus]
    ports = {dag.prometheus_port for dag in measured if dag.prometheus_port is not None}
    if len(ports) > 1:
        listed = " and ".join(map(str, sorted(ports)))
        problems.append(f"dag.prometheus_port: the services set {listed}: one port has all metrics")
    if problems:
        raise ConfigError(problems)
    more: dict[str, Any] = {key: getattr(graph.config, key) for key, graph in given.items()}
    config = parts[0].config.model_copy(update=more)
    applications = [each for graph in parts for each in graph.applications]
    if not config.security.enabled and not any(map(_may_admit, applications)):
        for op in (op for graph in graphs for op in graph.graph.ops):
            if asks_caller(op) == "required":
                raise HookError(needs_callers(op.name))
    # The rest of ``dag`` belongs to each graph.
    metrics = {"enable_prometheus": bool(measured), "prometheus_port": next(iter(ports), None)}
    config = config.model_copy(update={"dag": config.dag.model_copy(update=metrics)})
    # Once for all graphs, on the first.
    made, missing = originals(config, legacy=any(graph.legacy for graph in graphs))
    first, *others = (
        replace(
            parts[0],
            instruments=(*parts[0].instruments, *made),
            warnings=(*parts[0].warnings, *missing),
        ),
        *parts[1:],
    )
    if base is None:
        return Deployment(graphs=(first, *others), config=config, make=make)
    return Deployment(graphs=tuple(others), config=config, make=make, base=first, open_ended=True)


def _resolved(op: Op, config: ServiceConfig, usual: ExecutorKind, cpus: int) -> OpOptions:
    arguments = {key: getattr(op, key) for key in CONSTRUCTOR}
    path = None if op.model_path is None else str(op.model_path)
    entry = config.op.get(op.name)
    workers = COROUTINES if op.is_one_coroutine else 1
    resolved = resolve_op(op.name, arguments, entry, usual, cpus, path, op.given, workers)
    resolved = replace(resolved, process=op.hook_name("process"), join=op.hook_name("join"))
    if resolved.remote is not None:
        if overrides(op, "process", Op):
            key = "server_endpoints"
            if resolved.starts_server:
                key = "local_service_conf.client_type"
            text = (
                f"op.{op.name}.{key}: the op overrides process, which need not call"
                " a server: leave it out"
            )
            raise ConfigError([text])
        return replace(resolved, executor=REMOTE)
    runs_here = runs_on_loop(op.process) and not resolved.executor.needs_socket
    return replace(resolved, executor=COROUTINE) if runs_here else resolved


def _check_hooks(graph: Graph) -> None:
    ends = ((graph.request_op, RequestOp), (graph.response_op, ResponseOp))
    problems = [text for op, _ in ends if (text := problem_of_messages(op)) is not None]
    for op, base in (*((op, Op) for op in graph.ops), *ends):
        for hook in HOOKS[base]:
            if overrides(op, hook, base):
                try:
                    bind(op, hook)
                except HookError as error:
                    problems.append(str(error))
    if problems:
        raise HookError("\n".join(problems))


def _caller_problems(op: Op, options: OpOptions) -> list[str]:
    if options.executor.name != "external" or asks_caller(op) is None:
        return []
    return [f"op {op.name!r}: external workers do not get the Caller: remove that parameter"]


def _stream_problems(op: Op, options: OpOptions, graph: Graph) -> list[str]:
    if not op.seated and options.seats is not None:
        return [f"op {op.name!r}: seats are for a class with join and step: leave them out"]
    if not op.streams:
        return []
    what = f"op {op.name!r}: {op.hook_name('process')} is a generator, whose answers come in pieces"
    if op.seated:
        what = f"op {op.name!r} has seats, and its answers come in pieces"
    problems = []
    if op is not graph.ops[graph.plan.last]:
        problems.append(f"{what}: only the last op of a graph may be one")
    if options.batch_size > 1:
        problems.append(f"{what}: {op.word('batch_size')} must be 1")
    if op.is_jump_op():
        problems.append(f"{what}: it cannot jump over other ops")
    if options.executor.needs_socket and options.media != media.JSON:
        from penstock.typed.op import TypedOp

        if isinstance(op, TypedOp):  # its pieces are sent on as they are
            problems.append(f"{what}: leave out socket_format: its pieces are JSON")
    if op.seated and not options.executor.seats:
        problems.append(
            f"{what}: with the executor {options.executor.name!r} it cannot run; use thread"
        )
    elif not options.executor.streams:
        problems.append(
            f"{what}: with the executor {options.executor.name!r} they cannot; use thread, or write"
            " async def"
        )
    return problems


def _function_problems(op: Op, options: OpOptions) -> list[str]:
    if not op.one_at_a_time or options.batch_size == 1 or op.streams:
        return []
    if options.executor.needs_socket and not op.joins_feeds:
        return []
    return [
        f"op {op.name!r}: batch_size must be 1, got {options.batch_size}: the op is a function, "
        f"which runs for one request at a time: write batch={options.batch_size} above it, and"
        f" let it take and return lists"
    ]


def _joining_problems(op: Op, options: OpOptions) -> list[str]:
    joining = options.joining
    if joining is None:
        return []
    problems = []
    if joining.by_rows and not is_measured(op):
        problems.append(
            f"op {op.name!r}: batch_rows needs the rows before `preprocess` runs: let an op of its"
            f" own do what {op.hook_name('preprocess')} does, or join its inputs"
        )
    if joining.padding is not None and not op.joins_feeds:
        problems.append(f"op {op.name!r}: pad: it gets unchanged requests, in a list")
    if joining.padding is not None and options.executor.name == "external":
        problems.append(f"op {op.name!r}: pad: external workers get unchanged requests")
    return problems


def is_measured(op: Op) -> bool:
    """Whether an op's feeds are known before it runs: its one input, unchanged or converted to
    arrays.
    """
    reads = type(op).preprocess is Model.preprocess
    return (
        op.joins_feeds
        and len(op.get_input_ops()) <= 1
        and (reads or not overrides(op, "preprocess", Op))
    )


def supervision_of(options: OpOptions, config: ServiceConfig) -> Supervision:
    """The limits of one op's worker processes."""
    return Supervision(
        kill_late=options.kill_late,
        start_timeout=config.start_timeout or None,
        hang_limit=config.hang_limit or None,
        memory_limit=options.memory_limit,
        max_batches=options.max_batches,
        crash_dir=config.crash_dir,
    )


def process_only_problems(options: OpOptions) -> Iterator[Problem]:
    """Options that need worker processes, set for an op without: its calls cannot be ended, its
    workers not replaced.
    """
    executor = options.executor
    if executor.own_processes:
        return
    if options.kill_late and not executor.opens_again:
        text = (
            "kill is for ops that run in processes, and this one does not:"
            " its calls cannot be ended; write abandon, or executor: process"
        )
        yield Problem(path=("op", options.name, "on_timeout"), text=text)
    text = "is for ops that run in processes, and this one does not: leave it out"
    for key, value, has_effect in (
        ("memory_limit_mib", options.memory_limit, False),
        ("max_batches", options.max_batches, executor.opens_again),
    ):
        if value is not None and not has_effect:
            yield Problem(path=("op", options.name, key), text=text)


def problems_of_socket(options: OpOptions, config: ServiceConfig) -> Iterator[Problem]:
    """Problems of an op's keys ``socket`` and ``executor``."""
    path, name = ("op", options.name, "socket"), options.executor.name
    if not options.executor.needs_socket:
        if options.socket is not None:
            text = f"is for ops with executor: external, and this one has {name}: leave it out"
            yield Problem(path=path, text=text)
    elif options.socket is None:
        text = f"must be set with executor: {name}: the path that its workers connect to"
        yield Problem(path=path, text=text)
    elif config.engines > 1:
        text = (
            "cannot be shared by several engines: leave out build_dag_each_worker, or start a"
            " service for each"
        )
        yield Problem(path=path, text=text)


MakeVersion: TypeAlias = Callable[[Description], Blueprint]
"""Makes a version of a graph from its description; called in every process that opens it. Raises
StartupError."""

MakeApplication: TypeAlias = Callable[[Engine], Application]
"""Called in each engine's process, before the door opens. An application submits its requests with
``penstock.engine.submission.Submission``."""
