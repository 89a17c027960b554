"""gRPC through the door, with grpcio's client and a protocol that is controlled by the test."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from penstock.api.health import Health, HealthApplication
from penstock.api.paddle import PaddleApplication
from penstock.api.router import Router
from penstock.door.budget import ByteBudget
from penstock.door.door import Door, DoorLimits
from penstock.door.listeners import bind, port_of
from penstock.protocols import paddle, pb
from tests.kit.held_protocol import HeldProtocol

SERVICE = "baidu.paddle_serving.pipeline_serving.PipelineService"
METHOD = f"/{SERVICE}/inference"
SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
MOST = 3
REPLY = paddle.Reply(key=["x"], value=["1"])


class Site:
    def __init__(self, channel: grpc.aio.Channel, protocol: HeldProtocol, health: Health) -> None:
        self.channel = channel
        self.protocol = protocol
        self.health = health
        self.probes: Any = health_pb2_grpc.HealthStub(channel)

    def call(self) -> Any:
        """A complete call."""
        return self.channel.unary_unary(METHOD)(pb.Request().SerializeToString(), timeout=20)

    async def half_open(self) -> Any:
        """A call whose message does not arrive."""
        call = self.channel.stream_unary(METHOD)(timeout=20)
        await call.wait_for_connection()
        return call

    async def code_of_another(self) -> grpc.StatusCode:
        code: grpc.StatusCode = await self.call().code()
        return code


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    protocol: Any = HeldProtocol()
    health = Health()
    routes = [
        *PaddleApplication(protocol).routes(),
        *HealthApplication(health, [SERVICE]).routes(),
    ]
    service = Router(routes, max_message_bytes=1 << 20)
    budget = ByteBudget(1 << 20)
    door = Door(service, DoorLimits(max_calls=MOST), budget)
    listener = bind("127.0.0.1", 0, "rpc_port")
    await door.listen(listener)
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port_of(listener)}") as channel:
        yield Site(channel, protocol, health)
    service.end_streams()
    await door.close(1.0)
    assert budget.used == 0


async def test_calls_beyond_the_limit_are_refused_with_a_retry_pushback(site: Site) -> None:
    calls = [site.call() for _ in range(MOST)]
    for _ in calls:
        await site.protocol.arrived.acquire()
    refused = site.call()
    assert await refused.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert "too many calls are open" in await refused.details()
    assert ("grpc-retry-pushback-ms", "1000") in list(await refused.trailing_metadata())
    site.protocol.answer(REPLY)
    for call in calls:
        assert pb.Response.FromString(await call).value == ["1"]
    assert await site.code_of_another() is grpc.StatusCode.OK


async def test_calls_without_a_message_count_for_the_limit(site: Site) -> None:
    site.protocol.answer(REPLY)
    calls = [await site.half_open() for _ in range(MOST)]
    # Until the last of them has reached the server, a complete call is still answered.
    async with asyncio.timeout(10):
        while await site.code_of_another() is not grpc.StatusCode.RESOURCE_EXHAUSTED:
            pass
    for call in calls:
        call.cancel()
    async with asyncio.timeout(10):
        while await site.code_of_another() is not grpc.StatusCode.OK:
            pass


async def test_health_checks_are_answered_while_the_limit_of_calls_is_reached(site: Site) -> None:
    site.health.set_ready()
    calls = [site.call() for _ in range(MOST)]
    for _ in calls:
        await site.protocol.arrived.acquire()
    reply = await site.probes.Check(health_pb2.HealthCheckRequest(), timeout=10)
    assert reply.status == SERVING
    site.protocol.answer(REPLY)
    await asyncio.gather(*calls)
