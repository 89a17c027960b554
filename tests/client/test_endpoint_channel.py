import asyncio
import itertools
import socket
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import h2.errors
import h2.settings
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.client import connection as connection_module
from penstock.client import endpoint_channel
from penstock.client.channels import AsyncChannel
from penstock.client.endpoint_channel import FIRST_PAUSE, LONGEST_PAUSE, Backoff
from penstock.client.endpoints import parse_endpoints
from penstock.client.errors import CallFailed
from penstock.protocols.status import GrpcCode

from .conftest import PATIENCE
from .peer import Peer, PeerConnection

MAX_STREAMS = int(h2.settings.SettingCodes.MAX_CONCURRENT_STREAMS)

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
    current = call.channel._channel._connection
    return current is not None and current.usable


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint_channel, "CONNECT_SECONDS", 0.1)


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
    monkeypatch.setattr(endpoint_channel, "FIRST_PAUSE", 0.5)
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


async def test_a_call_that_is_late_already_is_not_sent(calls: Open) -> None:
    async with Peer() as peer:
        failure = await failure_of(calls(peer.endpoint)(b"ask", 0.0))
        assert (failure.status, failure.sent) == (GrpcCode.DEADLINE_EXCEEDED, False)
        assert peer.connections.empty()


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

    monkeypatch.setattr(endpoint_channel.EndpointChannel, "_resolve", resolve)
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
    monkeypatch.setattr(connection_module, "PING_AFTER", (0.05,))
    monkeypatch.setattr(connection_module, "PING_TIMEOUT", 0.05)


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
    assert endpoint_channel.rounded_up_ms(left) == told


def pauses(failures: int, chance: float = 0.5) -> list[float]:
    backoff, found, now = Backoff(), [], 100.0
    for _ in range(failures):
        backoff.failed(now, chance)
        found.append(backoff.until - now)
        now = backoff.until
    return found


def test_each_failure_in_a_row_doubles_the_pause_up_to_a_limit() -> None:
    found = pauses(9)
    for before, after in itertools.pairwise(found):
        assert abs(after - min(2 * before, LONGEST_PAUSE)) < 1e-6
    assert abs(found[0] - FIRST_PAUSE) < 1e-6
    assert abs(found[-1] - LONGEST_PAUSE) < 1e-6


@given(st.floats(0, 1), st.integers(1, 20))
def test_chance_moves_a_pause_by_a_fifth_at_most(chance: float, failures: int) -> None:
    moved, still = pauses(failures, chance)[-1], pauses(failures)[-1]
    assert 0.8 * still - 1e-6 <= moved <= 1.2 * still + 1e-6


def test_an_answer_forgets_the_failures() -> None:
    backoff = Backoff()
    for _ in range(5):
        backoff.failed(1.0, 0.5)
    backoff.succeeded()
    assert backoff.until == 0.0
    backoff.failed(10.0, 0.5)
    assert abs(backoff.until - 10.0 - FIRST_PAUSE) < 1e-6
