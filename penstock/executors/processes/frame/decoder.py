"""Reads values, of a sender who may be hostile.

Nothing is allocated before what it is made of has been seen to be there; the library that reads the
plain part keeps to that, too, and to a depth of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import Enum
from functools import lru_cache
from math import prod
from struct import unpack_from
from typing import Any, Final, TypeAlias

import numpy as np
import ormsgpack

from penstock.executors.processes.frame.frames import FrameError
from penstock.executors.processes.frame.values import (
    ARRAY,
    BIG_INT,
    BLOB,
    CHECKED_KINDS,
    DICT,
    KEY_TYPES,
    LENGTH,
    MAX_DEPTH,
    NUMPY_BYTES,
    NUMPY_STR,
    OBJECTS,
    PART_ARRAY,
    PART_BLOB,
    PART_LENGTH,
    REF,
    SCALAR,
    SLAB_ARRAY,
    SURROGATES,
    TUPLE,
    TURNED,
    Array,
    Blob,
    Buffer,
    Fetched,
    Ref,
    dtype_of,
)

_AT: Final = LENGTH.size
_ref: Final = tuple.__new__  # without the call that Ref(...) makes of it
_CHEAP: Final = 2048  # bytes: to copy, or to look at each, costs less than anything else would
_BEGINS_NO_LEVEL: Final = bytes(
    octet for octet in range(256) if not (0x80 <= octet <= 0x9F or 0xDC <= octet <= 0xDF)
)
_NO_PARTS: Final = memoryview(b"")
_MAX_AXIS: Final = 2**63
_MAX_CODE_POINT: Final = 0x10FFFF


class _Mark(Enum):
    """What a list that is none begins with."""

    TUPLE = TUPLE
    DICT = DICT
    OBJECTS = OBJECTS


_MARKS: Final = (TUPLE, DICT, OBJECTS)
_INT: Final = frozenset((int,))
_HELD: Final = frozenset((list, dict))
_SETTLED: Final = frozenset((list, dict, Blob, _Mark))

_Head: TypeAlias = tuple[np.dtype[Any], tuple[int, ...], int]


def decode(
    body: Buffer,
    *,
    fetch: Callable[[Ref], Fetched] | None = None,
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
    return Decoder(fetch, open_blob).decode(body)


def _cut_off() -> FrameError:
    return FrameError("the value is cut off")


def _too_deep() -> FrameError:
    return FrameError(f"the value is nested deeper than {MAX_DEPTH} levels")


def _look_into(items: Iterable[object], depth: int) -> None:
    """Refuse what is nested too deeply, by whole containers at a time."""
    if _HELD.isdisjoint(map(type, items)):
        return
    if depth >= MAX_DEPTH:
        raise _too_deep()
    for item in items:
        if type(item) is list:
            _look_into(item, depth + 1)
        elif type(item) is dict:
            _look_into(item.values(), depth + 1)


def _settled(value: Any, depth: int, open_blob: Callable[[Blob], Any] | None) -> Any:
    """The value with tuples, dicts of any keys and the blobs' own values in their places."""
    kind = type(value)
    if kind is Blob:
        return value if open_blob is None else open_blob(value)
    if kind is _Mark:
        raise FrameError("a mark stands where none belongs")
    if kind not in _HELD:
        return value
    if depth >= MAX_DEPTH:
        raise _too_deep()
    depth += 1
    if kind is dict:
        for key, item in value.items():
            if type(item) in _SETTLED:
                value[key] = _settled(item, depth, open_blob)
        return value
    mark = value[0] if value else None
    if type(mark) is not _Mark:
        return [_settled(item, depth, open_blob) for item in value]
    if mark is _Mark.TUPLE:
        return tuple([_settled(item, depth, open_blob) for item in value[1:]])
    if mark is _Mark.OBJECTS:
        return _objects(value[1:])
    keys = value[1::2]
    if not len(value) % 2 or not KEY_TYPES.issuperset(map(type, keys)):
        raise FrameError("a dict has a key that is no plain scalar, or without a value")
    values = [_settled(item, depth, open_blob) for item in value[2::2]]
    return dict(zip(keys, values, strict=True))


