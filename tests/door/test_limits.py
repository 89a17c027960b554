"""The door's statistics count clients that exceed a limit, by limit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import pytest

from penstock.api.health import Health, HealthApplication
from penstock.api.paddle import PaddleApplication
from penstock.api.router import Router
from penstock.protocols.http1 import Http1Limits
from penstock.protocols.http2 import Http2Limits
from tests.kit import frames as f
from tests.kit.held_protocol import HeldProtocol
from tests.kit.http1 import connected, request
from tests.kit.http2 import METHOD, call, linked
from tests.services.door import Site

Opened = Callable[..., Site]

MOST = 1000
ROUTE = "/echo/prediction"
CALL = call(METHOD.encode())
CALM = 11
BEGUN = f.headers(1, b"", whole=False)


def frontend() -> Router:
    protocol: Any = HeldProtocol()
    routes = [*PaddleApplication(protocol).routes(), *HealthApplication(Health(), []).routes()]
    return Router(routes, max_message_bytes=MOST)


@pytest.fixture
def served(opened: Opened) -> Opened:
    """Doors with the pipeline's applications."""

    def open_one(budget: int = 1 << 20, **limits: Any) -> Site:
        return opened(site={"application": frontend(), "budget": budget}, **limits)

    return open_one


def status_over_http1(site: Site, data: bytes) -> int:
    with connected(site.port) as connection:
        connection.send(data)
        return connection.reply().status


def code_of_a_call(site: Site, message: bytes) -> int | None:
    with linked(site.port) as client:
        stream = client.open(CALL)
        client.upload(stream, f.message(message))
        return client.answer(stream).status


def test_heads_over_a_limit_are_counted(opened: Opened) -> None:
    small = {"max_header_bytes": 500, "max_header_field": 500}
    site = opened(http1=Http1Limits(**small, max_request_line=500), http2=Http2Limits(**small))
    assert status_over_http1(site, request(b"", b"X: " + b"v" * 500, target=b"/echo")) == 431
    assert status_over_http1(site, request(b"", target=b"/" + b"e" * 500)) == 414
    with linked(site.port) as client:
        refused = client.open("/echo", (b"x", b"v" * 500), end=True)
        assert client.answer(refused).http_status == 431
        assert client.ask("/echo", b"good").body == b"good"
    assert site.statistics().heads_too_large == 3


def test_bodies_over_the_limit_are_counted(served: Opened) -> None:
    site = served()
    assert status_over_http1(site, request(b" " * (MOST + 1), target=ROUTE.encode())) == 413
    assert code_of_a_call(site, bytes(MOST + 1)) == 8
    assert site.statistics().bodies_too_large == 2
    assert site.statistics().bodies_refused == 0


def test_bodies_in_too_many_chunks_are_counted(opened: Opened) -> None:
    site = opened(http1=Http1Limits(max_chunks=3))
    head = b"POST /echo HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n"
    for chunks, status, counted in ((3, 200, {}), (4, 400, {"chunks": 1})):
        assert status_over_http1(site, head + b"1\r\na\r\n" * chunks + b"0\r\n\r\n") == status
        assert site.statistics().abuses == counted
    assert site.statistics().malformed == 1


def test_bodies_beyond_the_budget_are_counted(served: Opened) -> None:
    site = served(budget=MOST // 2)
    assert status_over_http1(site, request(b" " * MOST, target=ROUTE.encode())) == 429
    assert code_of_a_call(site, bytes(MOST)) == 8
    assert site.statistics().bodies_refused == 2
    assert site.statistics().bodies_too_large == 0


def test_requests_beyond_max_calls_are_counted(served: Opened) -> None:
    site = served(max_calls=2)
    with linked(site.port) as client:
        for _ in range(2):
            client.open(CALL)
        site.until(lambda seen: seen.calls == 2)
        assert status_over_http1(site, request(b"{}", target=ROUTE.encode())) == 503
        assert code_of_a_call(site, b"") == 8
        assert site.statistics().calls_refused == 2


def test_streams_beyond_max_streams_are_counted(opened: Opened) -> None:
    site = opened(http2=Http2Limits(max_streams=2))
    with linked(site.port) as client:
        # Sent before the server's settings are read.
        last = [client.open("/hold", end=True) for _ in range(3)][-1]
        assert client.answer(last).reset == 7
        seen = site.statistics()
        assert (seen.streams_beyond, seen.resets) == (1, 0)


@pytest.mark.parametrize(
    ("flood", "abuse"),
    [
        (f.ping() * 9, "ping"),
        (f.settings() * 9, "settings"),
        (f.headers(1, b"", whole=False) + f.continuation(1, whole=False) * 9, "continuation"),
        (
            f.headers(1, b"", whole=False) + f.continuation(1, bytes(16_384), whole=False) * 4,
            "header",
        ),
    ],
)
def test_abuses_are_counted_by_kind(opened: Opened, flood: bytes, abuse: str) -> None:
    limits = Http2Limits(pings=4, settings=4, continuations=4, max_header_bytes=4096)
    site = opened(http2=limits)
    with linked(site.port) as client:
        client.socket.sendall(flood)
        client.until_closed()
        assert client.goaways[-1][1] == CALM
    seen = site.statistics()
    assert (seen.calmed, asdict(seen)["abuses"]) == (1, {abuse: 1})
