"""RFC 9113, sections 6 and 7: the valid contents of each kind of frame, and error codes."""

import pytest

from penstock.protocols.http2 import Http2Limits, Role, StreamLimit, events
from tests.kit import frames as f
from tests.rfc.peer import (
    FINE,
    Peer,
    Step,
    Table,
    body,
    conn,
    ended,
    open_request,
    received,
    reply,
    reset,
    strm,
    trailers,
)  # fmt: skip

table = Table()
rule, rules = table.rule, table.rules

PROTOCOL = conn(f.PROTOCOL_ERROR)
SIZE = conn(f.FRAME_SIZE_ERROR)
FLOW, STREAM_FLOW = conn(f.FLOW_CONTROL_ERROR), strm(f.FLOW_CONTROL_ERROR)
OK, BLOCK = f.block(f.OK), f.block(f.GET)
raw = f.frame

# 6.1 DATA

rules(
    ("6.1-data-on-stream-0", f.data(0, b"x"), PROTOCOL),
    ("6.1-empty-data-on-stream-0", f.data(0), PROTOCOL),
    ("6.1-padding-as-long-as-the-payload", f.post() + raw(f.DATA, 8, 1, b"\x06hello"), PROTOCOL),
    ("6.1-padding-longer-than-the-payload", f.post() + raw(f.DATA, 8, 1, b"\xffhello"), PROTOCOL),
    (
        "6.1-padding-of-an-empty-payload",
        f.post() + raw(f.DATA, 8, 1, b""),
        SIZE,
        strm(f.FRAME_SIZE_ERROR),
    ),
    ("6.1-padding-that-is-not-zero-may-be-accepted", f.post() + raw(f.DATA, 8, 1, b"\x02abPP")),
    (
        "6.1-padding-that-fills-the-payload",
        f.post() + f.data(1, b"", pad=255) + f.data(1, b"", pad=0),
        received(b""),
        f.data(1, b"abc", pad=7, end=True),
        received(b"abc"),
        lambda p: p.events_of(events.DataReceived)[-1].ended,
    ),
)

# 6.2 HEADERS

PADDED_PRIORITY = b"\x02" + f.weight() + b"\x82"
rules(
    ("6.2-headers-on-stream-0", f.request(0), PROTOCOL),
    ("6.2-padding-longer-than-the-rest", raw(f.HEADERS, 0x0D, 1, b"\xff" + BLOCK), PROTOCOL),
    ("6.2-padding-over-the-rest-with-priority", raw(f.HEADERS, 0x2D, 1, PADDED_PRIORITY), PROTOCOL),
    ("6.2-no-room-for-the-pad-length", raw(f.HEADERS, 0x0D, 1, b""), SIZE),
    ("6.2-no-room-for-the-priority", raw(f.HEADERS, 0x25, 1, bytes(4)), SIZE),
    ("6.2-no-room-for-pad-length-and-priority", raw(f.HEADERS, 0x2D, 1, bytes(5)), SIZE),
    (
        "6.2-padding-and-priority-are-removed",
        f.request(1, pad=5, priority=f.weight(0)) + f.request(3, pad=0),
        f.request(5, priority=f.weight(3, 255)) + f.request(7, priority=f.weight(1 << 31 | 5)),
        lambda p: [e.stream.id for e in p.events_of(events.HeadReceived)] == [1, 3, 5, 7],
    ),
    (
        "6.2-padding-that-leaves-an-empty-fragment",
        f.headers(1, b"", pad=9, whole=False, end=True) + f.continuation(1, BLOCK),
        Peer.head,
    ),
)

# RFC 7540 made a dependency on itself a stream error; in RFC 9113 it has no meaning.
SELF = (FINE, strm(f.PROTOCOL_ERROR))
rule("6.2-a-dependency-on-itself", f.request(1, priority=f.weight(1)), *SELF)
rule("6.3-a-dependency-on-itself", f.request() + f.priority(1, 1), *SELF)

# 6.3 PRIORITY, 6.4 RST_STREAM

