"""Values sent between processes are decoded equal; others are refused."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from penstock.executors.transport.frames import FrameError
from penstock.executors.transport.values import (
    LARGE,
    Blob,
    Decoder,
    OnlyPickledError,
    Ref,
    Stored,
    decode,
    encode,
    storable,
)

SCALARS = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(max_size=9)
)
DTYPES = (
    hnp.scalar_dtypes()
    | hnp.unicode_string_dtypes(max_len=5)
    | hnp.byte_string_dtypes(max_len=5)
    | st.just(np.dtype("f2"))
    | st.just(np.dtype("u4"))
)
ARRAYS = hnp.arrays(DTYPES, hnp.array_shapes(min_dims=0, min_side=0, max_side=4))
VALUES = st.recursive(
    SCALARS | ARRAYS | hnp.arrays(object, (2, 3), elements=SCALARS),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.tuples(inner, inner)
        | st.dictionaries(st.text(max_size=3) | st.integers(0, 9), inner, max_size=3)
    ),
    max_leaves=6,
)


def body_of(value: Any, **options: Any) -> bytes:
    return b"".join(encode(value, **options))


def same(a: Any, b: Any) -> bool:
    if type(a) is not type(b):
        return False
    if isinstance(a, np.ndarray):
        if (a.dtype, a.shape) != (b.dtype, b.shape):
            return False
        if a.ndim > 1 and a.size and a.dtype.kind != "O" and a.flags.fnc != b.flags.fnc:
            return False
        if a.dtype.kind == "O":
            return all(map(same, a.reshape(-1).tolist(), b.reshape(-1).tolist()))
        return a.tobytes() == b.tobytes()
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    return a == b or a != a


@given(VALUES)
def test_a_value_is_decoded_equal_with_its_types(value: Any) -> None:
    assert same(decode(body_of(value)), value)


@pytest.mark.parametrize(
    "value",
    [2**70, -(2**63) - 1, np.float32(1.5), np.str_("a\0"), np.bytes_(b"x"), np.int64(-1), np.True_,
     (1, (2, ())), np.zeros((3, 4), order="F"), np.zeros((0, 4)), np.array(["ü"], object),
     {1: 2, None: "a", "b": (1,)}],
)  # fmt: skip
def test_rare_values_are_decoded_equal(value: Any) -> None:
    assert same(decode(body_of({"x": [value]})), {"x": [value]})


def test_large_arrays_are_separate_pieces_without_a_copy() -> None:
    array = np.arange(LARGE, dtype=np.uint8)
    pieces = encode([array, array.reshape(256, -1).T])
    assert sum(map(len, pieces[:2])) < 200
    first, second = decode(b"".join(pieces))
    assert same(first, array)
    assert same(second, array.reshape(256, -1).T)
    assert first.flags.writeable


def test_an_array_in_shared_memory_is_decoded_as_a_view() -> None:
    memory = np.zeros(4 * LARGE, np.uint8)
    memory.flags.writeable = False
    placed: list[Any] = []

    def place(array: Any) -> Ref:
        placed.append(array)
        return Ref(7, 64, array.nbytes)

    body = body_of({"x": np.ones(LARGE, np.uint16), "y": np.ones(LARGE, np.int8)[:9]}, place=place)
    assert [each.dtype for each in placed] == [np.uint16]  # the other array is small
    value = Decoder(lambda ref: (memory, ref.offset)).decode(body)
    assert np.shares_memory(value["x"], memory)
    assert not value["x"].flags.writeable
    with pytest.raises(FrameError):
        decode(body)


class Odd:
    pass


def test_other_values_are_pickles_that_only_workers_unpickle() -> None:
    with pytest.raises(OnlyPickledError, match=r"test_values\.Odd cannot be sent"):
        encode({"x": Odd()})
    body = body_of({"x": Odd()}, pickle=pickle.dumps)
    blob = decode(body)["x"]
    assert type(blob) is Blob
    assert blob.type_name.endswith("Odd")
    again = body_of({"x": blob})
    assert type(Decoder(open_blob=lambda each: pickle.loads(each.data)).decode(again)["x"]) is Odd
    with pytest.raises(FrameError, match="cannot be sent here"):
        encode({"x": blob}, blobs=False)
    with pytest.raises(FrameError, match="cannot be pickled"):
        encode({"x": lambda: None}, pickle=pickle.dumps)


def _cyclic() -> list[Any]:
    cycle: list[Any] = []
    cycle.append(cycle)
    return cycle


@pytest.mark.parametrize("value", [_cyclic(), "\ud800", {"\ud800": 1}], ids=["knot", "text", "key"])
def test_a_value_that_cannot_be_encoded_is_refused(value: Any) -> None:
    with pytest.raises(FrameError):
        encode({"x": value}, pickle=pickle.dumps)


@given(st.binary(max_size=60))
def test_any_bytes_are_a_value_or_refused(data: bytes) -> None:
    for body in (data, len(data).to_bytes(4, "little") + data):
        try:
            decode(body)
        except FrameError:
            continue


@given(VALUES, st.data())
def test_a_value_with_a_changed_octet_is_another_value_or_refused(value: Any, data: Any) -> None:
    body = bytearray(body_of(value))
    body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    try:
        decode(bytes(body))
    except FrameError:
        return


def test_an_array_longer_than_its_data_is_refused() -> None:
    body = bytearray(body_of(np.zeros(4, np.uint8)))
    at = body.index((4).to_bytes(8, "little"))
    body[at : at + 8] = (2**40).to_bytes(8, "little")
    with pytest.raises(FrameError):
        decode(bytes(body))


def test_what_stands_for_a_stored_value_is_sent_and_taken_only_where_there_is_a_store() -> None:
    found = storable(np.ones((2, 3)).T, "key", 4, 1)
    assert found is not None
    stored, octets = found
    assert (stored.key, stored.number, stored.nbytes, len(octets)) == ("key", 4, 48, 48)
    body = body_of({"x": [stored]})
    assert Decoder(stored=lambda each: each).decode(body) == {"x": [stored]}
    with pytest.raises(FrameError, match="not known"):
        decode(body)
    with pytest.raises(FrameError, match="47 octets are stored, and not 48"):
        stored.value(bytearray(47))


@pytest.mark.parametrize(
    "stored",
    [
        Stored("key", 0, b"\x03<f8\x01" + (3).to_bytes(8, "little"), 23),
        Stored("key", 0, b"\x03<f8\x01", 24),
        Stored("key", 0, b"\x03<f8\x01" + (3).to_bytes(8, "little") + b"more", 24),
        Stored("key", 0, b"\x03|O8\x00", 8),
        Stored("key", -1, b"", 8),
        Stored("key", 0, b"", -8),
        Stored(7, 0, b"", 8),  # type: ignore[arg-type]
        Stored("key", 0.5, b"", 8),  # type: ignore[arg-type]
        Stored("key", 0, "", 8),  # type: ignore[arg-type]
    ],
)
def test_what_cannot_stand_for_a_stored_value_is_refused(stored: Stored) -> None:
    with pytest.raises(FrameError):
        Decoder(stored=lambda each: each).decode(body_of(stored))
