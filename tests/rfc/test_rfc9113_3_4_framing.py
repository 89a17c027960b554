"""RFC 9113, sections 3 and 4: the connection preface, frames and field blocks."""

import pytest

from penstock.protocols.http2 import Http2Limits, Role, events
from tests.kit import frames as f
from tests.rfc.peer import (
    FINE,
    Peer,
    Table,
    body,
    conn,
    events_are,
    forget,
    has,
    open_request,
    received,
    reply,
    reset,
    strm,
    unknown,
)  # fmt: skip

table = Table()
rule, rules = table.rule, table.rules

HELLO = f.PREFACE + f.settings()
PROTOCOL, SIZE = conn(f.PROTOCOL_ERROR), conn(f.FRAME_SIZE_ERROR)
COMPRESSION = conn(f.COMPRESSION_ERROR)
OK = f.block(f.OK)

# 3.4 The connection preface

rules(
    ("3.4-an-http-1-request", b"GET / HTTP/1.1\r\nhost: example.org\r\n\r\n", PROTOCOL),
    ("3.4-http-1-in-the-preface", b"PRI * HTTP/1.1\r\n\r\nSM\r\n\r\n" + f.settings(), PROTOCOL),
    ("3.4-last-octet-wrong", f.PREFACE[:-1] + b"\r" + f.settings(), PROTOCOL),
    ("3.4-tls-hello", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(30), PROTOCOL),
    ("3.4-frames-without-it", f.settings() + f.ping() + f.ping(), PROTOCOL),
    ("3.4-client-preface-must-continue-with-settings-not-ping", f.PREFACE + f.ping(), PROTOCOL),
    (
        "3.4-client-preface-must-continue-with-settings-not-headers",
        f.PREFACE + f.request(),
        PROTOCOL,
    ),
    (
        "3.4-client-preface-must-continue-with-settings-not-unknown",
        f.PREFACE + f.frame(f.UNKNOWN, 0, 0),
        PROTOCOL,
    ),
    ("3.4-settings-of-the-preface-may-be-empty", HELLO),
    (
        "3.4-server-sends-settings-first",
        Peer.flush,
        lambda p: p.out[0] == (4, 0, 0, p.out[0][3]),
        HELLO,
    ),
    ("3.4-client-may-send-requests-before-the-server-settings", HELLO + f.request(), Peer.head),
    (
        "3.4-preface-in-single-octets",
        *[HELLO[at : at + 1] for at in range(len(HELLO))],
        events_are(),
    ),
    (
        "3.4-settings-of-the-preface-are-acknowledged",
        HELLO,
        lambda p: any(one.ack for one in p.sent(f.SETTINGS)),
    ),
    greet=False,
)
rules(
    ("3.4-server-preface-must-be-settings-not-ping", f.ping(), PROTOCOL),
    ("3.4-server-preface-must-be-settings-not-window-update", f.window_update(0, 10), PROTOCOL),
    (
        "3.4-server-preface-must-be-settings-not-text",
        b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n",
        PROTOCOL,
        SIZE,
    ),
    ("3.4-settings-of-the-server-may-be-empty", f.settings()),
    (
        "3.4-client-sends-preface-and-settings-first",  # the transcript expects the preface
        Peer.flush,
        lambda p: p.out[0].kind == f.SETTINGS,
        f.settings(),
    ),
    (
        "3.4-our-client-sends-requests-before-the-server-settings",
        open_request(),
        lambda p: bool(p.sent(f.HEADERS, 1)),
        f.settings() + f.settings_ack(),
    ),
    client=True,
    greet=False,
)

# 4.1 Frame format

