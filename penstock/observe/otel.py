"""Exports finished requests as OpenTelemetry spans to a collector.

A request is a span; its children are the unpacking, each attempt of an op with its phases, and the
packing, from ``timeline.py``. The trace is the caller's, if it sent a context, else a new one. A
remote op's call has the context of the op's span, which is created later: so its id is computed
from a key of this process and data known at the time of the call.

This module needs the packages of the extra ``otel``, which only this module imports. Sources:
OpenTelemetry's specification (environment variables) and semantic conventions (HTTP, RPC).
"""

from __future__ import annotations

import logging
import os
from collections import deque
from collections.abc import Iterator
from hashlib import blake2b
from importlib.metadata import entry_points
from random import getrandbits
from threading import Event, Thread
from time import monotonic_ns, time_ns
from typing import Any, Final, NamedTuple

from opentelemetry.sdk.environment_variables import (
    OTEL_BSP_MAX_EXPORT_BATCH_SIZE,
    OTEL_BSP_MAX_QUEUE_SIZE,
    OTEL_BSP_SCHEDULE_DELAY,
    OTEL_EXPORTER_OTLP_PROTOCOL,
    OTEL_EXPORTER_OTLP_TRACES_PROTOCOL,
)
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.sampling import Decision
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import (
    NonRecordingSpan,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    TraceState,
    set_span_in_context,
)

from penstock.errors import StartupError
from penstock.observe.recorder import NO_ID, method_of
from penstock.observe.timeline import GRPC, Step, Timeline
from penstock.protocols.http2.hpack import encode_block
from penstock.protocols.status import STATUS
from penstock.protocols.trace_context import SAMPLED, TRACEPARENT, fields, parse, state_of
from penstock.request import Batch, Sample
from penstock.version import VERSION

_log: Final = logging.getLogger(__name__)

_LAST: Final = 2.0  # seconds for the last spans
_WAKE: Final = (
    64  # queued requests that start an export before the delay is over; a guess at 512 spans
)
_PROTOCOLS: Final = {"http/protobuf": "otlp_proto_http", "grpc": "otlp_proto_grpc"}
_CALLERS_FAULT: Final = {kind.code for kind, row in STATUS.items() if row.http < 500}


def is_disabled() -> bool:
    """Whether the environment disables the export."""
    disabled = os.environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true"
    return disabled or os.environ.get("OTEL_TRACES_EXPORTER") == "none"


def exporter() -> SpanExporter:
    """The exporter named by the environment; by default OTLP over HTTP.

    Raises:
        StartupError: it does not exist, or cannot be created.
    """
    name = os.environ.get("OTEL_TRACES_EXPORTER") or "otlp"
    if name == "otlp":
        variables = (OTEL_EXPORTER_OTLP_TRACES_PROTOCOL, OTEL_EXPORTER_OTLP_PROTOCOL)
        protocol = next(filter(None, map(os.environ.get, variables)), "http/protobuf")
        name = _PROTOCOLS.get(protocol, protocol)
    found = [*entry_points(group="opentelemetry_traces_exporter", name=name)]
    if not found:
        raise StartupError(f"otel: no installed package has the exporter {name!r}")
    try:
        made: SpanExporter = found[0].load()()
    except Exception as error:
        raise StartupError(f"otel: the exporter {name!r} cannot be created: {error}") from error
    return made


def _number(name: str, usual: int) -> int:
    text = os.environ.get(name) or str(usual)
    if not text.isdigit() or not int(text):
        raise StartupError(f"{name} must be a whole number above 0, got {text!r}")
    return int(text)


class _Trace(NamedTuple):
    """The trace of a request."""

    id: int
    parent: SpanContext | None
    flags: TraceFlags
    state: TraceState

    def context(self, span: int) -> SpanContext:
        return SpanContext(self.id, span, False, self.flags, self.state)


