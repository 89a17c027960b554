"""An engine with its instruments, reports and router: everything that serves, except for the door.

The same behind the door of ``penstock run`` and inside another server (``in_process.py``).
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Mapping
from functools import partial
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

from penstock.admin.live_page import (
    LISTS,
    TIMELINE,
    LivePage,
    listed_requests,
    recorded_request,
)
from penstock.admin.status import MetricsPage, Reporter, StatusPage
from penstock.admin.trace import QUESTION as TRACE
from penstock.admin.trace import TracePage, next_timelines
from penstock.api.access import Access
from penstock.api.application import Application
from penstock.api.examples import Examples
from penstock.api.health import Health
from penstock.api.hosts import Hosts
from penstock.api.router import Router
from penstock.errors import StartupError
from penstock.executors.remote import passed_on
from penstock.instrument import Instrument
from penstock.observe.counters import Counters
from penstock.observe.profile import ProfileWriter, profile_text
from penstock.observe.recorder import Recorder
from penstock.observe.request_log import log_request
from penstock.observe.tracer import Window
from penstock.service.blueprint import Deployment
from penstock.service.build import LoadedDeployment
from penstock.service.door import make_router
from penstock.service.loop import DaemonPool
from penstock.service.tracer import QUESTION as TRACER
from penstock.service.tracer import report_every, window_of
from penstock.supervisor.client import SupervisorClient
from penstock.supervisor.queries import REPORT, AllEngines, Answerer

if TYPE_CHECKING:
    from penstock.observe.otel import SpanWriter

_ENDS_THREADS: Final = 8  # threads for users' pack and unpack hooks; a guess
_WRITERS: Final = 2  # threads for large replies, whose encoding holds the GIL


class Serving:
    """What serves, except for the door. Belongs to one loop, on which it is created.

    Args:
        loaded: open models and initialised ops.
        health: of this process; gets the engine's state.
        supervisor: the client of this engine's supervisor; None without one.
        sockets: bound sockets for external workers, by ``listening.key_of``.

    Attributes:
        engine: runs the requests.
        reporter: makes this engine's report.
        engines: queries all engines of the service.
        metrics: the page of the metrics.
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
        config = self._config = deployment.config
        self._deployment = deployment
        self._loaded = loaded
        self._health = health
        counters = Counters()
        self._recorder = recorder = Recorder(deployment.engine_id.index, counters)
        if config.log_requests:
            recorder.listen(log_request)
        profiles = ProfileWriter() if config.dag.use_profile else None
        spans = _span_writer(deployment)
        self._files = [each for each in (profiles, spans) if each is not None]
        for writer in self._files:
            recorder.listen(writer)
        window = Window(time.monotonic())
        instruments: list[Instrument] = [counters, recorder]
        if config.dag.tracer.interval_s is not None:
            instruments.append(window)
        outgoing = passed_on if spans is None else spans.outgoing
        loop = asyncio.get_running_loop()
        self.engine = loaded.engine(loop, supervisor, instruments, sockets, outgoing)
        self.reporter = Reporter(self.engine, health, counters, deployment.models)
        self.reporter.traces = None if spans is None else spans.counts
        self.writers = DaemonPool(_WRITERS, "replies")
        self.ends = DaemonPool(_ENDS_THREADS, "ends") if loaded.blocking_ends else None
        answerers: dict[str, Answerer] = {
            REPORT: self.reporter,
            TRACE: partial(next_timelines, recorder),
            TRACER: partial(window_of, window, self.engine),
            LISTS: partial(listed_requests, recorder, self.writers),
            TIMELINE: partial(recorded_request, recorder),
        }
        self.engines = AllEngines(answerers, supervisor)
        self.metrics = MetricsPage(self.engines, of_original=config.dag.enable_prometheus)
        self._added: list[Application] = []
        self._examples: Examples
        self._tracing: asyncio.Task[None] | None = None
        health.watch(self.engine.why_stuck)

    async def start(self) -> None:
        """Start the workers.

        Raises:
            StartupError: one cannot start, or they do not fit together.
        """
        await asyncio.gather(*(graph.start() for graph in self.engine.graphs))
        self._loaded.check_started(self.engine)

    async def warm_up(self) -> None:
        """Make the applications, and run the example requests.

        Raises:
            StartupError: an example fails.
        """
        self._added = [make(self.engine) for make in self._deployment.applications]
        self._examples = Examples(self.engine, self._added)
        await self._examples.warm_up()

    def router(self, hosts: Hosts | None = None, *, tls: bool = False) -> Router:
        """The router of all requests, after ``warm_up``.

        Args:
            hosts: see ``make_router``.
            tls: whether callers use TLS.
        """
        config = self._config
        pages = StatusPage(self.engines), TracePage(self.engines)
        more: list[Application] = [*pages, self._examples, *self._added]
        if config.metrics:
            more.append(self.metrics)
        if config.ui.enabled:
            access = Access("the live page", "ui.token", config.ui.token, tls=tls)
            more.append(LivePage(self.engines, access))
        profile = partial(_profile_of, self._recorder)
        titles = [each.app for each in self._deployment.graphs]
        titles += [graph.name for graph in self.engine.graphs]
        title = next(filter(None, titles), "penstock")
        return make_router(
            config, self.engine, self._health, self.ends, self.writers, more, profile, hosts, title
        )

    def begin_tracing(self) -> None:
        """Write the tracer's reports from now on, if they are on and this is the first engine."""
        if self._config.dag.tracer.interval_s is not None and self._deployment.engine_id.index == 0:
            reports_written = report_every(self._config, self.engines, self.engine)
            self._tracing = asyncio.create_task(reports_written)

    async def close(self) -> None:
        """End the threads and the files of the instruments; the workers end with the graphs."""
        if self._tracing is not None:
            self._tracing.cancel()
        for each in (self.ends, self.writers):
            if each is not None:
                each.shutdown(wait=False, cancel_futures=True)
        await asyncio.gather(*(asyncio.to_thread(file.close) for file in self._files))


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


def _profile_of(recorder: Recorder, call: Any) -> str:
    """The profile of a call that is being answered; empty if it reached no graph."""
    timeline = recorder.so_far(call.exchange)
    return "" if timeline is None else profile_text(timeline)
