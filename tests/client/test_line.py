import asyncio
import socket
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import h2.errors
import h2.settings
import pytest

from penstock.client import backoff, keepalive, line
from penstock.client import connection as connection_module
from penstock.client.channel import AsyncChannel
from penstock.client.endpoints import parse_endpoints
from penstock.client.errors import CallFailed
from penstock.protocols.status import GrpcCode

from .conftest import PATIENCE
from .peer import Peer, PeerConnection, Request

REFUSED = h2.errors.ErrorCodes.REFUSED_STREAM
CANCEL = int(h2.errors.ErrorCodes.CANCEL)
NO_ERROR = int(h2.errors.ErrorCodes.NO_ERROR)
MAX_STREAMS = int(h2.settings.SettingCodes.MAX_CONCURRENT_STREAMS)
WINDOW = int(h2.settings.SettingCodes.INITIAL_WINDOW_SIZE)

Call = Callable[..., "asyncio.Task[bytes]"]


@pytest.fixture
async def calls() -> AsyncIterator[Callable[[str], Call]]:
    """A channel to an endpoint, as a function that starts calls on it."""
    channels: list[AsyncChannel] = []
    tasks: set[asyncio.Task[bytes]] = set()

    def open_channel(endpoint: str) -> Call:
        channel = AsyncChannel(parse_endpoints([endpoint])[0], None)
        channels.append(channel)

        def call(message: bytes = b"ask", seconds: float = PATIENCE) -> asyncio.Task[bytes]:
            deadline = time.monotonic() + seconds
            task = asyncio.create_task(channel.call(message, deadline=deadline))
            tasks.add(task)
            return task

        call.channel = channel  # type: ignore[attr-defined]
        return call

    yield open_channel
    for channel in channels:
        await channel.close()
    if tasks:
        await asyncio.wait(tasks)
        for task in tasks:
            if not task.cancelled():
                task.exception()


Open = Callable[[str], Call]


async def failure_of(task: "asyncio.Task[bytes]") -> CallFailed:
    with pytest.raises(CallFailed) as caught:
        await asyncio.wait_for(task, PATIENCE)
    return caught.value


async def ended(task: "asyncio.Task[bytes]") -> bytes:
    return await asyncio.wait_for(task, PATIENCE)


async def test_a_call_says_what_grpc_wants_to_hear(calls: Open) -> None:
    async with Peer() as peer:
        task = calls(peer.endpoint)(b"ask", 100_000.0)
        request = await (await peer.connection()).request()
        assert request.headers == {
            ":method": "POST",
            ":scheme": "http",
            ":path": line.METHOD,
            ":authority": peer.endpoint,
            "te": "trailers",  # codespell:ignore te
            "content-type": "application/grpc",
            "grpc-accept-encoding": "identity",
            "user-agent": "penstock",
            # The time left when it is sent, rounded up to a hundred seconds here.
            "grpc-timeout": "100000S",
        }
        assert request.body == b"\0\0\0\0\x03ask"
        request.answer(b"told")
        assert await ended(task) == b"told"


async def test_many_calls_share_one_connection(calls: Open) -> None:
    async with Peer() as peer:
        call = calls(peer.endpoint)
        tasks = [call(str(n).encode()) for n in range(50)]
        connection = await peer.connection()
        for request in reversed([await connection.request() for _ in tasks]):
            request.answer(request.message)
        assert await asyncio.gather(*tasks) == [str(n).encode() for n in range(50)]
        assert peer.connections.empty()


async def test_calls_beyond_the_servers_limit_wait_in_order(calls: Open) -> None:
    async with Peer(settings={MAX_STREAMS: 2}) as peer:
        call = calls(peer.endpoint)
        tasks = [call(str(n).encode()) for n in range(5)]
        connection = await peer.connection()
        seen = []
        waiting = [await connection.request(), await connection.request()]
        for _ in range(3):
            assert connection.requests.empty()
            first = waiting.pop(0)
            seen.append(first.message)
            first.answer()
            waiting.append(await connection.request())
        for request in waiting:
            seen.append(request.message)
            request.answer()
        assert seen == [b"0", b"1", b"2", b"3", b"4"]
        assert await asyncio.gather(*tasks) == [b"good"] * 5


