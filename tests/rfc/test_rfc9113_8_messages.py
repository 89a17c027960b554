"""RFC 9113, section 8: requests and responses, and which of them are malformed."""

import pytest
from hyperframe import frame as frames

from penstock.protocols.http2 import Role, encode_block, events
from tests.rfc import wire
from tests.rfc.peer import FINE, Case, Peer, Table, strm

table = Table()
add, each = table.add, table.each

MALFORMED = strm(wire.PROTOCOL_ERROR)
CLOSED = strm(wire.STREAM_CLOSED)
OK = wire.OK


def post(peer: Peer, *more: wire.Field, stream: int = 1) -> bytes:
    return peer.request(stream, wire.POST, *more, end=False)


def length(value: bytes) -> wire.Field:
    return (b"content-length", value)


def refused(name: str, *fields: wire.Field, **options: object) -> None:
    """A request of these fields is malformed, and nobody hears of it."""

    def play(peer: Peer) -> None:
        peer.send(peer.request(1, fields))
        assert peer.seen(events.HeadReceived) == []

    add(name, MALFORMED, play=play)


def taken(name: str, *fields: wire.Field) -> None:
    """A request of these fields is told as it is."""

    def play(peer: Peer) -> None:
        peer.send(peer.request(1, fields))
        assert len(peer.seen(events.HeadReceived)) == 1

    add(name, play=play)


def refused_response(name: str, *fields: wire.Field) -> None:
    def play(peer: Peer) -> None:
        peer.open()
        peer.send(wire.headers(1, wire.block(fields), end=True))
        assert peer.seen(events.HeadReceived) == []

    add(name, MALFORMED, play=play, client=True)


# 8.1 Framing

TRAILERS = wire.block([(b"x-t", b"1")])
each(
    (
        "8.1-a-second-head-that-does-not-end-the-request",
        lambda p: p.send(post(p), wire.headers(1, TRAILERS)),
        MALFORMED,
    ),
    (
        "8.1-a-second-head-that-does-not-end-the-request-after-data",
        lambda p: p.send(post(p), wire.data(1, b"x"), wire.headers(1, TRAILERS)),
        MALFORMED,
    ),
    (
        "8.1-the-same-request-head-again",
        lambda p: p.send(post(p), post(p)),
        MALFORMED,
    ),
    (
        "8.1-data-after-trailers",
        lambda p: p.send(post(p), wire.headers(1, TRAILERS, end=True), wire.data(1, b"x")),
        CLOSED,
    ),
    (
        "8.1-trailers-with-a-pseudo-header",
        lambda p: p.send(post(p), p.request(1, [(b":path", b"/")])),
        MALFORMED,
    ),
    (
        "8.1-trailers-with-a-status",
        lambda p: p.send(post(p), p.request(1, [(b":status", b"200")])),
        MALFORMED,
    ),
)


@add("8.1-trailers")
def _(peer: Peer) -> None:
    peer.send(post(peer), wire.data(1, b"abc"), wire.headers(1, TRAILERS, end=True))
    (event,) = peer.seen(events.TrailersReceived)
    assert event.headers == ((b"x-t", b"1"),)
    assert peer.received() == b"abc"


@add("8.1-trailers-right-behind-the-head")
def _(peer: Peer) -> None:
    peer.send(post(peer), wire.headers(1, TRAILERS, end=True))
    assert peer.seen(events.TrailersReceived)[0].headers == ((b"x-t", b"1"),)


@add("8.1-empty-trailers")
def _(peer: Peer) -> None:
    peer.send(post(peer), wire.headers(1, b"", end=True))
    assert peer.seen(events.TrailersReceived)[0].headers == ()


@add("8.1-a-whole-answer-before-the-request-ends")
def _(peer: Peer) -> None:
    peer.send(post(peer), wire.data(1, b"abc"))
    peer.core.reply(peer.stream(), wire.block(OK), b"no more, please")
    peer.flush()
    assert peer.body(1) == b"no more, please"
    assert "END_STREAM" in peer.sent(frames.DataFrame, 1)[-1].flags
    peer.send(wire.data(1, b"def", end=True))


