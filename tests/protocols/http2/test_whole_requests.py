"""A small body that comes with its head is in the head's event."""

from __future__ import annotations

import pytest

from penstock.protocols.http2 import (
    DataReceived,
    HeadReceived,
    Http2Connection,
    Http2Limits,
    encode_block,
)
from penstock.protocols.http2.frames import frame, window_update_frame

from . import peers

KNOWN = encode_block([*peers.POST])
LIMITS = Http2Limits(max_streams=8, stream_window=100_000, connection_window=160_000)
SMALL = 10_000  # with these limits: half of the connection's window for 8 streams


def server(block: bytes = KNOWN) -> Http2Connection:
    """A server that has seen this head before; the next stream is the third."""
    core = peers.server(LIMITS)
    core.receive(peers.headers(1, block))
    return core


def test_one_event_has_head_and_small_body() -> None:
    core = server()
    (event,) = core.receive(peers.headers(3, KNOWN) + peers.data(3, b"abc", end=True))
    assert isinstance(event, HeadReceived)
    assert (event.data, event.ended, event.stream.id) == (b"abc", True, 3)
    assert event.stream.remote_ended


def test_several_requests_of_one_read_have_their_own_bodies() -> None:
    core = server()
    read = b"".join(
        peers.headers(id, KNOWN) + peers.data(id, b"%d" % id, end=True) for id in (3, 5, 7)
    )
    values = [(event.stream.id, event.data) for event in core.receive(read)]  # type: ignore[union-attr]
    assert values == [(3, b"3"), (5, b"5"), (7, b"7")]


def test_the_event_of_a_head_does_not_wait_for_an_incomplete_data_frame() -> None:
    core = server()
    read = peers.headers(3, KNOWN) + peers.data(3, b"abc", end=True)
    head, *pieces = [*core.receive(read[:-1]), *core.receive(read[-1:])]
    assert isinstance(head, HeadReceived)
    assert (head.data, head.ended) == (b"", False)
    assert b"".join(piece.data for piece in pieces) == b"abc"  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "data_frame",
    [
        peers.data(3, b"abc"),
        peers.data(3, b"", end=True),
        frame(0, 9, 3, b"\x01abc\0"),
        peers.data(3, bytes(SMALL + 1), end=True),
    ],
    ids=["more comes", "empty", "padded", "not small"],
)
def test_other_data_has_a_separate_event(data_frame: bytes) -> None:
    core = server()
    head, data = core.receive(peers.headers(3, KNOWN) + data_frame)
    assert isinstance(head, HeadReceived)
    assert isinstance(data, DataReceived)
    assert not head.data
    assert not head.ended


def test_the_window_of_a_small_body_is_returned_when_its_stream_is_closed() -> None:
    core = server()
    core.take_output()
    streams = []
    for id in (3, 5, 7, 9, 11, 13, 15):  # 70,000 bytes; half of the window is 80,000
        (event,) = core.receive(peers.headers(id, KNOWN) + peers.data(id, bytes(SMALL), end=True))
        assert isinstance(event, HeadReceived)
        streams.append(event.stream)
        peers.check(core)
    for stream in streams:
        core.reply(stream, KNOWN, b"x")
        assert stream.closed
        peers.check(core)
    core.take_output()
    core.receive(peers.headers(17, KNOWN) + peers.data(17, bytes(SMALL), end=True))
    core.reply(core.streams[17], KNOWN, b"")
    assert core.take_output().endswith(window_update_frame(0, 8 * SMALL))
    peers.check(core)


def test_bodies_after_several_heads_are_in_their_heads_events() -> None:
    core = server()
    heads = b"".join(peers.headers(id, KNOWN) for id in (3, 5, 7, 9))
    bodies = b"".join(
        [
            peers.data(5, b"5", end=True),
            peers.data(3, b"3"),
            peers.data(7, b"7", end=True),
            peers.data(3, b"x", end=True),
            peers.data(9, b"", end=True),
        ]
    )
    values = [
        (type(event), event.stream.id, event.data, event.ended)  # type: ignore[union-attr]
        for event in core.receive(heads + bodies)
    ]
    assert values == [
        (HeadReceived, 3, b"", False),
        (HeadReceived, 5, b"5", True),
        (HeadReceived, 7, b"7", True),
        (HeadReceived, 9, b"", False),
        (DataReceived, 3, b"3", False),
        (DataReceived, 3, b"x", True),
        (DataReceived, 9, b"", True),
    ]
    peers.check(core)
