"""Two hundred concurrent large bodies against a small budget."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from tests.attacks.site import LATE_THREADS, MIB, Target, target
from tests.kit.usage import memory, peak_memory, reset_peak_memory, resources

pytestmark = pytest.mark.faults

CLIENTS = 200
BODY = 60 * MIB
BUDGET = 192 * MIB

PIECE = b"x" * (256 << 10)


async def send_body(port: int, *, announced: bool = True) -> str:
    """The kind of the answer, even if it comes before the body's end."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    start = b'{"key":["load"],"value":["'
    head = b"POST /echo/prediction HTTP/1.1\r\nHost: localhost\r\n"
    if announced:
        head += b"Content-Length: %d\r\n\r\n" % BODY
    else:
        head += b"Transfer-Encoding: chunked\r\n\r\n%x\r\n" % BODY
    answer = asyncio.create_task(reader.read(4096))
    try:
        writer.write(head + start)
        left = BODY - len(start) - 3
        while left and not answer.done():
            writer.write(PIECE[:left])
            left -= len(PIECE[:left])
            await writer.drain()
        writer.write(b'"]}' if announced else b'"]}\r\n0\r\n\r\n')
    except ConnectionError:
        pass  # refused before the end; the answer has arrived nevertheless
    try:
        text = await answer
    except ConnectionError:
        text = b""
    writer.close()
    if b'"err_no":0' in text:
        return "answered"
    return "busy" if b'"err_no":3004' in text else repr(text[:60])


async def flood(running_target: Target, *, announced: bool) -> Counter[str]:
    async with asyncio.timeout(45):
        return Counter(
            await asyncio.gather(
                *(send_body(running_target.port, announced=announced) for _ in range(CLIENTS))
            )
        )


@pytest.mark.parametrize("announced", [True, False], ids=["announced", "in one chunk"])
def test_memory_stays_within_the_budget_for_concurrent_large_bodies(announced: bool) -> None:
    with target({"max_inflight_bytes": BUDGET}) as running_target:
        pid = running_target.server.pid
        assert (
            asyncio.run(send_body(running_target.port)) == "answered"
        )  # memory used once is part of the base
        base = memory(pid)
        reset_peak_memory(pid)
        before = resources(pid)
        received = asyncio.run(flood(running_target, announced=announced))
        grown = peak_memory(pid) - base
        # Chunked bodies have no announced size: all may be refused shortly before their ends.
        assert received["answered"] >= announced, received
        assert received["busy"] >= CLIENTS // 2, received
        assert set(received) == {"answered", "busy"}, received
        assert grown < 1.2 * BUDGET, f"{grown // MIB} MiB, {received}"
        running_target.check_good()
        assert resources(pid)["threads"] <= before["threads"] + LATE_THREADS
        print(f"{grown / MIB:.0f} MiB above {base / MIB:.0f}, {received}")
