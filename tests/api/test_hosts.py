"""Which values of Host and Origin are accepted."""

from __future__ import annotations

import logging

import pytest

from penstock.api.errors import refusal
from penstock.api.hosts import Hosts
from penstock.api.http import Http, HttpCall
from penstock.api.router import Router
from penstock.protocols.heads import Headers, RequestHead
from tests.api.recorded_exchange import RecordedExchange, grpc_head

HERE = "127.0.0.1"
ALLOWED = ("models.example", "*.below.example", "10.0.0.7", "fd00::7")


def head(host: str, **fields: str) -> RequestHead:
    headers: Headers = tuple(
        (name.replace("_", "-").encode(), value.encode()) for name, value in fields.items()
    )
    return RequestHead(
        "POST", b"/run", headers, version="1.1", authority=host.encode(), content_length=0
    )


def hosts(*allowed: str, public: bool = False) -> Hosts:
    return Hosts(allowed, local=("Box.lan", "box"), public=public)


@pytest.mark.parametrize(
    "host",
    [
        *("localhost", "LocalHost:80", "localhost.:80", "a.localhost", ""),
        *("127.0.0.1", "127.8.9.1:80", "[::1]", "[::1]:80", "[::ffff:127.0.0.1]:80"),
        *("0.0.0.0:80", "[::]:80", "box", "BOX.LAN:8080"),
        *("models.example", "MODELS.example:443", "a.below.example", "10.0.0.7:1", "[fd00::7]:1"),
    ],
)
def test_names_of_this_machine_and_allowed_names_are_accepted(host: str) -> None:
    checks = hosts(*ALLOWED)
    for _ in range(2):  # first examined, then remembered
        assert checks.why_refused(head(host), HERE) is None
    assert head(host).authority in checks.seen


@pytest.mark.parametrize(
    "host",
    [
        *("evil.example", "evil.example:80", "localhost.evil.example", "127.0.0.1.evil.example"),
        *("evil-localhost", "a.models.example", "below.example", "xbelow.example", "10.0.0.8"),
        *("[::2]", "[fd00::8]:1", "[::ffff:10.0.0.8]", "2130706433", "127.1"),
    ],
)
def test_other_hosts_are_refused_with_the_key_s_name(host: str) -> None:
    checks = hosts(*ALLOWED)
    for _ in range(2):
        why = checks.why_refused(head(host), HERE)
        assert why is not None
        assert repr(host) in why
        assert "allowed_hosts" in why


@pytest.mark.parametrize("checks", [hosts("*"), hosts(public=True)])
def test_every_host_is_accepted_if_so_configured_or_if_other_machines_are_served(
    checks: Hosts,
) -> None:
    assert checks.why_refused(head("evil.example"), HERE) is None
    assert checks.why_refused(head("a.example", origin="http://b.example"), HERE) is not None


@pytest.mark.parametrize(
    "host", ["models.example", "a.below.example:8080", "10.1.2.3:8080", "[fd00::8]", "box", ""]
)
def test_a_service_for_other_machines_accepts_its_names_and_addresses(host: str) -> None:
    assert hosts(*ALLOWED, public=True).why_refused(head(host), HERE) is None


@pytest.mark.parametrize("host", ["evil.example", "below.example", "10.0.0.8.evil.example"])
def test_a_service_for_other_machines_refuses_names_that_are_not_its_own(host: str) -> None:
    why = hosts(*ALLOWED, public=True).why_refused(head(host), HERE)
    assert why is not None
    assert "by its address, or allowed_hosts" in why


def test_a_host_on_a_unix_socket_is_accepted_there_only() -> None:
    checks = hosts()
    assert checks.why_refused(head("any.example"), "") is None
    assert checks.why_refused(head("any.example"), HERE) is not None


@pytest.mark.parametrize(
    ("host", "origin"),
    [
        ("localhost:8080", "http://localhost:8080"),
        ("LOCALHOST:8080", "http://localhost:8080"),
        ("localhost", "http://localhost"),
        ("localhost:80", "http://localhost"),
        ("localhost:443", "https://localhost"),
        ("[::1]:8080", "http://[::1]:8080"),
        ("models.example", "https://models.example"),  # TLS ends in a proxy
        ("localhost:8080", "https://models.example"),  # and the proxy changes Host
        ("localhost:8080", "https://a.below.example:8443"),
    ],
)
def test_pages_of_the_service_may_call_it(host: str, origin: str) -> None:
    assert hosts(*ALLOWED).why_refused(head(host, origin=origin), HERE) is None


@pytest.mark.parametrize(
    ("host", "origin"),
    [
        ("localhost:8080", "http://evil.example"),
        ("localhost:8080", "http://localhost:3000"),
        ("localhost:8080", "http://localhost"),
        ("localhost:443", "http://localhost"),
        ("localhost:8080", "http://127.0.0.1:8080"),
        ("localhost:8080", "null"),
        ("", "null"),
        ("", "http://"),
        ("localhost", ""),
        ("localhost", "localhost"),
        ("localhost", "chrome-extension://localhost"),
        ("localhost", "http://evil.example@localhost"),
        ("localhost", "http://localhost/evil.example"),
    ],
)
def test_other_websites_may_not(host: str, origin: str) -> None:
    why = hosts(*ALLOWED).why_refused(head(host, origin=origin), HERE)
    assert why is not None
    assert "allowed_hosts" in why


def test_a_proxy_that_changes_host_names_the_one_that_its_client_requested() -> None:
    checks = hosts()
    passed_on = {"origin": "https://a.example", "x_forwarded_host": "a.example, b.example"}
    assert checks.why_refused(head("localhost:80", **passed_on), HERE) is None
    assert checks.why_refused(head("a.example", **passed_on), HERE) is not None


def test_few_hosts_are_remembered() -> None:
    checks = hosts()
    for port in range(1, 3000):
        checks.why_refused(head(f"localhost:{port}"), HERE)
    assert len(checks.seen) <= 256


def test_the_first_refusal_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    checks = hosts()
    for name in ("a.example", "b.example"):
        checks.why_refused(head(name), HERE)
    [record] = caplog.records
    assert "a.example" in record.getMessage()


def test_the_router_refuses_http_requests_in_the_format_of_their_route() -> None:
    def reply(call: HttpCall, _body: bytes) -> None:
        call.reply(200, (), b"run")

    route = Http("POST", "/run", reply, refusal=refusal)
    router = Router([route], max_message_bytes=1, hosts=hosts())
    exchange = RecordedExchange(head("evil.example"))
    assert router.begin(exchange) is None
    [(status, _, body, _)] = exchange.replies
    assert status == 403
    assert b'"error":"forbidden"' in body
    assert b"allowed_hosts" in body
    call = RecordedExchange(grpc_head("/a.B/C"))
    router.begin(call)
    assert call.fields()[b"grpc-status"] == b"12"  # not checked
