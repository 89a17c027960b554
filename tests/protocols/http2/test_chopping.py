"""However the bytes are cut, they mean the same."""

from __future__ import annotations

from hpack import Encoder
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.protocols.http2 import Event, Http2Connection, Role
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
    """One of everything that a client may send, and an end in a fault of its own."""
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
def test_any_frames_cut_anywhere_give_the_same_events(
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
