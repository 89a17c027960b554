"""Wire tensors to numpy values and back; every contradiction inside of a tensor is found here.

A tensor names its element type by number, and each type has one field that may hold its data:
``TYPES`` is that table. Sizes are compared as Python ints, which never wrap, before anything of
that size is allocated. Source: ``docs/compatibility.md`` (tensors).

Pure; safe from any thread.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from math import prod
from operator import index
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from penstock.errors import PackageError
from penstock.protocols import npy
from penstock.protocols.pb import Tensor

Array: TypeAlias = NDArray[Any]

MAX_AXES = 16

FP16, BF16, STRING, BYTES = 5, 6, 12, 13


@dataclass(frozen=True, slots=True, kw_only=True)
class ElementType:
    """One element type of the wire.

    Attributes:
        name: as people know it.
        field: where its data stands.
        dtype: the numpy dtype of the value; None for types that are no arrays or not supported.
    """

    name: str
    field: str
    dtype: np.dtype[Any] | None


def _type(name: str, field: str, dtype: str | None = None) -> ElementType:
    return ElementType(name=name, field=field, dtype=np.dtype(dtype) if dtype else None)


TYPES: dict[int, ElementType] = {
    0: _type("INT64", "int64_data", "int64"),
    1: _type("FP32", "float_data", "float32"),
    2: _type("INT32", "int_data", "int32"),
    3: _type("FP64", "float64_data", "float64"),
    4: _type("INT16", "int_data", "int16"),
    FP16: _type("FP16", "float_data", "float16"),
    BF16: _type("BF16", "uint32_data", "uint16"),  # raw bit patterns
    7: _type("UINT8", "uint32_data", "uint8"),
    8: _type("INT8", "int_data", "int8"),
    9: _type("BOOL", "bool_data", "bool"),
    10: _type("COMPLEX64", "complex64_data"),
    11: _type("COMPLEX128", "complex128_data"),
    STRING: _type("STRING", "str_data"),
    BYTES: _type("BYTES", "byte_data"),
}

_LAST_DATA_FIELD = Tensor.BYTE_DATA_FIELD_NUMBER

_CODE_OF = {row.dtype: code for code, row in TYPES.items() if row.dtype is not None}

# Fields whose packed form on the wire is the array's own memory, so that they can be written
# without a Python number per element (100 times faster): the number of the field in its tag.
_PACKED_TAGS = {"float_data": b"\x12", "float64_data": b"\x22", "bool_data": b"\x32"}
_NATIVE_IS_LITTLE = np.dtype("<f4").isnative


def encode(name: str, value: Array | str, *, lod: Any = None, as_bytes: bool = False) -> Tensor:
    """The wire form of a value.

    Args:
        name: the tensor's name.
        value: a text, or an array of int64, float32, int32, float64, int16, float16, uint16, uint8,
            int8 or bool. Read, never kept.
        lod: offsets, as a list or an array of whole numbers of any shape; carried unchecked.
        as_bytes: send the array as ``.npy`` bytes instead of a typed field.

    Raises:
        TypeError: the wire cannot carry such a value.
    """
    tensor = Tensor()
    if isinstance(value, str):
        tensor.elem_type = STRING
        tensor.str_data.append(value)
    elif not isinstance(value, np.ndarray):
        raise TypeError(f"tensor {name!r}: a text or an array is needed, got {type(value)}")
    elif value.ndim > MAX_AXES:
        raise TypeError(f"tensor {name!r}: an array of {value.ndim} axes cannot be sent")
    elif as_bytes:
        tensor.elem_type = BYTES
        tensor.byte_data = npy.write(value)
        tensor.shape.extend(value.shape)
    else:
        _fill(tensor, name, value)
    tensor.name = name
    if lod is not None:
        tensor.lod.extend(_offsets(name, lod))
    return tensor


def _fill(tensor: Tensor, name: str, value: Array) -> None:
    value = value.astype(value.dtype.newbyteorder("="), copy=False)
    code = _CODE_OF.get(value.dtype)
    if code is None:
        raise TypeError(f"tensor {name!r}: an array of {value.dtype} cannot be sent")
    flat = value.reshape(-1)  # an empty array may have dimensions that no wider type allows
    put(tensor, TYPES[code].field, flat.astype(np.float32) if code == FP16 else flat)
    tensor.elem_type = code
    tensor.shape.extend(value.shape)


def put(tensor: Tensor, field: str, array: Array) -> None:
    """Append an array's elements to one of the data fields, whose own dtype the array has."""
    tag = _PACKED_TAGS.get(field)
    if tag is None or not _NATIVE_IS_LITTLE:
        getattr(tensor, field).extend(array.reshape(-1).tolist())
    elif array.size:
        data = array.tobytes()
        tensor.MergeFromString(b"".join((tag, _varint(len(data)), data)))


