"""What a frame's body may say: plain values and arrays, typed, without pickles.

    body     = length of the plain part (4 octets) | the plain part | large parts, in order
    plain    = one MessagePack value, in which
      nil, booleans, integers, floats, texts and octets   are themselves
      an array, a map (whose keys are texts)               is a list, a dict
      an array that begins with a mark of a tuple          is a tuple of the rest
      an array that begins with a mark of a dict           is a dict: key, value, key, value
      an array that begins with a mark of objects          is numpy's: a list of axes, plain scalars
    its extensions, by their codes:
      TUPLE, DICT, OBJECTS     nothing: the marks
      BIG_INT, SURROGATES      octets, signed; a text as UTF-8 that may hold halves of pairs
      NUMPY_STR, NUMPY_BYTES   octets: numpy's own texts and bytes
      SCALAR                   dtype, octets
      ARRAY                    head, octets
      PART_ARRAY               head; its octets are the next large part
      SLAB_ARRAY               head, a Ref
      BLOB                     length (4 octets), the name of its type, octets
      PART_BLOB                the same, but 8 octets that say how long the next large part is
    head     = dtype, axes (1 octet), 8 octets each; 128 more axes say that this is the transpose:
               it, and not the array, is in C order
    dtype    = length (1 octet), as numpy's ``dtype.str`` writes it

All our numbers are little-endian. A value is a tree: what stands in it twice is written twice,
except large arrays, which are placed once.

Decides which values travel and how; must not know what they mean, nor what is in a blob: nothing
here opens one. Guarantees: a value comes back equal, with its types, and an array in C or Fortran
order in that order (others, and those of objects, in C order), as sums depend on it; equal bytes
for one value whenever it is written; any bytes give a value or a FrameError, in memory in
proportion to them; nothing is evaluated; at most MAX_DEPTH levels of nesting, in either direction.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from struct import Struct
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from penstock.executors.processes.frame.frames import FrameError

Array: TypeAlias = NDArray[Any]
Buffer: TypeAlias = bytes | bytearray | memoryview
Fetched: TypeAlias = Buffer | NDArray[np.uint8]

LARGE = 64 * 1024
"""Bytes from which on an array may go to a slab, or is a part of its own, which is not copied."""
MAX_DEPTH = 64

TURNED = 128
"""Added to the number of axes, of which numpy allows fewer."""

TUPLE, DICT, OBJECTS, BIG_INT, SURROGATES, NUMPY_STR, NUMPY_BYTES, SCALAR = range(1, 9)
ARRAY, PART_ARRAY, SLAB_ARRAY, BLOB, PART_BLOB = range(9, 14)

KEY_TYPES = frozenset((type(None), bool, int, float, str, bytes))

LENGTH = Struct("<I")
PART_LENGTH = Struct("<Q")
REF = Struct("<IIQQ")

CHECKED_KINDS = ("b", "U")
"""Kinds with bytes that are no value and that numpy itself would stumble over.

They are looked at on arrival, and never stand in memory that their sender could still change.
"""
_FIXED = (
    *("|b1", "|i1", "|u1"),
    *(order + name for order in "<>" for name in ("i2", "i4", "i8", "u2", "u4", "u8")),
    *(order + name for order in "<>" for name in ("f2", "f4", "f8", "f16")),
    *(order + name for order in "<>" for name in ("c8", "c16", "c32")),
)
DTYPES: dict[bytes, np.dtype[Any]] = {name.encode(): np.dtype(name) for name in _FIXED}
DTYPE_NAMES = {dtype: name for name, dtype in DTYPES.items()}
_SIZED = re.compile(
    rb"\|S[1-9][0-9]{0,8}|[<>]U[1-9][0-9]{0,7}|[<>][mM]8(\[([1-9][0-9]{0,8})?[a-zA-Z]+\])?"
)
_MAX_NAME = 32


class Ref(NamedTuple):
    """Where the bytes of an array are: in a slab, as it was in one generation."""

    slab: int
    generation: int
    offset: int
    nbytes: int


@dataclass(frozen=True, slots=True, repr=False)
class Blob:
    """A value that only a worker may open.

    Attributes:
        data: its pickle.
        type_name: what it is, for people.
    """

    data: bytes
    type_name: str

    def __repr__(self) -> str:
        return f"<Blob {self.type_name} {len(self.data)} bytes>"


def dtype_name(dtype: np.dtype[Any]) -> bytes | None:
    """What a dtype is called here; None for those that do not travel."""
    known = DTYPE_NAMES.get(dtype)
    if known is not None:
        return known
    name = dtype.str.encode()
    return name if _SIZED.fullmatch(name) and np.dtype(dtype.str) == dtype else None


def dtype_of(name: bytes) -> np.dtype[Any]:
    """The dtype of such a name.

    Raises:
        FrameError: there is none.
    """
    known = DTYPES.get(name)
    if known is not None:
        return known
    if len(name) > _MAX_NAME or not _SIZED.fullmatch(name):
        raise FrameError("a dtype is not known")
    try:
        return np.dtype(name.decode())
    except (TypeError, ValueError, OverflowError) as error:
        raise FrameError("a dtype is not known") from error
