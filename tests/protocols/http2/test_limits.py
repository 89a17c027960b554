"""Each attack is stopped with ENHANCE_YOUR_CALM; valid heavy use is not."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from penstock.protocols.http2 import ConnectionFailed, ErrorCode, Http2Connection, Http2Limits
from penstock.protocols.http2.frames import (
    PING,
    PRIORITY,
    frame,
)

from . import peers

PINGING = frame(PING, 0, 0, bytes(8))


def stream_of(n: int) -> int:
    return 2 * n + 1


def attack(connection: Http2Connection, part: Callable[[int], bytes], most: int = 3000) -> int:
    """The number of parts that were accepted, each with its own read and output."""
    for n in range(most):
        for event in connection.receive(part(n)):
            if isinstance(event, ConnectionFailed):
                assert event.code == ErrorCode.ENHANCE_YOUR_CALM
                assert connection.take_output()
                return n
        connection.take_output()
    return most


@pytest.mark.parametrize("content", [b"x", b"xyz"])
def test_a_flood_of_tiny_data_frames_is_an_attack(content: bytes) -> None:
    connection = peers.server()
    connection.receive(peers.headers(1))
    frames = attack(connection, lambda n: peers.data(1, content) * 100) * 100
    assert 10_000 < frames < 25_000


@pytest.mark.parametrize("content", [bytes(7), b"\0\0\0\0\5hello"])
def test_small_messages_are_allowed_at_any_rate(content: bytes) -> None:
    connection = peers.server()
    connection.receive(peers.headers(1))
    for _ in range(1000):
        for event in connection.receive(peers.data(1, content) * 100):
            connection.consumed(event.stream, event.counted)  # type: ignore[union-attr]
        connection.take_output()
    assert not connection.failed


def test_a_ping_for_each_request_is_allowed() -> None:
    connection = peers.server()
    for n in range(3000):
        connection.receive(peers.headers(stream_of(n), end=True) + PINGING)
        for stream in list(connection.streams.values()):
            connection.reply(stream, peers.OK_BLOCK, b"x")
        connection.take_output()
    assert not connection.failed


def test_cancelling_every_second_call_is_allowed() -> None:
    connection = peers.server()
    for n in range(3000):
        connection.receive(peers.headers(stream_of(n), end=True))
        if n % 2:
            connection.receive(peers.rst(stream_of(n)))
        else:
            connection.reply(connection.streams[stream_of(n)], peers.OK_BLOCK, b"x")
        connection.receive(peers.window_update(0, 1))
        connection.take_output()
    assert not connection.failed


def test_window_updates_of_single_bytes_are_an_attack() -> None:
    connection = peers.server(opening=peers.OPENING + peers.settings((4, 0)))
    (stream,) = [event.stream for event in connection.receive(peers.headers(1, end=True))]
    connection.send_data(stream, bytes(100_000), end=True)
    assert attack(connection, lambda n: peers.window_update(1, 1)) < 1100


def test_streams_refused_before_the_client_knows_the_limit_are_no_attack() -> None:
    connection = peers.server(Http2Limits(max_streams=10), opening=peers.OPENING[:-9])
    opened = b"".join(peers.headers(stream_of(n), end=True) for n in range(1000))
    events = connection.receive(opened)
    assert [peers.value_of(event)[0] for event in events].count("reset") == 990
    assert not connection.failed


def test_is_abused_is_set_before_the_connection_is_closed() -> None:
    connection = peers.server()
    assert not connection.is_abused
    accepted = 0
    while not connection.is_abused:
        connection.receive(PINGING)
        accepted += 1
    assert accepted < Http2Limits().pings
    connection.refill()
    assert not connection.is_abused


def test_normal_traffic_is_not_counted_as_abuse() -> None:
    connection = peers.server()
    for n in range(200):
        connection.receive(
            peers.headers(stream_of(n), end=True)
            + frame(PRIORITY, 0, stream_of(n), bytes(5))
            + peers.window_update(0, 1)
        )
        connection.reset(connection.streams[stream_of(n)], ErrorCode.NO_ERROR)
    assert not connection.is_abused
