"""Ports that are bound before they are listened on, by one process or by several."""

from __future__ import annotations

import asyncio

import pytest

from penstock.engine.budget import ByteBudget
from penstock.errors import StartupError
from penstock.frontends.door import Door, DoorLimits
from penstock.frontends.listeners import bind, port_of
from tests.frontends.door.applications import Parrot

HOST = "127.0.0.1"
CLIENTS = 200
REQUEST = b"GET /echo HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"


async def status(port: int) -> bytes:
    reader, writer = await asyncio.open_connection(HOST, port)
    writer.write(REQUEST)
    answer = await reader.read()
    writer.close()
    return answer.split(b"\r\n", 1)[0]


def new_door() -> Door:
    parrot = Parrot()
    parrot.loop = asyncio.get_running_loop()
    return Door(parrot, DoorLimits(), ByteBudget(1 << 20))


async def test_doors_that_share_a_port_each_get_a_part_and_one_carries_on_alone() -> None:
    first = bind(HOST, 0, "port", shared=True)
    port = port_of(first)
    doors = [new_door(), new_door()]
    await doors[0].listen(first, None)
    await doors[1].listen(bind(HOST, port, "port", shared=True), None)
    answers = await asyncio.gather(*(status(port) for _ in range(CLIENTS)))
    assert set(answers) == {b"HTTP/1.1 200 OK"}
    parts = [door.statistics().accepted for door in doors]
    assert sum(parts) == CLIENTS
    assert min(parts) > CLIENTS // 10
    await doors[0].close(1.0)
    answers = await asyncio.gather(*(status(port) for _ in range(20)))
    assert set(answers) == {b"HTTP/1.1 200 OK"}
    await doors[1].close(1.0)


def test_a_port_that_is_not_shared_is_taken_once() -> None:
    with bind(HOST, 0, "port") as first:
        port = port_of(first)
        first.listen()
        for shared in (False, True):
            with pytest.raises(StartupError, match=f"port {port} on"):
                bind(HOST, port, "port", shared=shared)
