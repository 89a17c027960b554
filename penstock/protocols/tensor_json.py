"""The JSON form of wire tensors (proto3 JSON): objects to messages and back.

Members are accepted under their proto names (``float_data``) and their lower camel names
(``floatData``); replies use the proto names and always have every member.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import orjson

from penstock.protocols import json_values as values
from penstock.protocols.paddle_records import MAX_MEMBERS
from penstock.protocols.tensors import MAX_TEXTS, NUMBERS, Array, DecodeBudget, WireTensor

_BLOCK = 64 << 10
"""Numbers that are written between two turns of other threads."""
_LEVELS_AROUND_MEMBER = 3  # the body, its list of tensors, the tensor


def decode(value: Any, where: str, budget: DecodeBudget) -> WireTensor:
    """The tensor of one JSON object; whether it makes sense as a tensor is not asked here.

    Args:
        value: the object, parsed or not.
        where: its place, for error texts, such as ``tensors[0]``.
        budget: for its numbers.

    Raises:
        Undecodable: a member has the wrong JSON type or a number outside of its field's range.
        TooLarge: it has more numbers than there is room for.
    """
    tensor = WireTensor()
    for member, content in values.members_of(value, where, MAX_MEMBERS):
        field = _FIELDS.get(member)
        if field is None:
            values.check_depth(content, _LEVELS_AROUND_MEMBER)
        elif not values.is_null(content):
            # It may have come under its other spelling, too; the last one counts.
            _read(tensor, field, content, f"{where}.{member}", budget)
    return tensor


def _read(tensor: WireTensor, field: str, content: Any, where: str, budget: DecodeBudget) -> None:
    dtype = NUMBERS.get(field)
    if dtype is not None:
        array = values.as_array(content, where, dtype, budget)
        if field in ("shape", "lod"):
            setattr(tensor, field, array)
        else:
            _keep(tensor, field, array, array.size)
    elif field == "str_data":
        texts = values.as_texts(content, where, MAX_TEXTS)
        _keep(tensor, field, texts, len(texts))
    elif field == "byte_data":
        octets = values.as_bytes(content, where)
        _keep(tensor, field, octets, len(octets))
    elif field == "elem_type":
        tensor.elem_type = values.as_integer(content, where, -(2**31), 2**31 - 1)
    else:
        tensor.name = values.as_text(content, where)


def _keep(tensor: WireTensor, field: str, content: Any, size: int) -> None:
    tensor.data.pop(field, None)
    if size:
        tensor.data[field] = content


def encode(tensor: WireTensor) -> dict[str, Any]:
    """The JSON object of a tensor, for ``orjson.dumps``."""
    data = tensor.data
    return {
        **{field: _numbers(field, data[field]) if field in data else [] for field in _DATA},
        "str_data": data.get("str_data", []),
        "byte_data": b64encode(data.get("byte_data", b"")).decode("ascii"),
        "elem_type": tensor.elem_type,
        "shape": tensor.shape.tolist(),
        "lod": tensor.lod.tolist(),
        "name": tensor.name,
    }


def _numbers(field: str, array: Array) -> orjson.Fragment | LongList:
    """The list of them: 64-bit integers as texts, float32 numbers in their own shortest digits."""
    if array.size > _BLOCK:
        return LongList(field, array)
    return orjson.Fragment(b"[%b]" % _piece(field, array) if array.size else b"[]")


class LongList:
    """Numbers that are written in pieces."""

    def __init__(self, field: str, array: Array) -> None:
        self._field = field
        self._array = array

    def pieces(self) -> Iterator[bytes]:
        """The JSON list."""
        array = self._array
        for at in range(0, array.size, _BLOCK):
            yield b"," if at else b"["
            yield _piece(self._field, array[at : at + _BLOCK])
        yield b"]"


def pieces(value: Any) -> Iterator[bytes]:
    """The JSON of a value as ``orjson.dumps`` would write it, no part of which takes long.

    Raises:
        orjson.JSONEncodeError: a text in it is no Unicode.
    """
    if type(value) is dict:
        for index, (name, member) in enumerate(value.items()):
            yield (b"," if index else b"{") + orjson.dumps(name) + b":"
            yield from pieces(member)
        yield b"}"
    elif type(value) is list and value:
        for index, item in enumerate(value):
            yield b"," if index else b"["
            yield from pieces(item)
        yield b"]"
    elif type(value) is LongList:
        yield from value.pieces()
    elif type(value) is str:
        yield b'"'
        for at in range(0, len(value), _BLOCK):
            yield orjson.dumps(value[at : at + _BLOCK])[1:-1]
        yield b'"'
    else:
        yield orjson.dumps(value)


def _piece(field: str, array: Array) -> bytes:
    dtype = NUMBERS[field]
    array = np.ascontiguousarray(array, dtype)
    text = orjson.dumps(array, option=orjson.OPT_SERIALIZE_NUMPY)[1:-1]
    if field == "int64_data":
        return b'"%b"' % text.replace(b",", b'","')
    if dtype.kind == "f" and not np.isfinite(array).all():
        words = text.split(b",")
        for index in np.flatnonzero(~np.isfinite(array)).tolist():
            words[index] = b'"%b"' % _special(array[index])
        return b",".join(words)
    return text


def _special(number: float) -> bytes:
    if number != number:
        return b"NaN"
    return b"Infinity" if number > 0 else b"-Infinity"


def _lower_camel(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(map(str.capitalize, others))


_DATA: Final = [field for field in NUMBERS if field not in ("shape", "lod")]
_FIELDS = {
    spelling: name
    for name in (*NUMBERS, "str_data", "byte_data", "elem_type", "name")
    for spelling in (name, _lower_camel(name))
}
