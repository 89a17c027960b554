"""Status reports of a running service: one engine's report, the sum over several, and the routes
that serve them.

``GET /status`` serves it as JSON, to this machine only, ``GET /metrics`` in Prometheus's format, to
everyone. With several engines the one that gets the request adds up the reports of all.

Counters of a sum never decrease while the service lives. An engine's last report counts while it is
too busy to answer, and after its end; an engine that ends in order sends a last report. Only the
counts of a killed engine since its last report are lost.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections import defaultdict
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import asdict, fields
from typing import TYPE_CHECKING, Final

import orjson

from penstock.api.access import why_not_local
from penstock.api.compression import send_packed
from penstock.api.descriptions import ERROR, errors
from penstock.api.errors import error_body, failed, refusal
from penstock.api.health import Health
from penstock.api.http import Http, HttpCall
from penstock.api.operation import Answer
from penstock.api.threads import run_aside
from penstock.door.door import Door
from penstock.engine.engine import Engine
from penstock.engine.graph import GraphState, GraphStatistics, ServedGraph
from penstock.engine.stage import Stage
from penstock.engine.statistics import StageStatistics
from penstock.errors import StartupError
from penstock.executors.processes.executor import ProcessExecutor
from penstock.executors.workers.pool import WorkerPool
from penstock.graph.dag import REQUEST
from penstock.observe.counters import Counters, of_steps
from penstock.observe.metrics import exposition
from penstock.observe.processes import ProcessTimes, thread_seconds
from penstock.observe.reports import Report, total
from penstock.protocols.media import JSON
from penstock.supervisor.queries import AllEngines
from penstock.tensor import described

if TYPE_CHECKING:
    from penstock.executors.external_store.counts import StoreCounts

_OF_STAGE: Final = [each.name for each in fields(StageStatistics)]
_NO_STORE: Final = ((b"cache-control", b"no-store"),)
_JSON: Final = ((b"content-type", b"application/json"), *_NO_STORE)


class Reporter:
    """Makes one engine's report, of plain values.

    Args:
        engine: the engine.
        health: the health of its process.
        counters: an instrument of the engine.
        models: the names of the ops' models, by op name.
        index: the engine's number.

    Attributes:
        door: its door; None under another server.
        traces: counts of requests exported as spans or not; None if the export is off.
        models: makes the part about the models of repositories, of the engine that loads them.
        rollouts: makes the part about rollouts, of the engine that judges them.
        swaps: makes the part about how versions came and went.
        copies: the answers of a version to copies of requests, by its name and version.
        store: counts of the external store for the requests of other services; None without it.
    """

    def __init__(
        self,
        engine: Engine,
        health: Health,
        counters: Counters,
        models: Mapping[str, str],
        index: int = 0,
    ) -> None:
        self._models = models
        self._index = index
        self._engine = engine
        self._health = health
        self._counters = counters
        self._processes = ProcessTimes()
        self._pids: defaultdict[str, list[int]] = defaultdict(list)  # of each op, in this report
        self.door: Door | None = None
        self.traces: Mapping[str, int] | None = None
        self.models: Callable[[], Report] = dict
        self.rollouts: Callable[[], Report] = dict
        self.swaps: Callable[[], Report] = dict
        self.copies: Callable[[tuple[str | None, str]], Report | None] = lambda key: None
        self.store: StoreCounts | None = None
        self._store_users: list[StoreCounts] = []  # at the last report
        self._store_before: StoreCounts | None = None  # of those that were removed

    def forget(self, graph: ServedGraph) -> None:
        """A graph was removed: what was counted of it is dropped."""
        self._counters.forget(graph)
        for stage in graph.stages:
            self._processes.forget(stage.name)

    def __call__(self, *, sketches: bool = True) -> Report:
        """The current report.

        Args:
            sketches: whether it has the sketches of durations, which take most of its time.
        """
        seen = self._engine.statistics()
        ready, why = self._health.ready()
        return {
            "engines": 1,
            "ready": ready,
            "why": why,
            "requests": {
                "admitted": seen.admitted,
                "answered": seen.replied,
                "cancelled": seen.cancelled,
                "refused": seen.refused,
                "inside": seen.inside,
                "waiting": seen.waiting,
            },
            **self._counters.of_requests(sketches=sketches),
            "door": self.door and asdict(self.door.statistics()),
            "callers": self._counters.callers.plain(),
            "caller_series": self._counters.callers.series(),
            "traces": dict(self.traces or {}),
            "most_running": self._engine.options.max_running,
            "process": {
                **self._processes.of("", [os.getpid()]),
                "loop": time.thread_time(),
            },
            "graphs": [*self._graphs(seen.graphs, sketches)],
            "removed": [*self._engine.removed],
            **self.models(),
            **self.rollouts(),
            **self.swaps(),
            **self._store(),
        }

    def _store(self) -> Report:
        """The part about the external store; empty without one."""
        of_ops = (getattr(each.executor, "store_counts", None) for each in self._engine.stages)
        counts = [each for each in (self.store, *of_ops) if each is not None]
        if not (counts or self._store_users or self._store_before):
            return {}
        from penstock.executors.external_store.counts import StoreCounts, report_of

        # Counters must not go back when a version is removed.
        before = self._store_before = self._store_before or StoreCounts()
        for each in self._store_users:
            if each not in counts:
                before.add_all(each)
        self._store_users = counts
        return {"external_store": report_of(counts, before)}

    def _graphs(self, seen: Sequence[GraphStatistics], sketches: bool) -> Iterator[Report]:
        """Each graph. A version whose content is replaced is there twice: the one that serves
        first, as reports of the same version are joined. What both share, and what is counted by
        the names of a version and its ops, is in the first one only.
        """
        graphs = zip(self._engine.all_graphs, seen, strict=True)
        keys: set[tuple[str | None, str]] = set()
        stages: set[Stage] = set()
        self._pids.clear()
        for stage in self._engine.stages:
            if isinstance(stage.executor, ProcessExecutor):
                pids = (each["pid"] for each in stage.executor.loaded if each)
                self._pids[stage.name].extend(pids)
        for graph, each in sorted(graphs, key=lambda x: x[0].state is not GraphState.SERVING):
            counted = graph.key not in keys
            yield self._graph(graph, each, sketches, counted=counted, known=stages)
            keys.add(graph.key)
            stages.update(graph.stages)

    def _graph(
        self,
        graph: ServedGraph,
        seen: GraphStatistics,
        sketches: bool,
        *,
        counted: bool,
        known: Container[Stage],
    ) -> Report:
        signature = graph.signature
        more: Report = {}
        if counted:
            more["requests"] = self._counters.of_graph(graph, sketches=sketches)
            if graph.streams:
                more["streams"] = self._counters.of_streams(graph)
        return {
            "name": seen.name,
            "version": seen.version,
            "state": seen.state,
            "default": self._engine.graph(graph.name or "") is graph,
            **self._version(graph),
            "inside": seen.inside,
            "signature": signature and described(signature),
            **more,
            "ops": [
                {
                    **{name: getattr(each, name) for name in _OF_STAGE},
                    # Its name without a version, for metrics, which have labels for both.
                    **({} if graph.label == (graph.name or "") else {"op": op}),
                    **self._op(stage, each, sketches, counted=counted),
                    **({"given_by": stage.given_by} if stage.given_by else {}),
                    "inputs": [graph.stages[i].name for i in inputs if i != REQUEST],
                    "reads_request": REQUEST in inputs,
                }
                for each, stage, op, inputs in zip(
                    seen.stages, graph.stages, graph.plan.names, graph.plan.inputs, strict=True
                )
                if stage not in known
            ],
        }

    def _version(self, graph: ServedGraph) -> Report:
        """What a graph's version gets, if versions may change: its share of the requests that name
        no version, its labels, and how its answers to copies of requests compare.
        """
        versions = self._engine.versions
        state = None if versions is None else versions.served(graph.name)
        if state is None:
            return {}
        share = 0.0
        if graph.state is GraphState.SERVING:
            share = state.share(graph.version)
        labels = [label for label, version in state.labels.items() if version == graph.version]
        copies = self.copies(graph.key)
        found: Report = {"share": share, "labels": labels}
        return found if copies is None else {**found, "copies": copies}

    def _op(self, stage: Stage, seen: StageStatistics, sketches: bool, *, counted: bool) -> Report:
        found: Report = {"model": self._models.get(stage.name, "")}
        if counted:
            found |= self._counters.of_op(stage.name, sketches=sketches)
        version = getattr(stage.options, "model_version", None)
        if version is not None:
            found["model_version"] = version
        loaded = getattr(stage.executor, "loaded", None)
        if counted and isinstance(stage.executor, ProcessExecutor):
            found["process"] = self._processes.of(stage.name, self._pids[stage.name])
        threads = getattr(stage.executor, "thread_ids", None)
        if threads is not None:
            found["threads"] = {"cpu": sum(map(thread_seconds, threads))}
        counts = getattr(stage.executor, "step_counts", None)
        if counts is not None:
            found["seats"] = {"all": seen.workers, "taken": seen.workers - seen.idle}
            found["steps"] = of_steps(counts)
        if isinstance(stage.executor, WorkerPool):
            found["ready"] = stage.executor.ready
            places, lost = stage.executor.places
            found["places"] = [{"engine": self._index, **each} for each in places]
            found["lost"] = [{"engine": self._index, **each} for each in lost]
        policy = stage.batcher.policy
        by = stage.batching
        found["batching"] = {
            "batch_size": policy.max_rows,
            "window": policy.window,
            "policy": "learned" if policy.learned else "fifo",
            "by": by and by.by,
            "why": by and by.why,
        }
        costs = stage.batcher.costs
        if costs is not None:
            found["costs"] = costs.report()
        return {**found, "loaded": loaded and [each and _shown(each) for each in loaded]}


def _shown(loaded: Report) -> Report:
    """A worker's report without its part for other workers."""
    return {key: value for key, value in loaded.items() if key != "batching"}


