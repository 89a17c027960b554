"""The handler of each request, and the errors of requests without one."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import grpc
import httpx
import pytest

from penstock.api.errors import failed, refusal
from penstock.api.grpc import Grpc, GrpcCall
from penstock.api.http import Http, HttpCall
from penstock.api.router import Router
from penstock.door.budget import ByteBudget
from penstock.door.door import Door, DoorLimits
from penstock.door.exchange import STOPPING
from penstock.door.listeners import bind, port_of
from penstock.errors import StartupError
from tests.api.recorded_exchange import RecordedExchange, grpc_head, post

MOST = 1 << 20


def replying(text: str) -> Any:
    def handler(call: HttpCall, body: bytes) -> None:
        call.reply(200, (), b" ".join([text.encode(), *map(str.encode, call.values), body]))

    return handler


def request(router: Router, method: str, path: str, body: bytes = b"") -> RecordedExchange:
    exchange = RecordedExchange(post(path, method=method, length=len(body)))
    receiver = router.begin(exchange)
    if receiver is not None:
        receiver.data(exchange, body, True)
    return exchange


ROUTER = Router(
    [
        Http("POST", "/{name}/{method}", replying("any")),
        Http("POST", "/v2/{what}", replying("v2")),
        Http("GET", "/v2/health", replying("health")),
        Http("GET", "/v2/{what}", replying("shown")),
        Http("POST", "/v2/models/{model}/versions/{version}/infer", replying("infer")),
        Http("POST", "/{a}/models", replying("models")),
        Http("POST", "/größe", replying("size")),
        Http("POST", "/a b/c%20d", replying("blanks")),
        Grpc("/a.B/C", lambda call, message: call.reply(message)),
    ],
    max_message_bytes=MOST,
)


@pytest.mark.parametrize(
    ("method", "path", "answer"),
    [
        ("POST", "/x/y", b"any x y !"),
        ("POST", "/v2/y", b"v2 y !"),
        ("GET", "/v2/y", b"shown y "),
        ("HEAD", "/v2/y", b"shown y "),
        ("GET", "/v2/health", b"health "),
        ("POST", "/v2/models/m%20n/versions/3/infer", b"infer m n 3 !"),
        ("POST", "/v2/models", b"v2 models !"),
        ("POST", "/x/models", b"models x !"),
        ("POST", "/x/m%6Fdels", b"models x !"),
        ("GET", "/v%32/he%61lth", b"health "),
        ("POST", "/%76%32/y", b"v2 y !"),
        ("POST", "/gr%C3%B6%C3%9Fe", b"size !"),
        ("POST", "/%67r%c3%b6%C3%9fe", b"size !"),
        ("POST", "/a%20b/c%20d", b"blanks !"),
    ],
)
def test_the_most_literal_route_handles_a_request(method: str, path: str, answer: bytes) -> None:
    for _ in range(2):  # first searched, then cached
        exchange = request(ROUTER, method, path, b"!" if method == "POST" else b"")
        assert [(reply[0], reply[2]) for reply in exchange.replies] == [(200, answer)]


@pytest.mark.parametrize(
    ("method", "path", "status", "allow"),
    [
        ("GET", "/", 404, None),
        ("POST", "/x", 404, None),
        ("POST", "/x//", 404, None),
        ("POST", "/x/%2e%2e", 404, None),
        ("POST", "/v2%2Fhealth", 404, None),
        ("POST", "/gr%F6%DFe", 404, None),
        ("GET", "/gr%C3%B6%C3%9Fe", 405, b"POST"),
        ("GET", "/a.B/%43", 405, b"POST"),
        ("POST", "/x/%f", 400, None),
        ("BREW", "/x/y", 405, b"POST"),
        ("BREW", "/v2/health", 405, b"GET, HEAD"),
        ("BREW", "/a.B/C", 405, b"POST"),
        ("BREW", "/x", 404, None),
        ("GET", "/x/y", 405, b"POST"),
        ("PUT", "/v2/y", 405, b"GET, HEAD, POST"),
        ("POST", "/v2/health", 405, b"GET, HEAD"),
        ("GET", "/a.B/C", 405, b"POST"),
        ("POST", "/a.B/C", 415, None),
        ("OPTIONS", "/x/y", 204, b"OPTIONS, POST"),
        ("OPTIONS", "/v2/y", 204, b"GET, HEAD, OPTIONS, POST"),
        ("OPTIONS", "/a.B/C", 204, b"OPTIONS, POST"),
        ("OPTIONS", "/none", 404, None),
    ],
)
def test_the_answer_to_a_request_without_a_route(
    method: str, path: str, status: int, allow: bytes | None
) -> None:
    for _ in range(2):
        exchange = request(ROUTER, method, path)
        [(answer_status, headers, *_)] = exchange.replies
        assert (answer_status, dict(headers).get(b"allow")) == (status, allow)


def test_a_grpc_call_matches_no_http_route() -> None:
    exchange = RecordedExchange(grpc_head("/x/y"))
    assert ROUTER.begin(exchange) is None
    assert exchange.fields()[b"grpc-status"] == b"12"


@pytest.mark.parametrize(
    "routes",
    [
        [Http("POST", "/a/b", replying("")), Http("POST", "/a/b", replying(""))],
        [Http("POST", "/a/{b}", replying("")), Http("POST", "/a/{c}", replying(""))],
        [Grpc("/a.B/C"), Grpc("/a.B/C")],
        [Http("POST", "/a b", replying("")), Http("POST", "/a%20b", replying(""))],
    ],
    ids=["static", "patterns", "gRPC", "encoded"],
)
def test_two_identical_routes_are_an_error_at_start(routes: list[Any]) -> None:
    with pytest.raises(StartupError, match="two routes"):
        Router(routes, max_message_bytes=MOST)


def test_the_cache_of_paths_is_bounded() -> None:
    for number in range(3000):
        request(ROUTER, "POST", f"/x/{number}")
    assert len(ROUTER._targets) < 1100


@pytest.mark.parametrize(
    ("path", "status", "text", "error"),
    [
        ("/own", 503, STOPPING, "closed"),
        ("/own", 400, "a bad chunk", "undecodable"),
        ("/any/prediction", 503, STOPPING, STOPPING),
        ("/no/such/route", 503, STOPPING, STOPPING),
    ],
)
def test_the_door_answers_in_the_format_of_the_route(
    path: str, status: int, text: str, error: str
) -> None:
    own = Http("POST", "/own", replying("own"), refusal=refusal)
    router = Router([own, Http("POST", "/{a}/{b}", replying("any"))], max_message_bytes=MOST)
    request(router, "POST", path)
    reply = router.failure(post(path), status, text)
    body = json.loads(reply.body)
    assert (reply.status, reply.close, body["error"]) == (status, True, error)
    assert body["message"] == text
    assert ("code" in body) is (path != "/own")


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (400, "undecodable"),
        (408, "deadline"),
        (429, "too_many_requests"),
        (431, "too_large"),
        (505, "internal"),
    ],
)
def test_requests_without_a_complete_head_get_the_service_s_format(status: int, error: str) -> None:
    own = Router([], max_message_bytes=MOST, refusal=refusal)
    assert json.loads(own.failure(None, status, "why").body) == {"error": error, "message": "why"}
    assert json.loads(own.failure(post("/no/route"), status, "why").body)["error"] == error
    gateway = Router([], max_message_bytes=MOST).failure(None, status, "why")
    assert json.loads(gateway.body).keys() == {"error", "code", "message", "details"}


# --- A custom protocol: lines, echoed over an HTTP route and a streaming gRPC method. ---


class Lines:
    """Echoes each line in capitals once it is complete."""

    def routes(self) -> Iterator[Http | Grpc]:
        yield Http("POST", "/lines/{prefix}", stream=self.over_http, summary="Echo lines.")
        yield Grpc("/lines.Lines/Echo", stream=self.over_grpc)

    async def over_http(self, call: HttpCall) -> None:
        call.start(200, ((b"content-type", b"text/plain"),))
        rest = b""
        while (piece := await call.read()) is not None:
            *lines, rest = (rest + piece).split(b"\n")
            for line in lines:
                await call.write(b"%b: %b\n" % (call.values[0].encode(), line.upper()))

    async def over_grpc(self, call: GrpcCall) -> None:
        while (line := await call.read()) is not None:
            await call.write(line.upper())


@pytest.fixture
async def port() -> AsyncIterator[int]:
    router = Router(Lines().routes(), max_message_bytes=MOST)
    door = Door(router, DoorLimits(), ByteBudget(MOST), router.failure)
    listener = bind("127.0.0.1", 0, "port")
    await door.listen(listener)
    yield port_of(listener)
    await door.close(1.0)


async def pieces() -> AsyncIterator[bytes]:
    for piece in (b"one\ntw", b"o\n", b"three\n"):
        yield piece
        await asyncio.sleep(0.01)


@pytest.mark.parametrize("http2", [False, True], ids=["HTTP/1.1", "HTTP/2"])
async def test_a_custom_protocol_of_lines_over_http(port: int, http2: bool) -> None:
    async with httpx.AsyncClient(http1=not http2, http2=http2) as client:
        response = await client.post(f"http://127.0.0.1:{port}/lines/a%20b", content=pieces())
    assert (response.status_code, response.text) == (200, "a b: ONE\na b: TWO\na b: THREE\n")


async def test_a_custom_protocol_of_lines_over_grpc(port: int) -> None:
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        call = channel.stream_stream("/lines.Lines/Echo")(pieces())
        assert [message async for message in call] == [b"ONE\nTW", b"O\n", b"THREE\n"]


async def test_two_writers_of_one_stream_both_continue(port: int) -> None:
    exchange = RecordedExchange(grpc_head("/a.B/C"))
    exchange.waiting = 1 << 20
    call = GrpcCall(exchange, ROUTER._shared, Grpc("/a.B/C"))
    writers = [asyncio.ensure_future(call.write(b"x")) for _ in range(2)]
    await asyncio.sleep(0)
    exchange.waiting = 0
    assert exchange.on_writable is not None
    exchange.on_writable()
    async with asyncio.timeout(5):
        await asyncio.gather(*writers)


@pytest.mark.parametrize("method", ["GET", "QUERY"])
def test_a_route_with_its_own_errors_uses_them_for_other_methods(method: str) -> None:
    route = Http("POST", "/own", replying("own"), failed=failed, refusal=refusal)
    exchange = request(Router([route], max_message_bytes=MOST), method, "/own")
    ((status, headers, body, close),) = exchange.replies
    assert (status, close, dict(headers)[b"allow"]) == (405, False, b"POST")
    assert b'"error":"method_not_allowed"' in body
