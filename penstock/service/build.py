"""Builds an engine from a graph and a configuration: options resolved, models opened, ops bound."""

from __future__ import annotations

import asyncio
import logging
import traceback
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field, replace

from penstock.batching.batcher import BatchPolicy, batcher_for
from penstock.batching.stack import signature
from penstock.config.load import Loaded
from penstock.config.resolve import ExecutorKind, OpArguments, OpOptions, advice, resolve_op
from penstock.config.schema import ServiceConfig
from penstock.engine.clock import LoopClock
from penstock.engine.engine import Engine, EngineOptions
from penstock.engine.graph import ServedGraph
from penstock.errors import ConfigError, HookError, StartupError
from penstock.executors.coroutine import CoroutineExecutor
from penstock.executors.executor import Executor
from penstock.executors.inline import InlineExecutor
from penstock.executors.process import PREFETCH, ProcessExecutor
from penstock.executors.processes.spawner import Spawner
from penstock.executors.thread import ThreadExecutor
from penstock.executors.work import BoundOp, WorkOptions
from penstock.instrument import Instruments
from penstock.ops.ends import Ends, RequestOp, ResponseOp
from penstock.ops.hooks import bind, is_coroutine, overrides
from penstock.ops.op import Op
from penstock.ops.short import FunctionOp
from penstock.request import Feed
from penstock.runtimes.local_service import LocalPredictor
from penstock.runtimes.model import Model
from penstock.service.config_warnings import HOOKS, config_warnings, unknown_ops_of_flags
from penstock.service.cpus import available, cpu_problems
from penstock.service.graph import Graph, graph_of
from penstock.service.models import open_model, problems_of_model
from penstock.service.place import Place
from penstock.service.readers import outside_reader
from penstock.service.supervision import only_for_processes, supervision_of

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Blueprint:
    """Everything that is known before anything is started.

    Attributes:
        config: the service's configuration.
        graph: the checked graph.
        options: each op's options, by the plan's index.
        warnings: what works, but probably not as meant; to be logged once.
        place: of the engine that this is for.
    """

    config: ServiceConfig
    graph: Graph
    options: tuple[OpOptions, ...]
    warnings: tuple[str, ...]
    place: Place = field(default_factory=Place)

    @property
    def has_processes(self) -> bool:
        """Whether some op runs in processes of its own."""
        return any(each.executor == "process" for each in self.options)

    @property
    def processes(self) -> int:
        """How many worker processes an engine has."""
        return sum(each.concurrency for each in self.options if each.executor == "process")

    @property
    def is_supervised(self) -> bool:
        """Whether some of it runs in other processes than that which starts the service."""
        return self.has_processes or self.config.build_dag_each_worker

    def outside_reader(self, op: int) -> str | None:
        """Who reads the op's output and is no worker process, if anybody."""
        return outside_reader(self.graph.plan, self.options, op)


def draw_blueprint(response_op: ResponseOp, loaded: Loaded) -> Blueprint:
    """Check the graph, the hooks and every op's options, without opening or starting anything.

    Raises:
        GraphError: the graph is not legal.
        ConfigError: every problem of the ops' options and models at once.
        HookError: hooks cannot be called; names all of them.
    """
    config = loaded.config
    dag = config.dag
    graph = graph_of(response_op, attempts=dag.retry, first_arrival=dag.channel_recv_frist_arrive)
    executor: ExecutorKind = "thread" if dag.is_thread_op else "process"
    cpus = available()
    problems = unknown_ops_of_flags(graph, config)
    options: list[OpOptions] = []
    for op in graph.ops:
        try:
            entry = config.op.get(op.name)
            resolved = resolve_op(op.name, _arguments(op), entry, executor, len(cpus))
            if is_coroutine(op.process):  # it runs on the loop, whatever is asked for
                resolved = replace(resolved, executor="thread")
        except ConfigError as error:
            problems.extend(error.problems)
            continue
        options.append(resolved)
        problems.extend(cpu_problems(resolved, cpus))
        problems.extend(_function_problems(op, resolved))
        problems.extend(loaded.place(each) for each in only_for_processes(resolved))
        problems.extend(problems_of_model(op, resolved, loaded))
    if problems:
        raise ConfigError(problems)
    _check_hooks(graph)
    warnings = [
        *loaded.warnings,
        *advice(config.most_running, options),
        *config_warnings(graph, options, config),
    ]
    return Blueprint(config=config, graph=graph, options=tuple(options), warnings=tuple(warnings))