WRONG_SIZE = strm(f.FRAME_SIZE_ERROR)
rules(
    ("6.3-priority-on-stream-0", f.priority(0), PROTOCOL),
    ("6.3-priority-too-short", f.request() + raw(f.PRIORITY, 0, 1, bytes(4)), WRONG_SIZE),
    ("6.3-priority-too-long", f.request() + raw(f.PRIORITY, 0, 1, bytes(6)), WRONG_SIZE),
    ("6.3-priority-in-any-state", f.priority(1) + f.request() + f.priority(1)),
    ("6.4-rst-stream-on-stream-0", f.reset(0), PROTOCOL),
    ("6.4-rst-stream-on-an-idle-stream", f.reset(1), PROTOCOL),
    ("6.4-rst-stream-too-short", f.request() + raw(f.RST_STREAM, 0, 1, bytes(3)), SIZE),
    ("6.4-rst-stream-too-long", f.request() + raw(f.RST_STREAM, 0, 1, bytes(5)), SIZE),
    (
        "6.4-rst-stream-by-us",
        f.request(),
        lambda p: p.core.reset(p.stream(), f.INTERNAL_ERROR),
        lambda p: p.core.reset(p.stream(), f.CANCEL),
        Peer.flush,
        lambda p: setattr(p, "events", p.events_of(events.StreamReset)),
        strm(f.INTERNAL_ERROR),
    ),
    (
        "6.4-queued-data-is-dropped",
        f.request(),
        reply(bytes(200_000)),
        f.reset(1),
        lambda p: p.core.queued == 0,
        f.window_update(0, 1 << 20),
        body(65535),
    ),
)

# 6.5 SETTINGS

BIG = f.MOST + 1
rules(
    ("6.5-settings-on-a-stream", f.settings(stream=1), PROTOCOL),
    ("6.5-settings-on-an-open-stream", f.post() + f.settings(stream=1), PROTOCOL),
    ("6.5-acknowledgement-on-a-stream", raw(f.SETTINGS, f.ACK, 1, b""), PROTOCOL),
    ("6.5-acknowledgement-with-a-payload", f.settings_ack(bytes(6)), SIZE),
    ("6.5-acknowledgement-with-one-octet", f.settings_ack(b"x"), SIZE),
    *[
        (f"6.5-length-{length}-is-no-multiple-of-6", raw(f.SETTINGS, 0, 0, bytes(length)), SIZE)
        for length in (1, 5, 7, 16)
    ],
    ("6.5.2-enable-push-2", f.settings((2, 2)), PROTOCOL),
    ("6.5.2-enable-push-max", f.settings((2, 2**32 - 1)), PROTOCOL),
    ("6.5.2-enable-push-by-a-client", f.settings((2, 1), (2, 0))),
    ("6.5.2-initial-window-over", f.settings((4, BIG)), FLOW),
    ("6.5.2-initial-window-max", f.settings((4, f.MOST))),
    ("6.5.2-initial-window-0", f.settings((4, 0))),
    ("6.5.2-max-frame-size-under", f.settings((5, 16383)), PROTOCOL),
    ("6.5.2-max-frame-size-0", f.settings((5, 0)), PROTOCOL),
    ("6.5.2-max-frame-size-over", f.settings((5, 1 << 24)), PROTOCOL),
    ("6.5.2-max-frame-size-least", f.settings((5, 16384))),
    ("6.5.2-max-frame-size-most", f.settings((5, (1 << 24) - 1))),
    ("6.5.2-header-table-size-any", f.settings((1, 0), (1, 2**32 - 1))),
    ("6.5.2-max-streams-any", f.settings((3, 2**32 - 1), (3, 0))),
    ("6.5.2-header-list-size-any", f.settings((6, 2**32 - 1))),
    ("6.5.2-unknown-setting", f.settings((0xABC, 1))),
    ("6.5.2-a-wrong-value-after-good-ones", f.settings((4, 9), (4, BIG)), FLOW),
    ("6.5.2-a-wrong-value-before-good-ones", f.settings((5, 1), (5, 1 << 14)), PROTOCOL),
    (
        "6.5.3-each-settings-frame-is-acknowledged-once",
        lambda p: p.out.clear(),
        f.settings((4, 10)) + f.settings() + f.settings((4, 20), (4, 30)) + f.settings_ack(),
        lambda p: [one.flags for one in p.out] == [f.ACK] * 3,
    ),
)
rules(
    ("6.5.2-enable-push-1-by-a-server", f.settings((2, 1)), PROTOCOL),
    ("6.5.2-enable-push-0-by-a-server", f.settings((2, 0))),
    client=True,
)
rule("6.5.2-push-in-the-server-preface", f.settings((2, 1)), PROTOCOL, client=True, greet=False)
rule(
    "6.5.3-values-are-applied-in-order",
    f.request(),
    reply(b"abcdef"),
    body(b"abc"),
    settings=((4, 5), (4, 3)),
)
rule(
    "6.5.3-values-apply-before-the-acknowledgement",
    f.request(),
    reply(bytes(65536)),
    lambda p: p.out.clear(),
    f.window_update(0, 10) + f.settings((4, 65536)),
    lambda p: [one.kind for one in p.out] == [f.SETTINGS, f.DATA],
)