def _objects(value: list[Any]) -> Array:
    """An array of plain scalars of Python."""
    shape, items = (value[0], value[1:]) if value else (None, [])
    if type(shape) is not list or not _INT.issuperset(map(type, shape)):
        raise FrameError("an array has no shape")
    if not KEY_TYPES.issuperset(map(type, items)):
        raise FrameError("an array holds more than plain scalars")
    if min(shape, default=0) < 0 or prod(shape) != len(items):
        raise FrameError("an array has more, or less, than its shape holds")
    array = np.empty(len(items), object)
    array[:] = items
    try:
        return array.reshape(shape)
    except (ValueError, OverflowError) as error:
        raise FrameError("numpy cannot hold an array of such a shape") from error


class Decoder:
    """Reads one value after the other; see ``decode``.

    Args:
        fetch: as ``decode`` has it.
        open_blob: likewise.
        trusted: whether the sender is: that it nests nothing too deeply is not looked at.
    """

    __slots__ = ("_at", "_error", "_fetch", "_open_blob", "_parts", "_trusted", "_unsettled")

    def __init__(
        self,
        fetch: Callable[[Ref], Fetched] | None = None,
        open_blob: Callable[[Blob], Any] | None = None,
        *,
        trusted: bool = False,
    ) -> None:
        self._fetch = fetch
        self._open_blob = open_blob
        self._trusted = trusted
        self._parts = _NO_PARTS  # all large parts of the value at hand
        self._at = 0  # where the next one begins
        self._unsettled = False  # whether there are marks, or blobs, among the values
        self._error: Exception | None = None  # what was wrong with one of them

    def decode(self, body: Buffer) -> Any:
        """Read the one value that ``body`` holds.

        Raises:
            FrameError: as ``decode`` does.
        """
        size = len(body)
        if size < _AT:
            raise _cut_off()
        end = _AT + LENGTH.unpack_from(body)[0]
        if end != size:
            if end > size:
                raise _cut_off()
            self._parts = memoryview(body)[end:]
        plain = bytes(body[_AT:end]) if end <= _CHEAP else memoryview(body)[_AT:end]
        try:
            value = ormsgpack.unpackb(plain, ext_hook=self._extension)
        except ormsgpack.MsgpackDecodeError as error:
            try:
                # What our hook raised is forgotten by the library.
                raise self._error or FrameError("the bytes are no value") from error
            finally:
                self._forget()
        if end != size or self._unsettled:
            whole, unsettled = self._at == len(self._parts), self._unsettled
            self._forget()
            if not whole:
                raise FrameError("bytes follow the value")
            if unsettled:
                return _settled(value, 0, self._open_blob)
        if self._trusted:
            return value
        # Few octets can begin a level, and mostly there are fewer of them than levels are allowed.
        if type(plain) is not bytes or len(plain.translate(None, _BEGINS_NO_LEVEL)) > MAX_DEPTH:
            _look_into((value,), 0)
        return value

    def _forget(self) -> None:
        """Be ready for the next value."""
        self._parts, self._at, self._unsettled, self._error = _NO_PARTS, 0, False, None

    def _extension(self, code: int, data: bytes) -> Any:
        """The value of one."""
        try:
            if code == ARRAY:
                dtype, shape, size, at = _head_of(data)
                if len(data) - at != size:
                    raise _cut_off()
                array = _own(dtype, shape, size, data, at)
            elif code == SLAB_ARRAY:
                return self._slab_array(data)
            elif code == PART_ARRAY:
                dtype, shape, size, at = _head_of(data)
                if at != len(data):
                    raise FrameError("bytes follow the head of an array")
                array = _own(dtype, shape, size, self._part(size), 0)
            else:
                return self._rare(code, data)
            return array if data[1 + data[0]] < TURNED else array.T
        except Exception as error:
            self._error = error
            raise

    def _rare(self, code: int, data: bytes) -> Any:
        if code in _MARKS:
            self._unsettled = True
            return _Mark(code)
        if code in (BLOB, PART_BLOB):
            self._unsettled = True
            return self._blob(code, data)
        if code == BIG_INT:
            return int.from_bytes(data, "little", signed=True)
        if code == SURROGATES:
            return _text(data)
        if code == NUMPY_STR:
            return np.str_(_text(data))
        if code == NUMPY_BYTES:
            return np.bytes_(data)
        if code == SCALAR:
            dtype, at = _dtype_in(data)
            if len(data) - at != dtype.itemsize:
                raise _cut_off()
            return _own(dtype, (), dtype.itemsize, data, at)[()]
        raise FrameError(f"values of kind {code} are not known")

    def _part(self, size: int) -> memoryview:
        at = self._at
        self._at = end = at + size
        if end > len(self._parts):
            raise _cut_off()
        return self._parts[at:end]

    def _blob(self, code: int, data: bytes) -> Blob:
        if len(data) < _AT:
            raise _cut_off()
        end = _AT + LENGTH.unpack_from(data)[0]
        if end > len(data):
            raise _cut_off()
        name, rest = data[_AT:end], data[end:]
        if code == PART_BLOB:
            if len(rest) != PART_LENGTH.size:
                raise _cut_off()
            rest = bytes(self._part(PART_LENGTH.unpack(rest)[0]))
        return Blob(rest, _text(name))

    def _slab_array(self, data: bytes) -> Array:
        dtype, shape, size, turned = _read_slab_head(data[: -REF.size])
        ref = _ref(Ref, REF.unpack_from(data, len(data) - REF.size))
        if self._fetch is None:
            raise FrameError("an array cannot be in a slab here")
        found = self._fetch(ref)
        if len(found) != size:
            raise FrameError(f"a slab gave {len(found)} bytes for an array of {size}")
        array = _array(dtype, shape, found, 0)
        return array.T if turned else array


