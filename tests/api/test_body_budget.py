"""What a body reserves of the byte budget: announced, coming in, decoded, and given back.

A large body is there three times while it is decoded; that fits the bound of the memory too.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import struct
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from typing import Any

import pytest

from penstock.api.paddle import PaddleApplication
from penstock.api.router import Router
from penstock.door.budget import ByteBudget
from penstock.protocols.heads import RequestHead
from penstock.protocols.pb import Request, Tensor
from tests.api.recorded_exchange import HeldProtocol, RecordedExchange, grpc_head, post
from tests.api.resident import memory, most_memory, take_the_mark_down

SIZE = 40_000_000
"""About the bytes of a body: so many always have memory of their own, which goes with them."""
LIMIT = 3 * SIZE
LARGE = 100_000
"""Bytes of a body that is decoded at once."""
PIECE = 250_000
CALL = "/baidu.paddle_serving.pipeline_serving.PipelineService/inference"
SMALL = struct.pack(">BI", 0, 3) + b"\x2a\x01m"


def prefix(size: int) -> bytes:
    return struct.pack(">BI", 0, size)


def framed(message: bytes) -> bytes:
    return prefix(len(message)) + message


def document(text: bytes) -> bytes:
    return b'{"key":["load"],"value":["%b"]}' % text


def message(text: bytes) -> bytes:
    return framed(Request(key=["load"], value=[text.decode()]).SerializeToString())


@dataclass(frozen=True)
class Way:
    """How a request comes in: its head, of a body's size, and its body, of a text."""

    head: Callable[[int], RequestHead]
    body: Callable[[bytes], bytes]


ANNOUNCED = Way(lambda size: post("/a/prediction", length=size), document)
CHUNKED = Way(lambda _: post("/a/prediction"), document)
GRPC = Way(lambda _: grpc_head(CALL), message)
WAYS = {"a length": ANNOUNCED, "gRPC": GRPC}
by_ways = pytest.mark.parametrize("way", WAYS.values(), ids=list(WAYS))


class Site:
    """The pipeline's routes behind a budget, and what was asked."""

    def __init__(self, limit: int) -> None:
        self.budget = ByteBudget(limit)
        protocol: Any = HeldProtocol()
        self.asked = protocol.asked
        routes = PaddleApplication(protocol).routes()
        self.router = Router(routes, max_message_bytes=SIZE + 1000)

    def begin(self, head: RequestHead, *pieces: bytes, ended: bool = True) -> RecordedExchange:
        """A request whose pieces come until it is answered."""
        exchange = RecordedExchange(head, self.budget)
        exchange.receiver = receiver = self.router.begin(exchange)
        for piece in pieces:
            if receiver is not None and not exchange.answered:
                receiver.data(exchange, piece, ended and piece is pieces[-1])
        return exchange

    def call(self, *pieces: bytes) -> RecordedExchange:
        """A gRPC call that has not ended."""
        return self.begin(grpc_head(CALL), *pieces, ended=False)


async def settled() -> None:
    """What threads do is done."""
    while tasks := asyncio.all_tasks() - {asyncio.current_task()}:
        await asyncio.wait(tasks)


def pieces_of(body: bytes, size: int = PIECE) -> list[bytes]:
    return [body[at : at + size] for at in range(0, len(body), size)]


# --- What is announced ---


async def test_a_prefix_reserves_the_message_and_what_it_decodes_to() -> None:
    site = Site(1 << 30)
    exchange = site.call(prefix(LARGE))
    assert (site.budget.used, site.budget.to_come) == (5 + 2 * LARGE, 2 * LARGE)
    exchange.release()
    assert (site.budget.used, site.budget.to_come) == (0, 0)


@pytest.mark.parametrize("cut", range(7))
async def test_a_prefix_may_be_cut_anywhere(cut: int) -> None:
    site = Site(1 << 30)
    body = message(b"a" * LARGE)
    size, half = len(body) - 5, len(body) // 2
    exchange = site.call(body[:cut], body[cut:half])
    assert (site.budget.used, site.budget.to_come) == (5 + 2 * size, 2 * size - (half - 5))
    exchange.receiver.data(exchange, body[half:], True)
    await settled()
    assert len(site.asked) == 1
    assert size <= site.budget.arrived < size + 200, "the text, and nothing else"


async def test_whoever_only_announces_keeps_nobody_small_out() -> None:
    site = Site(5 * (5 + 2 * LARGE))
    full = [site.call(prefix(LARGE)) for _ in range(20)]
    assert sum(not each.answered for each in full) == 5
    assert site.budget.arrived < 200
    site.call(SMALL)
    assert site.begin(post("/a/prediction", length=10_000)).receiver is not None
    await settled()
    assert len(site.asked) == 1


async def test_small_ones_have_a_bound_too() -> None:
    site = Site(100_000)
    site.budget.reserve(100_000)
    exchanges = [site.begin(post("/a/prediction", length=4000)) for _ in range(4)]
    assert [each.receiver is not None for each in exchanges] == [True, True, False, False]


async def test_a_second_message_of_a_unary_call_reserves_nothing() -> None:
    site = Site(1 << 30)
    site.call(SMALL, prefix(1 << 24))
    await settled()
    assert len(site.asked) == 1
    assert site.budget.used < 100


async def test_a_stream_that_ends_within_its_message_is_told_so_however_large_it_is() -> None:
    site = Site(1 << 20)
    exchange = site.begin(grpc_head(CALL), prefix(10 << 20) + b"x" * 100)
    assert exchange.fields()[b"grpc-message"] == b"the call has no message"
    assert site.budget.refused == 0