@pytest.mark.parametrize("role", Role)
def test_6_5_our_settings_have_our_limits(role: Role) -> None:
    limits = Http2Limits(
        max_streams=7,
        max_frame_size=20000,
        stream_window=70000,
        connection_window=90000,
        max_header_bytes=5000,
        header_table_size=100,
    )
    peer = Peer(role, limits, greet=False)
    peer.flush()
    values = peer.out[0].values
    assert values[f.INITIAL_WINDOW_SIZE] == 70000
    assert values[f.MAX_FRAME_SIZE] == 20000
    assert values[f.MAX_HEADER_LIST_SIZE] == 5000
    assert values[f.HEADER_TABLE_SIZE] == 100
    if role is Role.SERVER:
        assert values[f.MAX_CONCURRENT_STREAMS] == 7
        assert values.get(f.ENABLE_PUSH, 0) == 0
    else:
        assert values[f.ENABLE_PUSH] == 0
    (update,) = peer.sent(f.WINDOW_UPDATE)
    assert (update.stream, update.increment) == (0, 90000 - 65535)


# 6.6 PUSH_PROMISE, 6.7 PING

PROMISE = f.push_promise(1, 2, BLOCK)
rule("6.6-push-promise-to-a-server", f.post() + PROMISE, PROTOCOL)
rules(
    ("6.6-push-promise-though-disabled", open_request(), PROMISE, PROTOCOL),
    ("6.6-push-promise-on-stream-0", open_request(), f.push_promise(0, 2, BLOCK), PROTOCOL),
    ("6.6-push-promise-on-an-idle-stream", PROMISE, PROTOCOL),
    client=True,
)


def ping_acks(*payloads: bytes) -> Step:
    """The payloads of our acknowledgements, in order."""
    return lambda peer: (
        [(one.payload, one.ack) for one in peer.sent(f.PING)] == [(each, True) for each in payloads]
    )


rules(
    ("6.7-ping-on-a-stream", raw(f.PING, 0, 1, bytes(8)), PROTOCOL),
    ("6.7-ping-on-an-open-stream", f.post() + raw(6, 0, 1, bytes(8)), PROTOCOL),
    ("6.7-ping-too-short", f.ping(bytes(7)), SIZE),
    ("6.7-ping-too-long", f.ping(bytes(9)), SIZE),
    ("6.7-ping-empty", f.ping(b""), SIZE),
    ("6.7-acknowledgement-too-short", f.ping(b"x", ack=True), SIZE),
    (
        "6.7-ping-is-answered-with-its-payload",
        f.ping(b"12345678") + f.ping(b"abcdefgh"),
        ping_acks(b"12345678", b"abcdefgh"),
    ),
    ("6.7-an-acknowledgement-is-not-answered", f.ping(b"12345678", ack=True), ping_acks()),
    (
        "6.7-our-ping",
        lambda p: p.core.ping(b"ours\0\0\0\0"),
        Peer.flush,
        lambda p: p.sent(f.PING) == [(f.PING, 0, 0, b"ours\0\0\0\0")],
        f.ping(b"ours\0\0\0\0", ack=True),
        lambda p: [e.payload for e in p.events_of(events.PingAcknowledged)] == [b"ours\0\0\0\0"],
    ),
    (
        "6.7-a-ping-is-answered-inside-a-stream-of-data",
        f.request(),
        reply(bytes(1 << 20)),
        f.ping(),
        lambda p: p.out[-1].kind == f.PING,
    ),
)

