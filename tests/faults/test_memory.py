"""More bytes at once than the service may hold: refused before they are read, the rest answered."""

import asyncio
from pathlib import Path

import pytest

from tests.faults.load import BUSY, Answer, Clients, Connection
from tests.faults.site import Site, site

pytestmark = pytest.mark.faults

MIB = 1 << 20
BODY = 8 * MIB
BUDGET = 64 * MIB
CLIENTS = 200
READ_AHEAD = 256 << 10
"""What a connection may have read before its request is looked at."""


def memory(pid: int, line: str) -> int:
    """Bytes, from the kernel's account of a process."""
    for text in Path(f"/proc/{pid}/status").read_text().splitlines():
        if text.startswith(line + ":"):
            return int(text.split()[1]) * 1024
    raise AssertionError(f"no {line}")


async def send_large(clients: Clients, connection: Connection, piece: bytes) -> Answer:
    """Ask with a large body, and stop sending as soon as there is an answer."""
    number, _ = clients.begin({})
    start = b'{"key":["n","do_work","load"],"value":["%d","measure","' % number
    end = b'"]}'
    size = BODY - len(start) - len(end)
    head = b"POST /faults/prediction HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % BODY
    answering = asyncio.create_task(connection.answer())
    connection.writer.write(head + start)
    try:
        while size and not answering.done():
            connection.writer.write(piece[:size])
            size -= len(piece[:size])
            await connection.writer.drain()
        connection.writer.write(end)
    except ConnectionError:
        pass  # the answer is there all the same
    status, body = await answering
    answer = clients.note(number, status, body, 0.0)
    if answer.good:
        assert int(answer.value["length"]) == BODY - len(start) - len(end)
    connection.writer.close()
    return answer


async def flood(at: Site) -> tuple[list[Answer], int]:
    """What all of them get at once, and by how much the memory grew meanwhile."""
    piece = b"x" * (64 << 10)
    # One alone first: what a process has once touched is part of its base.
    assert (await send_large(at.clients, await at.clients.connect(), piece)).good
    base = memory(at.server.pid, "VmRSS")
    Path(f"/proc/{at.server.pid}/clear_refs").write_text("5")  # forget the peak
    connections = [await at.clients.connect() for _ in range(CLIENTS)]
    answers = await asyncio.gather(*(send_large(at.clients, c, piece) for c in connections))
    return list(answers), memory(at.server.pid, "VmHWM") - base


async def test_what_does_not_fit_is_refused_and_the_rest_is_answered(tmp_path: Path) -> None:
    ops = {"work": {"concurrency": 4}}
    async with site(tmp_path, ops=ops, max_inflight_bytes=BUDGET) as at:
        answers, grown = await flood(at)
        good = sum(answer.good for answer in answers)
        refused = sum(answer.err_no == BUSY for answer in answers)
        assert good + refused == CLIENTS
        assert good >= BUDGET // BODY // 2
        assert refused >= CLIENTS // 4
        assert grown < CLIENTS * BODY / 4, "with all of them it would be more than this four times"
        assert (await at.clients.ask()).good
        assert at.server.stop() == 0
        assert at.verdict() == []


async def test_memory_stays_within_the_budget(tmp_path: Path) -> None:
    ops = {"work": {"concurrency": 4}}
    async with site(tmp_path, ops=ops, max_inflight_bytes=BUDGET) as at:
        _, grown = await flood(at)
        assert grown < 1.2 * BUDGET + CLIENTS * READ_AHEAD, f"{grown // MIB} MiB"
