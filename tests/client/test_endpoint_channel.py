"""One endpoint's channel, against a server whose every frame the test sends.

gRPC's requirements on a client's connection are tested in ``tests/rfc/test_grpc_client.py``.
"""

import asyncio
import gc
import itertools
import socket
import time
from collections import deque
from collections.abc import Iterator
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.client import endpoint_channel
from penstock.client.call import Call, Outcome
from penstock.client.channels import Channel
from penstock.client.endpoint_channel import (
    PING_AFTER,
    PING_TIMEOUT,
    Connection,
    EndpointChannel,
    Keepalive,
    KeepaliveStep,
)
from penstock.client.endpoints import parse_endpoints
from penstock.client.errors import CallFailed
from penstock.client.health import FIRST_PAUSE, LONGEST_PAUSE, Backoff
from penstock.protocols.grpc import HEAD, OK_TRAILERS, encode_message
from penstock.protocols.http2 import HeadReceived, Http2Connection, Role, encode_block
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

    async def resolve(self: object, host: str, port: int) -> list[Any]:
        resolved_hosts.append(host)
        return [(socket.AF_INET, 1, 6, "", (f"127.0.0.{n}", port)) for n in (3, 2, 1)]

    monkeypatch.setattr(endpoint_channel.EndpointChannel, "_resolve", resolve)
    port = server.endpoint.partition(":")[2]
    server.channel = Channel(parse_endpoints([f"several.example:{port}"]), None)
    pending = server.start()
    server.accept()
    answer_call(server, 1, pending)
    assert resolved_hosts == ["several.example"]


