"""A read that is like one before is taken as a whole, and means what its frames mean."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.protocols.http2 import Event, Http2Connection, Http2Limits, encode_block
from penstock.protocols.http2.frames import END_HEADERS, END_STREAM, HEADERS, PADDED, frame
from penstock.protocols.http2.shapes import FEWEST_REQUESTS, MOST_REQUESTS, shape_of
from penstock.protocols.http2.usual import SIZES_REMEMBERED, UsualFrames

from . import peers

KNOWN = encode_block([*peers.POST])
OTHER = encode_block([*peers.POST[:3], (b":authority", b"hosu:80")])
SIZED = encode_block([*peers.POST, (b"content-length", b"3")])
LIMITS = Http2Limits(max_streams=12, stream_window=70_000, connection_window=120_000)

THREE = [b"abc", b"def", b"ghi"]

assert len(OTHER) == len(KNOWN)


def requests(
    first: int, bodies: list[bytes], *, mixed: bool = False, block: bytes = KNOWN
) -> bytes:
    """A read of whole requests: all heads first, or each with its body behind it."""
    ids = range(first, first + 2 * len(bodies), 2)
    heads = [peers.headers(id, block) for id in ids]
    data = [peers.data(id, body, end=True) for id, body in zip(ids, bodies, strict=True)]
    return b"".join(chain(*zip(heads, data, strict=True)) if mixed else heads + data)


def trained(read: Callable[[int], bytes], *, block: bytes = KNOWN) -> tuple[Http2Connection, int]:
    """A server that has seen two reads like this, answered, and the next stream's identifier."""
    core = peers.server(LIMITS)
    core.receive(peers.headers(1, block, end=False) + peers.rst(1))
    next_id = 3
    for _ in range(2):
        core.receive(read(next_id))
        next_id = core._last_peer + 2
        answer_all(core)
    core.take_output()
    return core, next_id


def answer_all(core: Http2Connection) -> None:
    for stream in list(core.streams.values()):
        core.reply(stream, peers.OK_BLOCK, b"x", peers.TRAILER_BLOCK)


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether each read whose size was known was taken as a whole."""
    found: list[bool] = []
    really = UsualFrames._read_shaped

    def listen(self: UsualFrames, *arguments: object) -> bool:
        found.append(really(self, *arguments))  # type: ignore[arg-type]
        return found[-1]

    monkeypatch.setattr(UsualFrames, "_read_shaped", listen)
    return found


Told = dict[object, list[tuple[object, ...]]]


def per_stream(events: list[Event]) -> Told:
    """What each stream hears, in its order: a body may come before or behind another's head."""
    found: Told = {}
    for value in peers.merged(events):
        about = None if value[0] in ("failed", "goaway", "ping") else value[1]
        found.setdefault(about, []).append(value)
    return found


def told(core: Http2Connection, read: bytes) -> Told:
    events = core.receive(read)
    peers.check(core)
    return per_stream(events)


def told_in_bytes(core: Http2Connection, read: bytes) -> Told:
    events: list[Event] = []
    for octet in read:
        events += core.receive(bytes([octet]))
    peers.check(core)
    return per_stream(events)


def resets(events: Told) -> int:
    return sum(value[0] == "reset" for values in events.values() for value in values)


@pytest.mark.parametrize("mixed", [False, True], ids=["heads first", "head and body"])
@pytest.mark.parametrize("block", [KNOWN, SIZED], ids=["no length", "length"])
@pytest.mark.parametrize("count", [FEWEST_REQUESTS, 5, MOST_REQUESTS])
def test_the_third_of_its_kind_is_taken_as_a_whole(
    taken: list[bool], mixed: bool, block: bytes, count: int
) -> None:
    bodies = [b"%03d" % n for n in range(count)]

    def read(first: int) -> bytes:
        return requests(first, bodies, mixed=mixed, block=block)

    core, next_id = trained(read, block=block)
    assert not taken
    events = core.receive(read(next_id))
    assert taken == [True]
    peers.check(core)
    assert [(event.data, event.ended) for event in events] == [(body, True) for body in bodies]  # type: ignore[union-attr]
    streams = [event.stream for event in events]  # type: ignore[union-attr]
    assert [stream.id for stream in streams] == list(range(next_id, next_id + 2 * count, 2))
    assert list(core.streams.values()) == streams
    answer_all(core)
    assert not core.streams
    other, _ = trained(read, block=block)
    assert told_in_bytes(other, read(next_id)) == per_stream(events)
    answer_all(other)
    assert other.take_output() == core.take_output()


