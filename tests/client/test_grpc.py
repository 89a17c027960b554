"""One connection of gRPC calls, on a fake transport."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.client.call import Call, Outcome
from penstock.client.connection import Connection, Owner
from penstock.client.errors import CallFailed
from penstock.client.grpc import GrpcConnection
from penstock.protocols.grpc import HEAD, OK_TRAILERS, encode_message
from penstock.protocols.http2 import HeadReceived, Http2Connection, Role, encode_block
from penstock.protocols.status import GrpcCode

OK_HEAD = encode_block([(b":status", b"200"), *HEAD])


class RecordingOwner(Owner):
    """Records the connection's events."""

    def __init__(self) -> None:
        self.authority = "a"
        self.is_secure = False
        self.waiting: deque[Call] = deque()
        self.reported: list[str] = []

    def capacity_freed(self, connection: Connection) -> None:
        self.reported.append("room made")

    def left_ms(self, call: Call) -> int | None:
        return None

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
        self.owner = RecordingOwner()
        self.connection = GrpcConnection(self.owner, loop, "peer:1")
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
