"""One array as the bytes of a ``.npy`` file: our own reader, and a writer.

The reader looks at every byte of the header itself, evaluates nothing, knows no pickles, and
allocates nothing before the header's promise has been compared with the bytes that are there.

Format: ``numpy.lib.format``, versions 1.0 to 3.0.
"""

from __future__ import annotations

import re
from functools import lru_cache
from math import prod
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Array: TypeAlias = NDArray[Any]

MAGIC = b"\x93NUMPY"
MAX_AXES = 16
MAX_HEADER_BYTES = 4096

_ALIGNMENT = 64
_MAX_CODE_POINT = 0x10FFFF
_ITEM_SIZES = {
    "b": (1,),
    "i": (1, 2, 4, 8),
    "u": (1, 2, 4, 8),
    "f": (2, 4, 8),
    "c": (8, 16),
}
_SIZE = re.compile(r"0|[1-9][0-9]{0,9}")
_DESCR = re.compile(r"([<>|=]?)([biufcSU])([0-9]{1,9})")
_MEMBER = re.compile(
    r"""\s*(?P<quote>['"])(?P<key>descr|fortran_order|shape)(?P=quote)\s*:\s*"""
    r"""(?:(?P<end>['"])(?P<descr>[^'"]*)(?P=end)|(?P<flag>True|False)|\((?P<shape>[0-9,\s]*)\))"""
    r"\s*(?:,|$)"
)


def read(data: bytes | memoryview) -> Array:
    """The array in a ``.npy`` file's bytes.

    Args:
        data: the whole file and nothing more.

    Returns:
        A read-only view of ``data`` where its alignment and byte order allow, else a copy. In
        either case in native byte order. Truth values, numbers, complex numbers and texts.

    Raises:
        ValueError: the bytes are anything else, such as an archive, pickled objects, records, or
            an array of another size than its header says.
    """
    header, start = _header(memoryview(data))
    dtype, fortran_order, shape = _promise(header)
    needed = prod(shape) * dtype.itemsize
    if needed != len(data) - start:
        raise ValueError(f"the header promises {needed} bytes, but {len(data) - start} follow")
    array: Array = np.frombuffer(data, dtype, prod(shape), start) if needed else np.empty(0, dtype)
    _check_contents(array)
    array = array.reshape(shape[::-1]).T if fortran_order else array.reshape(shape)
    if not dtype.isnative or not array.flags.aligned:
        array = array.astype(dtype.newbyteorder("="))
    array.flags.writeable = False
    return array


def write(array: Array) -> bytes:
    """The bytes of a version 1.0 file; an array that is not contiguous is copied first.

    Raises:
        TypeError: objects, records, dates and other types that ``read`` would refuse.
    """
    dtype = array.dtype
    legal = _ITEM_SIZES.get(dtype.kind)
    if dtype.itemsize not in legal if legal else dtype.kind not in "SU" or not dtype.itemsize:
        raise TypeError(f"an array of {dtype} cannot be sent as .npy bytes")
    fortran_order = array.flags.f_contiguous and not array.flags.c_contiguous
    header = (
        f"{{'descr': {dtype.str!r}, 'fortran_order': {fortran_order}, 'shape': {array.shape!r}, }}"
    )
    length = len(MAGIC) + 4 + len(header) + 1
    header += " " * (-length % _ALIGNMENT) + "\n"
    contents = array.tobytes("F" if fortran_order else "C")
    size = len(header).to_bytes(2, "little")
    return b"".join((MAGIC, b"\x01\x00", size, header.encode("ascii"), contents))


def _header(data: memoryview) -> tuple[str, int]:
    """The header's text, and where the array starts."""
    if bytes(data[:2]) == b"PK":
        raise ValueError("this is an archive, not a .npy file")
    if bytes(data[:6]) != MAGIC:
        raise ValueError("these are not the bytes of a .npy file")
    version = bytes(data[6:8])
    if version not in (b"\x01\x00", b"\x02\x00", b"\x03\x00"):
        raise ValueError("the .npy version is unknown")
    start = 10 if version == b"\x01\x00" else 12
    length = int.from_bytes(data[8:start], "little")
    if length > MAX_HEADER_BYTES:
        raise ValueError(f"the .npy header is over {MAX_HEADER_BYTES} bytes")
    header = bytes(data[start : start + length])
    if len(data) < start or len(header) != length:
        raise ValueError("the .npy header is cut off")
    try:
        return header.decode("ascii"), start + length
    except UnicodeDecodeError as error:
        raise ValueError("the .npy header is not plain text") from error


@lru_cache(
    maxsize=64
)  # arrays of one client are alike, and reading this takes longer than the rest
def _promise(header: str) -> tuple[np.dtype[Any], bool, tuple[int, ...]]:
    header = header.strip()
    members: dict[str, str] = {}
    rest = header[1:-1].strip() if header.startswith("{") and header.endswith("}") else ""
    while rest:
        member = _MEMBER.match(rest)
        if member is None or member["key"] in members:
            raise ValueError("the .npy header is not the usual one")
        kind = {"descr": "descr", "fortran_order": "flag", "shape": "shape"}[member["key"]]
        if member[kind] is None:
            raise ValueError(f"the .npy header's {member['key']} cannot be read")
        members[member["key"]] = member[kind]
        rest = rest[member.end() :]
    if len(members) != 3:
        raise ValueError("the .npy header must hold descr, fortran_order and shape")
    return _dtype(members["descr"]), members["fortran_order"] == "True", _shape(members["shape"])


def _dtype(descr: str) -> np.dtype[Any]:
    found = _DESCR.fullmatch(descr)
    if found is None:
        raise ValueError("the .npy bytes hold no numbers or texts")
    order, kind, size = found[1], found[2], int(found[3])
    if size not in _ITEM_SIZES[kind] if kind in _ITEM_SIZES else not 0 < size < 2**28:
        raise ValueError("the .npy item size is not known for its type")
    return np.dtype(f"{order}{kind}{size}")


def _shape(text: str) -> tuple[int, ...]:
    sizes = text.split(",")
    if not sizes[-1].strip():
        sizes.pop()
    elif len(sizes) == 1:
        raise ValueError("the .npy shape is no tuple")
    shape = []
    for size in sizes:
        word = size.strip()
        # A zero in front is no number in Python, and so none to numpy, which writes these headers.
        if _SIZE.fullmatch(word) is None or int(word) >= 2**31:
            raise ValueError("the .npy shape has a dimension that is no number below 2**31")
        shape.append(int(word))
    if len(shape) > MAX_AXES:
        raise ValueError(f"the .npy shape has more than {MAX_AXES} axes")
    return tuple(shape)


def _check_contents(array: Array) -> None:
    """Refuse bit patterns that numpy itself would stumble over later."""
    if not array.size:
        return
    if array.dtype.kind == "b" and array.view(np.uint8).max() > 1:
        raise ValueError("a truth value is neither 0 nor 1")
    if array.dtype.kind == "U":
        code_points = array.view(np.dtype(np.uint32).newbyteorder(array.dtype.byteorder))
        if code_points.max() > _MAX_CODE_POINT:
            raise ValueError("a text holds a number that is no character")
