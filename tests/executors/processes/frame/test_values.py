"""Encoder and decoder together: what goes in comes out."""

from __future__ import annotations

import math
import pickle
import struct
import subprocess
import tracemalloc
from collections import OrderedDict
from collections.abc import Callable
from datetime import date
from decimal import Decimal
from enum import Enum, IntEnum
from typing import Any
from uuid import UUID

import numpy as np
import ormsgpack
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from penstock.executors.processes.frame import (
    LARGE,
    MAX_DEPTH,
    Blob,
    Decoder,
    FrameError,
    Kind,
    Ref,
    decode,
    encode,
    framed,
    header,
    listed,
    packed,
    packed_scalars,
)
from penstock.executors.processes.frame.values import (
    ARRAY,
    BLOB,
    DICT,
    NUMPY_STR,
    OBJECTS,
    PART_ARRAY,
    PART_BLOB,
    SCALAR,
    SLAB_ARRAY,
    SURROGATES,
    TUPLE,
)


def body_of(value: object, **how: Any) -> bytes:
    return b"".join(encode(value, **how))


def plain(packed: bytes) -> bytes:
    """A body without large parts."""
    return struct.pack("<I", len(packed)) + packed


def extension(code: int, data: bytes) -> bytes:
    """A body that is one extension."""
    return plain(b"\xc9" + struct.pack(">IB", len(data), code) + data)


def mark(code: int) -> bytes:
    return bytes((0xC7, 0, code))


def opened(blob: Blob) -> Any:
    return pickle.loads(blob.data)


def same(one: Any, two: Any) -> bool:
    """Equal in type and content, where nan is nan, and -0.0 is not 0.0."""
    if type(one) is not type(two):
        return False
    if isinstance(one, np.ndarray) and one.dtype == two.dtype == object:
        return one.shape == two.shape and same(one.ravel().tolist(), two.ravel().tolist())
    if isinstance(one, np.ndarray | np.generic) and not isinstance(one, str | bytes):
        return (
            one.dtype == two.dtype
            and one.dtype.byteorder == two.dtype.byteorder
            and one.shape == two.shape
            and one.flags.fnc == two.flags.fnc
            and one.tobytes() == two.tobytes()
        )
    if isinstance(one, list | tuple):
        return len(one) == len(two) and all(map(same, one, two))
    if isinstance(one, dict):
        return all(map(same, one, two)) and all(map(same, one.values(), two.values()))
    if isinstance(one, float):
        return struct.pack("d", one) == struct.pack("d", two)
    if isinstance(one, str):
        return list(map(ord, one)) == list(map(ord, two)) and len(one) == len(two)
    return bool(one == two)


dtypes = st.one_of(
    npst.boolean_dtypes(),
    npst.integer_dtypes(endianness="?"),
    npst.unsigned_integer_dtypes(endianness="?"),
    npst.floating_dtypes(endianness="?"),
    npst.complex_number_dtypes(endianness="?"),
    npst.byte_string_dtypes(),
    npst.unicode_string_dtypes(endianness="?"),
    npst.datetime64_dtypes(endianness="?"),
    npst.timedelta64_dtypes(endianness="?"),
)
shapes = npst.array_shapes(min_dims=0, max_dims=5, min_side=0, max_side=4)
in_c_order = dtypes.flatmap(lambda dtype: npst.arrays(dtype, shapes))
arrays = st.one_of(in_c_order, in_c_order.map(lambda array: np.array(array, order="F")))
texts = st.text(st.characters(exclude_categories=()))
keys = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(allow_nan=False),
    texts,
    st.binary(),
)
objects = npst.arrays(object, shapes, elements=keys)
scalars = dtypes.flatmap(npst.from_dtype).filter(lambda scalar: isinstance(scalar, np.generic))
leaves = st.one_of(
    keys, st.floats(), arrays, objects, scalars, st.builds(Blob, st.binary(max_size=300), texts)
)
values = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.lists(inner),
        st.lists(inner).map(tuple),
        st.dictionaries(keys, inner),
    ),
    max_leaves=12,
)


@given(values)
def test_a_value_comes_back_as_it_was(value: Any) -> None:
    assert same(decode(body_of(value)), value)
    assert same(decode(memoryview(bytearray(body_of(value)))), value)