RESPONSE = wire.block(OK)
each(
    (
        "8.1-response-data-before-its-head",
        lambda p: (p.open(), p.send(wire.data(1, b"x"))),
        MALFORMED,
    ),
    (
        "8.1-response-with-two-heads",
        lambda p: (p.open(), p.send(wire.headers(1, RESPONSE), wire.headers(1, RESPONSE))),
        MALFORMED,
    ),
    (
        "8.1-response-trailers-that-do-not-end-it",
        lambda p: (p.open(), p.send(wire.headers(1, RESPONSE), wire.headers(1, TRAILERS))),
        MALFORMED,
    ),
    (
        "8.1-response-trailers-with-a-status",
        lambda p: (
            p.open(),
            p.send(wire.headers(1, RESPONSE), wire.headers(1, RESPONSE, end=True)),
        ),
        MALFORMED,
    ),
    (
        "8.1-interim-response-that-ends-the-stream",
        lambda p: (p.open(), p.send(wire.headers(1, wire.block([(b":status", b"103")]), end=True))),
        MALFORMED,
    ),
    (
        "8.1-response-ends-after-an-interim-one-without-a-final",
        lambda p: (
            p.open(),
            p.send(wire.headers(1, wire.block([(b":status", b"100")]))),
            p.send(wire.headers(1, wire.block([(b"x", b"y")]), end=True)),
        ),
        MALFORMED,
    ),
    (
        "8.1-data-between-interim-and-final-response",
        lambda p: (
            p.open(),
            p.send(wire.headers(1, wire.block([(b":status", b"100")])), wire.data(1, b"x")),
        ),
        MALFORMED,
    ),
    client=True,
)


@add("8.1-interim-responses-are-passed-over", client=True)
def _(peer: Peer) -> None:
    peer.open()
    for status in (b"100", b"102", b"103", b"199"):
        peer.send(wire.headers(1, peer.encoded([(b":status", status), (b"link", b"</a>")])))
    assert peer.events == []
    peer.send(wire.headers(1, wire.block(OK)), wire.data(1, b"abc"))
    peer.send(wire.headers(1, TRAILERS, end=True))
    assert peer.head().status == 200
    assert peer.received() == b"abc"
    assert peer.seen(events.TrailersReceived)[0].headers == ((b"x-t", b"1"),)


@add("8.1-a-response-that-is-trailers-only", client=True)
def _(peer: Peer) -> None:
    peer.open()
    fields = [*OK, (b"content-type", b"application/grpc"), (b"grpc-status", b"12")]
    peer.send(wire.headers(1, wire.block(fields), end=True))
    assert peer.head().fields[b"grpc-status"] == b"12"
    assert peer.seen(events.HeadReceived)[0].ended


@add("8.1-a-whole-response-before-our-request-ends-then-no-error", client=True)
def _(peer: Peer) -> None:
    stream = peer.open(wire.POST, end=False)
    peer.send(wire.headers(1, wire.block(OK), end=True), wire.reset(1, wire.NO_ERROR))
    assert peer.head().status == 200
    (event,) = peer.seen(events.StreamReset)
    assert (event.code, event.by_peer) == (wire.NO_ERROR, True)
    peer.core.send_data(stream, b"late", end=True)
    assert peer.flush() == []


# 8.1.1 Malformed messages: the length

