import gc
import queue
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import grpc
import pytest

from penstock.client import CallFailed, PipelineClient
from penstock.client.call import METHOD, Outcome
from penstock.client.channels import Channel
from penstock.client.endpoints import Endpoint, parse_endpoints
from penstock.client.tls import Tls
from penstock.protocols.status import GrpcCode
from tests.kit.certificates import make_certificate
from tests.service.scripts import until

from .conftest import TIMEOUT, Service, Stuck
from .test_client import run_script

Serve = Callable[..., Service]


def endpoint_of(text: str) -> Endpoint:
    return parse_endpoints([text])[0]


def outcome(endpoint: str, tls: Tls | None = None) -> bytes | CallFailed:
    outcomes_seen: queue.Queue[bytes | CallFailed] = queue.Queue()
    channel = Channel([endpoint_of(endpoint)], tls)
    try:
        channel.start(b"ask", outcomes_seen.put, deadline=time.monotonic() + TIMEOUT)
        return outcomes_seen.get(timeout=2 * TIMEOUT)
    finally:
        channel.close()


def answering(request: bytes, context: grpc.ServicerContext) -> bytes:
    return request + b"ed"


def test_a_call_sends_bytes_to_the_inference_method_and_returns_the_reply(serve: Serve) -> None:
    service = serve(answering)
    assert outcome(service.endpoint) == b"asked"
    assert service.paths == {METHOD}


def test_a_call_to_a_refusing_endpoint_is_reported_as_not_sent(dead_endpoint: str) -> None:
    failure = outcome(dead_endpoint)
    assert isinstance(failure, CallFailed)
    assert (failure.status, failure.sent, failure.retryable) == (GrpcCode.UNAVAILABLE, False, True)
    assert dead_endpoint in str(failure)


def test_a_failed_call_leaves_no_cycle(dead_endpoint: str) -> None:
    channel = Channel([endpoint_of(dead_endpoint)], None)
    gc.collect()
    gc.disable()
    try:
        with pytest.raises(CallFailed):
            channel.call(b"ask", deadline=time.monotonic() + TIMEOUT)
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        assert not [each for each in gc.garbage if type(each) is CallFailed]
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
        channel.close()


def test_a_call_to_an_unresolvable_host_is_reported_as_not_sent() -> None:
    failure = outcome("nobody.invalid:1")
    assert isinstance(failure, CallFailed)
    assert (failure.status, failure.sent) == (GrpcCode.UNAVAILABLE, False)


def test_a_closed_channel_refuses_calls(serve: Serve) -> None:
    channel = Channel([endpoint_of(serve().endpoint)], None)
    channel.close()
    with pytest.raises(CallFailed) as caught:
        channel.start(b"", print, deadline=None)
    assert caught.value.status is GrpcCode.CANCELLED