@given(values)
def test_equal_values_are_equal_bytes(value: Any) -> None:
    body = body_of(value)
    assert body_of(value) == body
    assert body_of(decode(body)) == body


@given(st.lists(st.dictionaries(texts, values, max_size=3), max_size=4), keys)
def test_who_says_what_is_strange_gets_the_same_bytes(strange: list[Any], known: Any) -> None:
    value = [None, [1, 2.5, known], strange]
    assert body_of(value, strange=strange) == body_of(value)
    deeper = [{"a": each} for each in strange]
    assert body_of(deeper, strange=deeper) == body_of(deeper)


@given(st.dictionaries(texts, st.one_of(keys, values), max_size=4), st.integers(0, 2**64 - 1))
def test_a_frame_with_scalars_is_a_header_and_their_body(output: Any, number: int) -> None:
    value = [0.5, output, None, False]
    written = packed_scalars(value, output.values())
    body = body_of(value)
    if written is not None:
        assert framed(Kind.DONE, number, written) == header(Kind.DONE, number, len(body)) + body


def test_scalars_are_packed_at_once_and_nothing_else() -> None:
    for output in ({}, {"x": "a", "n": 1, "y": None}, {"x": b"", "z": True, "f": 2.5}):
        assert packed_scalars([0.5, output], output.values()) is not None
    for output in ({"x": [1]}, {"x": np.zeros(2)}, {"x": np.str_("a")}, {"x": 2**64}, {1: 2}):
        assert packed_scalars([0.5, output], output.values()) is None


def test_a_long_text_is_not_packed_at_once() -> None:
    value = ["x" * LARGE]
    assert packed_scalars(value, value) is None


@given(st.lists(st.one_of(keys, st.lists(keys), st.dictionaries(texts, keys)), max_size=40))
def test_plain_values_one_behind_the_other_are_a_list(items: list[Any]) -> None:
    parts = [each for each in map(packed, items) if each is not None]
    alone = [decode(plain(each)) for each in parts]
    together = listed(len(parts), b"".join(parts))
    assert repr(decode(plain(together))) == repr(alone)


@given(st.lists(st.one_of(values.map(body_of), st.binary(max_size=100)), max_size=6))
@example([extension(ARRAY, b""), plain(b"\xc1"), plain(b"\x01")])
@example([extension(TUPLE, b""), plain(b"\x01"), body_of((1,)), plain(b"\x91\x01")])
@example([body_of(np.zeros(LARGE)) + b"1", body_of(np.zeros(LARGE)), plain(b"\x01")])
def test_who_reads_several_values_reads_each_as_if_it_were_the_only_one(
    bodies: list[bytes],
) -> None:
    decoder = Decoder()
    for body in bodies:
        assert same(read(decoder.decode, body), read(decode, body))


def read(by: Callable[[bytes], Any], body: bytes) -> Any:
    try:
        return by(body)
    except FrameError as error:
        return "refused", str(error)


@given(st.binary(max_size=300))
def test_any_bytes_are_a_value_or_an_error(data: bytes) -> None:
    try:
        value = decode(data)
    except FrameError:
        return
    assert same(decode(body_of(value)), value)


@given(values, st.data())
def test_bytes_cut_off_or_changed_are_a_value_or_an_error(value: Any, data: st.DataObject) -> None:
    body = bytearray(body_of(value))
    at = data.draw(st.integers(0, len(body) - 1))
    with pytest.raises(FrameError):
        decode(bytes(body[:at]))
    with pytest.raises(FrameError):
        decode(bytes(body) + b"\0")
    body[at] = data.draw(st.integers(0, 255))
    try:
        decode(bytes(body), fetch=lambda ref: bytes(min(ref.nbytes, 10_000)))
    except FrameError:
        return


