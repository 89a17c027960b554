"""RFC 9113, section 5: streams, their states, windows and errors."""

import pytest
from hyperframe import frame as frames

from penstock.protocols.http2 import Http2Limits, Role, StreamLimit, events
from tests.rfc import wire
from tests.rfc.peer import FINE, Case, Peer, Table, conn, strm

table = Table()
add, each = table.add, table.each

PROTOCOL = conn(wire.PROTOCOL_ERROR)
CLOSED = strm(wire.STREAM_CLOSED)
CLOSED_CONNECTION = conn(wire.STREAM_CLOSED)
OK = wire.block(wire.OK)


def post(peer: Peer, stream: int = 1) -> bytes:
    return peer.request(stream, wire.POST, end=False)


def answer(peer: Peer, stream: int = 1, body: bytes = b"") -> None:
    peer.core.reply(peer.stream(stream), OK, body)
    peer.flush()


# 5.1 idle

each(
    ("5.1-idle-data", lambda p: p.send(wire.data(1, b"x")), PROTOCOL),
    ("5.1-idle-empty-data", lambda p: p.send(wire.data(1, end=True)), PROTOCOL),
    ("5.1-idle-rst-stream", lambda p: p.send(wire.reset(1)), PROTOCOL),
    ("5.1-idle-window-update", lambda p: p.send(wire.window_update(1, 1)), PROTOCOL),
    ("5.1-idle-continuation", lambda p: p.send(wire.continuation(1)), PROTOCOL),
    (
        "5.1-idle-data-above-the-streams-in-use",
        lambda p: p.send(p.request(), wire.data(3)),
        PROTOCOL,
    ),
    (
        "5.1-idle-window-update-on-a-stream-of-ours",
        lambda p: p.send(wire.window_update(2, 1)),
        PROTOCOL,
    ),
    ("5.1-idle-rst-stream-on-a-stream-of-ours", lambda p: p.send(wire.reset(2)), PROTOCOL),
    ("5.1-idle-data-on-a-stream-of-ours", lambda p: p.send(wire.data(2)), PROTOCOL),
    ("5.1-idle-priority", lambda p: p.send(wire.priority(7), p.request(1))),
    ("5.1-idle-priority-opens-nothing", lambda p: p.send(wire.priority(5), p.request(3))),
)
each(
    (
        "5.1-idle-response-without-a-request",
        lambda p: p.send(wire.headers(1, OK, end=True)),
        PROTOCOL,
    ),
    ("5.1-idle-data-without-a-request", lambda p: p.send(wire.data(1)), PROTOCOL),
    ("5.1-idle-rst-stream-without-a-request", lambda p: p.send(wire.reset(1)), PROTOCOL),
    (
        "5.1-idle-window-update-without-a-request",
        lambda p: p.send(wire.window_update(3, 1)),
        PROTOCOL,
    ),
    (
        "5.1-idle-headers-of-a-stream-that-was-not-promised",
        lambda p: p.send(wire.headers(2, OK, end=True)),
        PROTOCOL,
    ),
    ("5.1-idle-data-of-a-stream-that-was-not-promised", lambda p: p.send(wire.data(2)), PROTOCOL),
    ("5.1-idle-priority-to-the-client", lambda p: p.send(wire.priority(1), wire.priority(2))),
    client=True,
)


# 5.1 open, and how it is left


@add("5.1-open-end-stream-half-closes-the-remote-side")
def _(peer: Peer) -> None:
    peer.send(post(peer), wire.data(1, b"abc", end=True))
    assert [event.ended for event in peer.seen(events.DataReceived)] == [True]
    answer(peer)
    assert len(peer.core.streams) == 0


@add("5.1-open-empty-end-stream")
def _(peer: Peer) -> None:
    peer.send(post(peer), wire.data(1, b"abc"), wire.data(1, end=True))
    assert peer.received() == b"abc"
    assert peer.seen(events.DataReceived)[-1].ended


