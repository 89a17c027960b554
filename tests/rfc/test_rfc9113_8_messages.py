"""RFC 9113, section 8: requests and responses, valid and malformed ones."""

import pytest

from penstock.protocols.http2 import Role, encode_block, events
from tests.kit import frames as f
from tests.rfc.peer import (
    FINE,
    Peer,
    Step,
    Table,
    body,
    ended,
    has,
    open_request,
    received,
    reply,
    strm,
    trailers,
    unknown,
)  # fmt: skip

table = Table()
rule, rules = table.rule, table.rules

MALFORMED, CLOSED = strm(f.PROTOCOL_ERROR), strm(f.STREAM_CLOSED)
OK = f.headers(1, f.block(f.OK))
TRAILERS = f.headers(1, f.block([(b"x-t", b"1")]), end=True)


def refused(name: str, *fields: f.Field) -> None:
    """A request of these fields is malformed, and is not reported."""
    rule(name, f.request(1, fields), unknown(), MALFORMED)


def accepted(name: str, *fields: f.Field) -> None:
    """A request of these fields is reported with them."""
    rule(name, f.request(1, fields), Peer.head)


def refused_trailers(name: str, *fields: f.Field) -> None:
    rule(name, f.post() + f.request(1, fields), MALFORMED)


def refused_response(name: str, *fields: f.Field) -> None:
    rule(name, open_request(), f.request(1, fields), unknown(), MALFORMED, client=True)


def get(name: bytes, value: bytes | None) -> tuple[f.Field, ...]:
    """A GET with one pseudo-header changed or left out."""
    return f.changed(f.GET, name, value)


# 8.1 Framing

MORE = f.headers(1, f.block([(b"x-t", b"1")]))  # a second head that does not end the message
rules(
    ("8.1-a-second-head-that-does-not-end-the-request", f.post() + MORE, MALFORMED),
    ("8.1-a-second-head-after-data", f.post() + f.data(1, b"x") + MORE, MALFORMED),
    ("8.1-the-same-request-head-again", f.post() + f.post(), MALFORMED),
    ("8.1-data-after-trailers", f.post() + TRAILERS + f.data(1, b"x"), CLOSED),
    ("8.1-trailers-with-a-pseudo-header", f.post() + f.request(1, [(b":path", b"/")]), MALFORMED),
    ("8.1-trailers-with-a-status", f.post() + f.request(1, [(b":status", b"200")]), MALFORMED),
    (
        "8.1-trailers",
        f.post() + f.data(1, b"abc") + TRAILERS,
        trailers((b"x-t", b"1")),
        received(b"abc"),
    ),
    ("8.1-trailers-directly-after-the-head", f.post() + TRAILERS, trailers((b"x-t", b"1"))),
    ("8.1-empty-trailers", f.post() + f.headers(1, b"", end=True), trailers()),
    (
        "8.1-a-complete-reply-before-the-request-ends",
        f.post() + f.data(1, b"abc"),
        reply(b"no more, please"),
        body(b"no more, please"),
        ended(),
        f.data(1, b"def", end=True),
    ),
)


def interim(status: bytes, *fields: f.Field, end: bool = False) -> bytes:
    return f.request(1, [(b":status", status), *fields], end=end)


