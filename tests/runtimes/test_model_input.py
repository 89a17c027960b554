import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from penstock.errors import InputMismatch, WrongType
from penstock.runtimes.model_input import ModelInput
from penstock.tensor import TensorSpec


def input_of(dtype, shape=(None,), name: str = "x", alias: str | None = None) -> ModelInput:
    return ModelInput(
        TensorSpec(name=name, alias=alias or name, dtype=np.dtype(dtype), shape=shape)
    )


def test_a_value_of_the_right_type_and_shape_is_passed_on_without_a_copy() -> None:
    value = np.ones((2, 13), np.float32)
    assert input_of(np.float32, (None, 13)).fit(value) is value


@pytest.mark.parametrize(
    ("given_dtype", "wanted"),
    [
        (np.float64, np.float32),
        (np.int64, np.float32),
        (np.float16, np.float32),
        (np.float32, np.float16),
        (np.uint8, np.float32),
        (np.bool_, np.float32),
        (np.int64, np.int32),
        (np.int32, np.int64),
        (np.int64, np.uint8),
        (np.bool_, np.int64),
        (np.float64, np.complex64),
        (">f4", np.float32),
        (">i8", np.int64),
    ],
)
def test_a_safe_cast_is_done(given_dtype, wanted) -> None:
    got = input_of(wanted).fit(np.array([0, 1, 1], dtype=given_dtype))
    assert got.dtype == np.dtype(wanted)
    assert got.tolist() == [0, 1, 1]


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        (np.array([1.0]), np.int64),
        (np.array([1]), np.bool_),
        (np.array([1.0]), np.bool_),
        (np.array([1j]), np.float32),
        (np.array(["1"]), np.float32),
        (np.array([b"1"]), np.float32),
        (np.array([1], dtype=object), np.float32),
        (np.array([0], dtype="M8[s]"), np.int64),
        (np.array([1]), object),
        (np.array([3, "a"], dtype=object), object),
    ],
)
def test_an_unsafe_cast_raises_input_mismatch(value, wanted) -> None:
    with pytest.raises(InputMismatch, match="input 'x' expected"):
        input_of(wanted).fit(value)


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        (np.array([1 << 31]), np.int32),
        (np.array([-1]), np.uint8),
        (np.array([256]), np.uint8),
        (np.array([1 << 63], dtype=np.uint64), np.int64),
        (np.array([1e300]), np.float32),
        (np.array([1e6], dtype=np.float32), np.float16),
        (np.array([70000]), np.float16),
    ],
)
def test_a_value_outside_the_range_is_refused_not_wrapped(value, wanted) -> None:
    with pytest.raises(InputMismatch, match="out of its range"):
        input_of(wanted).fit(value)


def test_infinity_and_nan_are_accepted_as_floats() -> None:
    got = input_of(np.float32).fit(np.array([np.inf, -np.inf, np.nan]))
    assert got.tolist()[:2] == [np.inf, -np.inf]
    assert np.isnan(got[2])


@given(
    hnp.arrays(st.sampled_from([np.int64, np.uint64, np.int16]), st.integers(0, 5)),
    st.sampled_from([np.int8, np.uint8, np.int32, np.uint32, np.int64, np.uint64]),
)
def test_integers_are_cast_exactly_or_refused(value, wanted) -> None:
    limits = np.iinfo(wanted)
    held = all(limits.min <= number <= limits.max for number in value.tolist())
    if held:
        assert input_of(wanted).fit(value).tolist() == value.tolist()
    else:
        with pytest.raises(InputMismatch):
            input_of(wanted).fit(value)


def test_the_error_for_a_wrong_shape_has_both_shapes() -> None:
    one = input_of(np.float32, (None, 3, 224), alias="image")
    with pytest.raises(
        InputMismatch,
        match=r"input 'image' expected the shape \[\?, 3, 224\], got \[1, 1, 224\]",
    ):
        one.fit(np.ones((1, 1, 224), np.float32))
    with pytest.raises(InputMismatch, match=r"got \[3, 224\]"):
        one.fit(np.ones((3, 224), np.float32))
    with pytest.raises(InputMismatch, match=r"got \[\]"):
        one.fit(np.array(1, np.float32))


