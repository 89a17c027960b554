"""Spans of real services at a collector, and one trace through several services."""

from __future__ import annotations

import json
import os
import subprocess
import time
from pathlib import Path
from urllib.request import Request

import grpc
import pytest

from penstock.protocols import pb
from tests.faults.test_remote import ROW, SERVE, SERVICE
from tests.kit.collector import Collector, collecting
from tests.kit.onnx_models import scale
from tests.service.scripts import PENSTOCK, fetch, post, script, until
from tests.services.process import ServiceProcess, direct, free_port, running

pytestmark = pytest.mark.real

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
OURS = {"traceparent": f"00-{TRACE}-{SPAN}-01", "tracestate": "a=1"}
METHOD = "baidu.paddle_serving.pipeline_serving.PipelineService/inference"
ROUTE = "POST /{name}/{method}"
SERVER, CLIENT = 2, 3

HOOKS = """
def process(self, feed_batch, typical_logid):
    import time
    time.sleep(0.02)
    return feed_batch[0]
"""


def send(url: str, body: object, **headers: str) -> int:
    request = Request(url, json.dumps(body).encode(), headers)
    with direct.open(request, timeout=30) as reply:
        reply.read()
        return int(reply.status)


def call(server: ServiceProcess, **metadata: str) -> None:
    """One call of the pipeline protocol over gRPC, with grpcio."""
    request = pb.Request(key=["x"], value=["1"]).SerializeToString()
    with grpc.insecure_channel(server.rpc_endpoint) as channel:
        method = channel.unary_unary(f"/{METHOD}")
        method(request, metadata=[*metadata.items()], timeout=30)


@pytest.mark.parametrize("engines", [1, 2])
def test_a_collector_gets_the_spans_of_every_request_from_all_processes(
    engines: int, tmp_path: Path
) -> None:
    several = f'"build_dag_each_worker": True, "worker_num": {engines}'
    config = several if engines > 1 else '"dag": {"is_thread_op": False}'
    with collecting() as collector:
        environment = collector.environment | {"OTEL_SERVICE_NAME": "reader"}
        with running(script(tmp_path, HOOKS, config), environment=environment) as server:
            body = {"key": ["x"], "value": ["1"]}
            url = f"{server.http_url}/work/prediction"
            for _ in range(5):
                assert send(url, body) == 200
            assert send(url, body, **OURS) == 200
            assert send(url, body, traceparent=f"00-{TRACE}-{SPAN}-00") == 200
            call(server, **OURS)
            assert server.stop() == 0
        requests = collector.named(ROUTE)
        assert len(requests) == 6
        assert {each.service for each in collector.spans} == {"reader"}
        (of_ours,) = collector.named(ROUTE, TRACE)
        (of_call,) = collector.named(METHOD)
        for each in (of_ours, of_call):
            assert (each.trace, each.parent, each.state, each.kind) == (TRACE, SPAN, "a=1", SERVER)
        for each in (*requests, of_call):
            unpack, work, pack = collector.children(each)
            assert [unpack.name, work.name, pack.name] == ["unpack", "work", "pack"]
            # Between two of them the loop may have something else to do.
            assert each.ms / 2 < unpack.ms + work.ms + pack.ms < each.ms * 1.01
            parts = collector.children(work)
            assert work.ms / 2 < sum(part.ms for part in parts) < work.ms * 1.01
            (process,) = [part for part in parts if part.name == "process"]
            assert process.ms > 19
        assert len({each.trace for each in (*requests, of_call)}) == 6
        assert len({each.id for each in collector.spans}) == len(collector.spans)


def test_one_trace_includes_all_services_called_by_remote_ops(tmp_path: Path) -> None:
    model = scale(tmp_path / "double.onnx", 2.0)
    with collecting() as collector:
        environment = collector.environment
        with (
            running(model, command=SERVE, environment=environment) as server,
            running(
                SERVICE, "double", "grpc", server.rpc_endpoint, environment=environment
            ) as inner,
            running(
                SERVICE, "pipe", "pipeline_grpc", inner.rpc_endpoint, environment=environment
            ) as outer,
        ):
            assert send(f"{outer.http_url}/pipe", ROW, **OURS) == 200
            assert send(f"{outer.http_url}/pipe", ROW) == 200
            for each in (outer, inner, server):
                assert each.stop() == 0
    traces = {each.trace for each in collector.spans}
    assert len(traces) == 2
    for trace in traces:
        (root_span,) = collector.named("POST /{name}", trace)
        assert root_span.parent == (SPAN if trace == TRACE else "")
        span = root_span
        for name in (METHOD, "inference.GRPCInferenceService/ModelInfer"):
            (client_span,) = [each for each in collector.children(span) if each.name == "scale"]
            assert client_span.kind == CLIENT
            (span,) = [each for each in collector.children(client_span) if each.kind == SERVER]
            assert span.name == name
            assert span.state == ("a=1" if trace == TRACE else "")
            assert client_span.begin <= span.begin <= span.end <= client_span.end


def test_a_service_without_spans_passes_the_trace_context_on(tmp_path: Path) -> None:
    config = {"PENSTOCK_LOG_REQUESTS": "true", "PENSTOCK_LOG_FORMAT": "json"}
    model = scale(tmp_path / "double.onnx", 2.0)
    with (
        running(model, command=SERVE, environment=config) as server,
        running(SERVICE, "double", "grpc", server.rpc_endpoint) as outer,
    ):
        assert send(f"{outer.http_url}/pipe", ROW, **OURS) == 200
        assert send(f"{outer.http_url}/pipe", ROW) == 200
        assert server.stop() == 0
        lines = [json.loads(line) for line in server.log().splitlines() if "/ModelInfer" in line]
    assert [each["request"].get("traceparent") for each in lines] == [OURS["traceparent"], None]


def test_requests_do_not_wait_for_an_unreachable_collector(tmp_path: Path) -> None:
    environment = Collector(free_port()).environment | {"OTEL_EXPORTER_OTLP_TIMEOUT": "1"}
    with running(script(tmp_path), environment=environment) as server:
        assert post(server, x="1").json["err_no"] == 0
        failed = 'penstock_traces_total{outcome="failed"} 1.0'
        until(lambda: failed in fetch(f"{server.http_url}/metrics").body.decode(), failed)
        assert post(server, x="1").json["err_no"] == 0
        began = time.monotonic()
        assert server.stop() == 0
        assert time.monotonic() - began < 10


def test_a_missing_opentelemetry_package_is_an_error_with_the_extra_s_name(tmp_path: Path) -> None:
    (tmp_path / "opentelemetry").mkdir()
    (tmp_path / "opentelemetry/__init__.py").touch()
    command = [*PENSTOCK, str(script(tmp_path))]
    environment = os.environ | {"PENSTOCK_OTEL": "true", "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(
        command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 1
    assert "pip install 'penstock-serving[otel]'" in done.stderr
    assert "Traceback" not in done.stderr