each(
    (
        "8.1.1-content-length-without-a-body",
        lambda p: p.send(p.request(1, wire.POST, length(b"1"))),
        MALFORMED,
    ),
    (
        "8.1.1-less-data-than-content-length",
        lambda p: p.send(post(p, length(b"3")), wire.data(1, b"ab", end=True)),
        MALFORMED,
    ),
    (
        "8.1.1-more-data-than-content-length",
        lambda p: p.send(post(p, length(b"3")), wire.data(1, b"abcd", end=True)),
        MALFORMED,
    ),
    (
        "8.1.1-more-data-than-content-length-before-the-end",
        lambda p: p.send(post(p, length(b"3")), wire.data(1, b"ab"), wire.data(1, b"cd")),
        MALFORMED,
    ),
    (
        "8.1.1-data-though-content-length-is-0",
        lambda p: p.send(post(p, length(b"0")), wire.data(1, b"a", end=True)),
        MALFORMED,
    ),
    (
        "8.1.1-less-data-than-content-length-before-trailers",
        lambda p: p.send(
            post(p, length(b"3")), wire.data(1, b"ab"), wire.headers(1, TRAILERS, end=True)
        ),
        MALFORMED,
    ),
    (
        "8.1.1-less-data-than-content-length-with-an-empty-end",
        lambda p: p.send(post(p, length(b"3")), wire.data(1, b"ab"), wire.data(1, end=True)),
        MALFORMED,
    ),
    (
        "8.1.1-padding-is-no-content",
        lambda p: p.send(post(p, length(b"3")), wire.data(1, b"ab", pad=1, end=True)),
        MALFORMED,
    ),
)
for value in (b"", b"x", b"-1", b"+1", b"1.0", b"0x1", b"1 ", b"1,2", b"1, 2", b"\xb2", b"1_0"):
    add(f"8.1.1-content-length-{value!r}", MALFORMED)(
        lambda p, value=value: p.send(post(p, length(value)), wire.data(1, b"a", end=True))
    )
add("8.1.1-two-content-lengths-that-differ", MALFORMED)(
    lambda p: p.send(post(p, length(b"1"), length(b"2")), wire.data(1, b"a", end=True))
)


@add("8.1.1-content-length-without-a-body-of-a-head-that-is-known", strm(wire.PROTOCOL_ERROR, 3))
def _(peer: Peer) -> None:
    peer.send(post(peer, length(b"1")), wire.data(1, b"a", end=True))
    peer.send(peer.request(3, wire.POST, length(b"1")))
    assert peer.seen(events.HeadReceived, 3) == []


@add("8.1.1-content-length-that-fits")
def _(peer: Peer) -> None:
    peer.send(post(peer, length(b"5")), wire.data(1, b"ab", pad=4), wire.data(1, b"cde", end=True))
    assert peer.received() == b"abcde"
    assert peer.head().content_length == 5
    peer.send(post(peer, length(b"0"), stream=3), wire.data(3, end=True))
    peer.send(peer.request(5, wire.POST, length(b"0")))
    assert peer.head(5).content_length == 0


@add("8.1.1-the-body-of-a-malformed-message-is-not-told-as-ended", MALFORMED)
def _(peer: Peer) -> None:
    peer.send(post(peer, length(b"3")), wire.data(1, b"ab", end=True))
    assert not any(event.ended for event in peer.seen(events.DataReceived))


def response(*fields: wire.Field, body: bytes = b"", end: bool = True):
    def play(peer: Peer) -> None:
        peer.open()
        if body or not end:
            peer.send(wire.headers(1, wire.block(fields)), wire.data(1, body, end=end))
        else:
            peer.send(wire.headers(1, wire.block(fields), end=True))

    return play


each(
    (
        "8.1.1-response-without-the-data-of-its-content-length",
        response(*OK, length(b"2")),
        MALFORMED,
    ),
    (
        "8.1.1-response-with-less-data-than-content-length",
        response(*OK, length(b"2"), body=b"a"),
        MALFORMED,
    ),
    (
        "8.1.1-response-with-more-data-than-content-length",
        response(*OK, length(b"2"), body=b"abc"),
        MALFORMED,
    ),
    ("8.1.1-response-that-fits-its-content-length", response(*OK, length(b"3"), body=b"abc")),
    ("8.1.1-response-304-has-no-data", response((b":status", b"304"), length(b"3"))),
    client=True,
)


@add("8.1.1-response-to-head-has-no-data", client=True)
def _(peer: Peer) -> None:
    head = wire.changed(wire.GET, b":method", b"HEAD")
    stream = peer.core.open(wire.block(head), end=True, bodiless=True)
    peer.flush()
    peer.send(wire.headers(stream.id, wire.block([*OK, length(b"3")]), end=True))
    assert peer.seen(events.HeadReceived)[0].ended


# 8.2.1 Field validity

FORBIDDEN = [*range(0x21), *range(0x41, 0x5B), *range(0x7F, 0x100)]
for octet in FORBIDDEN:
    refused(f"8.2.1-name-with-octet-{octet:02x}", *wire.GET, (b"x" + bytes([octet]) + b"y", b"1"))
