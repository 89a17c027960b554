"""Descriptors run out: connections beyond the cap are turned away, and nothing else breaks."""

import asyncio
import socket
import sys
import time
from pathlib import Path

import pytest

from penstock.client import AsyncPipelineClient
from tests.faults.site import site, until

pytestmark = pytest.mark.faults


async def test_four_hundred_idle_connections_do_not_disturb_those_that_work(
    tmp_path: Path,
) -> None:
    command = ("prlimit", "--nofile=256:256", sys.executable)
    async with site(tmp_path, ops={"work": {"concurrency": 2}}, command=command) as at:
        clients = at.clients
        assert (await clients.ask()).good
        before = at.resources()["descriptors"]
        running = asyncio.create_task(clients.ask(do_work="hold"))
        idle: list[socket.socket] = []
        try:
            async with at.held():
                for _ in range(400):
                    one = socket.create_connection(("127.0.0.1", at.server.http_port), timeout=5)
                    idle.append(one)
                turned_away = await asyncio.to_thread(answered_with_503, idle)
                assert 400 - 192 <= turned_away < 400
                assert at.resources()["descriptors"] < 256
                async with AsyncPipelineClient() as client:  # its port has places of its own
                    await client.connect([at.server.rpc_endpoint])
                    reply = await client.predict({"n": "by gRPC"}, timeout=5.0)
                    assert list(reply.value) == ["by gRPC"]
            assert (await running).good, "work in progress is unharmed"
        finally:
            for one in idle:
                one.close()
        began = time.monotonic()
        await until(lambda: at.resources()["descriptors"] <= before + 4)
        assert (await clients.ask()).good
        assert time.monotonic() - began < 2.0
        assert at.server.stop() == 0
        assert at.verdict() == []


def answered_with_503(connections: list[socket.socket]) -> int:
    """How many of them were told so and closed; the others say nothing."""
    count = 0
    deadline = time.monotonic() + 1.0
    for one in connections:
        one.settimeout(max(0.001, deadline - time.monotonic()))
        try:
            count += one.recv(64).startswith(b"HTTP/1.1 503 ")
        except TimeoutError:
            continue
        except ConnectionResetError:
            count += 1
    return count