class SpanWriter:
    """Exports the spans of sampled requests, in a separate thread.

    Args:
        exporter: the exporter.
        service: the service's name, unless the environment sets it.

    Attributes:
        counts: sampled requests by outcome: ``exported``, ``dropped`` (the queue was full), or
            ``failed`` (the collector did not accept them).

    Raises:
        StartupError: a variable of the environment is no number.
    """

    def __init__(self, exporter: SpanExporter, service: str) -> None:
        self.counts = {"exported": 0, "dropped": 0, "failed": 0}
        self._exporter = exporter
        self._sampler = TracerProvider(shutdown_on_exit=False).sampler
        resource = Resource.create()
        if str(resource.attributes[SERVICE_NAME]).startswith("unknown_service"):
            resource = resource.merge(Resource({SERVICE_NAME: service}))
        self._resource = resource.merge(Resource({"process.pid": os.getpid()}))
        self._scope = InstrumentationScope("penstock", VERSION)
        self._key = os.urandom(16)
        self._remote: set[str] = set()  # ops that have called other servers
        self._waiting: deque[tuple[Timeline, _Trace]] = deque()
        self._most = _number(OTEL_BSP_MAX_QUEUE_SIZE, 2048)
        self._delay = _number(OTEL_BSP_SCHEDULE_DELAY, 5000) / 1000
        self._batch = _number(OTEL_BSP_MAX_EXPORT_BATCH_SIZE, 512)
        self._wake = Event()
        self._closing = False
        # A daemon, because an unresponsive collector must not keep the process from ending.
        self._thread = Thread(target=self._run, name="otel", daemon=True)
        self._thread.start()

    # On the engine's loop.

    def __call__(self, timeline: Timeline) -> None:
        """Queue a finished timeline, or drop it if the queue is full."""
        data_id = timeline.data_id
        trace = self._trace(timeline.trace, timeline.trace_state, data_id, _title(timeline))
        if trace is None or not trace.flags.sampled:
            return
        if len(self._waiting) >= self._most:
            self.counts["dropped"] += 1
            return
        self._waiting.append((timeline, trace))
        if len(self._waiting) >= _WAKE:
            self._wake.set()

    def outgoing(self, batch: Batch) -> bytes:
        """The trace context for a remote op's call, as a header block: that of the first sampled
        request of the batch.
        """
        for sample in batch.samples:
            trace = self._of(sample)
            if trace.flags.sampled:
                break
        op = sample.flight.graph.stages[sample.op].name
        self._remote.add(op)
        span = self._id(8, sample.data_id, op, sample.attempt)
        made = f"00-{trace.id:032x}-{span:016x}-{trace.flags:02x}"
        return encode_block(fields(made.encode(), trace.state.to_header().encode()))

    def _of(self, sample: Sample) -> _Trace:
        """The trace of a running request."""
        call = sample.flight.call
        exchange = getattr(call, "exchange", None)
        traceparent = state = method = route = ""
        if exchange is not None:
            head = exchange.head
            traceparent = head.fields.get(TRACEPARENT, b"").decode("latin-1")
            state = state_of(head).decode("latin-1")
            method, route = method_of(call), call.label
        name = _name(method, route, sample.flight.graph.name or "")
        trace = self._trace(traceparent, state, sample.data_id, name)
        assert trace is not None
        return trace

    def _trace(self, traceparent: str, state: str, data_id: int, name: str) -> _Trace | None:
        """The trace of a request; None if it reached no graph and has no context."""
        found = parse(traceparent)
        parent, context, extra = None, None, 0
        if found is not None:
            trace_id, span_id, flags = found
            extra = flags & ~SAMPLED
            trace_state = TraceState.from_header([state]) if state else TraceState()
            parent = SpanContext(trace_id, span_id, True, TraceFlags(flags), trace_state)
            context = set_span_in_context(NonRecordingSpan(parent))
        elif data_id == NO_ID:
            return None
        else:
            trace_id = self._id(16, data_id)
        sampling = self._sampler.should_sample(context, trace_id, name, SpanKind.SERVER)
        chosen = SAMPLED if sampling.decision is Decision.RECORD_AND_SAMPLE else 0
        return _Trace(
            trace_id, parent, TraceFlags(extra | chosen), sampling.trace_state or TraceState()
        )

    def _id(self, size: int, *what: object) -> int:
        known = blake2b(repr(what).encode(), digest_size=size, key=self._key)
        return int.from_bytes(known.digest())

    def close(self) -> None:
        """Export the queued requests, within a time limit."""
        self._closing = True
        self._wake.set()
        self._thread.join(_LAST)
        self._exporter.shutdown()
        if self._waiting:
            _log.warning("otel: the spans of %s requests were not exported", len(self._waiting))

    # In the thread.

    def _run(self) -> None:
        while not self._closing:
            self._wake.wait(self._delay)
            self._wake.clear()
            while self._waiting:
                self._export()

    def _export(self) -> None:
        spans: list[ReadableSpan] = []
        requests = 0
        while self._waiting and len(spans) < self._batch:
            spans += self._spans(*self._waiting.popleft())
            requests += 1
        try:
            done = self._exporter.export(spans) is SpanExportResult.SUCCESS
        except Exception:  # noqa: BLE001 - later spans are exported after any failure
            _log.exception("otel: the exporter failed")
            done = False
        self.counts["exported" if done else "failed"] += requests

    def _spans(self, timeline: Timeline, trace: _Trace) -> Iterator[ReadableSpan]:
        """The spans of one request, its own first."""
        offset = time_ns() - monotonic_ns()

        def span(
            name: str,
            begin: float,
            end: float,
            parent: SpanContext | None,
            own: int = 0,
            kind: SpanKind = SpanKind.INTERNAL,
            facts: dict[str, Any] | None = None,
            failed: bool = False,
        ) -> ReadableSpan:
            return ReadableSpan(
                name,
                context=trace.context(own or getrandbits(64) or 1),
                parent=parent,
                resource=self._resource,
                attributes=facts or {},
                kind=kind,
                status=Status(StatusCode.ERROR if failed else StatusCode.UNSET),
                start_time=offset + round(1e9 * begin),
                end_time=offset + round(1e9 * end),
                instrumentation_scope=self._scope,
            )

        failed = timeline.status >= 500 or timeline.error not in (None, *_CALLERS_FAULT)
        whole = span(
            _title(timeline),
            timeline.began,
            timeline.ended,
            trace.parent,
            kind=SpanKind.SERVER if timeline.route else SpanKind.INTERNAL,
            facts=_facts(timeline),
            failed=failed,
        )
        yield whole
        if timeline.data_id == NO_ID:
            return
        yield span("unpack", timeline.began, timeline.admitted, whole.context)
        used: set[int] = set()
        for step in timeline.steps:
            own = self._id(8, timeline.data_id, step.op, step.attempt)
            parts = step.stages(timeline.replied)
            visit = span(
                step.op,
                step.queued,
                parts[-1][2],
                whole.context,
                0 if own in used else own,  # another piece of a request that was split
                SpanKind.CLIENT if step.op in self._remote else SpanKind.INTERNAL,
                _facts_of_step(step),
                step.batch is not None and step.batch.given_up,
            )
            used.add(own)
            yield visit
            for part, begin, end in parts:
                yield span(part, begin, end, visit.context)
        yield span("pack", timeline.replied, timeline.ended, whole.context)


