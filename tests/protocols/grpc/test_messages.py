from __future__ import annotations

import gzip
import tracemalloc
import zlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.protocols.grpc import (
    GZIP,
    IDENTITY,
    GrpcError,
    MessageReader,
    encode_message,
)
from penstock.protocols.status import GrpcCode


def read(data: bytes, most: int = 1 << 20, encoding: bytes | None = None) -> list[bytes]:
    reader = MessageReader(most, encoding)
    messages = reader.feed(data)
    reader.finish()
    return messages


def refusal(data: bytes, most: int = 1 << 20, encoding: bytes | None = None) -> GrpcError:
    with pytest.raises(GrpcError) as caught:
        read(data, most, encoding)
    return caught.value


def test_a_message_is_encoded_with_flag_and_length() -> None:
    assert encode_message(b"abc") == b"\0\0\0\0\3abc"
    compressed_message = encode_message(b"abc", compressed=True)
    assert compressed_message[0] == 1
    assert gzip.decompress(compressed_message[5:]) == b"abc"


@settings(deadline=None)
@given(st.lists(st.tuples(st.binary(max_size=3000), st.booleans()), max_size=5), st.data())
def test_messages_split_at_any_offsets_are_read(
    made: list[tuple[bytes, bool]], data: st.DataObject
) -> None:
    raw = b"".join(
        encode_message(message, compressed=compressed_message)
        for message, compressed_message in made
    )
    cuts = sorted(data.draw(st.sets(st.integers(0, len(raw)), max_size=12)))
    reader = MessageReader(1 << 20, GZIP)
    seen: list[bytes] = []
    for a, b in zip([0, *cuts], [*cuts, len(raw)], strict=True):
        seen += reader.feed(raw[a:b])
    reader.finish()
    assert seen == [message for message, _ in made]


@pytest.mark.parametrize("piece", [1, 1023, 1024, 16384])
def test_a_large_message_in_pieces_is_buffered_and_joined_once(piece: int) -> None:
    size = 300_000
    data = encode_message(bytes(size))
    pieces = [data[n : n + piece] for n in range(0, len(data), piece)]
    reader = MessageReader(size)
    tracemalloc.start()
    try:
        messages = [message for part in pieces for message in reader.feed(bytes(part))]
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert messages == [bytes(size)]
    assert peak < 3 * size


def test_a_message_in_one_piece_is_not_copied() -> None:
    reader = MessageReader(10)
    reader.feed(b"\0\0\0\0\3")
    piece = b"abc"
    assert reader.feed(piece)[0] is piece


def test_a_declared_length_over_the_limit_is_refused_before_the_message_is_read() -> None:
    reader = MessageReader(10)
    with pytest.raises(GrpcError) as caught:
        reader.feed(b"\0\0\0\0\x0b")
    assert caught.value.code is GrpcCode.RESOURCE_EXHAUSTED
    assert "11 bytes" in caught.value.text
    assert "10 bytes" in caught.value.text


def test_a_message_may_decompress_to_the_limit_but_not_beyond() -> None:
    data = encode_message(bytes(1000), compressed=True)
    assert read(data, 1000, GZIP) == [bytes(1000)]
    error = refusal(data, 999, GZIP)
    assert error.code is GrpcCode.RESOURCE_EXHAUSTED
    assert f"{len(data) - 5} bytes" in error.text
    assert "999 bytes" in error.text


def test_a_decompression_bomb_takes_no_more_memory_than_the_limit() -> None:
    data = encode_message(bytes(50 << 20), compressed=True)
    tracemalloc.start()
    try:
        refusal(data, 100_000, GZIP)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1 << 20


def _prefixed(data: bytes, flag: int = 1) -> bytes:
    return bytes((flag,)) + len(data).to_bytes(4) + data


@pytest.mark.parametrize(
    ("data", "encoding"),
    [
        (b"\0\0\0", None),
        (encode_message(b"abc")[:-1], None),
        (encode_message(b"abc", compressed=True), None),
        (encode_message(b"abc", compressed=True), IDENTITY),
        (_prefixed(b"abc", 2), GZIP),
        (_prefixed(b"abc"), GZIP),
        (_prefixed(b""), GZIP),
        (_prefixed(gzip.compress(b"abc", mtime=0)[:-1]), GZIP),
        (_prefixed(gzip.compress(b"abc", mtime=0) + b"x"), GZIP),
        (_prefixed(gzip.compress(b"abc", mtime=0) * 2), GZIP),
        (_prefixed(zlib.compress(b"abc")), GZIP),
    ],
)
def test_a_malformed_message_is_an_internal_error(data: bytes, encoding: bytes | None) -> None:
    assert refusal(data, encoding=encoding).code is GrpcCode.INTERNAL
