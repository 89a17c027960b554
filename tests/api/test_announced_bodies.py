"""Bodies of which the length is known before they come: who is let in, and what the others keep."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import pytest

from penstock.door.budget import ByteBudget
from penstock.door.exchange import Application
from penstock.protocols.heads import RequestHead
from penstock.protocols.pb import Request, Tensor
from tests.api.recorded_exchange import RecordedExchange, grpc_head, post
from tests.api.test_decoding_room import CALL, Held, message_of, routes, service, settled

LARGE = 100_000
"""Bytes of a body."""

SMALL = struct.pack(">BI", 0, 3) + b"\x2a\x01m"


def prefix(size: int) -> bytes:
    return struct.pack(">BI", 0, size)


def document(size: int) -> bytes:
    return b'{"key":["x"],"value":["%b"]}' % (b"a" * (size - 27))


def call(application: Application, budget: ByteBudget, *pieces: bytes) -> RecordedExchange:
    """A gRPC call that has not ended; its pieces were taken."""
    exchange = RecordedExchange(grpc_head(CALL), budget)
    receiver = application.begin(exchange)
    assert receiver is not None
    for piece in pieces:
        receiver.data(exchange, piece, False)
    return exchange


async def test_a_prefix_reserves_the_message_and_what_it_decodes_to() -> None:
    budget = ByteBudget(1 << 30)
    exchange = call(service(Held()), budget, prefix(LARGE))
    assert (budget.used, budget.to_come) == (5 + 2 * LARGE, 2 * LARGE)
    exchange.release()
    assert (budget.used, budget.to_come) == (0, 0)


@pytest.mark.parametrize("cut", range(7))
async def test_a_prefix_may_be_cut_anywhere(cut: int) -> None:
    budget, held = ByteBudget(1 << 30), Held()
    body = message_of(LARGE)
    exchange = RecordedExchange(grpc_head(CALL), budget)
    receiver = service(held).begin(exchange)
    assert receiver is not None
    half = len(body) // 2
    receiver.data(exchange, body[:cut], False)
    receiver.data(exchange, body[cut:half], False)
    size = len(body) - 5
    assert (budget.used, budget.to_come) == (5 + 2 * size, 2 * size - (half - 5))
    receiver.data(exchange, body[half:], True)
    await settled()
    assert len(held.asked) == 1
    assert size <= budget.there < size + 200, "the text, and nothing else"


async def test_whoever_only_announces_keeps_nobody_small_out() -> None:
    budget, held = ByteBudget(5 * (5 + 2 * LARGE)), Held()
    application = service(held)
    full = [call(application, budget, prefix(LARGE)) for _ in range(20)]
    assert sum(not each.answered for each in full) == 5
    assert budget.there < 200
    call(application, budget, SMALL)
    exchange = RecordedExchange(post("/a/prediction", length=10_000), budget)
    assert routes(held).begin(exchange) is not None
    await settled()
    assert len(held.asked) == 1


async def test_small_ones_have_a_bound_too() -> None:
    budget, held = ByteBudget(100_000), Held()
    budget.reserve(100_000)
    exchanges = [RecordedExchange(post("/a/prediction", length=4000), budget) for _ in range(4)]
    let_in = [routes(held).begin(each) is not None for each in exchanges]
    assert let_in == [True, True, False, False]


async def test_a_second_message_of_a_unary_call_reserves_nothing() -> None:
    budget, held = ByteBudget(1 << 30), Held()
    call(service(held), budget, SMALL, prefix(1 << 24))
    await settled()
    assert len(held.asked) == 1
    assert budget.used < 100


async def test_a_stream_that_ends_within_its_message_is_told_so_however_large_it_is() -> None:
    budget = ByteBudget(1 << 20)
    exchange = RecordedExchange(grpc_head(CALL), budget)
    receiver = service(Held()).begin(exchange)
    assert receiver is not None
    receiver.data(exchange, prefix(10 << 20) + b"x" * 100, True)
    assert exchange.fields()[b"grpc-message"] == b"the call has no message"
    assert budget.refused == 0


@pytest.mark.parametrize("spare", [0, 1, 50, 200])
@pytest.mark.parametrize(
    ("application", "head", "body", "extra"),
    [
        (routes, lambda size: post("/a/prediction", length=size), document(LARGE), 0),
        (service, lambda _: grpc_head(CALL), message_of(LARGE), 5),
    ],
    ids=["HTTP", "gRPC"],
)
async def test_whoever_is_let_in_is_answered_however_little_room_is_left(
    application: Callable[[Held], Application],
    head: Callable[[int], RequestHead],
    body: bytes,
    extra: int,
    spare: int,
) -> None:
    budget, held = ByteBudget(3 * (2 * (len(body) - extra) + extra) + spare), Held()
    serving = application(held)
    exchanges = [RecordedExchange(head(len(body)), budget) for _ in range(4)]
    receivers = [serving.begin(exchange) for exchange in exchanges]
    for piece, ended in ((body[:50_000], False), (body[50_000:], True)):
        for exchange, receiver in zip(exchanges, receivers, strict=True):
            if receiver is not None and not exchange.answered:
                receiver.data(exchange, piece, ended)
    await settled()
    refused = [each.answered for each in exchanges]
    assert refused == [False, False, False, True]
    await settled()
    assert len(held.asked) == 3
    for exchange in exchanges:
        exchange.release()
    assert (budget.used, budget.to_come) == (0, 0)


async def test_identity_is_no_compression() -> None:
    used = []
    for fields in ((), ((b"content-encoding", b" Identity "),)):
        budget, held = ByteBudget(1 << 20), Held()
        body = document(LARGE)
        exchange = RecordedExchange(post("/a/prediction", *fields, length=len(body)), budget)
        receiver = routes(held).begin(exchange)
        assert receiver is not None
        receiver.data(exchange, body, True)
        await settled()
        assert len(held.asked) == 1
        used.append(budget.used)
    assert used[0] == used[1] < 2 * LARGE + 200


@pytest.mark.parametrize(
    ("field", "value", "width"),
    [("int64_data", 1, 8), ("int_data", 1, 4), ("uint32_data", 1, 4)],
)
async def test_numbers_that_are_longer_than_on_the_wire_are_counted_as_they_are(
    field: str, value: Any, width: int
) -> None:
    tensor = Tensor(name="x", shape=[LARGE], **{field: [value] * LARGE})
    plain = Request(tensors=[tensor], method="m").SerializeToString()
    for limit, fits in ((width * LARGE, False), ((width + 3) * LARGE, True)):
        budget, held = ByteBudget(limit), Held()
        exchange = RecordedExchange(grpc_head(CALL), budget)
        receiver = service(held).begin(exchange)
        assert receiver is not None
        receiver.data(exchange, struct.pack(">BI", 0, len(plain)) + plain, True)
        await settled()
        assert len(held.asked) == fits
        assert not fits or budget.used > width * LARGE
