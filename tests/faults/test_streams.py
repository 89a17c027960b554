"""Answers in pieces with faults: the pieces of each are its first ones, and it has one end.

Generators raise, workers die, readers leave or stop for a while, and the service drains. The
clients' record is checked by ``penstock.testing.history``.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
import signal
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from penstock.testing.history import ClientHistory, Limits, check
from tests.services.process import KEPT, ServiceProcess, running

pytestmark = pytest.mark.real

SCRIPT = Path(__file__).with_name("streams.py")
STREAMS = 300
AT_ONCE = 24
LINES = {"accept": "application/x-ndjson"}


class Readers:
    """Clients that read answers in pieces; ``fates`` counts how they were to end."""

    def __init__(self, server: ServiceProcess, seed: int) -> None:
        self.history = ClientHistory()
        self.failures = 0
        self._random = random.Random(seed)
        self._client = httpx.AsyncClient(
            base_url=server.http_url, timeout=60.0, limits=httpx.Limits(keepalive_expiry=KEPT)
        )
        self._numbers = iter(range(10**6))

    async def ask(self, *, dies: bool, upto: int | None = None) -> None:
        """One request, whose fate is drawn."""
        draw = self._random
        number = next(self._numbers)
        upto = draw.choice((0, 1, 5, 40, 400)) if upto is None else upto
        body: dict[str, Any] = {"key": number, "upto": upto}
        fate = draw.random()
        leaves_at = draw.randrange(upto + 1) if fate < 0.2 else None
        if 0.2 <= fate < 0.4 and upto:
            body["fail_at"] = draw.randrange(upto)
        elif 0.4 <= fate < 0.5 and upto and dies:
            body["die_at"] = draw.randrange(upto)
        self.failures += len(body) > 2
        slow = fate > 0.9
        path = draw.choice(("/typed", "/graph"))
        self.history.invoke(number, number, time.monotonic(), pieces=upto)
        got = 0
        try:
            async with self._client.stream("POST", path, json=body, headers=LINES) as answer:
                if answer.is_error:
                    self.history.failed(number, answer.status_code, time.monotonic())
                    return
                async for line in answer.aiter_lines():
                    if got == leaves_at:
                        self.history.info(number, "left", time.monotonic())
                        return
                    piece = json.loads(line)
                    self.history.piece(number, piece["n"], piece["key"], time.monotonic())
                    got += 1
                    if slow and got % 100 == 0:
                        await asyncio.sleep(0.05)  # the reader's pace
        except httpx.RemoteProtocolError:
            self.history.failed(number, "cut", time.monotonic())
        else:
            self.history.ok(number, number, time.monotonic())

    async def close(self) -> None:
        await self._client.aclose()


@pytest.mark.parametrize("executor", ["thread", "process"])
async def test_each_answer_is_a_prefix_and_has_one_end(executor: str) -> None:
    with running(SCRIPT, environment={"EXECUTOR": executor}) as server:
        readers, seats = Readers(server, seed=1), asyncio.Semaphore(AT_ONCE)

        async def one() -> None:
            async with seats:
                await readers.ask(dies=executor == "process")

        await asyncio.gather(*(one() for _ in range(STREAMS)))
        await readers.close()
        events = readers.history.events
        assert check(events, limits=Limits(failures=readers.failures)) == []
        assert await asyncio.to_thread(server.stop) == 0
        found = re.search(r"stopped: (\d+) admitted, (\d+) answered, (\d+) cancelled", server.log())
        assert found is not None, server.log()
        admitted, answered, cancelled = map(int, found.groups())
        assert (admitted, answered + cancelled) == (STREAMS, STREAMS)


async def test_a_drain_lets_answers_in_pieces_end() -> None:
    with running(SCRIPT, environment={"EXECUTOR": "thread"}) as server:
        client = httpx.AsyncClient(
            base_url=server.http_url, timeout=60.0, limits=httpx.Limits(keepalive_expiry=KEPT)
        )
        body = {"key": 0, "upto": 3000}
        async with client.stream("POST", "/typed", json=body, headers=LINES) as answer:
            lines = answer.aiter_lines()
            got = [await anext(lines)]  # it does not end before the caller reads
            server.send_signal(signal.SIGTERM)
            got += [line async for line in lines]
        assert [json.loads(each)["n"] for each in got] == [*range(3000)]
        await client.aclose()
        assert await asyncio.to_thread(server.wait_exit) == 0