@add("5.1-open-rst-stream-closes-it")
def _(peer: Peer) -> None:
    peer.send(post(peer), wire.reset(1, wire.CANCEL))
    (event,) = peer.seen(events.StreamReset)
    assert (event.code, event.by_peer) == (wire.CANCEL, True)
    assert len(peer.core.streams) == 0


@add("5.1-half-closed-local-data-still-comes")
def _(peer: Peer) -> None:
    peer.send(post(peer))
    peer.core.send_head(peer.stream(), OK, end=True)
    peer.flush()
    peer.send(wire.data(1, b"abc"), wire.window_update(1, 5), wire.priority(1))
    assert peer.received() == b"abc"
    peer.send(wire.data(1, b"d", end=True))
    assert peer.received() == b"abcd"
    assert len(peer.core.streams) == 0


@add("5.1-half-closed-local-trailers-still-come")
def _(peer: Peer) -> None:
    peer.send(post(peer))
    answer(peer, body=b"early")
    peer.send(wire.headers(1, wire.block([(b"x-t", b"1")]), end=True))
    assert len(peer.core.streams) == 0


@add("5.1-half-closed-local-rst-stream-still-comes")
def _(peer: Peer) -> None:
    peer.send(post(peer))
    answer(peer, body=b"early")
    peer.send(wire.reset(1))
    assert len(peer.core.streams) == 0


# 5.1 half-closed (remote)

each(
    ("5.1-half-closed-remote-data", lambda p: p.send(p.request(), wire.data(1, b"x")), CLOSED),
    (
        "5.1-half-closed-remote-empty-data",
        lambda p: p.send(p.request(), wire.data(1, end=True)),
        CLOSED,
    ),
    (
        "5.1-half-closed-remote-data-after-data",
        lambda p: p.send(post(p), wire.data(1, b"x", end=True), wire.data(1, b"y")),
        CLOSED,
    ),
    (
        "5.1-half-closed-remote-headers",
        lambda p: p.send(p.request(), p.request()),
        CLOSED,
        CLOSED_CONNECTION,
    ),
    (
        "5.1-half-closed-remote-trailers",
        lambda p: p.send(post(p), *[wire.headers(1, wire.block([(b"a", b"b")]), end=True)] * 2),
        CLOSED,
        CLOSED_CONNECTION,
    ),
    (
        "5.1-half-closed-remote-continuation",
        lambda p: p.send(p.request(), wire.continuation(1)),
        PROTOCOL,
    ),
    (
        "5.1-half-closed-remote-window-update",
        lambda p: p.send(p.request(), wire.window_update(1, 100)),
    ),
    ("5.1-half-closed-remote-priority", lambda p: p.send(p.request(), wire.priority(1))),
)


@add("5.1-half-closed-remote-rst-stream")
def _(peer: Peer) -> None:
    peer.send(peer.request(), wire.reset(1))
    assert peer.seen(events.StreamReset)[0].by_peer


def asked(peer: Peer) -> None:
    """A request whose own side is still open."""
    peer.open(wire.POST, end=False)


each(
    (
        "5.1-half-closed-remote-response-data-after-its-end",
        lambda p: (asked(p), p.send(wire.headers(1, OK, end=True), wire.data(1, b"x"))),
        CLOSED,
    ),
    (
        "5.1-half-closed-remote-response-trailers-after-its-end",
        lambda p: (
            asked(p),
            p.send(wire.headers(1, OK), wire.data(1, b"x", end=True)),
            p.send(wire.headers(1, wire.block([(b"a", b"b")]), end=True)),
        ),
        CLOSED,
        CLOSED_CONNECTION,
    ),
    (
        "5.1-half-closed-remote-response-window-update",
        lambda p: (asked(p), p.send(wire.headers(1, OK, end=True), wire.window_update(1, 9))),
    ),
    client=True,
)


# 5.1 closed


def closed_by_end(peer: Peer) -> None:
    peer.send(peer.request())
    answer(peer, body=b"ok")
    assert len(peer.core.streams) == 0


def closed_by_peer(peer: Peer) -> None:
    peer.send(post(peer), wire.reset(1))