# 6.8 GOAWAY

rules(
    ("6.8-goaway-on-a-stream", raw(f.GOAWAY, 0, 1, bytes(8)), PROTOCOL),
    ("6.8-goaway-too-short", raw(f.GOAWAY, 0, 0, bytes(7)), SIZE),
    ("6.8-goaway-empty", raw(f.GOAWAY, 0, 0, b""), SIZE),
    ("6.8-goaway-to-a-server", f.goaway(0)),
)


def goaways(*values: tuple[int, int, bytes]) -> Step:
    return lambda peer: (
        [(e.last_stream, e.code, e.debug) for e in peer.events_of(events.GoawayReceived)]
        == list(values)
    )


def send_goaway(*, final: bool) -> Step:
    return lambda peer: (peer.core.go_away(final=final), peer.flush())


def no_stream_can_be_opened(peer: Peer) -> None:
    peer.out.clear()
    with pytest.raises(StreamLimit):
        peer.open()
    assert peer.flush() == []


rules(
    (
        "6.8-goaway-is-reported-and-open-streams-continue",
        open_request(),
        f.goaway(1 | 1 << 31, f.NO_ERROR, b"bye"),
        goaways((1, 0, b"bye")),
        f.headers(1, OK) + f.data(1, b"abc", end=True),
        received(b"abc"),
    ),
    ("6.8-no-new-stream-after-goaway", open_request(), f.goaway(f.MOST), no_stream_can_be_opened),
    (
        "6.8-a-second-goaway-lowers-the-last-stream",
        open_request(),
        open_request(),
        f.goaway(f.MOST) + f.goaway(1),
        goaways((f.MOST, 0, b""), (1, 0, b"")),
    ),
    client=True,
    alive=False,
)
rules(
    (
        "6.8-our-goaway-in-two-steps",
        send_goaway(final=False),
        f.request(1) + f.request(3),
        lambda p: p.head(3),
        send_goaway(final=True),
        f.request(5),
        lambda p: p.events_of(events.HeadReceived, 5) == [],
        lambda p: [(one.last_stream, one.code) for one in p.sent(7)] == [(f.MOST, 0), (3, 0)],
        reply(b"abc", 3),
        body(b"abc", 3),
    ),
    (
        "6.8-blocks-of-streams-after-our-goaway-still-count-for-the-table",
        f.post(),
        send_goaway(final=True),
        lambda p: p.send(f.headers(3, p.encoded([*f.GET, (b"x-kept", b"once")]), end=True)),
        lambda p: p.send(f.headers(1, p.encoded([(b"x-kept", b"once")]), end=True)),
        trailers((b"x-kept", b"once")),
    ),
    (
        "6.8-data-of-streams-after-our-goaway-still-counts-for-the-window",
        send_goaway(final=True),
        *[f.post(stream) + f.data(stream, bytes(16384)) * 32 for stream in range(1, 17, 2)],
        # The rest of the first window is returned in this way too.
        lambda p: sum(one.increment for one in p.sent(f.WINDOW_UPDATE, 0)) > 4 << 20,
    ),
    alive=False,
)

# 6.9 WINDOW_UPDATE