def _varint(number: int) -> bytes:
    groups = bytearray()
    while number > 0x7F:
        groups.append(number & 0x7F | 0x80)
        number >>= 7
    groups.append(number)
    return bytes(groups)


def _offsets(name: str, lod: Any) -> list[int]:
    try:
        offsets = [index(offset) for offset in np.asarray(lod).reshape(-1).tolist()]
    except (TypeError, ValueError) as error:
        raise TypeError(f"tensor {name!r}: a lod is a list of whole numbers") from error
    if offsets and not -(2**31) <= min(offsets) <= max(offsets) < 2**31:
        raise TypeError(f"tensor {name!r}: an offset of the lod is no int32")
    return offsets


def decode(tensor: Tensor) -> tuple[Array | str, NDArray[np.int32] | None]:
    """The value of a wire tensor, and its lod.

    Returns:
        A text for STRING (all its parts joined), else an array; those read from ``.npy`` bytes are
        read-only. The lod is an int32 array of shape ``(2, n)``, or None.

    Raises:
        PackageError: the tensor contradicts itself, or its type is not supported.
    """
    code = tensor.elem_type
    row = TYPES.get(code)
    if row is None:
        raise _wrong(tensor, f"the element type {code} is unknown")
    data: Any = ()
    for field, content in tensor.ListFields():
        if field.name == row.field:
            data = content
        elif field.number <= _LAST_DATA_FIELD:
            raise _wrong(tensor, f"{row.name} belongs into {row.field}, not into {field.name}")
    value: Array | str
    if code == STRING:
        value = "".join(data)
    elif code == BYTES:
        value = _from_npy(tensor, data or b"")
    elif row.dtype is None:
        raise _wrong(tensor, f"the element type {row.name} is not supported")
    else:
        value = _from_field(tensor, data, row.dtype)
    return value, _lod(tensor, value) if tensor.lod else None


def _from_npy(tensor: Tensor, data: bytes) -> Array:
    try:
        return npy.read(data)
    except ValueError as error:
        raise _wrong(tensor, str(error)) from error


def _from_field(tensor: Tensor, data: Any, dtype: np.dtype[Any]) -> Array:
    shape = list(tensor.shape)
    if len(shape) > MAX_AXES:
        raise _wrong(tensor, f"{len(shape)} axes are more than {MAX_AXES}")
    if shape and min(shape) < 0:
        raise _wrong(tensor, f"the shape {shape} has a negative dimension")
    if prod(shape) != len(data):
        raise _wrong(tensor, f"the shape {shape} needs {prod(shape)} elements, got {len(data)}")
    wide = np.array(data) if data else np.empty(0, dtype)
    try:
        return _narrowed(tensor, wide, dtype).reshape(shape)
    except ValueError as error:  # no elements, yet the other dimensions overflow numpy's own size
        raise _wrong(tensor, f"the shape {shape} is too large") from error


def _narrowed(tensor: Tensor, wide: Array, dtype: np.dtype[Any]) -> Array:
    """The array in the element type, whose values must all fit."""
    if dtype == np.float16:
        with np.errstate(over="ignore"):
            half = wide.astype(dtype)
        if np.any(np.isinf(half) & np.isfinite(wide)):
            raise _wrong(tensor, "a value is outside of the range of FP16")
        return half
    if dtype.itemsize < 4 and dtype.kind in "iu" and wide.size:
        limits = np.iinfo(dtype)
        if wide.min() < limits.min or wide.max() > limits.max:
            raise _wrong(tensor, f"a value is outside of {limits.min} to {limits.max}")
    return wide.astype(dtype, copy=False)


def _lod(tensor: Tensor, value: Array | str) -> NDArray[np.int32]:
    offsets = list(tensor.lod)
    if len(offsets) % 2:
        raise _wrong(tensor, f"a lod has an even number of offsets, got {len(offsets)}")
    if offsets[0] != 0 or any(b < a for a, b in pairwise(offsets)):
        raise _wrong(tensor, f"a lod starts at 0 and never decreases, got {offsets[:8]}")
    if isinstance(value, np.ndarray) and value.shape[:1] != (offsets[-1],):
        raise _wrong(tensor, f"the lod ends at {offsets[-1]}, but the shape is {value.shape}")
    return np.array(offsets, dtype=np.int32).reshape(2, -1)


def _wrong(tensor: Tensor, text: str) -> PackageError:
    return PackageError(f"tensor {tensor.name[:64]!r}: {text}")
