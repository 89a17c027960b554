"""The service for other machines of docs/deployment.md: TLS, keys, certificates, the admin port."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

pytest.importorskip("cryptography", reason="makes certificates")

from penstock.protocols import standard_messages as messages
from penstock.security.keys import line_of, new_key
from tests.documents import ROOT, blocks_of
from tests.kit import http1
from tests.kit.authority import Authority
from tests.kit.frames import message
from tests.kit.http2 import call, client_of
from tests.service.scripts import PENSTOCK, until
from tests.services.process import ServiceProcess, free_port, running

pytestmark = pytest.mark.real

(APP,) = (
    block.text for block in blocks_of(ROOT / "docs/deployment.md") if block.name == "public.py"
)
ANN, OPERATOR = new_key(), new_key()
PROBES = ["/livez", "/readyz", "/v2/health/live", "/v2/health/ready"]
PAGES = ["/metrics", "/status", "/trace?seconds=0.1", "/ui/state", "/health/deep"]
OUTSIDE = {"x-forwarded-for": "10.1.2.3"}


@dataclass
class Site:
    server: ServiceProcess
    admin: int
    authority: Authority
    clients: Authority
    folder: Path

    def context(self, name: str | None = None) -> ssl.SSLContext:
        """TLS of a client, with the certificate of a name."""
        context = ssl.create_default_context(cafile=str(self.authority.file))
        if name is not None:
            context.load_cert_chain(self.clients.issue(name))
        return context

    def ask(self, who: str | None, port: int, path: str) -> int:
        """The status of a request; ``who``: a key, or a name in a certificate."""
        key = {"x-api-key": who} if who and who.startswith("psk_") else {}
        context = self.context(None if key else who)
        url = f"https://localhost:{port}{path}"
        with httpx.Client(verify=context, headers={**OUTSIDE, **key}, trust_env=False) as client:
            if path == "/double":
                return client.post(url, json={"x": 2}).status_code
            return client.get(url).status_code

    def ask_grpc(self, who: str | None, method: str) -> str:
        """The status of a call of the Open Inference Protocol."""
        key = [(b"x-api-key", who.encode())] if who and who.startswith("psk_") else []
        context = self.context(None if key else who)
        with (
            http1.connect(self.server.rpc_port) as plain,
            context.wrap_socket(plain, server_hostname="localhost") as connection,
        ):
            link = client_of(connection)
            stream = link.open(call(f"/{messages.INFERENCE}/{method}".encode(), *key))
            link.upload(stream, message(b""))
            return link.answer(stream).fields[b"grpc-status"].decode()


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("public")
    authority, clients = Authority(folder, "authority"), Authority(folder, "clients")
    lines = [line_of("ann", ANN, ()), line_of("operator", OPERATOR, ["admin"])]
    (folder / "keys.txt").write_text("".join(f"{line}\n" for line in lines))
    pem = authority.issue("localhost").read_text()
    (folder / "tls.crt").write_text(pem)
    (folder / "tls.key").write_text(pem)
    (folder / "clients.crt").write_text(clients.file.read_text())
    script = folder / "public.py"
    script.write_text(
        APP.replace("/etc/penstock/tls", "/etc/penstock").replace("/etc/penstock", str(folder))
    )
    admin = free_port()
    given = {"PENSTOCK_ADMIN_PORT": str(admin)}
    with running(script, command=PENSTOCK, environment=given, ready=False) as process:
        found = Site(process, admin, authority, clients, folder)
        until(lambda: is_ready(found), "the service is ready")
        yield found


def is_ready(site: Site) -> bool:
    try:
        return site.ask(None, site.server.http_port, "/readyz") == 200
    except httpx.ConnectError:
        return False


USERS = [ANN, "gateway.example.org"]
OPERATORS = [OPERATOR, "prometheus.example.org"]


@pytest.mark.parametrize(
    ("who", "route", "page", "grpc"),
    [
        (None, 401, 401, "16"),
        *((user, 200, 403, "0") for user in USERS),
        *((operator, 200, 200, "0") for operator in OPERATORS),
    ],
    ids=["nobody", "ann", "gateway", "operator", "prometheus"],
)
def test_the_documented_table_holds(
    site: Site, who: str | None, route: int, page: int, grpc: str
) -> None:
    public = site.server.http_port
    assert [site.ask(who, port, path) for port in (public, site.admin) for path in PROBES] == (
        [200] * 8
    )
    assert [site.ask(who, public, path) for path in ("/double", "/v2")] == [route] * 2
    assert [site.ask(who, site.admin, path) for path in PAGES] == [page] * len(PAGES)
    moved = 404 if page == 200 else page
    assert [site.ask(who, public, path) for path in PAGES] == [moved] * len(PAGES)
    assert site.ask(who, site.admin, "/double") == (401 if who is None else 404)
    assert site.ask_grpc(who, "ServerMetadata") == grpc
    assert site.ask_grpc(who, "ServerReady") == "0"


def test_plain_text_is_not_answered(site: Site) -> None:
    for port in (site.server.http_port, site.server.rpc_port, site.admin):
        with socket.create_connection(("127.0.0.1", port), timeout=20) as link:
            link.sendall(http1.request(target=b"/livez", method=b"GET"))
            received = b""
            with suppress(ConnectionError):
                received = link.recv(100)
            assert received == b""


def test_a_new_authority_of_clients_holds_for_new_connections(site: Site) -> None:
    former = site.clients
    gateway, public = "gateway.example.org", site.server.http_port
    assert site.ask(gateway, public, "/double") == 200
    new = Authority(site.folder, "new-clients")
    (site.folder / "clients.crt").write_text(new.file.read_text())
    try:
        with pytest.raises(httpx.TransportError):
            site.ask(gateway, public, "/double")
        site.clients = new
        assert site.ask(gateway, public, "/double") == 200
    finally:
        site.clients = former
        (site.folder / "clients.crt").write_text(former.file.read_text())


def test_a_service_that_asks_who_calls_does_not_warn_of_strangers(site: Site) -> None:
    lines = [line for line in site.server.log().splitlines() if "every machine" in line.lower()]
    assert len(lines) == 1
    assert "penstock serves doubles to every machine" in lines[0]