def test_bodies_of_several_lengths_are_a_shape_too(taken: list[bool]) -> None:
    bodies = [b"a", b"bc", b"def"]
    core, next_id = trained(lambda first: requests(first, bodies))
    events = core.receive(requests(next_id, bodies))
    assert taken == [True]
    assert [event.data for event in events] == bodies  # type: ignore[union-attr]


def test_the_window_of_new_streams_is_the_peers_present_one(taken: list[bool]) -> None:
    core, next_id = trained(lambda first: requests(first, THREE))
    core.receive(peers.settings((4, 17)))
    core.receive(requests(next_id, THREE))
    assert taken == [True]
    assert [stream.window for stream in core.streams.values()] == [17, 17, 17]


def _usual(first: int) -> bytes:
    return requests(first, THREE)


def _frames(first: int) -> list[bytes]:
    heads = [peers.headers(first + n, KNOWN) for n in (0, 2, 4)]
    return heads + [peers.data(first + 2 * n, body, end=True) for n, body in enumerate(THREE)]


def _with(position: int, other: Callable[[int], bytes]) -> Callable[[int], bytes]:
    """The usual read with one frame exchanged for another of its length."""

    def read(first: int) -> bytes:
        frames = _frames(first)
        exchanged = other(first)
        assert len(exchanged) == len(frames[position])
        frames[position] = exchanged
        return b"".join(frames)

    return read


OTHERWISE: dict[str, Callable[[int], bytes]] = {
    "the first head is of an older stream": _with(0, lambda id: peers.headers(id - 2, KNOWN)),
    "a head is of a stream further on": _with(2, lambda id: peers.headers(id + 6, KNOWN)),
    "a head is of an even stream": _with(1, lambda id: peers.headers(id + 1, KNOWN)),
    "a head is repeated": _with(1, lambda id: peers.headers(id, KNOWN)),
    "bodies in another order": lambda id: b"".join(
        [*_frames(id)[:3], *reversed(_frames(id)[3:])],
    ),
    "a body twice": _with(4, lambda id: peers.data(id, b"def", end=True)),
    "a body is of another stream": _with(5, lambda id: peers.data(id - 2, b"ghi", end=True)),
    "a body that does not end": _with(3, lambda _: peers.data(3, b"abc")),
    "a padded body": _with(3, lambda id: frame(0, PADDED | END_STREAM, id, b"\x01a\0")),
    "a body with an unknown flag": _with(3, lambda id: frame(0, END_STREAM | 0x40, id, b"abc")),
    "a head that ends": _with(2, lambda id: peers.headers(id + 4, KNOWN, end=True)),
    "a head without its end": _with(2, lambda id: frame(HEADERS, 0, id + 4, KNOWN)),
    "a head with an unknown flag": _with(
        2, lambda id: frame(HEADERS, END_HEADERS | 0x40, id + 4, KNOWN)
    ),
    "another head of that length": _with(1, lambda id: peers.headers(id + 2, OTHER)),
    "heads that were not seen before": lambda id: requests(id, THREE, block=OTHER),
    "no head at all": _with(0, lambda id: peers.headers(id, bytes(len(KNOWN)))),
    "another kind of frame": _with(3, lambda id: frame(0x20, END_STREAM, id, b"abc")),
    "the reserved bit": _with(1, lambda id: peers.headers(id + 2 | 1 << 31, KNOWN)),
    "the reserved bit at a body": _with(
        4, lambda id: frame(0, END_STREAM, id + 2 | 1 << 31, b"def")
    ),
    "frames of other lengths": lambda id: requests(id, [b"abcd", b"de", b"ghi"]),
}


