"""``python -m benchmarks --only policies``: the batching policies on a cost that jumps.

An op (``benchmarks.servers.cliff``) takes batches of up to 32 requests, whose cost jumps at 16. Of
the clients, each with one request in flight, a third has 30 ms for an answer and the others 10
seconds. Both policies serve side by side and are measured in turn, forwards and backwards. Rows:
answers in time a second, the share of the requests with 30 ms that were late, and the median time
of an answer.
"""

from __future__ import annotations

import asyncio
import os
import re
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Final, NamedTuple

from benchmarks.runner import Server
from benchmarks.scenarios import Contender

NAME: Final = "policies"
POLICIES: Final = ("fifo", "learned")
CLIENTS: Final = (6, 24, 48)
URGENT, USUAL = 0.03, 10.0
_SLICE: Final = 1.0
"""Seconds of one measurement."""
_LENGTH: Final = re.compile(rb"(?i)\ncontent-length: *(\d+)")
_BODY: Final = b'{"x": "1"}'


class Found(NamedTuple):
    """What one policy reached in one measurement.

    Attributes:
        rate: answers in time a second.
        late: the part of the urgent requests that were answered with 504.
        p50_ms: median time of an answer in time.
    """

    rate: float
    late: float
    p50_ms: float


def main(turns: int, results: Path) -> int:
    """Measure and print the table, and keep it."""
    cores = sorted(os.sched_getaffinity(0))
    lines = ["| Clients | Policy | answers in time/s | late of 30 ms | p50 ms |"]
    lines.append("| --- | --- | ---: | ---: | ---: |")
    with ExitStack() as stack:
        servers = {}
        for policy in POLICIES:
            options = ("--batch-size", "32", "--policy", policy)
            contender = Contender(name=policy, server="cliff", options=options)
            server = Server(contender, cores[0], results / "run" / NAME / policy)
            servers[policy] = stack.enter_context(server)
            server.wait_until_ready()
        os.sched_setaffinity(0, {cores[-1]})
        for clients in CLIENTS:
            for policy, found in _compared(servers, clients, turns).items():
                rate, late, p50 = map(median, zip(*found, strict=True))
                lines.append(
                    f"| {clients} | {policy} | {rate:.0f} | {100 * late:.0f} % | {p50:.1f} |"
                )
    text = "\n".join(lines) + "\n"
    (results / "policies.md").write_text(text, encoding="utf-8")
    print(text)
    return 0


def _compared(servers: Mapping[str, Server], clients: int, turns: int) -> dict[str, list[Found]]:
    taken: dict[str, list[Found]] = {policy: [] for policy in servers}
    for turn in range(-1, turns):  # the first one is a warm-up
        for policy in [*servers] if turn % 2 else reversed([*servers]):
            found = asyncio.run(_measured(servers[policy].ports["http"], clients))
            if turn >= 0:
                taken[policy].append(found)
    return taken


async def _measured(port: int, clients: int) -> Found:
    times: list[float] = []
    urgent = late = 0
    until = time.monotonic() + _SLICE

    async def client(number: int) -> None:
        nonlocal urgent, late
        limit = USUAL if number % 3 else URGENT
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        request = (
            f"POST /cliff HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
            f"penstock-timeout: {limit}\r\ncontent-length: {len(_BODY)}\r\n\r\n"
        ).encode() + _BODY
        while (began := time.monotonic()) < until:
            writer.write(request)
            head = await reader.readuntil(b"\r\n\r\n")
            length = _LENGTH.search(head)
            assert length is not None
            text = await reader.readexactly(int(length[1]))
            status = head.split(b" ", 2)[1]
            urgent += limit == URGENT
            if status == b"200":
                times.append(time.monotonic() - began)
            elif status == b"504" and limit == URGENT:
                late += 1
            else:
                raise RuntimeError(text[:200])
        writer.close()

    await asyncio.gather(*map(client, range(clients)))
    return Found(len(times) / _SLICE, late / max(1, urgent), 1e3 * median(times or [0.0]))
