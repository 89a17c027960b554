"""The measured clients: each makes calls, checks replies and counts them."""

import asyncio

import pytest

from benchmarks.client_calls import CLIENTS, REPLY, Count
from benchmarks.servers.canned_grpc import CannedConnection
from penstock.protocols.pb import Response
from tests.benchmarks.fake_servers import serving


def test_calls_before_the_end_of_the_warm_up_are_not_counted() -> None:
    count = Count(0.05, warm_seconds=60.0)
    assert count.continues()
    count.answered(REPLY)
    assert count.calls == 0


@pytest.mark.parametrize("name", CLIENTS)
async def test_each_client_makes_calls_and_counts_their_replies(name: str) -> None:
    count = Count(0.2, warm_seconds=0.0)
    async with serving(lambda: CannedConnection(REPLY.SerializeToString())) as port:
        await asyncio.to_thread(CLIENTS[name], port, count)
    report = count.report()
    assert report.faults == ()
    assert report.answers > 0
    assert report.server_cpu_s > 0


@pytest.mark.parametrize("name", CLIENTS)
async def test_a_wrong_reply_is_a_fault_and_ends_the_run(name: str) -> None:
    count = Count(60.0, warm_seconds=0.0)
    wrong_reply = Response(key=["y"], value=["?"]).SerializeToString()
    async with serving(lambda: CannedConnection(wrong_reply)) as port:
        await asyncio.to_thread(CLIENTS[name], port, count)
    assert "wrong reply" in count.report().faults[0]