refused("8.2.1-name-in-upper-case", *wire.GET, (b"X-A", b"1"))
refused("8.2.1-name-with-a-colon", *wire.GET, (b"x:a", b"1"))
refused("8.2.1-name-that-ends-with-a-colon", *wire.GET, (b"x:", b"1"))
refused("8.2.1-name-that-is-empty", *wire.GET, (b"", b"1"))
for what, octet in {"nul": b"\0", "lf": b"\n", "cr": b"\r"}.items():
    refused(f"8.2.1-value-with-{what}", *wire.GET, (b"x", b"a" + octet + b"b"))
    refused(f"8.2.1-value-that-is-{what}", *wire.GET, (b"x", octet))
    refused(f"8.2.1-path-with-{what}", *wire.changed(wire.GET, b":path", b"/a" + octet + b"b"))
for what, octet in {"space": b" ", "tab": b"\t"}.items():
    refused(f"8.2.1-value-that-begins-with-{what}", *wire.GET, (b"x", octet + b"a"))
    refused(f"8.2.1-value-that-ends-with-{what}", *wire.GET, (b"x", b"a" + octet))
    refused(f"8.2.1-value-that-is-a-{what}", *wire.GET, (b"x", octet))
    refused(f"8.2.1-path-with-{what}", *wire.changed(wire.GET, b":path", b"/a" + octet + b"b"))
refused("8.2.1-method-with-space", *wire.changed(wire.GET, b":method", b"GET /"))
refused("8.2.1-authority-with-space", *wire.changed(wire.GET, b":authority", b"a b"))
refused("8.2.1-authority-with-cr", *wire.changed(wire.GET, b":authority", b"a\rb"))
refused("8.2.1-scheme-with-lf", *wire.changed(wire.GET, b":scheme", b"http\n"))
taken("8.2.1-values-may-be-empty", *wire.GET, (b"x", b""))
taken("8.2.1-values-may-hold-spaces-and-high-octets", *wire.GET, (b"x", b"a \t\xff\x80 b"))
taken("8.2.1-names-may-hold-every-token-character", *wire.GET, (b"!#$%&'*+-.^_`|~09az", b"1"))
for what, pair in {
    "name": (b"X-A", b"1"),
    "value": (b"x-a", b"1\n"),
    "blank": (b"x-a", b" 1"),
}.items():
    add(f"8.2.1-trailers-with-a-wrong-{what}", MALFORMED)(
        lambda p, pair=pair: p.send(post(p), p.request(1, [pair]))
    )
    refused_response(f"8.2.1-response-with-a-wrong-{what}", *OK, pair)
for octet in (0x00, 0x20, 0x41, 0x7F, 0x80, 0xFF):
    refused_response(
        f"8.2.1-response-name-with-octet-{octet:02x}", *OK, (b"x" + bytes([octet]), b"1")
    )


# The same rules when the field comes from the table or from Huffman coding.
@add("8.2.1-a-wrong-name-by-an-index", strm(wire.PROTOCOL_ERROR, 3))
def _(peer: Peer) -> None:
    wrong = wire.literal(b"X-Upper", b"1", kind=0x40)
    peer.send(post(peer))
    peer.send(wire.headers(3, wire.block(wire.GET) + wrong, end=True))
    peer.out = [one for one in peer.out if not isinstance(one, frames.RstStreamFrame)]
    peer.send(wire.headers(5, wire.block(wire.GET) + b"\xbe", end=True))  # the newest entry
    (again,) = peer.sent(frames.RstStreamFrame)
    assert (again.stream_id, again.error_code) == (5, wire.PROTOCOL_ERROR)
    again.stream_id = 3


# 8.2.2 Connection-specific fields

SPECIFIC = {
    b"connection": b"close",
    b"proxy-connection": b"keep-alive",
    b"keep-alive": b"timeout=5",
    b"transfer-encoding": b"chunked",
    b"upgrade": b"websocket",
}
for name, value in SPECIFIC.items():
    refused(f"8.2.2-{name.decode()}", *wire.GET, (name, value))
    refused_response(f"8.2.2-response-with-{name.decode()}", *OK, (name, value))
    add(f"8.2.2-trailers-with-{name.decode()}", MALFORMED)(
        lambda p, pair=(name, value): p.send(post(p), p.request(1, [pair]))
    )