@pytest.mark.parametrize(
    "value",
    [
        *(0, -1, 2**63 - 1, -(2**63), 2**63, -(2**63) - 1, 10**5000, -(10**5000)),
        *(math.inf, -math.inf, math.nan, -0.0, 5e-324),
        *("", "a" * 254, "a" * 255, "a" * 70_000, "\ud800\udc00 \ud800", "\0", "\U0010ffff"),
        *(b"", bytes(254), bytes(255), bytes(LARGE)),
        *([], [None] * 254, [None] * 255, (), ((),), {}, {None: 1, True: 2, 2.5: 3, b"": 4}),
        *(np.str_("a\0"), np.str_(""), np.bytes_(b"a\0"), np.bytes_(b""), np.bool_(True)),
        *(np.float16(1.5), np.longdouble(1) / 3, np.datetime64("NaT"), np.timedelta64(3, "25us")),
        *(np.zeros(()), np.zeros((0, 3)), np.zeros((1,) * 30), np.empty((0, 2**40))),
        *(np.array([None, "a"]), np.empty((0, 2), object), np.array([["b"], [""]], object)),
        *(np.array(["", "\ud800"]), np.array([b"a\0b"]), np.arange(6).reshape(2, 3).T),
        np.zeros((300, 300))[::2, ::3],
        np.zeros(LARGE, "M8[25ns]"),
        np.zeros(LARGE, ">U3"),
        np.broadcast_to(np.float32(3), (200, 200)),
        {f"k{n}": [n, float(n)] for n in range(300)},
    ],
    ids=lambda value: type(value).__name__,
)
def test_edges_come_back_as_they_were(value: Any) -> None:
    assert same(decode(body_of(value)), value)


class Colour(IntEnum):
    RED = 1


class Shade(Enum):
    DARK = 1


class Matrix(np.ndarray):  # type: ignore[type-arg]
    pass


OTHERS = [
    Decimal(1),
    {1, 2},
    1 + 2j,
    Colour.RED,
    OrderedDict(a=1),
    {(1, 2): 3},
    {np.str_("a"): 1},
    {"a": 1, Colour.RED: 2},
    np.array([None, Decimal(1)]),
    np.zeros(2, [("a", "i4")]),
    np.zeros(2, "V3"),
    np.zeros(2).view(Matrix),
    bytearray(b"abc"),
    range(3),
]


@pytest.mark.parametrize("value", OTHERS, ids=lambda value: type(value).__name__)
def test_a_value_of_another_type_becomes_a_blob_that_only_some_open(value: Any) -> None:
    body = body_of({"a": [value]}, pickle=pickle.dumps)
    blob = decode(body)["a"][0]
    assert type(blob) is Blob
    assert blob.type_name.endswith(type(value).__qualname__)
    assert same(opened(blob), value) or np.array_equal(opened(blob), value)
    again = decode(body_of({"a": [blob]}), open_blob=opened)["a"][0]
    assert type(again) is type(value)


@pytest.mark.parametrize("value", OTHERS, ids=lambda value: type(value).__name__)
@pytest.mark.parametrize("beside", [1, np.zeros(2), [1], 2**70, "\ud800"], ids=repr)
def test_a_strange_value_becomes_a_blob_whatever_is_beside_it(value: Any, beside: Any) -> None:
    strange = [{"op": {"a": value, "b": beside}}, {"op": {"a": beside}}]
    body = body_of([0.5, strange], pickle=pickle.dumps, strange=strange)
    assert body == body_of([0.5, strange], pickle=pickle.dumps)
    assert type(decode(body)[1][0]["op"]["a"]) is Blob
    with pytest.raises(FrameError, match=type(value).__qualname__):
        encode([0.5, strange], strange=strange)


@pytest.mark.parametrize("beside", [1, np.zeros(2)], ids=repr)
def test_what_was_wrongly_said_to_be_known_is_written_as_anything_else(beside: Any) -> None:
    value = [np.int64(7), {"a": beside}]
    assert body_of(value, strange=[value[1]]) == body_of(value)


@pytest.mark.parametrize("value", OTHERS, ids=lambda value: type(value).__name__)
def test_without_a_way_to_pickle_it_is_refused_by_name(value: Any) -> None:
    with pytest.raises(FrameError, match=type(value).__qualname__):
        encode([value])


def test_an_array_that_cannot_travel_is_refused_by_what_it_holds() -> None:
    with pytest.raises(FrameError, match=r"numpy.ndarray of \[\('a', '<i4'\)\] cannot travel"):
        encode([np.zeros(2, [("a", "<i4")])])


@pytest.mark.parametrize("value", [Blob(b"", "Thing"), Decimal(1)])
def test_where_no_blob_may_be_a_value_that_needs_one_is_refused(value: object) -> None:
    with pytest.raises(FrameError, match=r"(Thing|Decimal) cannot travel here"):
        encode(["a", value], pickle=pickle.dumps, blobs=False)


