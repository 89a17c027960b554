"""Two hundred large bodies at once, against a small budget."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from tests.attacks.site import LATE_THREADS, MIB, Target, target

pytestmark = pytest.mark.faults

CLIENTS = 200
BODY = 60 * MIB
BUDGET = 192 * MIB

PIECE = b"x" * (256 << 10)


async def send_body(port: int, *, announced: bool = True) -> str:
    """The status and number that the answer has, whenever it comes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    start = b'{"key":["load"],"value":["'
    head = b"POST /attacked/prediction HTTP/1.1\r\nHost: x\r\n"
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
        pass  # refused in the middle; the answer is there all the same
    try:
        text = await answer
    except ConnectionError:
        text = b""
    writer.close()
    if b'"err_no":0' in text:
        return "answered"
    return "busy" if b'"err_no":3004' in text else repr(text[:60])


async def flood(at: Target, *, announced: bool) -> Counter[str]:
    async with asyncio.timeout(45):
        return Counter(
            await asyncio.gather(*(send_body(at.port, announced=announced) for _ in range(CLIENTS)))
        )


@pytest.mark.parametrize("announced", [True, False], ids=["announced", "in one chunk"])
def test_memory_stays_within_the_budget_for_bodies(announced: bool) -> None:
    with target({"max_inflight_bytes": BUDGET}) as at:
        assert asyncio.run(send_body(at.port)) == "answered"  # what was once touched is the base
        base = at.memory()
        at.forget_peak()
        before = at.resources()
        heard = asyncio.run(flood(at, announced=announced))
        grown = at.memory("VmHWM") - base
        # Nobody knows how long the others will be: all may be refused shortly before their ends.
        assert heard["answered"] >= announced, heard
        assert heard["busy"] >= CLIENTS // 2, heard
        assert set(heard) == {"answered", "busy"}, heard
        assert grown < 1.2 * BUDGET, f"{grown // MIB} MiB, {heard}"
        at.check_good()
        assert at.resources()["threads"] <= before["threads"] + LATE_THREADS
        print(f"{grown / MIB:.0f} MiB above {base / MIB:.0f}, {heard}")