FULL = f.MOST - 65535
rules(
    (
        "6.9-increment-0-on-a-stream",
        f.post() + f.window_update(1, 0),
        strm(f.PROTOCOL_ERROR),
    ),
    ("6.9-increment-0-on-the-connection", f.window_update(0, 0), PROTOCOL),
    ("6.9-increment-0-beside-the-reserved-bit", f.window_update(0, 1 << 31), PROTOCOL),
    ("6.9-too-short", raw(f.WINDOW_UPDATE, 0, 0, bytes(3)), SIZE),
    ("6.9-too-long", raw(f.WINDOW_UPDATE, 0, 0, b"\0\0\0\1\0"), SIZE),
    ("6.9-too-long-on-a-stream", f.post() + raw(f.WINDOW_UPDATE, 0, 1, b"\0\0\0\1\0"), SIZE),
    ("6.9-on-an-idle-stream", f.window_update(1, 1), PROTOCOL),
    ("6.9-on-a-half-closed-stream", f.request() + f.window_update(1, 1)),
    ("6.9.1-connection-window-over", f.window_update(0, f.MOST), FLOW),
    ("6.9.1-connection-window-over-by-one", f.window_update(0, FULL + 1), FLOW),
    ("6.9.1-connection-window-full", f.window_update(0, FULL)),
    ("6.9.1-stream-window-over", f.post() + f.window_update(1, f.MOST), STREAM_FLOW),
    (
        "6.9.1-stream-window-over-in-two-steps",
        f.post() + f.window_update(1, FULL) + f.window_update(1, 1),
        STREAM_FLOW,
    ),
    ("6.9.1-stream-window-full", f.post() + f.window_update(1, FULL)),
)


