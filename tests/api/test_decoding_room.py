"""A large body is there three times while it is decoded: that fits the bound of the memory too."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable
from typing import Any

import pytest

from penstock.api.paddle import PaddleApplication
from penstock.api.replies import Writers
from penstock.api.router import Router
from penstock.door.budget import ByteBudget
from penstock.door.exchange import Application
from penstock.errors import RequestError
from penstock.protocols import paddle
from penstock.protocols.heads import RequestHead
from penstock.protocols.pb import Request
from tests.api.recorded_exchange import RecordedExchange, grpc_head, post
from tests.api.resident import memory, most_memory, take_the_mark_down

SIZE = 40_000_000
"""About the bytes of a body: so many always have memory of their own, which goes with them."""
LIMIT = 3 * SIZE
MOST = SIZE + 1000
PIECE = 250_000
CALL = "/baidu.paddle_serving.pipeline_serving.PipelineService/inference"


class Held:
    """Keeps what it is asked."""

    prepare = staticmethod(paddle.prepare)

    names = ("a",)

    def __init__(self) -> None:
        self.asked: list[paddle.Call] = []
        self.writers = Writers(None)

    def start(
        self, call: paddle.Call, timeout: float | None, done: Any, context: Any
    ) -> Callable[[], None]:
        self.asked.append(call)
        return self.asked.clear

    def as_reply(self, error: RequestError) -> None:
        return None


async def settled() -> None:
    """What threads do is done."""
    while tasks := asyncio.all_tasks() - {asyncio.current_task()}:
        await asyncio.wait(tasks)


def routes(held: Held) -> Application:
    return Router(PaddleApplication(held).routes(), max_message_bytes=MOST)  # type: ignore[arg-type]


def service(held: Held) -> Application:
    return routes(held)


def document() -> bytes:
    return b'{"key":["load"],"value":["%b"]}' % (b"a" * SIZE)


def message_of(size: int) -> bytes:
    plain = Request(key=["load"], value=["a" * size]).SerializeToString()
    return struct.pack(">BI", 0, len(plain)) + plain


def message() -> bytes:
    return message_of(SIZE)


def rare_document() -> bytes:
    return b'{"key":["load"],"value":["%b"]}' % ("😀" + "a" * 100_000).encode()


def rare_message() -> bytes:
    plain = Request(key=["load"], value=["😀" + "a" * 100_000]).SerializeToString()
    return struct.pack(">BI", 0, len(plain)) + plain


@pytest.mark.parametrize(
    ("application", "head", "make"),
    [
        (routes, lambda size: post("/a/prediction", length=size), rare_document),
        (service, lambda _: grpc_head(CALL), rare_message),
    ],
    ids=["HTTP", "gRPC"],
)
@pytest.mark.parametrize(("limit", "fits"), [(400_000, False), (600_000, True)])
async def test_a_text_of_wide_characters_is_counted_as_it_is_held(
    application: Callable[[Held], Application],
    head: Callable[[int], RequestHead],
    make: Callable[[], bytes],
    limit: int,
    fits: bool,
) -> None:
    budget = ByteBudget(limit)
    held = Held()
    body = make()
    exchange = RecordedExchange(head(len(body)), budget)
    receiver = application(held).begin(exchange)
    assert receiver is not None
    receiver.data(exchange, body, True)
    assert len(held.asked) == fits
    assert exchange.answered != fits
    if fits:
        assert budget.used > len(body) + 4 * 100_000
    exchange.release()
    assert budget.used == 0


@pytest.mark.parametrize(
    ("head", "body"),
    [
        (post("/a/m", length=60_031), b'{"key":[],"value":[],"x":[%b[]]}' % (b"[]," * 20_000)),
        (grpc_head(CALL), struct.pack(">BI", 0, 60_003) + b"\x78\x01" * 30_000 + b"*\x01m"),
        (grpc_head(CALL), struct.pack(">BI", 0, 6_003) + b"\x78\x01" * 3_000 + b"*\x01m"),
    ],
    ids=["HTTP", "gRPC", "gRPC, small"],
)
async def test_what_takes_long_to_decode_holds_nobody_up_however_small_it_is(
    head: RequestHead, body: bytes
) -> None:
    held = Held()
    exchange = RecordedExchange(head, ByteBudget(1 << 20))
    receiver = routes(held).begin(exchange)
    assert receiver is not None
    receiver.data(exchange, body, True)
    assert not held.asked
    await settled()
    assert len(held.asked) == 1


@pytest.mark.parametrize(
    ("application", "head", "make"),
    [
        (routes, lambda size: post("/a/prediction", length=size), document),
        (routes, lambda _: post("/a/prediction"), document),
        (service, lambda _: grpc_head(CALL), message),
    ],
    ids=["a length", "chunked", "gRPC"],
)
@pytest.mark.parametrize("others", [0, LIMIT // 12, LIMIT // 4, LIMIT // 3])
async def test_what_decoding_takes_is_within_the_bound(
    application: Callable[[Held], Application],
    head: Callable[[int], RequestHead],
    make: Callable[[], bytes],
    others: int,
) -> None:
    budget = ByteBudget(LIMIT)
    budget.reserve(others)
    held = Held()
    body = make()
    exchange = RecordedExchange(head(len(body)), budget)
    take_the_mark_down()
    before = memory()
    receiver = application(held).begin(exchange)
    for at in range(0, len(body), PIECE):
        if receiver is None or exchange.answered:
            break  # refused before it has come
        receiver.data(exchange, body[at : at + PIECE], at + PIECE >= len(body))
    await settled()
    assert others + most_memory() - before < 1.2 * LIMIT
    refused = exchange.answered
    assert len(held.asked) == 1 - refused
    assert refused == (others >= LIMIT // 4), "no more is refused than has to be"
    exchange.release()
    assert (budget.used, budget.to_come) == (others, 0)


@pytest.mark.parametrize(
    ("application", "head", "make"),
    [
        (routes, lambda size: post("/a/prediction", length=size), document),
        (service, lambda _: grpc_head(CALL), message),
    ],
    ids=["a length", "gRPC"],
)
async def test_of_many_that_say_how_long_they_are_as_many_as_fit_are_answered(
    application: Callable[[Held], Application],
    head: Callable[[int], RequestHead],
    make: Callable[[], bytes],
) -> None:
    budget = ByteBudget(2 * LIMIT)
    held = Held()
    body = make()
    serving = application(held)
    exchanges = [RecordedExchange(head(len(body)), budget) for _ in range(10)]
    receivers = [serving.begin(exchange) for exchange in exchanges]
    for at in range(0, len(body), PIECE):
        open_ones = [
            (receiver, exchange)
            for receiver, exchange in zip(receivers, exchanges, strict=True)
            if receiver is not None and not exchange.answered
        ]
        for receiver, exchange in open_ones:
            receiver.data(exchange, body[at : at + PIECE], at + PIECE >= len(body))
    await settled()
    assert len(held.asked) == 2
    for exchange in exchanges:
        exchange.release()
    assert (budget.used, budget.to_come) == (0, 0)