@pytest.mark.parametrize("spare", [0, 1, 50, 200])
@by_ways
async def test_whoever_is_let_in_is_answered_however_little_is_left(way: Way, spare: int) -> None:
    body = way.body(b"a" * LARGE)
    extra = 5 if way is GRPC else 0
    site = Site(3 * (2 * (len(body) - extra) + extra) + spare)
    exchanges = [site.begin(way.head(len(body))) for _ in range(4)]
    for piece, ended in ((body[:50_000], False), (body[50_000:], True)):
        for exchange in exchanges:
            if exchange.receiver is not None and not exchange.answered:
                exchange.receiver.data(exchange, piece, ended)
    await settled()
    assert [each.answered for each in exchanges] == [False, False, False, True]
    assert len(site.asked) == 3
    for exchange in exchanges:
        exchange.release()
    assert (site.budget.used, site.budget.to_come) == (0, 0)


async def test_identity_is_no_compression() -> None:
    used = []
    for fields in ((), ((b"content-encoding", b" Identity "),)):
        site, body = Site(1 << 20), document(b"a" * LARGE)
        site.begin(post("/a/prediction", *fields, length=len(body)), body)
        await settled()
        assert len(site.asked) == 1
        used.append(site.budget.used)
    assert used[0] == used[1] < 2 * LARGE + 200


# --- What it is in memory ---


@pytest.mark.parametrize(
    ("field", "width"), [("int64_data", 8), ("int_data", 4), ("uint32_data", 4)]
)
async def test_numbers_that_are_longer_than_on_the_wire_are_counted_as_they_are(
    field: str, width: int
) -> None:
    numbers: dict[str, Any] = {field: [1] * LARGE}
    plain = Request(tensors=[Tensor(name="x", shape=[LARGE], **numbers)], method="m")
    for limit, fits in ((width * LARGE, False), ((width + 3) * LARGE, True)):
        site = Site(limit)
        site.begin(grpc_head(CALL), framed(plain.SerializeToString()))
        await settled()
        assert len(site.asked) == fits
        assert not fits or site.budget.used > width * LARGE


@by_ways
@pytest.mark.parametrize(("limit", "fits"), [(400_000, False), (600_000, True)])
async def test_a_text_of_wide_characters_is_counted_as_it_is_held(
    way: Way, limit: int, fits: bool
) -> None:
    site, body = Site(limit), way.body("😀".encode() + b"a" * LARGE)
    exchange = site.begin(way.head(len(body)), body)
    assert len(site.asked) == fits
    assert exchange.answered != fits
    assert not fits or site.budget.used > len(body) + 4 * LARGE
    exchange.release()
    assert site.budget.used == 0


@pytest.mark.parametrize(
    ("head", "body"),
    [
        (post("/a/m", length=60_031), b'{"key":[],"value":[],"x":[%b[]]}' % (b"[]," * 20_000)),
        (grpc_head(CALL), framed(b"\x78\x01" * 30_000 + b"*\x01m")),
        (grpc_head(CALL), framed(b"\x78\x01" * 3_000 + b"*\x01m")),
    ],
    ids=["HTTP", "gRPC", "gRPC, small"],
)
async def test_what_takes_long_to_decode_holds_nobody_up_however_small_it_is(
    head: RequestHead, body: bytes
) -> None:
    site = Site(1 << 20)
    site.begin(head, body)
    assert not site.asked
    await settled()
    assert len(site.asked) == 1


@pytest.fixture(scope="module")
def fresh() -> Iterator[ProcessPoolExecutor]:
    """A process of its own: in this one, what other tests left behind comes and goes as well."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
        yield process


WAYS = {"a length": ANNOUNCED, "chunked": CHUNKED, "gRPC": GRPC}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("others", [0, LIMIT // 12, LIMIT // 4, LIMIT // 3])
def test_what_decoding_takes_is_within_the_bound(
    fresh: ProcessPoolExecutor, way: str, others: int
) -> None:
    taken, asked, answered, left = fresh.submit(decode_one, way, others).result(60)
    assert others + taken < 1.2 * LIMIT
    assert asked == 1 - answered
    assert answered == (others >= LIMIT // 4), "no more is refused than has to be"
    assert left == (others, 0)


def decode_one(way: str, others: int) -> tuple[int, int, bool, tuple[int, int]]:
    """Bytes that it took at most; requests asked; whether it was answered; what stays reserved."""

    async def decode() -> tuple[int, int, bool, tuple[int, int]]:
        site, body = Site(LIMIT), WAYS[way].body(b"a" * SIZE)
        site.budget.reserve(others)
        pieces = pieces_of(body)
        take_the_mark_down()
        before = memory()
        exchange = site.begin(WAYS[way].head(len(body)), *pieces)
        del pieces
        await settled()
        taken = most_memory() - before
        answered = exchange.answered
        exchange.release()
        return taken, len(site.asked), answered, (site.budget.used, site.budget.to_come)

    return asyncio.run(decode())


@by_ways
async def test_of_many_that_say_how_long_they_are_as_many_as_fit_are_answered(way: Way) -> None:
    site, body = Site(2 * LIMIT), way.body(b"a" * SIZE)
    exchanges = [site.begin(way.head(len(body))) for _ in range(10)]
    for at in range(0, len(body), PIECE):
        for exchange in exchanges:
            if exchange.receiver is not None and not exchange.answered:
                exchange.receiver.data(exchange, body[at : at + PIECE], at + PIECE >= len(body))
    await settled()
    assert len(site.asked) == 2
    for exchange in exchanges:
        exchange.release()
    assert (site.budget.used, site.budget.to_come) == (0, 0)
