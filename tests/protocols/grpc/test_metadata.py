from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.protocols.grpc import GrpcError, decode_metadata, encode_metadata
from penstock.protocols.status import GrpcCode

NAME = st.from_regex(r"x[0-9a-z_.-]{0,10}", fullmatch=True)
TEXT = st.from_regex(r"([!-~]([ -~]{0,10}[!-~])?)?", fullmatch=True)
PAIR = st.one_of(
    st.tuples(NAME.filter(lambda name: not name.endswith("-bin")), TEXT),
    st.tuples(NAME.map(lambda name: name + "-bin"), st.binary(max_size=20)),
)


@given(st.lists(PAIR, max_size=5))
def test_encoded_metadata_is_decoded_to_the_same(pairs: list[tuple[str, str | bytes]]) -> None:
    assert decode_metadata(encode_metadata(pairs)) == tuple(pairs)


def test_binary_values_are_sent_without_padding() -> None:
    assert encode_metadata([("a-bin", b"\xff")]) == ((b"a-bin", b"/w"),)


@pytest.mark.parametrize("raw", [b"/w,YWI", b"/w==,YWI=", b"/w, YWI="])
def test_binary_values_may_be_padded_and_joined(raw: bytes) -> None:
    assert decode_metadata(((b"a-bin", raw),)) == (("a-bin", b"\xff"), ("a-bin", b"ab"))


@pytest.mark.parametrize("raw", [b"!", b"a", b"YW I", b"Y=WI", b"\xff"])
def test_a_binary_value_that_is_not_base64_is_refused(raw: bytes) -> None:
    with pytest.raises(GrpcError) as caught:
        decode_metadata(((b"a-bin", raw),))
    assert caught.value.code is GrpcCode.INTERNAL


def test_headers_of_the_transport_are_not_metadata() -> None:
    headers = (
        (b"te", b"trailers"),
        (b"content-type", b"application/grpc"),
        (b"grpc-timeout", b"1S"),
        (b"user-agent", b"x"),
        (b"mine", b"a"),
    )
    assert decode_metadata(headers) == (("mine", "a"),)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("X", "a"),
        ("", "a"),
        ("a b", "a"),
        (":path", "a"),
        ("grpc-status", "0"),
        ("content-type", "a"),
        ("a", "a\nb"),
        ("a", "é"),
        ("a", " a"),
        ("a", b"a"),
        ("a-bin", "a"),
    ],
)
def test_metadata_that_cannot_be_sent_is_refused(name: str, value: str | bytes) -> None:
    with pytest.raises(ValueError, match=r"metadata|value"):
        encode_metadata([(name, value)])