def test_what_cannot_be_pickled_is_refused_by_name() -> None:
    with pytest.raises(FrameError, match=r"function.*cannot be pickled"):
        encode([lambda: None], pickle=pickle.dumps)


def test_what_ends_programs_is_no_more_than_a_refusal_while_something_is_pickled() -> None:
    def exits(value: Any) -> bytes:
        raise SystemExit(3)

    with pytest.raises(FrameError, match="cannot be pickled: 3"):
        encode([Decimal(1)], pickle=exits)


def test_what_goes_wrong_while_a_blob_is_opened_is_not_the_senders_fault() -> None:
    def fails(blob: Blob) -> Any:
        raise error

    body = body_of([Blob(b"", "x")])
    for error in (
        IndexError("theirs"),
        struct.error("theirs"),
        UnicodeDecodeError("a", b"", 0, 1, ""),
    ):
        with pytest.raises(type(error)):
            decode(body, open_blob=fails)


def test_a_blob_shows_its_type_and_size_and_compares() -> None:
    blob = Blob(b"123", "pkg.Thing")
    assert repr(blob) == "<Blob pkg.Thing 3 bytes>"
    assert blob == Blob(b"123", "pkg.Thing") != Blob(b"124", "pkg.Thing")


def nested(levels: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(levels - 1):
        value = [value]
    return value


def test_the_deepest_allowed_value_needs_no_pickle() -> None:
    value = nested(MAX_DEPTH)
    assert decode(body_of(value)) == value


@pytest.mark.parametrize("levels", [MAX_DEPTH + 1, 200])
def test_a_deeper_value_comes_back_with_the_help_of_a_pickle(levels: int) -> None:
    value = nested(levels)
    assert decode(body_of(value, pickle=pickle.dumps), open_blob=opened) == value
    with pytest.raises(FrameError, match="list cannot travel"):
        encode(value)


def test_from_a_trusted_sender_any_depth_is_taken() -> None:
    body = plain(b"\x91" * MAX_DEPTH + b"\x90")
    with pytest.raises(FrameError, match="deeper"):
        Decoder().decode(body)
    assert Decoder(trusted=True).decode(body) == nested(MAX_DEPTH + 1)


def test_a_value_deeper_than_pickles_can_be_is_refused() -> None:
    with pytest.raises(FrameError, match="cannot be pickled"):
        encode(nested(100_000), pickle=pickle.dumps)


def test_a_value_that_contains_itself_becomes_a_blob_and_its_neighbours_do_not() -> None:
    knot: dict[str, Any] = {}
    knot["self"] = [knot, knot]
    value = [{"good": [1, "a"]}, {"bad": knot}]
    good, bad = decode(body_of(value, pickle=pickle.dumps))
    assert good == {"good": [1, "a"]}
    assert type(bad["bad"]) is Blob
    again = opened(bad["bad"])
    assert again["self"][1] is again


def test_everything_in_everything_is_written_soon() -> None:
    everyone: list[Any] = [[] for _ in range(100)]
    for each in everyone:
        each.extend(everyone)
    assert type(decode(body_of(everyone[0], pickle=pickle.dumps))) is Blob


def test_deeper_bytes_are_refused() -> None:
    assert decode(plain(b"\x91" * (MAX_DEPTH - 1) + b"\x90")) == nested(MAX_DEPTH)
    with pytest.raises(FrameError, match="nested deeper"):
        decode(plain(b"\x91" * MAX_DEPTH + b"\x90"))
    for level in (b"\x91", b"\xdc\0\x01", b"\x81\xa0", b"\x92" + mark(TUPLE)):
        for end in (b"\x90", b"\xc5\xff\xff" + bytes(2**16 - 1), b"\xd4\x04\x01"):
            with pytest.raises(FrameError, match="nested deeper"):
                decode(plain(level * (MAX_DEPTH + 1) + end))
        with pytest.raises(FrameError):
            decode(plain(level * 100_000 + b"\x90"))


def test_a_large_array_travels_as_a_view_of_itself() -> None:
    array = np.zeros((200, 200))
    pieces = encode(["a", array, "b"])
    assert [len(piece) for piece in pieces if len(piece) >= LARGE] == [array.nbytes]
    (view,) = [piece for piece in pieces if isinstance(piece, memoryview)]
    assert np.shares_memory(np.frombuffer(view, np.uint8), array)


def test_what_came_inline_is_the_receivers_own() -> None:
    body = bytearray(body_of([np.zeros(3), np.zeros(LARGE)]))
    small, large = decode(body)
    small[:] = large[:] = 7
    body[:] = bytes(len(body))
    assert small.tolist() == [7, 7, 7]
    assert set(large) == {7}


class Shelf:
    """Keeps what is placed, as a slab would."""

    def __init__(self) -> None:
        self.kept: list[bytes] = []

    def place(self, array: np.ndarray[Any, Any]) -> Ref:
        self.kept.append(array.tobytes())
        return Ref(len(self.kept) - 1, 1, 64, array.nbytes)

    def fetch(self, ref: Ref) -> bytes:
        return self.kept[ref.slab]


def test_large_arrays_are_placed_and_small_ones_are_not() -> None:
    shelf = Shelf()
    value = {"large": np.arange(LARGE).reshape(2, -1).T, "small": np.zeros(8)}
    body = body_of(value, place=shelf.place)
    assert len(body) < 1000
    assert len(shelf.kept) == 1
    back = decode(body, fetch=shelf.fetch)
    assert same(back, value)
    assert not back["large"].flags.writeable


@pytest.mark.parametrize("shape", [(30, 41), (901, 733), (7, 30, 41, 13)])
@pytest.mark.parametrize("placed", [True, False])
def test_sums_of_an_array_in_fortran_order_have_the_same_last_bits(
    shape: tuple[int, ...], *, placed: bool
) -> None:
    shelf = Shelf()
    normal = np.random.default_rng(1).normal(size=shape).astype("f4")
    value = {"fortran": np.asfortranarray(normal), "turned": normal.T, "c": normal}
    body = body_of(value, place=shelf.place if placed else None)
    back = decode(body, fetch=shelf.fetch)
    for name, array in value.items():
        assert back[name].strides == array.strides
        assert back[name].sum().tobytes() == array.sum().tobytes()
        assert same(back[name], array)


def test_an_array_and_its_transpose_are_told_apart() -> None:
    shelf = Shelf()
    array = np.arange(LARGE).reshape(2, -1)
    twice = [array, array.T, np.asfortranarray(array), array]
    back = decode(body_of(twice, place=shelf.place), fetch=shelf.fetch)
    assert all(map(same, back, twice))
    assert len(shelf.kept) == 3


def test_an_array_with_more_axes_than_numpy_has_is_refused() -> None:
    dtype = bytes((3,)) + b"|u1"
    for axes in (100, 128 + 100):
        head = dtype + bytes((axes,)) + struct.pack("<100Q", *[1] * 100)
        with pytest.raises(FrameError, match="cannot hold an array of such a shape"):
            decode(extension(ARRAY, head + b"x"))


def test_an_array_that_stands_twice_is_placed_once_even_beside_a_knot() -> None:
    shelf = Shelf()
    array = np.zeros(LARGE)
    knot: list[Any] = []
    knot.append(knot)
    decoded = decode(
        body_of([array, knot, array], place=shelf.place, pickle=pickle.dumps), fetch=shelf.fetch
    )
    assert len(shelf.kept) == 1
    assert same(decoded[2], array)


def test_an_array_without_room_travels_inline() -> None:
    array = np.arange(LARGE)
    assert same(decode(body_of(array, place=lambda array: None)), array)


def test_truth_values_and_texts_are_never_left_where_their_sender_could_change_them() -> None:
    shelf = Shelf()
    value = [np.ones(LARGE, bool), np.full(LARGE, "abc")]
    assert same(decode(body_of(value, place=shelf.place)), value)
    assert shelf.kept == []


def head(name: bytes, sizes: list[int]) -> bytes:
    return bytes((len(name),)) + name + struct.pack(f"<B{len(sizes)}Q", len(sizes), *sizes)


def slab_body(name: bytes, sizes: list[int], nbytes: int) -> bytes:
    return extension(SLAB_ARRAY, head(name, sizes) + struct.pack("<IIQQ", 0, 1, 64, nbytes))


@pytest.mark.parametrize(
    "body",
    [
        slab_body(b"<f4", [4], 15),
        slab_body(b"<f4", [4], 17),
        extension(SLAB_ARRAY, head(b"<f4", [4]) + b"\0" + struct.pack("<IIQQ", 0, 1, 64, 16)),
        extension(SLAB_ARRAY, head(b"<f4", [4]) + bytes(23)),
        extension(SLAB_ARRAY, b""),
        slab_body(b"<f4", [0], 0),
        slab_body(b"|b1", [4], 4),
        slab_body(b"<U1", [4], 16),
        slab_body(b"|O8", [4], 32),
        slab_body(b"|V8", [4], 32),
        slab_body(b"<f4", [2**62, 4], 2**64 - 1),
        slab_body(b"|u1", [2**63], 2**63),
        slab_body(b"|u1", [1] * 65, 1),
    ],
)
def test_an_array_that_cannot_be_in_a_slab_is_refused(body: bytes) -> None:
    with pytest.raises(FrameError):
        decode(body, fetch=lambda ref: bytes(min(ref.nbytes, 1000)))


def test_a_slab_that_gives_other_bytes_is_refused() -> None:
    with pytest.raises(FrameError, match="gave 15 bytes"):
        decode(slab_body(b"<f4", [4], 16), fetch=lambda ref: bytes(15))
    with pytest.raises(FrameError, match="slab"):
        decode(slab_body(b"<f4", [4], 16))


def test_records_in_fortran_order_are_pickled_as_they_are() -> None:
    records = np.asfortranarray(np.array([(n, n) for n in range(6)], "i4,f8").reshape(2, 3))
    (blob,) = decode(body_of([records], pickle=pickle.dumps))
    assert pickle.loads(blob.data).tolist() == records.tolist()


def array_body(name: bytes, sizes: list[int], contents: bytes) -> bytes:
    return extension(ARRAY, head(name, sizes) + contents)


@pytest.mark.parametrize(
    "body",
    [
        array_body(b"|O8", [1], bytes(8)),
        array_body(b"|V1", [1], bytes(1)),
        array_body(b"<f3", [1], bytes(3)),
        array_body(b"f4,f4", [1], bytes(8)),
        array_body(b"<M8[xx]", [1], bytes(8)),
        array_body(b"<M8[0s]", [1], bytes(8)),
        array_body(b"|S999999999", [0, 2**40], b""),
        array_body(b"|S0", [1], b""),
        array_body(b"|b1", [2], b"\x01\x02"),
        array_body(b"<U1", [1], b"\0\0\x11\0"),
        array_body(b">U1", [1], b"\0\x11\0\0"),
        array_body(b"|u1", [2**63], b""),
        array_body(b"|u1", [2**62, 4], b""),
        array_body(b"|u1", [0, 2**62, 2**62], b""),
        array_body(b"|u1", [1] * 100, b"\0"),
        array_body(b"<f4", [3], bytes(11)),
        extension(ARRAY, b""),
        extension(ARRAY, b"\x03<f4"),
        extension(ARRAY, head(b"<f4", [1])[:-1]),
        extension(PART_ARRAY, head(b"<f4", [2])) + bytes(7),
        extension(PART_ARRAY, head(b"<f4", [2]) + b"\0") + bytes(8),
        extension(PART_BLOB, bytes(4) + struct.pack("<Q", 3)) + b"ab",
        extension(PART_BLOB, bytes(4) + bytes(7)),
        extension(BLOB, b"\x01\0\0"),
        extension(BLOB, b"\x01\0\0\0"),
        extension(BLOB, b"\x01\0\0\0\xff"),
        extension(SLAB_ARRAY, head(b"<f4", [2])),
        extension(SCALAR, b"\x03<f4" + bytes(3)),
        extension(SURROGATES, b"\xff"),
        extension(NUMPY_STR, b"\xff"),
        extension(0, b""),
        extension(99, b""),
        extension(255, bytes(8)),  # a point in time, as MessagePack has it
        plain(mark(TUPLE)),
        plain(b"\x92\x01" + mark(TUPLE)),
        plain(b"\x81\xa0" + mark(DICT)),
        plain(b"\x92" + mark(DICT) + b"\x01"),
        plain(b"\x93" + mark(DICT) + b"\x90\x01"),  # a list as a key
        plain(b"\x93" + mark(DICT) + mark(TUPLE) + b"\x01"),
        plain(b"\x81\x01\x02"),
        plain(b"\xdd\xff\xff\xff\xff"),
        plain(b"\xa1\xff"),
        plain(b"\xdb\xff\xff\xff\x7fabc"),
        plain(b"\xc1"),
        plain(b""),
        plain(b"\x01")[:-1],
        plain(b"\x01") + b"\x01",
        b"\0\0\0",
        b"",
    ],
)
def test_what_is_no_value_is_refused(body: bytes) -> None:
    with pytest.raises(FrameError):
        decode(body)


def test_lengths_are_compared_with_what_is_there_before_room_is_made() -> None:
    claims = [
        plain(b"\xdd\xff\xff\xff\xff"),
        plain(b"\xdf\xff\xff\xff\xff"),
        plain(b"\xc6\xff\xff\xff\xff"),
        plain(b"\xc9\xff\xff\xff\xff\x09"),
        array_body(b"<f8", [2**40], b""),
        extension(PART_ARRAY, head(b"<f8", [2**40])),
        extension(PART_BLOB, bytes(4) + struct.pack("<Q", 2**40)),
        extension(SCALAR, bytes((11,)) + b"|S999999999"),
        plain(b"\x92" + mark(OBJECTS) + b"\x91\xcf" + struct.pack(">Q", 2**40)),
    ]
    for claim in claims:
        tracemalloc.start()
        try:
            with pytest.raises(FrameError):
                decode(claim)
            assert tracemalloc.get_traced_memory()[1] < 100_000
        finally:
            tracemalloc.stop()


def test_the_pickles_of_others_are_never_opened() -> None:
    class Trap:
        def __reduce__(self) -> Any:
            return subprocess.call, (["false"],)

    trap = pickle.dumps(Trap())
    for value in (trap, Blob(trap, "Trap"), np.frombuffer(trap, np.uint8)):
        assert same(decode(body_of(value)), value)


@settings(max_examples=20)
@given(st.integers(1, 300))
def test_a_batch_of_samples_comes_back(size: int) -> None:
    batch = [
        [n, 2**40 + n, 1.5, {"op": {"image": np.full((3, 4), n, "f4"), "key": f"text {n}"}}]
        for n in range(size)
    ]
    assert same(decode(body_of(batch)), batch)


@pytest.mark.parametrize(
    ("items", "rest", "text"),
    [
        (1, b"", "no shape"),
        (2, b"\xa0", "no shape"),
        (2, b"\x91\xa0", "no shape"),
        (3, b"\x91\x01\x90", "plain scalars"),
        (3, b"\x91\x02\x01", "than its shape"),
        (3, b"\x92\xff\xff\x01", "than its shape"),
        (2, b"\x92\0\xcf" + b"\xff" * 8, "numpy cannot hold"),
    ],
)
def test_an_array_of_objects_brings_nothing_but_scalars(items: int, rest: bytes, text: str) -> None:
    good = decode(plain(b"\x93" + mark(OBJECTS) + b"\x91\x01" + b"\x07"))
    assert same(good, np.array([7], object))
    with pytest.raises(FrameError, match=text):
        decode(plain(bytes((0x90 + items,)) + mark(OBJECTS) + rest))


def test_types_that_the_library_would_change_are_left_to_pickles() -> None:
    class Plain:
        """Nothing that anybody knows."""

    for value in (
        bytearray(b"a"),
        memoryview(b"a"),
        ormsgpack.Ext(1, b""),
        ormsgpack.Fragment(b"\x01"),
    ):
        with pytest.raises(FrameError, match=type(value).__name__):
            encode({"a": [value]})
    others: list[object] = [date(2024, 1, 1), UUID(int=1), Shade.DARK, frozenset(), Plain()]
    for other in others:
        with pytest.raises(FrameError, match=type(other).__name__):
            encode(({"a": other},))


def test_a_value_that_is_changed_while_it_is_read_does_not_travel() -> None:
    changing: dict[str, object] = {}

    def pickle(value: object) -> bytes:
        changing[str(len(changing))] = value
        return b""

    changing["a"] = changing["b"] = object()
    with pytest.raises(FrameError, match="the value cannot be read: RuntimeError: dict"):
        encode([changing], pickle=pickle)


def test_what_cannot_be_pickled_and_cannot_say_why_does_not_travel() -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise ValueError

    def pickle(value: object) -> bytes:
        raise Mute

    with pytest.raises(FrameError, match="cannot be pickled: Mute"):
        encode(object(), pickle=pickle)