BLOCK = f.block(f.GET)
UNKNOWN = f.UNKNOWN
rules(
    (
        "4.1-reserved-bit-of-the-stream-id-is-ignored",
        f.post(1 | 1 << 31) + f.data(1 | 1 << 31, b"abc", end=True),
        received(b"abc"),
    ),
    ("4.1-unknown-frame-on-stream-0-is-discarded", f.frame(UNKNOWN, 0xFF, 0, b"x" * 100)),
    ("4.1-unknown-frame-on-an-idle-stream", f.frame(UNKNOWN, 0, 9, b"x") + f.request(1)),
    ("4.1-unknown-frame-on-an-open-stream", f.request(end=False) + f.frame(UNKNOWN, 0, 1, b"x")),
    ("4.1-unknown-frame-on-a-half-closed-stream", f.request() + f.frame(UNKNOWN, 1, 1)),
    (
        "4.1-unknown-frame-of-every-kind-is-discarded",
        b"".join(f.frame(kind, 0, 0, b"1234") for kind in (10, 12, 14, 0x80, 0xFF)),
    ),
    ("4.1-undefined-flags-of-headers-are-ignored", f.request(flags=0xD2 & ~0x20)),
    ("4.1-undefined-flags-of-settings-are-ignored", f.frame(f.SETTINGS, 0xFE, 0, b"")),
    ("4.1-undefined-flags-of-window-update", f.frame(f.WINDOW_UPDATE, 0xFF, 0, b"\0\0\0\1")),
    (
        "4.1-undefined-flags-of-rst-stream-are-ignored",
        f.request() + f.frame(f.RST_STREAM, 0xFF, 1, b"\0\0\0\x08"),
    ),
    ("4.1-undefined-flags-of-priority-are-ignored", f.frame(f.PRIORITY, 0xFF, 1, f.weight())),
    (
        "4.1-undefined-flags-of-ping-are-ignored",
        f.frame(f.PING, 0xFE, 0, b"12345678"),
        lambda p: p.sent(f.PING)[-1].payload == b"12345678",
    ),
    (
        "4.1-undefined-flags-of-data-are-ignored",
        f.post() + f.data(1, b"abc", flags=0xF6),
        received(b"abc"),
        f.data(1, end=True),
    ),
    (
        "4.1-undefined-flags-of-continuation-are-ignored",
        f.headers(1, BLOCK[:9], whole=False, end=True)
        + f.frame(f.CONTINUATION, 0xFF, 1, BLOCK[9:]),
        Peer.head,
    ),
)

# 4.2 Frame size

FULL, OVER = bytes(16384), bytes(16385)
rules(
    ("4.2-a-frame-of-the-largest-size-is-accepted", f.post() + f.data(1, FULL), received(FULL)),
    ("4.2-data-over-the-size", f.post() + f.data(1, OVER), SIZE, strm(f.FRAME_SIZE_ERROR)),
    ("4.2-headers-over-the-size", f.headers(1, OVER), SIZE),
    ("4.2-continuation-over-the-size", f.request(whole=False) + f.continuation(1, OVER), SIZE),
    ("4.2-settings-over-the-size", f.settings(*[(0x99, 1)] * 2731), SIZE),
    ("4.2-ping-over-the-size", f.ping(OVER), SIZE),
    ("4.2-goaway-over-the-size", f.goaway(0, 0, OVER), SIZE),
    ("4.2-unknown-frame-over-the-size-on-stream-0", f.frame(UNKNOWN, 0, 0, OVER), SIZE),
    ("4.2-the-size-is-checked-before-the-payload-arrives", f.headers(1, OVER)[:9], SIZE),
    # The size of each sent frame is checked as it is read.
    (
        "4.2-we-send-no-frame-over-the-size-of-the-peer",
        f.request(),
        reply(bytes(range(256)) * 160),
        body(bytes(range(256)) * 160),
    ),
)
rule(
    "4.2-a-larger-announced-size-is-accepted",
    lambda p: p.out[0].values[f.MAX_FRAME_SIZE] == 20000,
    f.post() + f.data(1, bytes(20000), end=True),
    received(bytes(20000)),
    limits=Http2Limits(max_frame_size=20000),
)
rule(
    "4.2-we-send-larger-frames-only-when-the-peer-allows-them",
    f.request(),
    reply(bytes(60000)),
    body(bytes(60000)),
    settings=((5, 30000),),
)


