"""Answers of one turn are written together, but the last one that is open is not made to wait."""

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
    """Answers nothing by itself."""

    def __init__(self) -> None:
        self.held: list[Exchange] = []

    def begin(self, exchange: Exchange) -> Receiver | None:
        self.held.append(exchange)
        return None


class Wire(asyncio.Transport):
    """Keeps what is written."""

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


async def test_only_what_has_company_waits_for_the_end_of_the_turn() -> None:
    application = Holds()
    shared = DoorState(application, DoorLimits(), ByteBudget(1 << 20))
    wires = [Wire() for _ in range(3)]
    for wire in wires:
        Http2Session(shared, wire).data_received(READ)
    for wire in wires:
        wire.written = b""
    first, second, third = application.held
    first.reply(200, (), b"first")
    second.reply(200, (), b"second")
    assert [wire.written for wire in wires] == [b"", b"", b""]
    third.reply(200, (), b"third")
    for wire, body in zip(wires, (b"first", b"second", b"third"), strict=True):
        assert body in wire.written
    before = [wire.written for wire in wires]
    await asyncio.sleep(0)
    assert [wire.written for wire in wires] == before
