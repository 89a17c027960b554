"""Clients that go away: what they asked for is not run, and nobody else notices."""

import asyncio
import time
from pathlib import Path

import grpc
import pytest

from penstock.client.messages import encode_request, pack_request
from penstock.protocols import pb
from penstock.testing.history import Admitted, Cancelled
from tests.faults.load import Noise, percentile
from tests.faults.site import Site, site

pytestmark = [pytest.mark.faults, pytest.mark.alone]

LEAVERS = 60
METHOD = "/baidu.paddle_serving.pipeline_serving.PipelineService/inference"


def grpc_message(number: int) -> bytes:
    feed = {"n": str(number)}
    return encode_request(pack_request(feed, None, own_address=str, log_id=number))


def judge_notice(at: Site, left: dict[int, float], noise: Noise) -> None:
    """Every leaver was noticed, and soon; both sides read the machine's monotonic clock."""
    events = at.events()
    numbers = {event.data_id: event.log_id for event in events if isinstance(event, Admitted)}
    gone = {numbers[event.data_id]: event.t for event in events if isinstance(event, Cancelled)}
    assert gone.keys() == left.keys()
    delays = [gone[number] - left[number] for number in left]
    assert noise.allows(percentile(delays, 90), 0.1)
    assert noise.allows(max(delays), 0.2)


async def test_what_http_clients_no_longer_wait_for_is_not_run(tmp_path: Path) -> None:
    async with site(tmp_path) as at, Noise() as noise:
        clients = at.clients
        holder = asyncio.create_task(clients.ask(do_work="hold"))
        left: dict[int, float] = {}
        async with at.held():
            staying = [asyncio.create_task(clients.ask()) for _ in range(LEAVERS)]
            leaving = []
            for _ in range(LEAVERS):
                connection = await clients.connect()
                number, data = clients.begin({})
                connection.writer.write(data)
                leaving.append((number, connection))
            await asyncio.sleep(0.2)  # they are all inside by then, or else are never admitted
            for turn, (number, connection) in enumerate(leaving):
                left[number] = time.monotonic()
                if turn % 2:
                    connection.reset()
                else:
                    connection.writer.close()
                clients.left(number)
                await asyncio.sleep(0)
            await asyncio.sleep(0.5)  # all of them are noticed before the queue moves again
        assert (await holder).good
        assert [(await task).good for task in staying] == [True] * LEAVERS
        assert at.server.stop() == 0
        ran = {int(call.nonce) for call in at.calls()}
        assert not ran & left.keys()
        assert len(ran) == LEAVERS + 1
        judge_notice(at, left, noise)
        assert at.verdict() == []


async def test_what_grpc_clients_no_longer_wait_for_is_not_run(tmp_path: Path) -> None:
    async with site(tmp_path) as at, Noise() as noise:
        clients = at.clients
        holder = asyncio.create_task(clients.ask(do_work="hold"))
        left: dict[int, float] = {}
        async with grpc.aio.insecure_channel(at.server.rpc_endpoint) as channel:
            inference = channel.unary_unary(METHOD)
            async with at.held():
                calls = {number: inference(grpc_message(number)) for number in range(1001, 1101)}
                await asyncio.sleep(0.2)
                for number in range(1001, 1101, 2):
                    left[number] = time.monotonic()
                    calls.pop(number).cancel()
                    await asyncio.sleep(0)
                await asyncio.sleep(0.5)
            replies = [pb.Response.FromString(await call) for call in calls.values()]
        assert [reply.err_no for reply in replies] == [0] * 50
        assert [reply.value[0] for reply in replies] == [str(number) for number in calls]
        assert (await holder).good
        assert at.server.stop() == 0
        ran = {int(call.nonce) for call in at.calls()}
        assert not ran & left.keys()
        judge_notice(at, left, noise)
