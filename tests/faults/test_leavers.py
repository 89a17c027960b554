"""Requests of disconnected clients are cancelled and not run; other clients are not affected."""

import asyncio
import time
from pathlib import Path

import grpc
import pytest

from penstock.client.messages import encode_request, pack_request
from penstock.protocols import pb
from penstock.testing.history import Admitted, Cancelled
from tests.faults.site import Site, site
from tests.kit.load import Noise, percentile

pytestmark = [pytest.mark.faults, pytest.mark.alone]

DISCONNECTS = 60
METHOD = "/baidu.paddle_serving.pipeline_serving.PipelineService/inference"


def grpc_message(number: int) -> bytes:
    feed = {"n": str(number)}
    return encode_request(pack_request(feed, None, own_address=str, log_id=number))


def check_delays(at: Site, disconnected: dict[int, float], noise: Noise) -> None:
    """Every disconnect was noticed in time; both sides use the machine's monotonic clock."""
    events = at.events()
    numbers = {event.data_id: event.log_id for event in events if isinstance(event, Admitted)}
    cancelled = {
        numbers[event.data_id]: event.t for event in events if isinstance(event, Cancelled)
    }
    assert cancelled.keys() == disconnected.keys()
    delays = [cancelled[number] - disconnected[number] for number in disconnected]
    assert noise.allows(percentile(delays, 90), 0.1)
    assert noise.allows(max(delays), 0.2)


async def test_queued_requests_of_disconnected_http_clients_are_not_run(tmp_path: Path) -> None:
    async with site(tmp_path) as at, Noise() as noise:
        clients = at.clients
        holder = asyncio.create_task(clients.send_request(do_work="hold"))
        disconnected: dict[int, float] = {}
        async with at.held():
            waiting = [asyncio.create_task(clients.send_request()) for _ in range(DISCONNECTS)]
            connections = []
            for _ in range(DISCONNECTS):
                connection = await clients.connect()
                number, data = clients.begin({})
                connection.writer.write(data)
                connections.append((number, connection))
            await asyncio.sleep(0.2)  # by then all are admitted, or never will be
            for turn, (number, connection) in enumerate(connections):
                disconnected[number] = time.monotonic()
                if turn % 2:
                    connection.reset()
                else:
                    connection.writer.close()
                clients.disconnected(number)
                await asyncio.sleep(0)
            await asyncio.sleep(0.5)  # all disconnects are noticed before the queue moves again
        assert (await holder).good
        assert [(await task).good for task in waiting] == [True] * DISCONNECTS
        assert at.server.stop() == 0
        ran = {int(call.nonce) for call in at.calls()}
        assert not ran & disconnected.keys()
        assert len(ran) == DISCONNECTS + 1
        check_delays(at, disconnected, noise)
        assert at.verdict() == []


async def test_queued_calls_cancelled_by_grpc_clients_are_not_run(tmp_path: Path) -> None:
    async with site(tmp_path) as at, Noise() as noise:
        clients = at.clients
        holder = asyncio.create_task(clients.send_request(do_work="hold"))
        disconnected: dict[int, float] = {}
        async with grpc.aio.insecure_channel(at.server.rpc_endpoint) as channel:
            inference = channel.unary_unary(METHOD)
            async with at.held():
                calls = {number: inference(grpc_message(number)) for number in range(1001, 1101)}
                await asyncio.sleep(0.2)
                for number in range(1001, 1101, 2):
                    disconnected[number] = time.monotonic()
                    calls.pop(number).cancel()
                    await asyncio.sleep(0)
                await asyncio.sleep(0.5)
            replies = [pb.Response.FromString(await call) for call in calls.values()]
        assert [reply.err_no for reply in replies] == [0] * 50
        assert [reply.value[0] for reply in replies] == [str(number) for number in calls]
        assert (await holder).good
        assert at.server.stop() == 0
        ran = {int(call.nonce) for call in at.calls()}
        assert not ran & disconnected.keys()
        check_delays(at, disconnected, noise)
