"""RFC 9113, section 10.5: what a peer may make us do; lawful heavy use is never stopped."""

import tracemalloc

import pytest
from hyperframe import frame as frames

from penstock.protocols.http2 import Http2Limits, Role, events
from tests.rfc import wire
from tests.rfc.peer import Case, Peer, Table, conn

table = Table()
add, each = table.add, table.each

CALM = conn(wire.ENHANCE_YOUR_CALM)
OK = wire.block(wire.OK)
FEW = Http2Limits(resets=10, pings=5, settings=5, empty_frames=10)


def many(piece: bytes, count: int = 1000):
    return lambda p: p.send(piece * count)


def streams(play, count: int = 1000):
    """The same on stream after stream, until it is stopped."""

    def run(peer: Peer) -> None:
        for stream in range(1, 2 * count, 2):
            play(peer, stream)
            if peer.seen(events.ConnectionFailed):
                return

    return run


def post(peer: Peer, stream: int) -> bytes:
    return peer.request(stream, wire.POST, end=False)


def unread_pings(peer: Peer) -> None:
    """Nothing is taken out, as with a peer that does not read."""
    for _ in range(100_000):
        peer.core.refill()
        made = peer.core.receive(wire.ping())
        if made:
            peer.events += made
            break
    assert len(peer.core.take_output()) < 1 << 20
    assert made


each(
    ("10.5-pings", many(wire.ping()), CALM),
    ("10.5-settings", many(wire.settings()), CALM),
    ("10.5-settings-with-values", many(wire.settings((4, 100), (4, 200))), CALM),
    (
        "10.5-request-and-reset",
        streams(lambda p, n: p.send(p.request(n), wire.reset(n))),
        CALM,
    ),
    (
        "10.5-open-request-and-reset",
        streams(lambda p, n: p.send(post(p, n), wire.reset(n))),
        CALM,
    ),
    (
        "10.5-resets-that-we-are-made-to-send-by-window-updates",
        streams(lambda p, n: p.send(p.request(n), wire.window_update(n, 0))),
        CALM,
    ),
    (
        "10.5-resets-that-we-are-made-to-send-by-data-after-the-end",
        streams(lambda p, n: p.send(p.request(n), wire.data(n, b"x"))),
        CALM,
    ),
    (
        "10.5-resets-that-we-are-made-to-send-by-malformed-requests",
        streams(lambda p, n: p.send(p.request(n, [(b"A", b"b")]))),
        CALM,
    ),
    (
        "10.5-resets-that-we-are-made-to-send-by-priorities",
        streams(lambda p, n: p.send(p.request(n), wire.frame(wire.PRIORITY, 0, n, b"x"))),
        CALM,
    ),
    ("10.5-empty-data", lambda p: p.send(post(p, 1), wire.data(1) * 1000), CALM),
    ("10.5-padding-only-data", lambda p: p.send(post(p, 1), wire.data(1, pad=0) * 1000), CALM),
    (
        "10.5-empty-fragments",
        lambda p: p.send(
            wire.headers(1, b"", whole=False), wire.continuation(1, b"", whole=False) * 1000
        ),
        CALM,
    ),
    ("10.5-unknown-frames", many(wire.frame(wire.UNKNOWN, 0, 0), 100_000), CALM),
    ("10.5-priorities", many(wire.priority(1), 100_000), CALM),
    ("10.5-window-updates", many(wire.window_update(0, 1), 100_000), CALM),
    (
        "10.5-window-updates-of-a-stream",
        lambda p: p.send(p.request(), wire.window_update(1, 1) * 100_000),
        CALM,
    ),
    (
        "10.5-pings-answered",
        many(wire.ping(ack=True), 100_000),
        CALM,
    ),
    ("10.5-settings-acknowledged", many(wire.settings_ack(), 100_000), CALM),
    (
        "10.5-resets-of-closed-streams",
        lambda p: p.send(p.request(), wire.reset(1) * 100_000),
        CALM,
        conn(wire.STREAM_CLOSED),
    ),
    (
        "10.5-data-of-closed-streams",
        lambda p: p.send(p.request(), wire.reset(1), wire.data(1) * 100_000),
        CALM,
        conn(wire.STREAM_CLOSED),
    ),
    limits=FEW,
)
add("10.5-fragments-of-one-block", CALM)(
    lambda p: p.send(
        wire.headers(1, b"", whole=False),
        *[wire.continuation(1, wire.block([(b"x", b"y")]), whole=False)] * 17,
    )
)
add("10.5-goaways", CALM, client=True, limits=FEW, alive=False)(many(wire.goaway(5), 100_000))


