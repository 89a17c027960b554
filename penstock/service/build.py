"""Opens the models of a deployment, initialises its ops, and builds engines."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Final, TypeAlias

from penstock.batching.batcher import Batcher, BatchPolicy, FifoQueue
from penstock.batching.decision import Batching
from penstock.batching.queue_policy import QueuePolicy, delays
from penstock.batching.queues import batcher_for
from penstock.batching.rows import fixed_rows
from penstock.config.resolve import OpOptions
from penstock.config.schema import ServiceConfig
from penstock.engine.clock import LoopClock
from penstock.engine.engine import Engine, EngineOptions, log_dropped
from penstock.engine.graph import GraphState, ServedGraph
from penstock.engine.promise import Promise
from penstock.engine.sizing import Sizing
from penstock.engine.stage import Stage
from penstock.errors import StartupError
from penstock.executors.elsewhere.opening import Opening
from penstock.executors.executor import OpSource
from penstock.executors.kinds import ExecutorSpec
from penstock.executors.outgoing import Outgoing, passed_on
from penstock.executors.probing import VERIFYING
from penstock.executors.processes.spawner import Spawner
from penstock.executors.work import BoundOp
from penstock.instrument import Instrument, Instruments
from penstock.ops.ends import Ends
from penstock.ops.hooks import asks_caller
from penstock.ops.op import Op
from penstock.repository.served import Served
from penstock.runtimes.model import Model
from penstock.service.batches import batch_key_of, batched, batching_of, sized, sizing_of
from penstock.service.blueprint import Blueprint, Deployment, supervision_of
from penstock.service.bound_ops import bound_ops, init, prepare
from penstock.service.external_store import store_options, stored_ops, uses_store
from penstock.service.listening import key_of
from penstock.service.models import OPENING, open_model, remote_conf
from penstock.service.program import opening_of, rerun_problem
from penstock.service.signatures import Signatures
from penstock.service.start_watch import watched

_log = logging.getLogger(__name__)

_HOLDS_GIL: Final = (
    "its model's library keeps Python's global lock while it runs, and everything else in this"
    " process waits; executor: process avoids that"
)

Watched: TypeAlias = Callable[[str, str], AbstractContextManager[None]]


class LoadedDeployment:
    """A deployment with open models and initialised ops. Builds engines."""

    def __init__(
        self, deployment: Deployment, watched: Watched = lambda op, doing: nullcontext()
    ) -> None:
        """Open the model, and run the ``init_op``, of every op that runs in this process.

        Args:
            deployment: the deployment to serve.
            watched: a context around each of these steps; called with the op's name and a text.

        Raises:
            StartupError: with the original exception as its cause.
        """
        self.deployment = deployment
        self.graphs = [LoadedGraph(each, deployment, watched) for each in deployment.graphs]

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes from opening the models."""
        return tuple(note for graph in self.graphs for note in graph.notes)

    @property
    def options(self) -> list[Sequence[OpOptions]]:
        """The options of each graph's ops, as their models allow; those of ops in other processes
        are the configured ones until the engine has started.
        """
        return [graph.options for graph in self.graphs[: len(self.deployment.graphs)]]

    @property
    def batching_lines(self) -> list[str]:
        """The lines of all graphs."""
        return [line for graph in self.graphs for line in graph.batching_lines]

    @property
    def blocking_ends(self) -> bool:
        """Whether a graph has user code at one of its ends, which must not run on the loop."""
        return any(each.ends.blocking_pack or each.ends.blocking_unpack for each in self.graphs)

    def check_started(self, engine: Engine) -> None:
        """Check the models that the workers of a started engine have opened.

        Raises:
            ModelError: a model cannot run on the outputs of the one before it.
        """
        for loaded, graph in self._served(engine):
            loaded.signatures.check_started(graph)

    def model_lines(self, engine: Engine) -> list[str]:
        """Lines of text about the models of a started engine."""
        served = self._served(engine)
        models = [each for loaded, graph in served for each in loaded.signatures.lines(graph)]
        width = max((len(name) for name, _ in models), default=0)
        return [f"{name:<{width}}  {text}" for name, text in models]

    def _served(self, engine: Engine) -> list[tuple[LoadedGraph, ServedGraph]]:
        """The graphs that the engine still has."""
        served = {*engine.graphs}
        return [(x, x.served) for x in self.graphs if x.served in served]

    def engine(
        self,
        loop: asyncio.AbstractEventLoop,
        spawner: Spawner | None = None,
        instruments: Sequence[Instrument] = (),
        sockets: Mapping[str, socket.socket] | None = None,
        outgoing: Outgoing = passed_on,
    ) -> Engine:
        """Build an engine with all graphs and workers; ``start`` the graphs before it gets
        requests.

        Args:
            loop: the engine's.
            spawner: starts worker processes, if any op needs them.
            instruments: are installed before those of the deployment.
            sockets: bound sockets for external workers, by ``listening.key_of``.
            outgoing: makes further header fields of remote ops' calls.
        """
        config, engine_id = self.deployment.config, self.deployment.engine_id
        engine = Engine(
            LoopClock(loop),
            EngineOptions(
                max_requests=config.max_requests,
                max_running=config.most_running,
                time_limit=min(config.deadline, config.max_deadline),
                stream_limit=config.stream_limit,
                levels=config.priority.levels,
                ageing=config.priority.ageing,
                queue=queue_policies_of(config),
                sticky={name: x.sticky for name, x in config.rollout.items() if x.sticky},
                first_id=engine_id.first_id,
                id_step=engine_id.engines,
            ),
            Instruments([*instruments, *self.deployment.instruments], log_dropped),
        )
        for graph in self.graphs:
            graph.served = graph.build(engine, loop, spawner, sockets, outgoing)
            engine.add(graph.served)
        for state in self.deployment.states.values():
            route(engine, state)
        return engine


