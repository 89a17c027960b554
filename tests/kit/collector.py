"""An OpenTelemetry collector for tests: receives spans by OTLP over HTTP, and keeps them."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)


@dataclass(frozen=True)
class Received:
    """One span; times are nanoseconds, ids hexadecimal, ``parent`` is empty for none."""

    service: str
    name: str
    kind: int
    trace: str
    id: str
    parent: str
    state: str
    begin: int
    end: int
    facts: dict[str, Any] = field(compare=False)

    @property
    def ms(self) -> float:
        return (self.end - self.begin) / 1e6


class Collector:
    """The received spans."""

    def __init__(self, port: int) -> None:
        self.spans: list[Received] = []
        self.environment = {
            "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{port}",
            "OTEL_BSP_SCHEDULE_DELAY": "50",
            "PENSTOCK_OTEL": "true",
            "NO_PROXY": "127.0.0.1",
        }
        """The environment of services that export to this collector."""

    def take(self, body: bytes) -> None:
        for of_resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            labels = _facts(of_resource.resource.attributes)
            for of_scope in of_resource.scope_spans:
                assert of_scope.scope.name == "penstock"
                for each in of_scope.spans:
                    assert each.start_time_unix_nano <= each.end_time_unix_nano
                    self.spans.append(
                        Received(
                            labels["service.name"], each.name, each.kind, each.trace_id.hex(),
                            each.span_id.hex(), each.parent_span_id.hex(), each.trace_state,
                            each.start_time_unix_nano, each.end_time_unix_nano,
                            _facts(each.attributes),
                        )
                    )  # fmt: skip

    def named(self, name: str, trace: str | None = None) -> list[Received]:
        return [each for each in self.spans if each.name == name and trace in (None, each.trace)]

    def children(self, of: Received) -> list[Received]:
        found = [each for each in self.spans if (each.trace, each.parent) == (of.trace, of.id)]
        return sorted(found, key=lambda each: each.begin)


def _facts(attributes: Any) -> dict[str, Any]:
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in attributes}


@contextmanager
def collecting() -> Iterator[Collector]:
    """Run a collector."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            assert self.path == "/v1/traces"
            body = self.rfile.read(int(self.headers["content-length"]))
            if self.headers["content-encoding"] == "gzip":
                body = gzip.decompress(body)
            collector.take(body)
            answer = ExportTraceServiceResponse().SerializeToString()
            self.send_response(200)
            self.send_header("content-type", "application/x-protobuf")
            self.send_header("content-length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, format: str, *args: Any) -> None:
            return

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        collector = Collector(server.server_address[1])
        thread = Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield collector
        finally:
            server.shutdown()
            thread.join()
