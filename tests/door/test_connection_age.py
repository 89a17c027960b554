"""``max_connection_age``: connections end between two requests, and no request fails by it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from math import inf
from typing import Any

import pytest

from penstock.door.budget import ByteBudget
from penstock.door.exchange import Exchange, Receiver
from penstock.door.http1 import Http1Session
from penstock.door.http2 import Http2Session
from penstock.door.limits import DoorLimits
from penstock.door.state import DoorState
from penstock.protocols.http2 import encode_block
from penstock.protocols.http2.frames import ACK, PING, frame
from tests.kit.http1 import connected, request
from tests.kit.http2 import linked
from tests.protocols.http2 import peers
from tests.services.door import QUICK, TIMEOUT, Site

Opened = Callable[..., Site]

AGE = 100.0
GOAWAY = b"\x07\x00\x00\x00\x00\x00"
"""Type, flags and stream of a frame GOAWAY."""

GRPC = (b"content-type", b"application/grpc")


class Holds:
    """Holds all requests."""

    def __init__(self) -> None:
        self.held: list[Exchange] = []

    def begin(self, exchange: Exchange) -> Receiver | None:
        self.held.append(exchange)
        return None


class FakeTransport(asyncio.Transport):
    """Records what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""

    def write(self, data: Any) -> None:
        self.written += bytes(data)

    def can_write_eof(self) -> bool:
        return False

    def get_write_buffer_size(self) -> int:
        return 0

    def is_closing(self) -> bool:
        return False


class Door:
    """The state of a door of which the test has the clock."""

    def __init__(self, **limits: Any) -> None:
        self.application = Holds()
        self.shared = DoorState(self.application, DoorLimits(**limits), ByteBudget(1 << 20))
        self.transport = FakeTransport()
        self.began = self.shared.sweeper.now

    def at(self, seconds: float) -> float:
        """Move the clock to this time from the start."""
        self.shared.sweeper.now = self.began + seconds
        return self.shared.sweeper.now

    async def answer(self) -> bytes:
        """Answer the oldest request; returns what was written."""
        self.transport.written = b""
        self.application.held.pop(0).reply(200, (), b"yes")
        await asyncio.sleep(0)
        return self.transport.written


@pytest.mark.parametrize(("seconds", "last"), [(0.89 * AGE, False), (1.11 * AGE, True)])
async def test_over_http1_the_first_answer_after_the_age_is_the_last(
    seconds: float, last: bool
) -> None:
    door = Door(max_connection_age=AGE)
    session = Http1Session(door.shared, door.transport, inf)
    for _ in range(3):
        session.data_received(request(b"body"))
        assert b"connection: close" not in await door.answer()
    session.data_received(request(b"body"))
    door.at(seconds)
    assert (b"connection: close" in await door.answer()) is last
    assert session.closing is last


async def test_an_answer_in_pieces_that_begins_after_the_age_is_the_last() -> None:
    door = Door(max_connection_age=AGE)
    session = Http1Session(door.shared, door.transport, inf)
    session.data_received(request())
    door.at(1.11 * AGE)
    exchange = door.application.held[0]
    exchange.start(200, ())
    exchange.send(b"piece")
    await asyncio.sleep(0)
    assert b"connection: close" in door.transport.written
    assert not session.closing
    exchange.finish()
    await asyncio.sleep(0)
    assert session.closing


async def test_without_the_key_no_connection_is_too_old() -> None:
    door = Door()
    session = Http1Session(door.shared, door.transport, inf)
    session.data_received(request())
    door.at(1e9)
    assert b"connection: close" not in await door.answer()
    assert not session.closing


async def test_the_ages_differ_by_a_tenth_at_most() -> None:
    door = Door(max_connection_age=AGE)
    ages = [door.shared.expiry() - door.began for _ in range(1000)]
    assert 0.9 * AGE <= min(ages) < 0.95 * AGE
    assert 1.05 * AGE < max(ages) <= 1.1 * AGE


