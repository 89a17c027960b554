"""Calls of every kind, without a connection."""

from __future__ import annotations

import asyncio
import gzip
import struct
import time
from collections.abc import Callable

import pytest

from penstock.api.grpc import Grpc, GrpcCall
from penstock.api.router import Router
from penstock.door.budget import ByteBudget
from penstock.errors import ServiceBusy
from penstock.protocols import grpc
from penstock.protocols.status import GrpcCode
from tests.api.recorded_exchange import RecordedExchange, grpc_head

MOST = 1 << 16


def framed(data: bytes, *, packed: bool = False) -> bytes:
    return struct.pack(">BI", packed, len(data)) + data


LEADING = grpc.encode_metadata([("took-part", "two"), ("seal-bin", b"\x00\xff")])
TRAILING = grpc.encode_metadata([("cost", "3")])


def echo(call: GrpcCall, message: bytes) -> None:
    call.reply(message[::-1])


async def echo_stream(call: GrpcCall) -> None:
    while (message := await call.read()) is not None:
        await call.write(message[::-1])


def with_metadata(call: GrpcCall, message: bytes) -> None:
    call.start(LEADING)
    call.reply(message[::-1], TRAILING)


def with_trailers(call: GrpcCall, message: bytes) -> None:
    call.reply(message[::-1], TRAILING)


async def wait_forever(call: GrpcCall) -> None:
    await asyncio.Event().wait()


SERVICE = Router(
    [
        Grpc("/a.B/Echo", unary=echo),
        Grpc("/a.B/Probe", unary=echo, always=True),
        Grpc("/a.B/Echoes", stream=echo_stream),
        Grpc("/a.B/Labels", unary=with_metadata),
        Grpc("/a.B/Remarks", unary=with_trailers),
        Grpc("/a.B/Sleeps", stream=wait_forever),
    ],
    max_message_bytes=MOST,
)


def begin_call(path: str, *headers: tuple[bytes, bytes], most: int = 1 << 20) -> RecordedExchange:
    exchange = RecordedExchange(grpc_head(path, *headers), ByteBudget(most))
    exchange.state = SERVICE.begin(exchange)
    assert exchange.state is not None or exchange.answered
    return exchange


