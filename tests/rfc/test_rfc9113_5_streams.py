"""RFC 9113, section 5: streams, their states, windows and errors."""

from collections.abc import Callable

import pytest

from penstock.protocols.http2 import Http2Limits, Role, StreamLimit, events
from tests.kit import frames as f
from tests.rfc.peer import (
    FINE,
    Peer,
    Table,
    body,
    conn,
    ended,
    events_are,
    forget,
    open_request,
    open_streams,
    received,
    reply,
    reset,
    strm,
    unknown,
)

table = Table()
rule, rules = table.rule, table.rules

PROTOCOL = conn(f.PROTOCOL_ERROR)
CLOSED, CLOSED_CONNECTION = strm(f.STREAM_CLOSED), conn(f.STREAM_CLOSED)
OK = f.headers(1, f.block(f.OK))
WHOLE_OK = f.headers(1, f.block(f.OK), end=True)
TRAILERS = f.headers(1, f.block([(b"a", b"b")]), end=True)

# 5.1 idle

rules(
    ("5.1-idle-data", f.data(1, b"x"), PROTOCOL),
    ("5.1-idle-empty-data", f.data(1, end=True), PROTOCOL),
    ("5.1-idle-rst-stream", f.reset(1), PROTOCOL),
    ("5.1-idle-window-update", f.window_update(1, 1), PROTOCOL),
    ("5.1-idle-continuation", f.continuation(1), PROTOCOL),
    ("5.1-idle-data-above-the-streams-in-use", f.request() + f.data(3), PROTOCOL),
    ("5.1-idle-window-update-on-a-stream-of-ours", f.window_update(2, 1), PROTOCOL),
    ("5.1-idle-rst-stream-on-a-stream-of-ours", f.reset(2), PROTOCOL),
    ("5.1-idle-data-on-a-stream-of-ours", f.data(2), PROTOCOL),
    ("5.1-idle-priority", f.priority(7) + f.request(1)),
    ("5.1-idle-priority-opens-nothing", f.priority(5) + f.request(3)),
)
rules(
    ("5.1-idle-response-without-a-request", WHOLE_OK, PROTOCOL),
    ("5.1-idle-data-without-a-request", f.data(1), PROTOCOL),
    ("5.1-idle-rst-stream-without-a-request", f.reset(1), PROTOCOL),
    ("5.1-idle-window-update-without-a-request", f.window_update(3, 1), PROTOCOL),
    ("5.1-idle-headers-not-promised", f.headers(2, f.block(f.OK), end=True), PROTOCOL),
    ("5.1-idle-data-of-a-stream-that-was-not-promised", f.data(2), PROTOCOL),
    ("5.1-idle-priority-to-the-client", f.priority(1) + f.priority(2)),
    client=True,
)

# 5.1 open, and its end


def reply_head_only(peer: Peer) -> None:
    """A head that ends our side while the other side is still open."""
    peer.core.send_head(peer.stream(), f.block(f.OK), end=True)
    peer.flush()


def last(kind: type, **values: object) -> Callable[[Peer], bool]:
    """The last event of this kind has these values."""
    return lambda peer: all(
        getattr(peer.events_of(kind)[-1], name) == value for name, value in values.items()
    )


rules(
    (
        "5.1-open-end-stream-half-closes-the-remote-side",
        f.post() + f.data(1, b"abc", end=True),
        last(events.DataReceived, ended=True),
        reply(),
        open_streams(0),
    ),
    (
        "5.1-open-empty-end-stream",
        f.post() + f.data(1, b"abc") + f.data(1, end=True),
        received(b"abc"),
        last(events.DataReceived, ended=True),
    ),
    (
        "5.1-open-rst-stream-closes-it",
        f.post() + f.reset(1),
        last(events.StreamReset, code=f.CANCEL, by_peer=True),
        open_streams(0),
    ),
    (
        "5.1-half-closed-local-data-is-still-accepted",
        f.post(),
        reply_head_only,
        f.data(1, b"abc") + f.window_update(1, 5) + f.priority(1),
        received(b"abc"),
        f.data(1, b"d", end=True),
        received(b"abcd"),
        open_streams(0),
    ),
    (
        "5.1-half-closed-local-trailers-are-still-accepted",
        f.post(),
        reply(b"early"),
        TRAILERS,
        open_streams(0),
    ),
    (
        "5.1-half-closed-local-rst-stream-is-still-accepted",
        f.post(),
        reply(b"x"),
        f.reset(1),
        open_streams(0),
    ),
)

