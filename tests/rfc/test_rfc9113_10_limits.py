"""RFC 9113, section 10.5: limits of a peer's demands; valid heavy use is never stopped."""

import tracemalloc
from collections.abc import Callable

import pytest

from penstock.protocols.http2 import Http2Limits, Role, events
from tests.kit import frames as f
from tests.rfc.peer import FINE, Peer, Step, Table, conn, reply

table = Table()
rule, rules = table.rule, table.rules

CALM = conn(f.ENHANCE_YOUR_CALM)
OK = f.block(f.OK)
FEW = Http2Limits(resets=10, pings=5, settings=5, empty_frames=10)


def streams(make: Callable[[int], bytes]) -> Step:
    """Repeats frames on stream after stream, until the connection fails."""

    def run(peer: Peer) -> None:
        for stream in range(1, 2001, 2):
            peer.send(make(stream))
            if peer.events_of(events.ConnectionFailed):
                return

    return run


MANY = 100_000
BEGUN = f.headers(1, b"", whole=False)
CLOSED = f.request() + f.reset(1)
rules(
    ("10.5-pings", f.ping() * 1000, CALM),
    ("10.5-settings", f.settings() * 1000, CALM),
    ("10.5-settings-with-values", f.settings((4, 100), (4, 200)) * 1000, CALM),
    ("10.5-request-and-reset", streams(lambda n: f.request(n) + f.reset(n)), CALM),
    ("10.5-open-request-and-reset", streams(lambda n: f.post(n) + f.reset(n)), CALM),
    ("10.5-made-resets-window", streams(lambda n: f.request(n) + f.window_update(n, 0)), CALM),
    ("10.5-made-resets-data", streams(lambda n: f.request(n) + f.data(n, b"x")), CALM),
    ("10.5-made-resets-malformed", streams(lambda n: f.request(n, [(b"A", b"b")])), CALM),
    (
        "10.5-made-resets-priority",
        streams(lambda n: f.request(n) + f.frame(f.PRIORITY, 0, n, b"x")),
        CALM,
    ),
    ("10.5-empty-data", f.post() + f.data(1) * 1000, CALM),
    ("10.5-padding-only-data", f.post() + f.data(1, pad=0) * 1000, CALM),
    ("10.5-empty-fragments", BEGUN + f.continuation(1, b"", whole=False) * 1000, CALM),
    ("10.5-unknown-frames", f.frame(f.UNKNOWN, 0, 0) * MANY, CALM),
    ("10.5-priorities", f.priority(1) * MANY, CALM),
    ("10.5-window-updates", f.window_update(0, 1) * MANY, CALM),
    ("10.5-window-updates-of-a-stream", f.request() + f.window_update(1, 1) * MANY, CALM),
    ("10.5-pings-answered", f.ping(ack=True) * MANY, CALM),
    ("10.5-settings-acknowledged", f.settings_ack() * MANY, CALM),
    ("10.5-resets-of-closed", f.request() + f.reset(1) * MANY, CALM, conn(f.STREAM_CLOSED)),
    ("10.5-data-of-closed-streams", CLOSED + f.data(1) * MANY, CALM, conn(f.STREAM_CLOSED)),
    limits=FEW,
)
rule(
    "10.5-fragments-of-one-block",
    BEGUN + f.continuation(1, f.block([(b"x", b"y")]), whole=False) * 17,
    CALM,
)
rule("10.5-goaways", f.goaway(5) * MANY, CALM, client=True, limits=FEW, alive=False)
rule(
    "10.5-a-block-beyond-all-bounds-is-not-kept",
    f.headers(1, bytes(16384), whole=False) + f.continuation(1, bytes(16384), whole=False) * 64,
    CALM,
    conn(f.COMPRESSION_ERROR),
    conn(f.PROTOCOL_ERROR),
)


def test_10_5_unsent_acknowledgements_are_bounded() -> None:
    peer = Peer()
    for _ in range(MANY):
        peer.core.refill()
        if made := peer.core.receive(f.ping()):
            break
    assert [type(event) for event in made] == [events.ConnectionFailed]
    assert len(peer.core.take_output()) < 1 << 20


# A header list over the limit


def bomb(fields: int, size: int) -> bytes:
    """One entry of the table, referenced many times."""
    return f.literal(b"x-bomb", b"v" * size, kind=0x40) + b"\xbe" * fields


def in_frames(block: bytes, stream: int = 1) -> bytes:
    """HEADERS that end the stream, and the CONTINUATION frames that the block needs."""
    pieces = [block[at : at + 16_384] for at in range(0, len(block), 16_384)]
    head = f.headers(stream, pieces[0], end=True, whole=len(pieces) == 1)
    more = [f.continuation(stream, piece, whole=piece is pieces[-1]) for piece in pieces[1:]]
    return head + b"".join(more)


