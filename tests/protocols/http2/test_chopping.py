"""Bytes split at any offsets give the same events."""

from __future__ import annotations

from hpack import Encoder
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.protocols.http2 import Event, Http2Connection, Http2Limits, Role
from penstock.protocols.http2.frames import (
    CONTINUATION,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEADERS,
    PADDED,
    PING,
    PRIORITY,
    PRIORITY_FLAG,
    frame,
)

from . import peers

BIG = bytes(range(256)) * 40


def conversation() -> bytes:
    """Frames of all kinds that a client may send, with a protocol error at the end."""
    encoder = Encoder()
    block = encoder.encode([*peers.POST, (b"x-a", b"1" * 50), (b"x-b", b"2")])
    again = encoder.encode([*peers.POST, (b"x-a", b"1" * 50), (b"x-b", b"2")])
    return b"".join(
        [
            peers.OPENING,
            peers.headers(1, block),
            peers.data(1, BIG),
            frame(PING, 0, 0, b"12345678"),
            peers.data(1, b"", end=True),
            frame(HEADERS, END_STREAM, 3, again[:3]),
            frame(CONTINUATION, 0, 3, again[3:5]),
            frame(CONTINUATION, END_HEADERS, 3, again[5:]),
            peers.headers(5, again),
            frame(0, PADDED, 5, b"\x05abc" + bytes(5)),
            frame(0, PADDED | END_STREAM, 5, b"\x03" + bytes(3)),
            peers.headers(7, again),
            peers.data(7, b"x" * 60, end=True),
            frame(
                HEADERS,
                END_HEADERS | PADDED | PRIORITY_FLAG,
                9,
                b"\x02" + bytes(5) + again + bytes(2),
            ),
            frame(PRIORITY, 0, 9, bytes(5)),
            peers.data(9, b"y"),
            peers.headers(9, peers.TRAILER_BLOCK, end=True),
            frame(0x20, 0xFF, 9, b"unknown"),
            peers.headers(11, again),
            peers.rst(11),
            peers.window_update(0, 5),
            peers.headers(13, again),
            peers.data(13, b"a" * 700),
            peers.window_update(13, 0),
            peers.data(13, b"b" * 700, end=True),
            frame(GOAWAY, 0, 0, bytes(8) + b"bye"),
            peers.data(11, b"closed long ago"),
        ]
    )


WHOLE = conversation()


def read_in(pieces: list[bytes]) -> tuple[list[Event], Http2Connection]:
    connection = Http2Connection(Role.SERVER)
    events: list[Event] = []
    for piece in pieces:
        events += connection.receive(piece)
        peers.check(connection)
    return events, connection


def read_in_turns(pieces: list[bytes], most: int) -> tuple[list[Event], Http2Connection]:
    connection = Http2Connection(Role.SERVER)
    events: list[Event] = []
    for piece in pieces:
        events += connection.receive(piece, most)
        while connection.behind:
            before = connection.behind
            events += connection.go_on(most)
            assert connection.behind < before
            peers.check(connection)
    return events, connection


def test_the_conversation_has_every_kind_of_event() -> None:
    events, connection = read_in([WHOLE])
    kinds = [value[0] for value in peers.merged(events)]
    assert kinds.count("head") == 7
    assert {"head", "data", "trailers", "reset", "goaway", "failed"} == set(kinds)
    assert connection.failed


def test_single_bytes_give_the_same_events_and_output() -> None:
    whole, first = read_in([WHOLE])
    single, second = read_in([WHOLE[n : n + 1] for n in range(len(WHOLE))])
    assert peers.merged(single) == peers.merged(whole)
    assert second.take_output() == first.take_output()


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, len(WHOLE)), max_size=40))
def test_any_cuts_give_the_same_events(cuts: list[int]) -> None:
    ends = [*sorted(cuts), len(WHOLE)]
    pieces = [WHOLE[a:b] for a, b in zip([0, *ends], ends, strict=False)]
    events, connection = read_in(pieces)
    whole, first = read_in([WHOLE])
    assert peers.merged(events) == peers.merged(whole)
    assert connection.take_output() == first.take_output()


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, len(WHOLE)), max_size=10), st.integers(1, 9))
def test_reading_in_turns_gives_the_same_events(cuts: list[int], most: int) -> None:
    ends = [*sorted(cuts), len(WHOLE)]
    pieces = [WHOLE[a:b] for a, b in zip([0, *ends], ends, strict=False)]
    events, connection = read_in_turns(pieces, most)
    whole, first = read_in([WHOLE])
    assert peers.merged(events) == peers.merged(whole)
    assert connection.take_output() == first.take_output()


def test_a_turn_is_limited_by_events_and_nothing_is_lost() -> None:
    connection = peers.server()
    connection.receive(peers.headers(1))
    flood = peers.data(1, b"x") * 3000
    seen = connection.receive(flood, 100)
    assert 100 <= len(seen) < 100 + 4096 // 10 + 2
    assert connection.behind == len(flood) - 10 * len(seen)
    count = len(seen)
    while connection.behind:
        turn = connection.go_on(100)
        assert len(turn) < 100 + 4096 // 10 + 2
        count += len(turn)
    assert count == 3000


def test_a_turn_of_few_events_is_short_with_small_frames() -> None:
    connection = peers.server()
    connection.receive(peers.headers(1))
    flood = peers.data(1, b"x") * 3000
    assert 4 <= len(connection.receive(flood, 4)) < 4 + 4 * 64 // 10 + 2
    assert 4 <= len(connection.go_on(4)) < 4 + 4 * 64 // 10 + 2


def test_frames_without_events_count_for_the_limit_of_a_turn() -> None:
    connection = peers.server(Http2Limits(priorities=10**6))
    connection.receive(frame(PRIORITY, 0, 9, bytes(5)) * 1000, 100)
    assert connection.behind == 14 * 900


def test_bytes_received_during_a_backlog_are_read_after_it() -> None:
    connection = peers.server()
    connection.receive(peers.headers(1))
    events = connection.receive(peers.data(1, b"x") * 3000, 1)
    assert connection.receive(peers.data(1, b"y", end=True), 1) == []
    while connection.behind:
        events += connection.go_on(1)
    assert peers.merged(events)[-1][2] == b"x" * 3000 + b"y"


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.integers(0, 11),
            st.integers(0, 255),
            st.integers(0, 9),
            st.one_of(
                st.binary(max_size=40),
                st.just(peers.POST_BLOCK),
                st.just(peers.TRAILER_BLOCK),
                st.integers(0, 2**32 - 1).map(lambda n: n.to_bytes(4, "big")),
            ),
        ),
        max_size=12,
    ),
    st.lists(st.integers(0, 400), max_size=8),
)
def test_any_frames_split_at_any_offsets_give_the_same_events(
    made: list[tuple[int, int, int, bytes]], cuts: list[int]
) -> None:
    whole = peers.OPENING + peers.headers(1) + b"".join(frame(*parts) for parts in made)
    ends = [*sorted(min(cut, len(whole)) for cut in cuts), len(whole)]
    pieces = [whole[a:b] for a, b in zip([0, *ends], ends, strict=False)]
    events, one = read_in(pieces)
    expected, other = read_in([whole])
    assert peers.merged(events) == peers.merged(expected)
    assert one.take_output() == other.take_output()
    assert one.receive(b"anything") == [] or not one.failed
