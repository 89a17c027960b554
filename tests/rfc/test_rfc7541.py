"""RFC 7541: blocks that a decoder must accept or refuse. Every error ends the connection."""

import hpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.protocols.http2 import Http2Limits, encode_block
from tests.kit import frames as f
from tests.rfc.peer import Peer, Table, conn, has, open_request, unknown

table = Table()

COMPRESSION = conn(f.COMPRESSION_ERROR)
GET = f.block(f.GET)
NEWEST = b"\xbe"  # index 62


def decoded(name: str, data: bytes, *want: f.Field) -> None:
    """This block, after the fields of a request, is decoded to these fields."""
    sent = f.headers(1, GET + data, end=True)
    table.rule(name, sent, lambda peer: peer.head().headers == want)


def refused(name: str, data: bytes, *, first: bool = False) -> None:
    """This block is refused after valid fields and alone, in HEADERS and in trailers."""
    alone = f.headers(1, data, end=True)
    sent = alone if first else f.headers(1, GET + data, end=True)
    table.rule(f"{name}-in-a-request", sent, unknown(), COMPRESSION)
    table.rule(f"{name}-in-trailers", f.post() + alone, COMPRESSION)
    table.rule(f"{name}-in-a-response", open_request(), alone, unknown(), COMPRESSION, client=True)


# 2.3.3 Index address space

refused("2.3.3-index-beyond-the-tables", b"\xbe")
refused("2.3.3-index-far-beyond-the-tables", f.integer(5000, 7, 0x80))
refused("2.3.3-name-index-beyond-the-tables", f.integer(62, 4, 0x00) + f.string(b"v"))
refused("2.3.3-indexed-name-beyond-the-tables", f.integer(62, 6, 0x40) + f.string(b"v"))
refused("2.3.3-never-indexed-name-beyond-the-tables", f.integer(62, 4, 0x10) + f.string(b"v"))
refused("2.3.3-the-next-after-the-oldest", f.literal(b"a", b"b", kind=0x40) + b"\xbf")

# 4.1 to 4.4 The dynamic table

ADD = f.literal(b"x-a", b"1", kind=0x40)
decoded("4.1-an-entry-is-named-by-its-index", ADD + NEWEST, (b"x-a", b"1"), (b"x-a", b"1"))
decoded(
    "4.1-the-newest-entry-comes-first",
    ADD + f.literal(b"x-b", b"2", kind=0x40) + b"\xbf\xbe",
    (b"x-a", b"1"),
    (b"x-b", b"2"),
    (b"x-a", b"1"),
    (b"x-b", b"2"),
)
decoded(
    "4.1-equal-entries-are-two",
    ADD + ADD + b"\xbf\xbe",
    *[(b"x-a", b"1")] * 4,
)


def large(letter: bytes, size: int = 2000) -> bytes:
    return f.literal(b"x-" + letter, letter * size, kind=0x40)


refused("4.4-an-evicted-entry", large(b"a") + large(b"b") + large(b"c") + b"\xc0")
refused(
    "4.4-an-entry-over-the-table-empties-it",
    ADD + f.literal(b"x", b"v" * 4090, kind=0x40) + NEWEST,
)
decoded(
    "4.1-the-size-of-an-entry-has-32-octets-more",
    # Two entries of 2048 fill the table exactly.
    large(b"a", 2048 - 32 - 3) + large(b"b", 2048 - 32 - 3) + b"\xbf",
    (b"x-a", b"a" * 2013),
    (b"x-b", b"b" * 2013),
    (b"x-a", b"a" * 2013),
)
refused("4.1-one-octet-more-evicts", large(b"a", 2013) + large(b"b", 2014) + b"\xbf")
decoded(
    "4.4-a-name-may-be-taken-from-the-entry-that-it-evicts",
    large(b"a", 4096 - 35) + f.integer(62, 6, 0x40) + f.string(b"v" * 100) + NEWEST,
    (b"x-a", b"a" * 4061),
    (b"x-a", b"v" * 100),
    (b"x-a", b"v" * 100),
)
EMPTY_IT = b"\x20"


FULL_AGAIN = EMPTY_IT + f.integer(4096, 5, 0x20)
TWO = f.literal(b"x-a", b"2", kind=0x40)


def request(stream: int, decoded: bytes) -> bytes:
    return f.headers(stream, decoded, end=True)


table.rule(
    "4.2-an-update-evicts",
    request(1, GET + ADD) + request(3, FULL_AGAIN + GET),
    lambda peer: peer.head(3).headers == (),
)
table.rule(
    "4.2-an-entry-that-an-update-evicted-is-refused",
    request(1, GET + ADD) + request(3, FULL_AGAIN + GET + NEWEST),
    COMPRESSION,
)
table.rule(
    "4.2-a-table-of-size-0-keeps-nothing",
    request(1, EMPTY_IT + GET + ADD),
    has(1, b"x-a", b"1"),
    request(3, GET + NEWEST),
    COMPRESSION,
)

# A head must not be taken for an earlier one because of equal bytes.
BLOCKS = [GET + ADD, *[GET + NEWEST] * 2, GET + TWO, *[GET + NEWEST] * 2]
BLOCKS += [FULL_AGAIN + GET + ADD, GET + NEWEST, GET + ADD, GET + NEWEST]
SENT = [request(2 * n + 1, data) for n, data in enumerate(BLOCKS)]
WANT = [b"1"] * 3 + [b"2"] * 3 + [b"1"] * 4
DECODED = [has(2 * n + 1, b"x-a", each) for n, each in enumerate(WANT)]
table.rule("4.2-equal-blocks-are-decoded-by-the-current-table", *SENT, *DECODED)
table.rule("4.2-equal-blocks-within-one-read", b"".join(SENT), *DECODED)
table.rule(
    "4.2-a-block-that-changes-the-table-changes-it-each-time",
    request(1, GET + ADD) + request(3, GET + f.literal(b"x-b", b"2", kind=0x40)),
    request(5, GET + ADD) + request(7, GET + b"\xbe\xbf\xc0"),
    lambda p: p.head(7).headers == ((b"x-a", b"1"), (b"x-b", b"2"), (b"x-a", b"1")),
)

# 5.1 Integers

refused("5.1-an-integer-that-is-cut-off", b"\xff\x80\x80")
refused("5.1-an-integer-without-its-octets", b"\xff")
refused("5.1-an-integer-over-32-bits", b"\xff\x80\x80\x80\x80\x10")
refused("5.1-an-integer-over-64-bits", b"\xff" + b"\xff" * 9 + b"\x01")
refused("5.1-an-integer-of-a-thousand-octets", b"\xff" + b"\x80" * 1000 + b"\x00")
refused("5.1-an-integer-of-many-needless-octets", b"\x00" + b"\x7f" + b"\x80" * 40 + b"\x00")
refused("5.1-a-length-of-a-thousand-octets", b"\x00\x7f" + b"\xff" * 1000 + b"\x00")
decoded(
    "5.1-an-integer-on-the-border-of-its-prefix",
    f.literal(b"n" * 127, b"v" * 127) + f.literal(b"m" * 126, b"w" * 128),
    (b"n" * 127, b"v" * 127),
    (b"m" * 126, b"w" * 128),
)

# 5.2 Strings

refused("5.2-a-string-longer-than-the-block", b"\x00\x05abc")
refused("5.2-a-name-without-a-value", b"\x00\x01a")
refused("5.2-a-literal-without-anything", b"\x00")
refused("5.2-a-length-beyond-the-block", b"\x00\x7f\xff\xff\xff\x07a")


def huffman(data: bytes) -> bytes:
    return f.integer(len(data), 7, 0x80) + data


ZERO = b"\x00" + f.string(b"x-h")
decoded(
    "5.2-huffman",
    ZERO + huffman(b"\xf1\xe3\xc2\xe5\xf2\x3a\x6b\xa0\xab\x90\xf4\xff"),
    (b"x-h", b"www.example.com"),
)
decoded(
    "5.2-huffman-with-7-bits-of-padding", ZERO + huffman(b"\x18\xc6\x31\xff"), (b"x-h", b"aaaaa")
)
decoded("5.2-huffman-of-nothing", ZERO + huffman(b""), (b"x-h", b""))
decoded("5.2-huffman-without-padding", ZERO + huffman(b"\x18\xc6\x31\x8c\x63"), (b"x-h", b"a" * 8))
refused("5.2-huffman-padding-of-8-bits", ZERO + huffman(b"\x18\xc6\x31\x8c\x63\xff"))
refused("5.2-huffman-padding-over-7-bits", ZERO + huffman(b"\x18\xc6\x31\xff\xff"))
refused("5.2-huffman-padding-only", ZERO + huffman(b"\xff"))
refused("5.2-huffman-padding-not-all-ones", ZERO + huffman(b"\x18\xc6\x31\x80"))
refused("5.2-huffman-padding-with-a-zero-at-the-end", ZERO + huffman(b"\x18\xc6\x31\xfe"))
refused("5.2-huffman-with-eos", ZERO + huffman(b"\xff\xff\xff\xff"))
refused("5.2-huffman-with-eos-inside", ZERO + huffman(b"\x1f\xff\xff\xff\xe3\x1f"))
refused("5.2-huffman-code-that-is-cut-off", ZERO + huffman(b"\xff\xfe"))
refused("5.2-huffman-in-the-name-with-eos", b"\x00" + huffman(b"\xff\xff\xff\xff") + f.string(b"v"))

# 6.1 Indexed fields

refused("6.1-index-0", b"\x80")
decoded(
    "6.1-static-entries",
    b"\x90\x93\xb0",
    (b"accept-encoding", b"gzip, deflate"),
    (b"accept", b""),
    (b"proxy-authenticate", b""),
)

# 6.2 Literals

decoded(
    "6.2.1-literal-with-indexing-and-a-static-name",
    b"\x7a\x03abc" + NEWEST,
    (b"user-agent", b"abc"),
    (b"user-agent", b"abc"),
)
decoded(
    "6.2.2-literal-without-indexing-and-a-static-name", b"\x0f\x2b\x03abc", (b"user-agent", b"abc")
)
decoded(
    "6.2.3-literal-never-indexed",
    b"\x1f\x2b\x03abc" + f.literal(b"x", b"y", kind=0x10),
    (b"user-agent", b"abc"),
    (b"x", b"y"),
)
refused("6.2.2-a-literal-without-indexing-is-not-kept", f.literal(b"x-a", b"1") + NEWEST)
refused("6.2.3-a-literal-never-indexed-is-not-kept", f.literal(b"x-a", b"1", kind=0x10) + NEWEST)

# 6.3 Size updates

refused("6.3-update-over-the-limit", f.integer(4097, 5, 0x20), first=True)
refused("6.3-update-far-over-the-limit", f.integer(2**31, 5, 0x20), first=True)
table.rules(
    ("6.3-update-to-the-limit", request(1, f.integer(4096, 5, 0x20) + GET)),
    ("4.2-update-after-a-field", request(1, GET + EMPTY_IT), COMPRESSION),
    ("4.2-update-between-fields", request(1, b"\x82" + EMPTY_IT + GET), COMPRESSION),
    (
        "4.2-update-after-a-field-in-a-fragment",
        f.headers(1, GET, whole=False, end=True) + f.continuation(1, EMPTY_IT),
        COMPRESSION,
    ),
    ("4.2-two-updates-at-the-start", request(1, EMPTY_IT + f.integer(100, 5, 0x20) + GET)),
)
table.rules(
    ("6.3-update-over-a-smaller-limit", request(1, f.integer(1001, 5, 0x20) + GET), COMPRESSION),
    (
        "6.3-update-to-a-smaller-limit",
        lambda p: setattr(p.encoder, "header_table_size", 1000),
        request(1, f.integer(1000, 5, 0x20) + GET),
    ),
    limits=Http2Limits(header_table_size=1000),
)


# Appendix C: the examples with a dynamic table


REQUESTS = {
    "C.3": [
        "828684410f7777772e6578616d706c652e636f6d",
        "828684be58086e6f2d6361636865",
        "828785bf400a637573746f6d2d6b65790c637573746f6d2d76616c7565",
    ],
    "C.4": [
        "828684418cf1e3c2e5f23a6ba0ab90f4ff",
        "828684be5886a8eb10649cbf",
        "828785bf408825a849e95ba97d7f8925a849e95bb8e8b4bf",
    ],
}


@pytest.mark.parametrize("example", REQUESTS)
def test_the_request_examples_of_the_appendix_are_decoded(example: str) -> None:
    peer = Peer()
    for index, text in enumerate(REQUESTS[example]):
        peer.send(f.headers(2 * index + 1, bytes.fromhex(text), end=True))
    heads = [peer.head(stream) for stream in (1, 3, 5)]
    assert [head.path for head in heads] == [b"/", b"/", b"/index.html"]
    assert {head.authority for head in heads} == {b"www.example.com"}
    assert [head.headers for head in heads] == [
        (),
        ((b"cache-control", b"no-cache"),),
        ((b"custom-key", b"custom-value"),),
    ]


test_rule = table.tested()


# Any sequence of blocks, compared with the package hpack

names = st.sampled_from([b"x-a", b"x-b", b"user-agent", b"content-type", b"x-long"])
values = st.one_of(
    st.sampled_from([b"", b"1", b"gzip, deflate", b"v" * 1500]),
    st.binary(max_size=20).map(lambda text: text.hex().encode()),
)
lists = st.lists(st.tuples(names, values), max_size=6)


@settings(max_examples=60)
@given(
    st.lists(
        st.tuples(lists, st.booleans(), st.sampled_from([None, None, 0, 200, 4096])),
        min_size=1,
        max_size=12,
    )
)
def test_blocks_of_another_encoder_are_decoded_to_its_fields(
    blocks: list[tuple[list[f.Field], bool, int | None]],
) -> None:
    peer = Peer()
    encoder = hpack.Encoder()
    for index, (fields, squeeze, size) in enumerate(blocks):
        if size is not None:
            encoder.header_table_size = size
        decoded = encoder.encode([*f.GET, *fields], huffman=squeeze)
        stream = 2 * index + 1
        peer.send(f.headers(stream, decoded, end=True))
        assert peer.head(stream).headers == tuple(fields)


@given(
    st.lists(st.tuples(st.binary(min_size=1, max_size=200), st.binary(max_size=300)), max_size=10)
)
def test_our_blocks_are_decoded_to_our_fields_by_another_decoder(fields: list[f.Field]) -> None:
    decoder = hpack.Decoder()
    decoded_fields = decoder.decode(encode_block(fields), raw=True)
    assert [(bytes(name), bytes(value)) for name, value in decoded_fields] == fields
