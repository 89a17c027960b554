"""Requests as OpenTelemetry spans: ids, parents, times, sampling, and failing collectors."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from penstock import Op
from penstock.errors import StartupError
from penstock.observe import otel
from penstock.observe.otel import SpanWriter, exporter, is_disabled
from penstock.observe.recorder import NO_ID, Recorder
from penstock.observe.timeline import GRPC, BatchTimes, Step, Timeline
from penstock.protocols.trace_context import parse
from penstock.request import Batch, CloseReason, Sample
from tests.service.in_process import root, service_of

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
SAMPLED, LEFT_OUT = f"00-{TRACE}-{SPAN}-01", f"00-{TRACE}-{SPAN}-00"


def timeline(number: int = 1, *, steps: Sequence[Step] = (), **more: Any) -> Timeline:
    facts: dict[str, Any] = {
        "engine": 0, "graph": "ocr", "route": "/{name}/{method}", "data_id": number, "log_id": 7,
        "trace": "", "began": 1.0, "admitted": 1.001, "replied": 1.008, "ended": 1.009,
        "status": 200, "error": None, "method": "POST", "trace_state": "",
    }  # fmt: skip
    return Timeline(**{**facts, **more}, steps=[*steps])


def step(op: str, attempt: int = 1, *mates: int, **more: Any) -> Step:
    batch = BatchTimes(
        op=op, number=1, worker=0, reason="full", rows=1, data_ids=[1, *mates], closed=1.002,
        began=1.003, prepared=0.001, processed=0.002, ran=0.004, returned=1.008, **more,
    )  # fmt: skip
    return Step(op, 1.001, attempt, batch)


@contextmanager
def writing(to: SpanExporter) -> Iterator[SpanWriter]:
    writer = SpanWriter(to, "text")
    yield writer
    writer.close()


def spans_of(*timelines: Timeline) -> list[ReadableSpan]:
    kept = InMemorySpanExporter()
    with writing(kept) as writer:
        for each in timelines:
            writer(each)
    spans = kept.get_finished_spans()
    assert writer.counts["exported"] == sum(
        each.parent is None or each.parent.is_remote for each in spans
    )
    return [*spans]


def facts(span: ReadableSpan) -> dict[str, Any]:
    return {**(span.attributes or {})}


def below(span: ReadableSpan, others: Sequence[ReadableSpan]) -> list[ReadableSpan]:
    return [each for each in others if each.parent == span.context]


def seconds(span: ReadableSpan) -> float:
    assert span.start_time is not None
    assert span.end_time is not None
    return (span.end_time - span.start_time) / 1e9


async def test_a_requests_spans_are_its_parts_without_gaps() -> None:
    class Slow(Op):
        def process(self, feed_batch: Any, typical_logid: int) -> Any:
            time.sleep(0.05)
            return feed_batch[0]

    kept = InMemorySpanExporter()
    with writing(kept) as writer:
        first = Slow("first", input_ops=[root()])
        async with service_of(Op("second", input_ops=[first])) as service:
            recorder = Recorder()
            recorder.listen(writer)
            service.engine.instruments.install(recorder)
            await service.call(x="1")
    whole, *others = kept.get_finished_spans()
    children = below(whole, others)
    assert [each.name for each in children] == ["unpack", "first", "second", "pack"]
    parts = [each for each in others if each not in children]
    assert {each.name for each in parts} >= {"queue", "preprocess", "process", "postprocess"}
    for visit in children[1:3]:
        inner = below(visit, parts)
        assert inner[0].name == "queue"
        assert sum(map(seconds, inner)) == pytest.approx(seconds(visit), abs=1e-6)
    # Between two ops the loop may have something else to do.
    assert seconds(whole) / 2 < sum(map(seconds, children)) <= seconds(whole) + 1e-6
    now = time.time_ns()
    assert now - 5e9 < (whole.end_time or 0) <= now
    ids = [each.context for each in (whole, *others) if each.context is not None]
    assert len({each.span_id for each in ids}) == 1 + len(others)
    assert len({each.trace_id for each in ids}) == 1


def test_http_spans_have_the_attributes_of_the_semantic_conventions() -> None:
    whole, *_ = spans_of(timeline(trace=SAMPLED, trace_state="a=1,b=2"))
    assert (whole.name, whole.kind) == ("POST /{name}/{method}", SpanKind.SERVER)
    assert facts(whole) == {
        "http.request.method": "POST", "http.route": "/{name}/{method}",
        "http.response.status_code": 200, "penstock.graph": "ocr", "penstock.data_id": 1,
        "penstock.log_id": 7, "penstock.engine": 0,
    }  # fmt: skip
    assert whole.context is not None
    assert whole.parent is not None
    assert f"{whole.context.trace_id:032x}" == f"{whole.parent.trace_id:032x}" == TRACE
    assert f"{whole.parent.span_id:016x}" == SPAN
    assert whole.context.trace_state.to_header() == "a=1,b=2"
    assert whole.resource.attributes["service.name"] == "text"


def test_the_span_of_a_request_names_its_caller() -> None:
    known, *_ = spans_of(timeline(caller="jwt:ann"))
    assert facts(known)["enduser.id"] == "jwt:ann"
    unknown, *_ = spans_of(timeline())
    assert "enduser.id" not in facts(unknown)


def test_grpc_spans_have_the_attributes_of_the_semantic_conventions() -> None:
    whole, *_ = spans_of(timeline(method=GRPC, route="/a.B/c"))
    assert (whole.name, whole.kind) == ("a.B/c", SpanKind.SERVER)
    assert facts(whole).items() >= {
        ("rpc.system", "grpc"), ("rpc.system.name", "grpc"), ("rpc.method", "a.B/c")
    }  # fmt: skip
    assert not any(name.startswith("http") for name in facts(whole))


@pytest.mark.parametrize(
    ("status", "error", "kind", "code"),
    [
        (200, None, None, StatusCode.UNSET),
        (400, "input_mismatch", "input_mismatch", StatusCode.UNSET),
        (200, "hook_failed", "hook_failed", StatusCode.ERROR),
        (503, None, "503", StatusCode.ERROR),
        (0, "cancelled", "cancelled", StatusCode.UNSET),
    ],
)
def test_only_errors_of_the_service_set_the_error_status(
    status: int, error: str | None, kind: str | None, code: StatusCode
) -> None:
    whole, *_ = spans_of(timeline(status=status, error=error))
    assert facts(whole).get("error.type") == kind
    assert whole.status.status_code is code


def test_an_ops_span_has_its_batch_and_attempt() -> None:
    spans = spans_of(timeline(steps=[step("det", 1, 2, 3), step("det", 2, given_up=True)]))
    first, second = [each for each in spans if each.name == "det"]
    assert facts(first)["penstock.batch.data_ids"] == [1, 2, 3]
    assert (facts(first)["penstock.attempt"], facts(second)["penstock.attempt"]) == (1, 2)
    codes = [each.status.status_code for each in (first, second)]
    assert codes == [StatusCode.UNSET, StatusCode.ERROR]
    unfinished = spans_of(timeline(steps=[Step("det", 1.001, 1, None)]))
    assert [each.name for each in unfinished] == [
        "POST /{name}/{method}", "unpack", "det", "unfinished", "pack"
    ]  # fmt: skip


def test_pieces_of_a_split_request_have_separate_spans() -> None:
    spans = spans_of(timeline(steps=[step("det"), step("det")]))
    assert len({each.context.span_id for each in spans if each.context}) == len(spans) == 17


def test_requests_without_a_graph_have_a_span_only_within_a_trace() -> None:
    probe = timeline(NO_ID, route="GET /healthz", method="GET", graph="")
    wrong = timeline(NO_ID, route="POST /nobody", method="POST", status=404, trace=SAMPLED)
    (whole,) = spans_of(probe, wrong)
    assert whole.name == "POST"
    assert facts(whole) == {
        "http.request.method": "POST", "url.path": "/nobody", "http.response.status_code": 404
    }  # fmt: skip


@pytest.mark.parametrize(
    "wrong",
    ["", "x", SAMPLED.upper(), f"00-{'0' * 32}-{SPAN}-01", f"00-{TRACE}-{'0' * 16}-01",
     f"ff-{TRACE}-{SPAN}-01", SAMPLED + "-x"],
)  # fmt: skip
def test_an_invalid_trace_context_starts_a_new_trace(wrong: str) -> None:
    assert parse(wrong) is None
    one, *_ = spans_of(timeline(trace=wrong))
    assert one.parent is None
    assert one.context is not None
    assert f"{one.context.trace_id:032x}" != TRACE


def test_a_request_not_sampled_by_its_client_is_not_exported() -> None:
    assert spans_of(timeline(trace=LEFT_OUT)) == []


def test_the_environment_sets_the_sampler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "parentbased_traceidratio")
    monkeypatch.setenv("OTEL_TRACES_SAMPLER_ARG", "0.25")
    requests_made = [timeline(number) for number in range(400)]
    begun = [each for each in spans_of(*requests_made) if each.parent is None]
    assert 50 < len(begun) < 150
    assert spans_of(timeline(trace=SAMPLED))


def test_the_environment_sets_the_services_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_SERVICE_NAME", "reader")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=test")
    resource_attributes = spans_of(timeline())[0].resource.attributes
    assert (
        resource_attributes["service.name"],
        resource_attributes["deployment.environment.name"],
    ) == ("reader", "test")


def sample(number: int, trace: bytes = b"", state: bytes = b"", attempt: int = 1) -> Sample:
    fields = {b"traceparent": trace, b"tracestate": state} if trace else {}
    head = SimpleNamespace(fields=fields, headers=tuple(fields.items()), method="POST")
    call = SimpleNamespace(exchange=SimpleNamespace(head=head), label="/{name}", is_grpc=False)
    graph = SimpleNamespace(stages=[SimpleNamespace(name="det")], name="ocr")
    flight = SimpleNamespace(call=call, graph=graph)
    return Sample(number, {}, 0.0, flight=flight, attempt=attempt)


def batch(*samples: Sample) -> Batch:
    return Batch([*samples], CloseReason.FULL, 1.0)


@pytest.mark.parametrize("trace", [SAMPLED, ""])
def test_a_remote_calls_traceparent_names_the_ops_span(trace: str) -> None:
    kept = InMemorySpanExporter()
    with writing(kept) as writer:
        sent = writer.outgoing(batch(sample(1, trace.encode(), b"a=1", attempt=2)))
        writer(timeline(trace=trace, trace_state="a=1" if trace else "", steps=[step("det", 2)]))
    (visit,) = [each for each in kept.get_finished_spans() if each.name == "det"]
    assert visit.kind is SpanKind.CLIENT
    assert visit.context is not None
    named = f"00-{visit.context.trace_id:032x}-{visit.context.span_id:016x}-01"
    assert named.encode() in sent
    assert (b"a=1" in sent) == bool(trace)


def test_a_remote_call_has_the_sampled_flag_of_its_requests() -> None:
    with writing(InMemorySpanExporter()) as writer:
        assert writer.outgoing(batch(sample(1, LEFT_OUT.encode()))).endswith(b"-00")
        both = batch(sample(1, LEFT_OUT.encode()), sample(2))
        assert writer.outgoing(both).endswith(b"-01")


class Stuck(SpanExporter):
    """A collector that does not answer until released."""

    def __init__(self) -> None:
        self.called = threading.Event()
        self.released = threading.Event()

    def export(self, spans: Any) -> SpanExportResult:
        self.called.set()
        assert self.released.wait(20)
        return SpanExportResult.FAILURE

    def shutdown(self) -> None:
        self.released.set()


def test_spans_beyond_the_queues_limit_are_dropped_and_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "100")
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "1")
    stuck = Stuck()
    with writing(stuck) as writer:
        writer(timeline(0))
        assert stuck.called.wait(20)
        for number in range(1, 151):
            writer(timeline(number))
        assert writer.counts == {"exported": 0, "dropped": 50, "failed": 0}
        stuck.released.set()
    assert writer.counts == {"exported": 0, "dropped": 50, "failed": 101}


def test_closing_waits_a_limited_time_for_a_stuck_collector(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(otel, "_LAST", 0.05)
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "1")
    monkeypatch.setenv("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "1")
    stuck = Stuck()
    writer = SpanWriter(stuck, "text")
    writer(timeline(1))
    assert stuck.called.wait(20)
    for number in range(2, 12):
        writer(timeline(number))
    writer.close()
    writer._thread.join(20)
    assert "otel: the spans of 10 requests were not exported" in caplog.text


def test_an_exporter_that_raised_is_called_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken(InMemorySpanExporter):
        def export(self, spans: Any) -> SpanExportResult:
            if len(spans) > 3:
                raise OSError("no disk")
            return super().export(spans)

    monkeypatch.setenv("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "1")
    with writing(Broken()) as writer:
        writer(timeline(1, steps=[step("det")]))
        writer(timeline(2))
    assert writer.counts == {"exported": 1, "dropped": 0, "failed": 1}
    assert "no disk" in caplog.text


def test_the_environment_sets_the_exporter(monkeypatch: pytest.MonkeyPatch) -> None:
    assert type(exporter()).__name__ == "OTLPSpanExporter"
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "carrier pigeon")
    with pytest.raises(StartupError, match="has the exporter 'carrier pigeon'"):
        exporter()
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "console")
    assert type(exporter()).__name__ == "ConsoleSpanExporter"
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "soon")
    with pytest.raises(StartupError, match="above 0, got 'soon'"):
        SpanWriter(InMemorySpanExporter(), "text")


def test_the_environment_can_disable_tracing(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not is_disabled()
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    assert is_disabled()
    monkeypatch.delenv("OTEL_SDK_DISABLED")
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "none")
    assert is_disabled()
