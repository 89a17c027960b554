import asyncio
from collections import deque
from collections.abc import Iterator
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.client.call import Call, Outcome
from penstock.client.endpoint_channel import (
    PING_AFTER,
    PING_TIMEOUT,
    Connection,
    EndpointChannel,
    Keepalive,
    KeepaliveStep,
)
from penstock.client.errors import CallFailed
from penstock.protocols.grpc import HEAD, OK_TRAILERS, encode_message
from penstock.protocols.http2 import HeadReceived, Http2Connection, Role, encode_block
from penstock.protocols.status import GrpcCode

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

    def untouched(self, call: Call) -> None:
        call.end(CallFailed(GrpcCode.UNAVAILABLE, "untouched"))

    def leaving(self, connection: Connection) -> None:
        self.told.append("leaving")

    def lost(self, connection: Connection) -> None:
        self.told.append("lost")


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
        assert self.connection.open(call, BLOCK)
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


def test_calls_of_one_turn_go_out_in_one_write(loop: asyncio.AbstractEventLoop) -> None:
    site = Site(loop)
    before = len(site.wire.writes)
    for _ in range(32):
        site.call()
    assert len(site.wire.writes) == before
    site.turn()
    assert len(site.wire.writes) == before + 1
    site.connection.data_received(answers_to(b"".join(site.wire.writes)))
    assert site.outcomes == [[b"good"]] * 32
    site.end()


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


def test_a_connection_settles_with_the_servers_first_frame(
    loop: asyncio.AbstractEventLoop,
) -> None:
    site = Site(loop)
    greeting = Http2Connection(Role.SERVER).take_output()
    first = 9 + int.from_bytes(greeting[:3], "big")
    for at in range(first):
        assert not site.connection.settled.done()
        site.connection.data_received(greeting[at : at + 1])
    assert site.connection.settled.done()
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
