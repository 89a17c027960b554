import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from penstock.protocols.array_text import format_array, parse_array

GOOD = [
    ("array([[18.901152]], dtype=float32)", np.array([[18.901152]], np.float32)),
    ("array(3)", np.array(3)),
    ("array(1.5, dtype=float16)", np.array(1.5, np.float16)),
    (" [[1, 2],\n [3, 4]] ", np.array([[1, 2], [3, 4]])),
    ("[0.1, 2.]", np.array([0.1, 2.0])),
    ("[1, 2.5]", np.array([1.0, 2.5])),
    ("array([nan, inf, -inf])", np.array([np.nan, np.inf, -np.inf])),
    ("array([ True, False])", np.array([True, False])),
    ("array([1], dtype='int8')", np.array([1], np.int8)),
    ("array([18446744073709551615], dtype=uint64)", np.array([2**64 - 1], np.uint64)),
    ("array([], dtype=float32)", np.empty(0, np.float32)),
    ("array([], shape=(0, 3), dtype=int64)", np.empty((0, 3), np.int64)),
    ("[[], []]", np.empty((2, 0))),
]


@pytest.mark.parametrize(("text", "array"), GOOD, ids=[text for text, _ in GOOD])
def test_texts_of_arrays_and_lists_are_parsed(text: str, array: np.ndarray) -> None:
    parsed = parse_array(text)
    assert parsed.dtype == array.dtype
    np.testing.assert_array_equal(parsed, array)
    assert parsed.flags.writeable


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x",
        "1",
        "array()",
        "array",
        "array(])",
        "array([1, ..., 2])",
        "array([1]).tolist()",
        "array([1]) + 1",
        "array([__import__('os')])",
        "array(open)",
        "array([1], dtype=object)",
        "array([1], dtype=os)",
        "array([1], shape=(1,))",
        "array([1], copy=False)",
        "array([], shape=(0, 9999999999, 9999999999, 9999999999), dtype=int64)",
        "array(1, 2)",
        "[1, 2",
        "[1]]",
        "[1][2]",
        "[[1], [2, 3]]",
        "[[1], 2]",
        "[1, [2]]",
        "[[[1]], [2]]",
        "[1,,2]",
        "[1,]",
        "[1 2]",
        "['1']",
        "[1_0]",
        "[0x10]",
        "[1e999]",
        "array([1e300], dtype=float32)",
        "array([300], dtype=uint8)",
        "array([-1], dtype=uint64)",
        "array([1.5], dtype=int32)",
        "array([True, 1])",
        "array([1], dtype=bool)",
        "[18446744073709551615]",
        "[" + "1" * 500 + "]",
        "[" * 17 + "1" + "]" * 17,
        "[１]",
    ],
    ids=lambda text: text[:50] or "nothing",
)
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"^[a-z].*"):
        parse_array(text)


def test_more_elements_than_allowed_are_refused() -> None:
    assert parse_array("[1, 2, 3]", max_elements=3).size == 3
    with pytest.raises(ValueError, match="more than 2 elements"):
        parse_array("[1, 2, 3]", max_elements=2)


@given(
    hnp.arrays(
        st.sampled_from(["f4", "f2", "i1", "i8", "u8", "?"]),
        hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=5),
    )
)
def test_a_formatted_array_is_parsed_back(array: np.ndarray) -> None:
    parsed = parse_array(format_array(array))
    assert parsed.dtype == array.dtype
    assert parsed.shape == array.shape
    if array.dtype.kind == "f":
        # Eight digits are written; those hold half precision and, nearly, single precision.
        np.testing.assert_allclose(parsed, array, rtol=1e-6, atol=1e-8)
    else:
        np.testing.assert_array_equal(parsed, array)


@given(st.text(alphabet="[]0123,. -+eEinfarytdpshoTFul=()'\n\u0661", max_size=60))
def test_any_text_is_parsed_or_refused(text: str) -> None:
    try:
        array = parse_array(text)
    except ValueError:
        return
    assert array.dtype.kind in "biuf"