def _arguments(op: Op) -> OpArguments:
    return OpArguments(
        server_endpoints=op.server_endpoints,
        fetch_list=op.fetch_list,
        client_config=op.client_config,
        client_type=op.client_type,
        concurrency=op.concurrency,
        timeout=op.timeout,
        retry=op.retry or None,
        batch_size=op.batch_size,
        auto_batching_timeout=op.auto_batching_timeout,
    )


def _check_hooks(graph: Graph) -> None:
    ends = ((graph.request_op, RequestOp), (graph.response_op, ResponseOp))
    problems = []
    for op, base in (*((op, Op) for op in graph.ops), *ends):
        for hook in HOOKS[base]:
            if overrides(op, hook, base):
                try:
                    bind(op, hook)
                except HookError as error:
                    problems.append(str(error))
    if problems:
        raise HookError("\n".join(problems))


def _function_problems(op: Op, options: OpOptions) -> list[str]:
    if not isinstance(op, FunctionOp) or options.batch_size == 1:
        return []
    return [
        f"op {op.name!r}: batch_size must be 1, got {options.batch_size}: the op is a function, "
        f"which runs for one request at a time; batches need a class with a process"
    ]


class Works:
    """A blueprint come to life: models open, ops initialised. Makes engines."""

    def __init__(
        self, blueprint: Blueprint, begins: Callable[[str, str], object] = lambda *_: None
    ) -> None:
        """Open every model and run every ``init_op``.

        Args:
            blueprint: of the service.
            begins: is told, before each of them, of which op it is, and in words what goes on.

        Raises:
            StartupError: with the original exception as its cause.
        """
        self.blueprint = blueprint
        graph = blueprint.graph
        self.ends = Ends(graph.request_op, graph.response_op)
        self._models: list[Model | None] = []
        notes: dict[str, None] = {}
        for op, options in zip(graph.ops, blueprint.options, strict=True):
            model = None
            if options.executor != "process":
                entry = blueprint.config.op.get(op.name)
                begins(op.name, "its model is being opened")
                model = open_model(op, options, entry, blueprint.place.card())
                _prepare(op, options, model)
            if model is not None:
                notes.update((f"op {op.name!r}: {note}", None) for note in model.notes)
            self._models.append(model)
        self.notes = tuple(notes)
        here = [
            op
            for op, options in zip(graph.ops, blueprint.options, strict=True)
            if options.executor != "process"
        ]
        for op in (graph.request_op, *here, graph.response_op):
            begins(op.name, "its init_op runs")
            try:
                _init(op)
            except StartupError as error:
                _log.error("op %s: init_op raised", op.name, exc_info=error.__cause__)
                raise

    def engine(
        self,
        loop: asyncio.AbstractEventLoop,
        instruments: Instruments | None = None,
        spawner: Spawner | None = None,
        name: str | None = None,
    ) -> Engine:
        """An engine with all its workers, on this loop; ``start`` them before they are used.

        Args:
            loop: the engine's.
            instruments: are told what happens.
            spawner: starts worker processes, where some op runs in such.
            name: of the graph; None for one that takes every name.
        """
        blueprint = self.blueprint
        config = blueprint.config
        engine = Engine(
            LoopClock(loop),
            EngineOptions(
                max_requests=config.max_requests,
                max_running=config.most_running,
                time_limit=min(config.deadline, config.max_deadline),
                first_id=blueprint.place.first_id,
                id_step=blueprint.place.engines,
            ),
            instruments,
        )
        graph = ServedGraph(engine, blueprint.graph.plan, name, ends=self.ends)
        for index, (op, options, model) in enumerate(
            zip(blueprint.graph.ops, blueprint.options, self._models, strict=True)
        ):
            work = _work_options(options)
            policy = BatchPolicy(
                max_rows=options.batch_size,
                window=options.window,
                capacity=config.dag.channel_size,
            )
            graph.add_op(
                op.name,
                queue=batcher_for(policy),
                executor=self._in_processes(index, loop, spawner)
                if options.executor == "process"
                else _executor(op, options, model, work, loop),
                options=work,
                key_of=_key_of(op, options),
            )
        engine.add(graph)
        return engine

    def _in_processes(
        self, index: int, loop: asyncio.AbstractEventLoop, spawner: Spawner | None
    ) -> ProcessExecutor:
        assert spawner is not None
        options = self.blueprint.options[index]
        return ProcessExecutor(
            options.name,
            options.concurrency,
            spawner,
            loop,
            only_plain=self.blueprint.outside_reader(index) is not None,
            supervision=supervision_of(options, self.blueprint.config),
            ahead=PREFETCH if options.prefetch is None else options.prefetch,
        )