def route(engine: Engine, state: Served) -> list[ServedGraph]:
    """Let the requests for a name get its versions as a state says; returns other graphs of that
    name that serve.

    Args:
        engine: serves a graph of each version; of several the newest one counts. One that it has
            not is left out: requests for it are refused.
        state: the state of the name.
    """
    serving = [
        each
        for each in engine.graphs
        if each.name == state.name and each.state is GraphState.SERVING
    ]
    by_version = {graph.version: graph for graph in serving}
    weights = {by_version[at]: n for at, n in state.weights.items() if at in by_version}
    engine.route(
        state.name,
        default=None if state.default is None else by_version.get(state.default),
        labels={k: by_version[at] for k, at in state.labels.items() if at in by_version},
        weights=weights if any(weights.values()) else None,
        sticky=state.sticky,
    )
    kept = {by_version[version] for version in state.versions if version in by_version}
    return [each for each in serving if each not in kept]


class LoadedGraph:
    """One graph of a LoadedDeployment.

    Args:
        blueprint: the graph.
        deployment: has it.
        watched: see ``LoadedDeployment``.
        before: another graph, which is built, some of whose ops this one shares.
        kept: the indexes of these ops, which are the same in both graphs: they are not opened
            again, and run in the same workers.

    Attributes:
        served: the graph in the engine, once it is built.
    """

    def __init__(
        self,
        blueprint: Blueprint,
        deployment: Deployment,
        watched: Watched,
        before: LoadedGraph | None = None,
        kept: Collection[int] = (),
    ) -> None:
        self.blueprint = blueprint
        self._before, self._kept = before, kept
        self.served: ServedGraph | None = None
        self._deployment = deployment
        graph = blueprint.graph
        self.ends = Ends(graph.request_op, graph.response_op)
        self._models: list[Model | None] = []
        self.options: list[OpOptions] = []
        self._batching: list[Batching | None] = []  # None: its workers decide
        self._workers: list[list[BoundOp]] = []  # of each op
        notes: dict[str, None] = {}
        here: list[Op] = []
        for index, (op, options) in enumerate(zip(graph.ops, blueprint.options, strict=True)):
            if before is not None and index in kept:
                self._models.append(before._models[index])
                self.options.append(before.options[index])
                self._batching.append(before._batching[index])
                continue
            model = batching = None
            label = deployment.op_name(blueprint, op.name)
            options = replace(options, label=label)
            if options.executor.opens_here:
                here.append(op)
                entry = blueprint.config.op.get(op.name)
                with watched(label, OPENING):
                    model = open_model(op, options, entry, deployment.engine_id.card())
                with watched(label, VERIFYING):
                    batching = batching_of(op, options, model)
                inputs = () if model is None else model.inputs
                options = batched(sized(op, options, inputs), batching)
                prepare(op, options, model)
                if batching.warning is not None:
                    notes[f"op {label!r}: {batching.warning}"] = None
            if model is not None:
                found = model.notes
                if model.session.holds_gil:
                    found = (*found, _HOLDS_GIL)
                notes.update((f"op {label!r}: {note}", None) for note in found)
            self._models.append(model)
            self.options.append(options)
            self._batching.append(batching)
        self.notes = tuple(notes)
        self.signatures = Signatures(blueprint, self._models)
        self.signatures.check()
        for op in (graph.request_op, *here, graph.response_op):
            what, label = op.hook_name("init_op"), deployment.op_name(blueprint, op.name)
            try:
                with watched(label, f"its {what} runs"):
                    init(op)
            except StartupError as error:
                _log.error("op %s: %s raised", label, what, exc_info=error.__cause__)
                raise

    def make_workers(self) -> None:
        """Make the objects of workers in this process, which ``build`` does otherwise: a user's
        class may take long. Any thread.

        Raises:
            StartupError: with the original exception as its cause.
        """
        ops = zip(self.blueprint.graph.ops, self.options, self._models, strict=True)
        self._workers = [
            [] if index in self._kept else bound_ops(*each) for index, each in enumerate(ops)
        ]

    @property
    def batching_lines(self) -> list[str]:
        """A line of text about each op with a model for which batches are configured: how it is
        batched, and why.
        """
        return [
            f"op {options.label} is {batching}"
            + (f"; {batching.warning}" if batching.by and batching.warning else "")
            for configured, options, batching in zip(
                self.blueprint.options, self.options, self._batching, strict=True
            )
            if configured.batch_size > 1 and batching is not None and batching.by in ("rows", None)
        ]

    def build(
        self,
        engine: Engine,
        loop: asyncio.AbstractEventLoop,
        spawner: Spawner | None = None,
        sockets: Mapping[str, socket.socket] | None = None,
        outgoing: Outgoing = passed_on,
    ) -> ServedGraph:
        """Build its stages and workers, without adding it to the engine.

        Raises:
            GraphError: the graph has ended with which it shares ops.
        """
        blueprint, deployment = self.blueprint, self._deployment
        plan = blueprint.graph.plan
        if not self._workers:
            self.make_workers()
        graph = ServedGraph(
            engine,
            plan,
            blueprint.name,
            blueprint.version,
            self.ends,
            lambda: self.signatures.of_graph(graph),
            self._promise(),
            lambda: self._started(graph),
            deployment.label_of(blueprint),
            blueprint.configuration,
            None if blueprint.queue is None else self._queue_policies,
        )
        shared = self._shared()
        graph.kept_away = stored_ops(plan, blueprint.graph.ops, self.options, blueprint.config)
        store = store_options(blueprint.config, blueprint.name)
        for index, op in enumerate(blueprint.graph.ops):
            if index in shared:
                graph.share(shared[index])
                continue
            options, batching = self.options[index], self._batching[index]
            name = deployment.op_name(blueprint, op.name)
            spec = ExecutorSpec(
                op=name,
                workers=options.concurrency,
                loop=loop,
                ops=self._workers[index],
                source=deployment.source_of(blueprint, op.name),
                spawner=spawner,
                opening=self._opening(deployment.source_of(blueprint, op.name), options),
                supervision=supervision_of(options, deployment.config),
                listener=(sockets or {}).get(key_of(name)),
                media=options.media,
                conf=None if options.remote is None else remote_conf(options.remote),
                outgoing=outgoing,
                streams=op.streams,
                seats=options.seats,
                ray=options.ray,
                store=store if uses_store(graph.kept_away, plan, index) else None,
            )
            graph.add_op(
                name,
                queue=self._queue(options),
                executor=options.executor.make(spec),
                options=options,
            )
            graph.stages[index].asks_caller = asks_caller(op)
            graph.stages[index].given_by = op.given.where if op.given is not None else ""
            graph.stages[index].streams = op.streams
            if batching is not None:
                self._set_batching(graph.stages[index], index, options, batching)
        graph.streams = graph.stages[plan.last].streams
        return graph

    def _shared(self) -> dict[int, Stage]:
        """The stages of another graph that this one shares, by the op's index."""
        before, self._before = self._before, None  # which ends before this one
        if before is None or before.served is None:
            return {}
        return {index: before.served.stages[index] for index in self._kept}

    def _opening(self, source: OpSource, options: OpOptions) -> Opening | None:
        """How workers elsewhere open the op; None for other kinds of executors.

        Raises:
            StartupError: they cannot.
        """
        kind, deployment = options.executor, self._deployment
        if kind.own_processes or not kind.opens_again:
            return None
        opening = opening_of(source, deployment.engine_id, deployment.service)
        if opening is None:
            why = rerun_problem() or "another server runs this service: `penstock run` is needed"
            raise StartupError(
                f"op {source.label!r}: its workers open it by running this program again, which is"
                f" not possible: {why}"
            )
        return opening

    def _promise(self) -> Promise | None:
        """The check of the declared outputs, if any."""
        declared, plan = self.blueprint.signature, self.blueprint.graph.plan
        if declared is None or not declared.outputs:
            return None
        return Promise(plan.names[plan.last], declared)

    def _queue(self, options: OpOptions, sizing: Sizing | None = None) -> Batcher | FifoQueue:
        policy = BatchPolicy(
            max_rows=options.batch_size,
            window=options.window,
            capacity=self.blueprint.config.dag.channel_size,
            overrun=options.overrun,
            join=None if sizing is None else sizing.joins,
            levels=self.blueprint.config.priority.levels,
            ageing=self.blueprint.config.priority.ageing,
            delays=delays(self._queue_policies),
            learned=options.policy == "learned",
        )
        return batcher_for(policy)

    @property
    def _queue_policies(self) -> tuple[QueuePolicy, ...]:
        return queue_policies_of(self.blueprint.config, self.blueprint.queue)

    def _set_batching(
        self, stage: Stage, index: int, options: OpOptions, batching: Batching
    ) -> None:
        """Batch an op's requests as decided."""
        op = self.blueprint.graph.ops[index]
        inputs = self.signatures.inputs(index, stage.executor)
        fixed = fixed_rows(inputs, options.rows) is not None
        sizing = sizing_of(op, options, [each.alias for each in inputs], fixed=fixed)
        key = None if sizing else batch_key_of(op, options)
        stage.batch_by(batching, self._queue(options, sizing), key, sizing)

    def _started(self, graph: ServedGraph) -> None:
        """The workers are ready: batch as those of other processes have decided."""
        for index, stage in enumerate(graph.stages):
            if self._batching[index] is not None or index in self._kept:
                continue
            op, options = self.blueprint.graph.ops[index], self.options[index]
            report = next((each for each in stage.executor.loaded if each), None) or {}
            if (plain := report.get("batching")) is not None:
                padding = None if options.joining is None else options.joining.padding
                batching = Batching.of_plain(plain, padding)
                inputs = self.signatures.inputs(index, stage.executor)
                options = batched(sized(op, options, inputs), batching)
            elif options.executor.needs_socket or not op.joins_feeds:
                batching = batching_of(op, options, None)
            else:
                batching = Batching(by="requests", why="its workers do not report how")
            self.options[index] = options
            self._set_batching(stage, index, options, batching)


def queue_policies_of(
    config: ServiceConfig, queue: Mapping[int, QueuePolicy] | None = None
) -> tuple[QueuePolicy, ...]:
    """How long requests of each priority may wait in a queue; empty without limits.

    Args:
        config: of the service.
        queue: in place of its key ``queue``: by priority; of those that are left out, by 0.
    """
    priorities = range(1, 1 + config.priority.levels)
    if queue is not None:
        return tuple(queue.get(each, queue[0]) for each in priorities)
    if not config.queue.is_set:
        return ()
    given = [config.queue.of(each) for each in priorities]
    return tuple(
        QueuePolicy(timeout=each.timeout, delay=each.timeout_action == "delay") for each in given
    )


def load(deployment: Deployment) -> LoadedDeployment:
    """Open and initialise the deployment. A slow model or ``init_op`` is logged; if it exceeds
    ``start_timeout``, the process is ended.

    Raises:
        StartupError: a model or an ``init_op`` failed.
    """
    return LoadedDeployment(deployment, partial(watched, deployment.config.start_timeout or None))