REFUSED = (b"content-type", b"application/grpc"), (b"grpc-status", b"12")
rules(
    ("8.1-response-data-before-its-head", open_request(), f.data(1, b"x"), MALFORMED),
    ("8.1-response-with-two-heads", open_request(), OK * 2, MALFORMED),
    ("8.1-response-trailers-that-do-not-end-it", open_request(), OK + MORE, MALFORMED),
    ("8.1-response-trailers-with-a-status", open_request(), OK + f.request(1, f.OK), MALFORMED),
    (
        "8.1-interim-response-that-ends-the-stream",
        open_request(),
        interim(b"103", end=True),
        MALFORMED,
    ),
    ("8.1-response-ends-without-a-final", open_request(), interim(b"100") + TRAILERS, MALFORMED),
    (
        "8.1-data-before-the-final-response",
        open_request(),
        interim(b"100") + f.data(1, b"x"),
        MALFORMED,
    ),
    (
        "8.1-interim-responses-are-ignored",
        open_request(),
        b"".join(
            interim(status, (b"link", b"</a>")) for status in (b"100", b"102", b"103", b"199")
        ),
        unknown(),
        OK + f.data(1, b"abc") + TRAILERS,
        lambda p: p.head().status == 200,
        received(b"abc"),
        trailers((b"x-t", b"1")),
    ),
    (
        "8.1-a-response-that-is-trailers-only",
        open_request(),
        f.request(1, [*f.OK, *REFUSED]),
        has(1, b"grpc-status", b"12"),
        lambda p: p.events_of(events.HeadReceived)[0].ended,
    ),
    (
        "8.1-a-whole-response-before-our-request-ends-then-no-error",
        open_request(f.POST, end=False),
        f.request(1, f.OK) + f.reset(1, f.NO_ERROR),
        lambda p: [(e.code, e.by_peer) for e in p.events_of(events.StreamReset)] == [(0, True)],
        lambda p: p.core.send_data(p.stream(), b"late", end=True),
        lambda p: p.flush() == [],
    ),
    client=True,
)

# 8.1.1 Malformed messages: the length


def with_length(length: bytes, *pieces: bytes) -> bytes:
    """A POST with this content-length, and its body."""
    return f.post(1, (b"content-length", length)) + b"".join(pieces)


def response_with_length(length: bytes, data: bytes | None) -> tuple[Step, bytes]:
    """A response with this content-length, and its data if any."""
    fields = [*f.OK, (b"content-length", length)]
    more = b"" if data is None else f.data(1, data, end=True)
    return open_request(), f.request(1, fields, end=data is None) + more


ONE = (b"content-length", b"1")
AB, END = f.data(1, b"ab"), f.data(1, end=True)
rules(
    ("8.1.1-content-length-without-a-body", f.request(1, f.POST, ONE), MALFORMED),
    ("8.1.1-less-data-than-content-length", with_length(b"3", AB, END), MALFORMED),
    ("8.1.1-less-data-in-one-frame", with_length(b"3", f.data(1, b"ab", end=True)), MALFORMED),
    (
        "8.1.1-more-data-than-content-length",
        with_length(b"3", f.data(1, b"abcd", end=True)),
        MALFORMED,
    ),
    ("8.1.1-more-data-than-content-length-before-the-end", with_length(b"3", AB, AB), MALFORMED),
    (
        "8.1.1-data-though-content-length-is-0",
        with_length(b"0", f.data(1, b"a", end=True)),
        MALFORMED,
    ),
    (
        "8.1.1-less-data-than-content-length-before-trailers",
        with_length(b"3", AB, TRAILERS),
        MALFORMED,
    ),
    (
        "8.1.1-padding-is-no-content",
        with_length(b"3", f.data(1, b"ab", pad=1, end=True)),
        MALFORMED,
    ),
    *[
        (
            f"8.1.1-content-length-{value!r}",
            with_length(value, f.data(1, b"a", end=True)),
            MALFORMED,
        )
        for value in (
            b"",
            b"x",
            b"-1",
            b"+1",
            b"1.0",
            b"0x1",
            b"1 ",
            b"1,2",
            b"1, 2",
            b"\xb2",
            b"9" * 30,
        )
    ],
    (
        "8.1.1-content-length-1_0",
        with_length(b"1_0", f.data(1, b"a", end=True)),
        MALFORMED,
    ),
    (
        "8.1.1-two-content-lengths-that-differ",
        f.post(1, ONE, (b"content-length", b"2")) + f.data(1, b"a", end=True),
        MALFORMED,
    ),
    (
        "8.1.1-content-length-without-a-body-of-a-cached-head",
        with_length(b"1", f.data(1, b"a", end=True)) + f.request(3, f.POST, ONE),
        unknown(3),
        strm(f.PROTOCOL_ERROR, 3),
    ),
    (
        "8.1.1-content-length-that-fits",
        with_length(b"5", f.data(1, b"ab", pad=4), f.data(1, b"cde", end=True)),
        received(b"abcde"),
        lambda p: p.head().content_length == 5,
        f.post(3, (b"content-length", b"0")) + f.data(3, end=True),
        f.request(5, f.POST, (b"content-length", b"0")),
        lambda p: p.head(5).content_length == 0,
    ),
    (
        "8.1.1-the-body-of-a-malformed-message-is-not-reported-as-ended",
        with_length(b"3", f.data(1, b"ab", end=True)),
        lambda p: not any(event.ended for event in p.events_of(events.DataReceived)),
        MALFORMED,
    ),
)
rules(
    ("8.1.1-response-without-the-data-of-its-length", *response_with_length(b"2", None), MALFORMED),
    (
        "8.1.1-response-with-less-data-than-content-length",
        *response_with_length(b"2", b"a"),
        MALFORMED,
    ),
    (
        "8.1.1-response-with-more-data-than-content-length",
        *response_with_length(b"2", b"abc"),
        MALFORMED,
    ),
    ("8.1.1-response-that-fits-its-content-length", *response_with_length(b"3", b"abc")),
    (
        "8.1.1-304-has-no-data",
        open_request(),
        interim(b"304", (b"content-length", b"3"), end=True),
    ),
    (
        "8.1.1-response-to-head-has-no-data",
        lambda p: p.core.open(f.block(get(b":method", b"HEAD")), end=True, bodiless=True),
        Peer.flush,
        f.request(1, [*f.OK, (b"content-length", b"3")]),
        lambda p: p.events_of(events.HeadReceived)[0].ended,
    ),
    client=True,
)