def closed_by_us(peer: Peer) -> None:
    peer.send(post(peer))
    peer.core.reset(peer.stream(), wire.CANCEL)
    peer.flush()
    assert peer.verdict() == strm(wire.CANCEL)
    peer.out.clear()


AFTER = {
    "data": wire.data(1, b"x", end=True),
    "headers": wire.headers(1, wire.block([(b"a", b"b")]), end=True),
}
for name, piece in AFTER.items():
    for how in (closed_by_end, closed_by_peer):
        add(f"5.1-{how.__name__.replace('_', '-')}-{name}", CLOSED, CLOSED_CONNECTION, FINE)(
            lambda p, how=how, piece=piece: (how(p), p.events.clear(), p.send(piece))
        )
HARMLESS = {
    "window-update": wire.window_update(1, 1),
    "rst-stream": wire.reset(1),
    "priority": wire.priority(1),
}
for name, piece in HARMLESS.items():
    add(f"5.1-closed-by-end-{name}-is-ignored")(
        lambda p, piece=piece: (closed_by_end(p), p.send(piece))
    )
for name, piece in {**HARMLESS, **AFTER}.items():
    add(f"5.1-closed-by-our-rst-stream-{name}-is-discarded")(
        lambda p, piece=piece: (closed_by_us(p), p.events.clear(), p.send(piece))
    )
add("5.1-closed-by-peer-priority-is-ignored")(
    lambda p: (closed_by_peer(p), p.send(wire.priority(1)))
)


@add("5.1-closed-continuation", PROTOCOL)
def _(peer: Peer) -> None:
    closed_by_us(peer)
    peer.send(wire.continuation(1))


@add("5.1-closed-by-our-rst-stream-the-rest-of-a-block-is-discarded")
def _(peer: Peer) -> None:
    closed_by_us(peer)
    peer.events.clear()
    peer.send(wire.headers(1, wire.block([(b"a", b"b")]), whole=False, end=True))
    peer.send(wire.continuation(1, wire.block([(b"c", b"d")])))
    assert peer.events == []


@add("5.1-closed-by-our-rst-stream-the-response-is-discarded", client=True)
def _(peer: Peer) -> None:
    stream = peer.open()
    peer.core.reset(stream, wire.CANCEL)
    peer.flush()
    peer.out.clear()
    peer.send(wire.headers(1, OK), wire.data(1, b"abc", end=True))
    assert peer.events == []


@add("5.1-closed-we-send-nothing-any-more")
def _(peer: Peer) -> None:
    peer.send(post(peer))
    stream = peer.stream()
    peer.send(wire.reset(1))
    peer.out.clear()
    core = peer.core
    core.send_head(stream, OK)
    core.send_data(stream, b"late", end=True)
    core.send_trailers(stream, OK)
    core.reply(stream, OK, b"late", OK)
    core.reset(stream, wire.CANCEL)
    core.consumed(stream, 1)
    assert [one for one in peer.flush() if one.stream_id == 1] == []


@add("5.1-half-closed-local-we-send-nothing-any-more")
def _(peer: Peer) -> None:
    peer.send(post(peer))
    answer(peer, body=b"whole")
    peer.out.clear()
    peer.core.send_data(peer.stream(), b"late", end=True)
    peer.core.send_trailers(peer.stream(), OK)
    peer.core.reply(peer.stream(), OK, b"late")
    kinds = (frames.DataFrame, frames.HeadersFrame)
    assert [one for one in peer.flush() if isinstance(one, kinds)] == []


# 5.1.1 Stream identifiers

each(
    ("5.1.1-stream-of-a-client-must-be-odd", lambda p: p.send(p.request(2)), PROTOCOL),
    (
        "5.1.1-stream-id-must-increase",
        lambda p: p.send(p.request(5), p.request(3)),
        PROTOCOL,
        CLOSED_CONNECTION,
    ),
    (
        "5.1.1-stream-id-must-not-come-again",
        lambda p: (closed_by_end(p), p.send(p.request(3), p.request(1))),
        PROTOCOL,
        CLOSED_CONNECTION,
        CLOSED,
    ),
    ("5.1.1-stream-ids-may-be-skipped", lambda p: p.send(p.request(1), p.request(99))),
    (
        "5.1.1-skipped-ids-are-closed",
        lambda p: p.send(p.request(5), wire.data(3, b"x")),
        PROTOCOL,
        CLOSED_CONNECTION,
        strm(wire.STREAM_CLOSED, 3),
    ),
)


