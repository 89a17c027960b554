"""An engine with its instruments, reports and router: everything that serves, except for the door.

The same behind the door of ``penstock run`` and inside another server (``in_process.py``).
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

from google.protobuf.descriptor_pb2 import FileDescriptorProto

from penstock.admin.admin_port import (
    AdminPort,
    is_of_operators,
    not_found_there,
    of_operators,
)
from penstock.admin.history import HISTORY, Historian
from penstock.admin.live_page import (
    LISTS,
    TIMELINE,
    LivePage,
    listed_requests,
    recorded_request,
)
from penstock.admin.reload import ReloadPage
from penstock.admin.status import MetricsPage, Reporter, StatusPage
from penstock.admin.trace import QUESTION as TRACE
from penstock.admin.trace import TracePage, next_timelines
from penstock.api.access import Access
from penstock.api.application import Admission, Application, Applications, Lifespan, Route, Section
from penstock.api.errors import no_route, refusal
from penstock.api.examples import Examples
from penstock.api.health import Health, HealthApplication
from penstock.api.hosts import Hosts
from penstock.api.http import Http
from penstock.api.oip import OpenInferenceApplication
from penstock.api.openapi import OpenApiApplication
from penstock.api.paddle import SERVICE, PaddleApplication
from penstock.api.pipeline import PipelineProtocol
from penstock.api.plain import PlainApplication
from penstock.api.priorities import path_of
from penstock.api.reflection import ReflectionApplication
from penstock.api.router import Router
from penstock.door.exchange import Exchange
from penstock.engine.graph import ServedGraph
from penstock.errors import StartupError, StoreError
from penstock.executors.outgoing import passed_on
from penstock.instrument import Instrument
from penstock.observe.counters import Counters
from penstock.observe.history import Point
from penstock.observe.recorder import Recorder
from penstock.observe.request_log import log_request
from penstock.observe.timeline import Timeline
from penstock.protocols.pb import pipeline_service_pb2
from penstock.repository.lifecycle import State
from penstock.repository.options import Repositories
from penstock.service.blueprint import Deployment
from penstock.service.build import LoadedDeployment, LoadedGraph
from penstock.service.caller_rules import check_callers, check_listed, set_rules
from penstock.service.credentials import (
    Credentials,
    admission_of,
    callers_without_key,
    schemes_of,
)
from penstock.service.daemon_pool import DaemonPool
from penstock.service.door import cors_of
from penstock.service.instruments import profile_text
from penstock.service.versions import Versions
from penstock.supervisor.client import SupervisorClient
from penstock.supervisor.queries import REPORT, AllEngines, Answerer
from penstock.typed.tensors import TypedTensors, tensors_of

if TYPE_CHECKING:
    from penstock.executors.external_store.server import ServerStore
    from penstock.observe.otel import SpanWriter
    from penstock.service.repository_access import FixedModels, RepositoryOfService
    from penstock.service.rollout import Rollouts

_log: Final = logging.getLogger(__name__)

_STATISTICS: Final = "statistics"
"""The query for what an engine has counted for the Open Inference Protocol."""

_ENDS_THREADS: Final = 8  # threads for users' pack and unpack hooks; a guess
_WRITERS: Final = 2  # threads for large replies, whose encoding holds the GIL
_ENDING: Final = 3.0  # seconds for the end of an instrument


class Serving:
    """What serves, except for the door. Belongs to one loop, on which it is created.

    Args:
        loaded: open models and initialised ops.
        health: of this process; gets the engine's state.
        supervisor: the client of this engine's supervisor; None without one.
        sockets: bound sockets for external workers, by ``listening.key_of``.

    Attributes:
        config: of the service.
        is_first: whether its engine has the number 0.
        engine: runs the requests.
        reporter: makes this engine's report.
        engines: queries all engines of the service.
        metrics: the page of the metrics.
        repository: loads models of repositories; None without any.
        versions: changes the versions of the graphs.
        rollouts: of new versions.
        admission: decides who may call; None: everybody. Set by ``router``.
        authenticate: the same for requests without a route; see ``Router``. Set by ``router``.
        admin: routes the requests of operators; set by ``router`` if they have a port.
        ends: threads for user code at the graphs' ends; None if there is none.
        writers: threads for large replies.
    """

    def __init__(
        self,
        loaded: LoadedDeployment,
        health: Health,
        supervisor: SupervisorClient | None = None,
        sockets: Mapping[str, socket.socket] | None = None,
    ) -> None:
        deployment = loaded.deployment
        config = self.config = deployment.config
        self.is_first = deployment.engine_id.index == 0
        self._deployment = deployment
        self._loaded = loaded
        self._started = False
        self._health = health
        self._supervisor = supervisor
        counters = Counters()
        self._recorder = recorder = Recorder(deployment.engine_id.index, counters)
        if config.log_requests:
            recorder.listen(log_request)
        security = config.security
        self._credentials = Credentials(security) if security.enabled else None
        self._spans = spans = _span_writer(deployment)
        if spans is not None:
            recorder.listen(spans)
        outgoing = passed_on if spans is None else spans.outgoing
        loop = asyncio.get_running_loop()
        self.engine = loaded.engine(loop, supervisor, [counters, recorder], sockets, outgoing)
        models = deployment.models
        index = deployment.engine_id.index
        self.reporter = Reporter(self.engine, health, counters, models, index)
        self.reporter.traces = None if spans is None else spans.counts
        self.writers = DaemonPool(_WRITERS, "replies")
        self.ends = DaemonPool(_ENDS_THREADS, "ends") if loaded.blocking_ends else None
        answerers: dict[str, Answerer] = {
            REPORT: lambda sketches: self.reporter(sketches=sketches),
            TRACE: partial(next_timelines, recorder),
            LISTS: partial(listed_requests, recorder, self.writers),
            TIMELINE: partial(recorded_request, recorder),
            HISTORY: self._points,
            _STATISTICS: lambda *which: self._oip.statistics(*which) if self._oip else [],
        }
        answerers |= {
            _query_of(number): partial(self._answer, each)
            for number, each in enumerate(deployment.instruments)
        }
        self.engines = AllEngines(answerers, supervisor)
        self.repository: RepositoryOfService | None = None
        self.metrics = MetricsPage(self.engines, of_original=config.dag.enable_prometheus)
        self.admission: Admission | None = None
        self.authenticate: Callable[[Exchange], object] | None = None
        self.admin: Router | None = None
        self._added: list[Application] = []
        self._alive: list[Lifespan] = []
        self._examples: Examples
        self._oip: OpenInferenceApplication | None = None
        self._historian: Historian | None = None
        self._store = _server_store(deployment)
        if self._store is not None:
            self.reporter.store = self._store.counts

        def build(further: LoadedGraph) -> ServedGraph:
            return further.build(self.engine, loop, supervisor, sockets, outgoing)

        self.versions = Versions(
            loaded, self.engine, build, lambda graph: self._examples.warm_up(graph), models,
            supervisor,
        )  # fmt: skip
        self.versions.ended = self._forget
        self.rollouts: Rollouts | None = None
        if deployment.make is not None:
            self.engine.versions = self.versions
            self.reporter.swaps = self.versions.swaps.report
            self.rollouts = self._add_rollouts(counters, answerers)
        health.watch(self.engine.why_stuck)
        if deployment.repositories is not None:
            self._add_repository(deployment.repositories, answerers)

    def _forget(self, graph: ServedGraph) -> None:
        """Drop what was counted of a graph that was removed."""
        self.reporter.forget(graph)
        if self.rollouts is not None:
            self.rollouts.forget(graph)

    def _add_rollouts(self, counters: Counters, answerers: dict[str, Answerer]) -> Rollouts:
        """Have rollouts of the versions that may come."""
        from penstock.service.rollout import QUESTION, Rollouts

        rollouts = Rollouts(self.config.rollout, self.engine, self.versions, counters)
        self.versions.arriving = rollouts.arriving
        self.versions.changed = rollouts.changed
        self.reporter.copies = rollouts.copies
        answerers[QUESTION] = rollouts.answer
        return rollouts

    def _add_repository(self, options: Repositories, answerers: dict[str, Answerer]) -> None:
        """Have models of repositories.

        Raises:
            StartupError: a repository, its cache or its key cannot be used.
        """
        from penstock.service.catalog import catalog_of
        from penstock.service.op_models import OpShelf, OpVersions, runs
        from penstock.service.repository import Controller
        from penstock.service.repository_access import REPOSITORY, RepositoryOfService

        engine, deployment = self.engine, self._deployment
        models = deployment.op_models

        def has(name: str, version: str) -> bool:
            if models:
                there = (each.blueprint for each in self._loaded.graphs)
                return any(runs(each, name, version, deployment) for each in there)
            return any(each.key == (name, version) for each in engine.graphs)

        def gap(name: str, version: str) -> State | None:
            gaps = self.versions.gaps
            if not models or not gaps:
                return gaps.get((name, version))
            of = [x for x in self._loaded.graphs if runs(x.blueprint, name, version, deployment)]
            return next((gaps.get(x.served.key) for x in of if x.served is not None), None)

        controller = None
        if self.is_first:
            try:
                catalog = OpShelf(models, options) if models else catalog_of(options)
            except StoreError as error:
                raise StartupError(str(error)) from error
            controller = Controller(
                catalog,
                OpVersions(models, self.versions) if models else self.versions,
                has,
                mode=options.mode,
                poll_seconds=options.poll_seconds,
                load=options.load,
                at_once=options.at_once,
                swaps=self.versions.swaps,
                swap=self.config.swap,
                gap=gap,
            )
            self.reporter.models = controller.report
            if self.rollouts is not None:
                controller.rules = self.rollouts.rules
                self.rollouts.ended = controller.rolled
        repository = self.repository = RepositoryOfService(self.engines, controller)
        answerers[REPOSITORY] = repository.answer
        self._health.watch(lambda: repository.why_unready() or engine.why_stuck())

    def opened(self) -> None:
        """The engine accepts connections."""
        if self.repository is not None:
            self.repository.start()

    async def leave(self) -> None:
        """The engine is about to end: another one loads models from now on, or none."""
        if self.repository is not None:
            await self.repository.close()

    async def start(self) -> None:
        """Start the workers, and notify the instruments.

        Raises:
            StartupError: one cannot start, or they do not fit together.
        """
        if self._store is not None:
            self._store.start()
        await asyncio.gather(*(graph.start() for graph in self.engine.graphs))
        self._loaded.check_started(self.engine)
        self._started = True
        notify = self.engine.instruments.engine_started
        if notify is not None:
            notify(self, self.engine.clock.now())

    async def warm_up(self) -> None:
        """Make the applications, and run the example requests.

        Raises:
            StartupError: an example fails.
        """
        self._added = [make(self.engine) for make in self._deployment.applications]
        for each in self._added:
            if isinstance(each, Lifespan):
                await each.start()
                self._alive.append(each)
        if self._credentials is not None:
            self._credentials.start()
            for text in callers_without_key(self.config, self._credentials):
                if self.is_first:
                    _log.warning("%s", text)
        self._examples = Examples(self.engine, self._added)
        for graph in self.engine.graphs:
            await self._examples.warm_up(graph)
        await self.versions.open_all()
        if self.rollouts is not None:
            self.rollouts.start(self.engines if self.is_first else None)
            if self.is_first:
                self.reporter.rollouts = self.rollouts.report

    def router(
        self, hosts: Hosts | None = None, *, tls: bool = False, admin: AdminPort | None = None
    ) -> Router:
        """The router of all requests, after ``warm_up``.

        Args:
            hosts: checks Host and Origin; None under another server, which does so.
            tls: whether callers use TLS.
            admin: the port for operators, whose routes move there; None if there is none.

        Raises:
            StartupError: two routes are the same, two applications admit callers, or none does and
                an op needs to know them.
        """
        config, engine = self.config, self.engine
        found = Applications(engine)
        applications = [*self._built_in(found), self._examples, *self._added]
        admission = None
        if self._credentials is not None:
            admission = admission_of(config.security, self._credentials)
            engine.identify = admission.identify
            applications.append(admission)
        applications += self._pages(tls=tls, sends=admin is None)
        if self.repository is not None:
            applications.append(self._of_operators(self.repository))
        elif config.model_repository:
            from penstock.service.repository_access import FixedModels

            applications.append(self._of_operators(FixedModels(engine)))
        for each in applications:
            found.add(each)
        if admission is not None:
            admission.set_paths(found.paths)
            self.authenticate = admission.authenticate
            found.readmit = admission.admit
        quotas = set_rules(engine, config, admission, found.paths)
        moved = found.take(is_of_operators) if admin is not None else []
        if config.docs:
            found.add(self._description(found))
        self._check_declared([*moved, *found.declared])
        self.admission = found.admission
        if self.admission is None:
            check_callers(engine.stages)
        router = partial(
            Router,
            max_message_bytes=config.max_message_bytes,
            threads=self.writers,
            hosts=hosts,
            admission=found.admission,
            authenticate=self.authenticate,
        )
        declared = found.declared
        if admin is not None:
            there = of_operators([*moved, *declared])
            self.admin = router(there, not_found=partial(not_found_there, there), refusal=refusal)
            pages = [each for each in moved if isinstance(each, Http)]
            # The page of ``/ui`` is open; unknown callers are not told which routes are near.
            missing = found.not_found if found.admission is None else partial(no_route, ())
            declared = [*declared, *admin.redirected(pages, missing)]
        return router(
            declared,
            not_found=found.not_found,
            refusal=found.refusal,
            cors=cors_of(config),
            quotas=quotas,
        )

    def _built_in(self, found: Applications) -> list[Application]:
        """The protocols, probes and reports of every service; ``found``: all its applications."""
        config, engine = self.config, self.engine
        protocol = PipelineProtocol(
            engine,
            strict_status=config.strict_status,
            pool=self.ends,
            writers=self.writers,
            profile=partial(_profile_of, self._recorder, profile_text()),
        )
        file = FileDescriptorProto()
        pipeline_service_pb2.DESCRIPTOR.CopyToProto(file)
        admitted = config.security.enabled
        self._oip = OpenInferenceApplication(
            engine,
            self._health,
            found,
            self._typed(),
            self._oip_extensions(),
            partial(self.engines.ask, _STATISTICS),
        )
        more = [] if self._store is None else [self._stored_infer(self._store, self._oip, found)]
        return [
            PaddleApplication(protocol, found),
            PlainApplication(engine, applications=found),
            self._oip,
            *more,
            HealthApplication(self._health, [SERVICE]),
            ReflectionApplication([file], found),
            StatusPage(self.engines, admitted=admitted),
            TracePage(self.engines, admitted=admitted),
            ReloadPage(self._supervisor, admitted=admitted),
        ]

    def _stored_infer(
        self, store: ServerStore, oip: OpenInferenceApplication, found: Applications
    ) -> Application:
        """The method for other Penstocks that use the same external store."""
        from penstock.api.stored_infer import StoredInferApplication

        return StoredInferApplication(self.engine, store, oip.decode_message, oip.infer_call, found)

    def _pages(self, *, tls: bool, sends: bool) -> list[Application]:
        """The pages for operators, as configured; starts the history that the live page shows.

        Args:
            tls: whether callers use TLS.
            sends: see ``LivePage``.
        """
        config = self.config
        found: list[Application] = [self.metrics] if config.metrics else []
        if config.ui.enabled:
            access = Access(
                "the live page", "ui.token", config.ui.token, tls=tls,
                admitted=config.security.enabled,
            )  # fmt: skip
            found.append(LivePage(self.engines, access, sends=sends))
            self._historian = Historian(self.reporter, self.engines.keep)
            self._historian.start()
        return found

    def _oip_extensions(self) -> Sequence[str]:
        if self.repository is None:
            return ()
        from penstock.api.oip_repository import EXTENSIONS

        return EXTENSIONS

    def _of_operators(self, repository: RepositoryOfService | FixedModels) -> Application:
        """The routes by which operators load models."""
        from penstock.api.oip_repository import RepositoryApplication

        return RepositoryApplication(
            repository,
            admitted=self.config.security.enabled,
            of_ops=bool(self._deployment.op_models),
        )

    def _description(self, found: Applications) -> OpenApiApplication:
        """The OpenAPI document of what is declared."""
        titles = [each.app for each in self._deployment.graphs]
        titles += [graph.name for graph in self.engine.graphs]
        title = next(filter(None, titles), "penstock")
        security = self.config.security
        engine = self.engine
        return OpenApiApplication(
            found.routes, title, schemes_of(security), security.open, lambda: engine.epoch
        )

    def _check_declared(self, declared: Iterable[Route | Section]) -> None:
        """Check that the configuration names no other routes than those of all ports.

        Raises:
            StartupError: it does.
        """
        served = [each for each in declared if not isinstance(each, Section)]
        if self.config.dag.enable_prometheus:
            served += self.metrics.routes()
        names = None if self._deployment.open_ended else self.engine.names
        check_listed(self.config, {*map(path_of, served)}, names)

    def _typed(self) -> dict[str, TypedTensors | str]:
        """The tensors of the typed functions, by the names of their graphs."""
        return {
            route.graph: tensors_of(route.signature)
            for each in self._added
            for route in getattr(getattr(each, "inner", each), "typed_routes", ())
        }

    def listen(self, listener: Callable[[Any], object], /) -> object:
        """See ``ServiceInfo``."""
        return self._recorder.listen(listener)

    async def ask(self, instrument: Instrument, /) -> list[Any]:
        """See ``ServiceInfo``."""
        query = _query_of(self._deployment.instruments.index(instrument))
        return [each for each in await self.engines.ask(query) if each is not None]

    def _points(self, after: int, ops: Sequence[str]) -> list[tuple[int, Point]]:
        return [] if self._historian is None else self._historian.answer(after, ops)

    def _answer(self, instrument: Instrument) -> Any:
        if self._started and instrument in self.engine.instruments.installed:
            try:
                return instrument.answer()
            except Exception as error:  # noqa: BLE001 - other people's code
                self.engine.instruments.drop(instrument, error)
        return None

    async def close(self) -> None:
        """End the threads and the instruments; the workers end with the graphs."""
        if self._historian is not None:
            self._historian.close()
        if self._credentials is not None:
            self._credentials.close()
        await self.leave()
        if self.rollouts is not None:
            await self.rollouts.close()
        await self.versions.close()
        if self._store is not None:
            await self._store.close()
        while self._alive:
            await self._alive.pop().stop()
        for each in (self.ends, self.writers):
            if each is not None:
                each.shutdown(wait=False, cancel_futures=True)
        ended = [self._end(each) for each in self.engine.instruments.installed if self._started]
        if self._spans is not None:
            ended.append(asyncio.to_thread(self._spans.close))
        await asyncio.gather(*ended)

    async def _end(self, instrument: Instrument) -> None:
        try:
            async with asyncio.timeout(_ENDING):
                await instrument.engine_ended()
        except Exception as error:  # noqa: BLE001 - other people's code
            self.engine.instruments.drop(instrument, error)


def import_otel() -> ModuleType:
    """Import the module of OpenTelemetry, whose packages are an extra and slow to import.

    Raises:
        StartupError: they are not installed.
    """
    try:
        from penstock.observe import otel
    except ModuleNotFoundError as error:
        text = f"otel: true needs further packages ({error}): pip install 'penstock-serving[otel]'"
        raise StartupError(text) from error
    return otel


def _span_writer(deployment: Deployment) -> SpanWriter | None:
    """The exporter of spans, if it is enabled."""
    if not deployment.config.otel:
        return None
    otel = import_otel()
    if otel.is_disabled():
        return None
    only = deployment.graphs[0].name if len(deployment.graphs) == 1 else None
    made: SpanWriter = otel.SpanWriter(otel.exporter(), only or "penstock")
    return made


def _server_store(deployment: Deployment) -> ServerStore | None:
    """The external store for the requests of other Penstocks, if there is a secret for them."""
    dag = deployment.config.dag
    if dag.external_store is None or dag.external_store_options.shared_secret is None:
        return None
    from penstock.executors.external_store.server import ServerStore
    from penstock.service.external_store import store_options

    options = store_options(deployment.config, None)
    assert options is not None
    return ServerStore(options)


def _profile_of(recorder: Recorder, text_of: Callable[[Timeline], str], call: Any) -> str:
    """The profile of a call that is being answered; empty if it reached no graph."""
    timeline = recorder.so_far(call.exchange)
    return "" if timeline is None else text_of(timeline)


def _query_of(instrument: int) -> str:
    """The name of the query that an instrument of the deployment answers."""
    return f"instrument {instrument}"
