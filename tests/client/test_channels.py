import queue
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest

from penstock.client import CallFailed, PipelineClient
from penstock.client.call import METHOD, Outcome
from penstock.client.channels import Channel
from penstock.client.endpoints import Endpoint, parse_endpoints
from penstock.client.tls import Tls
from penstock.protocols.status import GrpcCode
from tests.peers.programs import program

from .conftest import TIMEOUT, Service, Stuck
from .test_client import run_script

Serve = Callable[..., Service]


def endpoint_of(text: str) -> Endpoint:
    return parse_endpoints([text])[0]


def outcome(endpoint: str, tls: Tls | None = None) -> bytes | CallFailed:
    heard: queue.Queue[bytes | CallFailed] = queue.Queue()
    channel = Channel([endpoint_of(endpoint)], tls)
    try:
        channel.start(b"ask", heard.put, deadline=time.monotonic() + TIMEOUT)
        return heard.get(timeout=2 * TIMEOUT)
    finally:
        channel.close()


def answering(request: bytes, context: grpc.ServicerContext) -> bytes:
    return request + b"ed"


def test_bytes_go_to_the_one_method_and_come_back(serve: Serve) -> None:
    service = serve(answering)
    assert outcome(service.endpoint) == b"asked"
    assert service.paths == {METHOD}


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
    channel = Channel([endpoint_of(serve().endpoint)], None)
    channel.close()
    with pytest.raises(CallFailed) as caught:
        channel.start(b"", print, deadline=None)
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
        timeout=TIMEOUT,
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


@pytest.mark.parametrize("file", ["ca_file", "cert_file"])
def test_a_file_that_cannot_be_read_is_told_at_once(
    file: str, tmp_path: Path, certificate: tuple[Path, Path]
) -> None:
    files = {"cert_file": certificate[0], "key_file": certificate[1], file: tmp_path / "none.pem"}
    with pytest.raises(OSError, match="No such file"):
        Channel([endpoint_of("localhost:1")], Tls(**files))


def test_a_certificate_comes_with_its_key() -> None:
    with pytest.raises(ValueError, match="go together"):
        Tls(cert_file="cert.pem")


Serve = Callable[..., Service]

NAME = "penstock-client"


def threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == NAME]


@pytest.fixture(autouse=True)
def alone() -> Iterator[None]:
    assert threads() == []
    yield
    for thread in threads():
        thread.join(TIMEOUT)
    assert threads() == []


def asked(service: Service) -> PipelineClient:
    client = PipelineClient()
    client.connect([service.endpoint])
    client.predict({"x": "1"}, timeout=TIMEOUT)
    return client


def test_all_clients_share_one_thread_that_ends_with_the_last(serve: Serve) -> None:
    service = serve()
    clients = [asked(service) for _ in range(3)]
    (thread,) = threads()
    for client in clients:
        assert thread.is_alive()
        client.close()
    assert not thread.is_alive()
    with asked(service):
        assert threads() not in ([], [thread])


def test_a_client_that_is_dropped_is_closed(serve: Serve) -> None:
    client = asked(serve())
    (thread,) = threads()
    del client
    thread.join(TIMEOUT)
    assert not thread.is_alive()


def test_a_future_outlives_the_client_that_was_dropped(serve: Serve, stuck: Stuck) -> None:
    client = PipelineClient()
    client.connect([serve(stuck).endpoint])
    future = client.predict({"x": "1"}, asyn=True, timeout=TIMEOUT)
    assert stuck.entered.wait(TIMEOUT)
    del client
    stuck.released.set()
    assert future.result(TIMEOUT).err_no == 0
    del future


def test_whenever_it_is_closed_every_call_ends_exactly_once(serve: Serve) -> None:
    endpoints = parse_endpoints([serve().endpoint])
    for turn in range(30):
        channel = Channel(endpoints, None)
        heard: list[list[Outcome]] = []
        begun = threading.Barrier(4)

        def call(
            channel: Channel = channel, begun: threading.Barrier = begun
        ) -> list[list[Outcome]]:
            own: list[list[Outcome]] = []
            begun.wait(TIMEOUT)
            for _ in range(20):
                outcomes: list[Outcome] = []
                try:
                    channel.start(b"", outcomes.append, deadline=time.monotonic() + TIMEOUT)
                except CallFailed as error:
                    outcomes.append(error)
                own.append(outcomes)
            return own

        with ThreadPoolExecutor(3) as callers:
            started = [callers.submit(call) for _ in range(3)]
            begun.wait(TIMEOUT)
            time.sleep(turn * 0.0003)  # another moment each time
            channel.close()
            for each in started:
                heard += each.result(TIMEOUT)
        patience = time.monotonic() + TIMEOUT
        while not all(heard) and time.monotonic() < patience:
            time.sleep(0.001)
        assert [len(outcomes) for outcomes in heard] == [1] * 60
        for (outcome,) in heard:
            assert isinstance(outcome, bytes) or outcome.status is GrpcCode.CANCELLED


LEFT_OPEN = """
import atexit, sys
atexit.register(lambda: print(future.done(), future.exception()))
from penstock.client import PipelineClient
client = PipelineClient()
client.connect([sys.argv[1]])
client.predict({"x": "1"}, timeout=10)
other = PipelineClient()
other.connect([sys.argv[2]])
future = other.predict({"x": "1"}, asyn=True)
"""


def test_a_program_that_closes_nothing_ends_its_calls_and_soon(serve: Serve, stuck: Stuck) -> None:
    began = time.monotonic()
    done = run_script(LEFT_OPEN, serve().endpoint, serve(stuck).endpoint)
    told = "True CANCELLED: the client was closed\n"
    assert (done.returncode, done.stdout, done.stderr) == (0, told, "")
    assert time.monotonic() - began < TIMEOUT
