"""Wire tensors whose fields contradict each other in every way, to arrays and back."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import numpy as np

from penstock.errors import PackageError
from penstock.protocols import npy, tensors
from penstock.protocols.pb import Tensor
from tests.fuzz.choices import Choices

FIELDS = [row.field for row in tensors.TYPES.values()]
INTEGERS = (0, 1, -1, 2, 3, 4, 127, 128, -129, 65535, 65536, 2**31 - 1, -(2**31))
LONG = (*INTEGERS, 2**31, 2**32, 2**63 - 1, -(2**63))
FLOATS = (0.0, -0.0, 1.0, 1.5, 65504.0, 65520.0, 1e38, float("inf"), float("-inf"), float("nan"))
SIZES = (0, 1, 2, 3, 4, 6, 8, 30)


def elements(field: str, choices: Choices) -> Any:
    """What one of the data fields takes."""
    if field == "byte_data":
        array = np.zeros(choices.octet() % 5, choices.of(("f4", "i8", "?", "c8", "U2")))
        return npy.write(array)[: 200 - choices.octet() % 8] + choices.some(choices.octet() % 4)
    count = choices.of(SIZES)
    if field == "str_data":
        return [choices.some(choices.octet() % 8).decode("latin-1") for _ in range(count)]
    if field == "bool_data":
        return [bool(choices.octet() & 1) for _ in range(count)]
    if field.startswith(("float", "complex")):
        return [choices.of(FLOATS) for _ in range(count)]
    if field == "uint32_data":
        return [choices.of(LONG) % 2**32 for _ in range(count)]
    return [choices.of(LONG if field == "int64_data" else INTEGERS) for _ in range(count)]


def made(choices: Choices) -> Tensor:
    """A tensor by the choices."""
    tensor = Tensor(name="x", elem_type=choices.octet() % 16 - 1)
    for _ in range(1 + choices.octet() % 8 // 7):
        own = tensors.TYPES.get(tensor.elem_type)
        by_chance = own is None or choices.octet() & 0xF0 == 0xF0
        field = choices.of(FIELDS) if by_chance or own is None else own.field
        value = elements(field, choices)
        if field == "byte_data":
            tensor.byte_data = value
        else:
            getattr(tensor, field).extend(value)
    how = choices.octet()
    if how < 0x60:
        tensor.shape.extend(
            len(data) for field, data in tensor.ListFields() if field.name in FIELDS
        )
    elif how < 0xE0:
        tensor.shape.extend(choices.of(INTEGERS) for _ in range(how % 20))
    if choices.octet() & 1:
        tensor.lod.extend(choices.of(INTEGERS) for _ in range(choices.octet() % 8))
    return tensor


def run(data: bytes) -> Hashable:
    tensor = made(Choices(data))
    size = tensor.ByteSize()
    try:
        value, lod = tensors.decode(tensor)
    except PackageError as error:
        return str(error)[:32]
    if isinstance(value, str):
        assert tensors.decode(tensors.encode("x", value, lod=lod))[0] == value
        return "text", len(value) > 0
    assert value.nbytes <= 8 * size
    as_bytes = tensor.elem_type == tensors.BYTES  # which has kinds that no field has
    again, lod_again = tensors.decode(tensors.encode("x", value, lod=lod, as_bytes=as_bytes))
    assert isinstance(again, np.ndarray)
    assert again.tobytes() == value.tobytes()
    assert again.shape == value.shape
    assert (lod is None) == (lod_again is None)
    return value.dtype.str, value.ndim, lod is not None


SEEDS = [bytes((1 + code, 0, 0, 3, 1, 2, 3, 4, 5, 6)) for code in range(14)] + [
    bytes((2, 0, 0, 2, 1, 2, 0x62, 2, 2)),
    bytes((2, 0, 0, 1, 1, 0, 1, 2, 0, 1)),
    bytes((0x0E, 0, 0, 3, 0, 0)),
]