@table.play("4.2-our-large-head-is-split-at-the-size-of-the-peer")
def _(peer: Peer) -> None:
    peer.send(f.request())
    long = [*f.OK, (b"x-long", b"v" * 50000)]
    peer.core.send_head(peer.stream(), f.block(long), end=True)
    peer.flush()
    assert peer.heads[-1] == (1, long)
    assert peer.sent(f.HEADERS, 1)[0].ends


# 4.3 Field sections

INSIDE = {
    "data": f.data(1, b"x"),
    "headers-of-the-same-stream": f.headers(1, b""),
    "headers-of-another-stream": f.headers(3, BLOCK),
    "priority": f.priority(1),
    "rst-stream": f.reset(1),
    "settings": f.settings(),
    "ping": f.ping(),
    "goaway": f.goaway(0),
    "window-update": f.window_update(0, 1),
    "unknown-frame": f.frame(UNKNOWN, 0, 1),
    "continuation-of-another-stream": f.continuation(3),
    "push-promise": f.push_promise(1, 2, b""),
}
BEGUN = f.headers(1, b"", whole=False) + f.continuation(1, b"", whole=False)
for name, piece in INSIDE.items():
    rule(f"4.3-block-interrupted-by-{name}", f.request(whole=False) + piece, PROTOCOL)
    rule(f"4.3-later-in-the-block-interrupted-by-{name}", BEGUN + piece, PROTOCOL)

KEPT = (b"x-kept", b"once")
MANY = f.block([*f.GET, (b"x-n", b"1")])
FRAGMENTS = [MANY[at : at + 12] for at in range(0, len(MANY), 12)]
rules(
    ("4.3-a-block-that-cannot-be-decoded", f.headers(1, b"\x80", end=True), COMPRESSION),
    ("4.3-a-block-that-ends-inside-a-field", f.headers(1, BLOCK[:-1], end=True), COMPRESSION),
    (
        "4.3-trailers-that-cannot-be-decoded",
        f.post() + f.headers(1, b"\xff\xff\xff\x7f", end=True),
        COMPRESSION,
    ),
    (
        "4.3-a-block-of-a-closed-stream-that-cannot-be-decoded",
        f.request() + f.request(3) + f.reset(1) + f.headers(1, b"\x80", end=True),
        COMPRESSION,
        conn(f.STREAM_CLOSED),
        PROTOCOL,
    ),
    (
        "4.3-a-block-in-many-fragments",
        f.headers(1, b"", whole=False, end=True),
        *[f.continuation(1, piece, whole=piece is FRAGMENTS[-1]) for piece in FRAGMENTS],
        lambda p: p.events_of(events.HeadReceived)[0].ended,
        has(1, b"x-n", b"1"),
    ),
    (
        "4.3-nothing-is-reported-before-the-block-is-complete",
        f.request(whole=False),
        unknown(),
        f.continuation(1),
        Peer.head,
    ),
    (
        "4.3-a-malformed-request-still-counts-for-the-table",
        lambda p: p.send(
            f.headers(1, p.encoded([*f.GET, KEPT, (b"connection", b"close")]), end=True),
            f.headers(3, p.encoded([*f.GET, KEPT]), end=True),
        ),
        has(3, *KEPT),
        strm(f.PROTOCOL_ERROR),
    ),
    (
        "4.3-trailers-of-a-stream-that-we-reset-still-count-for-the-table",
        f.post(),
        reset(),
        lambda p: p.send(f.headers(1, p.encoded([KEPT]), end=True)),
        lambda p: p.send(f.headers(3, p.encoded([*f.GET, KEPT]), end=True)),
        has(3, *KEPT),
    ),
)


