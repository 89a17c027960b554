"""The JSON form of wire tensors (proto3 JSON): objects to messages and back.

Members are accepted under their proto names (``float_data``) and their lower camel names
(``floatData``); replies use the proto names and always have every member.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable
from typing import Any

import numpy as np
import orjson

from penstock.errors import Undecodable
from penstock.protocols import tensors
from penstock.protocols.json_values import (
    as_bytes,
    as_floats,
    as_integer,
    as_integers,
    as_text,
    as_texts,
    as_truths,
    check_depth,
    wrong,
)
from penstock.protocols.paddle_records import MAX_MEMBERS
from penstock.protocols.pb import Tensor

_LEVELS_AROUND_MEMBER = 3  # the body, its list of tensors, the tensor


def decode(value: Any, where: str) -> Tensor:
    """The message of one JSON object; whether it makes sense as a tensor is not asked here.

    Args:
        value: the parsed object.
        where: its place, for error texts, such as ``tensors[0]``.

    Raises:
        Undecodable: a member has the wrong JSON type or a number outside of its field's range.
    """
    if type(value) is not dict:
        raise wrong(where, "an object", value)
    if len(value) > MAX_MEMBERS:
        raise Undecodable(f"{where} has more than {MAX_MEMBERS} members")
    tensor = Tensor()
    for member, content in value.items():
        field = _FIELDS.get(member)
        if field is None:
            check_depth(content, _LEVELS_AROUND_MEMBER)
        elif content is not None:
            name, read = field
            tensor.ClearField(name)  # it may have come under its other spelling; the last one wins
            read(tensor, name, content, f"{where}.{member}")
    return tensor


def encode(tensor: Tensor) -> dict[str, Any]:
    """The JSON object of a tensor, for ``orjson.dumps`` with ``OPT_SERIALIZE_NUMPY``."""
    return {
        "int64_data": list(map(str, tensor.int64_data)),
        "float_data": _singles(tensor.float_data),
        "int_data": list(tensor.int_data),
        "float64_data": _doubles(tensor.float64_data),
        "uint32_data": list(tensor.uint32_data),
        "bool_data": list(tensor.bool_data),
        "complex64_data": _singles(tensor.complex64_data),
        "complex128_data": _doubles(tensor.complex128_data),
        "str_data": list(tensor.str_data),
        "byte_data": b64encode(tensor.byte_data).decode("ascii"),
        "elem_type": tensor.elem_type,
        "shape": list(tensor.shape),
        "lod": list(tensor.lod),
        "name": tensor.name,
    }


def _singles(numbers: Any) -> Any:
    """Float32 numbers in their own shortest digits, which orjson writes from arrays only."""
    if not numbers:
        return []
    array = np.array(numbers, dtype=np.float32)
    if np.isfinite(array).all():
        return array
    shortest = orjson.loads(orjson.dumps(array, option=orjson.OPT_SERIALIZE_NUMPY))
    return [
        _special(number) if digits is None else digits
        for digits, number in zip(shortest, array.tolist(), strict=True)
    ]


def _doubles(numbers: Any) -> list[Any]:
    values: list[float] = list(numbers)
    if np.isfinite(values).all():
        return values
    return [value if np.isfinite(value) else _special(value) for value in values]


def _special(number: float) -> str:
    if number != number:
        return "NaN"
    return "Infinity" if number > 0 else "-Infinity"


def _read_floats(tensor: Tensor, name: str, content: Any, where: str) -> None:
    wide = np.array(as_floats(content, where), dtype=np.float64)
    if name in ("float64_data", "complex128_data"):
        tensors.put(tensor, name, wide)
        return
    with np.errstate(over="ignore"):
        array = wide.astype(np.float32)
    overflown = np.isinf(array) & np.isfinite(wide)
    if overflown.any():
        raise Undecodable(f"{where}[{int(overflown.argmax())}] is too large for a float32")
    tensors.put(tensor, name, array)


def _read_integers(low: int, high: int) -> Callable[[Tensor, str, Any, str], None]:
    def read(tensor: Tensor, name: str, content: Any, where: str) -> None:
        getattr(tensor, name).extend(as_integers(content, where, low, high))

    return read


def _read_truths(tensor: Tensor, name: str, content: Any, where: str) -> None:
    tensor.bool_data.extend(as_truths(content, where))


def _read_texts(tensor: Tensor, name: str, content: Any, where: str) -> None:
    tensor.str_data.extend(as_texts(content, where))


def _read_bytes(tensor: Tensor, name: str, content: Any, where: str) -> None:
    tensor.byte_data = as_bytes(content, where)


def _read_element_type(tensor: Tensor, name: str, content: Any, where: str) -> None:
    tensor.elem_type = as_integer(content, where, -(2**31), 2**31 - 1)


def _read_name(tensor: Tensor, name: str, content: Any, where: str) -> None:
    tensor.name = as_text(content, where)


_read_int32 = _read_integers(-(2**31), 2**31 - 1)

_READERS: dict[str, Callable[[Tensor, str, Any, str], None]] = {
    "int64_data": _read_integers(-(2**63), 2**63 - 1),
    "float_data": _read_floats,
    "int_data": _read_int32,
    "float64_data": _read_floats,
    "uint32_data": _read_integers(0, 2**32 - 1),
    "bool_data": _read_truths,
    "complex64_data": _read_floats,
    "complex128_data": _read_floats,
    "str_data": _read_texts,
    "byte_data": _read_bytes,
    "elem_type": _read_element_type,
    "shape": _read_int32,
    "lod": _read_int32,
    "name": _read_name,
}


def _lower_camel(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(map(str.capitalize, others))


_FIELDS = {
    spelling: (name, read)
    for name, read in _READERS.items()
    for spelling in (name, _lower_camel(name))
}