# 5.1 half-closed (remote)

WHOLE = f.post() + f.data(1, b"x", end=True)
rules(
    ("5.1-half-closed-remote-data", f.request() + f.data(1, b"x"), CLOSED),
    ("5.1-half-closed-remote-empty-data", f.request() + f.data(1, end=True), CLOSED),
    ("5.1-half-closed-remote-data-after-data", WHOLE + f.data(1, b"y"), CLOSED),
    ("5.1-half-closed-remote-headers", f.request() + f.request(), CLOSED, CLOSED_CONNECTION),
    ("5.1-half-closed-remote-trailers", f.post() + TRAILERS * 2, CLOSED, CLOSED_CONNECTION),
    ("5.1-half-closed-remote-continuation", f.request() + f.continuation(1), PROTOCOL),
    ("5.1-half-closed-remote-window-update", f.request() + f.window_update(1, 100)),
    ("5.1-half-closed-remote-priority", f.request() + f.priority(1)),
    (
        "5.1-half-closed-remote-rst-stream",
        f.request() + f.reset(1),
        last(events.StreamReset, by_peer=True),
    ),
)
POST = open_request(f.POST, end=False)
ANSWERED = OK + f.data(1, b"x", end=True)
rules(
    ("5.1-half-closed-remote-response-data", POST, WHOLE_OK + f.data(1, b"x"), CLOSED),
    (
        "5.1-half-closed-remote-response-trailers-after-its-end",
        POST,
        ANSWERED + TRAILERS,
        CLOSED,
        CLOSED_CONNECTION,
    ),
    ("5.1-half-closed-remote-response-window-update", POST, WHOLE_OK + f.window_update(1, 9)),
    client=True,
)

# 5.1 closed

BY_END = (f.request(), reply(b"ok"), open_streams(0))
BY_PEER = (f.post() + f.reset(1),)
BY_US = (f.post(), reset())
AFTER = {"data": f.data(1, b"x", end=True), "headers": TRAILERS}
HARMLESS = {
    "window-update": f.window_update(1, 1),
    "rst-stream": f.reset(1),
    "priority": f.priority(1),
}
for name, piece in AFTER.items():
    either = (CLOSED, CLOSED_CONNECTION, FINE)
    rule(f"5.1-closed-by-end-{name}", *BY_END, forget, piece, *either)
    rule(f"5.1-closed-by-peer-{name}", *BY_PEER, forget, piece, *either)
for name, piece in HARMLESS.items():
    rule(f"5.1-closed-by-end-{name}-is-ignored", *BY_END, piece)
for name, piece in {**HARMLESS, **AFTER}.items():
    rule(f"5.1-closed-by-our-rst-stream-{name}-is-discarded", *BY_US, piece)
rules(
    ("5.1-closed-by-peer-priority-is-ignored", *BY_PEER, f.priority(1)),
    ("5.1-closed-continuation", *BY_US, f.continuation(1), PROTOCOL),
    (
        "5.1-closed-by-our-rst-stream-the-rest-of-a-block-is-discarded",
        *BY_US,
        f.headers(1, f.block([(b"a", b"b")]), whole=False, end=True)
        + f.continuation(1, f.block([(b"c", b"d")])),
        events_are(),
    ),
)
rule(
    "5.1-closed-by-our-rst-stream-the-response-is-discarded",
    lambda p: p.core.reset(p.open(), f.CANCEL),
    Peer.flush,
    forget,
    OK + f.data(1, b"abc", end=True),
    unknown(),
    events_are(),
    client=True,
)


