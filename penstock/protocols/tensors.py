"""Wire tensors to numpy values and back, with the validation of each tensor.

A tensor has the number of its element type, and each type has one data field: see ``TYPES``. Sizes
are compared as Python ints, which never overflow, before anything of that size is allocated.
Source: ``docs/compatibility.md`` (tensors).

Pure; safe from any thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from operator import index
from sys import getsizeof
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from penstock.errors import PackageError, TooLarge, Undecodable
from penstock.protocols import npy
from penstock.protocols.pb import Tensor
from penstock.protocols.protobuf import (
    LENGTH,
    VARINT,
    Buffer,
    Walker,
    count_varints,
    encode_field,
    few_varints,
    pack_numbers,
    pack_varints,
    read_varints,
    varint,
)

Array: TypeAlias = NDArray[Any]

MAX_AXES = 16
MAX_TEXTS: Final = 10_000
"""Maximum texts of a text tensor."""
MOST_DECODED: Final = 256 << 20
"""Maximum memory of the elements of one request, or twice the request's size if that is more: a
number of one byte in a message takes eight bytes in memory."""

FP16, BF16, STRING, BYTES = 5, 6, 12, 13


class ElementType(NamedTuple):
    """One element type: its name, its data field, and the array's dtype; None for types that are
    not arrays or not supported.
    """

    name: str
    field: str
    dtype: np.dtype[Any] | None = None


TYPES: dict[int, ElementType] = {
    0: ElementType("INT64", "int64_data", np.dtype("int64")),
    1: ElementType("FP32", "float_data", np.dtype("float32")),
    2: ElementType("INT32", "int_data", np.dtype("int32")),
    3: ElementType("FP64", "float64_data", np.dtype("float64")),
    4: ElementType("INT16", "int_data", np.dtype("int16")),
    FP16: ElementType("FP16", "float_data", np.dtype("float16")),
    BF16: ElementType("BF16", "uint32_data", np.dtype("uint16")),  # raw bit patterns
    7: ElementType("UINT8", "uint32_data", np.dtype("uint8")),
    8: ElementType("INT8", "int_data", np.dtype("int8")),
    9: ElementType("BOOL", "bool_data", np.dtype("bool")),
    10: ElementType("COMPLEX64", "complex64_data"),
    11: ElementType("COMPLEX128", "complex128_data"),
    STRING: ElementType("STRING", "str_data"),
    BYTES: ElementType("BYTES", "byte_data"),
}

_CODE_OF = {row.dtype: code for code, row in TYPES.items() if row.dtype is not None}

NUMBERS: dict[str, np.dtype[Any]] = {
    "int64_data": np.dtype("<i8"),
    "float_data": np.dtype("<f4"),
    "int_data": np.dtype("<i4"),
    "float64_data": np.dtype("<f8"),
    "uint32_data": np.dtype("<u4"),
    "bool_data": np.dtype("?"),
    "complex64_data": np.dtype("<f4"),
    "complex128_data": np.dtype("<f8"),
    "shape": np.dtype("<i4"),
    "lod": np.dtype("<i4"),
}
"""The repeated fields of numbers, and their dtypes in memory."""

_NAMES = {each.number: each.name for each in Tensor.DESCRIPTOR.fields}
_NUMBER_OF = {name: number for number, name in _NAMES.items()}
_ELEM_TYPE = varint(_NUMBER_OF["elem_type"] << 3 | VARINT)
_INSTEAD = {"u": "int64", "f": "float64", "c": "two arrays of floats", "O": "one type of numbers"}
"""The supported type to which an unsupported array can be converted, by the kind of its dtype."""
_SHOWN = 8  # maximum unknown members in an error, with 40 characters of each
_NO_NUMBERS = np.empty(0, np.int32)


class WireTensor:
    """A received tensor, or one to send; not validated.

    Attributes:
        name: the tensor's name.
        elem_type: the number of its element type.
        shape: dimensions; a flat array of int32.
        lod: offsets; a flat array of int32.
        data: the data fields that are not empty, by name: a flat array, a list of texts, or bytes.
        unknown: names of unknown members.
    """

    __slots__ = ("data", "elem_type", "lod", "name", "shape", "unknown")

    def __init__(self, name: str = "", elem_type: int = 0) -> None:
        self.name = name
        self.elem_type = elem_type
        self.shape: Array = _NO_NUMBERS
        self.lod: Array = _NO_NUMBERS
        self.data: dict[str, Any] = {}
        self.unknown: Sequence[str] = ()

    def __repr__(self) -> str:
        return f"<WireTensor {self.name[:64]!r} of type {self.elem_type}, {[*self.data]}>"

    @property
    def decoded_bytes(self) -> int:
        """Memory of its arrays and texts in bytes."""
        return sum(
            each.nbytes if isinstance(each, np.ndarray) else sum(map(getsizeof, each))
            for each in self.data.values()
            if not isinstance(each, bytes)
        )

    def encode(self) -> list[Buffer]:
        """Encode the protobuf message, in pieces."""
        pieces: list[Buffer] = []
        for name, content in self.data.items():
            number = _NUMBER_OF[name]
            if name == "str_data":
                for text in content:
                    pieces += encode_field(number, [text.encode()])
            else:
                whole = [content] if name == "byte_data" else pack_numbers(content, NUMBERS[name])
                pieces += encode_field(number, whole)
        if self.elem_type:
            pieces += (_ELEM_TYPE, varint(self.elem_type % 2**64))
        for name, numbers in (("shape", self.shape), ("lod", self.lod)):
            if numbers.size:
                pieces += encode_field(_NUMBER_OF[name], pack_varints(numbers))
        if self.name:
            pieces += encode_field(_NUMBER_OF["name"], [self.name.encode()])
        return pieces

    def message(self) -> Tensor:
        """Make a ``pb.Tensor`` with the same fields."""
        return Tensor.FromString(b"".join(self.encode()))


class DecodeBudget:
    """The remaining memory for the elements of one request."""

    def __init__(self, size: int) -> None:
        self._left = max(MOST_DECODED, 2 * size)

    def array(self, count: int, dtype: np.dtype[Any]) -> Array:
        """Allocate an array of ``count`` elements.

        Raises:
            TooLarge: the array exceeds the budget.
        """
        self._left -= count * dtype.itemsize
        if self._left < 0:
            raise TooLarge("the numbers of the request take more memory than one request may have")
        return np.empty(count, dtype)


def read(walker: Walker, start: int, end: int, budget: DecodeBudget) -> WireTensor:
    """Decode the protobuf message of a tensor between two positions.

    Raises:
        ValueError: the bytes are not such a message; includes UnicodeDecodeError.
        Undecodable: the tensor has too many texts.
        TooLarge: its elements exceed the budget.
    """
    tensor = WireTensor()
    data = walker.data
    parts: dict[str, list[tuple[int, int, int]]] = {}
    texts: list[str] = []
    for number, wire_type, begin, stop in walker.fields(start, end):
        name = _NAMES.get(number, "")
        if name in NUMBERS:
            parts.setdefault(name, []).append((wire_type, begin, stop))
        elif wire_type == LENGTH:
            if name == "name":
                tensor.name = data[begin:stop].decode()
            elif name == "byte_data":
                tensor.data[name] = data[begin:stop]
            elif name == "str_data":
                texts.append(data[begin:stop].decode())
                if len(texts) > MAX_TEXTS:
                    raise Undecodable(f"a tensor has more than {MAX_TEXTS} texts")
        elif name == "elem_type" and wire_type == VARINT:
            tensor.elem_type = (begin + 2**31) % 2**32 - 2**31
    if texts:
        tensor.data["str_data"] = texts
    if not tensor.data.get("byte_data", True):
        del tensor.data["byte_data"]
    for name, pieces in parts.items():
        numbers = numbers_of(data, NUMBERS[name], pieces, budget)
        if name in ("shape", "lod"):
            setattr(tensor, name, numbers)
        elif numbers.size:
            tensor.data[name] = numbers
    return tensor


def of_message(message: Tensor) -> WireTensor:
    """Convert a ``pb.Tensor`` of a user."""
    data = message.SerializeToString()
    return read(Walker(data, len(data)), 0, len(data), DecodeBudget(8 * len(data)))


def numbers_of(
    data: bytes, dtype: np.dtype[Any], pieces: list[tuple[int, int, int]], budget: DecodeBudget
) -> Array:
    """Decode the numbers of one field, which may be in several pieces, packed or single.

    Args:
        data: the message.
        dtype: dtype of the numbers in memory; floats have the same size in the message.
        pieces: wire type, start and end of each piece, from a Walker.
        budget: the budget for the array.

    Raises:
        ValueError: a number is truncated.
        TooLarge: the array exceeds the budget.
    """
    fixed = dtype.itemsize if dtype.kind == "f" else 0
    if len(pieces) == 1 and not fixed and pieces[0][0] == LENGTH:
        few = few_varints(data, *pieces[0][1:])
        if few is not None:
            numbers = budget.array(len(few), dtype)
            numbers[:] = few
            return numbers
    single = {0: VARINT, 4: 5, 8: 1}[fixed]
    counts: list[int] = []
    for wire_type, begin, stop in pieces:
        if wire_type == LENGTH:
            if fixed and (stop - begin) % fixed:
                raise ValueError("a packed number is cut off")
            counts.append((stop - begin) // fixed if fixed else count_varints(data, begin, stop))
        else:
            counts.append(wire_type == single)  # another wire type makes it an unknown field
    numbers = budget.array(sum(counts), dtype)
    done = 0
    for count, (wire_type, begin, stop) in zip(counts, pieces, strict=True):
        if count:
            into = numbers[done : done + count]
            if fixed:
                into[:] = np.frombuffer(data, dtype, count, begin)
            elif wire_type == LENGTH:
                read_varints(data, begin, stop, into)
            else:
                into[:] = (
                    np.array([begin], np.uint64).view(np.int64) if dtype.kind != "b" else begin
                )
            done += count
        elif wire_type == LENGTH and stop > begin:
            raise ValueError("a packed number is cut off")
    return numbers


def encode(name: str, value: Array | str, *, lod: Any = None, as_bytes: bool = False) -> WireTensor:
    """Convert a value to a tensor.

    Args:
        name: the tensor's name.
        value: a text, or an array of int64, float32, int32, float64, int16, float16, uint16, uint8,
            int8 or bool. It is kept by reference until the tensor is encoded, and never changed.
        lod: offsets, as a list or an array of whole numbers of any shape; not validated.
        as_bytes: send the array as ``.npy`` bytes instead of a typed field.

    Raises:
        TypeError: tensors do not support the value.
    """
    tensor = WireTensor(name)
    if isinstance(value, str):
        tensor.elem_type = STRING
        tensor.data["str_data"] = [value]
    elif not isinstance(value, np.ndarray):
        raise TypeError(f"tensor {name!r}: a text or an array is needed, got {type(value)}")
    elif value.ndim > MAX_AXES:
        raise TypeError(f"tensor {name!r}: an array of {value.ndim} axes cannot be sent")
    else:
        tensor.shape = np.array(value.shape, np.int64)
        if as_bytes:
            tensor.elem_type = BYTES
            tensor.data["byte_data"] = npy.write(value)
        else:
            _fill(tensor, value)
    if lod is not None:
        tensor.lod = _offsets(name, lod)
    return tensor


def _fill(tensor: WireTensor, value: Array) -> None:
    value = value.astype(value.dtype.newbyteorder("="), copy=False)
    code = _CODE_OF.get(value.dtype)
    if code is None:
        text = f"tensor {tensor.name!r}: an array of {value.dtype} cannot be sent"
        instead = _INSTEAD.get(value.dtype.kind)
        raise TypeError(f"{text}: convert it to {instead}" if instead else text)
    flat = value.reshape(-1)  # an empty array's dimensions may be too large for a wider dtype
    tensor.elem_type = code
    if flat.size:
        tensor.data[TYPES[code].field] = flat.astype(np.float32) if code == FP16 else flat


def _offsets(name: str, lod: Any) -> Array:
    try:
        offsets = [index(offset) for offset in np.asarray(lod).reshape(-1).tolist()]
    except (TypeError, ValueError) as error:
        raise TypeError(f"tensor {name!r}: a lod is a list of whole numbers") from error
    if offsets and not -(2**31) <= min(offsets) <= max(offsets) < 2**31:
        raise TypeError(f"tensor {name!r}: an offset of the lod is no int32")
    return np.array(offsets, np.int32)


def decode(tensor: WireTensor | Tensor) -> tuple[Array | str, NDArray[np.int32] | None]:
    """Return the value of a tensor, and its lod.

    Args:
        tensor: a received tensor; its array is not copied if it has the right dtype.

    Returns:
        A text for STRING (its parts joined), else an array; one from ``.npy`` bytes is read-only.
        The lod is an int32 array of shape ``(2, n)``, or None.

    Raises:
        PackageError: the tensor is inconsistent, or its type is not supported.
    """
    if isinstance(tensor, Tensor):
        tensor = of_message(tensor)
    code = tensor.elem_type
    row = TYPES.get(code)
    if row is None:
        raise _wrong(tensor, f"the element type {code} is unknown")
    data: Any = ()
    for field, content in tensor.data.items():
        if field != row.field:
            raise _wrong(tensor, f"{row.name} belongs into {row.field}, not into {field}")
        data = content
    value: Array | str
    if code == STRING:
        value = "".join(data)
    elif code == BYTES:
        try:
            value = npy.read(data or b"")
        except ValueError as error:
            raise _wrong(tensor, str(error)) from error
    elif row.dtype is None:
        raise _wrong(tensor, f"the element type {row.name} is not supported")
    else:
        value = _from_field(tensor, data, row.dtype)
    return value, _lod(tensor, value) if tensor.lod.size else None


def _from_field(tensor: WireTensor, data: Any, dtype: np.dtype[Any]) -> Array:
    if tensor.shape.size > MAX_AXES:
        raise _wrong(tensor, f"{tensor.shape.size} axes are more than {MAX_AXES}")
    shape = tensor.shape.tolist()
    if shape and min(shape) < 0:
        raise _wrong(tensor, f"the shape {shape} has a negative dimension")
    if prod(shape) != len(data):
        text = f"the shape {shape} needs {prod(shape)} elements, got {len(data)}"
        raise _wrong(tensor, text + unknown_members(tensor))
    wide = data if len(data) else np.empty(0, dtype)
    try:
        return _narrowed(tensor, wide, dtype).reshape(shape)
    except ValueError as error:  # no elements, yet the other dimensions overflow numpy's own size
        raise _wrong(tensor, f"the shape {shape} is too large") from error


def _narrowed(tensor: WireTensor, wide: Array, dtype: np.dtype[Any]) -> Array:
    """Cast an array to the element type; all values must be in its range."""
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


def _lod(tensor: WireTensor, value: Array | str) -> NDArray[np.int32]:
    offsets = tensor.lod
    if offsets.size % 2:
        raise _wrong(tensor, f"a lod has an even number of offsets, got {offsets.size}")
    if offsets[0] != 0 or bool((offsets[1:] < offsets[:-1]).any()):
        raise _wrong(tensor, f"a lod starts at 0 and never decreases, got {offsets[:8].tolist()}")
    if isinstance(value, np.ndarray) and value.shape[:1] != (int(offsets[-1]),):
        raise _wrong(tensor, f"the lod ends at {offsets[-1]}, but the shape is {value.shape}")
    return offsets.reshape(2, -1)


def unknown_members(tensor: WireTensor | Tensor) -> str:
    """Return a text about unknown members for errors about missing ones; may be empty."""
    unknown = () if isinstance(tensor, Tensor) else tensor.unknown
    names = ", ".join(repr(name[:40]) for name in unknown[:_SHOWN])
    return f" (unknown members: {names})" if names else ""


def _wrong(tensor: WireTensor, text: str) -> PackageError:
    return PackageError(f"tensor {tensor.name[:64]!r}: {text}")