@add("10.5-acknowledgements-that-nobody-reads-are-bounded", CALM)
def _(peer: Peer) -> None:
    unread_pings(peer)
    goaway = frames.GoAwayFrame(0, error_code=wire.ENHANCE_YOUR_CALM)
    peer.out.append(goaway)  # it went with the rest


@add(
    "10.5-a-block-beyond-all-bounds-is-not-kept",
    CALM,
    conn(wire.COMPRESSION_ERROR),
    conn(wire.PROTOCOL_ERROR),
)
def _(peer: Peer) -> None:
    peer.send(wire.headers(1, bytes(16384), whole=False))
    for _ in range(64):
        peer.send(wire.continuation(1, bytes(16384), whole=False))


@pytest.mark.parametrize("case", table.cases, ids=lambda case: case.name)
def test_rule(case: Case) -> None:
    case.run()


# A header list that is too large


def bomb(fields: int, size: int) -> bytes:
    """One entry of the table, named again and again."""
    return wire.literal(b"x-bomb", b"v" * size, kind=0x40) + b"\xbe" * fields


TOO_LARGE = {
    "bytes": wire.block(wire.GET) + bomb(10, 2000),
    "many-fields": wire.block(wire.GET) + wire.literal(b"a", b"b", kind=0x40) + b"\xbe" * 200,
    "one-field": wire.block(wire.GET) + wire.literal(b"x", b"v" * 9000),
    "trailing-fields": wire.block(wire.GET) + wire.block([(b"n%d" % n, b"v") for n in range(150)]),
}


@pytest.mark.parametrize("what", TOO_LARGE)
def test_10_5_1_a_header_list_over_our_limit_ends_its_stream_only(what: str) -> None:
    peer = Peer()
    peer.send(wire.headers(1, TOO_LARGE[what], end=True))
    assert peer.seen(events.HeadReceived) == []
    assert not peer.seen(events.ConnectionFailed)
    statuses = [dict(fields)[b":status"] for stream, fields in peer.heads if stream == 1]
    codes = {one.error_code for one in peer.sent(frames.RstStreamFrame, 1)}
    assert statuses == [b"431"] or codes & {wire.REFUSED_STREAM, wire.ENHANCE_YOUR_CALM}
    assert len(peer.core.streams) == 0
    peer.alive()


def in_frames(stream: int, block: bytes) -> bytes:
    """HEADERS that end the stream, and as many CONTINUATION frames as the block needs."""
    pieces = [block[at : at + 16_384] for at in range(0, len(block), 16_384)]
    last = len(pieces) - 1
    return b"".join(
        wire.continuation(stream, piece, whole=n == last)
        if n
        else wire.headers(stream, piece, end=True, whole=n == last)
        for n, piece in enumerate(pieces)
    )


@pytest.mark.parametrize("size", [20_000, 60_000, 120_000])
def test_10_5_1_a_far_too_large_list_ends_its_stream_only(size: int) -> None:
    peer = Peer()
    peer.send(in_frames(1, wire.block([*wire.GET, (b"x", b"v" * size)])))
    assert not peer.seen(events.ConnectionFailed)
    assert [dict(fields)[b":status"] for stream, fields in peer.heads if stream == 1] == [b"431"]
    peer.alive()


def test_10_5_1_far_too_large_lists_one_after_the_other_end_the_connection() -> None:
    peer = Peer()
    block = wire.block([*wire.GET, (b"x", b"v" * 120_000)])
    count = 0
    while not peer.seen(events.ConnectionFailed):
        peer.send(in_frames(2 * count + 1, block))
        count += 1
        assert count < 40
    assert count > 4
    peer.judge(CALM, alive=False)


