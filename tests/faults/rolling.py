"""Three replicas behind nginx or haproxy, restarted in turn, again and again, under load.

    python -m tests.faults.rolling --proxy nginx --requests 50000

wrk sends HTTP requests over connections that it keeps, and grpcio calls, until there were as many
as asked for and each replica was restarted once. A replica is sent SIGTERM, and started again when
it has ended; the next one follows when it is ready. Each proxy is configured as
``docs/deployment.md`` says.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import grpc

from penstock.protocols.pb import Request, Response
from tests.peers.front import haproxy, nginx
from tests.peers.programs import program, without_proxies
from tests.services.process import ECHO, ServiceProcess, free_port, running

REPLICAS: Final = 3
METHOD: Final = "/baidu.paddle_serving.pipeline_serving.PipelineService/inference"
DRAIN_DELAY: Final = 1.0
"""Seconds that a replica serves after SIGTERM: haproxy asks each 0.2 s whether it is ready."""

NGINX: Final = """
  upstream replicas {{
    {servers}
    keepalive 32;
  }}
  server {{
    listen 127.0.0.1:{port};
    location / {{
      proxy_pass http://replicas;
      proxy_http_version 1.1;
      proxy_set_header Connection "";
      proxy_set_header Host $http_host;
      proxy_next_upstream error http_503 non_idempotent;
    }}
  }}
  upstream replicas_of_calls {{
    {servers}
    keepalive 32;
  }}
  server {{
    listen 127.0.0.1:{calls} http2;
    location / {{
      grpc_pass grpc://replicas_of_calls;
      grpc_next_upstream error http_503 non_idempotent;
    }}
  }}
"""
HAPROXY: Final = """
  option redispatch
  retries 3
  retry-on conn-failure empty-response 503
  option httpchk
  http-check send meth GET uri /readyz ver HTTP/1.1 hdr Host localhost
  default-server check check-proto h1 inter 200ms fall 1 rise 1
frontend routes
  bind 127.0.0.1:{port}
  default_backend routes
backend routes
  {http}
frontend calls
  bind 127.0.0.1:{calls} proto h2
  default_backend calls
backend calls
  {grpc}
"""


@dataclass
class Result:
    """What the callers have seen."""

    requests: int = 0
    calls: int = 0
    restarts: int = 0
    failures: list[str] = field(default_factory=list)
    statuses: list[int] = field(default_factory=list)

    @property
    def row(self) -> str:
        """A line of a table."""
        cells = [self.requests, self.calls, self.restarts, len(self.failures)]
        return "| " + " | ".join(map(str, cells)) + " |"


HEAD: Final = "| HTTP requests | gRPC calls | restarts | failed |\n| ---: | ---: | ---: | ---: |"


class Replica:
    """One of the services, always on the same port."""

    def __init__(self, stack: ExitStack, drain_delay: float) -> None:
        self._stack = stack
        self.port = free_port()
        self._environment = {
            "ECHO_CONFIG": json.dumps({"drain_delay": drain_delay}),
            "PENSTOCK_HTTP_PORT": str(self.port),
            "PENSTOCK_RPC_PORT": str(self.port),
        }
        self._server = self._started()

    def _started(self) -> ServiceProcess:
        service = running(ECHO, environment=self._environment, ready=False)
        server = self._stack.enter_context(service)
        server.http_port = self.port
        server.wait_ready()
        return server

    def restart(self) -> int:
        """Restart it; returns the status with which it ended."""
        status = self._server.stop()
        self._server = self._started()
        return status


@contextmanager
def _front(name: str, folder: Path, replicas: Sequence[Replica]) -> Iterator[tuple[int, int]]:
    port, calls = free_port(), free_port()
    at = [f"127.0.0.1:{each.port}" for each in replicas]
    if name == "nginx":
        servers = "\n".join(f"server {each} max_fails=0;" for each in at)
        site = NGINX.format(port=port, calls=calls, servers=servers)
        proxy = nginx(folder, site, port)
    else:
        servers = [f"server replica{number} {each}" for number, each in enumerate(at)]
        site = HAPROXY.format(
            port=port,
            calls=calls,
            http="\n  ".join(servers),
            grpc="\n  ".join(f"{each} proto h2" for each in servers),
        )
        proxy = haproxy(folder, site, port)
    with proxy:
        yield port, calls


def _wrk(port: int, folder: Path, seconds: int, result: Result) -> None:
    script = folder / "post.lua"
    script.write_text(
        'wrk.method = "POST"\nwrk.body = \'{"key":["x"],"value":["1"]}\'\n'
        'wrk.headers["Content-Type"] = "application/json"\n'
    )
    url = f"http://127.0.0.1:{port}/echo/prediction"
    command = [program("wrk"), "-t1", "-c8", f"-d{seconds}s", "--timeout", "20s", "-s", script, url]
    out = subprocess.run(
        command, capture_output=True, text=True, check=True, env=without_proxies()
    ).stdout
    found = re.search(r"(\d+) requests in", out)
    assert found is not None, out
    result.requests += int(found[1])
    result.failures += [
        line.strip() for line in out.splitlines() if "Non-2xx" in line or "Socket errors" in line
    ]


def _call(port: int, over: threading.Event, result: Result) -> None:
    number = 0
    with grpc.insecure_channel(
        f"127.0.0.1:{port}", options=[("grpc.enable_http_proxy", 0)]
    ) as channel:
        call = channel.unary_unary(
            METHOD,
            request_serializer=Request.SerializeToString,
            response_deserializer=Response.FromString,
        )
        while not over.is_set():
            number += 1
            try:
                answer = call(Request(key=["x"], value=[str(number)], name="echo"), timeout=20)
            except grpc.RpcError as error:
                result.failures.append(f"call {number}: {error.code()} {error.details()}")
                continue
            if (answer.err_no, list(answer.value)) != (0, [str(number)]):
                result.failures.append(f"call {number}: {answer}")
    result.calls += number


def run(proxy: str, requests: int, drain_delay: float = DRAIN_DELAY) -> Result:
    """Restart the replicas in turn until there were so many requests, and each at least once."""
    result = Result()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        replicas = [Replica(stack, drain_delay) for _ in range(REPLICAS)]
        port, calls = stack.enter_context(_front(proxy, folder / proxy, replicas))
        over = threading.Event()
        calling = threading.Thread(target=_call, args=(calls, over, result))
        calling.start()
        try:
            while result.requests + result.calls < requests:
                restarting = threading.Thread(target=_restart_all, args=(replicas, result))
                restarting.start()
                while restarting.is_alive():
                    _wrk(port, folder, 2, result)
                restarting.join()
        finally:
            over.set()
            calling.join()
    return result


def _restart_all(replicas: Sequence[Replica], result: Result) -> None:
    for each in replicas:
        result.statuses.append(each.restart())
        result.restarts += 1


def main() -> int:
    """Run it, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--proxy", choices=["nginx", "haproxy"], default="nginx")
    parser.add_argument("--requests", type=int, default=50_000)
    parser.add_argument("--drain-delay", type=float, default=DRAIN_DELAY)
    given = parser.parse_args()
    began = time.monotonic()
    result = run(given.proxy, given.requests, given.drain_delay)
    sys.stdout.write(f"{HEAD}\n{result.row}\n{time.monotonic() - began:.0f} s\n")
    for each in result.failures[:20]:
        sys.stdout.write(f"{each}\n")
    return 1 if result.failures or any(result.statuses) else 0


if __name__ == "__main__":
    sys.exit(main())