@add("5.1.1-the-last-stream-id-works", alive=False)
def _(peer: Peer) -> None:
    last = wire.MOST
    peer.send(peer.request(last))
    answer(peer, last, b"ok")
    assert peer.body(last) == b"ok"


@add("5.1.1-nothing-follows-the-last-stream-id", PROTOCOL, CLOSED_CONNECTION)
def _(peer: Peer) -> None:
    """The next number would be the reserved bit and stream 1."""
    last = wire.MOST
    peer.send(peer.request(last - 2), peer.request(last), peer.request(last + 2))


@add("5.1.1-our-streams-are-odd-and-increase", client=True)
def _(peer: Peer) -> None:
    assert [peer.open().id for _ in range(3)] == [1, 3, 5]


# 5.1.2 Stream concurrency

TWO = Http2Limits(max_streams=2)
OVER_LIMIT = (strm(wire.REFUSED_STREAM, 5), strm(wire.PROTOCOL_ERROR, 5))


@add("5.1.2-streams-above-our-limit-are-refused", *OVER_LIMIT, limits=TWO)
def _(peer: Peer) -> None:
    peer.send(peer.request(1), post(peer, 3), peer.request(5))
    assert peer.seen(events.HeadReceived, 5) == []
    answer(peer, 1)
    answer(peer, 3)
    peer.send(wire.data(3, end=True))


@add("5.1.2-half-closed-streams-count", *OVER_LIMIT, limits=TWO)
def _(peer: Peer) -> None:
    peer.send(post(peer, 1), post(peer, 3))
    answer(peer, 1)
    answer(peer, 3)
    peer.send(peer.request(5))
    peer.send(wire.data(1, end=True), wire.data(3, end=True))


@add("5.1.2-closed-streams-do-not-count", limits=TWO)
def _(peer: Peer) -> None:
    for stream in range(1, 100, 2):
        peer.send(peer.request(stream))
        answer(peer, stream)


@add("5.1.2-reset-streams-do-not-count", limits=TWO)
def _(peer: Peer) -> None:
    for stream in range(1, 100, 2):
        peer.send(post(peer, stream), wire.reset(stream))
    assert len(peer.seen(events.HeadReceived)) == 50


@add("5.1.2-our-limit-is-announced", limits=TWO)
def _(peer: Peer) -> None:
    assert peer.out[0].settings[wire.MAX_CONCURRENT_STREAMS] == 2


@pytest.mark.parametrize("most", [0, 1, 2])
def test_5_1_2_we_open_no_more_streams_than_the_peer_allows(most: int) -> None:
    peer = Peer(Role.CLIENT, settings=((wire.MAX_CONCURRENT_STREAMS, most),))
    for _ in range(most):
        peer.open()
    with pytest.raises(StreamLimit):
        peer.open()
    if most:
        peer.send(wire.headers(1, OK, end=True))
        peer.open()
    with pytest.raises(StreamLimit):
        peer.open()
    assert len(peer.sent(frames.HeadersFrame)) == most + (most > 0)


def test_5_1_2_a_limit_lowered_under_what_is_open_lets_that_finish() -> None:
    peer = Peer(Role.CLIENT)
    first, second = peer.open(), peer.open()
    peer.send(wire.settings((wire.MAX_CONCURRENT_STREAMS, 1)))
    peer.send(wire.headers(first.id, OK, end=True))
    with pytest.raises(StreamLimit):
        peer.open()
    peer.send(wire.headers(second.id, OK, end=True))
    assert peer.open().id == 5
    peer.judge(FINE, alive=False)


# 5.2 Flow control


