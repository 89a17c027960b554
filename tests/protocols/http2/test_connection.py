from __future__ import annotations

import pytest

from penstock.protocols.http2 import (
    PREFACE,
    ErrorCode,
    HeadTooLarge,
    Http2Connection,
    Http2Limits,
    Role,
    encode_block,
)

from . import peers


def test_closed_streams_leave_no_state() -> None:
    connection = peers.server(Http2Limits(resets=10**9))
    for n in range(4000):
        id = 4 * n + 1  # every second identifier is skipped
        connection.receive(peers.headers(id, end=n % 2 == 0))
        stream = connection.streams[id]
        if n % 3:
            connection.reply(stream, peers.OK_BLOCK, b"%d" % n)
        connection.reset(stream, 0)
        connection.take_output()
    assert not connection.streams
    assert len(connection._reset_lately) <= 1024
    assert not connection._ready


def test_a_failed_connection_sends_one_goaway_and_resets_its_streams() -> None:
    connection = peers.server()
    connection.receive(peers.headers(1) + peers.headers(3))
    events = connection.receive(peers.data(0, b"x") + peers.headers(5))
    assert peers.merged(events) == [
        ("reset", 1, 1, False),
        ("reset", 3, 1, False),
        ("failed", ErrorCode.PROTOCOL_ERROR),
    ]
    kind, _, stream, payload = peers.frames_of(connection.take_output())[-1]
    assert (kind, stream, payload[:8]) == (7, 0, b"\0\0\0\x03\0\0\0\x01")
    assert connection.receive(peers.headers(7)) == []
    connection.ping(bytes(8))
    connection.go_away(final=True)
    assert not connection.has_output
    assert connection.failed
    assert connection.closing


@pytest.mark.parametrize("size", [0, 1, 60, 5000, 16384, 16385, 60_000])
@pytest.mark.parametrize("trailers", [None, peers.TRAILER_BLOCK])
def test_a_reply_in_one_call_makes_the_same_frames_as_in_parts(
    size: int, trailers: bytes | None
) -> None:
    connection = peers.server()
    connection.receive(peers.headers(1, end=True) + peers.headers(3, end=True))
    connection.receive(peers.window_update(0, 100_000))
    body = bytes(n % 251 for n in range(size))
    one, two = connection.streams.values()
    connection.reply(one, peers.OK_BLOCK, body, trailers)
    fast = peers.frames_of(connection.take_output())
    connection.send_head(two, peers.OK_BLOCK, end=not size and trailers is None)
    if size:
        connection.send_data(two, body, end=trailers is None)
    if trailers is not None:
        connection.send_trailers(two, trailers)
    slow = peers.frames_of(connection.take_output())
    assert [(k, f, p) for k, f, _, p in fast] == [(k, f, p) for k, f, _, p in slow]
    assert b"".join(p for kind, *_, p in fast if not kind) == body
    assert not connection.streams


def test_the_event_of_a_too_large_head_has_the_fields_that_fit() -> None:
    connection = peers.server()
    block = encode_block([*peers.GET, (b"x", b"v" * 9000), (b"y", b"z")])
    (event,) = connection.receive(peers.headers(1, block, end=True))
    assert isinstance(event, HeadTooLarge)
    assert event.fields == (*peers.GET, (b"y", b"z"))
    connection.reply(event.stream, peers.OK_BLOCK, b"")
    assert event.stream.closed
    peers.check(connection)


def test_an_incomplete_header_block_is_unfinished() -> None:
    connection = peers.server()
    connection.receive(peers.frame(1, 0, 1, peers.POST_BLOCK[:3]))
    pending = connection.unfinished
    assert pending is not None
    rest = peers.frame(9, 4, 1, peers.POST_BLOCK[3:])
    connection.receive(rest[:11])
    assert connection.unfinished is pending
    connection.receive(rest[11:])
    assert connection.unfinished is None
    assert list(connection.streams) == [1]


def test_an_incomplete_frame_is_unfinished() -> None:
    connection = peers.server()
    one = peers.headers(1)
    connection.receive(one[:5])
    first = connection.unfinished
    assert first is not None
    connection.receive(one[5:12])
    connection.receive(one[12:-1])
    second = connection.unfinished
    assert second is not None
    connection.receive(one[-1:] + peers.headers(3)[:12])
    assert connection.unfinished is not None
    assert connection.unfinished is not second, "another frame"


def test_an_incomplete_data_frame_is_not_unfinished() -> None:
    connection = peers.server()
    connection.receive(peers.headers(1) + peers.data(1, b"abc")[:-1])
    assert connection.unfinished is None


def test_a_connection_is_unfinished_before_the_peers_settings() -> None:
    connection = Http2Connection(Role.SERVER)
    assert connection.unfinished is not None
    connection.receive(PREFACE)
    assert connection.unfinished is not None
    connection.receive(peers.frame(4, 0, 0, b""))
    assert connection.unfinished is None
