"""``door.max_connection_age`` in a service: clients connect again, and no request fails."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

import grpc
import httpx
import pytest

from penstock.protocols.pb import Request, Response
from tests.service.scripts import NAME, fetch, script
from tests.services.process import ServiceProcess, running

pytestmark = pytest.mark.real

METHOD = "/baidu.paddle_serving.pipeline_serving.PipelineService/inference"
HOOKS = """
def process(self, feed_batch, typical_logid):
    import time
    time.sleep(0.002)
    return feed_batch[0]
"""
CONNECTIONS = 8
"""At least so many connections of the clients before they stop."""

MOST = 60.0
"""Seconds for that."""


def opened(server: ServiceProcess) -> int:
    """Connections that were opened so far; each look is one."""
    text = fetch(f"{server.http_url}/metrics").body.decode()
    line = next(one for one in text.splitlines() if one.startswith("penstock_connections_opened"))
    return int(float(line.split()[-1]))


def over_http(
    server: ServiceProcess, http2: bool, ask: Callable[[Callable[[], None]], None]
) -> None:
    url = f"{server.http_url}/{NAME}/prediction"
    with httpx.Client(http1=not http2, http2=http2, timeout=30, trust_env=False) as client:

        def once() -> None:
            answer = client.post(url, json={"key": ["x"], "value": ["1"]})
            assert answer.json()["value"] == ["1"], answer.text

        ask(once)


def over_grpc(server: ServiceProcess, ask: Callable[[Callable[[], None]], None]) -> None:
    # Without retries, which every channel has, a call whose stream the library has not begun when
    # GOAWAY arrives fails, whatever the server does (cancel_unstarted_streams in gRPC's chttp2).
    options = [("grpc.enable_http_proxy", 0)]
    message = Request(name=NAME, key=["x"], value=["1"]).SerializeToString()
    with grpc.insecure_channel(server.rpc_endpoint, options) as channel:
        call = channel.unary_unary(METHOD, response_deserializer=Response.FromString)

        def once() -> None:
            assert list(call(message, timeout=30).value) == ["1"]

        ask(once)


@pytest.mark.parametrize(
    ("kind", "threads"), [("http/1.1", 4), ("http/2", 1), ("grpc", 8)], ids=lambda value: str(value)
)
def test_no_request_fails_at_the_end_of_a_connection(
    tmp_path: Path, kind: str, threads: int
) -> None:
    config = '"door": {"max_connection_age": 0.3}'
    errors: list[Exception] = []
    answers = [0] * threads
    over = threading.Event()

    def wait() -> None:
        until, looks = time.monotonic() + MOST, 1
        while not errors and opened(server) - looks < CONNECTIONS:
            assert time.monotonic() < until, "the connections are not ended"
            looks += 1
            over.wait(0.1)

    def ask(once: Callable[[], None]) -> None:
        def repeat(number: int) -> None:
            while not (over.is_set() or errors):
                try:
                    once()
                except Exception as error:
                    errors.append(error)
                answers[number] += 1

        workers = [threading.Thread(target=repeat, args=(number,)) for number in range(threads)]
        for one in workers:
            one.start()
        try:
            wait()
        finally:
            over.set()
            for one in workers:
                one.join()

    path = script(tmp_path, HOOKS, config)
    with running(path) as server:
        if kind == "grpc":
            over_grpc(server, ask)
        else:
            over_http(server, kind == "http/2", ask)
    assert not errors, errors
    assert min(answers) > CONNECTIONS