def bound_op(blueprint: Blueprint, name: str, index: int) -> tuple[BoundOp, tuple[str, ...]]:
    """One worker process's op, its model open and ``init_op`` run; and what its model notes.

    Raises:
        StartupError: with the original exception as its cause.
    """
    at = blueprint.graph.plan.names.index(name)
    op, options = blueprint.graph.ops[at], blueprint.options[at]
    entry = blueprint.config.op.get(name)
    turn = blueprint.place.card(options.concurrency, index)
    model = open_model(op, options, entry, turn, alone=True)
    _prepare(op, options, model)
    op.concurrency_idx = index
    _init(op)
    return BoundOp(op, model, _work_options(options), index), () if model is None else model.notes


def _work_options(options: OpOptions) -> WorkOptions:
    return WorkOptions(
        isolate_errors=options.isolate_errors,
        timeout=options.timeout,
        retry=options.retry,
        retry_on_crash=options.retry_on_crash,
    )


def _prepare(op: Op, options: OpOptions, model: Model | None) -> None:
    if model is not None:
        op.client = LocalPredictor(model)
    op.fetch_list = None if options.fetch_list is None else list(options.fetch_list)


def _init(op: Op) -> None:
    try:
        bind(op, "init_op")()
    except (Exception, SystemExit) as error:
        # Not its repr, in which an OSError lacks the file.
        what = "".join(traceback.format_exception_only(error)).strip()
        raise StartupError(f"op {op.name!r}: init_op failed: {what}") from error


def _key_of(op: Op, options: OpOptions) -> Callable[[dict[str, Feed]], Hashable] | None:
    """Where the feed is the input itself, unlike shapes can wait apart instead of sharing a batch
    that would be run in parts.
    """
    if options.batch_size == 1 or overrides(op, "preprocess", Op) or len(op.get_input_ops()) > 1:
        return None
    return lambda inputs: signature(next(iter(inputs.values())))


def _executor(
    op: Op,
    options: OpOptions,
    model: Model | None,
    work: WorkOptions,
    loop: asyncio.AbstractEventLoop,
) -> Executor:
    first = BoundOp(op, model, work)
    if options.executor == "inline" and not first.hooks.is_async:
        return InlineExecutor(first)
    workers = [first]
    for index in range(1, options.concurrency):
        own = None if model is None else model.clone()
        bound = BoundOp(op, own, work, index)
        if own is not None:
            bound.op.client = LocalPredictor(own)
        workers.append(bound)
    if first.hooks.is_async:
        return CoroutineExecutor(workers, loop)
    return ThreadExecutor(workers, loop)