def _text(data: bytes) -> str:
    try:
        return data.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError as error:
        raise FrameError("a text is no UTF-8") from error


def _dtype_in(data: bytes) -> tuple[np.dtype[Any], int]:
    """The dtype that stands first, and where it ends."""
    if not data or len(data) <= data[0]:
        raise _cut_off()
    end = 1 + data[0]
    return dtype_of(data[1:end]), end


def _head_of(data: bytes) -> tuple[np.dtype[Any], tuple[int, ...], int, int]:
    """An array's dtype, shape and number of bytes, and where its head ends."""
    axes_at = 1 + data[0] if data else 1
    if axes_at >= len(data):
        raise _cut_off()
    end = axes_at + 1 + 8 * (data[axes_at] % TURNED)
    if end > len(data):
        raise _cut_off()
    dtype, shape, size = _read_head(data[:end])
    return dtype, shape, size, end


@lru_cache(maxsize=256)
def _read_head(head: bytes) -> _Head:
    """Those of a batch, and of one batch after the other, are mostly the same."""
    dtype, axes_at = _dtype_in(head)
    shape = unpack_from(f"<{head[axes_at] % TURNED}Q", head, axes_at + 1)
    if max(shape, default=0) >= _MAX_AXIS:
        raise FrameError("an array has an axis that is too long")
    return dtype, shape, prod(shape) * dtype.itemsize


@lru_cache(maxsize=256)
def _read_slab_head(head: bytes) -> tuple[np.dtype[Any], tuple[int, ...], int, bool]:
    """The head of an array in a slab, all that is before the Ref; and whether it is turned."""
    dtype, shape, size, end = _head_of(head)
    if end != len(head):
        raise _cut_off()
    if not size or dtype.kind in CHECKED_KINDS:
        raise FrameError("an array cannot be in a slab here")
    return dtype, shape, size, head[1 + head[0]] >= TURNED


def _own(dtype: np.dtype[Any], shape: tuple[int, ...], size: int, data: Buffer, at: int) -> Array:
    """An array that the receiver may change, of bytes that are known to be there."""
    array = _array(dtype, shape, data, at).copy()
    if dtype.kind in CHECKED_KINDS and size:
        _check(array)
    return array


def _array(dtype: np.dtype[Any], shape: tuple[int, ...], data: Fetched, at: int) -> Array:
    try:
        return np.ndarray(shape, dtype, data, at)
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
