"""What a worker writes to standard error, however much that is."""

from __future__ import annotations

import asyncio
import os

from penstock.executors.processes.relay import Relay
from penstock.executors.processes.stderr import Stderr


class Passed(Relay):
    """Keeps what it is to pass on."""

    def __init__(self) -> None:
        super().__init__()
        self.lines = b""

    def pass_on(self, lines: bytes) -> None:
        self.lines += lines


async def test_who_writes_without_end_waits_for_the_others() -> None:
    loop, relay = asyncio.get_running_loop(), Passed()
    stderr = Stderr(loop, relay)
    os.set_blocking(stderr.writer, False)
    os.write(stderr.writer, b"\n" * (64 << 10))  # as much as the pipe holds
    while not relay.lines:
        await asyncio.sleep(0)
    assert os.write(stderr.writer, b"next\n") == 5
    for _ in range(10):  # turns of the loop in which the others have it for themselves
        await asyncio.sleep(0)
    assert len(relay.lines) == 64 << 10
    async with asyncio.timeout(5.0):
        while not relay.lines.endswith(b"next\n"):
            await asyncio.sleep(0.001)
    assert stderr.kept()[-1] == "next"
    assert len(stderr.kept()) == 200
    os.write(stderr.writer, b"x" * (64 << 10))
    while not relay.lines.endswith(b"x\n"):
        await asyncio.sleep(0)
    stderr.close()  # while it pauses
    stderr._go_on()
    assert not loop.remove_reader(stderr._reader)