# 8.2.1 Field validity

for octet in [*range(0x21), *range(0x41, 0x5B), *range(0x7F, 0x100)]:
    refused(f"8.2.1-name-with-octet-{octet:02x}", *f.GET, (b"x" + bytes([octet]) + b"y", b"1"))
for octet in (0x00, 0x20, 0x41, 0x7F, 0x80, 0xFF):
    name = b"x" + bytes([octet])
    refused_response(f"8.2.1-response-name-with-octet-{octet:02x}", *f.OK, (name, b"1"))
for name in (b"X-A", b"x:a", b"x:", b""):
    refused(f"8.2.1-name-{name.decode()!r}", *f.GET, (name, b"1"))
for what, octet in {"nul": b"\0", "lf": b"\n", "cr": b"\r", "space": b" ", "tab": b"\t"}.items():
    refused(f"8.2.1-value-that-is-{what}", *f.GET, (b"x", octet))
    refused(f"8.2.1-value-that-begins-with-{what}", *f.GET, (b"x", octet + b"a"))
    refused(f"8.2.1-value-that-ends-with-{what}", *f.GET, (b"x", b"a" + octet))
    refused(f"8.2.1-path-with-{what}", *get(b":path", b"/a" + octet + b"b"))
    if what not in ("space", "tab"):
        refused(f"8.2.1-value-with-{what}", *f.GET, (b"x", b"a" + octet + b"b"))
refused("8.2.1-method-with-space", *get(b":method", b"GET /"))
refused("8.2.1-authority-with-space", *get(b":authority", b"a b"))
refused("8.2.1-authority-with-cr", *get(b":authority", b"a\rb"))
refused("8.2.1-scheme-with-lf", *get(b":scheme", b"http\n"))
accepted("8.2.1-values-may-be-empty", *f.GET, (b"x", b""))
accepted("8.2.1-values-may-hold-spaces-and-high-octets", *f.GET, (b"x", b"a \t\xff\x80 b"))
accepted("8.2.1-names-may-hold-every-token-character", *f.GET, (b"!#$%&'*+-.^_`|~09az", b"1"))
for what, pair in {
    "name": (b"X-A", b"1"),
    "value": (b"x-a", b"1\n"),
    "blank": (b"x-a", b" 1"),
}.items():
    refused_trailers(f"8.2.1-trailers-with-a-wrong-{what}", pair)
    refused_response(f"8.2.1-response-with-a-wrong-{what}", *f.OK, pair)