async def until(done: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not done():
            await asyncio.sleep(0)


def is_failed(exchange: RecordedExchange, code: GrpcCode, text: str) -> bool:
    headers = (*grpc.HEAD, *grpc.trailers(code, text))
    return exchange.replies == [(200, headers, b"", False)]


def is_echo(exchange: RecordedExchange) -> bool:
    reply = (200, grpc.HEAD, framed(b"cba"), False)
    return exchange.replies == [reply] and exchange.trailers == grpc.OK_TRAILERS


async def test_a_unary_call_is_answered_by_its_function() -> None:
    exchange = begin_call("/a.B/Echo")
    exchange.state.data(exchange, framed(b"abc"), True)
    assert is_echo(exchange)


WHOLE_BODIES = {
    "good": framed(b"abc"),
    "no content": framed(b""),
    "nothing": b"",
    "cut off": framed(b"abc")[:-1],
    "too much": framed(b"abc") + b"x",
    "two": framed(b"abc") + framed(b"def"),
    "packed": framed(gzip.compress(b"abc"), packed=True),
    "large": framed(bytes(10_000)),
    "too large": framed(bytes(MOST + 1)),
}


@pytest.mark.parametrize("most", [1 << 20, 0], ids=["room", "no room"])
@pytest.mark.parametrize("over_limit", [False, True], ids=["usual", "over_limit"])
@pytest.mark.parametrize("path", ["Echo", "Probe", "Labels", "Remarks", "Unheard"])
@pytest.mark.parametrize("body", WHOLE_BODIES.values(), ids=list(WHOLE_BODIES))
async def test_a_call_that_arrives_whole_is_answered_as_one_in_pieces(
    body: bytes, path: str, over_limit: bool, most: int
) -> None:
    exchanges = []
    for whole in (None, body):
        exchange = RecordedExchange(grpc_head(f"/a.B/{path}"), ByteBudget(most), whole)
        exchange.over_limit = over_limit
        receiver = SERVICE.begin(exchange)
        if receiver is not None:
            receiver.data(exchange, body, True)
        assert exchange.answered
        exchanges.append(exchange)
    usual, at_once = exchanges
    assert (at_once.sent, at_once.replies) == (usual.sent, usual.replies)
    assert (at_once.heads, at_once.trailers) == (usual.heads, usual.trailers)
    assert at_once.taken == usual.taken
    assert at_once._budget.refused == usual._budget.refused


@pytest.mark.parametrize(
    ("pieces", "code"),
    [
        ([b""], GrpcCode.INVALID_ARGUMENT),
        ([framed(b"a") + framed(b"b")], GrpcCode.INVALID_ARGUMENT),
        ([framed(b"abc")[:-1]], GrpcCode.INVALID_ARGUMENT),
        ([framed(b"x" * (MOST + 1))], GrpcCode.RESOURCE_EXHAUSTED),
        ([framed(b"abc", packed=True)], GrpcCode.INTERNAL),
    ],
    ids=["none", "two", "cut short", "too large", "packed without saying so"],
)
async def test_a_body_that_is_no_single_message_fails_the_call(
    pieces: list[bytes], code: GrpcCode
) -> None:
    exchange = begin_call("/a.B/Echo")
    for piece in pieces:
        if not exchange.answered:
            exchange.state.data(exchange, piece, piece is pieces[-1])
    assert len(exchange.replies) == 1
    assert int(exchange.fields()[b"grpc-status"]) == code


async def test_a_second_message_ends_a_running_unary_call() -> None:
    cancelled = []

    def hold(call: GrpcCall, message: bytes) -> None:
        call.exchange.on_gone = lambda: cancelled.append(message)

    service = Router([Grpc("/a.B/Holds", unary=hold)], max_message_bytes=MOST)
    exchange = RecordedExchange(grpc_head("/a.B/Holds"))
    exchange.state = service.begin(exchange)
    exchange.state.data(exchange, framed(b"a"), False)
    exchange.state.data(exchange, framed(b"b"), True)
    assert cancelled == [b"a"]
    assert is_failed(exchange, GrpcCode.INVALID_ARGUMENT, "the call has more than one message")


async def test_a_whole_message_is_answered_before_its_stream_ends() -> None:
    exchange = begin_call("/a.B/Echo")
    exchange.state.data(exchange, framed(b"abc"), False)
    assert is_echo(exchange)


async def test_bytes_beyond_the_budget_fail_the_call_with_a_retry_pushback() -> None:
    exchange = begin_call("/a.B/Echo", most=10)
    exchange.state.data(exchange, framed(b"x" * 100), True)
    fields = exchange.fields()
    assert int(fields[b"grpc-status"]) == GrpcCode.RESOURCE_EXHAUSTED
    assert fields[b"grpc-retry-pushback-ms"] == b"1000"


async def test_a_method_may_handle_such_errors_itself() -> None:
    errors: list[object] = []
    method = Grpc("/a.B/Own", unary=echo, failed=lambda call, error: errors.append(type(error)))
    service = Router([method], max_message_bytes=MOST)
    exchange = RecordedExchange(grpc_head("/a.B/Own"), ByteBudget(10))
    exchange.state = service.begin(exchange)
    exchange.state.data(exchange, framed(b"x" * 100), True)
    assert errors == [ServiceBusy]


async def test_messages_of_a_stream_are_answered_one_by_one() -> None:
    exchange = begin_call("/a.B/Echoes")
    exchange.state.data(exchange, framed(b"ab") + framed(b"cd")[:3], False)
    await until(lambda: len(exchange.sent) == 2)
    exchange.state.data(exchange, framed(b"cd")[3:], True)
    await until(lambda: len(exchange.sent) == 4)
    assert exchange.sent == [
        ("start", b"200"),
        ("send", framed(b"ba")),
        ("send", framed(b"dc")),
        ("finish", b""),
    ]
    assert exchange.trailers == grpc.OK_TRAILERS
    assert exchange.taken < 32


async def test_a_sender_too_far_ahead_is_paused_until_its_messages_are_read() -> None:
    exchange = begin_call("/a.B/Sleeps")
    exchange.state.data(exchange, framed(b"x") * 100, False)
    assert exchange.paused
    call: GrpcCall = exchange.state
    for _ in range(100):
        assert await call.read() == b"x"
    assert not exchange.paused
    exchange.on_gone and exchange.on_gone()


async def test_a_stream_that_is_closed_ends_after_the_messages_that_have_arrived() -> None:
    exchange = begin_call("/a.B/Sleeps")
    call: GrpcCall = exchange.state
    exchange.state.data(exchange, framed(b"a"), False)
    assert call.inbox is not None
    call.inbox.close()
    exchange.state.data(exchange, framed(b"b"), False)
    async with asyncio.timeout(5):
        assert [await call.read(), await call.read(), await call.read()] == [b"a", b"b", None]
    exchange.on_gone and exchange.on_gone()


async def test_a_handler_waits_for_a_client_that_does_not_read() -> None:
    exchange = begin_call("/a.B/Echoes")
    exchange.waiting = 1 << 20
    exchange.state.data(exchange, framed(b"ab") + framed(b"cd"), True)
    await until(lambda: exchange.on_writable is not None)
    assert exchange.sent == [("start", b"200"), ("send", framed(b"ba"))]
    exchange.waiting = 0
    assert exchange.on_writable is not None
    exchange.on_writable()
    await until(lambda: len(exchange.sent) == 4)


async def test_a_message_that_does_not_arrive_in_time_ends_the_call() -> None:
    for path in ("/a.B/Echo", "/a.B/Sleeps"):
        exchange = begin_call(path)
        exchange.state.late(exchange)
        late = "no message arrived in time"
        assert is_failed(exchange, GrpcCode.DEADLINE_EXCEEDED, late)


async def test_the_time_for_a_message_is_limited_by_the_call_s_deadline() -> None:
    exchange = begin_call("/a.B/Echo", (b"grpc-timeout", b"1500m"))
    assert 0 < exchange.body_deadline - time.monotonic() <= 1.5