def long(size: int) -> bytes:
    return f.block([*f.GET, (b"x", b"v" * size)])


GET = f.block(f.GET)
TOO_LARGE = {
    "bytes": GET + bomb(10, 2000),
    "many-fields": GET + f.literal(b"a", b"b", kind=0x40) + b"\xbe" * 200,
    "one-field": GET + f.literal(b"x", b"v" * 9000),
    "trailing-fields": GET + f.block([(b"n%d" % n, b"v") for n in range(150)]),
    "far": long(20_000),
    "farther": long(60_000),
    "farthest": long(120_000),
}


@pytest.mark.parametrize("what", TOO_LARGE)
def test_10_5_1_a_header_list_over_the_limit_ends_its_stream_only(what: str) -> None:
    peer = Peer()
    peer.send(in_frames(TOO_LARGE[what]))
    assert peer.events_of(events.HeadReceived) == []
    assert not peer.events_of(events.ConnectionFailed)
    statuses = [dict(fields)[b":status"] for stream, fields in peer.heads if stream == 1]
    codes = {one.code for one in peer.sent(f.RST_STREAM, 1)}
    assert statuses == [b"431"] or codes & {f.REFUSED_STREAM, f.ENHANCE_YOUR_CALM}
    assert len(peer.core.streams) == 0
    peer.alive()


def test_10_5_1_repeated_header_lists_far_over_the_limit_end_the_connection() -> None:
    peer = Peer()
    count = 0
    while not peer.events_of(events.ConnectionFailed):
        peer.send(in_frames(long(120_000), 2 * count + 1))
        count += 1
        assert count < 40
    assert count > 4
    peer.judge(CALM, alive=False)


@pytest.mark.parametrize("role", Role)
def test_10_5_1_a_compression_bomb_is_not_decoded(role: Role) -> None:
    """Decoding it only to keep the table in step would be unbounded work."""
    thirty_mb = bomb(10_000, 3000)  # in 13 KB
    peer = Peer(role)
    if role is Role.CLIENT:
        peer.open()
    tracemalloc.start()
    peer.send(f.headers(1, (GET if role is Role.SERVER else OK) + thirty_mb, end=True))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2 << 20
    peer.judge(CALM, alive=False)
    assert peer.events_of(events.HeadReceived) == []


@pytest.mark.parametrize("role", Role)
def test_10_5_1_trailers_or_a_response_over_the_limit_end_their_stream_only(role: Role) -> None:
    peer = Peer(role)
    if role is Role.CLIENT:
        peer.open()
        peer.send(f.headers(1, OK + bomb(10, 2000), end=True))
    else:
        peer.send(f.post(), f.headers(1, bomb(10, 2000), end=True))
    assert not peer.events_of(events.TrailersReceived)
    assert not peer.events_of(events.ConnectionFailed)
    assert len(peer.core.streams) == 0
    peer.alive()


# Valid heavy use


def test_every_limit_is_reset_by_refill() -> None:
    peer = Peer(limits=FEW)
    stream = 1
    for _ in range(50):
        for _ in range(5):
            peer.send(f.ping(), f.request(stream), f.reset(stream))
            stream += 2
        peer.send(*[f.settings()] * 3)
        peer.core.refill()
    peer.judge(FINE)


def test_a_peer_that_reads_a_large_body_in_small_steps_is_not_stopped() -> None:
    """One WINDOW_UPDATE on each level for every frame, as common clients send them."""
    peer = Peer()
    peer.send(f.request())
    size = 20 << 20
    reply(bytes(size))(peer)
    received = 0
    while peer.out:
        sizes = [len(one.payload) for one in peer.sent(f.DATA)]
        received += sum(sizes)
        peer.out.clear()
        for length in filter(None, sizes):
            peer.send(f.window_update(0, length), f.window_update(1, length))
    assert received == size
    assert not peer.events_of(events.ConnectionFailed)


def test_a_peer_with_thousands_of_requests_is_not_stopped() -> None:
    peer = Peer()
    for first in range(1, 20_001, 200):
        several = range(first, first + 200, 2)
        peer.send(*[f.post(n) + f.data(n, b"x", end=True) for n in several])
        for n in several:
            peer.core.reply(peer.stream(n), OK, b"y", f.block([(b"x", b"y")]))
        peer.events.clear()
        assert not [one for one in peer.flush() if one.kind == f.RST_STREAM]
        updates = [f.window_update(0, 100)] + [f.window_update(n, 1) for n in several]
        assert peer.send(*updates) == []
    peer.alive()


def test_each_request_may_end_with_an_empty_frame() -> None:
    peer = Peer(limits=FEW)
    for stream in range(1, 401, 2):
        peer.send(f.post(stream), f.data(stream, b"x"), f.data(stream, end=True))
        reply(stream=stream)(peer)
    peer.judge(FINE)


test_rule = table.tested()
