"""Answers on both ports of a busy or draining service, at deadlines, and for failing ops."""

from __future__ import annotations

import json
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.hostile.bad_requests import DEADLINE_EXCEEDED, OK, RESOURCE_EXHAUSTED, UNAVAILABLE
from tests.hostile.conftest import check_good, hostile_service
from tests.hostile.holding import held
from tests.kit import frames as f
from tests.kit import http1
from tests.kit.frames import StreamContent, message
from tests.kit.http1 import Reply, ask, pairs, request
from tests.kit.http2 import METHOD, Link, call, linked
from tests.kit.pipeline import decode, encode
from tests.service.scripts import until as wait_until
from tests.services.process import ServiceProcess

pytestmark = pytest.mark.real

BUSY, CLOSED, TIMEOUT, UNKNOWN = 3004, 3001, 6000, 10000
HOLD = pairs(x="held", do="hold")
GATEWAY = ["error", "code", "message", "details"]
Tiny = tuple[ServiceProcess, Path]


def message_of(body: bytes) -> bytes:
    return encode(json.loads(body))


def call_result(port: int, body: bytes, *more: f.Field) -> StreamContent:
    with linked(port) as link:
        return link.predict(message_of(body), *more)


def begin_call(link: Link, body: bytes, *more: f.Field) -> int:
    """Send a call, and return its stream."""
    stream = link.open(call(METHOD.encode(), *more))
    link.send(f.body(stream, message(message_of(body))))
    return stream


def document_of(received: StreamContent) -> dict[str, Any]:
    assert received.status == OK, received
    return decode(received.messages[0])


def both(server: ServiceProcess, body: bytes) -> list[dict[str, Any]]:
    """The answers over HTTP and over gRPC; both calls must succeed."""
    reply = ask(server.http_port, body)
    assert reply.status == 200
    return [reply.json(), document_of(call_result(server.rpc_port, body))]


def check_failed(reply: Reply, status: int, code: int) -> None:
    """The call itself failed, with an error in the gateway's form."""
    assert reply.status == status
    assert list(reply.json()) == GATEWAY
    assert reply.json()["code"] == code


def until(server: ServiceProcess, seconds: float, good: Any) -> None:
    """Send requests until an answer is good, for this time at most."""
    deadline = time.monotonic() + seconds
    while not good(ask(server.http_port, pairs(x="2"))):
        assert time.monotonic() < deadline


@pytest.fixture(scope="module")
def tiny_service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tiny]:
    pipe = tmp_path_factory.mktemp("tiny") / "hold"
    with hostile_service(pipe, max_requests="1", max_inflight_bytes="100000") as server:
        yield server, pipe


def test_a_busy_service_refuses_requests_until_the_running_one_is_answered(
    tiny_service: Tiny,
) -> None:
    server, pipe = tiny_service
    with http1.connected(server.http_port) as first:
        first.send(request(HOLD))
        with held(pipe):
            for document in both(server, pairs(x="2")):
                assert document["err_no"] == BUSY
                assert "capacity" in document["err_msg"]
        assert first.reply().json()["value"] == ["held"]
    check_good(server)


@pytest.mark.parametrize("kind", ["alone", "a request behind it", "gRPC", "gRPC, cancelled"])
def test_the_request_of_a_disconnected_client_is_cancelled_and_not_counted(
    kind: str, tiny_service: Tiny
) -> None:
    server, pipe = tiny_service
    with http1.connected(server.http_port) as disconnecting, linked(server.rpc_port) as link:
        if kind.startswith("gRPC"):
            stream = begin_call(link, HOLD)
        else:
            disconnecting.send(request(HOLD), request(pairs(x="2")) if "behind" in kind else b"")
        with held(pipe):
            assert ask(server.http_port, pairs(x="2")).json()["err_no"] == BUSY
            if "cancelled" in kind:
                link.send(f.reset(stream))
            else:
                disconnecting.socket.close()
                link.socket.close()
            # Within the documented time, plus some for a busy machine.
            until(server, 1, lambda reply: reply.json()["err_no"] != BUSY)


def test_a_body_beyond_max_inflight_bytes_is_refused_before_it_is_read(tiny_service: Tiny) -> None:
    server, _ = tiny_service
    with http1.connected(server.http_port) as connection:
        head = request(b"", b"Expect: 100-continue", b"Content-Length: 200000", length=False)
        connection.send(head)
        reply = connection.reply()  # without a 100 before it
        assert reply.status == 200
        assert reply.json()["err_no"] == BUSY
        assert reply.header("connection") == "close"
    assert document_of(call_result(server.rpc_port, pairs(x="x" * 200_000)))["err_no"] == BUSY
    check_good(server)


def test_a_busy_service_with_strict_status_answers_429(tmp_path: Path) -> None:
    pipe = tmp_path / "hold"
    with hostile_service(pipe, max_requests="1", strict_status="true") as server:
        with http1.connected(server.http_port) as first:
            first.send(request(HOLD))
            with held(pipe):
                reply = ask(server.http_port, pairs(x="2"))
                check_failed(reply, 429, RESOURCE_EXHAUSTED)
                assert reply.header("retry-after") == "1"
                received = call_result(server.rpc_port, pairs(x="2"))
                assert received.status == RESOURCE_EXHAUSTED
                assert received.fields[b"grpc-retry-pushback-ms"] == b"1000"
            assert first.reply().json()["value"] == ["held"]
        check_good(server)


