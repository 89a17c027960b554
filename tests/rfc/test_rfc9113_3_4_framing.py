"""RFC 9113, sections 3 and 4: the connection preface, frames and field blocks."""

import pytest
from hyperframe import frame as frames

from penstock.protocols.http2 import Http2Limits, Role, events
from tests.rfc import wire
from tests.rfc.peer import FINE, Case, Peer, Table, conn, strm

table = Table()
add, each = table.add, table.each

HELLO = wire.PREFACE + wire.settings()


# 3.4 The connection preface

WRONG_PREFACES = {
    "an-http-1-request": b"GET / HTTP/1.1\r\nhost: example.org\r\n\r\n",
    "http-1-in-the-preface": b"PRI * HTTP/1.1\r\n\r\nSM\r\n\r\n" + wire.settings(),
    "last-octet-wrong": wire.PREFACE[:-1] + b"\r" + wire.settings(),
    "tls-hello": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(30),
    "frames-without-it": wire.settings() + wire.ping() + wire.ping(),
}
for name, sent in WRONG_PREFACES.items():
    add(f"3.4-wrong-preface-{name}", conn(1), greet=False)(lambda p, sent=sent: p.send(sent))

each(
    (
        "3.4-client-preface-must-go-on-with-settings-not-ping",
        lambda p: p.send(wire.PREFACE, wire.ping()),
        conn(wire.PROTOCOL_ERROR),
    ),
    (
        "3.4-client-preface-must-go-on-with-settings-not-headers",
        lambda p: p.send(wire.PREFACE, p.request()),
        conn(wire.PROTOCOL_ERROR),
    ),
    (
        "3.4-client-preface-must-go-on-with-settings-not-unknown",
        lambda p: p.send(wire.PREFACE, wire.frame(wire.UNKNOWN, 0, 0)),
        conn(wire.PROTOCOL_ERROR),
    ),
    ("3.4-settings-of-the-preface-may-be-empty", lambda p: p.send(HELLO)),
    greet=False,
)
each(
    (
        "3.4-server-preface-must-be-settings-not-ping",
        lambda p: p.send(wire.ping()),
        conn(wire.PROTOCOL_ERROR),
    ),
    (
        "3.4-server-preface-must-be-settings-not-window-update",
        lambda p: p.send(wire.window_update(0, 10)),
        conn(wire.PROTOCOL_ERROR),
    ),
    (
        "3.4-server-preface-must-be-settings-not-text",
        lambda p: p.send(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n"),
        conn(wire.PROTOCOL_ERROR),
        conn(wire.FRAME_SIZE_ERROR),
    ),
    ("3.4-settings-of-the-server-may-be-empty", lambda p: p.send(wire.settings())),
    client=True,
    greet=False,
)


@add("3.4-server-sends-settings-first", greet=False)
def _(peer: Peer) -> None:
    peer.flush()
    assert isinstance(peer.out[0], frames.SettingsFrame)
    assert not peer.out[0].flags
    peer.send(HELLO)


@add("3.4-client-sends-preface-and-settings-first", client=True, greet=False)
def _(peer: Peer) -> None:
    peer.flush()
    assert peer.raw.startswith(wire.PREFACE)
    assert isinstance(peer.out[0], frames.SettingsFrame)
    peer.send(wire.settings())


@add("3.4-client-may-ask-before-it-has-seen-the-server-settings", greet=False)
def _(peer: Peer) -> None:
    peer.send(HELLO, peer.request())
    assert peer.head().path == b"/"


@add("3.4-our-client-asks-before-it-has-seen-the-server-settings", client=True, greet=False)
def _(peer: Peer) -> None:
    peer.open()
    assert peer.sent(frames.HeadersFrame, 1)
    peer.greet()


@add("3.4-preface-in-single-octets", greet=False)
def _(peer: Peer) -> None:
    for index in range(len(HELLO)):
        assert peer.send(HELLO[index : index + 1]) == []


@add("3.4-settings-of-the-preface-are-acknowledged", greet=False)
def _(peer: Peer) -> None:
    peer.send(HELLO)
    assert [one for one in peer.sent(frames.SettingsFrame) if "ACK" in one.flags]


# 4.1 Frame format


@add("4.1-reserved-bit-of-the-stream-id-is-ignored")
def _(peer: Peer) -> None:
    peer.send(peer.request(1 | 1 << 31, wire.POST, end=False))
    peer.send(wire.data(1 | 1 << 31, b"abc", end=True))
    assert peer.received(1) == b"abc"


each(
    (
        "4.1-unknown-frame-on-stream-0-is-discarded",
        lambda p: p.send(wire.frame(wire.UNKNOWN, 0xFF, 0, b"x" * 100)),
    ),
    (
        "4.1-unknown-frame-on-an-idle-stream-is-discarded",
        lambda p: p.send(wire.frame(wire.UNKNOWN, 0, 9, b"x"), p.request(1)),
    ),
    (
        "4.1-unknown-frame-on-an-open-stream-is-discarded",
        lambda p: p.send(p.request(end=False), wire.frame(wire.UNKNOWN, 0, 1, b"x")),
    ),
    (
        "4.1-unknown-frame-on-a-half-closed-stream-is-discarded",
        lambda p: p.send(p.request(), wire.frame(wire.UNKNOWN, 1, 1)),
    ),
    (
        "4.1-unknown-frame-of-every-kind-is-discarded",
        lambda p: p.send(*[wire.frame(kind, 0, 0, b"1234") for kind in (10, 12, 14, 0x80, 0xFF)]),
    ),
    (
        "4.1-undefined-flags-of-headers-are-ignored",
        lambda p: p.send(p.request(flags=0xD2 & ~0x20)),
    ),
    (
        "4.1-undefined-flags-of-settings-are-ignored",
        lambda p: p.send(wire.frame(wire.SETTINGS, 0xFE, 0, b"")),
    ),
    (
        "4.1-undefined-flags-of-window-update-are-ignored",
        lambda p: p.send(wire.frame(wire.WINDOW_UPDATE, 0xFF, 0, b"\0\0\0\1")),
    ),
    (
        "4.1-undefined-flags-of-rst-stream-are-ignored",
        lambda p: p.send(p.request(), wire.frame(wire.RST_STREAM, 0xFF, 1, b"\0\0\0\x08")),
    ),
    (
        "4.1-undefined-flags-of-priority-are-ignored",
        lambda p: p.send(wire.frame(wire.PRIORITY, 0xFF, 1, wire.weight())),
    ),
)


@add("4.1-undefined-flags-of-ping-are-ignored")
def _(peer: Peer) -> None:
    peer.send(wire.frame(wire.PING, 0xFE, 0, b"12345678"))
    assert peer.sent(frames.PingFrame)[-1].opaque_data == b"12345678"


@add("4.1-undefined-flags-of-data-are-ignored")
def _(peer: Peer) -> None:
    peer.send(peer.request(fields=wire.POST, end=False), wire.data(1, b"abc", flags=0xF6))
    assert peer.received() == b"abc"
    peer.send(wire.data(1, end=True))


@add("4.1-undefined-flags-of-continuation-are-ignored")
def _(peer: Peer) -> None:
    block = wire.block(wire.GET)
    peer.send(wire.headers(1, block[:9], whole=False, end=True))
    peer.send(wire.frame(wire.CONTINUATION, 0xFF, 1, block[9:]))
    assert peer.stream().id == 1


# 4.2 Frame size

FULL = bytes(16384)
OVER = bytes(16385)


def opened(peer: Peer) -> bytes:
    return peer.request(fields=wire.POST, end=False)


@add("4.2-a-frame-of-the-largest-size-is-taken")
def _(peer: Peer) -> None:
    peer.send(opened(peer), wire.data(1, FULL, end=True))
    assert peer.received() == FULL


@add(
    "4.2-a-larger-announced-size-is-taken",
    limits=Http2Limits(max_frame_size=20000),
)
def _(peer: Peer) -> None:
    (first,) = [one for one in peer.sent(frames.SettingsFrame) if "ACK" not in one.flags]
    assert first.settings[wire.MAX_FRAME_SIZE] == 20000
    peer.send(opened(peer), wire.data(1, bytes(20000), end=True))
    assert len(peer.received()) == 20000


SIZE = wire.FRAME_SIZE_ERROR
each(
    (
        "4.2-data-over-the-size",
        lambda p: p.send(opened(p), wire.data(1, OVER)),
        conn(SIZE),
        strm(SIZE),
    ),
    ("4.2-headers-over-the-size", lambda p: p.send(wire.headers(1, OVER)), conn(SIZE)),
    (
        "4.2-continuation-over-the-size",
        lambda p: p.send(p.request(whole=False), wire.continuation(1, OVER)),
        conn(SIZE),
    ),
    (
        "4.2-settings-over-the-size",
        lambda p: p.send(wire.settings(*[(0x99, 1)] * 2731)),
        conn(SIZE),
    ),
    ("4.2-ping-over-the-size", lambda p: p.send(wire.ping(OVER)), conn(SIZE)),
    (
        "4.2-goaway-over-the-size",
        lambda p: p.send(wire.goaway(0, 0, OVER)),
        conn(SIZE),
    ),
    (
        "4.2-unknown-frame-over-the-size-on-stream-0",
        lambda p: p.send(wire.frame(wire.UNKNOWN, 0, 0, OVER)),
        conn(SIZE),
    ),
    (
        "4.2-the-size-is-judged-before-the-payload-is-there",
        lambda p: p.send(wire.headers(1, OVER)[:9]),
        conn(SIZE),
    ),
)


@add("4.2-we-send-no-frame-over-the-size-of-the-peer")
def _(peer: Peer) -> None:
    peer.send(peer.request())
    body = bytes(range(256)) * 160
    peer.core.reply(peer.stream(), wire.block(wire.OK), body)
    peer.flush()  # each frame is checked there
    assert peer.body(1) == body


@add("4.2-we-send-larger-frames-only-when-the-peer-allows-them", settings=((5, 30000),))
def _(peer: Peer) -> None:
    peer.send(peer.request())
    peer.core.reply(peer.stream(), wire.block(wire.OK), bytes(60000))
    peer.flush()
    assert peer.body(1) == bytes(60000)
    assert "END_STREAM" in peer.out[-1].flags


@add("4.2-our-large-head-is-cut-at-the-size-of-the-peer")
def _(peer: Peer) -> None:
    peer.decoder.max_header_list_size = 1 << 20
    peer.send(peer.request())
    long = [*wire.OK, (b"x-long", b"v" * 50000)]
    peer.core.send_head(peer.stream(), wire.block(long), end=True)
    peer.flush()  # which checks that CONTINUATION frames follow at once
    assert peer.heads[-1] == (1, long)
    first = peer.sent(frames.HeadersFrame, 1)[0]
    assert "END_STREAM" in first.flags


# 4.3 Field sections

COMPRESSION = conn(wire.COMPRESSION_ERROR)
each(
    (
        "4.3-a-block-that-cannot-be-decoded",
        lambda p: p.send(wire.headers(1, b"\x80", end=True)),
        COMPRESSION,
    ),
    (
        "4.3-a-block-that-ends-inside-a-field",
        lambda p: p.send(wire.headers(1, wire.block(wire.GET)[:-1], end=True)),
        COMPRESSION,
    ),
    (
        "4.3-trailers-that-cannot-be-decoded",
        lambda p: p.send(opened(p), wire.headers(1, b"\xff\xff\xff\x7f", end=True)),
        COMPRESSION,
    ),
    (
        "4.3-a-block-of-a-closed-stream-that-cannot-be-decoded",
        lambda p: (
            p.send(p.request(), p.request(3), wire.reset(1)),
            p.send(wire.headers(1, b"\x80", end=True)),
        ),
        COMPRESSION,
        conn(wire.STREAM_CLOSED),
        conn(wire.PROTOCOL_ERROR),
    ),
)
INSIDE = {
    "data": wire.data(1, b"x"),
    "headers-of-the-same-stream": wire.headers(1, b""),
    "headers-of-another-stream": wire.headers(3, wire.block(wire.GET)),
    "priority": wire.priority(1),
    "rst-stream": wire.reset(1),
    "settings": wire.settings(),
    "ping": wire.ping(),
    "goaway": wire.goaway(0),
    "window-update": wire.window_update(0, 1),
    "unknown-frame": wire.frame(wire.UNKNOWN, 0, 1),
    "continuation-of-another-stream": wire.continuation(3),
    "push-promise": wire.push_promise(1, 2, b""),
}
for name, piece in INSIDE.items():
    add(f"4.3-block-interrupted-by-{name}", conn(wire.PROTOCOL_ERROR))(
        lambda p, piece=piece: p.send(p.request(whole=False), piece)
    )
    add(f"4.3-later-in-the-block-interrupted-by-{name}", conn(wire.PROTOCOL_ERROR))(
        lambda p, piece=piece: p.send(
            wire.headers(1, b"", whole=False), wire.continuation(1, b"", whole=False), piece
        )
    )


@add("4.3-a-block-in-many-fragments")
def _(peer: Peer) -> None:
    block = wire.block([*wire.GET, (b"x-n", b"1")])
    peer.send(wire.headers(1, b"", whole=False, end=True))
    for index in range(0, len(block), 12):
        last = index + 12 >= len(block)
        peer.send(wire.continuation(1, block[index : index + 12], whole=last))
    (event,) = peer.seen(events.HeadReceived)
    assert event.ended
    assert event.head.headers[-1] == (b"x-n", b"1")


@add("4.3-nothing-is-told-before-the-block-is-whole")
def _(peer: Peer) -> None:
    assert peer.send(peer.request(whole=False)) == []
    assert len(peer.send(wire.continuation(1))) == 1


REFUSED = strm(wire.REFUSED_STREAM, 3)
MALFORMED = strm(wire.PROTOCOL_ERROR)


@add("4.3-a-malformed-request-still-counts-for-the-table", MALFORMED)
def _(peer: Peer) -> None:
    fields = [*wire.GET, (b"x-kept", b"once"), (b"connection", b"close")]
    peer.send(wire.headers(1, peer.encoded(fields), end=True))
    peer.send(wire.headers(3, peer.encoded([*wire.GET, (b"x-kept", b"once")]), end=True))
    assert peer.head(3).fields[b"x-kept"] == b"once"


@add(
    "4.3-a-refused-request-still-counts-for-the-table",
    REFUSED,
    limits=Http2Limits(max_streams=1),
    alive=False,  # that check asks two things at once
)
def _(peer: Peer) -> None:
    peer.send(peer.request(1))
    fields = [*wire.GET, (b"x-kept", b"once")]
    peer.send(wire.headers(3, peer.encoded(fields), end=True))
    peer.core.reply(peer.stream(1), wire.block(wire.OK), b"")
    peer.send(wire.headers(5, peer.encoded(fields), end=True))
    assert peer.head(5).fields[b"x-kept"] == b"once"
    peer.core.reply(peer.stream(5), wire.block(wire.OK), b"")
    peer.flush()


@add("4.3-trailers-of-a-stream-that-we-reset-still-count-for-the-table")
def _(peer: Peer) -> None:
    peer.send(opened(peer))
    peer.core.reset(peer.stream(), wire.CANCEL)
    peer.flush()
    peer.out.clear()
    peer.send(wire.headers(1, peer.encoded([(b"x-kept", b"once")]), end=True))
    peer.send(wire.headers(3, peer.encoded([*wire.GET, (b"x-kept", b"once")]), end=True))
    assert peer.head(3).fields[b"x-kept"] == b"once"


@add("4.3-the-response-of-a-request-that-we-reset-still-counts-for-the-table", client=True)
def _(peer: Peer) -> None:
    stream = peer.open()
    peer.core.reset(stream, wire.CANCEL)
    peer.flush()
    peer.out.clear()
    peer.send(wire.headers(1, peer.encoded([*wire.OK, (b"x-kept", b"once")]), end=True))
    assert peer.seen(events.HeadReceived) == []
    three = peer.open()
    peer.send(wire.headers(three.id, peer.encoded([*wire.OK, (b"x-kept", b"once")]), end=True))
    assert peer.head(three.id).fields[b"x-kept"] == b"once"


# 4.3.1 Compression state

SMALL = Http2Limits(header_table_size=0)


@add("4.3.1-the-default-table-may-be-used-before-ours-is-acknowledged", greet=False, limits=SMALL)
def _(peer: Peer) -> None:
    peer.send(HELLO, wire.headers(1, peer.encoded([*wire.GET, (b"x-a", b"1")]), end=True))
    peer.send(wire.headers(3, peer.encoded([*wire.GET, (b"x-a", b"1")]), end=True))
    assert peer.head(3).fields[b"x-a"] == b"1"
    peer.send(wire.settings_ack())
    peer.encoder.header_table_size = 0
    peer.send(wire.headers(5, peer.encoded([*wire.GET, (b"x-a", b"1")]), end=True))
    assert peer.head(5).fields[b"x-a"] == b"1"


@add("4.3.1-a-block-after-the-reduction-must-begin-with-an-update", COMPRESSION, limits=SMALL)
def _(peer: Peer) -> None:
    peer.send(peer.request())


@add(
    "4.3.1-a-block-known-from-before-the-reduction-must-begin-with-an-update-too",
    COMPRESSION,
    greet=False,
    limits=SMALL,
)
def _(peer: Peer) -> None:
    peer.send(HELLO, peer.request(1), peer.request(3), wire.settings_ack(), peer.request(5))


@add("4.3.1-an-update-above-the-reduced-size", COMPRESSION, limits=SMALL)
def _(peer: Peer) -> None:
    peer.send(wire.headers(1, wire.integer(1, 5, 0x20) + wire.block(wire.GET), end=True))


@add("4.3.1-a-conformant-update-after-the-reduction", limits=SMALL)
def _(peer: Peer) -> None:
    peer.encoder.header_table_size = 0
    peer.send(wire.headers(1, peer.encoded(wire.GET), end=True))
    assert peer.stream().id == 1


@pytest.mark.parametrize("sizes", [(0,), (100,), (0, 4096), (4096, 10, 65536)], ids=str)
def test_4_3_1_our_block_follows_the_reduction_with_an_update(sizes: tuple[int, ...]) -> None:
    peer = Peer()
    peer.send(peer.request(1))
    peer.core.reply(peer.stream(1), wire.block(wire.OK), b"")
    peer.flush()
    for size in sizes:
        peer.send(wire.settings((wire.HEADER_TABLE_SIZE, size)))
    peer.send(peer.request(3))
    peer.core.reply(peer.stream(3), wire.block(wire.OK), b"")
    peer.flush()
    block = peer.sent(frames.HeadersFrame, 3)[0].data
    assert block[0] & 0xE0 == 0x20, "no update at the start of the block"
    first = block[0] & 0x1F
    assert first <= min(sizes)  # sizes under 31 stand in the first octet
    assert peer.heads[-1] == (3, list(wire.OK))
    peer.send(peer.request(5))
    peer.core.reply(peer.stream(5), wire.block(wire.OK), b"")
    peer.flush()
    assert peer.heads[-1] == (5, list(wire.OK))
    peer.judge(FINE)


def test_4_3_1_our_request_follows_the_reduction_with_an_update() -> None:
    peer = Peer(Role.CLIENT, settings=((wire.HEADER_TABLE_SIZE, 0),))
    peer.open()
    assert peer.sent(frames.HeadersFrame, 1)[0].data[0] & 0xE0 == 0x20


@pytest.mark.parametrize("case", table.cases, ids=lambda case: case.name)
def test_rule(case: Case) -> None:
    case.run()