def test_a_connection_is_replaced_before_its_streams_run_out(
    server: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(endpoint_channel, "MAX_CALLS", 3)
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
    monkeypatch.setattr(endpoint_channel, "PING_AFTER", (0.05,))
    monkeypatch.setattr(endpoint_channel, "PING_TIMEOUT", 0.5)
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
    assert endpoint_channel.rounded_up_ms(left) == reported


def pauses(failures: int, chance: float = 0.5) -> list[float]:
    backoff, found, now = Backoff(), [], 100.0
    for _ in range(failures):
        backoff.failed(now, chance)
        found.append(backoff.until - now)
        now = backoff.until
    backoff.succeeded()
    assert backoff.until == 0.0
    return found


def test_each_failure_in_a_row_doubles_the_pause_up_to_a_limit() -> None:
    found = pauses(9)
    for before, after in itertools.pairwise(found):
        assert abs(after - min(2 * before, LONGEST_PAUSE)) < 1e-6
    assert abs(found[0] - FIRST_PAUSE) < 1e-6
    assert abs(found[-1] - LONGEST_PAUSE) < 1e-6


@given(st.floats(0, 1), st.integers(1, 20))
def test_jitter_changes_a_pause_by_a_fifth_at_most(chance: float, failures: int) -> None:
    moved, still = pauses(failures, chance)[-1], pauses(failures)[-1]
    assert 0.8 * still - 1e-6 <= moved <= 1.2 * still + 1e-6


# One connection, on a fake transport

OK_HEAD = encode_block([(b":status", b"200"), *HEAD])
BLOCK = encode_block(
    [
        (b":method", b"POST"),
        (b":scheme", b"http"),
        (b":path", b"/p"),
        (b":authority", b"a"),
        (b"content-type", b"application/grpc"),
    ]
)


class Owner:
    """Records the connection's events."""

    def __init__(self) -> None:
        self.waiting: deque[Call] = deque()
        self.reported: list[str] = []

    def capacity_freed(self, connection: Connection) -> None:
        self.reported.append("room made")

    def block(self, call: Call) -> bytes:
        return BLOCK

    def retry_unprocessed(self, call: Call) -> None:
        call.end(CallFailed(GrpcCode.UNAVAILABLE, "untouched"))

    def leaving(self, connection: Connection) -> None:
        self.reported.append("leaving")

    def lost(self, connection: Connection) -> None:
        self.reported.append("lost")

    def call_ended(self, outcome: Outcome) -> None:
        """Not recorded: tests check each call's outcome."""


class FakeTransport(asyncio.Transport):
    """Records writes; reports its closing in the loop's next turn, as a real transport does."""

    def __init__(self, loop: asyncio.AbstractEventLoop, connection: Connection) -> None:
        super().__init__()
        self.writes: list[bytes] = []
        self._loop = loop
        self._connection = connection
        self._is_closing = False

    def write(self, data: bytes) -> None:  # type: ignore[override]
        assert data
        self.writes.append(data)

    def is_closing(self) -> bool:
        return self._is_closing

    def close(self) -> None:
        if not self._is_closing:
            self._is_closing = True
            self._loop.call_soon(self._connection.connection_lost, None)

    abort = close


class Harness:
    """One connection over a fake transport; records its calls' outcomes."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.owner = Owner()
        self.connection = Connection(cast(EndpointChannel, self.owner), loop, "peer:1")
        self.transport = FakeTransport(loop, self.connection)
        self.connection.connection_made(self.transport)
        self.outcomes: list[list[Outcome]] = []

    def call(self, message: bytes = b"ask") -> Call:
        seen: list[Outcome] = []
        self.outcomes.append(seen)
        call = Call(encode_message(message), None, seen.append)
        assert self.connection.open(call)
        return call

    def turn(self) -> None:
        """Run all callbacks that are due."""
        for _ in range(3):
            self.loop.run_until_complete(asyncio.sleep(0))

    def end(self) -> None:
        self.transport.close()
        self.turn()


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    yield loop
    loop.close()


def answers_to(written: bytes, reply: bytes = b"good") -> bytes:
    """A server's output for these bytes of a client."""
    server = Http2Connection(Role.SERVER)
    for event in server.receive(written):
        if isinstance(event, HeadReceived):
            server.reply(event.stream, OK_HEAD, encode_message(reply), encode_block(OK_TRAILERS))
    return server.take_output()


def test_nothing_is_written_while_writing_is_paused(
    loop: asyncio.AbstractEventLoop,
) -> None:
    site = Harness(loop)
    site.connection.pause_writing()
    site.call()
    site.turn()
    before = len(site.transport.writes)
    site.connection.resume_writing()
    assert len(site.transport.writes) == before + 1
    site.end()


CUTS = st.lists(st.integers(0, 2000), max_size=8)


def received_in_pieces(site: Harness, data: bytes, cuts: list[int]) -> None:
    edges = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    for start, end in zip(edges, edges[1:], strict=False):  # noqa: RUF007 - edges may be equal
        if start < end and site.transport.writes and not site.transport.is_closing():
            site.connection.data_received(data[start:end])
            site.turn()


@given(
    cuts=CUTS,
    changes=st.lists(st.tuples(st.integers(0, 400), st.integers(0, 255)), max_size=4),
    rest=st.binary(max_size=60),
)
def test_each_call_has_one_outcome_for_any_bytes_of_the_server(
    cuts: list[int], changes: list[tuple[int, int]], rest: bytes
) -> None:
    with asyncio.Runner() as runner:
        site = Harness(runner.get_loop())
        for _ in range(3):
            site.call()
        site.turn()
        data = bytearray(answers_to(b"".join(site.transport.writes)))
        for at, value in changes:
            data[at % len(data)] = value
        received_in_pieces(site, bytes(data) + rest, cuts)
        site.end()
        assert [len(seen) for seen in site.outcomes] == [1, 1, 1]
        assert site.owner.reported.count("lost") == 1


def test_no_ping_is_sent_while_bytes_arrive() -> None:
    keepalive = Keepalive(0.0)
    for now in range(0, 1000, 10):
        keepalive.last_received = float(now)
        assert keepalive.poll(now + 9.0) == PING_AFTER[0] - 9.0


def test_a_peer_that_does_not_answer_a_ping_is_given_up() -> None:
    keepalive = Keepalive(0.0)
    assert keepalive.poll(PING_AFTER[0]) is KeepaliveStep.PING
    assert keepalive.poll(PING_AFTER[0] + PING_TIMEOUT) is KeepaliveStep.GIVE_UP


def test_any_byte_after_a_ping_counts_as_its_answer() -> None:
    keepalive = Keepalive(0.0)
    assert keepalive.poll(PING_AFTER[0]) is KeepaliveStep.PING
    keepalive.last_received = PING_AFTER[0] + 1.0
    assert keepalive.poll(PING_AFTER[0] + PING_TIMEOUT) == PING_AFTER[1] + 1.0 - PING_TIMEOUT


def test_the_keepalive_time_starts_with_the_first_call_after_an_idle_time() -> None:
    keepalive = Keepalive(0.0)
    keepalive.started(5000.0)
    assert keepalive.poll(5000.0) == PING_AFTER[0]


@given(st.lists(st.floats(0.0, 100.0), max_size=30))
def test_a_keepalive_wait_is_always_positive(steps: list[float]) -> None:
    keepalive, now = Keepalive(0.0), 0.0
    for step in steps:
        now += step
        answer = keepalive.poll(now)
        if answer is KeepaliveStep.GIVE_UP:
            return
        assert answer is KeepaliveStep.PING or answer > 0