async def test_a_call_that_waits_for_room_ends_at_its_deadline_unsent(calls: Open) -> None:
    async with Peer(settings={MAX_STREAMS: 1}) as peer:
        call = calls(peer.endpoint)
        first, second, third = call(), call(b"late", 0.1), call(b"third")
        connection = await peer.connection()
        request = await connection.request()
        failure = await failure_of(second)
        assert (failure.status, failure.sent) == (GrpcCode.DEADLINE_EXCEEDED, False)
        request.answer()
        assert await ended(first) == b"good"
        request = await connection.request()
        assert request.message == b"third"
        request.answer()
        assert await ended(third) == b"good"


async def test_calls_that_a_leaving_server_has_not_looked_at_go_again(calls: Open) -> None:
    async with Peer() as peer:
        call = calls(peer.endpoint)
        tasks = [call(str(n).encode()) for n in range(4)]
        former = await peer.connection()
        requests = [await former.request() for _ in tasks]
        former.go_away(requests[1].stream)
        latter = await peer.connection()
        again = [await latter.request() for _ in range(2)]
        assert [request.message for request in again] == [b"2", b"3"]
        tasks.append(call(b"new"))
        again.append(await latter.request())
        for request in again:
            request.answer(b"latter")
        # h2 sends nothing more after a GOAWAY of its own: the former two end with the connection.
        former.transport.close()
        for task in tasks[:2]:
            assert (await failure_of(task)).sent
        assert await asyncio.gather(*tasks[2:]) == [b"latter"] * 3


async def answered_by_frames(request: Request) -> None:
    """Answer past h2, which is silent after a GOAWAY of its own."""
    stream = request.stream.to_bytes(4, "big")
    head, trailers = b"\x88\x0f\x10\x10application/grpc", b"\x00\x0bgrpc-status\x010"
    body = b"\0\0\0\0\x04good"
    request.line.transport.write(
        len(head).to_bytes(3, "big") + b"\x01\x04" + stream + head
        + len(body).to_bytes(3, "big") + b"\x00\x00" + stream + body
        + len(trailers).to_bytes(3, "big") + b"\x01\x05" + stream + trailers
    )  # fmt: skip


async def test_calls_that_a_leaving_server_works_on_end_where_they_are(calls: Open) -> None:
    async with Peer() as peer:
        call = calls(peer.endpoint)
        task = call()
        former = await peer.connection()
        request = await former.request()
        former.go_away(2**31 - 1)
        await answered_by_frames(request)
        assert await ended(task) == b"good"
        await asyncio.wait_for(former.lost.wait(), PATIENCE)
        task = call()
        (await (await peer.connection()).request()).answer(b"new")
        assert await ended(task) == b"new"


async def test_a_call_is_not_offered_for_ever(calls: Open) -> None:
    async with Peer() as peer:
        task = calls(peer.endpoint)()
        connection = await peer.connection()
        for _ in range(line.MAX_TRIES):
            (await connection.request()).reset(REFUSED)
        failure = await failure_of(task)
        assert (failure.status, failure.sent) == (GrpcCode.UNAVAILABLE, False)
        assert failure.retryable
        assert connection.requests.empty()


async def test_a_refused_call_that_is_taken_later_succeeds(calls: Open) -> None:
    async with Peer() as peer:
        task = calls(peer.endpoint)()
        connection = await peer.connection()
        (await connection.request()).reset(REFUSED)
        (await connection.request()).answer()
        assert await ended(task) == b"good"


async def test_a_lost_connection_fails_its_calls_and_is_made_again(calls: Open) -> None:
    async with Peer() as peer:
        call = calls(peer.endpoint)
        first, second = call(), call()
        connection = await peer.connection()
        (await connection.request()).answer()
        await ended(first)
        await connection.request()
        connection.transport.abort()
        failure = await failure_of(second)
        assert (failure.status, failure.sent) == (GrpcCode.UNAVAILABLE, True)
        assert failure.retryable
        third = call()
        (await (await peer.connection()).request()).answer()
        assert await ended(third) == b"good"


async def test_an_idle_connection_that_the_server_closes_costs_no_call(calls: Open) -> None:
    async with Peer() as peer:
        call = calls(peer.endpoint)
        for _ in range(3):
            task = call()
            connection = await peer.connection()
            (await connection.request()).answer()
            await ended(task)
            connection.transport.close()
            await asyncio.wait_for(connection.lost.wait(), PATIENCE)
            await asyncio.sleep(0)  # and our side hears of it too
            while usable(call):
                await asyncio.sleep(0.001)


def usable(call: Any) -> bool:
    current = call.channel._line._connection
    return current is not None and current.usable


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(line, "CONNECT_SECONDS", 0.1)


