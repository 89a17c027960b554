"""Which websites' pages may call a service, and what their browsers are told."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.api.cors import Cors
from penstock.api.errors import failed, refusal
from penstock.api.grpc import Grpc
from penstock.api.hosts import Hosts
from penstock.api.http import Http, HttpCall
from penstock.api.router import Router
from penstock.door.exchange import Exchange
from penstock.errors import UnknownService
from penstock.protocols.heads import Headers, RequestHead
from tests.api.recorded_exchange import RecordedExchange, grpc_head

APP = "https://app.example"
ORIGINS = (APP, "https://*.below.example", "http://localhost:*", "tauri://localhost", "null")
PREFLIGHT = {"access_control_request_method": "POST"}


def cors(*origins: str, **options: Any) -> Cors:
    defaults: dict[str, Any] = {
        "methods": (), "headers": ("*",), "exposed_headers": ("Retry-After",),
        "credentials": False, "max_age": 600,
    }  # fmt: skip
    return Cors(origins or ORIGINS, **{**defaults, **options})


def head(method: str = "POST", path: str = "/run", **fields: str) -> RequestHead:
    headers: Headers = tuple(
        (name.replace("_", "-").encode(), value.encode()) for name, value in fields.items()
    )
    return RequestHead(
        method, path.encode(), headers, version="1.1", authority=b"localhost", content_length=0
    )


@pytest.mark.parametrize(
    "origin",
    [
        *(APP, "https://a.below.example", "https://a.b.below.example"),
        *("http://localhost", "http://localhost:3000", "tauri://localhost", "null"),
    ],
)
def test_allowed_origins(origin: str) -> None:
    allowed = cors()
    for _ in range(2):  # first examined, then remembered
        assert allowed.allows(origin.encode())
    assert (b"access-control-allow-origin", origin.encode()) in allowed.fields(origin.encode())


@pytest.mark.parametrize(
    "origin",
    [
        *("http://app.example", "https://app.example:8443", "https://app.example.evil.example"),
        *("https://xapp.example", "https://a.app.example", "https://app.example/", ""),
        *("https://below.example", "https://xbelow.example", "https://a.below.example:1"),
        *("https://a.below.example.evil.example", "https://a/.below.example", "http://localhost:"),
        *("http://localhost:3000.evil.example", "https://localhost:1", "http://localhost:123456"),
        *("https://.below.example", "http://localhost:*", "file://", "https://appXexample"),
    ],
)
def test_other_origins(origin: str) -> None:
    allowed = cors()
    for _ in range(2):
        assert not allowed.allows(origin.encode())
    assert allowed.fields(origin.encode()) == ((b"vary", b"origin"),)


def test_caches_distinguish_origins_unless_all_are_allowed() -> None:
    assert cors().fields(None) == ((b"vary", b"origin"),)
    assert not cors().allows(None)
    every = cors("*", exposed_headers=())
    assert every.fields(None) == every.fields(b"https://any.example")
    assert every.fields(None) == ((b"access-control-allow-origin", b"*"),)
    assert every.allows(b"https://any.example")
    assert not every.allows(None)


def test_cookies_need_a_field_of_their_own() -> None:
    assert (b"access-control-allow-credentials", b"true") in cors(APP, credentials=True).fields(
        APP.encode()
    )
    assert b"access-control-allow-credentials" not in dict(cors(APP).fields(APP.encode()))


def test_few_origins_are_remembered() -> None:
    allowed = cors()
    for port in range(1, 3000):
        allowed.allows(b"http://localhost:%d" % port)
    assert len(allowed._seen) <= 256


def test_a_preflight_is_told_the_methods_and_the_fields() -> None:
    asked = head("OPTIONS", access_control_request_headers="authorization,x-a", **PREFLIGHT)
    fields = dict(cors().preflight(asked, ["GET", "POST"]))
    assert fields[b"access-control-allow-methods"] == b"GET, POST"
    assert fields[b"access-control-allow-headers"] == b"authorization,x-a"
    assert fields[b"access-control-max-age"] == b"600"
    configured = cors(methods=["PUT"], headers=["X-B", "X-C"], max_age=0)
    fields = dict(configured.preflight(asked, ["GET"]))
    assert fields[b"access-control-allow-methods"] == b"PUT"
    assert fields[b"access-control-allow-headers"] == b"X-B, X-C"
    assert fields[b"access-control-max-age"] == b"0"


@pytest.mark.parametrize("asked", ["", "a" * 2000, "x: y", 'a"b'])
def test_a_strange_list_of_fields_is_not_repeated(asked: str) -> None:
    sent = head("OPTIONS", access_control_request_headers=asked, **PREFLIGHT)
    assert b"access-control-allow-headers" not in dict(cors().preflight(sent, ["POST"]))


class Closed:
    """Refuses all callers, and counts them."""

    def __init__(self) -> None:
        self.asked = 0

    def routes(self) -> list[Http]:
        return []

    def admit(self, route: Any, exchange: Exchange) -> None:
        self.asked += 1
        raise UnknownService("not you")


def reply(call: HttpCall, _body: bytes) -> None:
    call.reply(200, ((b"content-type", b"text/plain"),), b"run")


def router(
    *,
    admission: Any = None,
    hosts: Hosts | None = None,
    allowed: Cors | None = None,
    authenticate: Any = None,
) -> Router:
    routes: list[Any] = [
        Http("POST", "/run", reply, failed=failed, refusal=refusal),
        Http("GET", "/run", reply),
        Http("POST", "/{name}/{method}", reply),
        Http("GET", "/status", reply, admin=True),
        Grpc("/a.B/C", lambda call, _: call.reply(b"")),
    ]
    return Router(
        routes,
        max_message_bytes=1 << 20,
        hosts=hosts or Hosts(),
        admission=admission,
        cors=cors() if allowed is None else allowed,
        authenticate=authenticate,
    )


def answer(site: Router, sent: RequestHead) -> tuple[int, dict[bytes, bytes], bytes]:
    exchange = RecordedExchange(sent, whole=b"")
    receiver = site.begin(exchange)
    if receiver is not None:
        receiver.data(exchange, b"", True)
    [(status, _, body, _)] = exchange.replies
    return status, exchange.fields(), body


@pytest.mark.parametrize("path", ["/run", "/a/b", "/no/such/path/at/all", "/x/%f"])
def test_a_preflight_is_answered_before_callers_are_admitted(path: str) -> None:
    admission = Closed()
    site = router(admission=admission)
    status, fields, body = answer(site, head("OPTIONS", path, origin=APP, **PREFLIGHT))
    assert (status, body, admission.asked) == (204, b"", 0)
    assert fields[b"access-control-allow-origin"] == APP.encode()
    assert b"POST" in fields[b"access-control-allow-methods"]


def test_a_preflight_does_not_tell_unknown_callers_which_routes_exist() -> None:
    site = router(admission=Closed(), authenticate=Closed().admit)
    answers = [
        answer(site, head("OPTIONS", path, origin=APP, **PREFLIGHT))
        for path in ("/run", "/a/b", "/no/such/path/at/all")
    ]
    assert answers[0][0] == 204
    assert answers[1:] == answers[:1] * 2


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        *(("POST", "/run", 404), ("PUT", "/run", 405), ("GET", "/none", 404)),
        *(("BREW", "/run", 405), ("POST", "/x/%f", 400)),
    ],
)
def test_the_page_may_read_errors_too(method: str, path: str, status: int) -> None:
    site = router(admission=Closed())  # which answers 404
    found, fields, _ = answer(site, head(method, path, origin=APP))
    assert (found, fields[b"access-control-allow-origin"]) == (status, APP.encode())
    assert fields[b"access-control-expose-headers"] == b"Retry-After"


def test_the_page_may_read_that_the_door_refuses() -> None:
    site = router()
    exchange = RecordedExchange(head(origin=APP), whole=b"")
    exchange.over_limit = True
    site.begin(exchange)
    assert exchange.fields()[b"access-control-allow-origin"] == APP.encode()
    for status in (408, 431, 500, 503):
        fields = dict(site.failure(head(origin=APP), status, "refused").headers)
        assert fields[b"access-control-allow-origin"] == APP.encode()
        assert b"access-control-allow-origin" not in dict(
            site.failure(head(origin="https://evil.example"), status, "refused").headers
        )
    assert site.failure(None, 400, "no head").status == 400
    assert b"vary" not in dict(site.failure(grpc_head("/a.B/C"), 503, "stop").headers)


def test_a_name_of_another_website_is_refused_even_if_its_page_may_call() -> None:
    sent = head(origin=APP)
    sent.authority = b"evil.example"
    status, fields, _ = answer(router(), sent)
    assert (status, fields[b"access-control-allow-origin"]) == (403, APP.encode())


def test_other_websites_are_refused_as_without_cors() -> None:
    for method in ("POST", "OPTIONS"):
        status, fields, body = answer(
            router(), head(method, origin="https://evil.example", **PREFLIGHT)
        )
        assert status == 403
        assert b"cors.origins" in body
        assert b"access-control-allow-origin" not in fields
        assert fields[b"vary"] == b"origin"


def test_a_caller_outside_of_browsers_notices_nothing_but_vary() -> None:
    status, fields, body = answer(router(), head())
    assert (status, body) == (200, b"run")
    assert fields[b"vary"] == b"origin"
    assert b"access-control-allow-origin" not in fields


@pytest.mark.parametrize("method", ["GET", "OPTIONS", "POST"])
def test_pages_for_operators_are_closed_to_other_websites(method: str) -> None:
    site = router(allowed=cors("*"))
    sent = head(method, "/status", origin=APP, **PREFLIGHT)
    status, fields, _ = answer(site, sent)
    assert status == 403
    assert b"access-control-allow-origin" not in fields
    assert b"access-control-allow-origin" not in dict(site.failure(sent, 503, "stop").headers)
    own = head("GET", "/status", origin="http://localhost")
    assert answer(site, own)[0] == 200


def test_a_route_with_options_of_its_own_gets_all_but_preflights() -> None:
    def own(call: HttpCall, _body: bytes) -> None:
        call.reply(200, (), b"own")

    site = Router(
        [Http("OPTIONS", "/run", own), Http("POST", "/run", reply)],
        max_message_bytes=1,
        cors=cors(),
    )
    assert answer(site, head("OPTIONS", origin=APP))[2] == b"own"
    assert answer(site, head("OPTIONS", origin=APP, **PREFLIGHT))[0] == 204


def test_a_preflight_of_another_website_under_another_server_is_a_plain_options() -> None:
    # There Origin is not checked.
    site = Router([Http("POST", "/run", reply)], max_message_bytes=1, cors=cors())
    sent = head("OPTIONS", origin="https://evil.example", **PREFLIGHT)
    status, fields, _ = answer(site, sent)
    assert (status, fields[b"allow"]) == (204, b"OPTIONS, POST")
    assert b"access-control-allow-origin" not in fields
