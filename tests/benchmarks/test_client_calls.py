import asyncio

import pytest

from benchmarks.client_calls import CLIENTS, REPLY, Count
from benchmarks.servers.canned_grpc import CannedConnection
from penstock.protocols.pb import Response
from tests.benchmarks.fake_servers import serving


def test_calls_count_from_the_end_of_the_warm_up_to_the_end_of_the_time() -> None:
    count = Count(0.05, warm_seconds=60.0)
    assert count.goes_on()
    count.answered(REPLY)
    assert count.calls == 0

    count = Count(0.05, warm_seconds=0.0)
    answered = 0
    while count.goes_on():
        count.answered(REPLY)
        answered += 1
    count.answered(REPLY)
    report = count.report()
    assert report.requests == answered > 0
    assert report.rps == pytest.approx(answered / report.seconds)
    assert report.seconds == pytest.approx(0.05, rel=0.5)
    assert report.server_cpu_s is not None
    assert 0 < report.server_cpu_s <= 2 * report.seconds
    assert report.fault_count == 0


@pytest.mark.parametrize("wrong", [Response(err_no=3004), Response(key=["y"], value=["[0.6]"])])
def test_a_wrong_reply_is_a_fault_and_ends_the_run(wrong: Response) -> None:
    count = Count(60.0, warm_seconds=0.0)
    assert count.goes_on()
    count.answered(wrong)
    assert not count.goes_on()
    report = count.report()
    assert "wrong reply" in report.faults[0]
    assert report.requests == 0


@pytest.mark.parametrize("name", CLIENTS)
async def test_each_client_makes_calls_and_reads_their_replies(name: str) -> None:
    count = Count(0.5, warm_seconds=0.0)
    async with serving(lambda: CannedConnection(REPLY.SerializeToString())) as port:
        await asyncio.to_thread(CLIENTS[name], port, count)
    report = count.report()
    assert report.faults == []
    assert report.requests > 0


@pytest.mark.parametrize("name", CLIENTS)
async def test_each_client_notices_a_wrong_reply(name: str) -> None:
    count = Count(5.0, warm_seconds=0.0)
    wrong = Response(key=["y"], value=["?"]).SerializeToString()
    async with serving(lambda: CannedConnection(wrong)) as port:
        await asyncio.to_thread(CLIENTS[name], port, count)
    assert count.report().fault_count > 0