rule(
    "8.2.1-a-wrong-name-by-an-index",  # put into the table by a request that was refused for it
    f.headers(3, f.block(f.GET) + f.literal(b"X-Upper", b"1", kind=0x40), end=True),
    lambda p: p.out.clear(),
    f.headers(5, f.block(f.GET) + b"\xbe", end=True),  # the newest entry
    strm(f.PROTOCOL_ERROR, 5),
)

# 8.2.2 Connection-specific fields, 8.2.3 Cookies

SPECIFIC = {
    b"connection": b"close",
    b"proxy-connection": b"keep-alive",
    b"keep-alive": b"timeout=5",
    b"transfer-encoding": b"chunked",
    b"upgrade": b"websocket",
}
for name, value in SPECIFIC.items():
    refused(f"8.2.2-{name.decode()}", *f.GET, (name, value))
    refused_response(f"8.2.2-response-with-{name.decode()}", *f.OK, (name, value))
    refused_trailers(f"8.2.2-trailers-with-{name.decode()}", (name, value))
for value in (b"gzip", b"trailers, deflate", b"", b"deflate;q=0.5"):
    refused(f"8.2.2-te-{value!r}", *f.GET, (b"te", value))  # codespell:ignore te
accepted("8.2.2-te-trailers", *f.GET, (b"te", b"trailers"))  # codespell:ignore te
CRUMBS = [(b"cookie", b"a=b"), (b"x", b"y"), (b"cookie", b"c=d"), (b"cookie", b"e=f")]
rule(
    "8.2.3-crumbs-are-joined",
    f.request(1, f.GET, *CRUMBS),
    has(1, b"cookie", b"a=b; c=d; e=f"),
    lambda p: [name for name, _ in p.head().headers].count(b"cookie") == 1,
)

# 8.3 Pseudo-headers

for name in (b":method", b":scheme", b":path"):
    refused(f"8.3.1-without-{name[1:].decode()}", *get(name, None))
    refused(f"8.3.1-empty-{name[1:].decode()}", *get(name, b""))
for name, value in f.GET:
    what = name[1:].decode()
    refused(f"8.3.1-{what}-twice", *f.GET, (name, value))
    refused(f"8.3-{what}-after-a-field", *get(name, None), (b"x", b"y"), (name, value))
refused("8.3-unknown-pseudo-header", *f.GET, (b":unknown", b"1"))
refused("8.3-empty-pseudo-header", *f.GET, (b":", b"1"))
refused("8.3-pseudo-header-in-upper-case", *get(b":path", None), (b":Path", b"/"))
refused("8.3-protocol-was-not-offered", *f.GET, (b":protocol", b"websocket"))
refused("8.3-status-in-a-request", *f.GET, (b":status", b"200"))
refused("8.3-only-a-status-in-a-request", *f.OK)
refused("8.3-empty-request")
refused("8.3-only-fields-in-a-request", (b"host", b"example.org"), (b"x", b"y"))
for target in (
    b"/a#b",
    b"/%zz",
    b"/\xc3",
    b"index.html",
    b"http://example.org/",
    b"*",
    b"?a=b",
    b"example.org:80",
):
    refused(f"8.3.1-path-{target!r}", *get(b":path", target))
accepted("8.3.1-asterisk-of-options", *f.changed(get(b":method", b"OPTIONS"), b":path", b"*"))
refused("8.3.1-port-of-the-authority-that-is-no-number", *get(b":authority", b"host:port"))
refused("8.3.1-scheme-that-begins-with-a-digit", *get(b":scheme", b"1x"))
refused("8.3.1-userinfo-in-authority", *get(b":authority", b"me:pw@example.org"))
refused("8.3.1-authority-and-another-host", *f.GET, (b"host", b"example.com"))
# Required by our server, though clients may omit it.
refused("8.3.1-neither-authority-nor-host", *get(b":authority", None))
rule(
    "8.3.1-host-in-place-of-authority",
    f.request(1, get(b":authority", None), (b"host", b"example.org")),
    lambda p: p.head().authority == b"example.org",
)
rule(
    "8.3.1-host-that-is-the-authority",
    f.request(1, f.GET, (b"host", b"example.org")),
    lambda p: p.head().authority == b"example.org",
)
rule("8.3-pseudo-headers-in-any-order", f.request(1, reversed(f.GET)), Peer.head)


