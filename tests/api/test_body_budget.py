"""The byte budget of a body: announced, received, decoded, and released.

A large body is in memory three times while it is decoded; that is within the memory bound too."""

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
from tests.api.recorded_exchange import RecordedExchange, grpc_head, post
from tests.kit.held_protocol import HeldProtocol
from tests.kit.usage import memory, peak_memory, reset_peak_memory

SIZE = 40_000_000
"""The approximate size of a body: blocks of this size have their own memory, which is freed with
them."""
LIMIT = 3 * SIZE
LARGE = 100_000
"""Size of a body that is decoded on the loop."""
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
class Encoding:
    """A kind of request: its head, by the body's size, and its body, by the text in it."""

    head: Callable[[int], RequestHead]
    body: Callable[[bytes], bytes]


ANNOUNCED = Encoding(lambda size: post("/a/prediction", length=size), document)
CHUNKED = Encoding(lambda _: post("/a/prediction"), document)
GRPC = Encoding(lambda _: grpc_head(CALL), message)
ENCODINGS = {"a length": ANNOUNCED, "gRPC": GRPC}
by_encodings = pytest.mark.parametrize("encoding", ENCODINGS.values(), ids=list(ENCODINGS))


class BudgetedRouter:
    """The pipeline's routes with a byte budget, and the calls."""

    def __init__(self, limit: int) -> None:
        self.budget = ByteBudget(limit)
        protocol: Any = HeldProtocol()
        self.calls = protocol.calls
        routes = PaddleApplication(protocol).routes()
        self.router = Router(routes, max_message_bytes=SIZE + 1000)

    def begin(self, head: RequestHead, *pieces: bytes, ended: bool = True) -> RecordedExchange:
        """A request whose pieces arrive until it is answered."""
        exchange = RecordedExchange(head, self.budget)
        exchange.receiver = receiver = self.router.begin(exchange)
        for piece in pieces:
            if receiver is not None and not exchange.answered:
                receiver.data(exchange, piece, ended and piece is pieces[-1])
        return exchange

    def call(self, *pieces: bytes) -> RecordedExchange:
        """A gRPC call whose stream has not ended."""
        return self.begin(grpc_head(CALL), *pieces, ended=False)


async def settled() -> None:
    """Waits until all tasks have ended."""
    while tasks := asyncio.all_tasks() - {asyncio.current_task()}:
        await asyncio.wait(tasks)


def pieces_of(body: bytes, size: int = PIECE) -> list[bytes]:
    return [body[at : at + size] for at in range(0, len(body), size)]


# --- Announced sizes ---


async def test_a_prefix_reserves_the_message_and_its_decoded_size() -> None:
    site = BudgetedRouter(1 << 30)
    exchange = site.call(prefix(LARGE))
    assert (site.budget.used, site.budget.to_come) == (5 + 2 * LARGE, 2 * LARGE)
    exchange.release()
    assert (site.budget.used, site.budget.to_come) == (0, 0)


@pytest.mark.parametrize("cut", range(7))
async def test_a_prefix_may_be_split_anywhere(cut: int) -> None:
    site = BudgetedRouter(1 << 30)
    body = message(b"a" * LARGE)
    size, half = len(body) - 5, len(body) // 2
    exchange = site.call(body[:cut], body[cut:half])
    assert (site.budget.used, site.budget.to_come) == (5 + 2 * size, 2 * size - (half - 5))
    exchange.receiver.data(exchange, body[half:], True)
    await settled()
    assert len(site.calls) == 1
    assert size <= site.budget.arrived < size + 200, "the text, and nothing else"


async def test_announced_large_messages_do_not_block_small_ones() -> None:
    site = BudgetedRouter(5 * (5 + 2 * LARGE))
    full = [site.call(prefix(LARGE)) for _ in range(20)]
    assert sum(not each.answered for each in full) == 5
    assert site.budget.arrived < 200
    site.call(SMALL)
    assert site.begin(post("/a/prediction", length=10_000)).receiver is not None
    await settled()
    assert len(site.calls) == 1


async def test_small_requests_beyond_the_budget_are_limited_too() -> None:
    site = BudgetedRouter(100_000)
    site.budget.reserve(100_000)
    exchanges = [site.begin(post("/a/prediction", length=4000)) for _ in range(4)]
    assert [each.receiver is not None for each in exchanges] == [True, True, False, False]


async def test_a_second_message_of_a_unary_call_reserves_nothing() -> None:
    site = BudgetedRouter(1 << 30)
    site.call(SMALL, prefix(1 << 24))
    await settled()
    assert len(site.calls) == 1
    assert site.budget.used < 100


async def test_a_stream_that_ends_within_a_message_gets_an_error_whatever_its_size() -> None:
    site = BudgetedRouter(1 << 20)
    exchange = site.begin(grpc_head(CALL), prefix(10 << 20) + b"x" * 100)
    assert exchange.fields()[b"grpc-message"] == b"the call has no message"
    assert site.budget.refused == 0


