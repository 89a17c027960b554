"""A client that does not read its answer is cut off; the port alone, with short limits."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncIterator

import pytest

from penstock.api.http import JSON
from penstock.door.budget import ByteBudget
from penstock.door.door import Door, DoorLimits
from penstock.door.exchange import Exchange
from penstock.door.listeners import bind, port_of

LIMIT = 0.3
LARGE = 6 << 20
ASK = b"GET /large HTTP/1.1\r\nHost: x\r\n\r\n"


class TooMuch:
    """Answers everything with too much."""

    def begin(self, exchange: Exchange) -> None:
        exchange.reply(200, (JSON,), bytes(LARGE))


@pytest.fixture
async def port() -> AsyncIterator[int]:
    listener = bind("127.0.0.1", 0, "http_port")
    limits = DoorLimits(header_timeout=0.4, keep_alive=1, write_timeout=LIMIT)
    budget = ByteBudget(1 << 30)
    door = Door(TooMuch(), limits, budget)
    await door.listen(listener)
    yield port_of(listener)
    await door.close(0.1)
    listener.close()
    assert budget.used == 0


def small_socket(port: int) -> socket.socket:
    client = socket.socket()
    # Little room, so that the answer stays with the server.
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.connect(("127.0.0.1", port))
    client.setblocking(False)
    return client


async def read_all(client: socket.socket, pause: float) -> int:
    """Bytes until the end, which may be a reset."""
    loop = asyncio.get_running_loop()
    got = 0
    try:
        while data := await loop.sock_recv(client, 1 << 20):
            got += len(data)
            await asyncio.sleep(pause)  # how slowly this client reads
    except ConnectionResetError:
        return got
    return got


async def test_a_client_that_reads_nothing_is_cut_off(port: int) -> None:
    with small_socket(port) as client:
        await asyncio.get_running_loop().sock_sendall(client, ASK)
        began = time.monotonic()
        await asyncio.sleep(4 * LIMIT)  # the fault itself
        async with asyncio.timeout(5):
            got = await read_all(client, 0)
        assert got < LARGE
        assert time.monotonic() - began < 10 * LIMIT


async def test_a_client_that_reads_slowly_but_steadily_gets_all(port: int) -> None:
    with small_socket(port) as client:
        await asyncio.get_running_loop().sock_sendall(client, ASK)
        began = time.monotonic()
        async with asyncio.timeout(20):
            got = await read_all(client, 0.0002)
        assert got > LARGE
        assert time.monotonic() - began > LIMIT
