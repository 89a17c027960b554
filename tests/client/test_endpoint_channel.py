"""One endpoint through our channel, with a server whose every move the test makes.

What gRPC's documents ask of a client on a connection is in ``tests/rfc/test_grpc_client.py``.
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
from tests.kit.grpc_server import Asked, Called, answer, called

UNSENT = (GrpcCode.UNAVAILABLE, False)


@pytest.fixture
def server() -> Iterator[Called]:
    with called() as one:
        yield one


def ended(asked: Asked) -> tuple[GrpcCode, bool]:
    """How a call failed: its status, and whether it was sent."""
    failure = asked.failure()
    return failure.status, failure.sent


def answered(server: Called, stream: int, asked: Asked) -> None:
    server.asked(stream)
    server.link.send(answer(stream))
    assert asked.reply() == b"good"


def test_many_calls_share_one_connection_and_have_their_own_answers(server: Called) -> None:
    calls = [server.start(b"%d" % n) for n in range(50)]
    server.accept()
    for stream in reversed(range(1, 101, 2)):
        (message,) = server.asked(stream).messages
        server.link.send(answer(stream, f.message(b"to " + message)))
    assert [asked.reply() for asked in calls] == [b"to %d" % n for n in range(50)]
    assert server.nobody_came()


def test_calls_beyond_the_servers_limit_wait_in_order(server: Called) -> None:
    calls = [server.start(b"%d" % n) for n in range(5)]
    server.accept((f.MAX_CONCURRENT_STREAMS, 2))
    for stream in (1, 3, 5, 7, 9):
        assert server.asked(stream).messages == [b"%d" % (stream // 2)]
        server.link.alive(b"%08d" % stream)
        assert max(server.link.streams) <= stream + 2
        server.link.send(answer(stream))
    assert [asked.reply() for asked in calls] == [b"good"] * 5


def test_a_call_that_waits_for_room_ends_at_its_deadline_unsent(server: Called) -> None:
    first, second, third = server.start(), server.start(b"late", 0.2), server.start(b"third")
    server.accept((f.MAX_CONCURRENT_STREAMS, 1))
    assert ended(second) == (GrpcCode.DEADLINE_EXCEEDED, False)
    answered(server, 1, first)
    assert server.asked(3).messages == [b"third"]
    answered(server, 3, third)


def test_a_call_that_is_late_already_is_not_sent(server: Called) -> None:
    assert ended(server.start(b"ask", 0.0)) == (GrpcCode.DEADLINE_EXCEEDED, False)
    assert server.nobody_came()


def test_an_idle_connection_that_the_server_closes_costs_no_call(server: Called) -> None:
    for _ in range(3):
        asked = server.start()
        server.accept()
        answered(server, 1, asked)
        server.link.socket.shutdown(socket.SHUT_WR)
        server.link.until_closed()  # our client has heard of it, too


def test_a_server_that_does_not_greet_is_no_server(
    server: Called, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(endpoint_channel, "CONNECT_SECONDS", 0.1)
    failure = server.start().failure()
    assert (failure.status, failure.sent) == UNSENT
    assert "nothing came within 0.1 s" in str(failure)
    server.accept(greet=False).until_closed()


def test_a_server_of_another_protocol_is_told_from_one_of_ours(server: Called) -> None:
    asked = server.start()
    server.accept(greet=False).send(b"HTTP/1.1 400 Bad Request\r\n\r\n")
    assert ended(asked) == UNSENT


def test_after_a_failure_the_endpoint_is_left_alone_for_a_while(
    server: Called, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(endpoint_channel, "FIRST_PAUSE", 0.5)
    asked = server.start()
    server.accept(greet=False).socket.close()
    assert ended(asked) == UNSENT
    for _ in range(5):
        assert ended(server.start()) == UNSENT
    assert server.nobody_came()
    time.sleep(0.65)  # the pause itself, at its longest
    asked = server.start()
    server.accept()
    answered(server, 1, asked)


def test_a_server_that_is_being_replaced_is_asked_again_at_once(server: Called) -> None:
    asked = server.start()
    for _ in range(2):
        server.accept(greet=False).send(f.settings(), f.goaway(0))
    server.accept()
    answered(server, 1, asked)


def test_a_server_that_dismisses_everybody_is_left_alone(server: Called) -> None:
    asked = server.start()
    for _ in range(3):
        server.accept(greet=False).send(f.settings(), f.goaway(0))
    assert ended(asked) == UNSENT
    assert server.nobody_came()


def test_a_server_that_drops_every_call_is_left_alone_too(server: Called) -> None:
    asked = server.first()
    server.link.socket.close()
    assert ended(asked) == (GrpcCode.UNAVAILABLE, True)
    assert ended(server.start()) == UNSENT
    assert server.nobody_came()


def test_a_broken_rule_fails_every_call_and_the_next_has_a_new_connection(server: Called) -> None:
    assert server.played(answer(1)).reply() == b"good"
    second = server.start()
    server.asked(3)
    server.link.send(f.ping(b"x"))
    assert ended(second) == (GrpcCode.INTERNAL, True)
    assert server.link.frame(f.GOAWAY).code == f.FRAME_SIZE_ERROR
    asked = server.start()
    server.accept()
    answered(server, 1, asked)


def test_the_addresses_of_a_name_are_tried_in_turn(
    server: Called, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked_for: list[str] = []

    async def resolve(self: object, host: str, port: int) -> list[Any]:
        asked_for.append(host)
        return [(socket.AF_INET, 1, 6, "", (f"127.0.0.{n}", port)) for n in (3, 2, 1)]

    monkeypatch.setattr(endpoint_channel.EndpointChannel, "_resolve", resolve)
    port = server.endpoint.partition(":")[2]
    server.channel = Channel(parse_endpoints([f"several.example:{port}"]), None)
    asked = server.start()
    server.accept()
    answered(server, 1, asked)
    assert asked_for == ["several.example"]


def test_a_connection_is_replaced_before_its_streams_run_out(
    server: Called, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(endpoint_channel, "MAX_CALLS", 3)
    calls = [server.start(b"%d" % n) for n in range(7)]
    for count in (3, 3, 1):
        server.accept()
        for stream in range(1, 2 * count, 2):
            (message,) = server.asked(stream).messages
            server.link.send(answer(stream, f.message(message)))
    assert [asked.reply() for asked in calls] == [b"%d" % n for n in range(7)]


def test_a_slow_server_that_answers_pings_is_waited_for(
    server: Called, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(endpoint_channel, "PING_AFTER", (0.05,))
    monkeypatch.setattr(endpoint_channel, "PING_TIMEOUT", 0.5)
    asked = server.first()
    for count in range(1, 6):
        server.link.until(lambda count=count: len(server.link.sent(f.PING)) >= count)
        server.link.send(f.ping(b"penstock", ack=True))
    server.link.send(answer(1))
    assert asked.reply() == b"good"


def test_closing_says_goodbye_and_cancels_what_runs_and_what_waits(server: Called) -> None:
    running, waiting = server.start(), server.start()
    server.accept((f.MAX_CONCURRENT_STREAMS, 1))
    server.asked(1)
    server.channel.close()
    assert ended(running) == (GrpcCode.CANCELLED, True)
    assert ended(waiting) == (GrpcCode.CANCELLED, False)
    server.link.until_closed()
    assert [one.code for one in server.link.sent(f.GOAWAY)] == [0]


def test_a_channel_that_is_dropped_finishes_its_call_and_disconnects(server: Called) -> None:
    asked = server.first()
    server.channel = Channel(parse_endpoints(["127.0.0.1:1"]), None)
    gc.collect()
    server.link.until(lambda: bool(server.link.sent(f.GOAWAY)))
    assert ended(asked) == (GrpcCode.CANCELLED, True)
    server.link.until_closed()


@pytest.mark.parametrize(
    ("left", "told"),
    [
        (10.0, 10_000),
        (9.9991, 10_000),
        (9.981, 9_990),
        (0.0421, 43),
        (0.00001, 1),
        (3599.0, 3_600_000),
    ],
)
def test_times_that_are_about_equal_are_told_alike(left: float, told: int) -> None:
    assert endpoint_channel.rounded_up_ms(left) == told


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
def test_chance_moves_a_pause_by_a_fifth_at_most(chance: float, failures: int) -> None:
    moved, still = pauses(failures, chance)[-1], pauses(failures)[-1]
    assert 0.8 * still - 1e-6 <= moved <= 1.2 * still + 1e-6


# One connection, on a wire of its own

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
    """Counts what it hears."""

    def __init__(self) -> None:
        self.waiting: deque[Call] = deque()
        self.told: list[str] = []

    def capacity_freed(self, connection: Connection) -> None:
        self.told.append("room made")

    def block(self, call: Call) -> bytes:
        return BLOCK

    def retry_unprocessed(self, call: Call) -> None:
        call.end(CallFailed(GrpcCode.UNAVAILABLE, "untouched"))

    def leaving(self, connection: Connection) -> None:
        self.told.append("leaving")

    def lost(self, connection: Connection) -> None:
        self.told.append("lost")

    def call_ended(self, outcome: Outcome) -> None:
        """Each call's test looks at that itself."""


