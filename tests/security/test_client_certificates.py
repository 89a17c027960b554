"""Client certificates name callers, over HTTP and gRPC."""

from __future__ import annotations

import datetime
import ssl
from collections.abc import Iterator
from dataclasses import dataclass
from http.client import HTTPSConnection
from pathlib import Path

import pytest

pytest.importorskip("cryptography", reason="makes certificates")

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from tests.services.process import ServiceProcess, running

pytestmark = pytest.mark.real
SCRIPT = """
from penstock import Service, op

@op()
def echo(request):
    return request

Service(
    "echo", echo, log_requests=True,
    door={{"tls": {{"certificate": {server!r}, "client_ca": {authority!r}}}}},
    security={{"certificates": {{"ann.test": ["admin"], "bob.test": []}}}},
).run()
"""


class Authority:
    """Signs certificates."""

    def __init__(self, folder: Path, name: str) -> None:
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        self.file = folder / f"{name}.pem"
        made = self._signed(self._name, self._key, x509.BasicConstraints(ca=True, path_length=0))
        self.file.write_bytes(made.public_bytes(serialization.Encoding.PEM))

    def issue(self, name: str) -> Path:
        """A file with a certificate for a DNS name, and its key."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "no name")])
        made = self._signed(subject, key, x509.SubjectAlternativeName([x509.DNSName(name)]))
        file = self._folder / f"{name}-{self.file.stem}.pem"
        file.write_bytes(
            made.public_bytes(serialization.Encoding.PEM)
            + key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )
        return file

    def _signed(
        self, subject: x509.Name, key: ec.EllipticCurvePrivateKey, *extensions: x509.ExtensionType
    ) -> x509.Certificate:
        now = datetime.datetime.now(datetime.UTC)
        builder = x509.CertificateBuilder(
            self._name,
            subject,
            key.public_key(),
            x509.random_serial_number(),
            now - datetime.timedelta(hours=1),
            now + datetime.timedelta(days=1),
        )
        for extension in extensions:
            builder = builder.add_extension(extension, critical=False)
        return builder.sign(self._key, hashes.SHA256())


@dataclass
class Site:
    server: ServiceProcess
    authority: Authority
    folder: Path


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("tls")
    authority = Authority(folder, "authority")
    server = authority.issue("localhost")
    script = folder / "service.py"
    text = SCRIPT.format(server=str(server), authority=str(authority.file))
    script.write_text(text)
    with running(script, ready=False) as process:
        found = Site(process, authority, folder)
        process_is_ready(found)
        yield found


def process_is_ready(site: Site) -> None:
    for _ in range(2000):
        try:
            if asked(site, None, "GET", "/readyz") == 200:
                return
        except ConnectionRefusedError:
            pass
    raise AssertionError(site.server.log())


def asked(site: Site, client: Path | None, method: str, path: str) -> int:
    """The status of a request with a client's certificate."""
    context = ssl.create_default_context(cafile=str(site.authority.file))
    if client is not None:
        context.load_cert_chain(client)
    connection = HTTPSConnection("localhost", site.server.http_port, context=context, timeout=10)
    try:
        connection.request(method, path, body=b'{"x":1}')
        return connection.getresponse().status
    finally:
        connection.close()


def test_the_name_in_a_certificate_is_the_caller(site: Site) -> None:
    ann, bob, eve = map(site.authority.issue, ("ann.test", "bob.test", "eve.test"))
    assert asked(site, None, "POST", "/echo") == 401
    assert asked(site, eve, "POST", "/echo") == 401
    assert asked(site, bob, "POST", "/echo") == 200
    assert asked(site, bob, "GET", "/status") == 403
    assert asked(site, ann, "GET", "/status") == 200
    assert asked(site, None, "GET", "/livez") == 200
    assert "caller='certificate:bob.test'" in site.server.log()


def test_a_certificate_of_another_authority_ends_the_handshake(site: Site) -> None:
    ann = Authority(site.folder, "other").issue("ann.test")
    with pytest.raises((ssl.SSLError, ConnectionError)):
        asked(site, ann, "POST", "/echo")


def test_by_grpc(site: Site) -> None:
    grpc = pytest.importorskip("grpc")
    from penstock.protocols import standard_messages as messages

    def code(client: Path | None) -> str:
        pem = None if client is None else client.read_bytes()
        credentials = grpc.ssl_channel_credentials(site.authority.file.read_bytes(), pem, pem)
        with grpc.secure_channel(f"localhost:{site.server.rpc_port}", credentials) as channel:
            method = channel.unary_unary(f"/{messages.INFERENCE}/ServerMetadata")
            try:
                method(b"", timeout=10)
            except grpc.RpcError as error:
                return str(error.code().name)
        return "OK"

    assert code(None) == "UNAUTHENTICATED"
    assert code(site.authority.issue("bob.test")) == "OK"
