"""What a service says that is busy, draining, out of time, or whose op fails; over both ports."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from tests.hostile import grpc_raw
from tests.hostile.bad_grpc import DEADLINE_EXCEEDED, RESOURCE_EXHAUSTED, UNAVAILABLE
from tests.hostile.conftest import hostile_service
from tests.hostile.holding import held
from tests.kit import http1 as raw
from tests.kit.http1 import ask, pairs, request
from tests.kit.pipeline import decode, encode
from tests.services.process import ServiceProcess

pytestmark = pytest.mark.real

BUSY, CLOSED, TIMEOUT, UNKNOWN = 3004, 3001, 6000, 10000
HOLD = pairs(x="held", do="hold")
GATEWAY = ["error", "code", "message", "details"]


def message_of(body: bytes) -> bytes:
    return encode(json.loads(body))


def called(port: int, body: bytes, timeout: float = raw.PATIENCE) -> grpc_raw.Answer:
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        return grpc_raw.ask(channel, message_of(body), timeout)


def both(server: ServiceProcess, body: bytes) -> list[dict[str, Any]]:
    """The answers over HTTP and over gRPC, which both must be answers and not failures."""
    reply = ask(server.http_port, body)
    assert reply.status == 200
    answer = called(server.rpc_port, body)
    assert answer.status == 0, answer
    return [reply.json(), decode(answer.messages[0])]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ServiceProcess, Path]]:
    pipe = tmp_path_factory.mktemp("tiny") / "hold"
    with hostile_service(pipe, max_requests="1", max_inflight_bytes="100000") as server:
        yield server, pipe


def test_a_busy_service_answers_so_and_answers_again_afterwards(
    tiny: tuple[ServiceProcess, Path],
) -> None:
    server, pipe = tiny
    with raw.connected(server.http_port) as first:
        first.send(request(HOLD))
        with held(pipe):
            for document in both(server, pairs(x="2")):
                assert document["err_no"] == BUSY
                assert "capacity" in document["err_msg"]
        assert first.reply().json()["value"] == ["held"]
    raw.check_good(server.http_port)
    grpc_raw.check_good(server.rpc_port)


def test_a_client_that_leaves_gives_its_place_back(tiny: tuple[ServiceProcess, Path]) -> None:
    server, pipe = tiny
    for second in (b"", request(pairs(x="2"))):  # alone, and with a request waiting behind
        leaver = raw.Connection(server.http_port)
        leaver.send(request(HOLD) + second)
        with held(pipe):
            assert ask(server.http_port, pairs(x="2")).json()["err_no"] == BUSY
            leaver.socket.close()
            until_good(server)


def test_a_call_that_is_cancelled_gives_its_place_back(tiny: tuple[ServiceProcess, Path]) -> None:
    server, pipe = tiny
    with grpc.insecure_channel(server.rpc_endpoint) as channel:
        call = channel.unary_unary(grpc_raw.METHOD).future(message_of(HOLD))
        with held(pipe):
            assert ask(server.http_port, pairs(x="2")).json()["err_no"] == BUSY
            call.cancel()
            until_good(server)


def until_good(server: ServiceProcess) -> None:
    """The place is free within the time that the documents promise, and some for this machine."""
    deadline = time.monotonic() + 1
    while ask(server.http_port, pairs(x="2")).json()["err_no"] == BUSY:
        assert time.monotonic() < deadline, "the place was not given back"


def test_bytes_beyond_the_budget_are_refused_before_they_are_read(
    tiny: tuple[ServiceProcess, Path],
) -> None:
    server, _ = tiny
    with raw.connected(server.http_port) as connection:
        head = request(b"", b"Expect: 100-continue", b"Content-Length: 200000", length=False)
        connection.send(head)
        reply = connection.reply()  # and no 100 before it
        assert reply.status == 200
        assert reply.json()["err_no"] == BUSY
        assert reply.header("connection") == "close"
    document = decode(called(server.rpc_port, pairs(x="x" * 200_000)).messages[0])
    assert document["err_no"] == BUSY
    raw.check_good(server.http_port)


def test_a_strict_service_fails_the_call_when_it_is_busy(tmp_path: Path) -> None:
    pipe = tmp_path / "hold"
    with hostile_service(pipe, max_requests="1", strict_status="true") as server:
        with raw.connected(server.http_port) as first:
            first.send(request(HOLD))
            with held(pipe):
                reply = ask(server.http_port, pairs(x="2"))
                assert reply.status == 429
                assert reply.header("retry-after") == "1"
                assert list(reply.json()) == GATEWAY
                assert reply.json()["code"] == RESOURCE_EXHAUSTED
                with grpc.insecure_channel(server.rpc_endpoint) as channel:
                    with pytest.raises(grpc.RpcError) as caught:
                        channel.unary_unary(grpc_raw.METHOD)(message_of(pairs(x="2")), timeout=5)
                assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
                metadata = dict(caught.value.trailing_metadata())
                assert metadata["grpc-retry-pushback-ms"] == "1000"
            assert first.reply().json()["value"] == ["held"]
        raw.check_good(server.http_port)


def test_the_server_s_own_deadline_is_an_answer(tmp_path: Path) -> None:
    pipe = tmp_path / "hold"
    with hostile_service(pipe, deadline="0.3") as server:
        # A caller may ask for less, never for more.
        for more in ((), (b"Grpc-Timeout: 9S",)):
            with raw.connected(server.http_port) as connection:
                connection.send(request(HOLD, *more))
                with held(pipe):
                    reply = connection.reply()
                assert reply.status == 200
                assert reply.json()["err_no"] == TIMEOUT
                assert "deadline" in reply.json()["err_msg"]
        with grpc_raw.connected(server.rpc_port) as call:
            call.message(call.open((b"grpc-timeout", b"9S")), message_of(HOLD))
            with held(pipe):
                answer = call.answer()
            assert answer.status == 0
            assert decode(answer.messages[0])["err_no"] == TIMEOUT
        raw.check_good(server.http_port)


@pytest.mark.parametrize("limit", [b"Grpc-Timeout: 100m", b"Penstock-Timeout: 0.1"])
def test_the_caller_s_own_deadline_fails_the_call(
    limit: bytes, service: ServiceProcess, pipe: Path
) -> None:
    reply = ask(service.http_port, HOLD, limit)
    assert reply.status == 504
    assert list(reply.json()) == GATEWAY
    assert reply.json()["code"] == DEADLINE_EXCEEDED
    with held(pipe):
        raw.check_good(service.http_port)


@pytest.mark.parametrize("limit", [b"Grpc-Timeout: 0n", b"Penstock-Timeout: 0"])
def test_a_deadline_of_nothing_has_passed(limit: bytes, http_port: int) -> None:
    assert ask(http_port, pairs(x="1"), limit).status == 504


def test_the_caller_s_own_deadline_fails_the_grpc_call(service: ServiceProcess, pipe: Path) -> None:
    with grpc_raw.connected(service.rpc_port) as connection:
        stream = connection.open((b"grpc-timeout", b"100m"))
        connection.message(stream, message_of(HOLD))
        assert connection.answer().status == DEADLINE_EXCEEDED
    with held(pipe):
        grpc_raw.check_good(service.rpc_port)


@pytest.mark.parametrize(
    "limit",
    [
        *(b"", b"1", b"S", b"1x", b"-1S", b"1.5S", b"123456789S", b"1 S", b"soon", b"\xd9\xa1S"),
        b"1_0S",
    ],
)
def test_a_malformed_timeout_is_refused(limit: bytes, http_port: int) -> None:
    reply = ask(http_port, pairs(x="1"), b"Grpc-Timeout: " + limit)
    assert reply.status == 400
    assert reply.json()["code"] == 3
    raw.check_good(http_port)


@pytest.mark.parametrize(
    "limit", [b"", b"-1", b"1s", b"1e9", b"nan", b"inf", b".5", b"1,5", b"0x1"]
)
def test_a_malformed_timeout_of_our_own_is_refused(limit: bytes, http_port: int) -> None:
    assert ask(http_port, pairs(x="1"), b"Penstock-Timeout: " + limit).status == 400
    raw.check_good(http_port)


@pytest.mark.parametrize("limit", [b"Grpc-Timeout: 99999999H", b"Penstock-Timeout: 999999999"])
def test_an_absurd_timeout_is_the_server_s_own(limit: bytes, http_port: int) -> None:
    assert ask(http_port, pairs(x="1"), limit).json()["value"] == ["1"]


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
def test_an_op_s_error_is_an_answer(
    do: str, number: int, text: str, service: ServiceProcess
) -> None:
    for document in both(service, pairs(x="planted", do=do)):
        assert document["err_no"] == number
        assert text in document["err_msg"]
        assert "kept secret" not in document["err_msg"]
        assert document["key"] == document["value"] == document["tensors"] == []
    raw.check_good(service.http_port)


def test_callers_cannot_forge_lines_of_the_log(service: ServiceProcess) -> None:
    forged = "a\r\nERROR forged\x1b[31m\u2028ERROR forged"
    both(service, pairs(x=forged, do="raise"))
    both(service, pairs(x=forged, do="break"))
    log = service.log()
    assert "ERROR forged" in log  # quoted, in the line of the error
    assert not any(line.startswith("ERROR forged") for line in log.splitlines())
    assert "\x1b" not in log


def test_a_draining_service_refuses_and_finishes_what_it_has(tmp_path: Path) -> None:
    pipe = tmp_path / "hold"
    with hostile_service(pipe) as server:
        with (
            raw.connected(server.http_port) as first,
            raw.connected(server.http_port) as idle,
            grpc.insecure_channel(server.rpc_endpoint) as channel,
        ):
            idle.send(request(pairs(x="1")))
            idle.reply()
            assert grpc_raw.ask(channel, message_of(pairs(x="1"))).status == 0
            first.send(request(HOLD))
            with held(pipe):
                server.send_signal(signal.SIGTERM)
                until_refusing(server)
                idle.send(request(pairs(x="1")))
                for reply in (idle.reply(), ask(server.http_port, pairs(x="1"))):
                    assert reply.status == 503
                    assert list(reply.json()) == GATEWAY
                    assert reply.json()["code"] == UNAVAILABLE
                    assert reply.header("connection") == "close"
                assert grpc_raw.ask(channel, message_of(pairs(x="1"))).status == UNAVAILABLE
            last = first.reply()
            assert last.json()["value"] == ["held"]
            assert last.header("connection") == "close"
        assert server.wait_exit() == 0


def until_refusing(server: ServiceProcess) -> None:
    deadline = time.monotonic() + raw.PATIENCE
    while ask(server.http_port, pairs(x="1")).status != 503:
        assert time.monotonic() < deadline


def test_what_a_stopping_service_cannot_finish_is_answered_so(tmp_path: Path) -> None:
    pipe = tmp_path / "hold"
    with hostile_service(pipe, drain_timeout="0.2") as server:
        with (
            raw.connected(server.http_port) as first,
            grpc_raw.connected(server.rpc_port) as second,
        ):
            first.send(request(HOLD))
            second.message(second.open(), message_of(pairs(x="held", do="hold", second="2")))
            with held(pipe), held(Path(f"{pipe}2")):
                server.send_signal(signal.SIGTERM)
                documents = [first.reply().json(), decode(second.answer().messages[0])]
        for document in documents:
            assert document["err_no"] == CLOSED
        assert server.wait_exit() == 0