@pytest.mark.usefixtures("hasty")
async def test_a_server_that_does_not_greet_is_no_server(calls: Open) -> None:
    async with Peer(greets=False) as peer:
        failure = await failure_of(calls(peer.endpoint)())
        assert (failure.status, failure.sent) == (GrpcCode.UNAVAILABLE, False)
        assert "nothing came within 0.1 s" in str(failure)
        connection = await peer.connection()
        await asyncio.wait_for(connection.lost.wait(), PATIENCE)


async def test_a_server_of_another_protocol_is_told_from_one_of_ours(calls: Open) -> None:
    async with Peer(greets=False) as peer:
        task = calls(peer.endpoint)()
        (await peer.connection()).transport.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        failure = await failure_of(task)
        assert (failure.status, failure.sent) == (GrpcCode.UNAVAILABLE, False)


async def test_after_a_failure_the_endpoint_is_left_alone_for_a_while(
    calls: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backoff, "FIRST_SECONDS", 0.5)
    async with Peer(greets=False) as peer:
        call = calls(peer.endpoint)
        task = call()
        (await peer.connection()).transport.close()
        await failure_of(task)
        for _ in range(5):
            failure = await failure_of(call())
            assert (failure.status, failure.sent) == (GrpcCode.UNAVAILABLE, False)
        assert peer.connections.empty()
        peer.greets = True
        await asyncio.sleep(0.65)  # the pause itself, at its longest
        task = call()
        (await (await peer.connection()).request()).answer()
        assert await ended(task) == b"good"


async def test_a_server_that_drops_every_call_is_left_alone_too(calls: Open) -> None:
    async with Peer() as peer:
        call = calls(peer.endpoint)
        task = call()
        connection = await peer.connection()
        await connection.request()
        connection.transport.abort()
        assert (await failure_of(task)).sent
        failure = await failure_of(call())
        assert not failure.sent
        assert peer.connections.empty()


async def test_cancelling_tells_the_server(calls: Open) -> None:
    async with Peer() as peer:
        task = calls(peer.endpoint)()
        connection = await peer.connection()
        request = await connection.request()
        task.cancel()
        assert await connection.reset() == (request.stream, CANCEL)
        with pytest.raises(asyncio.CancelledError):
            await task
        request.line.flush()


async def test_a_passed_deadline_tells_the_server_and_says_that_the_call_was_sent(
    calls: Open,
) -> None:
    async with Peer() as peer:
        task = calls(peer.endpoint)(b"ask", 0.1)
        connection = await peer.connection()
        request = await connection.request()
        failure = await failure_of(task)
        assert (failure.status, failure.sent) == (GrpcCode.DEADLINE_EXCEEDED, True)
        assert await connection.reset() == (request.stream, CANCEL)


async def test_a_call_that_is_late_already_is_not_sent(calls: Open) -> None:
    async with Peer() as peer:
        failure = await failure_of(calls(peer.endpoint)(b"ask", 0.0))
        assert (failure.status, failure.sent) == (GrpcCode.DEADLINE_EXCEEDED, False)
        assert peer.connections.empty()


async def test_an_answer_before_the_end_of_the_request_ends_the_call(calls: Open) -> None:
    async with Peer(reads=False) as peer:
        task = calls(peer.endpoint)(bytes(1 << 20))
        connection = await peer.connection()
        request = await asyncio.wait_for(connection.begun.get(), PATIENCE)
        request.answer(b"enough")
        assert await ended(task) == b"enough"
        assert await connection.reset() == (request.stream, NO_ERROR)


async def test_a_large_request_goes_through_small_windows(calls: Open) -> None:
    async with Peer(settings={WINDOW: 1000}) as peer:
        message = bytes(range(256)) * 1000
        task = calls(peer.endpoint)(message)
        request = await (await peer.connection()).request()
        assert request.message == message
        request.answer()
        assert await ended(task) == b"good"


async def test_a_broken_rule_fails_every_call_and_the_next_has_a_new_connection(
    calls: Open,
) -> None:
    async with Peer() as peer:
        call = calls(peer.endpoint)
        first, second = call(), call()
        connection = await peer.connection()
        (await connection.request()).answer()
        await ended(first)
        await connection.request()
        connection.transport.write(b"\0\0\x01\x06\0\0\0\0\0x")  # a PING of one byte
        failure = await failure_of(second)
        assert (failure.status, failure.sent) == (GrpcCode.INTERNAL, True)
        await asyncio.wait_for(connection.goodbye.wait(), PATIENCE)
        task = call()
        (await (await peer.connection()).request()).answer()
        assert await ended(task) == b"good"


