"""Calls of remote ops over several endpoints."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import grpc
import pytest

from penstock.client import CallFailed
from penstock.client.channels import AsyncChannel, Channel
from penstock.client.endpoints import parse_endpoints
from penstock.client.routed_call import RoutedCall
from penstock.client.routed_channel import RoutedCalls, RoutedChannel
from penstock.protocols import pb
from penstock.protocols.status import GrpcCode

from .conftest import TIMEOUT, Service, Stuck, echo

Serve = Callable[..., Service]
REQUEST = pb.Request(key=["k"], value=["v"]).SerializeToString()


@asynccontextmanager
async def routed(*endpoints: str) -> AsyncIterator[RoutedChannel]:
    channel = AsyncChannel(parse_endpoints(endpoints), None)
    try:
        yield RoutedChannel(channel)
    finally:
        await channel.close()


def full(request: bytes, context: grpc.ServicerContext) -> bytes:
    context.set_trailing_metadata((("grpc-retry-pushback-ms", "60000"),))
    context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "at capacity")


def lost(request: bytes, context: grpc.ServicerContext) -> bytes:
    context.abort(grpc.StatusCode.UNAVAILABLE, "lost in the middle")


def soon() -> float:
    return time.monotonic() + TIMEOUT


async def test_the_less_busy_server_gets_a_call(serve: Serve, stuck: Stuck) -> None:
    busy, good = serve(stuck), serve(echo)
    async with routed(busy.endpoint, good.endpoint) as channel:
        held = None
        while not stuck.entered.is_set():
            held = asyncio.create_task(channel.call(REQUEST, deadline=soon()))
            await asyncio.sleep(0)
            await asyncio.wait({held}, timeout=0.05)
        for _ in range(20):
            await channel.call(REQUEST, deadline=soon())
        assert busy.received.qsize() == 1
        assert held is not None
        held.cancel()
        with pytest.raises(asyncio.CancelledError):
            await held
        assert await asyncio.to_thread(stuck.abandoned.wait, TIMEOUT)


async def test_a_call_that_is_refused_before_it_begins_goes_to_the_others_at_once(
    serve: Serve, dead_endpoint: str
) -> None:
    refusing, good = [serve(full) for _ in range(2)], serve(echo)
    everyone = [*(each.endpoint for each in refusing), dead_endpoint, good.endpoint]
    async with routed(*everyone) as channel:
        for _ in range(8):
            reply = pb.Response.FromString(await channel.call(REQUEST, deadline=soon()))
            assert reply.key == ["k"]
    assert all(each.received.qsize() for each in refusing)
    async with routed(*everyone[:3]) as channel:
        began = time.monotonic()
        with pytest.raises(CallFailed) as failed:
            await channel.call(REQUEST, deadline=began + 120)
        assert failed.value.retry_after == 60  # for the op's caller
        assert time.monotonic() - began < 60


async def test_a_call_that_may_have_run_is_not_repeated(serve: Serve) -> None:
    bad, good = serve(lost), serve(echo)
    found: Counter[GrpcCode | None] = Counter()
    async with routed(bad.endpoint, good.endpoint) as channel:
        for _ in range(10):
            try:
                await channel.call(REQUEST, deadline=soon())
            except CallFailed as error:
                found[error.status] += 1
            else:
                found[None] += 1
    assert found[GrpcCode.UNAVAILABLE] == bad.received.qsize() > 0
    assert found[None] == good.received.qsize() > 0


def test_a_call_may_be_cancelled_while_another_thread_closes_its_client() -> None:
    handed: list[object] = []

    class Closing(RoutedCalls):
        """Closed by another thread behind the first look."""

        looks = 0

        def __getattribute__(self, name: str) -> Any:
            if name != "_open":
                return super().__getattribute__(name)
            self.looks += 1
            thread = SimpleNamespace(hand_over=lambda *order: handed.append(order))
            return (thread, None) if self.looks == 1 else None

    calls = Closing(Channel(parse_endpoints(["127.0.0.1:1"]), None), "round_robin")
    call = RoutedCall.__new__(RoutedCall)
    calls.cancel(call, CallFailed(GrpcCode.CANCELLED, "cancelled"))
    assert len(handed) == 1
