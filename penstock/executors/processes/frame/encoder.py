"""Writes values.

Large parts stand alone, as views, so that whoever sends them need not copy them.
"""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct, pack
from struct import error as StructError
from typing import Any

import numpy as np

from penstock.executors.processes.frame.frames import FrameError
from penstock.executors.processes.frame.knots import knots_of
from penstock.executors.processes.frame.values import (
    ARRAY,
    BIG_INT,
    BLOB,
    BYTES,
    CHECKED_KINDS,
    DICT,
    DTYPE_NAMES,
    FLOAT,
    INT,
    KEY_TYPES,
    LARGE,
    LIST,
    LONG,
    MAX_DEPTH,
    NUMBER,
    NUMPY_BYTES,
    NUMPY_STR,
    OBJECTS,
    REF,
    SCALAR,
    SLAB_ARRAY,
    STR,
    TUPLE,
    Array,
    Blob,
    Ref,
    dtype_name,
)

_HEADS = [[bytes((tag, number)) for number in range(LONG)] for tag in range(BLOB + 1)]
_OBJECTS_TAG = bytes((OBJECTS,))
_LONG_HEAD = Struct("<BBI")
_TAGGED_INT = Struct("<Bq")
_TAGGED_FLOAT = Struct("<Bd")
_SHAPES = [Struct(f"<B{axes}Q") for axes in range(9)]


class _Knotted(Exception):
    """Met something that is nested too deeply, or in itself."""


def encode(
    value: object,
    *,
    place: Callable[[Array], Ref | None] | None = None,
    pickle: Callable[[Any], bytes] | None = None,
) -> list[bytes | memoryview]:
    """Write a value.

    Args:
        value: not to be changed before the pieces have been sent: large arrays are views of it.
        place: copies an array of at least LARGE bytes to a slab, or says None: then it travels
            inline. Asked once for each array, however often that stands in ``value``.
        pickle: makes bytes of a value of any other type: objects, subclasses of plain types,
            arrays of records or of objects other than plain scalars, dicts with such keys,
            containers that are nested too deeply or contain themselves. They become blobs.

    Returns:
        Pieces of a body, to be sent one after the other.

    Raises:
        FrameError: there is a value of such a type and no ``pickle``, or that failed, or a part is
            too large for its length to be written.
    """
    writer = _Writer(place, pickle, None)
    try:
        try:
            writer.value(value, 0)
        except _Knotted:
            # Found rarely and late, so that the usual value need not be searched for it.
            again = _Writer(place, pickle, knots_of(value))
            again.placed = writer.placed
            writer = again
            writer.value(value, 0)
    except StructError as error:
        raise FrameError("a part of the value has too many bytes") from error
    return writer.finish()


