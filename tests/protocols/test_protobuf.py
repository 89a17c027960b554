import gzip as library
from typing import Any

import numpy as np
import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import TooLarge, Undecodable
from penstock.protocols import gzip, protobuf, tensors
from penstock.protocols.pb import Tensor
from penstock.protocols.protobuf import (
    TooManyFields,
    Walker,
    count_varints,
    decode_text,
    few_varints,
    pack_varints,
    read_varint,
    read_varints,
    varint,
)


@given(st.lists(st.integers(0, 2**31 - 1)))
def test_few_varints_are_decoded_by_the_fast_path(numbers: list[int]) -> None:
    data = b"".join(map(varint, numbers))
    assert few_varints(b"\xff" + data, 1, len(data) + 1) == (numbers if len(data) <= 256 else None)


@pytest.mark.parametrize("data", [b"\x80", varint(2**31), varint(2**64 - 1), b"\x80" * 200 + b"\1"])
def test_large_and_malformed_varints_are_left_to_the_general_decoder(data: bytes) -> None:
    assert few_varints(data, 0, len(data)) is None


@pytest.fixture(autouse=True, params=[16, 1 << 16])
def _small_blocks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protobuf, "_BLOCK", request.param)


@given(st.integers(0, 2**64 - 1))
def test_an_encoded_varint_is_decoded_to_the_same(number: int) -> None:
    data = varint(number)
    assert read_varint(data, 0) == (number, len(data))


@pytest.mark.parametrize("few", [0, 256])
@given(st.lists(st.integers(-(2**63), 2**63 - 1) | st.integers(-2, 300)))
def test_packed_numbers_are_encoded_and_decoded_as_by_the_library(
    few: int, numbers: list[int]
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(protobuf, "_FEW", few)
        _check_packed(np.array(numbers, np.int64), numbers)


def _check_packed(array: np.ndarray, numbers: list[int]) -> None:
    data = b"".join(pack_varints(array))
    assert Tensor.FromString(b"\x0a" + varint(len(data)) + data).int64_data == numbers
    count = count_varints(data, 0, len(data))
    assert count == len(numbers)
    into = np.empty(count, np.int64)
    read_varints(data, 0, len(data), into)
    np.testing.assert_array_equal(into, array)


@pytest.mark.parametrize("data", [b"\x80", b"\1\x80", b"\x80" * 10 + b"\1", b"\xff" * 30])
def test_truncated_packed_numbers_are_refused(data: bytes) -> None:
    into = np.empty(count_varints(data, 0, len(data)), np.int64)
    with pytest.raises(ValueError, match="number"):
        read_varints(data, 0, len(data), into)


@given(st.binary(max_size=60))
def test_a_tensor_is_decoded_as_by_the_library(data: bytes) -> None:
    theirs: Tensor | None
    try:
        theirs = Tensor.FromString(data)
    except DecodeError:
        theirs = None
    try:
        ours = tensors.read(Walker(data, 1000), 0, len(data), tensors.DecodeBudget(0))
    except ValueError:
        assert theirs is None
        return
    assert theirs is not None
    theirs.DiscardUnknownFields()
    assert ours.message().SerializeToString() == theirs.SerializeToString() or "nan" in str(theirs)


@given(st.lists(st.sampled_from([(1, 5), (1, -1), (3, 300), (6, 1), (22, 2)]), max_size=30))
def test_unpacked_numbers_are_decoded(elements: list[tuple[int, int]]) -> None:
    data = b"".join(varint(field << 3) + varint(number % 2**64) for field, number in elements)
    ours = tensors.read(Walker(data, 1000), 0, len(data), tensors.DecodeBudget(0))
    assert ours.message() == Tensor.FromString(data)


def test_fields_of_nested_messages_count_for_the_limit() -> None:
    inner = b"\x08\1" * 6
    data = b"\x1a" + varint(len(inner)) + inner
    walker = Walker(data, 6)
    ((_, _, begin, end),) = walker.fields(0, len(data))
    with pytest.raises(TooManyFields):
        tensors.read(walker, begin, end, tensors.DecodeBudget(0))


def test_numbers_beyond_the_budget_are_refused_before_allocation() -> None:
    data = b"\x0a" + varint(1 << 20) + b"\1" * (1 << 20)
    budget = tensors.DecodeBudget(0)
    budget.array(tensors.MOST_DECODED - (1 << 20), np.dtype(np.int8))
    with pytest.raises(TooLarge):
        tensors.read(Walker(data, 10), 0, len(data), budget)


@given(st.text())
def test_a_text_is_decoded_in_pieces(text: str) -> None:
    data = b"xx" + text.encode() + b"yy"
    assert decode_text(data, 2, len(data) - 2) == text


@pytest.mark.parametrize("data", [b"\xff", b"x" * 40 + b"\xc3", b"\xed\xa0\x80" * 20])
def test_bytes_that_are_not_utf8_are_refused(data: bytes) -> None:
    with pytest.raises(UnicodeDecodeError):
        decode_text(data, 0, len(data))


def compressed(plain: Any) -> bytes:
    return library.compress(plain, 6, mtime=0)


def test_up_to_a_megabyte_is_decompressed_at_any_ratio() -> None:
    assert gzip.unpack(compressed(bytes(1 << 20)), 1 << 30) == bytes(1 << 20)


def test_beyond_a_megabyte_the_compression_ratio_is_limited() -> None:
    with pytest.raises(TooLarge, match="200 times"):
        gzip.unpack(compressed(bytes(2 << 20)), 1 << 30)
    noise = np.random.default_rng(1).bytes(20_000)
    plain = noise + bytes((2 << 20) - len(noise))
    assert gzip.unpack(compressed(plain), 1 << 30) == plain


def test_the_size_limit_applies_at_any_ratio() -> None:
    with pytest.raises(TooLarge, match="999 bytes"):
        gzip.unpack(compressed(bytes(1000)), 999)
    assert gzip.unpack(compressed(bytes(1000)), 1000) == bytes(1000)


@pytest.mark.parametrize("data", [b"", b"x", compressed(b"abc")[:-1], compressed(b"abc") + b"x"])
def test_invalid_gzip_data_is_refused(data: bytes) -> None:
    with pytest.raises(Undecodable):
        gzip.unpack(data, 1 << 20)