class StatusPage:
    """``GET /status``. An application; see ``penstock.service.blueprint``.

    Args:
        engines: those of the service.
        admitted: whether only operators reach it; else callers must be on this machine.
    """

    def __init__(self, engines: AllEngines, *, admitted: bool = False) -> None:
        self._engines = engines
        self._admitted = admitted

    def routes(self) -> Iterator[Http]:
        """Its routes."""
        local = "The caller is on another machine, or a proxy."
        yield Http(
            "GET",
            "/status",
            self._answer,
            failed=failed,
            refusal=refusal,
            always=True,
            admin=True,
            summary="The status of the service.",
            description="For callers on the same machine only.",
            group="Operation",
            answers={
                **errors(415),
                200: Answer(text="The report.", contents={JSON: {"type": "object"}}),
                403: Answer(text=local, contents={JSON: ERROR}),
            },
        )

    def _answer(self, call: HttpCall, body: bytes) -> None:
        if self._admitted or is_local(call, "the status"):
            call.aside(self._give(call))

    async def _give(self, call: HttpCall) -> None:
        try:
            reports = await self._engines.reports(sketches=True)
        except (TimeoutError, StartupError):  # the supervisor is gone or busy: use only our own
            reports = [self._engines.own_report()]
        call.reply(200, _JSON, orjson.dumps(total(reports)))