for value in (b"gzip", b"trailers, deflate", b"", b"deflate;q=0.5"):
    refused(f"8.2.2-te-{value!r}", *wire.GET, (b"te", value))
taken("8.2.2-te-trailers", *wire.GET, (b"te", b"trailers"))


# 8.2.3 Cookies


@add("8.2.3-crumbs-are-joined")
def _(peer: Peer) -> None:
    crumbs = [(b"cookie", b"a=b"), (b"x", b"y"), (b"cookie", b"c=d"), (b"cookie", b"e=f")]
    peer.send(peer.request(1, wire.GET, *crumbs))
    cookies = [value for name, value in peer.head().headers if name == b"cookie"]
    assert cookies == [b"a=b; c=d; e=f"]
    assert peer.head().fields[b"cookie"] == b"a=b; c=d; e=f"


# 8.3 Pseudo-headers

for name in (b":method", b":scheme", b":path"):
    what = name[1:].decode()
    refused(f"8.3.1-without-{what}", *wire.changed(wire.GET, name, None))
    refused(f"8.3.1-empty-{what}", *wire.changed(wire.GET, name, b""))
for name, value in wire.GET:
    what = name[1:].decode()
    refused(f"8.3.1-{what}-twice", *wire.GET, (name, value))
    refused(
        f"8.3-{what}-behind-a-field",
        *wire.changed(wire.GET, name, None),
        (b"x", b"y"),
        (name, value),
    )
refused("8.3-unknown-pseudo-header", *wire.GET, (b":unknown", b"1"))
refused("8.3-empty-pseudo-header", *wire.GET, (b":", b"1"))
refused(
    "8.3-pseudo-header-in-upper-case", *wire.changed(wire.GET, b":path", None), (b":Path", b"/")
)
refused("8.3-protocol-was-not-offered", *wire.GET, (b":protocol", b"websocket"))
refused("8.3-status-in-a-request", *wire.GET, (b":status", b"200"))
refused("8.3-only-a-status-in-a-request", *OK)
refused("8.3-empty-request")
refused("8.3-only-fields-in-a-request", (b"host", b"example.org"), (b"x", b"y"))

for target in (b"index.html", b"http://example.org/", b"*", b"?a=b", b"example.org:80"):
    refused(f"8.3.1-path-{target.decode()}", *wire.changed(wire.GET, b":path", target))
taken(
    "8.3.1-asterisk-of-options",
    *wire.changed(wire.changed(wire.GET, b":method", b"OPTIONS"), b":path", b"*"),
)
refused("8.3.1-userinfo-in-authority", *wire.changed(wire.GET, b":authority", b"me:pw@example.org"))
refused("8.3.1-authority-and-another-host", *wire.GET, (b"host", b"example.com"))
refused(
    "8.3.1-neither-authority-nor-host",  # needed by what answers, though a client may lack it
    *wire.changed(wire.GET, b":authority", None),
)


@add("8.3.1-host-in-place-of-authority")
def _(peer: Peer) -> None:
    fields = wire.changed(wire.GET, b":authority", None)
    peer.send(peer.request(1, fields, (b"host", b"example.org")))
    assert peer.head().authority == b"example.org"


@add("8.3.1-host-that-is-the-authority")
def _(peer: Peer) -> None:
    peer.send(peer.request(1, wire.GET, (b"host", b"example.org")))
    assert peer.head().authority == b"example.org"


@add("8.3.1-what-a-request-says")
def _(peer: Peer) -> None:
    fields = wire.changed(wire.changed(wire.POST, b":path", b"/a%20b?c=d?e"), b":scheme", b"https")
    peer.send(peer.request(1, fields, (b"x", b"1"), (b"x", b"2")))
    head = peer.head()
    assert (head.method, head.path, head.query) == ("POST", b"/a%20b", b"c=d?e")
    assert (head.version, head.authority, head.content_length) == ("2", b"example.org", None)
    assert head.headers == ((b"x", b"1"), (b"x", b"2"))