def test_a_shape_that_is_a_hint_is_not_checked() -> None:
    dtype = np.dtype(np.float32)
    spec = TensorSpec(name="x", alias="x", dtype=dtype, shape=(None, 3, 8), shape_is_hint=True)
    loose = ModelInput(spec)
    for shape in ((2, 5), (2, 3, 7)):
        value = np.ones(shape, np.float32)
        assert loose.fit(value) is value


def test_an_unknown_rank_is_not_checked() -> None:
    one = input_of(np.float32, None)
    assert one.fit(np.ones((1, 2, 3), np.float32)).shape == (1, 2, 3)
    with pytest.raises(InputMismatch, match="expected float32 of any rank"):
        one.fit(np.array(["a"]))


@pytest.mark.parametrize(
    ("value", "what"),
    [
        ([1.0, 2.0], "a list of float"),
        ([], "an empty list"),
        ([["a"]], "a list of list"),
        ("text", "not str"),
        (1.5, "not float"),
        (np.float32(1.5), "not float32"),
        (None, "not NoneType"),
        ({"a": 1}, "not dict"),
        ((1, 2), "not tuple"),
        (b"bytes", "not bytes"),
    ],
)
def test_a_value_that_is_not_an_array_raises_wrong_type(value, what: str) -> None:
    with pytest.raises(WrongType, match=r"^feed_batch must be npdata: input 'x'.*" + what):
        input_of(np.float32).fit(value)


def test_a_subclass_of_ndarray_becomes_a_plain_array() -> None:
    got = input_of(np.float32, (None, 1)).fit(np.ones((2, 1), np.float32).view(np.recarray))
    assert type(got) is np.ndarray


@pytest.mark.parametrize(
    "value",
    [
        ["a", "ü"],
        np.array(["a", "ü"]),
        np.array(["a", "ü"], dtype=object),
        np.array([b"a", "ü".encode()]),
        np.array([b"a", np.str_("ü")], dtype=object),
    ],
)
def test_texts_are_accepted_as_lists_and_arrays_of_str_and_bytes(value) -> None:
    got = input_of(object).fit(value)
    assert got.dtype == object
    assert got.tolist() == ["a", "ü"]


def test_texts_keep_their_shape() -> None:
    assert input_of(object, (None, 1)).fit(np.array([[b"a"], [b"b"]])).tolist() == [["a"], ["b"]]


def test_bytes_that_are_not_utf8_are_refused() -> None:
    with pytest.raises(InputMismatch, match="not UTF-8"):
        input_of(object).fit(np.array([b"\xff"]))


def test_a_list_of_texts_is_refused_for_a_numeric_input() -> None:
    with pytest.raises(InputMismatch, match=r"expected float32\[\?\]"):
        input_of(np.float32).fit(["1.5"])


def test_a_list_of_texts_and_other_types_is_refused() -> None:
    with pytest.raises(InputMismatch, match="holding a int"):
        input_of(object).fit(["a", 1])


@pytest.mark.parametrize(
    "value", [[0, 2, 5], np.array([0, 2, 5]), np.array([[0, 2, 5]]), np.int32([0, 2, 5])]
)
def test_an_input_for_a_lod_accepts_lists_and_arrays(value) -> None:
    got = input_of(np.int64, (None,), name="x.lod").fit(value)
    assert got.dtype == np.int64
    assert got.tolist() == [0, 2, 5]


def test_an_invalid_lod_raises_input_mismatch() -> None:
    with pytest.raises(InputMismatch, match="never decreases"):
        input_of(np.int64, (None,), name="x.lod").fit([0, 3, 1])


def test_lists_and_single_rows_become_batches() -> None:
    one = input_of(np.float32, (None, 2))
    assert one.as_batch([1, 2], batch=False).tolist() == [[1, 2]]
    assert one.as_batch([[1, 2]], batch=True).tolist() == [[1, 2]]
    assert one.as_batch(np.ones(2), batch=False).shape == (1, 2)
    assert one.fit(one.as_batch([], batch=True).reshape(0, 2)).dtype == np.float32
    with pytest.raises(WrongType, match="feed_batch must be npdata"):
        one.as_batch([[1], [1, 2]], batch=True)
    assert input_of(object).as_batch(["a"], batch=True).dtype == object
