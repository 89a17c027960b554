"""Answers of one turn are written together, but the last open one is written at once."""

from __future__ import annotations

import asyncio
from typing import Any

from penstock.door.budget import ByteBudget
from penstock.door.exchange import Exchange, Receiver
from penstock.door.http2 import Http2Session
from penstock.door.limits import DoorLimits
from penstock.door.state import DoorState
from penstock.protocols.http2 import encode_block
from tests.protocols.http2 import peers


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

    def get_write_buffer_size(self) -> int:
        return 0

    def is_closing(self) -> bool:
        return False


READ = peers.OPENING + peers.headers(1, encode_block([*peers.POST]), end=True)


async def test_answers_wait_for_the_end_of_the_turn_while_others_are_open() -> None:
    application = Holds()
    shared = DoorState(application, DoorLimits(), ByteBudget(1 << 20))
    transports = [FakeTransport() for _ in range(3)]
    for transport in transports:
        Http2Session(shared, transport).data_received(READ)
    for transport in transports:
        transport.written = b""
    first, second, third = application.held
    first.reply(200, (), b"first")
    second.reply(200, (), b"second")
    assert [transport.written for transport in transports] == [b"", b"", b""]
    third.reply(200, (), b"third")
    for transport, body in zip(transports, (b"first", b"second", b"third"), strict=True):
        assert body in transport.written
    before = [transport.written for transport in transports]
    await asyncio.sleep(0)
    assert [transport.written for transport in transports] == before