@add("8.3-pseudo-headers-in-any-order")
def _(peer: Peer) -> None:
    peer.send(peer.request(1, reversed(wire.GET)))
    assert peer.head().path == b"/"


refused_response("8.3.2-response-without-a-status", (b"x", b"y"))
refused_response("8.3.2-empty-response")
refused_response("8.3.2-two-statuses", *OK, *OK)
refused_response("8.3.2-status-behind-a-field", (b"x", b"y"), *OK)
refused_response("8.3-path-in-a-response", *OK, (b":path", b"/"))
refused_response("8.3-method-in-a-response", (b":method", b"GET"), *OK)
refused_response("8.3-unknown-pseudo-header-in-a-response", *OK, (b":unknown", b"1"))
for status in (b"", b"abc", b"20", b"2000", b" 200", b"200 OK", b"-20", b"+20", b"\xb2\xb2\xb2"):
    refused_response(f"8.3.2-status-{status!r}", (b":status", status))


# 8.5 CONNECT

CONNECT = ((b":method", b"CONNECT"), (b":authority", b"example.org:443"))
refused("8.5-connect-with-scheme", *CONNECT, (b":scheme", b"http"))
refused("8.5-connect-with-path", *CONNECT, (b":path", b"/"))
refused("8.5-connect-with-scheme-and-path", *CONNECT, (b":scheme", b"http"), (b":path", b"/"))
refused("8.5-connect-without-authority", CONNECT[0])
add("8.5-connect-is-told-or-refused", FINE, MALFORMED)(lambda p: p.send(p.request(1, CONNECT)))


@pytest.mark.parametrize("case", table.cases, ids=lambda case: case.name)
def test_rule(case: Case) -> None:
    case.run()


# What we send


def test_a_reply_is_a_head_a_body_and_trailers() -> None:
    peer = Peer()
    peer.send(peer.request(1), peer.request(3), peer.request(5), peer.request(7))
    head, end = wire.block(OK), wire.block([(b"x-t", b"1")])
    peer.core.reply(peer.stream(1), head, b"")
    peer.core.reply(peer.stream(3), head, b"abc")
    peer.core.reply(peer.stream(5), head, b"abc", end)
    peer.core.reply(peer.stream(7), head, b"", end)
    peer.flush()
    for stream in (1, 3, 5, 7):
        mine = [one for one in peer.out if one.stream_id == stream]
        assert isinstance(mine[0], frames.HeadersFrame)
        assert ["END_STREAM" in one.flags for one in mine] == [False] * (len(mine) - 1) + [True]
    assert [peer.body(stream) for stream in (1, 3, 5, 7)] == [b"", b"abc", b"abc", b""]
    assert [stream for stream, fields in peer.heads if fields == [(b"x-t", b"1")]] == [5, 7]
    peer.judge(FINE)


def test_an_answer_in_parts() -> None:
    peer = Peer()
    peer.send(peer.request())
    stream = peer.stream()
    peer.core.send_head(stream, wire.block(OK))
    for piece in (b"a", b"bc", b""):
        peer.core.send_data(stream, piece)
    peer.core.send_trailers(stream, wire.block([(b"x-t", b"1")]))
    peer.flush()
    assert peer.body(1) == b"abc"
    assert [fields for _, fields in peer.heads] == [list(OK), [(b"x-t", b"1")]]
    assert "END_STREAM" in peer.out[-1].flags
    peer.judge(FINE)


@pytest.mark.parametrize("role", Role)
def test_a_block_of_ours_is_what_hpack_reads_on_every_connection(role: Role) -> None:
    fields = [
        *wire.GET,
        (b":status", b"404"),
        (b"content-type", b"application/grpc"),
        (b"x-empty", b""),
        (b"x-long", b"v" * 5000),
        (b"n" * 300, b"\x00\xff"),
        (b"authorization", b"secret"),
    ]
    peer = Peer(role)
    for _ in range(2):
        found = peer.decoder.decode(encode_block(fields), raw=True)
        assert [(bytes(name), bytes(value)) for name, value in found] == fields
    assert len(peer.decoder.header_table.dynamic_entries) == 0
