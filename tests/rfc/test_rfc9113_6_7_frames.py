"""RFC 9113, sections 6 and 7: what each kind of frame must hold, and error codes."""

import pytest
from hyperframe import frame as frames

from penstock.protocols.http2 import Http2Limits, Role, StreamLimit, events
from tests.rfc import wire
from tests.rfc.peer import FINE, Case, Peer, Table, conn, strm

table = Table()
add, each = table.add, table.each

PROTOCOL = conn(wire.PROTOCOL_ERROR)
SIZE = conn(wire.FRAME_SIZE_ERROR)
FLOW = conn(wire.FLOW_CONTROL_ERROR)
OK = wire.block(wire.OK)


def post(peer: Peer, stream: int = 1) -> bytes:
    return peer.request(stream, wire.POST, end=False)


def raw(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return wire.frame(kind, flags, stream, payload)


# 6.1 DATA


def on_post(piece: bytes):
    return lambda p: p.send(post(p), piece)


each(
    ("6.1-data-on-stream-0", lambda p: p.send(wire.data(0, b"x")), PROTOCOL),
    ("6.1-empty-data-on-stream-0", lambda p: p.send(wire.data(0)), PROTOCOL),
    (
        "6.1-padding-as-long-as-the-payload",
        on_post(raw(wire.DATA, wire.PADDED, 1, b"\x06hello")),
        PROTOCOL,
    ),
    (
        "6.1-padding-longer-than-the-payload",
        on_post(raw(wire.DATA, wire.PADDED, 1, b"\xffhello")),
        PROTOCOL,
    ),
    (
        "6.1-padding-of-an-empty-payload",
        on_post(raw(wire.DATA, wire.PADDED, 1, b"")),
        SIZE,
        strm(wire.FRAME_SIZE_ERROR),
    ),
    (
        "6.1-padding-that-is-not-zero-may-be-taken",
        on_post(raw(wire.DATA, wire.PADDED, 1, b"\x02abPP")),
    ),
)


@add("6.1-padding-that-fills-the-payload")
def _(peer: Peer) -> None:
    peer.send(post(peer), wire.data(1, b"", pad=255), wire.data(1, b"", pad=0))
    assert peer.received() == b""
    peer.send(wire.data(1, b"abc", pad=7, end=True))
    assert peer.received() == b"abc"
    assert peer.seen(events.DataReceived)[-1].ended


# 6.2 HEADERS

BLOCK = wire.block(wire.GET)
each(
    ("6.2-headers-on-stream-0", lambda p: p.send(p.request(0)), PROTOCOL),
    (
        "6.2-padding-longer-than-the-rest",
        lambda p: p.send(raw(wire.HEADERS, 0x0D, 1, b"\xff" + BLOCK)),
        PROTOCOL,
    ),
    (
        "6.2-padding-longer-than-the-rest-with-priority",
        lambda p: p.send(raw(wire.HEADERS, 0x2D, 1, b"\x02" + wire.weight() + b"\x82")),
        PROTOCOL,
    ),
    (
        "6.2-no-room-for-the-pad-length",
        lambda p: p.send(raw(wire.HEADERS, 0x0D, 1, b"")),
        SIZE,
    ),
    (
        "6.2-no-room-for-the-priority",
        lambda p: p.send(raw(wire.HEADERS, 0x25, 1, b"\0\0\0\0")),
        SIZE,
    ),
    (
        "6.2-no-room-for-pad-length-and-priority",
        lambda p: p.send(raw(wire.HEADERS, 0x2D, 1, b"\0\0\0\0\0")),
        SIZE,
    ),
)


@add("6.2-padding-and-priority-are-taken-off")
def _(peer: Peer) -> None:
    peer.send(peer.request(1, pad=5, priority=wire.weight(0)))
    peer.send(peer.request(3, pad=0), peer.request(5, priority=wire.weight(3, 255)))
    peer.send(peer.request(7, priority=wire.weight(1 << 31 | 5)))
    assert [event.stream.id for event in peer.seen(events.HeadReceived)] == [1, 3, 5, 7]


@add("6.2-padding-that-leaves-an-empty-fragment")
def _(peer: Peer) -> None:
    peer.send(wire.headers(1, b"", pad=9, whole=False, end=True), wire.continuation(1, BLOCK))
    assert peer.head().method == "GET"


# RFC 7540 made a dependency on itself an error of the stream; RFC 9113 gives it no meaning.
SELF = (FINE, strm(wire.PROTOCOL_ERROR))
add("6.2-a-dependency-on-itself", *SELF)(lambda p: p.send(p.request(1, priority=wire.weight(1))))
add("6.3-a-dependency-on-itself", *SELF)(lambda p: p.send(p.request(), wire.priority(1, 1)))

# 6.3 PRIORITY

each(
    ("6.3-priority-on-stream-0", lambda p: p.send(wire.priority(0)), PROTOCOL),
    (
        "6.3-priority-too-short",
        lambda p: p.send(p.request(), raw(wire.PRIORITY, 0, 1, bytes(4))),
        strm(wire.FRAME_SIZE_ERROR),
    ),
    (
        "6.3-priority-too-long",
        lambda p: p.send(p.request(), raw(wire.PRIORITY, 0, 1, bytes(6))),
        strm(wire.FRAME_SIZE_ERROR),
    ),
    (
        "6.3-priority-in-any-state",
        lambda p: p.send(wire.priority(1), p.request(), wire.priority(1)),
    ),
)


# 6.4 RST_STREAM

each(
    ("6.4-rst-stream-on-stream-0", lambda p: p.send(wire.reset(0)), PROTOCOL),
    ("6.4-rst-stream-on-an-idle-stream", lambda p: p.send(wire.reset(1)), PROTOCOL),
    (
        "6.4-rst-stream-too-short",
        lambda p: p.send(p.request(), raw(wire.RST_STREAM, 0, 1, bytes(3))),
        SIZE,
    ),
    (
        "6.4-rst-stream-too-long",
        lambda p: p.send(p.request(), raw(wire.RST_STREAM, 0, 1, bytes(5))),
        SIZE,
    ),
)


@add("6.4-rst-stream-by-us", strm(wire.INTERNAL_ERROR))
def _(peer: Peer) -> None:
    peer.send(peer.request())
    peer.core.reset(peer.stream(), wire.INTERNAL_ERROR)
    peer.flush()
    peer.core.reset(peer.stream(), wire.CANCEL)
    peer.flush()
    peer.events = [e for e in peer.events if isinstance(e, events.StreamReset)]


@add("6.4-what-is-queued-is-dropped")
def _(peer: Peer) -> None:
    peer.send(peer.request())
    peer.core.reply(peer.stream(), OK, bytes(200_000))
    peer.flush()
    peer.send(wire.reset(1))
    assert peer.core.queued == 0
    before = len(peer.body(1))
    peer.send(wire.window_update(0, 1 << 20))
    assert len(peer.body(1)) == before


# 6.5 SETTINGS

BIG = wire.MOST + 1
each(
    ("6.5-settings-on-a-stream", lambda p: p.send(wire.settings(stream=1)), PROTOCOL),
    (
        "6.5-settings-on-an-open-stream",
        lambda p: p.send(post(p), wire.settings(stream=1)),
        PROTOCOL,
    ),
    (
        "6.5-acknowledgement-on-a-stream",
        lambda p: p.send(raw(wire.SETTINGS, wire.ACK, 1, b"")),
        PROTOCOL,
    ),
    ("6.5-acknowledgement-with-a-payload", lambda p: p.send(wire.settings_ack(bytes(6))), SIZE),
    ("6.5-acknowledgement-with-one-octet", lambda p: p.send(wire.settings_ack(b"x")), SIZE),
    *(
        (
            f"6.5-length-{length}-is-no-multiple-of-6",
            lambda p, length=length: p.send(raw(wire.SETTINGS, 0, 0, bytes(length))),
            SIZE,
        )
        for length in (1, 5, 7, 16)
    ),
    ("6.5.2-enable-push-2", lambda p: p.send(wire.settings((2, 2))), PROTOCOL),
    ("6.5.2-enable-push-max", lambda p: p.send(wire.settings((2, 2**32 - 1))), PROTOCOL),
    ("6.5.2-enable-push-by-a-client", lambda p: p.send(wire.settings((2, 1), (2, 0)))),
    ("6.5.2-initial-window-over", lambda p: p.send(wire.settings((4, BIG))), FLOW),
    ("6.5.2-initial-window-max", lambda p: p.send(wire.settings((4, wire.MOST)))),
    ("6.5.2-initial-window-0", lambda p: p.send(wire.settings((4, 0)))),
    ("6.5.2-max-frame-size-under", lambda p: p.send(wire.settings((5, 16383))), PROTOCOL),
    ("6.5.2-max-frame-size-0", lambda p: p.send(wire.settings((5, 0))), PROTOCOL),
    ("6.5.2-max-frame-size-over", lambda p: p.send(wire.settings((5, 1 << 24))), PROTOCOL),
    ("6.5.2-max-frame-size-least", lambda p: p.send(wire.settings((5, 16384)))),
    ("6.5.2-max-frame-size-most", lambda p: p.send(wire.settings((5, (1 << 24) - 1)))),
    ("6.5.2-header-table-size-any", lambda p: p.send(wire.settings((1, 0), (1, 2**32 - 1)))),
    ("6.5.2-max-streams-any", lambda p: p.send(wire.settings((3, 2**32 - 1), (3, 0)))),
    ("6.5.2-header-list-size-any", lambda p: p.send(wire.settings((6, 2**32 - 1)))),
    ("6.5.2-unknown-setting", lambda p: p.send(wire.settings((0xABC, 1)))),
    (
        "6.5.2-a-wrong-value-behind-good-ones",
        lambda p: p.send(wire.settings((4, 9), (4, BIG))),
        FLOW,
    ),
    (
        "6.5.2-a-wrong-value-before-good-ones",
        lambda p: p.send(wire.settings((5, 1), (5, 1 << 14))),
        PROTOCOL,
    ),
)
each(
    ("6.5.2-enable-push-1-by-a-server", lambda p: p.send(wire.settings((2, 1))), PROTOCOL),
    ("6.5.2-enable-push-0-by-a-server", lambda p: p.send(wire.settings((2, 0)))),
    client=True,
)
add("6.5.2-enable-push-1-in-the-server-preface", PROTOCOL, client=True, greet=False)(
    lambda p: p.send(wire.settings((2, 1)))
)


@add("6.5.3-each-settings-frame-is-acknowledged-once")
def _(peer: Peer) -> None:
    def acknowledged() -> int:
        return sum("ACK" in one.flags for one in peer.sent(frames.SettingsFrame))

    before = acknowledged()
    peer.send(wire.settings((4, 10)), wire.settings(), wire.settings((4, 20), (4, 30)))
    assert acknowledged() == before + 3
    peer.send(wire.settings_ack())
    assert acknowledged() == before + 3


@add("6.5.3-values-count-in-their-order", settings=((4, 5), (4, 3)))
def _(peer: Peer) -> None:
    peer.send(peer.request())
    peer.core.reply(peer.stream(), OK, b"abcdef")
    peer.flush()
    assert peer.body(1) == b"abc"


@add("6.5.3-values-hold-before-the-acknowledgement")
def _(peer: Peer) -> None:
    peer.send(peer.request())
    peer.core.reply(peer.stream(), OK, bytes(65536))
    peer.flush()
    peer.out.clear()
    peer.send(wire.window_update(0, 10), wire.settings((4, 65536)))
    made = [type(one) for one in peer.out]
    assert made.index(frames.SettingsFrame) < made.index(frames.DataFrame)


def test_6_5_our_settings_say_what_we_bound() -> None:
    limits = Http2Limits(
        max_streams=7,
        max_frame_size=20000,
        stream_window=70000,
        connection_window=90000,
        max_header_bytes=5000,
        header_table_size=100,
    )
    for role in Role:
        peer = Peer(role, limits, greet=False)
        peer.flush()
        said = {int(key): value for key, value in peer.out[0].settings.items()}
        assert said[wire.INITIAL_WINDOW_SIZE] == 70000
        assert said[wire.MAX_FRAME_SIZE] == 20000
        assert said[wire.MAX_HEADER_LIST_SIZE] == 5000
        assert said[wire.HEADER_TABLE_SIZE] == 100
        if role is Role.SERVER:
            assert said[wire.MAX_CONCURRENT_STREAMS] == 7
            assert said.get(wire.ENABLE_PUSH, 0) == 0
        else:
            assert said[wire.ENABLE_PUSH] == 0
        (update,) = peer.sent(frames.WindowUpdateFrame)
        assert (update.stream_id, update.window_increment) == (0, 90000 - 65535)


# 6.6 PUSH_PROMISE

PROMISE = wire.push_promise(1, 2, BLOCK)
add("6.6-push-promise-to-a-server", PROTOCOL)(lambda p: p.send(post(p), PROMISE))
each(
    ("6.6-push-promise-though-disabled", lambda p: (p.open(), p.send(PROMISE)), PROTOCOL),
    (
        "6.6-push-promise-on-stream-0",
        lambda p: (p.open(), p.send(wire.push_promise(0, 2, BLOCK))),
        PROTOCOL,
    ),
    ("6.6-push-promise-on-an-idle-stream", lambda p: p.send(PROMISE), PROTOCOL),
    client=True,
)


# 6.7 PING

each(
    ("6.7-ping-on-a-stream", lambda p: p.send(raw(wire.PING, 0, 1, bytes(8))), PROTOCOL),
    ("6.7-ping-on-an-open-stream", lambda p: p.send(post(p), raw(6, 0, 1, bytes(8))), PROTOCOL),
    ("6.7-ping-too-short", lambda p: p.send(wire.ping(bytes(7))), SIZE),
    ("6.7-ping-too-long", lambda p: p.send(wire.ping(bytes(9))), SIZE),
    ("6.7-ping-empty", lambda p: p.send(wire.ping(b"")), SIZE),
    ("6.7-acknowledgement-too-short", lambda p: p.send(wire.ping(b"x", ack=True)), SIZE),
)


@add("6.7-ping-is-answered-with-its-payload")
def _(peer: Peer) -> None:
    peer.send(wire.ping(b"12345678"), wire.ping(b"abcdefgh"))
    answers = peer.sent(frames.PingFrame)
    assert [(one.opaque_data, list(one.flags)) for one in answers] == [
        (b"12345678", ["ACK"]),
        (b"abcdefgh", ["ACK"]),
    ]


@add("6.7-an-acknowledgement-is-not-answered")
def _(peer: Peer) -> None:
    peer.send(wire.ping(b"12345678", ack=True))
    assert peer.sent(frames.PingFrame) == []


@add("6.7-our-ping")
def _(peer: Peer) -> None:
    peer.core.ping(b"ours\0\0\0\0")
    peer.flush()
    (one,) = peer.sent(frames.PingFrame)
    assert (one.opaque_data, list(one.flags)) == (b"ours\0\0\0\0", [])
    peer.send(wire.ping(b"ours\0\0\0\0", ack=True))
    (event,) = peer.seen(events.PingAcknowledged)
    assert event.payload == b"ours\0\0\0\0"


@add("6.7-a-ping-is-answered-inside-a-stream-of-data")
def _(peer: Peer) -> None:
    peer.send(peer.request())
    peer.core.reply(peer.stream(), OK, bytes(1 << 20))
    peer.flush()
    peer.send(wire.ping())
    assert isinstance(peer.out[-1], frames.PingFrame)


# 6.8 GOAWAY

each(
    ("6.8-goaway-on-a-stream", lambda p: p.send(raw(wire.GOAWAY, 0, 1, bytes(8))), PROTOCOL),
    ("6.8-goaway-too-short", lambda p: p.send(raw(wire.GOAWAY, 0, 0, bytes(7))), SIZE),
    ("6.8-goaway-empty", lambda p: p.send(raw(wire.GOAWAY, 0, 0, b"")), SIZE),
    ("6.8-goaway-to-a-server", lambda p: p.send(wire.goaway(0))),
)


@add("6.8-goaway-is-told-and-open-streams-go-on", client=True, alive=False)
def _(peer: Peer) -> None:
    peer.open()
    peer.send(wire.goaway(1 | 1 << 31, wire.NO_ERROR, b"bye"))
    (event,) = peer.seen(events.GoawayReceived)
    assert (event.last_stream, event.code, event.debug) == (1, 0, b"bye")
    peer.send(wire.headers(1, OK), wire.data(1, b"abc", end=True))
    assert peer.received(1) == b"abc"


@add("6.8-no-new-stream-after-goaway", client=True, alive=False)
def _(peer: Peer) -> None:
    peer.open()
    peer.send(wire.goaway(wire.MOST))
    peer.out.clear()
    with pytest.raises(StreamLimit):
        peer.open()
    assert peer.flush() == []


@add("6.8-a-second-goaway-lowers-the-last-stream", client=True, alive=False)
def _(peer: Peer) -> None:
    peer.open()
    peer.open()
    peer.send(wire.goaway(wire.MOST), wire.goaway(1))
    assert [event.last_stream for event in peer.seen(events.GoawayReceived)] == [wire.MOST, 1]


@add("6.8-our-goaway-in-two-steps", alive=False)
def _(peer: Peer) -> None:
    peer.core.go_away(final=False)
    peer.flush()
    peer.send(peer.request(1), peer.request(3))
    assert peer.head(3).method == "GET"
    peer.core.go_away(final=True)
    peer.flush()
    peer.send(peer.request(5))
    assert peer.seen(events.HeadReceived, 5) == []
    said = [(one.last_stream_id, one.error_code) for one in peer.sent(frames.GoAwayFrame)]
    assert said == [(wire.MOST, 0), (3, 0)]
    peer.core.reply(peer.stream(3), OK, b"abc")
    peer.flush()
    assert peer.body(3) == b"abc"


@add("6.8-blocks-of-streams-after-our-goaway-still-count-for-the-table", alive=False)
def _(peer: Peer) -> None:
    peer.send(peer.request(1, wire.POST, end=False))
    peer.core.go_away(final=True)
    peer.flush()
    peer.send(wire.headers(3, peer.encoded([*wire.GET, (b"x-kept", b"once")]), end=True))
    peer.send(wire.headers(1, peer.encoded([(b"x-kept", b"once")]), end=True))
    (event,) = peer.seen(events.TrailersReceived, 1)
    assert event.headers == ((b"x-kept", b"once"),)


@add("6.8-data-of-streams-after-our-goaway-still-counts-for-the-window", alive=False)
def _(peer: Peer) -> None:
    peer.core.go_away(final=True)
    peer.flush()
    half_a_stream = 32
    for stream in range(1, 17, 2):
        peer.send(post(peer, stream))
        peer.send(*[wire.data(stream, bytes(16384))] * half_a_stream)
    given = sum(one.window_increment for one in peer.sent(frames.WindowUpdateFrame, 0))
    assert given > 4 << 20  # the rest of the first window is made this way too


# 6.9 WINDOW_UPDATE

each(
    (
        "6.9-increment-0-on-a-stream",
        lambda p: p.send(post(p), wire.window_update(1, 0)),
        strm(wire.PROTOCOL_ERROR),
    ),
    ("6.9-increment-0-on-the-connection", lambda p: p.send(wire.window_update(0, 0)), PROTOCOL),
    (
        "6.9-increment-0-beside-the-reserved-bit",
        lambda p: p.send(wire.window_update(0, 1 << 31)),
        PROTOCOL,
    ),
    ("6.9-too-short", lambda p: p.send(raw(wire.WINDOW_UPDATE, 0, 0, bytes(3))), SIZE),
    ("6.9-too-long", lambda p: p.send(raw(wire.WINDOW_UPDATE, 0, 0, b"\0\0\0\1\0")), SIZE),
    (
        "6.9-too-long-on-a-stream",
        lambda p: p.send(post(p), raw(wire.WINDOW_UPDATE, 0, 1, b"\0\0\0\1\0")),
        SIZE,
    ),
    ("6.9-on-an-idle-stream", lambda p: p.send(wire.window_update(1, 1)), PROTOCOL),
    (
        "6.9-on-a-half-closed-stream",
        lambda p: p.send(p.request(), wire.window_update(1, 1)),
    ),
    (
        "6.9.1-connection-window-over",
        lambda p: p.send(wire.window_update(0, wire.MOST)),
        FLOW,
    ),
    (
        "6.9.1-connection-window-over-by-one",
        lambda p: p.send(wire.window_update(0, wire.MOST - 65535 + 1)),
        FLOW,
    ),
    (
        "6.9.1-connection-window-full",
        lambda p: p.send(wire.window_update(0, wire.MOST - 65535)),
    ),
    (
        "6.9.1-stream-window-over",
        lambda p: p.send(post(p), wire.window_update(1, wire.MOST)),
        strm(wire.FLOW_CONTROL_ERROR),
    ),
    (
        "6.9.1-stream-window-over-in-two-steps",
        lambda p: p.send(
            post(p), wire.window_update(1, wire.MOST - 65535), wire.window_update(1, 1)
        ),
        strm(wire.FLOW_CONTROL_ERROR),
    ),
    (
        "6.9.1-stream-window-full",
        lambda p: p.send(post(p), wire.window_update(1, wire.MOST - 65535)),
    ),
)


@add("6.9-the-reserved-bit-is-ignored", settings=((4, 0),))
def _(peer: Peer) -> None:
    peer.send(peer.request())
    peer.core.reply(peer.stream(), OK, b"abcdef")
    peer.flush()
    peer.send(wire.window_update(1, 1 << 31 | 3))
    assert peer.body(1) == b"abc"


NARROW = Http2Limits(stream_window=65535, connection_window=1 << 20)
SHARED = Http2Limits(stream_window=1 << 20, connection_window=65535)


def pour(peer: Peer, total: int, stream: int = 1, **options: int) -> None:
    while total:
        size = min(total, 16000)
        peer.send(wire.data(stream, bytes(size), **options))
        total -= size


@add("6.9.1-the-whole-stream-window-may-be-used", limits=NARROW)
def _(peer: Peer) -> None:
    peer.send(post(peer))
    pour(peer, 65535)
    assert len(peer.received()) == 65535


@add(
    "6.9.1-data-over-the-stream-window",
    strm(wire.FLOW_CONTROL_ERROR),
    FLOW,
    limits=NARROW,
)
def _(peer: Peer) -> None:
    peer.send(post(peer))
    pour(peer, 65536)


@add("6.9.1-data-over-the-connection-window", FLOW, limits=SHARED)
def _(peer: Peer) -> None:
    peer.send(post(peer, 1), post(peer, 3))
    pour(peer, 40000, 1)
    pour(peer, 25536, 3)


@add("6.9.1-the-whole-connection-window-may-be-used", limits=SHARED)
def _(peer: Peer) -> None:
    peer.send(post(peer, 1), post(peer, 3))
    pour(peer, 40000, 1)
    pour(peer, 25535, 3)


@add(
    "6.9.1-padding-counts-for-the-stream-window",
    strm(wire.FLOW_CONTROL_ERROR),
    FLOW,
    limits=NARROW,
)
def _(peer: Peer) -> None:
    peer.send(post(peer))
    pour(peer, 65535 - 256)
    peer.send(wire.data(1, b"x", pad=255))


@add("6.9.1-padding-is-given-back", limits=NARROW)
def _(peer: Peer) -> None:
    peer.send(post(peer))
    peer.out.clear()
    room = 65535
    for _ in range(1024):
        peer.send(wire.data(1, b"x", pad=255))
        room -= 257
        for event in peer.seen(events.DataReceived):
            peer.core.consumed(event.stream, event.counted)
        peer.events = [e for e in peer.events if not isinstance(e, events.DataReceived)]
        peer.flush()
        room += taken(peer)
        assert room >= 257, "the peer is stuck"


def taken(peer: Peer) -> int:
    """Room for stream 1 that lies among the frames put out; they are forgotten."""
    room = sum(one.window_increment for one in peer.sent(frames.WindowUpdateFrame, 1))
    peer.out.clear()
    return room


@add("6.9.1-more-than-the-window-when-it-is-given-back", limits=NARROW)
def _(peer: Peer) -> None:
    peer.send(post(peer))
    peer.out.clear()
    room, got = 65535, 0
    while got < 1_000_000:
        size = min(room, 16000)
        assert size, "the peer is stuck"
        for event in peer.send(wire.data(1, bytes(size))):
            got += len(event.data)
            peer.core.consumed(event.stream, event.counted)
        room -= size
        peer.flush()
        room += taken(peer)
        assert room <= 65535


def given_back(peer: Peer) -> int:
    return sum(one.window_increment for one in peer.sent(frames.WindowUpdateFrame, 0))


WAYS_TO_END = {
    "reset-by-the-peer": lambda p, stream: p.send(wire.reset(stream)),
    "reset-by-us": lambda p, stream: p.core.reset(p.stream(stream), wire.CANCEL),
    "answered": lambda p, stream: (
        p.core.reply(p.stream(stream), OK, b""),
        p.send(wire.data(stream, end=True)),
    ),
}


WAYS_TO_END["answered-with-a-body"] = lambda p, stream: (
    p.send(wire.data(stream, end=True)),
    p.core.reply(p.stream(stream), OK, b"abc", OK),
)
WAYS_TO_END["reset-for-data-behind-the-end"] = lambda p, stream: (
    p.send(wire.data(stream, end=True), wire.data(stream, bytes(9000))),
)


@pytest.mark.parametrize("how", WAYS_TO_END)
def test_6_9_1_what_a_stream_left_unread_when_it_ended_is_given_back(how: str) -> None:
    """Nobody can say ``consumed`` for it any more with effect; the connection must not starve."""
    peer = Peer(limits=Http2Limits(stream_window=1 << 20, connection_window=100_000))
    peer.flush()
    room = 100_000
    peer.out.clear()
    for stream in range(1, 101, 2):
        peer.send(post(peer, stream))
        peer.send(wire.data(stream, bytes(16000)))
        room -= 16000
        held = peer.seen(events.DataReceived, stream)
        WAYS_TO_END[how](peer, stream)
        room -= 9000 if "behind" in how else 0
        for event in held:  # a driver that is late
            peer.core.consumed(event.stream, event.counted)
        peer.flush()
        room += given_back(peer)
        peer.out.clear()
        assert 25000 <= room <= 100_000, f"after {stream}"


def test_6_9_1_data_of_streams_that_we_reset_is_given_back() -> None:
    peer = Peer(limits=Http2Limits(stream_window=1 << 20, connection_window=100_000))
    peer.flush()
    peer.out.clear()
    room = 100_000
    for stream in range(1, 101, 2):
        peer.send(post(peer, stream))
        peer.core.reset(peer.stream(stream), wire.CANCEL)
        peer.flush()
        peer.send(wire.data(stream, bytes(16000), pad=10))
        room += given_back(peer) - 16011
        peer.out.clear()
        assert 16011 <= room <= 100_000, f"after {stream}"
    assert peer.seen(events.DataReceived) == []
    assert not peer.seen(events.ConnectionFailed)


# 6.9.2 The initial window


@add("6.9.2-a-larger-initial-window-lets-waiting-streams-go-on", settings=((4, 10),))
def _(peer: Peer) -> None:
    for stream in (1, 3):
        peer.send(peer.request(stream))
        peer.core.reply(peer.stream(stream), OK, bytes(100))
    peer.flush()
    assert len(peer.body(1)) == len(peer.body(3)) == 10
    peer.send(wire.settings((4, 60)))
    assert len(peer.body(1)) == len(peer.body(3)) == 60
    peer.send(wire.settings((4, 1000)))
    assert len(peer.body(1)) == len(peer.body(3)) == 100


@add("6.9.2-a-window-may-become-negative")
def _(peer: Peer) -> None:
    peer.send(peer.request())
    stream = peer.stream()
    peer.core.send_head(stream, OK)
    peer.core.send_data(stream, bytes(10000))
    peer.flush()
    peer.send(wire.settings((4, 100)))  # 9900 below zero
    peer.core.send_data(stream, b"abc", end=True)
    peer.flush()
    peer.send(wire.window_update(1, 9900))
    assert len(peer.body(1)) == 10000
    peer.send(wire.window_update(1, 1))
    assert peer.body(1) == bytes(10000) + b"a"
    peer.send(wire.settings((4, 102)))
    assert peer.body(1) == bytes(10000) + b"abc"


@add("6.9.2-an-empty-end-needs-no-window", settings=((4, 0),))
def _(peer: Peer) -> None:
    peer.send(peer.request())
    stream = peer.stream()
    peer.core.send_head(stream, OK)
    peer.core.send_data(stream, b"", end=True)
    peer.flush()
    assert "END_STREAM" in peer.sent(frames.DataFrame, 1)[-1].flags


@add("6.9-nothing-is-sent-for-no-data", settings=((4, 0),))
def _(peer: Peer) -> None:
    """An empty frame needs no room only when it ends the stream; some peers insist on that."""
    peer.send(peer.request())
    peer.core.send_head(peer.stream(), OK)
    peer.core.send_data(peer.stream(), b"")
    peer.flush()
    assert peer.sent(frames.DataFrame) == []


@add("6.9.2-the-connection-window-knows-no-settings", settings=((4, 1 << 20),))
def _(peer: Peer) -> None:
    peer.send(peer.request())
    peer.core.reply(peer.stream(), OK, bytes(1 << 18))
    peer.flush()
    assert len(peer.body(1)) == 65535


@add("6.9.2-a-setting-lifts-a-stream-window-over", FLOW)
def _(peer: Peer) -> None:
    peer.send(post(peer), wire.window_update(1, wire.MOST - 65535), wire.settings((4, 65536)))


@add("6.9.2-a-setting-lifts-a-closed-stream-s-window")
def _(peer: Peer) -> None:
    peer.send(post(peer), wire.window_update(1, wire.MOST - 65535), wire.reset(1))
    peer.send(wire.settings((4, 65536)))


@add("6.9.2-the-window-of-new-streams-follows-the-setting")
def _(peer: Peer) -> None:
    peer.send(wire.settings((4, 7)), peer.request())
    peer.core.reply(peer.stream(), OK, bytes(100))
    peer.flush()
    assert len(peer.body(1)) == 7


@add(
    "6.9.3-data-over-a-smaller-window-before-ours-is-acknowledged",
    greet=False,
    limits=Http2Limits(stream_window=1000),
)
def _(peer: Peer) -> None:
    peer.send(wire.PREFACE, wire.settings(), post(peer), wire.data(1, bytes(10000)))
    assert len(peer.received()) == 10000
    peer.send(wire.settings_ack())


@add(
    "6.9.3-the-smaller-window-holds-when-ours-is-acknowledged",
    strm(wire.FLOW_CONTROL_ERROR),
    FLOW,
    limits=Http2Limits(stream_window=1000),
    greet=False,
)
def _(peer: Peer) -> None:
    peer.send(wire.PREFACE, wire.settings(), post(peer), wire.data(1, bytes(900)))
    peer.send(wire.settings_ack(), wire.data(1, bytes(100)))
    assert len(peer.received()) == 1000
    peer.send(wire.data(1, b"x"))


@add("6.9-trailers-wait-for-data-that-waits", settings=((4, 2),))
def _(peer: Peer) -> None:
    peer.send(peer.request())
    peer.core.reply(peer.stream(), OK, b"abcd", wire.block([(b"x-t", b"1")]))
    peer.flush()
    assert len(peer.heads) == 1
    peer.send(wire.window_update(1, 2))
    assert peer.body(1) == b"abcd"
    assert peer.heads[1] == (1, [(b"x-t", b"1")])
    assert "END_STREAM" in peer.out[-1].flags


@add("6.9-blocked-streams-take-turns")
def _(peer: Peer) -> None:
    for stream in (1, 3, 5):
        peer.send(peer.request(stream))
        peer.core.reply(peer.stream(stream), OK, bytes(200_000))
    peer.flush()
    for stream in (1, 3, 5):
        peer.send(wire.window_update(stream, 1 << 20))
    peer.out.clear()
    peer.send(wire.window_update(0, 16384 * 9))
    sizes = [len(peer.body(stream)) for stream in (1, 3, 5)]
    assert min(sizes) >= 16384 * 2, sizes


# 6.10 CONTINUATION

each(
    ("6.10-continuation-on-stream-0", lambda p: p.send(wire.continuation(0)), PROTOCOL),
    (
        "6.10-continuation-on-stream-0-inside-a-block",
        lambda p: p.send(p.request(whole=False), wire.continuation(0)),
        PROTOCOL,
    ),
    (
        "6.10-continuation-after-a-whole-block",
        lambda p: p.send(p.request(end=False), wire.continuation(1)),
        PROTOCOL,
    ),
    (
        "6.10-continuation-after-the-end-of-a-block",
        lambda p: p.send(p.request(whole=False), wire.continuation(1), wire.continuation(1)),
        PROTOCOL,
    ),
    (
        "6.10-continuation-after-data",
        lambda p: p.send(post(p), wire.data(1, b"x"), wire.continuation(1)),
        PROTOCOL,
    ),
    (
        "6.10-a-block-without-its-end",
        lambda p: p.send(p.request(whole=False), wire.data(1)),
        PROTOCOL,
    ),
)


@add("6.10-trailers-in-fragments")
def _(peer: Peer) -> None:
    block = wire.block([(b"x-a", b"1"), (b"x-b", b"2")])
    peer.send(post(peer), wire.data(1, b"abc"))
    peer.send(wire.headers(1, block[:3], whole=False, end=True))
    peer.send(wire.continuation(1, block[3:6], whole=False), wire.continuation(1, block[6:]))
    (event,) = peer.seen(events.TrailersReceived)
    assert event.headers == ((b"x-a", b"1"), (b"x-b", b"2"))


# 7 Error codes


@add("7-an-unknown-code-of-rst-stream-is-like-any")
def _(peer: Peer) -> None:
    peer.send(post(peer), wire.reset(1, 0xDEADBEEF))
    (event,) = peer.seen(events.StreamReset)
    assert (event.code, event.by_peer) == (0xDEADBEEF, True)


@add("7-an-unknown-code-of-goaway-is-like-any", client=True, alive=False)
def _(peer: Peer) -> None:
    peer.send(wire.goaway(0, 0xDEADBEEF))
    assert peer.seen(events.GoawayReceived)[0].code == 0xDEADBEEF


@pytest.mark.parametrize("case", table.cases, ids=lambda case: case.name)
def test_rule(case: Case) -> None:
    case.run()


def test_a_client_is_held_to_the_same_frames() -> None:
    """What does not depend on the role is wrong for both."""
    for piece, code in [
        (wire.data(0, b"x"), wire.PROTOCOL_ERROR),
        (wire.settings_ack(b"x"), wire.FRAME_SIZE_ERROR),
        (wire.settings((4, BIG)), wire.FLOW_CONTROL_ERROR),
        (wire.ping(b"short"), wire.FRAME_SIZE_ERROR),
        (wire.window_update(0, 0), wire.PROTOCOL_ERROR),
        (wire.window_update(0, wire.MOST), wire.FLOW_CONTROL_ERROR),
        (wire.continuation(1), wire.PROTOCOL_ERROR),
        (raw(wire.GOAWAY, 0, 0, b""), wire.FRAME_SIZE_ERROR),
    ]:
        peer = Peer(Role.CLIENT)
        peer.open(wire.POST, end=False)
        peer.send(piece)
        peer.judge(conn(code))
    peer = Peer(Role.CLIENT)
    peer.open(wire.POST, end=False)
    peer.send(wire.headers(1, OK, pad=3), wire.data(1, b"abc", pad=9, end=True))
    assert peer.received() == b"abc"
    peer.judge(FINE)