@pytest.mark.parametrize("read", OTHERWISE.values(), ids=OTHERWISE)
def test_what_only_looks_like_it_is_taken_frame_by_frame(
    taken: list[bool], read: Callable[[int], bytes]
) -> None:
    core, next_id = trained(_usual)
    other, _ = trained(_usual)
    assert len(read(next_id)) == len(_usual(next_id))
    events = told(core, read(next_id))
    assert taken == [False]
    assert events == told_in_bytes(other, read(next_id))
    assert core.take_output() == other.take_output()
    if not core.failed:
        assert sorted(core.streams) == sorted(other.streams)


def test_requests_that_are_wrong_every_time_are_refused_every_time(taken: list[bool]) -> None:
    def read(first: int) -> bytes:
        return requests(first, [b"four"] * 3, block=SIZED)

    core, next_id = trained(read, block=SIZED)
    other, _ = trained(read, block=SIZED)
    events = told(core, read(next_id))
    assert taken == [False]
    assert resets(events) == 3
    assert events == told_in_bytes(other, read(next_id))
    assert core.take_output() == other.take_output()


def test_streams_beyond_the_limit_are_refused(taken: list[bool]) -> None:
    bodies = [b"a"] * 7
    core, next_id = trained(lambda first: requests(first, bodies))
    assert len(core.receive(requests(next_id, bodies))) == 7
    events = told(core, requests(next_id + 14, bodies))
    assert taken == [True, False]
    assert len(core.streams) == LIMITS.max_streams
    assert resets(events) == 2


def test_bodies_beyond_the_connections_window_are_refused(taken: list[bool]) -> None:
    bodies = [bytes(600)] * 3
    core, next_id = trained(lambda first: requests(first, bodies))
    core.receive(peers.headers(next_id, KNOWN))
    left = core._room - 1_500
    while left:
        size = min(left, 10_000)
        core.receive(peers.data(next_id, bytes(size)) if core.streams[next_id].room > size else b"")
        left -= size
        if core.streams[next_id].room <= 10_000:
            next_id += 2
            core.receive(peers.headers(next_id, KNOWN))
    assert core._room == 1_500
    assert None in told(core, requests(next_id + 2, bodies))
    assert core.failed
    assert taken == [False]


def test_bodies_that_are_not_small_are_told_by_themselves(taken: list[bool]) -> None:
    core = peers.server(Http2Limits(max_streams=100, connection_window=65_535))
    assert core.small < 500
    next_id = 1
    for _ in range(3):
        read = requests(next_id, [bytes(500)] * 3)
        next_id += 6
        told = [type(event).__name__ for event in core.receive(read)]
        assert told[-3:] == ["DataReceived"] * 3
        answer_all(core)
    assert taken == [False]


def test_nothing_is_taken_behind_the_last_goaway(taken: list[bool]) -> None:
    core, next_id = trained(_usual)
    core.go_away(final=True)
    assert core.receive(_usual(next_id)) == []
    assert taken == [False]
    peers.check(core)


def test_a_shape_that_was_wrong_is_looked_for_anew_in_a_second(taken: list[bool]) -> None:
    core, next_id = trained(_usual)
    for read, whole in (
        (_usual, [True]),
        (OTHERWISE["bodies in another order"], [True, False]),
        (_usual, [True, False]),
        (_usual, [True, False]),
        (None, [True, False]),
        (_usual, [True, False]),
        (_usual, [True, False, True]),
    ):
        if read is None:
            core.refill()
            continue
        core.receive(read(next_id))
        next_id += 6
        answer_all(core)
        assert taken == whole


