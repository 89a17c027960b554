import asyncio
import gzip
import queue
import ssl
import struct
import subprocess
from collections.abc import Callable
from pathlib import Path

import grpc
import pytest

from penstock.client.channel import AsyncChannel, Channel
from penstock.client.deadlines import deadline_after
from penstock.client.endpoints import Endpoint, parse_endpoints
from penstock.client.errors import CallFailed
from penstock.client.line import METHOD
from penstock.client.tls import Tls
from penstock.protocols.status import GrpcCode
from tests.peers.programs import program

from .conftest import PATIENCE, Headers, Liar, Service

GRPC = [(":status", "200"), ("content-type", "application/grpc")]
OK = [("grpc-status", "0")]

Serve = Callable[..., Service]
Lie = Callable[[Headers, bytes, Headers], Liar]


def endpoint_of(text: str) -> Endpoint:
    return parse_endpoints([text])[0]


def framed(message: bytes, compressed: int = 0, length: int | None = None) -> bytes:
    return struct.pack(">BI", compressed, len(message) if length is None else length) + message


def outcome(endpoint: str, tls: Tls | None = None) -> bytes | CallFailed:
    heard: queue.Queue[bytes | CallFailed] = queue.Queue()
    channel = Channel(endpoint_of(endpoint), tls)
    try:
        channel.start(b"ask", heard.put, deadline=deadline_after(PATIENCE))
        return heard.get(timeout=2 * PATIENCE)
    finally:
        channel.close()


async def async_outcome(endpoint: str, tls: Tls | None = None) -> bytes | CallFailed:
    channel = AsyncChannel(endpoint_of(endpoint), tls)
    try:
        return await channel.call(b"ask", deadline=deadline_after(PATIENCE))
    except CallFailed as error:
        return error
    finally:
        await channel.close()


def answering(request: bytes, context: grpc.ServicerContext) -> bytes:
    return request + b"ed"


def test_bytes_go_to_the_one_method_and_come_back(serve: Serve) -> None:
    service = serve(answering)
    assert outcome(service.endpoint) == b"asked"
    assert service.paths == {METHOD}


async def test_bytes_come_back_on_a_loop_too(serve: Serve) -> None:
    assert await async_outcome(serve(answering).endpoint) == b"asked"


BOMB = framed(gzip.compress(bytes(2**20)), compressed=1)
LIES = [
    pytest.param(GRPC, b"", OK, GrpcCode.INTERNAL, id="no message"),
    pytest.param(
        [*GRPC, ("grpc-encoding", "gzip")], BOMB, OK, GrpcCode.INTERNAL, id="compressed unasked"
    ),
    pytest.param(
        GRPC, framed(b"", length=2**32 - 1), OK, GrpcCode.RESOURCE_EXHAUSTED, id="claims 4 GiB"
    ),
    pytest.param(
        [(":status", "302"), ("location", "http://127.0.0.1:1/")], b"", OK, None, id="redirect"
    ),
    pytest.param(GRPC, b"", [("grpc-status", "9999999")], GrpcCode.UNKNOWN, id="unknown status"),
    pytest.param(GRPC, b"", [("grpc-status", "x")], None, id="status no number"),
    pytest.param(GRPC, framed(b"a"), [("x", "y")], GrpcCode.UNKNOWN, id="no status"),
    pytest.param(
        GRPC,
        b"",
        [("grpc-status", "5"), ("grpc-message", "%FF%00")],
        GrpcCode.NOT_FOUND,
        id="text that is no UTF-8",
    ),
]


@pytest.mark.parametrize(("headers", "body", "trailers", "status"), LIES)
def test_a_lying_server_gives_a_typed_failure(
    lie: Lie, headers: Headers, body: bytes, trailers: Headers, status: GrpcCode | None
) -> None:
    failure = outcome(lie(headers, body, trailers).endpoint)
    assert isinstance(failure, CallFailed)
    assert failure.sent
    assert status is None or failure.status is status


@pytest.mark.parametrize(("headers", "body", "trailers", "status"), LIES)
async def test_a_lying_server_gives_a_typed_failure_on_a_loop_too(
    lie: Lie, headers: Headers, body: bytes, trailers: Headers, status: GrpcCode | None
) -> None:
    failure = await async_outcome(lie(headers, body, trailers).endpoint)
    assert isinstance(failure, CallFailed)
    assert status is None or failure.status is status


@pytest.mark.parametrize(
    ("trailers", "retryable"),
    [
        ([("grpc-status", "8")], False),
        ([("grpc-status", "8"), ("grpc-retry-pushback-ms", "100")], True),
        ([("grpc-status", "8"), ("grpc-retry-pushback-ms", "-1")], False),
        ([("grpc-status", "14")], True),
        ([("grpc-status", "13")], False),
    ],
)
def test_what_the_server_says_decides_whether_to_retry(
    lie: Lie, trailers: Headers, retryable: bool
) -> None:
    failure = outcome(lie(GRPC, b"", trailers).endpoint)
    assert isinstance(failure, CallFailed)
    assert failure.retryable is retryable


