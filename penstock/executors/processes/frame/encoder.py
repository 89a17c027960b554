"""Writes values.

A MessagePack library writes what it is known to write exactly; before that all types are looked at,
by whole containers at a time. A value with anything else in it is spelled out in its terms first.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from functools import lru_cache
from itertools import chain
from struct import Struct
from struct import error as StructError
from typing import Any, Final

import numpy as np
import ormsgpack
from ormsgpack import Ext

from penstock.errors import text_of
from penstock.executors.processes.frame.frames import FrameError, OnlyPickledError
from penstock.executors.processes.frame.knots import knots_of
from penstock.executors.processes.frame.values import (
    ARRAY,
    BIG_INT,
    BLOB,
    CHECKED_KINDS,
    DICT,
    KEY_TYPES,
    LARGE,
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
    Ref,
    dtype_name,
)

# Only integers of more than 64 bits, tuples and arrays come to our hook; the types that the library
# would change into others never get that far. The rest is for those that it may learn.
_OPTIONS: Final = (
    ormsgpack.OPT_PASSTHROUGH_BIG_INT
    | ormsgpack.OPT_PASSTHROUGH_TUPLE
    | ormsgpack.OPT_PASSTHROUGH_SUBCLASS
)
_LEAVES: Final = KEY_TYPES | {np.ndarray}
_CONTAINERS: Final = frozenset((list, tuple, dict))
_TEXT: Final = frozenset((str,))
_DICT: Final = frozenset((dict,))
_SIMPLE_DEPTH: Final = 4
_LIST: Final = Struct(">BI")
_LIST_CODE: Final = 0xDD
_TUPLE_MARK: Final = Ext(TUPLE, b"")
_DICT_MARK: Final = Ext(DICT, b"")
_OBJECTS_MARK: Final = Ext(OBJECTS, b"")


def encode(
    value: object,
    *,
    place: Callable[[Array], Ref | None] | None = None,
    pickle: Callable[[Any], bytes] | None = None,
    blobs: bool = True,
    strange: Collection[object] | None = None,
) -> list[bytes | memoryview]:
    """Write a value.

    Args:
        value: not to be changed before the pieces have been sent: large arrays are views of it.
        place: finds room in a slab for an array of at least LARGE bytes, or says None: then it
            travels inline. Asked once for each array, however often that stands in ``value``. Who
            gave it copies the array there before the pieces are sent.
        pickle: makes bytes of a value of any other type: objects, subclasses of plain types,
            arrays of records or of objects other than plain scalars, dicts with such keys,
            containers that are nested too deeply or contain themselves. They become blobs.
        blobs: whether there may be any, whoever made them.
        strange: all in ``value`` that may be, or hold, anything but scalars and lists of them;
            where this is not said, nothing is known of any of it.

    Returns:
        Pieces of a body, to be sent one after the other.

    Raises:
        FrameError: there is a value of such a type and no ``pickle``, or that failed, or there is
            a blob and may be none, or the value is too large for its length to be written.
    """
    return Encoder(place, pickle).encode(value, strange, blobs=blobs)


class Encoder:
    """Writes one value after the other; see ``encode``.

    Args:
        place: as ``encode`` has it.
        pickle: likewise.
    """

    __slots__ = ("_pickle", "_place")

    def __init__(
        self,
        place: Callable[[Array], Ref | None] | None = None,
        pickle: Callable[[Any], bytes] | None = None,
    ) -> None:
        self._place = place
        self._pickle = pickle

    def encode(
        self, value: object, strange: Collection[object] | None = None, *, blobs: bool = True
    ) -> list[bytes | memoryview]:
        """Write a value, as ``encode`` does.

        Raises:
            FrameError: as there.
        """
        try:
            leaves = None if strange is None else _leaves_of(strange)
            parts: Sequence[bytes | memoryview] = ()
            plain = None
            if leaves is not None and np.ndarray not in leaves:
                plain = packed(value)
            if plain is None:
                writer = _Writer(self._place, self._pickle, blobs=blobs)
                plain, parts = writer.pack(value, looked_at=leaves is not None), writer.parts
            return [LENGTH.pack(len(plain)), plain, *parts]
        except FrameError:
            raise
        except StructError as error:
            raise FrameError("the value has too many bytes") from error
        except Exception as error:  # it is changed meanwhile, or there is no memory
            why = f"{type(error).__name__}: {text_of(error)}"
            raise FrameError(f"the value cannot be read: {why}") from error


def packed(value: object) -> bytes | None:
    """What the library makes of a value by itself; None where it needs help."""
    try:
        return ormsgpack.packb(value, None, _OPTIONS)
    except ormsgpack.MsgpackEncodeError:  # a long integer, or half of a pair of surrogates
        return None


def packed_scalars(value: object, strange: Collection[object]) -> bytes | None:
    """The plain part of a value, if what is strange in that are scalars and few bytes; else None.

    Args:
        value: see ``encode``.
        strange: likewise.
    """
    if not KEY_TYPES.issuperset(map(type, strange)):
        return None
    plain = packed(value)
    return None if plain is None or len(plain) >= LARGE else plain


def listed(count: int, plain: bytes) -> bytes:
    """The plain part of a list of so many values, whose plain parts stand one behind the other."""
    return _LIST.pack(_LIST_CODE, count) + plain


def _leaves_of(items: Collection[Any]) -> set[type] | None:
    """What is in these, if they are dicts, and dicts in them; else None.

    Looks at all dicts of a level at once; what is more complicated is looked at one by one. Keys
    are not looked at: where they are anything but texts the library says so.
    """
    for _ in range(_SIMPLE_DEPTH):
        kinds = set(map(type, items))
        if kinds <= _LEAVES:
            return kinds
        if kinds != _DICT:
            return None
        items = list(chain.from_iterable(map(dict.values, items)))
    return None


def _is_plain(items: Iterable[Any], depth: int) -> bool:
    """Whether all of these, and what is in them, can be left to the library and our hook."""
    for item in items:
        kind = type(item)
        if kind in _LEAVES:
            continue
        if kind is dict:
            if not _TEXT.issuperset(map(type, item)):
                return False
            inner = item.values()
        elif kind is list or kind is tuple:
            inner = item
        else:
            return False
        if depth >= MAX_DEPTH:
            return False
        if not _LEAVES.issuperset(map(type, inner)) and not _is_plain(inner, depth + 1):
            return False
    return True


class _Writer:
    """Writes one value; ``parts`` are its large parts."""

    __slots__ = ("_blobs", "_error", "_knots", "_pickle", "_place", "_placed", "parts")

    def __init__(
        self,
        place: Callable[[Array], Ref | None] | None,
        pickle: Callable[[Any], bytes] | None,
        *,
        blobs: bool,
    ) -> None:
        self.parts: list[bytes | memoryview] = []
        self._blobs = blobs
        self._place = place
        self._pickle = pickle
        self._placed: dict[int, Ref | None] = {}
        self._knots: frozenset[int] = frozenset()
        self._error: Exception | None = None

    def pack(self, value: object, *, looked_at: bool) -> bytes:
        """The plain part of the body; if it was looked at, it is as ``_is_plain`` says."""
        if looked_at or _is_plain((value,), 0):
            try:
                return ormsgpack.packb(value, self._hook, _OPTIONS)
            except ormsgpack.MsgpackEncodeError:
                if self._error is not None:
                    raise self._error from None
                # Else there is a text with half of a pair of surrogates in it, or it is not plain.
                self.parts.clear()
        self._knots = knots_of(value)
        return ormsgpack.packb(self._spelled(value, 0), None, _OPTIONS)

    def _hook(self, value: Any) -> Any:
        kind = type(value)
        if kind is tuple:
            return [_TUPLE_MARK, *value]
        if kind is not np.ndarray and kind is not int:
            raise TypeError("not looked at, and not plain")
        try:
            if kind is int:
                return _big(value)
            items = _scalars(value) if value.dtype.kind == "O" else None
            return self._array(value) if items is None else _objects(value, items)
        except Exception as error:
            self._error = error  # the library would forget it
            raise

    def _spelled(self, value: Any, depth: int) -> Any:
        """The same, of nothing but what the library writes by itself."""
        kind = type(value)
        if kind is str:
            return value if _has_utf8(value) else Ext(SURROGATES, _octets(value))
        if kind is int:
            return value if value.bit_length() < 64 else _big(value)
        if kind is np.ndarray:
            scalars = _scalars(value)
            if scalars is None:
                return self._array(value)
            return _objects(value, [self._spelled(item, depth) for item in scalars])
        if kind in KEY_TYPES:
            return value
        if kind not in _CONTAINERS:
            return self._rare(value)
        if depth >= MAX_DEPTH or id(value) in self._knots:
            return self._other(value)
        depth += 1
        if kind is not dict:
            items = [self._spelled(item, depth) for item in value]
            return items if kind is list else [_TUPLE_MARK, *items]
        if _TEXT.issuperset(map(type, value)) and all(map(_has_utf8, value)):
            return {key: self._spelled(item, depth) for key, item in value.items()}
        if not KEY_TYPES.issuperset(map(type, value)):
            return self._other(value)
        members: list[Any] = [_DICT_MARK]
        for key, item in value.items():
            members += self._spelled(key, depth), self._spelled(item, depth)
        return members

    def _rare(self, value: Any) -> Ext:
        kind = type(value)
        if kind is Blob:
            return self._blob(value)
        if kind is np.str_:
            return Ext(NUMPY_STR, _octets(value))  # str(value) would lose zeros at its end
        if kind is np.bytes_:
            return Ext(NUMPY_BYTES, bytes(value))
        if isinstance(value, np.generic) and kind is value.dtype.type:
            name = dtype_name(value.dtype)
            if name is not None:
                return Ext(SCALAR, bytes((len(name),)) + name + value.tobytes())
        return self._other(value)

    def _array(self, value: Array) -> Ext:
        dtype = value.dtype
        key = id(value)
        turned = value.ndim > 1 and value.flags.fnc  # in Fortran order, and not in C's as well
        original = value
        if turned:
            value = value.T
        head = _head(dtype, value.shape, turned)
        if head is None:
            return self._other(value.T if turned else value)
        if value.nbytes < LARGE:
            return Ext(ARRAY, head + value.tobytes())
        ref = None
        if self._place is not None and dtype.kind not in CHECKED_KINDS:
            if key not in self._placed:  # which tells it from all others of what is being written
                self._placed[key] = self._place(value)
                if turned and not value.flags.writeable:
                    original.flags.writeable = False  # as ``place`` has made it by this name
            ref = self._placed[key]
        if ref is not None:
            return Ext(SLAB_ARRAY, head + REF.pack(*ref))
        self.parts.append(np.ascontiguousarray(value).reshape(-1).view(np.uint8).data)
        return Ext(PART_ARRAY, head)

    def _other(self, value: Any) -> Ext:
        kind = type(value)
        name = kind.__qualname__
        if kind.__module__ != "builtins":
            name = f"{kind.__module__}.{name}"
        if self._pickle is None:
            of = f" of {value.dtype}" if kind is np.ndarray else ""
            raise OnlyPickledError(f"a value of type {name}{of} cannot travel")
        try:
            data = self._pickle(value)
        except BaseException as error:  # pickling runs users' code
            raise FrameError(
                f"a value of type {name} cannot be pickled: {text_of(error)}"
            ) from error
        return self._blob(Blob(data, name))

    def _blob(self, blob: Blob) -> Ext:
        if not self._blobs:
            raise FrameError(f"a value of type {blob.type_name} cannot travel here")
        name = _octets(blob.type_name)
        head = LENGTH.pack(len(name)) + name
        if len(blob.data) < LARGE:
            return Ext(BLOB, head + blob.data)
        self.parts.append(blob.data)
        return Ext(PART_BLOB, head + PART_LENGTH.pack(len(blob.data)))


@lru_cache(maxsize=256)
def _head(dtype: np.dtype[Any], shape: tuple[int, ...], turned: bool) -> bytes | None:
    """The name of a dtype, and a shape, as arrays begin; None for a dtype that has none."""
    name = dtype_name(dtype)
    if name is None:
        return None
    axes = len(shape)
    sizes = Struct(f"<B{axes}Q").pack(axes + TURNED if turned else axes, *shape)
    return bytes((len(name),)) + name + sizes


def _scalars(array: Array) -> list[Any] | None:
    """What is in an array of texts, as models give them, or of other plain scalars of Python."""
    if array.dtype != object:
        return None
    items: list[Any] = array.reshape(-1).tolist()
    return items if KEY_TYPES.issuperset(map(type, items)) else None


def _objects(array: Array, items: list[Any]) -> list[Any]:
    return [_OBJECTS_MARK, list(array.shape), *items]


def _big(value: int) -> Ext:
    return Ext(BIG_INT, value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True))


def _has_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:  # lone surrogates, such as names of files have
        return False
    return True


def _octets(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")