class _Writer:
    __slots__ = ("append", "knots", "out", "pickle", "pieces", "place", "placed")

    def __init__(
        self,
        place: Callable[[Array], Ref | None] | None,
        pickle: Callable[[Any], bytes] | None,
        knots: frozenset[int] | None,
    ) -> None:
        self.place = place
        self.pickle = pickle
        self.knots = knots  # containers that cannot be written as such; None: nobody has looked
        self.placed: dict[int, Ref | None] = {}
        self.pieces: list[bytes | memoryview] = []
        self.out: list[bytes] = []  # what will be the next piece
        self.append = self.out.append

    def finish(self) -> list[bytes | memoryview]:
        if self.out:
            self.pieces.append(b"".join(self.out))
            self.out.clear()
        return self.pieces

    def value(self, value: Any, depth: int) -> None:
        kind = type(value)
        if kind is str:
            self.text(STR, value)
        elif kind is int:
            try:
                self.append(_TAGGED_INT.pack(INT, value))
            except StructError:
                size = value.bit_length() // 8 + 1
                self.octets(BIG_INT, value.to_bytes(size, "little", signed=True))
        elif kind is float:
            self.append(_TAGGED_FLOAT.pack(FLOAT, value))
        elif kind is np.ndarray:
            self.array(value)
        elif kind is dict:
            if not KEY_TYPES.issuperset(map(type, value)) or self.knotted(value, depth):
                self.other(value)
                return
            self.head(DICT, len(value))
            depth += 1
            for key, item in value.items():
                self.value(key, depth)
                self.value(item, depth)
        elif kind is list or kind is tuple:
            if self.knotted(value, depth):
                self.other(value)
                return
            self.head(LIST if kind is list else TUPLE, len(value))
            depth += 1
            for item in value:
                self.value(item, depth)
        elif value is None:
            self.append(b"\x00")
        elif kind is bool:
            self.append(b"\x01" if value else b"\x02")
        elif kind is bytes:
            self.octets(BYTES, value)
        else:
            self.rare(value)

    def knotted(self, value: object, depth: int) -> bool:
        if self.knots is None:
            if depth >= MAX_DEPTH:
                raise _Knotted
            return False
        return depth >= MAX_DEPTH or id(value) in self.knots

    def head(self, tag: int, number: int) -> None:
        if number < LONG:
            self.append(_HEADS[tag][number])
        else:
            self.append(_LONG_HEAD.pack(tag, LONG, number))

    def octets(self, tag: int, data: bytes) -> None:
        self.head(tag, len(data))
        if len(data) < LARGE:
            self.append(data)
        else:
            self.finish().append(data)

    def text(self, tag: int, value: str) -> None:
        try:
            data = value.encode()
        except UnicodeEncodeError:  # lone surrogates, such as names of files have
            data = value.encode("utf-8", "surrogatepass")
        self.octets(tag, data)

    def rare(self, value: Any) -> None:
        kind = type(value)
        if kind is Blob:
            self.blob(value)
        elif kind is np.str_:
            self.text(NUMPY_STR, value)  # str(value) would lose zeros at its end
        elif kind is np.bytes_:
            self.octets(NUMPY_BYTES, bytes(value))
        elif isinstance(value, np.generic) and kind is value.dtype.type:
            name = dtype_name(value.dtype)
            if name is None:
                self.other(value)
            else:
                self.append(_HEADS[SCALAR][len(name)] + name + value.tobytes())
        else:
            self.other(value)

    def array(self, value: Array) -> None:
        dtype = value.dtype
        name = DTYPE_NAMES.get(dtype) or dtype_name(dtype)
        shape = value.shape
        axes = len(shape)
        sizes = _SHAPES[axes].pack(axes, *shape) if axes <= 8 else pack(f"<B{axes}Q", axes, *shape)
        if name is None:
            self.objects(value, sizes)
            return
        size = value.nbytes
        if size < LARGE:
            self.append(_HEADS[ARRAY][len(name)] + name + sizes)
            self.append(value.tobytes())
            return
        ref = self.placing(value) if dtype.kind not in CHECKED_KINDS else None
        if ref is not None:
            self.append(_HEADS[SLAB_ARRAY][len(name)] + name + sizes + REF.pack(*ref))
            return
        self.append(_HEADS[ARRAY][len(name)] + name + sizes)
        whole = np.ascontiguousarray(value).reshape(-1).view(np.uint8)
        self.finish().append(whole.data)

    def objects(self, value: Array, sizes: bytes) -> None:
        """An array of texts, as models give them; any other goes as a whole."""
        items = value.reshape(-1).tolist() if value.dtype == object else [value]
        if not KEY_TYPES.issuperset(map(type, items)):
            self.other(value)
            return
        self.append(_OBJECTS_TAG + sizes)
        for item in items:
            self.value(item, 0)

    def placing(self, value: Array) -> Ref | None:
        if self.place is None:
            return None
        key = id(value)
        if key not in self.placed:
            self.placed[key] = self.place(value)
        return self.placed[key]

    def other(self, value: object) -> None:
        kind = type(value)
        name = kind.__qualname__
        if kind.__module__ != "builtins":
            name = f"{kind.__module__}.{name}"
        if self.pickle is None:
            raise FrameError(f"a value of type {name} cannot travel")
        try:
            data = self.pickle(value)
        except Exception as error:  # pickling runs users' code
            raise FrameError(f"a value of type {name} cannot be pickled: {error}") from error
        self.blob(Blob(data, name))

    def blob(self, blob: Blob) -> None:
        self.text(BLOB, blob.type_name)
        size = len(blob.data)
        self.append(bytes((size,)) if size < LONG else b"\xff" + NUMBER.pack(size))
        if size < LARGE:
            self.append(blob.data)
        else:
            self.finish().append(blob.data)
