"""One endpoint's channel, against a server whose every frame the test sends.

gRPC's requirements on a client's connection are tested in ``tests/rfc/test_grpc_client.py``.
"""

import gc
import socket
import time
from collections.abc import Iterator
from math import ceil, floor

import pytest

from penstock.client import endpoint_channel, grpc, keepalive
from penstock.client.channels import Channel
from penstock.client.endpoints import parse_endpoints
from penstock.protocols.status import GrpcCode
from tests.kit import frames as f
from tests.kit.grpc_server import ScriptedServer, StartedCall, answer, scripted_server

UNSENT = (GrpcCode.UNAVAILABLE, False)


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    with scripted_server() as one:
        yield one


def ended(pending: StartedCall) -> tuple[GrpcCode, bool]:
    """A failed call's status, and whether it was sent."""
    failure = pending.failure()
    return failure.status, failure.sent


def answer_call(server: ScriptedServer, stream: int, pending: StartedCall) -> None:
    server.request(stream)
    server.link.send(answer(stream))
    assert pending.reply() == b"good"


def test_many_calls_share_one_connection_and_get_their_own_replies(server: ScriptedServer) -> None:
    calls = [server.start(b"%d" % n) for n in range(50)]
    server.accept()
    for stream in reversed(range(1, 101, 2)):
        (message,) = server.request(stream).messages
        server.link.send(answer(stream, f.message(b"to " + message)))
    assert [pending.reply() for pending in calls] == [b"to %d" % n for n in range(50)]
    assert server.has_no_new_connection()