def opening(*more: tuple[bytes, bytes]) -> bytes:
    return peers.OPENING + peers.headers(1, encode_block([*peers.POST, *more]), end=True)


async def test_a_client_of_http2_with_open_requests_has_as_long_again() -> None:
    door = Door(max_connection_age=AGE)
    session = Http2Session(door.shared, door.transport)
    session.data_received(opening())
    for part in (0.89, 1.11, 1.5, 1.9):
        session.check(door.at(part * AGE))
        await asyncio.sleep(0)
        assert GOAWAY not in door.transport.written
    session.check(door.at(2.12 * AGE))
    await asyncio.sleep(0)
    assert GOAWAY + b"\x7f\xff\xff\xff" in door.transport.written
    session.check(door.at(2.12 * AGE + 4.9))
    await asyncio.sleep(0)
    assert GOAWAY + b"\x00\x00\x00\x01" not in door.transport.written
    session.check(door.at(2.12 * AGE + 5.1))
    await asyncio.sleep(0)
    assert GOAWAY + b"\x00\x00\x00\x01" in door.transport.written
    assert not session.closing, "a request is open"
    assert b"yes" in await door.answer()
    assert session.closing


async def test_a_client_of_grpc_with_open_requests_gets_the_two_steps_at_once() -> None:
    door = Door(max_connection_age=AGE)
    session = Http2Session(door.shared, door.transport)
    session.data_received(opening(GRPC))
    for more in (0, 1):
        session.check(door.at(1.11 * AGE + more))
    await asyncio.sleep(0)
    assert GOAWAY + b"\x7f\xff\xff\xff" in door.transport.written
    assert not session.closing
    assert b"yes" in await door.answer()


async def test_what_a_slow_client_sends_before_it_has_read_the_first_step_is_answered() -> None:
    door = Door(max_connection_age=AGE)
    session = Http2Session(door.shared, door.transport)
    session.data_received(opening(GRPC))
    for more in (0, 1, 2, 3, 4):
        session.check(door.at(1.11 * AGE + more))
    await door.answer()
    block = encode_block([*peers.POST, GRPC])
    session.data_received(peers.headers(3, block, end=True))
    session.data_received(frame(PING, ACK, 0, b"penstock"))
    session.check(door.at(1.11 * AGE + 4.5))
    await asyncio.sleep(0)
    assert GOAWAY + b"\x00\x00\x00\x03" in door.transport.written
    assert b"yes" in await door.answer()
    assert session.closing


async def test_a_door_that_drains_does_not_wait_for_an_old_connection() -> None:
    door = Door(max_connection_age=AGE)
    session = Http2Session(door.shared, door.transport)
    door.shared.connections.add(session)
    session.data_received(opening())
    session.check(door.at(1.11 * AGE))
    door.shared.draining = True
    session.drain()
    session.check(door.at(1.11 * AGE + 1))
    await asyncio.sleep(0)
    assert GOAWAY + b"\x7f\xff\xff\xff" in door.transport.written
    session.check(door.at(1.11 * AGE + 2))
    assert not door.shared.unacknowledged


def test_http2_is_ended_once_no_request_is_open(opened: Opened) -> None:
    site = opened(max_connection_age=QUICK)
    with linked(site.port) as client:
        held = client.open("/hold", end=True)
        assert site.echo_app.arrived.acquire(timeout=TIMEOUT)
        site.call(site.echo_app.release_held)
        assert client.answer(held).body == b"held"
        client.until_closed()
        assert client.goaways[-1] == (held, 0)


def test_http1_is_ended_by_an_answer(opened: Opened) -> None:
    site = opened(max_connection_age=QUICK, keep_alive=TIMEOUT)
    with connected(site.port) as connection:
        closes, count = None, 0
        while closes is None:
            connection.send(request(b"x", target=b"/echo"))
            answer = connection.reply()
            assert answer.body == b"x"
            closes, count = answer.header("connection"), count + 1
        assert closes == "close"
        assert count > 1
        assert connection.is_closed()