async def test_the_addresses_of_a_name_are_tried_in_turn(
    calls: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    async def resolve(self: object, host: str, port: int, **options: object) -> list[Any]:
        asked.append(host)
        return [(socket.AF_INET, 1, 6, "", (f"127.0.0.{n}", port)) for n in (3, 2, 1)]

    monkeypatch.setattr(line.Line, "_resolve", resolve)
    async with Peer() as peer:
        task = calls(f"several.example:{peer.port}")()
        (await (await peer.connection()).request()).answer()
        assert await ended(task) == b"good"
    assert asked == ["several.example"]


async def test_a_connection_is_replaced_before_its_streams_run_out(
    calls: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_module, "MAX_CALLS", 3)
    async with Peer() as peer:
        call = calls(peer.endpoint)
        tasks = [call(str(n).encode()) for n in range(7)]
        served = []
        for count in (3, 3, 1):
            connection = await peer.connection()
            for request in [await connection.request() for _ in range(count)]:
                served.append(request.message)
                request.answer(request.message)
        assert served == [str(n).encode() for n in range(7)]
        assert await asyncio.gather(*tasks) == served


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keepalive, "PAUSES", (0.05,))
    monkeypatch.setattr(keepalive, "PATIENCE_SECONDS", 0.05)


@pytest.mark.usefixtures("impatient")
async def test_a_dead_server_is_found_out(calls: Open) -> None:
    async with Peer() as peer:
        task = calls(peer.endpoint)()
        connection = await peer.connection()
        await connection.request()
        connection.deaf = True
        failure = await failure_of(task)
        assert (failure.status, failure.sent) == (GrpcCode.UNAVAILABLE, True)
        assert "fallen silent" in str(failure)
        await asyncio.wait_for(connection.lost.wait(), PATIENCE)


@pytest.mark.usefixtures("impatient")
async def test_a_slow_server_that_answers_pings_is_waited_for(calls: Open) -> None:
    async with Peer() as peer:
        task = calls(peer.endpoint)()
        connection = await peer.connection()
        request = await connection.request()
        pings = 0
        async with asyncio.timeout(PATIENCE):
            while pings < 5:
                await asyncio.sleep(0.01)
                pings = sum(isinstance(e, h2.events.PingReceived) for e in connection.events)
        request.answer()
        assert await ended(task) == b"good"


@pytest.mark.usefixtures("impatient")
async def test_an_idle_connection_is_not_pinged(calls: Open) -> None:
    async with Peer() as peer:
        task = calls(peer.endpoint)()
        connection = await peer.connection()
        (await connection.request()).answer()
        await ended(task)
        before = len(connection.events)
        await asyncio.sleep(0.3)
        later = connection.events[before:]
        assert not [e for e in later if isinstance(e, h2.events.PingReceived)]


async def test_closing_says_goodbye_and_cancels_what_runs_and_what_waits(calls: Open) -> None:
    async with Peer(settings={MAX_STREAMS: 1}) as peer:
        call = calls(peer.endpoint)
        running, waiting = call(), call()
        connection: PeerConnection = await peer.connection()
        await connection.request()
        await call.channel.close()  # type: ignore[attr-defined]
        for task, sent in ((running, True), (waiting, False)):
            failure = await failure_of(task)
            assert (failure.status, failure.sent) == (GrpcCode.CANCELLED, sent)
        await asyncio.wait_for(connection.goodbye.wait(), PATIENCE)
        await asyncio.wait_for(connection.lost.wait(), PATIENCE)


async def test_a_channel_that_is_dropped_disconnects() -> None:
    async with Peer() as peer:
        channel = AsyncChannel(parse_endpoints([peer.endpoint])[0], None)
        task = asyncio.create_task(channel.call(b"ask", deadline=None))
        connection = await peer.connection()
        request = await connection.request()
        del channel
        request.answer()
        assert await ended(task) == b"good"
        del task
        await asyncio.wait_for(connection.goodbye.wait(), PATIENCE)
        await asyncio.wait_for(connection.lost.wait(), PATIENCE)


@pytest.mark.parametrize(
    ("left", "told"),
    [
        (10.0, 10_000),
        (9.9991, 10_000),
        (9.981, 9_990),
        (0.0421, 43),
        (0.00001, 1),
        (3599.0, 3_600_000),
    ],
)
def test_times_that_are_about_equal_are_told_alike(left: float, told: int) -> None:
    assert line.rounded_up_ms(left) == told