@table.play("8.3.1-the-parts-of-a-request")
def _(peer: Peer) -> None:
    fields = f.changed(f.changed(f.POST, b":path", b"/a%20b?c=d?e"), b":scheme", b"https")
    peer.send(f.request(1, fields, (b"x", b"1"), (b"x", b"2")))
    head = peer.head()
    assert (head.method, head.path, head.query) == ("POST", b"/a%20b", b"c=d?e")
    assert (head.version, head.authority, head.content_length) == ("2", b"example.org", None)
    assert head.headers == ((b"x", b"1"), (b"x", b"2"))


refused_response("8.3.2-response-without-a-status", (b"x", b"y"))
refused_response("8.3.2-empty-response")
refused_response("8.3.2-two-statuses", *f.OK, *f.OK)
refused_response("8.3.2-status-after-a-field", (b"x", b"y"), *f.OK)
refused_response("8.3-path-in-a-response", *f.OK, (b":path", b"/"))
refused_response("8.3-method-in-a-response", (b":method", b"GET"), *f.OK)
refused_response("8.3-unknown-pseudo-header-in-a-response", *f.OK, (b":unknown", b"1"))
for status in (
    b"99",
    b"600",
    b"101",
    b"",
    b"abc",
    b"20",
    b"2000",
    b" 200",
    b"200 OK",
    b"-20",
    b"+20",
    b"\xb2\xb2\xb2",
):
    refused_response(f"8.3.2-status-{status!r}", (b":status", status))

# 8.5 CONNECT

CONNECT = ((b":method", b"CONNECT"), (b":authority", b"example.org:443"))
refused("8.5-connect-with-scheme", *CONNECT, (b":scheme", b"http"))
refused("8.5-connect-with-path", *CONNECT, (b":path", b"/"))
refused("8.5-connect-with-scheme-and-path", *CONNECT, (b":scheme", b"http"), (b":path", b"/"))
refused("8.5-connect-without-authority", CONNECT[0])
rule("8.5-connect-is-reported-or-refused", f.request(1, CONNECT), FINE, MALFORMED)

test_rule = table.tested()


# What we send


@pytest.mark.parametrize("in_parts", [False, True])
@pytest.mark.parametrize("end", [None, [(b"x-t", b"1")]])
@pytest.mark.parametrize("data", [b"", b"abc"])
def test_a_reply_is_a_head_a_body_and_trailers(
    data: bytes, end: list[f.Field] | None, in_parts: bool
) -> None:
    peer = Peer()
    peer.send(f.request())
    core, stream = peer.core, peer.stream()
    if in_parts:
        core.send_head(stream, f.block(f.OK))
        for index in range(len(data)):
            core.send_data(stream, data[index : index + 1])
        core.send_data(stream, b"", end=end is None)
        if end is not None:
            core.send_trailers(stream, f.block(end))
    else:
        core.reply(stream, f.block(f.OK), data, None if end is None else f.block(end))
    peer.flush()
    assert peer.transcript.of_stream(1).order[0] == "HEADERS"
    assert peer.transcript.of_stream(1).order[-1] == "END"
    assert peer.body() == data
    assert [fields for _, fields in peer.heads] == [list(f.OK)] + ([end] if end else [])
    peer.judge(FINE)


@pytest.mark.parametrize("role", Role)
def test_our_block_is_decoded_to_its_fields_by_hpack_on_every_connection(role: Role) -> None:
    fields = [
        *f.GET,
        (b":status", b"404"),
        (b"content-type", b"application/grpc"),
        (b"x-empty", b""),
        (b"x-long", b"v" * 5000),
        (b"n" * 300, b"\x00\xff"),
        (b"authorization", b"secret"),
    ]
    decoder = Peer(role).transcript.decoder
    for _ in range(2):
        decoded = decoder.decode(encode_block(fields), raw=True)
        assert [(bytes(name), bytes(value)) for name, value in decoded] == fields
    assert len(decoder.header_table.dynamic_entries) == 0