class Wire(asyncio.Transport):
    """Keeps what is written; closing is heard in the next turn, as with a real one."""

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


class Site:
    """One connection over a wire, with calls whose outcomes are kept."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.owner = Owner()
        self.connection = Connection(cast(EndpointChannel, self.owner), loop, "peer:1")
        self.wire = Wire(loop, self.connection)
        self.connection.connection_made(self.wire)
        self.outcomes: list[list[Outcome]] = []

    def call(self, message: bytes = b"ask") -> Call:
        heard: list[Outcome] = []
        self.outcomes.append(heard)
        call = Call(encode_message(message), None, heard.append)
        assert self.connection.open(call)
        return call

    def turn(self) -> None:
        """Let everything that is due run."""
        for _ in range(3):
            self.loop.run_until_complete(asyncio.sleep(0))

    def end(self) -> None:
        self.wire.close()
        self.turn()


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    yield loop
    loop.close()


def answers_to(written: bytes, reply: bytes = b"good") -> bytes:
    """What a server says to these bytes of a client."""
    server = Http2Connection(Role.SERVER)
    for event in server.receive(written):
        if isinstance(event, HeadReceived):
            server.reply(event.stream, OK_HEAD, encode_message(reply), encode_block(OK_TRAILERS))
    return server.take_output()


def test_nothing_is_written_while_the_socket_takes_nothing(
    loop: asyncio.AbstractEventLoop,
) -> None:
    site = Site(loop)
    site.connection.pause_writing()
    site.call()
    site.turn()
    before = len(site.wire.writes)
    site.connection.resume_writing()
    assert len(site.wire.writes) == before + 1
    site.end()


CUTS = st.lists(st.integers(0, 2000), max_size=8)


def received_in_pieces(site: Site, data: bytes, cuts: list[int]) -> None:
    edges = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    for start, end in zip(edges, edges[1:], strict=False):  # noqa: RUF007 - edges may be equal
        if start < end and site.wire.writes and not site.wire.is_closing():
            site.connection.data_received(data[start:end])
            site.turn()


@given(
    cuts=CUTS,
    noise=st.lists(st.tuples(st.integers(0, 400), st.integers(0, 255)), max_size=4),
    rest=st.binary(max_size=60),
)
def test_whatever_the_server_sends_each_call_has_one_outcome(
    cuts: list[int], noise: list[tuple[int, int]], rest: bytes
) -> None:
    with asyncio.Runner() as runner:
        site = Site(runner.get_loop())
        for _ in range(3):
            site.call()
        site.turn()
        data = bytearray(answers_to(b"".join(site.wire.writes)))
        for at, value in noise:
            data[at % len(data)] = value
        received_in_pieces(site, bytes(data) + rest, cuts)
        site.end()
        assert [len(heard) for heard in site.outcomes] == [1, 1, 1]
        assert site.owner.told.count("lost") == 1


def test_nothing_is_asked_while_bytes_come() -> None:
    keepalive = Keepalive(0.0)
    for now in range(0, 1000, 10):
        keepalive.last_received = float(now)
        assert keepalive.poll(now + 9.0) == PING_AFTER[0] - 9.0


def test_a_peer_that_says_nothing_to_it_is_given_up() -> None:
    keepalive = Keepalive(0.0)
    assert keepalive.poll(PING_AFTER[0]) is KeepaliveStep.PING
    assert keepalive.poll(PING_AFTER[0] + PING_TIMEOUT) is KeepaliveStep.GIVE_UP


def test_any_byte_after_it_is_an_answer() -> None:
    keepalive = Keepalive(0.0)
    assert keepalive.poll(PING_AFTER[0]) is KeepaliveStep.PING
    keepalive.last_received = PING_AFTER[0] + 1.0
    assert keepalive.poll(PING_AFTER[0] + PING_TIMEOUT) == PING_AFTER[1] + 1.0 - PING_TIMEOUT


def test_the_silence_begins_with_the_first_call_after_none() -> None:
    keepalive = Keepalive(0.0)
    keepalive.started(5000.0)
    assert keepalive.poll(5000.0) == PING_AFTER[0]


@given(st.lists(st.floats(0.0, 100.0), max_size=30))
def test_whatever_comes_a_wait_is_longer_than_nothing(steps: list[float]) -> None:
    keepalive, now = Keepalive(0.0), 0.0
    for step in steps:
        now += step
        answer = keepalive.poll(now)
        if answer is KeepaliveStep.GIVE_UP:
            return
        assert answer is KeepaliveStep.PING or answer > 0
