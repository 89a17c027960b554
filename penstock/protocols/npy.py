"""Reads and writes one array as the bytes of a ``.npy`` file.

numpy's reader is not used for callers' bytes: it passes the header to Python's parser. Here a
regular expression matches the whole header, and nothing is allocated before the size in the header
has been compared with the size of the data.

Format: ``numpy.lib.format``, versions 1.0 to 3.0. Pure; safe from any thread.
"""

from __future__ import annotations

import re
from functools import lru_cache
from math import prod
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Array: TypeAlias = NDArray[Any]

MAX_AXES = 16
MAX_HEADER_BYTES = 4096

_ALIGNMENT = 64
_MAX_CODE_POINT = 0x10FFFF
_ITEM_SIZES = {"b": (1,), "i": (1, 2, 4, 8), "u": (1, 2, 4, 8), "f": (2, 4, 8), "c": (8, 16)}
_SIZE = r"(?:0|[1-9][0-9]{0,9})"
_HEADER = re.compile(
    rb"\s*\{(?:\s*(?:"
    rb"""(["'])descr\1\s*:\s*(["'])(?P<descr>[<>|=]?[biufcSU][0-9]{1,9})\2"""
    rb"""|(["'])fortran_order\4\s*:\s*(?P<fortran>True|False)"""
    rb"""|(["'])shape\6\s*:\s*\((?P<shape>(?:\s*%b\s*,)*(?:(?<=,)\s*%b)?\s*)\)"""
    rb")\s*(?:,|(?=\}))){3}\s*\}\s*" % (_SIZE.encode(), _SIZE.encode())
)
"""Matches a header of three members, each once, in any order."""


def read(data: bytes | memoryview) -> Array:
    """Read the array in the bytes of a ``.npy`` file.

    Args:
        data: exactly the file's bytes.

    Returns:
        An array in native byte order: a read-only view of ``data`` if its alignment and byte order
        allow, else a copy. Supported are bool, numbers, complex numbers and texts.

    Raises:
        ValueError: the bytes are anything else, such as an archive, pickled objects, records, or an
            array whose size differs from its header.
    """
    view = memoryview(data)
    if bytes(view[:7]) not in (b"\x93NUMPY\x01", b"\x93NUMPY\x02", b"\x93NUMPY\x03"):
        raise ValueError("these are not the bytes of a .npy file of a known version")
    begin = 10 if view[6] == 1 else 12
    start = begin + int.from_bytes(view[8:begin], "little")
    if not begin <= start <= min(begin + MAX_HEADER_BYTES, len(view)):
        raise ValueError(f"the .npy header is cut off, or over {MAX_HEADER_BYTES} bytes")
    dtype, fortran_order, shape = _parse_header(bytes(view[begin:start]))
    needed = prod(shape) * dtype.itemsize
    if needed != len(view) - start:
        raise ValueError(f"the header promises {needed} bytes, but {len(view) - start} follow")
    array: Array = np.frombuffer(data, dtype, prod(shape), start) if needed else np.empty(0, dtype)
    # Bit patterns that would make numpy fail later:
    if array.size and dtype.kind == "b" and array.view(np.uint8).max() > 1:
        raise ValueError("a truth value is neither 0 nor 1")
    if array.size and dtype.kind == "U":
        code_points = array.view(np.dtype(np.uint32).newbyteorder(dtype.byteorder))
        if code_points.max() > _MAX_CODE_POINT:
            raise ValueError("a text holds a number that is no character")
    array = array.reshape(shape[::-1]).T if fortran_order else array.reshape(shape)
    if not dtype.isnative or not array.flags.aligned:
        array = array.astype(dtype.newbyteorder("="))
    array.flags.writeable = False
    return array


def write(array: Array) -> bytes:
    """Encode an array as a version 1.0 file; an array that is not contiguous is copied first.

    Raises:
        TypeError: the dtype is one that ``read`` refuses, such as objects, records or dates.
    """
    if not _is_known(array.dtype.kind, array.dtype.itemsize):
        raise TypeError(f"an array of {array.dtype} cannot be sent as .npy bytes")
    fortran = array.flags.f_contiguous and not array.flags.c_contiguous
    header = (
        f"{{'descr': {array.dtype.str!r}, 'fortran_order': {fortran}, 'shape': {array.shape!r}, }}"
    )
    header += " " * (-(len(header) + 11) % _ALIGNMENT) + "\n"
    size = len(header).to_bytes(2, "little")
    return b"\x93NUMPY\x01\x00" + size + header.encode() + array.tobytes("F" if fortran else "C")


def _is_known(kind: str, size: int) -> bool:
    sizes = _ITEM_SIZES.get(kind)
    return size in sizes if sizes else kind in "SU" and 0 < size < 2**28


# Cached: arrays of one client have similar headers, and parsing one takes longer than the rest.
@lru_cache(maxsize=64)
def _parse_header(header: bytes) -> tuple[np.dtype[Any], bool, tuple[int, ...]]:
    found = _HEADER.fullmatch(header)
    if found is None or None in found.group("descr", "fortran", "shape"):
        raise ValueError("the .npy header is not that of an array of numbers or texts")
    descr = found["descr"].decode()
    shape = tuple(int(size) for size in found["shape"].split(b",") if size.strip())
    if len(shape) > MAX_AXES or max(shape, default=0) >= 2**31:
        raise ValueError(f"the .npy shape has over {MAX_AXES} axes, or a dimension over 31 bits")
    kind_and_size = descr.lstrip("<>|=")
    if not _is_known(kind_and_size[0], int(kind_and_size[1:])):
        raise ValueError("the .npy item size is not known for its type")
    return np.dtype(descr), found["fortran"] == b"True", shape
