"""nginx and haproxy in front: the service receives exactly the requests that they forward."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection
from typing import NamedTuple

import grpc
import httpx
import pytest

from penstock.protocols.pb import Request, Response
from tests.peers.framings import ambiguous, request
from tests.peers.front import haproxy, nginx, nginx_site, passed
from tests.peers.site import INFERENCE, Site
from tests.services.process import free_port

TIMEOUT = 5.0
ROUTE = "/echo/prediction"
HAPROXY = """
frontend routes
  bind 127.0.0.1:{port}
  default_backend routes
backend routes
  server service {behind}
frontend calls
  bind 127.0.0.1:{calls} proto h2
  use_backend kinds if {{ path_beg /peers.Kinds/ }}
  default_backend calls
backend calls
  server service 127.0.0.1:{rpc} proto h2
backend kinds
  server service 127.0.0.1:{kinds} proto h2
"""


class Front(NamedTuple):
    """A proxy.

    Attributes:
        port: for the routes, HTTP/1.1.
        calls: for gRPC.
        passed: the number of requests it has forwarded and got status 200 for.
    """

    port: int
    calls: int
    passed: Callable[[], int]


@pytest.fixture(scope="module", params=["nginx", "haproxy", "haproxy, HTTP/2 behind"])
def front(
    request: pytest.FixtureRequest, site: Site, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Front]:
    port, calls = free_port(), free_port()
    folder = tmp_path_factory.mktemp("proxy") / "files"
    if request.param == "nginx":
        proxy, config = (
            nginx,
            nginx_site(
                listen=[f"127.0.0.1:{port}", f"127.0.0.1:{calls} http2"],
                http=site.http,
                grpc={"/peers.Kinds/": site.kinds, "/baidu.": site.rpc},
            ),
        )
    else:
        over_http2 = f"127.0.0.1:{site.h2c} proto h2"
        behind = over_http2 if "HTTP/2" in request.param else f"127.0.0.1:{site.http}"
        ports = {"port": port, "calls": calls, "rpc": site.rpc, "kinds": site.kinds}
        proxy, config = haproxy, HAPROXY.format(behind=behind, **ports)
    with proxy(folder, config, port) as log:
        yield Front(port, calls, lambda: passed(log, ROUTE))


def seen_by(site: Site) -> dict[str, int]:
    """How often the service received each nonce that begins with ``count-``."""
    connection = HTTPConnection("127.0.0.1", site.http, timeout=20)
    try:
        connection.request(
            "POST", "/echo/prediction", json.dumps({"key": ["do"], "value": ["seen"]})
        )
        reply = json.loads(connection.getresponse().read())
    finally:
        connection.close()
    seen: dict[str, int] = json.loads(reply["value"][0])
    return seen


def until_equal(passed: Callable[[], int], expected: int) -> int:
    """The proxy's count, which it may log a moment after the answer."""
    deadline = time.monotonic() + TIMEOUT
    while (count := passed()) != expected and time.monotonic() < deadline:
        time.sleep(0.01)
    return count


async def test_proxy_and_service_count_every_request_once(site: Site, front: Front) -> None:
    before = front.passed()
    stamp = f"count-{front.port}"
    async with httpx.AsyncClient(
        base_url=f"http://127.0.0.1:{front.port}", trust_env=False, timeout=20
    ) as client:

        async def send_request(number: int) -> None:
            body = {"key": ["x"], "value": [f"{stamp}-{number}"]}
            answer = await client.post("/echo/prediction", json=body)
            assert answer.json()["value"] == [f"{stamp}-{number}"]

        for start in range(0, 200, 20):
            await asyncio.gather(*(send_request(number) for number in range(start, start + 20)))
    seen = {nonce: count for nonce, count in seen_by(site).items() if nonce.startswith(stamp)}
    assert seen == {f"{stamp}-{number}": 1 for number in range(200)}
    assert until_equal(front.passed, before + 200) == before + 200


def exchange(port: int, data: bytes) -> bytes:
    """The bytes received until the proxy closes, or sends nothing for a second."""
    with socket.create_connection(("127.0.0.1", port), timeout=1) as connection:
        connection.sendall(data)
        found = b""
        try:
            while piece := connection.recv(65536):
                found += piece
        except (TimeoutError, ConnectionResetError):
            pass  # it waits for the rest of a body, or has reset the connection
        return found


def test_proxy_and_service_count_ambiguous_requests_alike(site: Site, front: Front) -> None:
    before, earlier = front.passed(), sum(seen_by(site).values())
    stamp = f"count-{front.port}"
    hidden = request(f"{stamp}-hidden")
    last_request = request(f"{stamp}-goodbye", b"Connection: close")
    framings = ambiguous(hidden)
    with ThreadPoolExecutor(len(framings)) as threads:
        answers = list(
            threads.map(lambda data: exchange(front.port, data + last_request), framings.values())
        )
    assert all(answer.startswith(b"HTTP/1.") for answer in answers if answer)
    # Later clients get their own answers, on the proxy's existing connections to the service.
    for number in range(40):
        nonce = f"{stamp}-victim-{number}"
        answer = exchange(front.port, request(nonce, b"Connection: close"))
        assert answer.startswith(b"HTTP/1.1 200 ")
        assert nonce.encode() in answer
    seen = sum(seen_by(site).values()) - earlier
    assert seen >= 40
    assert until_equal(front.passed, before + seen) == before + seen


@pytest.mark.parametrize(
    "name", ["GET with a body", "a body for an unknown path", "GET with chunks", "HEAD with a body"]
)
def test_a_request_hidden_in_a_body_is_never_run(site: Site, front: Front, name: str) -> None:
    nonce = f"count-{front.port}-{name}"
    exchange(front.port, ambiguous(request(nonce))[name] + request("x", b"Connection: close"))
    assert nonce not in seen_by(site)


def test_proxy_and_service_count_every_grpc_call_once(site: Site, front: Front) -> None:
    stamp = f"count-{front.calls}"
    with grpc.insecure_channel(f"127.0.0.1:{front.calls}") as channel:
        inference = channel.unary_unary(INFERENCE)

        def send_request(number: int) -> list[str]:
            message = Request(name="echo", key=["x"], value=[f"{stamp}-{number}"])
            answer = inference(message.SerializeToString(), timeout=20)
            return list(Response.FromString(answer).value)

        with ThreadPoolExecutor(16) as threads:
            found = list(threads.map(send_request, range(300)))
    assert found == [[f"{stamp}-{number}"] for number in range(300)]
    seen = {nonce: count for nonce, count in seen_by(site).items() if nonce.startswith(stamp)}
    assert seen == {f"{stamp}-{number}": 1 for number in range(300)}


def test_grpc_streams_and_errors_pass_through_proxies(front: Front) -> None:
    with grpc.insecure_channel(f"127.0.0.1:{front.calls}") as channel:
        answers = channel.unary_stream("/peers.Kinds/ServerStream")(b"200 1000", timeout=20)
        assert [int(answer.rstrip(b".")) for answer in answers] == list(range(200))
        pieces = [b"%d" % number for number in range(200)]
        echoed = channel.stream_stream("/peers.Kinds/Bidi")(iter(pieces), timeout=20)
        assert list(echoed) == pieces
        fail = [("fail", "9"), ("fail-text-bin", b"as asked")]
        with pytest.raises(grpc.RpcError) as caught:
            channel.unary_unary("/peers.Kinds/Unary")(b"x", metadata=fail, timeout=20)
        assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION
