from __future__ import annotations

import pytest
from hpack import Decoder, Encoder
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.protocols.http2 import ErrorCode, Http2Limits, encode_block
from penstock.protocols.http2.codes import ConnectionFault, HeadersTooLarge
from penstock.protocols.http2.hpack import FieldDecoder

NAMES = st.sampled_from([b":method", b":path", b"content-type", b"x-a", b"x-long" * 30, b"cookie"])
VALUES = st.one_of(
    st.sampled_from([b"GET", b"/", b"", b"application/grpc", b"v" * 200]), st.binary(max_size=300)
)
LISTS = st.lists(st.tuples(NAMES, VALUES), max_size=12)
WIDE = Http2Limits(max_header_bytes=1 << 20, max_header_field=1 << 20, max_header_fields=1000)


@given(LISTS)
def test_an_encoded_block_does_not_change_the_dynamic_table(fields: list) -> None:
    decoder = FieldDecoder(WIDE)
    assert decoder.decode(encode_block(fields)) == fields
    assert decoder.entries == []


def test_secrets_are_never_indexed() -> None:
    assert encode_block([(b"authorization", b"secret")])[0] & 0xF0 == 0x10


@settings(max_examples=300, deadline=None)
@given(st.lists(st.binary(max_size=30), max_size=4))
def test_any_bytes_are_decoded_or_refused_as_by_another_decoder(blocks: list[bytes]) -> None:
    ours, theirs = FieldDecoder(WIDE), Decoder(max_header_list_size=1 << 20)
    for block in blocks:
        try:
            expected = [tuple(field) for field in theirs.decode(block, raw=True)]
        except Exception:
            with pytest.raises(ConnectionFault):
                ours.decode(block)
            return
        assert ours.decode(block) == expected


@pytest.mark.parametrize("size", [0, 1, 203, 204, 205, 63_000])
def test_huffman_coded_strings_of_any_length_are_read(size: int) -> None:
    fields = [(b"x-a", b"a" * size)]  # five bits each: 127 bytes from 204 letters on
    assert FieldDecoder(WIDE).decode(Encoder().encode(fields)) == fields


def test_a_huffman_coded_string_beyond_the_limit_closes_the_connection() -> None:
    block = Encoder().encode([(b"x-a", b"a" * 65_600)])
    with pytest.raises(ConnectionFault) as caught:
        FieldDecoder(WIDE).decode(block)
    assert caught.value.code is ErrorCode.ENHANCE_YOUR_CALM


def test_a_field_list_over_a_limit_keeps_the_dynamic_table_correct() -> None:
    encoder = Encoder()
    decoder = FieldDecoder(Http2Limits(max_header_bytes=500))
    with pytest.raises(HeadersTooLarge):
        decoder.decode(encoder.encode([(b"x-a", b"1"), (b"x-b", b"2" * 600), (b"x-c", b"3")]))
    assert decoder.decode(encoder.encode([(b"x-c", b"3"), (b"x-a", b"1")])) == [
        (b"x-c", b"3"),
        (b"x-a", b"1"),
    ]


@pytest.mark.parametrize(
    "limits",
    [
        Http2Limits(max_header_fields=2),
        Http2Limits(max_header_field=20),
        Http2Limits(max_header_bytes=120),
    ],
)
def test_each_limit_of_field_lists_is_enforced(limits: Http2Limits) -> None:
    fields = [(b"a", b"1" * 18), (b"b", b"2"), (b"c", b"3" * 20)]
    decoder = FieldDecoder(limits)
    assert decoder.decode(encode_block(fields[:2])) == fields[:2]
    with pytest.raises(HeadersTooLarge):
        decoder.decode(encode_block(fields))