@add("5.2.1-only-data-is-flow-controlled", settings=((wire.INITIAL_WINDOW_SIZE, 0),))
def _(peer: Peer) -> None:
    peer.send(peer.request())
    stream = peer.stream()
    peer.core.send_head(stream, OK)
    peer.core.send_data(stream, b"abc")
    peer.flush()
    assert peer.heads
    assert peer.body(1) == b""
    peer.send(wire.window_update(1, 2))
    assert peer.body(1) == b"ab"


@add("5.2.1-both-windows-begin-with-65535")
def _(peer: Peer) -> None:
    peer.send(peer.request())
    answer(peer, body=bytes(100_000))
    assert len(peer.body(1)) == 65535
    peer.send(wire.window_update(1, 100_000))
    assert len(peer.body(1)) == 65535
    peer.send(wire.window_update(0, 10))
    assert len(peer.body(1)) == 65545
    peer.send(wire.window_update(0, 100_000))
    assert peer.body(1) == bytes(100_000)
    assert "END_STREAM" in peer.out[-1].flags


# 5.4 Errors


@add("5.4.1-goaway-names-the-last-stream", conn(wire.PROTOCOL_ERROR))
def _(peer: Peer) -> None:
    peer.send(peer.request(1), peer.request(7), wire.data(0))
    assert peer.sent(frames.GoAwayFrame)[0].last_stream_id == 7


@add("5.4.1-goaway-names-no-stream-when-there-was-none", conn(wire.PROTOCOL_ERROR))
def _(peer: Peer) -> None:
    peer.send(wire.data(0))
    assert peer.sent(frames.GoAwayFrame)[0].last_stream_id == 0


@add("5.4.1-what-follows-an-error-in-the-same-bytes-is-not-read", conn(wire.PROTOCOL_ERROR))
def _(peer: Peer) -> None:
    peer.send(wire.data(0), peer.request(), wire.ping())
    assert peer.seen(events.HeadReceived) == []


@add("5.4.1-what-came-before-an-error-in-the-same-bytes-is-told", conn(wire.PROTOCOL_ERROR))
def _(peer: Peer) -> None:
    peer.send(peer.request(), wire.data(0))
    assert isinstance(peer.events[0], events.HeadReceived)
    assert isinstance(peer.events[-1], events.ConnectionFailed)


@add("5.4.2-a-stream-error-leaves-the-others-alone", strm(wire.PROTOCOL_ERROR, 3))
def _(peer: Peer) -> None:
    peer.send(post(peer, 1), post(peer, 3), wire.window_update(3, 0))
    peer.send(wire.data(1, b"abc", end=True))
    assert peer.received(1) == b"abc"
    answer(peer, 1, b"def")
    assert peer.body(1) == b"def"


@add("5.4.2-no-rst-stream-answers-a-rst-stream")
def _(peer: Peer) -> None:
    peer.send(post(peer), wire.reset(1), wire.reset(1), wire.reset(1))


@add("5.4.2-a-stream-error-is-answered-once", strm(wire.PROTOCOL_ERROR))
def _(peer: Peer) -> None:
    peer.send(post(peer), wire.window_update(1, 0), wire.window_update(1, 0))


# 5.5 Extensions

each(
    (
        "5.5-unknown-settings-are-ignored",
        lambda p: p.send(wire.settings((0x0A, 0), (0xFFFF, 2**32 - 1), (0, 7))),
    ),
    (
        "5.5-unknown-frame-inside-a-field-block",
        lambda p: p.send(p.request(whole=False), wire.frame(wire.UNKNOWN, 0, 0)),
        PROTOCOL,
    ),
    (
        "5.5-unknown-frame-on-a-closed-stream-is-ignored",
        lambda p: (closed_by_end(p), p.send(wire.frame(wire.UNKNOWN, 0, 1))),
    ),
    (
        "5.5-unknown-frame-on-a-stream-of-ours-is-ignored",
        lambda p: p.send(wire.frame(wire.UNKNOWN, 0, 2)),
    ),
)


@pytest.mark.parametrize("case", table.cases, ids=lambda case: case.name)
def test_rule(case: Case) -> None:
    case.run()
