import io

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from penstock.protocols import npy

arrays = hnp.arrays(
    st.sampled_from(["f4", "f8", "f2", "i1", "i8", "u2", ">i4", ">f8", "?", "c8", "U3", "S2"]),
    hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4),
)


def saved(array: np.ndarray, version: tuple[int, int] | None = None) -> bytes:
    file = io.BytesIO()
    np.lib.format.write_array(file, array, version)
    return file.getvalue()


def loaded(data: bytes) -> np.ndarray:
    return np.load(io.BytesIO(data), allow_pickle=False)


def with_header(header: str, data: bytes = b"", version: bytes = b"\x01\x00") -> bytes:
    size = len(header).to_bytes(2 if version == b"\x01\x00" else 4, "little")
    return b"\x93NUMPY" + version + size + header.encode() + data


def same(left: np.ndarray, right: np.ndarray) -> bool:
    return (
        left.dtype.newbyteorder("=") == right.dtype.newbyteorder("=")
        and left.shape == right.shape
        and left.tobytes() == right.astype(left.dtype).tobytes()
    )


@given(arrays, st.sampled_from([(1, 0), (2, 0), (3, 0)]), st.booleans())
def test_arrays_saved_by_numpy_are_read(
    array: np.ndarray, version: tuple[int, int], fortran: bool
) -> None:
    data = saved(np.array(array, order="F" if fortran else "C"), version)
    read = npy.read(data)
    assert same(read, loaded(data))
    assert read.dtype.isnative
    assert not read.flags.writeable


@given(arrays, st.booleans())
def test_written_arrays_are_loaded_by_numpy(array: np.ndarray, fortran: bool) -> None:
    data = npy.write(np.array(array, order="F" if fortran else "C"))
    assert same(loaded(data), array)
    assert same(npy.read(data), array)


def test_an_array_is_a_view_of_the_bytes() -> None:
    data = npy.write(np.arange(1000, dtype=np.float32))
    assert np.shares_memory(npy.read(data), np.frombuffer(data, np.uint8))


GOOD_HEADER = "{'descr': '<f4', 'fortran_order': False, 'shape': (2,), }\n"
EIGHT = bytes(8)


def test_the_unchanged_header_is_valid() -> None:
    assert npy.read(with_header(GOOD_HEADER, EIGHT)).tolist() == [0.0, 0.0]


REFUSED = {
    "nothing": b"",
    "magic alone": b"\x93NUMPY",
    "no header": b"\x93NUMPY\x01\x00",
    "other magic": b"\x93NUMPX" + with_header(GOOD_HEADER, EIGHT)[6:],
    "an archive": b"PK\x03\x04" + bytes(100),
    "a pickle": b"\x80\x04]\x94.",
    "an unknown version": with_header(GOOD_HEADER, EIGHT, b"\x04\x00"),
    "a header that is cut off": with_header(GOOD_HEADER)[:-10],
    "a header over 4 KiB": with_header(GOOD_HEADER + " " * 4096, EIGHT),
    "a header that is no dict": with_header("[1]", EIGHT),
    "no closing brace": with_header(GOOD_HEADER.replace("}", ""), EIGHT),
    "a missing key": with_header("{'descr': '<f4', 'shape': (2,), }", EIGHT),
    "a fourth key": with_header(GOOD_HEADER.replace("}", "'x': 1}"), EIGHT),
    "a repeated key": with_header(GOOD_HEADER.replace("}", "'shape': (2,)}"), EIGHT),
    "an expression as shape": with_header(GOOD_HEADER.replace("(2,)", "(1+1,)"), EIGHT),
    "a call as dtype": with_header(GOOD_HEADER.replace("'<f4'", "exit()"), EIGHT),
    "objects": with_header(GOOD_HEADER.replace("<f4", "|O"), EIGHT),
    "void": with_header(GOOD_HEADER.replace("<f4", "|V4"), EIGHT),
    "dates": with_header(GOOD_HEADER.replace("<f4", "<M8[s]"), bytes(16)),
    "a record": with_header(GOOD_HEADER.replace("'<f4'", "[('a', '<f4')]"), EIGHT),
    "items of no size": with_header(GOOD_HEADER.replace("<f4", "<U0")),
    "items of an odd size": with_header(GOOD_HEADER.replace("<f4", "<f3"), bytes(6)),
    "a negative dimension": with_header(GOOD_HEADER.replace("(2,)", "(-2,)"), EIGHT),
    "a shape that is no tuple": with_header(GOOD_HEADER.replace("(2,)", "(2)"), EIGHT),
    "too many axes": with_header(GOOD_HEADER.replace("(2,)", "(2," + "1," * 16 + ")"), EIGHT),
    "too few bytes": with_header(GOOD_HEADER, bytes(7)),
    "too many bytes": with_header(GOOD_HEADER, bytes(9)),
    "a size that wraps in 64 bits": with_header(
        GOOD_HEADER.replace("(2,)", "(2147483647, 2147483647, 2147483647)"), EIGHT
    ),
    "no elements of a size that wraps": with_header(
        GOOD_HEADER.replace("(2,)", "(0, 2147483647, 2147483647, 2147483647)")
    ),
    "a truth value of 2": with_header(GOOD_HEADER.replace("<f4", "|b1"), b"\x01\x02"),
    "a text that is no text": with_header(GOOD_HEADER.replace("<f4", "<U1"), b"\xff" * 8),
    "a header outside of ASCII": with_header(GOOD_HEADER.replace("<f4", "<f４"), EIGHT),
}


@pytest.mark.parametrize("name", REFUSED)
def test_invalid_data_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=r"[a-z]"):
        npy.read(REFUSED[name])


@pytest.mark.parametrize("filler", [" ", "'shape'", "(", "0,"])
def test_a_header_made_for_backtracking_is_refused_quickly(filler: str) -> None:
    header = "{" + filler * (4000 // len(filler)) + "}"
    with pytest.raises(ValueError, match="header"):
        npy.read(with_header(header))


header_words = st.lists(
    st.sampled_from(
        [*"{}(),:'\"20O\n ", "descr", "fortran_order", "shape", "True", "False", "<f4", "|b1", "-1"]
    ),
    max_size=30,
).map("".join)


@given(
    st.one_of(
        header_words,
        st.tuples(st.integers(0, 56), st.sampled_from(list("'(),{}0129 f")), st.booleans()).map(
            lambda t: GOOD_HEADER[: t[0]] + t[1] + GOOD_HEADER[t[0] + t[2] :]
        ),
    )
)
def test_any_accepted_header_is_loaded_alike_by_numpy(header: str) -> None:
    data = with_header(header, EIGHT)
    try:
        read = npy.read(data)
    except ValueError:
        return
    assert same(read, loaded(data))


@given(st.binary(max_size=80))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    for candidate in (data, b"\x93NUMPY" + data):
        try:
            npy.read(candidate)
        except ValueError:
            continue


@pytest.mark.parametrize(
    "array",
    [
        np.array([None]),
        np.array([(1,)], dtype=[("a", "i4")]),
        np.array(["2020-01-01"], "M8[D]"),
        np.zeros(1, np.longdouble),
    ],
    ids=["objects", "records", "dates", "long doubles"],
)
def test_arrays_that_could_not_be_read_are_not_written(array: np.ndarray) -> None:
    with pytest.raises(TypeError, match="cannot be sent"):
        npy.write(array)