def test_calls_beyond_the_servers_limit_wait_in_order(server: ScriptedServer) -> None:
    calls = [server.start(b"%d" % n) for n in range(5)]
    server.accept((f.MAX_CONCURRENT_STREAMS, 2))
    for stream in (1, 3, 5, 7, 9):
        assert server.request(stream).messages == [b"%d" % (stream // 2)]
        server.link.alive(b"%08d" % stream)
        assert max(server.link.streams) <= stream + 2
        server.link.send(answer(stream))
    assert [pending.reply() for pending in calls] == [b"good"] * 5


def test_a_call_that_waits_for_a_stream_fails_at_its_deadline_unsent(
    server: ScriptedServer,
) -> None:
    first, second, third = server.start(), server.start(b"late", 0.2), server.start(b"third")
    server.accept((f.MAX_CONCURRENT_STREAMS, 1))
    assert ended(second) == (GrpcCode.DEADLINE_EXCEEDED, False)
    answer_call(server, 1, first)
    assert server.request(3).messages == [b"third"]
    answer_call(server, 3, third)


def test_a_call_whose_deadline_has_passed_is_not_sent(server: ScriptedServer) -> None:
    assert ended(server.start(b"ask", 0.0)) == (GrpcCode.DEADLINE_EXCEEDED, False)
    assert server.has_no_new_connection()


def test_no_call_fails_when_the_server_closes_an_idle_connection(server: ScriptedServer) -> None:
    for _ in range(3):
        pending = server.start()
        server.accept()
        answer_call(server, 1, pending)
        server.link.socket.shutdown(socket.SHUT_WR)
        server.link.until_closed()  # the client has noticed it, too


def test_a_server_that_sends_no_settings_is_unavailable(
    server: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(endpoint_channel, "CONNECT_SECONDS", 0.1)
    failure = server.start().failure()
    assert (failure.status, failure.sent) == UNSENT
    assert "nothing came within 0.1 s" in str(failure)
    server.accept(greet=False).until_closed()


def test_a_call_to_an_http1_server_is_unavailable_and_not_sent(server: ScriptedServer) -> None:
    pending = server.start()
    server.accept(greet=False).send(b"HTTP/1.1 400 Bad Request\r\n\r\n")
    assert ended(pending) == UNSENT


def test_after_a_failed_connection_no_other_is_opened_during_the_backoff(
    server: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(endpoint_channel, "FIRST_PAUSE", 0.5)
    pending = server.start()
    server.accept(greet=False).socket.close()
    assert ended(pending) == UNSENT
    for _ in range(5):
        assert ended(server.start()) == UNSENT
    assert server.has_no_new_connection()
    time.sleep(0.65)  # the pause itself, at its longest
    pending = server.start()
    server.accept()
    answer_call(server, 1, pending)


def test_after_two_goaways_at_connect_the_client_reconnects_at_once(server: ScriptedServer) -> None:
    pending = server.start()
    for _ in range(2):
        server.accept(greet=False).send(f.settings(), f.goaway(0))
    server.accept()
    answer_call(server, 1, pending)


def test_after_three_goaways_at_connect_the_endpoint_is_backed_off(server: ScriptedServer) -> None:
    pending = server.start()
    for _ in range(3):
        server.accept(greet=False).send(f.settings(), f.goaway(0))
    assert ended(pending) == UNSENT
    assert server.has_no_new_connection()


def test_after_a_lost_connection_the_endpoint_is_backed_off(server: ScriptedServer) -> None:
    pending = server.first()
    server.link.socket.close()
    assert ended(pending) == (GrpcCode.UNAVAILABLE, True)
    assert ended(server.start()) == UNSENT
    assert server.has_no_new_connection()


def test_a_protocol_error_fails_all_calls_and_the_next_call_reconnects(
    server: ScriptedServer,
) -> None:
    assert server.call_answered_with(answer(1)).reply() == b"good"
    second = server.start()
    server.request(3)
    server.link.send(f.ping(b"x"))
    assert ended(second) == (GrpcCode.INTERNAL, True)
    assert server.link.frame(f.GOAWAY).code == f.FRAME_SIZE_ERROR
    pending = server.start()
    server.accept()
    answer_call(server, 1, pending)


def test_the_addresses_of_a_name_are_tried_in_turn(
    server: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    resolved_hosts: list[str] = []

    async def resolve(loop: object, host: str, port: int) -> list[str]:
        resolved_hosts.append(host)
        return [f"127.0.0.{n}" for n in (3, 2, 1)]

    monkeypatch.setattr(endpoint_channel, "lookup", resolve)
    port = server.endpoint.partition(":")[2]
    server.channel = Channel(parse_endpoints([f"several.example:{port}"]), None)
    pending = server.start()
    server.accept()
    answer_call(server, 1, pending)
    assert resolved_hosts == ["several.example"]


def test_a_connection_idle_for_too_long_is_replaced_before_a_call_is_sent(
    server: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = server.start()
    server.accept()
    answer_call(server, 1, first)
    monkeypatch.setattr(grpc, "IDLE", -1.0)
    second = server.start()
    server.accept()
    monkeypatch.undo()
    answer_call(server, 1, second)
    third = server.start()
    answer_call(server, 3, third)


def test_a_connection_is_replaced_before_its_streams_run_out(
    server: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grpc, "MAX_CALLS", 3)
    calls = [server.start(b"%d" % n) for n in range(7)]
    for count in (3, 3, 1):
        server.accept()
        for stream in range(1, 2 * count, 2):
            (message,) = server.request(stream).messages
            server.link.send(answer(stream, f.message(message)))
    assert [pending.reply() for pending in calls] == [b"%d" % n for n in range(7)]


def test_a_call_to_a_slow_server_continues_while_it_answers_pings(
    server: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keepalive, "PING_AFTER", (0.05,))
    monkeypatch.setattr(keepalive, "PING_TIMEOUT", 0.5)
    pending = server.first()
    for count in range(1, 6):
        server.link.until(lambda count=count: len(server.link.sent(f.PING)) >= count)
        server.link.send(f.ping(b"penstock", ack=True))
    server.link.send(answer(1))
    assert pending.reply() == b"good"


def test_close_sends_goaway_and_cancels_running_and_waiting_calls(server: ScriptedServer) -> None:
    running, waiting = server.start(), server.start()
    server.accept((f.MAX_CONCURRENT_STREAMS, 1))
    server.request(1)
    server.channel.close()
    assert ended(running) == (GrpcCode.CANCELLED, True)
    assert ended(waiting) == (GrpcCode.CANCELLED, False)
    server.link.until_closed()
    assert [one.code for one in server.link.sent(f.GOAWAY)] == [0]


def test_a_garbage_collected_channel_cancels_its_call_and_disconnects(
    server: ScriptedServer,
) -> None:
    pending = server.first()
    server.channel = Channel(parse_endpoints(["127.0.0.1:1"]), None)
    gc.collect()
    server.link.until(lambda: bool(server.link.sent(f.GOAWAY)))
    assert ended(pending) == (GrpcCode.CANCELLED, True)
    server.link.until_closed()


@pytest.mark.parametrize(
    ("left", "reported"),
    [
        (10.0, 10_000),
        (9.9991, 10_000),
        (9.981, 9_990),
        (0.0421, 43),
        (0.00001, 1),
        (3599.0, 3_600_000),
    ],
)
def test_timeouts_are_rounded_up_to_steps(left: float, reported: int) -> None:
    assert endpoint_channel.rounded_ms(left, ceil) == reported


@pytest.mark.parametrize(
    ("left", "reported"),
    [(9.9991, 9_990), (0.0429, 42), (0.00001, 1), (3599.0, 3_590_000)],
)
def test_timeouts_are_rounded_down_for_servers_within_anothers_timeout(
    left: float, reported: int
) -> None:
    assert endpoint_channel.rounded_ms(left, floor) == reported