@table.play(
    "4.3-a-refused-request-still-counts-for-the-table",
    strm(f.REFUSED_STREAM, 3),
    limits=Http2Limits(max_streams=1),
    alive=False,  # the check for an open connection needs two streams
)
def _(peer: Peer) -> None:
    fields = [*f.GET, KEPT]
    peer.send(f.request(1), f.headers(3, peer.encoded(fields), end=True))
    reply()(peer)
    peer.send(f.headers(5, peer.encoded(fields), end=True))
    assert peer.head(5).fields[b"x-kept"] == b"once"


@table.play("4.3-the-response-of-a-request-that-we-reset-still-counts-for-the-table", client=True)
def _(peer: Peer) -> None:
    peer.core.reset(peer.open(), f.CANCEL)
    peer.flush()
    forget(peer)
    peer.send(f.headers(1, peer.encoded([*f.OK, KEPT]), end=True))
    assert peer.events_of(events.HeadReceived) == []
    three = peer.open()
    peer.send(f.headers(three.id, peer.encoded([*f.OK, KEPT]), end=True))
    assert peer.head(three.id).fields[b"x-kept"] == b"once"


# 4.3.1 Compression state

SMALL = Http2Limits(header_table_size=0)
rules(
    ("4.3.1-a-block-after-the-reduction-must-begin-with-an-update", f.request(), COMPRESSION),
    (
        "4.3.1-an-update-above-the-reduced-size",
        f.headers(1, f.integer(1, 5, 0x20) + BLOCK, end=True),
        COMPRESSION,
    ),
    (
        "4.3.1-a-conformant-update-after-the-reduction",
        lambda p: setattr(p.encoder, "header_table_size", 0),
        lambda p: p.send(f.headers(1, p.encoded(f.GET), end=True)),
        Peer.head,
    ),
    limits=SMALL,
)
rule(
    "4.3.1-a-block-cached-before-the-reduction-must-begin-with-an-update-too",
    HELLO + f.request(1) + f.request(3) + f.settings_ack() + f.request(5),
    COMPRESSION,
    greet=False,
    limits=SMALL,
)


@table.play(
    "4.3.1-the-default-table-may-be-used-before-ours-is-acknowledged", greet=False, limits=SMALL
)
def _(peer: Peer) -> None:
    fields = [*f.GET, KEPT]
    peer.send(HELLO, f.headers(1, peer.encoded(fields), end=True))
    peer.send(f.headers(3, peer.encoded(fields), end=True), f.settings_ack())
    peer.encoder.header_table_size = 0
    peer.send(f.headers(5, peer.encoded(fields), end=True))
    assert [peer.head(stream).fields[b"x-kept"] for stream in (3, 5)] == [b"once"] * 2


@pytest.mark.parametrize("sizes", [(0,), (100,), (0, 4096), (4096, 10, 65536)], ids=str)
def test_4_3_1_our_block_begins_with_an_update_after_a_reduction(sizes: tuple[int, ...]) -> None:
    peer = Peer()
    peer.send(f.request(1))
    reply()(peer)
    for size in sizes:
        peer.send(f.settings((f.HEADER_TABLE_SIZE, size)))
    peer.send(f.request(3))
    reply(stream=3)(peer)
    first = peer.sent(f.HEADERS, 3)[0].payload[0]
    assert first & 0xE0 == 0x20, "no update at the start of the block"
    assert first & 0x1F <= min(sizes)  # sizes under 31 are in the first octet
    peer.send(f.request(5))
    reply(stream=5)(peer)
    assert peer.heads == [(stream, list(f.OK)) for stream in (1, 3, 5)]
    peer.judge(FINE)


def test_4_3_1_our_request_begins_with_an_update_after_a_reduction() -> None:
    peer = Peer(Role.CLIENT, settings=((f.HEADER_TABLE_SIZE, 0),))
    peer.open()
    assert peer.sent(f.HEADERS, 1)[0].payload[0] & 0xE0 == 0x20


test_rule = table.tested()