def _name(method: str, route: str, graph: str) -> str:
    """The name of a request's span."""
    if method == GRPC:
        return route.removeprefix("/")
    return f"{method} {route}" if route else graph or "request"


def _title(timeline: Timeline) -> str:
    """The route; for a request that reached no graph only the method, to limit the number of
    names.
    """
    if timeline.data_id == NO_ID:
        return timeline.method
    return _name(timeline.method, timeline.route, timeline.graph)


def _facts(timeline: Timeline) -> dict[str, Any]:
    """Attributes of a request's span."""
    facts: dict[str, Any] = {}
    if timeline.method == GRPC:
        facts["rpc.system.name"] = facts["rpc.system"] = "grpc"
        facts["rpc.method"] = timeline.route.removeprefix("/")
    elif timeline.method:
        facts["http.request.method"] = timeline.method
        if timeline.data_id == NO_ID:
            facts["url.path"] = timeline.route.partition(" ")[2]
        else:
            facts["http.route"] = timeline.route
        if timeline.status:
            facts["http.response.status_code"] = timeline.status
    if timeline.caller:
        facts["enduser.id"] = timeline.caller
    if timeline.error is not None or timeline.status >= 500:
        facts["error.type"] = timeline.error or str(timeline.status)
    if timeline.data_id != NO_ID:
        facts["penstock.graph"] = timeline.graph
        facts["penstock.data_id"] = timeline.data_id
        facts["penstock.log_id"] = timeline.log_id
        facts["penstock.engine"] = timeline.engine
    return facts


def _facts_of_step(step: Step) -> dict[str, Any]:
    """Attributes of an op's span."""
    facts: dict[str, Any] = {"penstock.attempt": step.attempt}
    batch = step.batch
    if batch is not None:
        facts["penstock.worker"] = batch.worker
        facts["penstock.batch.number"] = batch.number
        facts["penstock.batch.rows"] = batch.rows
        facts["penstock.batch.data_ids"] = batch.data_ids
        facts["penstock.batch.closed_by"] = batch.reason
        facts["penstock.batch.errors"] = batch.errors
    return facts