def test_a_proxy_in_the_environment_is_ignored(
    serve: Serve, dead_endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", f"http://{dead_endpoint}")
    assert outcome(serve(answering).endpoint) == b"asked"


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A self-signed certificate for ``localhost`` and its key, made for this run."""
    return make_certificate(tmp_path_factory.mktemp("tls"))


@pytest.fixture
def tls_service(serve: Serve, certificate: tuple[Path, Path]) -> Service:
    """A TLS server that requires certificates of its clients."""
    cert, key = (path.read_bytes() for path in certificate)
    credentials = grpc.ssl_server_credentials([(key, cert)], cert, require_client_auth=True)
    return serve(answering, credentials=credentials)


def test_tls_verifies_the_server_and_sends_the_client_certificate(
    tls_service: Service, certificate: tuple[Path, Path]
) -> None:
    cert, key = certificate
    with_certificate = Tls(ca_file=cert, cert_file=cert, key_file=key)
    assert outcome(f"localhost:{tls_service.port}", with_certificate) == b"asked"


def test_tls_refuses_another_host_name_unless_server_name_is_set(
    tls_service: Service, certificate: tuple[Path, Path]
) -> None:
    cert, key = certificate
    failure = outcome(tls_service.endpoint, Tls(ca_file=cert, cert_file=cert, key_file=key))
    assert isinstance(failure, CallFailed)
    assert not failure.sent
    named = Tls(ca_file=cert, cert_file=cert, key_file=key, server_name="localhost")
    assert outcome(tls_service.endpoint, named) == b"asked"


def test_tls_refuses_a_certificate_of_an_unknown_authority(
    tls_service: Service, certificate: tuple[Path, Path]
) -> None:
    cert, key = certificate
    failure = outcome(f"localhost:{tls_service.port}", Tls(cert_file=cert, key_file=key))
    assert isinstance(failure, CallFailed)
    assert failure.status is GrpcCode.UNAVAILABLE


@pytest.mark.parametrize("file", ["ca_file", "cert_file"])
def test_an_unreadable_tls_file_raises_an_error_at_once(
    file: str, tmp_path: Path, certificate: tuple[Path, Path]
) -> None:
    files = {"cert_file": certificate[0], "key_file": certificate[1], file: tmp_path / "none.pem"}
    with pytest.raises(OSError, match="No such file"):
        Channel([endpoint_of("localhost:1")], Tls(**files))


def test_a_renewed_certificate_is_used_by_the_next_connection(
    tls_service: Service, certificate: tuple[Path, Path], tmp_path: Path
) -> None:
    cert, key = certificate
    old, old_key = make_certificate(tmp_path)
    tls = Tls(ca_file=cert, cert_file=old, key_file=old_key)
    channel = Channel([endpoint_of(f"localhost:{tls_service.port}")], tls)
    try:
        with pytest.raises(CallFailed):
            channel.call(b"ask", deadline=time.monotonic() + TIMEOUT)
        old.write_bytes(cert.read_bytes())
        old_key.write_bytes(key.read_bytes())

        def answered() -> bool:
            with suppress(CallFailed):  # the endpoint pauses after its failure
                channel.call(b"ask", deadline=time.monotonic() + TIMEOUT)
                return True
            return False

        until(answered, "an answer")
    finally:
        channel.close()


def test_a_certificate_without_its_key_is_refused() -> None:
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


def client_after_a_call(service: Service) -> PipelineClient:
    client = PipelineClient()
    client.connect([service.endpoint])
    client.predict({"x": "1"}, timeout=TIMEOUT)
    return client


def test_clients_share_one_thread_that_ends_with_the_last_client(serve: Serve) -> None:
    service = serve()
    clients = [client_after_a_call(service) for _ in range(3)]
    (thread,) = threads()
    for client in clients:
        assert thread.is_alive()
        client.close()
    assert not thread.is_alive()
    with client_after_a_call(service):
        assert threads() not in ([], [thread])


def test_a_garbage_collected_client_is_closed(serve: Serve) -> None:
    client = client_after_a_call(serve())
    (thread,) = threads()
    del client
    thread.join(TIMEOUT)
    assert not thread.is_alive()


def test_a_future_completes_after_its_client_was_garbage_collected(
    serve: Serve, stuck: Stuck
) -> None:
    client = PipelineClient()
    client.connect([serve(stuck).endpoint])
    future = client.predict({"x": "1"}, asyn=True, timeout=TIMEOUT)
    assert stuck.entered.wait(TIMEOUT)
    del client
    stuck.released.set()
    assert future.result(TIMEOUT).err_no == 0
    del future


def test_every_call_has_exactly_one_outcome_when_the_channel_is_closed(serve: Serve) -> None:
    endpoints = parse_endpoints([serve().endpoint])
    for turn in range(30):
        channel = Channel(endpoints, None)
        outcomes_seen: list[list[Outcome]] = []
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
                outcomes_seen += each.result(TIMEOUT)
        give_up_at = time.monotonic() + TIMEOUT
        while not all(outcomes_seen) and time.monotonic() < give_up_at:
            time.sleep(0.001)
        assert [len(outcomes) for outcomes in outcomes_seen] == [1] * 60
        for (outcome,) in outcomes_seen:
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


def test_open_calls_are_cancelled_when_the_interpreter_exits(serve: Serve, stuck: Stuck) -> None:
    began = time.monotonic()
    done = run_script(LEFT_OPEN, serve().endpoint, serve(stuck).endpoint)
    printed = "True CANCELLED: the client was closed\n"
    assert (done.returncode, done.stdout, done.stderr) == (0, printed, "")
    assert time.monotonic() - began < TIMEOUT
