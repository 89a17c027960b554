"""The service that peers call: its ports, its certificate, and its start."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from tests.kit.certificates import make_certificate
from tests.peers.front import background
from tests.services.process import ECHO, ROOT, ServiceProcess, free_port, running

KINDS = ROOT / "tests/services/grpc_kinds.py"
PROTO = ROOT / "penstock/protocols/pb/pipeline_service.proto"
INFERENCE = "/baidu.paddle_serving.pipeline_serving.PipelineService/inference"

MAX_MESSAGE_BYTES = 128 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """Ports of 127.0.0.1.

    Attributes:
        http: the HTTP routes, HTTP/1.1 in clear.
        h2c: the same, for HTTP/2 in clear with prior knowledge.
        tls: the HTTP routes and gRPC over TLS, HTTP/2 or HTTP/1.1 as ALPN decides.
        rpc: the pipeline's gRPC in clear.
        kinds: gRPC of every kind in clear, in a process of its own.
        certificate: PEM, for ``localhost`` and 127.0.0.1; self-signed.
        key: PEM.
    """

    server: ServiceProcess
    http: int
    h2c: int
    tls: int
    rpc: int
    kinds: int
    certificate: Path
    key: Path

    def for_script(self) -> dict[str, Any]:
        """These values for a script in another language."""
        values = {field.name: str(getattr(self, field.name)) for field in fields(self)}
        return values | {"proto": str(PROTO)}


@contextmanager
def serving(folder: Path) -> Iterator[Site]:
    """Start the service in a process, and wait until it is ready.

    Raises:
        AssertionError: it does not exit with 0, or its log has an unexpected error.
    """
    folder.mkdir(exist_ok=True)
    certificate, key = make_certificate(folder, "DNS:localhost,IP:127.0.0.1")
    kinds, tls = free_port(), free_port()
    environment = {
        "ECHO_CONFIG": json.dumps({"op": {"echo": {"executor": "inline"}}}),
        "ECHO_TLS": json.dumps([tls, str(certificate), str(key)]),
        "PENSTOCK_MAX_MESSAGE_BYTES": str(MAX_MESSAGE_BYTES),
        "PENSTOCK_KEEP_ALIVE": "60",
    }
    with ExitStack() as stack:
        server = stack.enter_context(running(ECHO, environment=environment))
        command = [sys.executable, str(KINDS), str(kinds)]
        stack.enter_context(background(command, folder / "kinds.log", kinds))
        yield Site(
            server=server,
            http=server.http_port,
            h2c=server.http_port,
            tls=tls,
            rpc=server.rpc_port,
            kinds=kinds,
            certificate=certificate,
            key=key,
        )
        assert server.stop() == 0, server.log()
        for log in (server.log(), (folder / "kinds.log").read_text()):
            assert "please report this" not in log
            assert "Traceback" not in log
