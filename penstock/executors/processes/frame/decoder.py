"""Reads values, of a sender who may be hostile.

Nothing is allocated before what it is made of has been seen to be there.
"""

from __future__ import annotations

from codecs import utf_8_decode
from collections.abc import Callable
from math import prod
from struct import error as StructError
from struct import unpack_from
from typing import Any, TypeAlias

import numpy as np

from penstock.executors.processes.frame.frames import FrameError
from penstock.executors.processes.frame.values import (
    ARRAY,
    BIG_INT,
    BLOB,
    BYTES,
    CHECKED_KINDS,
    DICT,
    FALSE,
    FLOAT,
    FLOAT64,
    INT,
    INT64,
    KEY_TAGS,
    LARGE,
    LIST,
    LONG,
    MAX_DEPTH,
    NONE,
    NUMBER,
    NUMPY_BYTES,
    NUMPY_STR,
    OBJECTS,
    REF,
    SCALAR,
    SLAB_ARRAY,
    STR,
    TRUE,
    Array,
    Blob,
    Buffer,
    Ref,
    dtype_of,
)

_CHEAP = 1 << 20  # bytes
_MAX_AXIS = 2**63
_MAX_CODE_POINT = 0x10FFFF

_Head: TypeAlias = tuple[np.dtype[Any], tuple[int, ...], int]


def decode(
    body: Buffer,
    *,
    fetch: Callable[[Ref], Buffer] | None = None,
    open_blob: Callable[[Blob], Any] | None = None,
) -> Any:
    """Read the one value that ``body`` holds.

    Args:
        body: may be given up afterwards: nothing of the value is a view of it.
        fetch: gives the bytes of an array in a slab; that array is a view of them, and so only as
            writable as they are. Arrays that came inline are the receiver's own, and writable.
        open_blob: makes the value of a blob; without it the blob itself is the value.

    Raises:
        FrameError: the bytes are no value. What ``fetch`` and ``open_blob`` raise passes through.
    """
    reader = _Reader(body, fetch, open_blob)
    value = reader.value(0)
    if reader.at != reader.size:
        raise FrameError("bytes follow the value")
    return value


def _cut_off() -> FrameError:
    return FrameError("the value is cut off")