def data_of(total: int, stream: int = 1) -> bytes:
    """This amount of data, in frames of different sizes."""
    sizes = [16000] * (total // 16000) + [total % 16000]
    return b"".join(f.data(stream, bytes(size)) for size in sizes)


rules(
    (
        "6.9.1-the-whole-stream-window-may-be-used",
        f.post() + data_of(65535),
        received(bytes(65535)),
    ),
    ("6.9.1-data-over-the-stream-window", f.post() + data_of(65536), STREAM_FLOW, FLOW),
    (
        "6.9.1-padding-counts-for-the-stream-window",
        f.post() + data_of(65535 - 256) + f.data(1, b"x", pad=255),
        STREAM_FLOW,
        FLOW,
    ),
    limits=Http2Limits(stream_window=65535, connection_window=1 << 20),
)
rules(
    (
        "6.9.1-data-over-the-connection-window",
        f.post(1) + f.post(3) + data_of(40000, 1) + data_of(25536, 3),
        FLOW,
    ),
    (
        "6.9.1-the-whole-connection-window-may-be-used",
        f.post(1) + f.post(3) + data_of(40000, 1) + data_of(25535, 3),
    ),
    limits=Http2Limits(stream_window=1 << 20, connection_window=65535),
)


@pytest.mark.parametrize(("piece", "pad"), [(b"x", 255), (bytes(16000), None)])
def test_6_9_1_the_window_is_returned_after_data_was_consumed(
    piece: bytes, pad: int | None
) -> None:
    """With padding too: the peer is never blocked, and never has more than the window."""
    peer = Peer(limits=Http2Limits(stream_window=65535, connection_window=1 << 20))
    peer.send(f.post())
    window, received_bytes, frame = 65535, 0, f.data(1, piece, pad=pad)
    for _ in range(1024 if pad else 64):
        peer.out.clear()
        assert window >= len(frame) - 9, "the peer is stuck"
        for event in peer.send(frame):
            received_bytes += len(event.data)
            peer.core.consumed(event.stream, event.counted)
        peer.flush()
        window -= len(frame) - 9
        window += sum(one.increment for one in peer.sent(f.WINDOW_UPDATE, 1))
        assert window <= 65535
    assert received_bytes == len(piece) * (1024 if pad else 64)
    peer.judge(FINE)


WAYS_TO_END = {
    "reset by the peer": lambda p, n: p.send(f.reset(n)),
    "reset by us": lambda p, n: p.core.reset(p.stream(n), f.CANCEL),
    "reset by us before its data": None,
    "answered": lambda p, n: (p.core.reply(p.stream(n), OK, b""), p.send(f.data(n, end=True))),
    "answered with a body": lambda p, n: (
        p.send(f.data(n, end=True)),
        p.core.reply(p.stream(n), OK, b"abc", OK),
    ),
    "reset for data behind the end": lambda p, n: p.send(
        f.data(n, end=True) + f.data(n, bytes(9000))
    ),
}


@pytest.mark.parametrize("how", WAYS_TO_END)
def test_6_9_1_the_window_of_data_unread_at_a_stream_s_end_is_returned(how: str) -> None:
    """``consumed`` has no effect on it any more; the connection's window must not shrink."""
    peer = Peer(limits=Http2Limits(stream_window=1 << 20, connection_window=100_000))
    peer.flush()
    window, end = 100_000, WAYS_TO_END[how]
    for stream in range(1, 101, 2):
        peer.out.clear()
        peer.send(f.post(stream))
        if end is None:
            reset(stream)(peer)
        peer.send(f.data(stream, bytes(16000), pad=10))
        window -= 16011
        held = peer.events_of(events.DataReceived, stream)
        if end is not None:
            end(peer, stream)
        window -= 9000 if "behind" in how else 0
        for event in held:  # as by a slow caller
            peer.core.consumed(event.stream, event.counted)
        peer.flush()
        window += sum(one.increment for one in peer.sent(f.WINDOW_UPDATE, 0))
        assert 25011 <= window <= 100_000, f"after {stream}"
    assert not peer.events_of(events.ConnectionFailed)


# 6.9.2 The initial window, 6.9.3 Reducing it


def send_data(data: bytes, *, end: bool = False) -> Step:
    return lambda peer: (peer.core.send_data(peer.stream(), data, end=end), peer.flush())


def send_head(peer: Peer) -> None:
    peer.core.send_head(peer.stream(), OK)
    peer.flush()


rules(
    (
        "6.9.2-a-window-may-become-negative",
        f.request(),
        send_head,
        send_data(bytes(10000)),
        f.settings((4, 100)),  # 9900 below zero
        send_data(b"abc", end=True),
        f.window_update(1, 9900),
        body(10000),
        f.window_update(1, 1),
        body(bytes(10000) + b"a"),
        f.settings((4, 102)),
        body(bytes(10000) + b"abc"),
    ),
    (
        "6.9.2-a-setting-lifts-a-stream-window-over",
        f.post() + f.window_update(1, FULL) + f.settings((4, 65536)),
        FLOW,
    ),
    (
        "6.9.2-a-setting-lifts-a-closed-stream-s-window",
        f.post() + f.window_update(1, FULL) + f.reset(1) + f.settings((4, 65536)),
    ),
    (
        "6.9.2-the-window-of-new-streams-follows-the-setting",
        f.settings((4, 7)) + f.request(),
        reply(bytes(100)),
        body(7),
    ),
    (
        "6.9-blocked-streams-take-turns",
        *[step for n in (1, 3, 5) for step in (f.request(n), reply(bytes(200_000), n))],
        b"".join(f.window_update(n, 1 << 20) for n in (1, 3, 5)),
        lambda p: p.out.clear(),
        f.window_update(0, 16384 * 9),
        lambda p: min(len(p.body(n)) for n in (1, 3, 5)) >= 16384 * 2,
    ),
)
rules(
    (
        "6.9-the-reserved-bit-is-ignored",
        f.request(),
        reply(b"abcdef"),
        f.window_update(1, 1 << 31 | 3),
        body(b"abc"),
    ),
    # An empty frame needs no window only if it ends the stream; some peers require that.
    (
        "6.9-nothing-is-sent-for-no-data",
        f.request(),
        send_head,
        send_data(b""),
        lambda p: not p.sent(0),
    ),
    (
        "6.9.2-an-empty-end-needs-no-window",
        f.request(),
        send_head,
        send_data(b"", end=True),
        ended(),
    ),
    (
        "6.9-trailers-wait-for-blocked-data",
        f.request(),
        reply(b"abcd", trailers=[(b"x-t", b"1")]),
        lambda p: len(p.heads) == 1,
        f.window_update(1, 4),
        body(b"abcd"),
        lambda p: p.heads[1] == (1, [(b"x-t", b"1")]),
        ended(),
    ),
    settings=((4, 0),),
)
rule(
    "6.9.2-a-larger-initial-window-lets-waiting-streams-continue",
    *[step for n in (1, 3) for step in (f.request(n), reply(bytes(100), n), body(10, n))],
    f.settings((4, 60)),
    *[body(60, n) for n in (1, 3)],
    f.settings((4, 1000)),
    *[body(100, n) for n in (1, 3)],
    settings=((4, 10),),
)
rule(
    "6.9.2-the-connection-window-ignores-settings",
    f.request(),
    reply(bytes(1 << 18)),
    body(65535),
    settings=((4, 1 << 20),),
)
rules(
    (
        "6.9.3-data-over-a-smaller-window-before-ours-is-acknowledged",
        f.PREFACE + f.settings() + f.post() + f.data(1, bytes(10000)),
        received(bytes(10000)),
        f.settings_ack(),
    ),
    (
        "6.9.3-the-smaller-window-applies-when-ours-is-acknowledged",
        f.PREFACE + f.settings() + f.post() + f.data(1, bytes(900)),
        f.settings_ack() + f.data(1, bytes(100)),
        received(bytes(1000)),
        f.data(1, b"x"),
        STREAM_FLOW,
        FLOW,
    ),
    greet=False,
    limits=Http2Limits(stream_window=1000),
)

# 6.10 CONTINUATION, 7 Error codes

TWO = f.block([(b"x-a", b"1"), (b"x-b", b"2")])
rules(
    ("6.10-continuation-on-stream-0", f.continuation(0), PROTOCOL),
    ("6.10-on-stream-0-inside-a-block", f.request(whole=False) + f.continuation(0), PROTOCOL),
    ("6.10-after-a-whole-block", f.request(end=False) + f.continuation(1), PROTOCOL),
    ("6.10-after-a-block", f.request(whole=False) + f.continuation(1) * 2, PROTOCOL),
    ("6.10-after-data", f.post() + f.data(1, b"x") + f.continuation(1), PROTOCOL),
    ("6.10-a-block-without-its-end", f.request(whole=False) + f.data(1), PROTOCOL),
    (
        "6.10-trailers-in-fragments",
        f.post() + f.data(1, b"abc") + f.headers(1, TWO[:3], whole=False, end=True),
        f.continuation(1, TWO[3:6], whole=False) + f.continuation(1, TWO[6:]),
        trailers((b"x-a", b"1"), (b"x-b", b"2")),
    ),
    (
        "7-an-unknown-code-of-rst-stream-is-accepted",
        f.post() + f.reset(1, 0xDEADBEEF),
        lambda p: (
            [(e.code, e.by_peer) for e in p.events_of(events.StreamReset)] == [(0xDEADBEEF, True)]
        ),
    ),
)
rule(
    "7-an-unknown-code-of-goaway-is-accepted",
    f.goaway(0, 0xDEADBEEF),
    goaways((0, 0xDEADBEEF, b"")),
    client=True,
    alive=False,
)

# Rules that do not depend on the role hold for both roles.
POST = open_request(f.POST, end=False)
rules(
    ("6.1-to-a-client-data-on-stream-0", POST, f.data(0, b"x"), PROTOCOL),
    ("6.5-to-a-client-acknowledgement-with-a-payload", POST, f.settings_ack(b"x"), SIZE),
    ("6.5.2-to-a-client-initial-window-over", POST, f.settings((4, BIG)), FLOW),
    ("6.7-to-a-client-ping-too-short", POST, f.ping(b"short"), SIZE),
    ("6.8-to-a-client-goaway-empty", POST, raw(f.GOAWAY, 0, 0, b""), SIZE),
    ("6.9-to-a-client-increment-0", POST, f.window_update(0, 0), PROTOCOL),
    ("6.9.1-to-a-client-window-over", POST, f.window_update(0, f.MOST), FLOW),
    ("6.10-to-a-client-continuation-of-nothing", POST, f.continuation(1), PROTOCOL),
    (
        "6.2-to-a-client-padding-is-removed",
        POST,
        f.headers(1, OK, pad=3) + f.data(1, b"abc", pad=9, end=True),
        received(b"abc"),
    ),
    client=True,
)

test_rule = table.tested()