BOMB = bomb(10_000, 3000)  # 13 KB that stand for 30 MB


def test_10_5_1_a_bomb_is_not_unpacked() -> None:
    """To decode it only for the sake of the table would be work without end."""
    for role, play in {
        Role.SERVER: lambda p: p.send(wire.headers(1, wire.block(wire.GET) + BOMB, end=True)),
        Role.CLIENT: lambda p: (p.open(), p.send(wire.headers(1, OK + BOMB, end=True))),
    }.items():
        peer = Peer(role)
        tracemalloc.start()
        play(peer)
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert most < 2 << 20
        peer.judge(CALM, alive=False)
        assert peer.seen(events.HeadReceived) == []


def test_10_5_1_trailers_over_our_limit_end_their_stream_only() -> None:
    peer = Peer()
    peer.send(post(peer, 1), wire.headers(1, bomb(10, 2000), end=True))
    assert not peer.seen(events.TrailersReceived)
    assert not peer.seen(events.ConnectionFailed)
    assert len(peer.core.streams) == 0
    peer.alive()


def test_10_5_1_a_response_head_over_our_limit_ends_its_stream_only() -> None:
    peer = Peer(Role.CLIENT)
    peer.open()
    peer.send(wire.headers(1, OK + bomb(10, 2000), end=True))
    assert not peer.seen(events.HeadReceived)
    assert not peer.seen(events.ConnectionFailed)
    assert len(peer.core.streams) == 0
    peer.alive()


# Lawful heavy use


def test_every_budget_is_full_again_after_refill() -> None:
    peer = Peer(limits=FEW)
    stream = 1
    for _ in range(50):
        for _ in range(5):
            peer.send(wire.ping(), peer.request(stream), wire.reset(stream))
            stream += 2
        peer.send(*[wire.settings()] * 3)
        peer.core.refill()
    assert not peer.seen(events.ConnectionFailed)
    peer.alive()


def test_a_peer_that_takes_large_answers_in_small_steps_is_not_stopped() -> None:
    """A WINDOW_UPDATE for each frame of ours on both levels, as common clients send them."""
    peer = Peer()
    peer.send(peer.request())
    size = 20 << 20
    peer.core.reply(peer.stream(), OK, bytes(size))
    got = 0
    peer.flush()
    while peer.out:
        sizes = [len(one.data) for one in peer.sent(frames.DataFrame)]
        got += sum(sizes)
        peer.out.clear()
        for length in filter(None, sizes):
            peer.send(wire.window_update(0, length), wire.window_update(1, length))
    assert got == size
    assert not peer.seen(events.ConnectionFailed)


def test_a_peer_that_asks_thousands_of_things_at_once_is_not_stopped() -> None:
    peer = Peer()
    stream = 1
    for _ in range(100):
        several = range(stream, stream + 200, 2)
        peer.send(
            *[peer.request(n, wire.POST, end=False) + wire.data(n, b"x", end=True) for n in several]
        )
        for n in several:
            peer.core.reply(peer.stream(n), OK, b"y", wire.block([(b"x", b"y")]))
        peer.events.clear()
        assert not [one for one in peer.flush() if isinstance(one, frames.RstStreamFrame)]
        stream += 200
        updates = [wire.window_update(0, 100)] + [wire.window_update(n, 1) for n in several]
        assert peer.send(*updates) == []
    peer.alive()


def test_a_body_in_single_octets_is_not_stopped() -> None:
    peer = Peer()
    peer.send(post(peer, 1))
    for _ in range(20):
        for event in peer.send(wire.data(1, b"x") * 500):
            peer.core.consumed(event.stream, event.counted)
    peer.send(wire.data(1, end=True))
    assert not peer.seen(events.ConnectionFailed)
    assert len(peer.received()) == 10_000


def test_each_request_may_end_with_an_empty_frame() -> None:
    peer = Peer(limits=FEW)
    for stream in range(1, 401, 2):
        peer.send(post(peer, stream), wire.data(stream, b"x"), wire.data(stream, end=True))
        peer.core.reply(peer.stream(stream), OK, b"")
        peer.flush()
    assert not peer.seen(events.ConnectionFailed)