class _Reader:
    __slots__ = ("at", "body", "fetch", "heads", "open_blob", "size")

    def __init__(
        self,
        body: Buffer,
        fetch: Callable[[Ref], Buffer] | None,
        open_blob: Callable[[Blob], Any] | None,
    ) -> None:
        if type(body) is not bytes:
            body = memoryview(body).cast("B")
            # Parts of bytes are cheaper than parts of views; a copy of many MiB would not be.
            body = bytes(body) if len(body) <= _CHEAP else body
        self.body: bytes | memoryview = body
        self.size = len(body)
        self.at = 0
        self.fetch = fetch
        self.open_blob = open_blob
        self.heads: dict[bytes, _Head] = {}

    def value(self, depth: int) -> Any:
        at = self.at
        body = self.body
        try:
            tag = body[at]
            if tag == STR:
                count = body[at + 1]
                if count == LONG:
                    self.at = at + 1
                    return self.text()
                self.at = end = at + 2 + count
                if end > self.size:
                    raise _cut_off()
                return utf_8_decode(body[at + 2 : end], "surrogatepass", True)[0]
            if tag == INT:
                self.at = at + 9
                return INT64.unpack_from(body, at + 1)[0]
            if tag == FLOAT:
                self.at = at + 9
                return FLOAT64.unpack_from(body, at + 1)[0]
        except (IndexError, StructError):
            raise _cut_off() from None
        except UnicodeDecodeError as error:
            raise FrameError("a text is no UTF-8") from error
        self.at = at + 1
        if tag == ARRAY:
            return self.array()
        if DICT >= tag >= LIST:
            return self.container(tag, depth)
        if tag == NONE:
            return None
        if tag == TRUE:
            return True
        if tag == FALSE:
            return False
        if tag == BYTES:
            return self.octets()
        return self.rare(tag)

    def skip(self, count: int) -> int:
        """Where the next ``count`` bytes begin, which must be there."""
        at = self.at
        self.at = end = at + count
        if end > self.size:
            raise _cut_off()
        return at

    def number(self) -> int:
        number: int = self.body[self.skip(1)]
        if number == LONG:
            number = NUMBER.unpack_from(self.body, self.skip(4))[0]
        return number

    def octets(self) -> bytes:
        count = self.number()
        at = self.skip(count)
        return bytes(self.body[at : at + count])

    def text(self) -> str:
        try:
            return utf_8_decode(self.octets(), "surrogatepass", True)[0]
        except UnicodeDecodeError as error:
            raise FrameError("a text is no UTF-8") from error

    def container(self, tag: int, depth: int) -> Any:
        if depth >= MAX_DEPTH:
            raise FrameError(f"the value is nested deeper than {MAX_DEPTH} levels")
        count = self.number()
        if count > self.size - self.at:
            raise _cut_off()
        depth += 1
        value = self.value
        if tag != DICT:
            items = [value(depth) for _ in range(count)]
            return items if tag == LIST else tuple(items)
        members = {}
        for _ in range(count):
            if self.at < self.size and self.body[self.at] not in KEY_TAGS:
                raise FrameError("a key is no plain scalar")
            key = value(depth)
            members[key] = value(depth)
        return members

    def rare(self, tag: int) -> Any:
        if tag == SLAB_ARRAY:
            return self.slab_array()
        if tag == BIG_INT:
            return int.from_bytes(self.octets(), "little", signed=True)
        if tag == SCALAR:
            dtype = self.dtype()
            at = self.skip(dtype.itemsize)
            return self.own(dtype, (), at, dtype.itemsize)[()]
        if tag == NUMPY_STR:
            return np.str_(self.text())
        if tag == NUMPY_BYTES:
            return np.bytes_(self.octets())
        if tag == BLOB:
            type_name = self.text()
            blob = Blob(self.octets(), type_name)
            return blob if self.open_blob is None else self.open_blob(blob)
        if tag == OBJECTS:
            return self.objects()
        raise FrameError(f"values with the tag {tag} are not known")

    def objects(self) -> Array:
        axes = self.body[self.skip(1)]
        shape = unpack_from(f"<{axes}Q", self.body, self.skip(8 * axes))
        count = prod(shape)
        if count > self.size - self.at:
            raise _cut_off()
        array = np.empty(count, object)
        for position in range(count):
            if self.at < self.size and self.body[self.at] not in KEY_TAGS:
                raise FrameError("an array holds more than plain scalars")
            array[position] = self.value(0)
        try:
            return array.reshape(shape)
        except (ValueError, OverflowError) as error:
            raise FrameError("numpy cannot hold an array of such a shape") from error

    def dtype(self) -> np.dtype[Any]:
        return dtype_of(self.octets())

    def head(self) -> _Head:
        """An array's dtype, shape and number of bytes; those of a batch are mostly the same."""
        body = self.body
        start = self.at
        axes_at = self.skip(1) + 1 + body[start]
        if axes_at >= self.size:
            raise _cut_off()
        sizes_at = axes_at + 1
        self.at = end = sizes_at + 8 * body[axes_at]
        if end > self.size:
            raise _cut_off()
        written = bytes(body[start:end])
        head = self.heads.get(written)
        if head is None:
            dtype = dtype_of(bytes(body[start + 1 : axes_at]))
            shape = unpack_from(f"<{body[axes_at]}Q", body, sizes_at)
            if max(shape, default=0) >= _MAX_AXIS:
                raise FrameError("an array has an axis that is too long")
            head = self.heads[written] = dtype, shape, prod(shape) * dtype.itemsize
        return head

    def array(self) -> Array:
        dtype, shape, size = self.head()
        return self.own(dtype, shape, self.skip(size), size)

    def own(self, dtype: np.dtype[Any], shape: tuple[int, ...], at: int, size: int) -> Array:
        """An array of bytes that the receiver may change; they are known to be there."""
        part = self.body[at : at + size] if size < LARGE else memoryview(self.body)[at : at + size]
        array = _array(dtype, shape, bytearray(part))
        if dtype.kind in CHECKED_KINDS and size:
            _check(array)
        return array

    def slab_array(self) -> Array:
        dtype, shape, size = self.head()
        ref = Ref(*REF.unpack_from(self.body, self.skip(REF.size)))
        if self.fetch is None or not size or dtype.kind in CHECKED_KINDS:
            raise FrameError("an array cannot be in a slab here")
        if ref.nbytes != size:
            raise FrameError(f"an array of {size} bytes has {ref.nbytes} in its slab")
        data = memoryview(self.fetch(ref))
        if data.nbytes != size:
            raise FrameError(f"a slab gave {data.nbytes} bytes for an array of {size}")
        return _array(dtype, shape, data)


def _array(dtype: np.dtype[Any], shape: tuple[int, ...], data: Buffer) -> Array:
    try:
        return np.ndarray(shape, dtype, data)
    except (ValueError, OverflowError, MemoryError) as error:  # empty, yet too large, or many axes
        raise FrameError("numpy cannot hold an array of such a shape") from error


def _check(array: Array) -> None:
    if array.dtype.kind == "b":
        if array.view(np.uint8).max() > 1:
            raise FrameError("a truth value is neither 0 nor 1")
        return
    code_points = np.dtype(np.uint32).newbyteorder(array.dtype.byteorder)
    if array.reshape(-1).view(code_points).max() > _MAX_CODE_POINT:
        raise FrameError("a text holds a number that is no character")