@table.play("5.1-closed-we-send-nothing-more")
def _(peer: Peer) -> None:
    peer.send(f.post())
    core, stream, block = peer.core, peer.stream(), f.block(f.OK)
    peer.send(f.reset(1))
    peer.out.clear()
    core.send_head(stream, block)
    core.send_data(stream, b"late", end=True)
    core.send_trailers(stream, block)
    core.reply(stream, block, b"late", block)
    core.reset(stream, f.CANCEL)
    core.consumed(stream, 1)
    assert [one for one in peer.flush() if one.stream == 1] == []


@table.play("5.1-half-closed-local-we-send-nothing-more")
def _(peer: Peer) -> None:
    peer.send(f.post())
    reply(b"whole")(peer)
    peer.out.clear()
    peer.core.send_data(peer.stream(), b"late", end=True)
    peer.core.send_trailers(peer.stream(), f.block(f.OK))
    peer.core.reply(peer.stream(), f.block(f.OK), b"late")
    assert [one for one in peer.flush() if one.kind in (f.DATA, f.HEADERS)] == []


# 5.1.1 Stream identifiers

LAST = f.MOST
rules(
    ("5.1.1-stream-of-a-client-must-be-odd", f.request(2), PROTOCOL),
    ("5.1.1-stream-id-must-increase", f.request(5) + f.request(3), PROTOCOL, CLOSED_CONNECTION),
    (
        "5.1.1-stream-id-must-not-be-reused",
        *BY_END,
        f.request(3) + f.request(1),
        PROTOCOL,
        CLOSED_CONNECTION,
        CLOSED,
    ),
    ("5.1.1-stream-ids-may-be-skipped", f.request(1) + f.request(99)),
    (
        "5.1.1-skipped-ids-are-closed",
        f.request(5) + f.data(3, b"x"),
        PROTOCOL,
        CLOSED_CONNECTION,
        strm(f.STREAM_CLOSED, 3),
    ),
    (
        "5.1.1-no-stream-follows-the-last-id",  # the next id is the reserved bit and stream 1
        f.request(LAST - 2) + f.request(LAST) + f.request(LAST + 2),
        PROTOCOL,
        CLOSED_CONNECTION,
    ),
)
rule(
    "5.1.1-the-last-stream-id-works", f.request(LAST), reply(b"ok", LAST), body(b"ok", LAST),
    alive=False,
)  # fmt: skip
rule(
    "5.1.1-our-streams-are-odd-and-increase",
    lambda p: [p.open().id for _ in range(3)] == [1, 3, 5],
    client=True,
)

# 5.1.2 Stream concurrency

OVER_LIMIT = (strm(f.REFUSED_STREAM, 5), strm(f.PROTOCOL_ERROR, 5))
TURNS = range(1, 100, 2)
rules(
    (
        "5.1.2-streams-above-our-limit-are-refused",
        f.request(1) + f.post(3) + f.request(5),
        unknown(5),
        reply(),
        reply(stream=3),
        f.data(3, end=True),
        *OVER_LIMIT,
    ),
    (
        "5.1.2-half-closed-streams-count",
        f.post(1) + f.post(3),
        reply(),
        reply(stream=3),
        f.request(5) + f.data(1, end=True) + f.data(3, end=True),
        *OVER_LIMIT,
    ),
    (
        "5.1.2-closed-streams-do-not-count",
        *[step for n in TURNS for step in (f.request(n), reply(stream=n))],
    ),
    (
        "5.1.2-reset-streams-do-not-count",
        *[f.post(n) + f.reset(n) for n in TURNS],
        lambda p: len(p.events_of(events.HeadReceived)) == 50,
    ),
    ("5.1.2-our-limit-is-announced", lambda p: p.out[0].values[f.MAX_CONCURRENT_STREAMS] == 2),
    limits=Http2Limits(max_streams=2),
)