def test_a_limit_makes_no_shape_wrong(taken: list[bool]) -> None:
    bodies = [b"a"] * 7
    core, next_id = trained(lambda first: requests(first, bodies))
    for whole in (True, False):
        core.receive(requests(next_id, bodies))
        next_id += 14
        assert taken[-1] is whole
    answer_all(core)
    core.receive(requests(core._last_peer + 2, bodies))
    assert taken == [True, False, True]


def test_few_sizes_are_remembered_and_none_for_long() -> None:
    core = peers.server()
    core.receive(peers.headers(1, KNOWN) + peers.rst(1))
    next_id = 3
    for size in range(1, 50):
        for _ in range(2):
            core.receive(requests(next_id, [bytes(size)] * 3))
            next_id += 6
            answer_all(core)
    assert len(core._read_shapes) == SIZES_REMEMBERED
    core.refill()
    assert not core._read_shapes


def test_a_client_has_none() -> None:
    core = peers.client()
    for _ in range(4):
        streams = [core.open(KNOWN, end=True) for _ in range(2)]
        answers = [peers.headers(stream.id, peers.OK_BLOCK) for stream in streams]
        answers += [peers.data(stream.id, b"abc", end=True) for stream in streams]
        assert len(core.receive(b"".join(answers))) == 4
    assert not core._read_shapes


NO_SHAPE = {
    "nothing": b"",
    "less than a frame": bytes(5),
    "fewer than is worth it": requests(1, [b"a"] * (FEWEST_REQUESTS - 1)),
    "more than is worth it": requests(1, [b"a"] * (MOST_REQUESTS + 1)),
    "an empty body": requests(1, [b"a", b"b", b""]),
    "a frame cut short": requests(1, [b"a", b"b", b"c"])[:-1],
    "something behind": requests(1, [b"a", b"b", b"c"]) + b"\0",
    "a third frame of one": requests(1, [b"a", b"b", b"c"]) + peers.data(1, b"x", end=True),
    "heads only": b"".join(peers.headers(id) for id in (1, 3, 5, 7, 9, 11)),
    "bodies first": b"".join(
        [*(peers.data(id, b"x", end=True) for id in (1, 3, 5)), *map(peers.headers, (1, 3, 5))]
    ),
    "neither order": requests(1, [b"a"] * 3) + requests(7, [b"a"] * 3, mixed=True),
    "other heads": requests(1, [b"a"], block=OTHER) + requests(3, [b"a"] * 3, mixed=True),
    "another kind of frame": requests(1, [b"a", b"b", b"c"])[:-10] + frame(6, 1, 0, b"c"),
}


@pytest.mark.parametrize("read", NO_SHAPE.values(), ids=NO_SHAPE)
def test_other_reads_have_no_shape(read: bytes) -> None:
    assert shape_of(read) is None


def test_equal_lengths_are_one_shape() -> None:
    shape = shape_of(requests(1, [b"a", b"b", b"cd"]))
    assert shape is shape_of(requests(7, [b"c", b"d", b"ef"]))
    assert shape is not shape_of(requests(1, [b"a", b"b", b"cd"], mixed=True))
    assert repr(shape) == "<ReadShape of 3 requests with 4 bytes>"


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.sampled_from([1, 2, 3, 40]), min_size=3, max_size=5),
    st.booleans(),
    st.lists(st.tuples(st.integers(0, 400), st.integers(1, 255)), max_size=3),
)
def test_any_octets_that_differ_mean_what_they_mean(
    lengths: list[int], mixed: bool, changes: list[tuple[int, int]]
) -> None:
    def read(first: int) -> bytes:
        return requests(first, [b"b" * length for length in lengths], mixed=mixed)

    core, next_id = trained(read)
    other, _ = trained(read)
    changed = bytearray(read(next_id))
    for position, change in changes:
        changed[position % len(changed)] ^= change
    for part in (bytes(changed), read(next_id + 2 * len(lengths))):
        assert told(core, part) == told_in_bytes(other, part)
        assert core.take_output() == other.take_output()
        answer_all(core)
        answer_all(other)
        assert core.take_output() == other.take_output()