def test_a_request_beyond_the_services_deadline_gets_an_error_number(tmp_path: Path) -> None:
    pipe = tmp_path / "hold"
    with hostile_service(pipe, deadline="0.3") as server:
        # A client can shorten the deadline, but not extend it.
        for more in ((), (b"Grpc-Timeout: 9S",)):
            with http1.connected(server.http_port) as connection:
                connection.send(request(HOLD, *more))
                with held(pipe):
                    document = connection.reply().json()
                assert document["err_no"] == TIMEOUT
                assert "deadline" in document["err_msg"]
        with linked(server.rpc_port) as link:
            stream = begin_call(link, HOLD, (b"grpc-timeout", b"9S"))
            with held(pipe):
                received = link.answer(stream)
            assert document_of(received)["err_no"] == TIMEOUT
        check_good(server)


def test_a_request_beyond_the_clients_timeout_gets_an_error_status(
    service: ServiceProcess, pipe: Path
) -> None:
    for limit in (b"Grpc-Timeout: 100m", b"Penstock-Timeout: 0.1"):
        check_failed(ask(service.http_port, HOLD, limit), 504, DEADLINE_EXCEEDED)
        with held(pipe):
            check_good(service)
    assert (
        call_result(service.rpc_port, HOLD, (b"grpc-timeout", b"100m")).status == DEADLINE_EXCEEDED
    )
    with held(pipe):
        check_good(service)


@pytest.mark.parametrize(
    ("do", "number", "text"),
    [
        ("raise", UNKNOWN, "Raise_msg: planted  ClassName: Obedient.preprocess"),
        ("break", UNKNOWN, "[obedient] failed to predict. planted. Please check"),
        ("exit", UNKNOWN, "Raise_msg: 3"),
        ("refuse", 52, "not for you"),
        ("declare", 5000, "Raise_msg: said aloud"),
        ("hide", UNKNOWN, "the op failed; the server's log has the details"),
    ],
)
def test_an_ops_error_is_returned_as_an_error_number(
    do: str, number: int, text: str, service: ServiceProcess
) -> None:
    for document in both(service, pairs(x="planted", do=do)):
        assert document["err_no"] == number
        assert text in document["err_msg"]
        assert "kept secret" not in document["err_msg"]
        assert document["key"] == document["value"] == document["tensors"] == []
    check_good(service)


def test_clients_cannot_forge_log_lines(service: ServiceProcess) -> None:
    forged = "a\r\nERROR forged\x1b[31m\u2028ERROR forged"
    both(service, pairs(x=forged, do="raise"))
    both(service, pairs(x=forged, do="break"))
    # Quoted in the line of each error; consecutive lines are written together.
    wait_until(lambda: service.log().count("ERROR forged") >= 4, "the errors are in the log")
    log = service.log()
    assert not any(line.startswith("ERROR forged") for line in log.splitlines())
    assert "\x1b" not in log


def until_refused(port: int) -> None:
    """Returns when the port accepts no connection."""
    deadline = time.monotonic() + http1.TIMEOUT
    with suppress(ConnectionRefusedError):
        while time.monotonic() < deadline:
            socket.create_connection(("127.0.0.1", port), timeout=http1.TIMEOUT).close()
        pytest.fail(f"port {port} accepts connections")


def test_a_draining_service_answers_running_requests_and_refuses_new_ones(tmp_path: Path) -> None:
    pipe = tmp_path / "hold"
    with hostile_service(pipe) as server:
        with (
            http1.connected(server.http_port) as first,
            http1.connected(server.http_port) as idle,
        ):
            idle.send(request(pairs(x="1")))
            idle.reply()
            first.send(request(HOLD))
            with held(pipe):
                server.send_signal(signal.SIGTERM)
                for port in (server.http_port, server.rpc_port):
                    until_refused(port)
                idle.send(request(pairs(x="1")))
                reply = idle.reply()
                check_failed(reply, 503, UNAVAILABLE)
                assert reply.header("connection") == "close"
            last = first.reply()
            assert last.json()["value"] == ["held"]
            assert last.header("connection") == "close"
        assert server.wait_exit() == 0


def test_requests_still_running_at_drain_timeout_get_an_error(tmp_path: Path) -> None:
    pipe = tmp_path / "hold"
    with hostile_service(pipe, drain_timeout="0.2") as server:
        with http1.connected(server.http_port) as first, linked(server.rpc_port) as second:
            first.send(request(HOLD))
            stream = begin_call(second, pairs(x="held", do="hold", second="2"))
            with held(pipe), held(Path(f"{pipe}2")):
                server.send_signal(signal.SIGTERM)
                documents = [first.reply().json(), document_of(second.answer(stream))]
        assert [document["err_no"] for document in documents] == [CLOSED] * 2
        assert server.wait_exit() == 0
