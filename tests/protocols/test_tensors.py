from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from penstock.errors import PackageError
from penstock.protocols import npy, tensors
from penstock.protocols.pb import Tensor


def encode(name: str, value: Any, **how: Any) -> Tensor:
    return tensors.encode(name, value, **how).message()


DTYPES = [
    ("int64", 0, "int64_data"),
    ("float32", 1, "float_data"),
    ("int32", 2, "int_data"),
    ("float64", 3, "float64_data"),
    ("int16", 4, "int_data"),
    ("float16", 5, "float_data"),
    ("uint16", 6, "uint32_data"),
    ("uint8", 7, "uint32_data"),
    ("int8", 8, "int_data"),
    ("bool", 9, "bool_data"),
]


@pytest.mark.parametrize(("dtype", "code", "field"), DTYPES)
def test_an_array_is_encoded_in_the_field_of_its_dtype(dtype: str, code: int, field: str) -> None:
    array = np.array([[0, 1, 0], [1, 1, 0]], dtype)
    tensor = encode("x", array)
    assert tensor.elem_type == code
    assert [f.name for f, _ in tensor.ListFields()] == [field] + ["elem_type"] * (code > 0) + [
        "shape",
        "name",
    ]
    assert list(getattr(tensor, field)) == [0, 1, 0, 1, 1, 0]
    assert list(tensor.shape) == [2, 3]
    assert tensor.name == "x"


arrays = st.sampled_from([name for name, _, _ in DTYPES]).flatmap(
    lambda name: hnp.arrays(name, hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4))
)


@given(arrays, st.booleans(), st.sampled_from("CF"))
def test_encoded_arrays_are_decoded_to_the_same(
    array: np.ndarray, as_bytes: bool, order: str
) -> None:
    sent = encode("x", np.array(array, order=order), as_bytes=as_bytes)
    value, lod = tensors.decode(Tensor.FromString(sent.SerializeToString()))
    assert isinstance(value, np.ndarray)
    assert value.dtype == array.dtype
    assert value.shape == array.shape
    np.testing.assert_array_equal(value, array)
    assert lod is None


@given(st.text())
def test_encoded_texts_are_decoded_to_the_same(text: str) -> None:
    assert tensors.decode(encode("x", text)) == (text, None)


def test_arrays_in_foreign_byte_order_are_encoded() -> None:
    tensor = encode("x", np.array([1.5, -2], ">f4"))
    assert list(tensor.float_data) == [1.5, -2]


def test_a_lod_is_decoded_to_two_rows() -> None:
    tensor = encode("x", np.zeros((7, 1), np.float32), lod=[0, 3, 5, 7])
    _, lod = tensors.decode(tensor)
    assert lod is not None
    assert lod.dtype == np.int32
    assert lod.tolist() == [[0, 3], [5, 7]]
    encoded_again = encode("x", np.zeros((7, 1), np.float32), lod=lod)
    assert encoded_again == tensor


@pytest.mark.parametrize(
    "value",
    [
        np.zeros(1, np.complex64),
        np.zeros(1, np.uint32),
        np.array(["a"]),
        np.array([None]),
        np.zeros((1,) * 17),
        [1, 2],
        1.5,
        None,
    ],
    ids=["complex", "uint32", "texts", "objects", "17 axes", "list", "number", "None"],
)
def test_values_that_tensors_do_not_support_raise_type_error(value: object) -> None:
    with pytest.raises(TypeError, match="tensor 'x'"):
        encode("x", value)  # type: ignore[arg-type]


@pytest.mark.parametrize("lod", [[0, 1.5], ["a"], [0, 2**31], [[0], [1, 2]]], ids=str)
def test_an_invalid_lod_raises_type_error(lod: object) -> None:
    with pytest.raises(TypeError, match="lod"):
        encode("x", np.zeros(1), lod=lod)


def test_text_parts_are_joined() -> None:
    tensor = Tensor(elem_type=12, str_data=["in ", "parts"], shape=[7])
    assert tensors.decode(tensor)[0] == "in parts"


def test_the_shape_of_a_tensor_of_npy_bytes_is_ignored() -> None:
    tensor = Tensor(elem_type=13, byte_data=npy.write(np.arange(3)), shape=[9, 9])
    value, _ = tensors.decode(tensor)
    assert isinstance(value, np.ndarray)
    assert value.tolist() == [0, 1, 2]


def test_an_unset_type_is_int64() -> None:
    value, _ = tensors.decode(Tensor(int64_data=[-(2**63), 2**63 - 1], shape=[2]))
    assert isinstance(value, np.ndarray)
    assert value.dtype == np.int64
    assert value.tolist() == [-(2**63), 2**63 - 1]


def test_one_element_without_a_shape_is_a_scalar_array() -> None:
    value, _ = tensors.decode(Tensor(elem_type=1, float_data=[1.5]))
    assert isinstance(value, np.ndarray)
    assert value.shape == ()


def test_nan_and_infinity_are_decoded_in_single_and_half_precision() -> None:
    numbers = [float("nan"), float("inf"), -float("inf")]
    for code in (1, 5):
        value, _ = tensors.decode(Tensor(elem_type=code, float_data=numbers, shape=[3]))
        np.testing.assert_array_equal(value, numbers)


def test_decoded_arrays_are_writable() -> None:
    value, _ = tensors.decode(encode("x", np.zeros(2, np.float32)))
    assert isinstance(value, np.ndarray)
    value += 1


def test_a_long_name_is_shortened_in_the_error() -> None:
    with pytest.raises(PackageError) as caught:
        tensors.decode(Tensor(name="n" * 100_000, elem_type=99))
    assert len(str(caught.value)) < 200


@given(
    st.builds(
        Tensor,
        int64_data=st.lists(st.integers(-5, 5), max_size=2),
        float_data=st.lists(st.floats(width=32), max_size=2),
        int_data=st.lists(st.integers(-300, 300), max_size=2),
        uint32_data=st.lists(st.integers(0, 70000), max_size=2),
        bool_data=st.lists(st.booleans(), max_size=1),
        str_data=st.lists(st.text(max_size=2), max_size=1),
        byte_data=st.sampled_from([b"", b"x", npy.write(np.arange(2.0))]),
        elem_type=st.integers(-1, 15),
        shape=st.lists(st.sampled_from([0, 1, 2, -1, 2**31 - 1]), max_size=4),
        lod=st.lists(st.integers(-1, 3), max_size=4),
    )
)
def test_any_tensor_is_decoded_or_refused(tensor: Tensor) -> None:
    try:
        value, lod = tensors.decode(tensor)
    except PackageError:
        return
    assert isinstance(value, str | np.ndarray)
    assert lod is None or lod.shape[0] == 2


def test_an_empty_array_of_huge_dimensions_is_decoded_and_encoded() -> None:
    # With two bytes for each value, an array that is not empty would be too large.
    tensor = Tensor(name="x", elem_type=tensors.FP16, shape=[0, 2**31 - 1, 2**31 - 1])
    value, _ = tensors.decode(tensor)
    assert list(encode("x", value).shape) == list(tensor.shape)