@pytest.mark.parametrize("most", [0, 1, 2])
def test_5_1_2_we_open_no_more_streams_than_the_peer_allows(most: int) -> None:
    peer = Peer(Role.CLIENT, settings=((f.MAX_CONCURRENT_STREAMS, most),))
    for _ in range(most):
        peer.open()
    with pytest.raises(StreamLimit):
        peer.open()
    if most:
        peer.send(WHOLE_OK)
        peer.open()
    with pytest.raises(StreamLimit):
        peer.open()
    assert len(peer.sent(f.HEADERS)) == most + (most > 0)


def test_5_1_2_streams_over_a_lowered_limit_may_finish() -> None:
    peer = Peer(Role.CLIENT)
    _, second = peer.open(), peer.open()
    peer.send(f.settings((f.MAX_CONCURRENT_STREAMS, 1)), WHOLE_OK)
    with pytest.raises(StreamLimit):
        peer.open()
    peer.send(f.headers(second.id, f.block(f.OK), end=True))
    assert peer.open().id == 5
    peer.judge(FINE, alive=False)


# 5.2 Flow control


rule(
    "5.2.1-only-data-is-flow-controlled",
    f.request(),
    reply(b"abc"),
    lambda p: p.heads == [(1, list(f.OK))],
    body(b""),
    f.window_update(1, 2),
    body(b"ab"),
    settings=((f.INITIAL_WINDOW_SIZE, 0),),
)
rule(
    "5.2.1-both-windows-begin-with-65535",
    f.request(),
    reply(bytes(100_000)),
    body(65535),
    f.window_update(1, 100_000),
    body(65535),
    f.window_update(0, 10),
    body(65545),
    f.window_update(0, 100_000),
    body(bytes(100_000)),
    ended(),
)

# 5.4 Errors


def last_stream_in_goaway_is(stream: int) -> Callable[[Peer], bool]:
    return lambda peer: peer.sent(f.GOAWAY)[0].last_stream == stream


rules(
    (
        "5.4.1-goaway-names-the-last-stream",
        f.request(1) + f.request(7) + f.data(0),
        last_stream_in_goaway_is(7),
        PROTOCOL,
    ),
    (
        "5.4.1-goaway-names-no-stream-when-there-was-none",
        f.data(0),
        last_stream_in_goaway_is(0),
        PROTOCOL,
    ),
    (
        "5.4.1-bytes-after-an-error-are-not-decoded",
        f.data(0) + f.request() + f.ping(),
        unknown(),
        PROTOCOL,
    ),
    (
        "5.4.1-events-before-an-error-in-the-same-bytes-are-reported",
        f.request() + f.data(0),
        lambda p: isinstance(p.events[0], events.HeadReceived),
        lambda p: isinstance(p.events[-1], events.ConnectionFailed),
        PROTOCOL,
    ),
    (
        "5.4.2-a-stream-error-does-not-affect-other-streams",
        f.post(1) + f.post(3) + f.window_update(3, 0) + f.data(1, b"abc", end=True),
        received(b"abc"),
        reply(b"def"),
        body(b"def"),
        strm(f.PROTOCOL_ERROR, 3),
    ),
    ("5.4.2-no-rst-stream-answers-a-rst-stream", f.post() + f.reset(1) * 3),
    (
        "5.4.2-a-stream-error-is-answered-once",
        f.post() + f.window_update(1, 0) * 2,
        strm(f.PROTOCOL_ERROR),
    ),
    # 5.5 Extensions
    ("5.5-unknown-settings-are-ignored", f.settings((0x0A, 0), (0xFFFF, 2**32 - 1), (0, 7))),
    (
        "5.5-unknown-frame-inside-a-field-block",
        f.request(whole=False) + f.frame(f.UNKNOWN, 0, 0),
        PROTOCOL,
    ),
    ("5.5-unknown-frame-on-a-closed-stream-is-ignored", *BY_END, f.frame(f.UNKNOWN, 0, 1)),
    ("5.5-unknown-frame-on-a-stream-of-ours-is-ignored", f.frame(f.UNKNOWN, 0, 2)),
)

test_rule = table.tested()