def test_a_refused_connection_was_certainly_not_sent(dead_endpoint: str) -> None:
    failure = outcome(dead_endpoint)
    assert isinstance(failure, CallFailed)
    assert (failure.status, failure.sent, failure.retryable) == (GrpcCode.UNAVAILABLE, False, True)
    assert dead_endpoint in str(failure)


def test_a_name_that_does_not_resolve_was_certainly_not_sent() -> None:
    failure = outcome("nobody.invalid:1")
    assert isinstance(failure, CallFailed)
    assert (failure.status, failure.sent) == (GrpcCode.UNAVAILABLE, False)


def test_a_closed_channel_refuses(serve: Serve) -> None:
    channel = Channel(endpoint_of(serve().endpoint), None)
    channel.close()
    with pytest.raises(CallFailed) as caught:
        channel.start(b"", print, deadline=None)
    assert caught.value.status is GrpcCode.CANCELLED


async def test_a_closed_channel_refuses_on_a_loop_too(serve: Serve) -> None:
    channel = AsyncChannel(endpoint_of(serve().endpoint), None)
    await channel.close()
    with pytest.raises(CallFailed) as caught:
        await channel.call(b"", deadline=None)
    assert caught.value.status is GrpcCode.CANCELLED


def test_a_proxy_in_the_environment_is_passed_by(
    serve: Serve, dead_endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", f"http://{dead_endpoint}")
    assert outcome(serve(answering).endpoint) == b"asked"


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A self-signed certificate for ``localhost`` and its key, made for this run."""
    openssl = program("openssl")
    folder = tmp_path_factory.mktemp("tls")
    cert, key = folder / "cert.pem", folder / "key.pem"
    ask = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=localhost"
    name = ["-addext", "subjectAltName=DNS:localhost"]
    subprocess.run(
        [openssl, *ask.split(), *name, "-keyout", key, "-out", cert],
        check=True,
        capture_output=True,
        timeout=PATIENCE,
    )
    return cert, key


@pytest.fixture
def guarded(serve: Serve, certificate: tuple[Path, Path]) -> Service:
    """A TLS server that also asks its callers for a certificate."""
    cert, key = (path.read_bytes() for path in certificate)
    credentials = grpc.ssl_server_credentials([(key, cert)], cert, require_client_auth=True)
    return serve(answering, credentials=credentials)


def test_tls_checks_the_server_and_shows_the_clients_certificate(
    guarded: Service, certificate: tuple[Path, Path]
) -> None:
    cert, key = certificate
    known = Tls(ca_file=cert, cert_file=cert, key_file=key)
    assert outcome(f"localhost:{guarded.port}", known) == b"asked"


async def test_tls_works_on_a_loop_too(guarded: Service, certificate: tuple[Path, Path]) -> None:
    cert, key = certificate
    known = Tls(ca_file=cert, cert_file=cert, key_file=key)
    assert await async_outcome(f"localhost:{guarded.port}", known) == b"asked"


def test_tls_refuses_a_server_of_another_name_unless_told_so(
    guarded: Service, certificate: tuple[Path, Path]
) -> None:
    cert, key = certificate
    failure = outcome(guarded.endpoint, Tls(ca_file=cert, cert_file=cert, key_file=key))
    assert isinstance(failure, CallFailed)
    assert not failure.sent
    named = Tls(ca_file=cert, cert_file=cert, key_file=key, server_name="localhost")
    assert outcome(guarded.endpoint, named) == b"asked"


def test_tls_refuses_a_server_that_nobody_vouches_for(
    guarded: Service, certificate: tuple[Path, Path]
) -> None:
    cert, key = certificate
    failure = outcome(f"localhost:{guarded.port}", Tls(cert_file=cert, key_file=key))
    assert isinstance(failure, CallFailed)
    assert failure.status is GrpcCode.UNAVAILABLE


async def test_a_tls_server_that_does_not_speak_http_2_is_no_server(
    certificate: tuple[Path, Path],
) -> None:
    cert, key = certificate
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(cert, key)

    async def read(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    async with await asyncio.start_server(read, "127.0.0.1", 0, ssl=context) as server:
        port = server.sockets[0].getsockname()[1]
        failure = await async_outcome(f"localhost:{port}", Tls(ca_file=cert))
    assert isinstance(failure, CallFailed)
    assert (failure.status, failure.sent) == (GrpcCode.UNAVAILABLE, False)
    assert "HTTP/2" in str(failure)


@pytest.mark.parametrize("file", ["ca_file", "cert_file"])
def test_a_file_that_cannot_be_read_is_told_at_once(
    file: str, tmp_path: Path, certificate: tuple[Path, Path]
) -> None:
    files = {"cert_file": certificate[0], "key_file": certificate[1], file: tmp_path / "none.pem"}
    with pytest.raises(OSError, match="No such file"):
        Channel(endpoint_of("localhost:1"), Tls(**files))


def test_a_certificate_comes_with_its_key() -> None:
    with pytest.raises(ValueError, match="go together"):
        Tls(cert_file="cert.pem")
