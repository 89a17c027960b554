"""Pipeline messages written byte by byte from the field numbers, without any protobuf library.

The numbers and types are those of the original's ``.proto`` (v0.7 to v0.9). This encoder shares no
code with the server, and so none of its mistakes.
"""

from __future__ import annotations

import base64
import struct
from collections.abc import Iterator
from typing import Any

# Name -> (number, kind), of Request and of Tensor.
REQUEST = {
    "key": (1, "text"),
    "value": (2, "text"),
    "tensors": (3, "tensor"),
    "name": (4, "text"),
    "method": (5, "text"),
    "logid": (6, "int"),
    "clientip": (7, "text"),
}
TENSOR = {
    "int64_data": (1, "int"),
    "float_data": (2, "float"),
    "int_data": (3, "int"),
    "float64_data": (4, "double"),
    "uint32_data": (5, "int"),
    "bool_data": (6, "int"),
    "complex64_data": (7, "float"),
    "complex128_data": (8, "double"),
    "str_data": (9, "text"),
    "byte_data": (10, "bytes"),
    "elem_type": (20, "int"),
    "shape": (21, "int"),
    "lod": (22, "int"),
    "name": (23, "text"),
}
RESPONSE = {1: "err_no", 2: "err_msg", 3: "key", 4: "value", 5: "tensors"}


def varint(number: int) -> bytes:
    """An integer; a negative one as its 64-bit complement, as in protobuf."""
    number &= 2**64 - 1
    groups = []
    while number > 0x7F:
        groups.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*groups, number])


def tagged(number: int, wire_type: int) -> bytes:
    return varint(number << 3 | wire_type)


def block(number: int, content: bytes) -> bytes:
    """A length-delimited field."""
    return tagged(number, 2) + varint(len(content)) + content


def encode(document: dict[str, Any], fields: dict[str, tuple[int, str]] = REQUEST) -> bytes:
    """The message for a document in the form of its JSON; members without a field are left out."""
    pieces: list[bytes] = []
    for name, content in document.items():
        if name in fields:
            number, kind = fields[name]
            pieces += _field(number, kind, content)
    return b"".join(pieces)


def _field(number: int, kind: str, content: Any) -> Iterator[bytes]:
    items = content if isinstance(content, list) else [content]
    if kind == "text":
        yield from (block(number, item.encode()) for item in items)
    elif kind == "tensor":
        yield from (block(number, encode(item, TENSOR)) for item in items)
    elif kind == "bytes":
        yield block(number, base64.b64decode(content))
    elif not isinstance(content, list):
        yield tagged(number, 0) + varint(int(content))
    elif kind == "int":
        yield block(number, b"".join(varint(int(item)) for item in items))
    else:
        letter = {"float": "f", "double": "d"}[kind]
        yield block(number, struct.pack(f"<{len(items)}{letter}", *map(float, items)))


def decode(message: bytes) -> dict[str, Any]:
    """A Response's fields; tensors stay bytes."""
    reply: dict[str, Any] = {"err_no": 0, "err_msg": "", "key": [], "value": [], "tensors": []}
    position = 0
    while position < len(message):
        tag, position = _read_varint(message, position)
        size, position = _read_varint(message, position)
        name = RESPONSE[tag >> 3]
        if tag & 7 == 0:
            reply[name] = size - 2**64 if size >= 2**63 else size
            continue
        assert tag & 7 == 2, f"field {name} has wire type {tag & 7}"
        content = message[position : position + size]
        assert len(content) == size, "the message is cut off"
        position += size
        if name == "tensors":
            reply[name].append(content)
        elif name == "err_msg":
            reply[name] = content.decode()
        else:
            reply[name].append(content.decode())
    return reply


def _read_varint(data: bytes, position: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        byte = data[position]
        position += 1
        number |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return number, position