@pytest.mark.parametrize("spare", [0, 1, 50, 200])
@by_encodings
async def test_an_accepted_request_is_answered_however_small_the_rest_of_the_budget(
    encoding: Encoding, spare: int
) -> None:
    body = encoding.body(b"a" * LARGE)
    extra = 5 if encoding is GRPC else 0
    site = BudgetedRouter(3 * (2 * (len(body) - extra) + extra) + spare)
    exchanges = [site.begin(encoding.head(len(body))) for _ in range(4)]
    for piece, ended in ((body[:50_000], False), (body[50_000:], True)):
        for exchange in exchanges:
            if exchange.receiver is not None and not exchange.answered:
                exchange.receiver.data(exchange, piece, ended)
    await settled()
    assert [each.answered for each in exchanges] == [False, False, False, True]
    assert len(site.calls) == 3
    for exchange in exchanges:
        exchange.release()
    assert (site.budget.used, site.budget.to_come) == (0, 0)


async def test_the_coding_identity_does_not_change_the_reservation() -> None:
    used = []
    for fields in ((), ((b"content-encoding", b" Identity "),)):
        site, body = BudgetedRouter(1 << 20), document(b"a" * LARGE)
        site.begin(post("/a/prediction", *fields, length=len(body)), body)
        await settled()
        assert len(site.calls) == 1
        used.append(site.budget.used)
    assert used[0] == used[1] < 2 * LARGE + 200


# --- Decoded sizes ---


@pytest.mark.parametrize(
    ("field", "width"), [("int64_data", 8), ("int_data", 4), ("uint32_data", 4)]
)
async def test_numbers_are_counted_with_their_decoded_size(field: str, width: int) -> None:
    numbers: dict[str, Any] = {field: [1] * LARGE}
    plain = Request(tensors=[Tensor(name="x", shape=[LARGE], **numbers)], method="m")
    for limit, fits in ((width * LARGE, False), ((width + 3) * LARGE, True)):
        site = BudgetedRouter(limit)
        site.begin(grpc_head(CALL), framed(plain.SerializeToString()))
        await settled()
        assert len(site.calls) == fits
        assert not fits or site.budget.used > width * LARGE


@by_encodings
@pytest.mark.parametrize(("limit", "fits"), [(400_000, False), (600_000, True)])
async def test_wide_characters_are_counted_with_their_decoded_size(
    encoding: Encoding, limit: int, fits: bool
) -> None:
    site, body = BudgetedRouter(limit), encoding.body("😀".encode() + b"a" * LARGE)
    exchange = site.begin(encoding.head(len(body)), body)
    assert len(site.calls) == fits
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
async def test_a_body_that_is_slow_to_decode_does_not_block_the_loop(
    head: RequestHead, body: bytes
) -> None:
    site = BudgetedRouter(1 << 20)
    site.begin(head, body)
    assert not site.calls
    await settled()
    assert len(site.calls) == 1


@pytest.fixture(scope="module")
def separate_process() -> Iterator[ProcessPoolExecutor]:
    """A separate process, since objects of other tests change the memory of this one."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
        yield process


ENCODINGS = {"a length": ANNOUNCED, "chunked": CHUNKED, "gRPC": GRPC}


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("others", [0, LIMIT // 12, LIMIT // 4, LIMIT // 3])
def test_the_memory_for_decoding_is_within_the_bound(
    separate_process: ProcessPoolExecutor, encoding: str, others: int
) -> None:
    taken, calls, answered, reserved = separate_process.submit(decode_one, encoding, others).result(
        60
    )
    assert others + taken < 1.2 * LIMIT
    assert calls == 1 - answered
    assert answered == (others >= LIMIT // 4), "no more is refused than has to be"
    assert reserved == (others, 0)


def decode_one(encoding: str, others: int) -> tuple[int, int, bool, tuple[int, int]]:
    """The peak memory; the number of calls; whether it was answered; the bytes that remain
    reserved."""

    async def decode() -> tuple[int, int, bool, tuple[int, int]]:
        site, body = BudgetedRouter(LIMIT), ENCODINGS[encoding].body(b"a" * SIZE)
        site.budget.reserve(others)
        pieces = pieces_of(body)
        reset_peak_memory()
        before = memory()
        exchange = site.begin(ENCODINGS[encoding].head(len(body)), *pieces)
        del pieces
        await settled()
        taken = peak_memory() - before
        answered = exchange.answered
        exchange.release()
        return taken, len(site.calls), answered, (site.budget.used, site.budget.to_come)

    return asyncio.run(decode())


@by_encodings
async def test_of_many_announced_requests_as_many_as_fit_are_answered(encoding: Encoding) -> None:
    site, body = BudgetedRouter(2 * LIMIT), encoding.body(b"a" * SIZE)
    exchanges = [site.begin(encoding.head(len(body))) for _ in range(10)]
    for at in range(0, len(body), PIECE):
        for exchange in exchanges:
            if exchange.receiver is not None and not exchange.answered:
                exchange.receiver.data(exchange, body[at : at + PIECE], at + PIECE >= len(body))
    await settled()
    assert len(site.calls) == 2
    for exchange in exchanges:
        exchange.release()
    assert (site.budget.used, site.budget.to_come) == (0, 0)