def is_local(call: HttpCall, what: str) -> bool:
    """Whether the caller is on this machine; refuses any other."""
    why = why_not_local(call.exchange.peer.address, call.exchange.head)
    if why is not None:
        call.send(error_body(403, "forbidden", f"{what} {why}"))
    return why is None


class MetricsPage:
    """``GET /metrics``, for Prometheus. An application; see ``penstock.service.blueprint``.

    Concurrent requests share one text, so that many scrapers cost the engines and the supervisor no
    more than sequential ones.

    Args:
        engines: those of the service.
        of_original: whether to add metrics with the original's names.
    """

    def __init__(self, engines: AllEngines, *, of_original: bool = False) -> None:
        self._engines = engines
        self._of_original = of_original
        self._making: dict[bool, asyncio.Task[tuple[bytes, bytes]]] = {}  # by "is OpenMetrics"

    def routes(self) -> Iterator[Http]:
        """Its routes."""
        yield Http(
            "GET",
            "/metrics",
            self._answer,
            failed=failed,
            refusal=refusal,
            always=True,
            admin=True,
            summary="Metrics for Prometheus.",
            description="As text, or as OpenMetrics if accepted; summed over all engines.",
            group="Operation",
            answers={
                **errors(415, 503),
                200: Answer(text="The metrics.", contents={"text/plain": {"type": "string"}}),
            },
        )

    def _answer(self, call: HttpCall, body: bytes) -> None:
        call.aside(self._give(call))

    async def _give(self, call: HttpCall) -> None:
        accept = call.exchange.head.fields.get(b"accept", b"")
        openmetrics = b"application/openmetrics-text" in accept.lower()
        making = self._making.get(openmetrics)
        if making is None or making.done():
            making = asyncio.create_task(self._make(call.shared.threads, openmetrics))
            making.add_done_callback(lambda done: done.cancelled() or done.exception())  # retrieved
            self._making[openmetrics] = making
        try:
            kind, text = await asyncio.shield(making)
        except (TimeoutError, StartupError):
            # Not those of this engine alone: scrapers would see a reset of all counters.
            call.send(error_body(503, "busy", "the sum over all engines is not available now"))
            return
        send_packed(call, 200, ((b"content-type", kind), *_NO_STORE), text)

    async def _make(self, threads: Executor | None, openmetrics: bool) -> tuple[bytes, bytes]:
        reports = await self._engines.reports()
        form = {"openmetrics": openmetrics, "of_original": self._of_original}
        return await run_aside(threads, lambda: exposition(total(reports, sketches=False), **form))
