"""Encodes and decodes the values in frames: plain values and arrays, without unpickling.

    body     = length of the plain part (4 octets) | the plain part | large arrays, in order
    plain    = one MessagePack value, in which
      nil, booleans, integers, floats, texts, octets, arrays and maps   are themselves
    its extensions, by their codes:
      TUPLE        a plain part: the list of its items
      OBJECTS      a plain part: the shape of a numpy array of objects, and a list of plain scalars
      BIG_INT      octets, signed
      NUMPY_STR, NUMPY_BYTES   octets: numpy's own texts and bytes
      SCALAR       dtype, octets
      ARRAY        head, octets
      PART_ARRAY   head; its octets are the next large part
      SLAB_ARRAY   head, a Ref: its octets are in shared memory
      BLOB         length (4 octets), the name of its type, a pickle
      STORED       a plain part: the key, number and head of a value in an external store
    head     = dtype, axes (1 octet), 8 octets each; 128 more axes say that this is the transpose:
               it, and not the array, is in C order
    dtype    = length (1 octet), as numpy's ``dtype.str`` writes it

All numbers are little-endian. A value is a tree: an object that occurs twice is written twice.

Decides which values can be encoded, and how; does not know their meaning, and never unpickles a
blob. Guarantees: a decoded value is equal, with the same types, and arrays keep C or Fortran order,
as sums depend on it (other arrays, and those of objects, become C order); any bytes give a value or
a FrameError, with memory in proportion to the input; nothing is evaluated. Cyclic or too deeply
nested values, and texts that are not valid UTF-8, cannot be encoded.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from math import prod
from struct import Struct, unpack_from
from struct import error as StructError
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
import ormsgpack
from numpy.typing import NDArray
from ormsgpack import Ext

from penstock.errors import text_of
from penstock.executors.transport.frames import FrameError

Array: TypeAlias = NDArray[Any]
Buffer: TypeAlias = bytes | bytearray | memoryview

LARGE: Final = 64 * 1024
"""Bytes from which on an array goes to shared memory, or is a separate part that is not copied."""

TUPLE, OBJECTS, BIG_INT, NUMPY_STR, NUMPY_BYTES, SCALAR = range(1, 7)
ARRAY, PART_ARRAY, SLAB_ARRAY, BLOB, STORED = range(7, 12)

_TURNED: Final = 128  # added to the number of axes, of which numpy allows fewer
_SCALARS: Final = frozenset((type(None), bool, int, float, str, bytes))
_LENGTH: Final = Struct("<I")
_REF: Final = Struct("<IQQ")
_OPTIONS: Final = (
    ormsgpack.OPT_PASSTHROUGH_BIG_INT
    | ormsgpack.OPT_PASSTHROUGH_DATACLASS
    | ormsgpack.OPT_PASSTHROUGH_DATETIME
    | ormsgpack.OPT_PASSTHROUGH_ENUM
    | ormsgpack.OPT_PASSTHROUGH_SUBCLASS
    | ormsgpack.OPT_PASSTHROUGH_TUPLE
    | ormsgpack.OPT_PASSTHROUGH_UUID
)
_ANY_KEYS: Final = ormsgpack.OPT_NON_STR_KEYS

_FIXED: Final = (
    *("|b1", "|i1", "|u1"),
    *(order + name for order in "<>" for name in ("i2", "i4", "i8", "u2", "u4", "u8")),
    *(order + name for order in "<>" for name in ("f2", "f4", "f8", "f16")),
    *(order + name for order in "<>" for name in ("c8", "c16", "c32")),
)
_DTYPES: Final = {name.encode(): np.dtype(name) for name in _FIXED}
_DTYPE_NAMES: Final = {dtype: name for name, dtype in _DTYPES.items()}
_SIZED: Final = re.compile(
    rb"\|S[1-9][0-9]{0,8}|[<>]U[1-9][0-9]{0,7}|[<>][mM]8(\[([1-9][0-9]{0,8})?[a-zA-Z]+\])?"
)
_MAX_NAME: Final = 32
_NOTHING: Final = memoryview(b"")
_OBJECT: Final = type(np.dtype(object))


class OnlyPickledError(FrameError):
    """A value that only a pickle can encode, where pickles are not allowed."""


class Ref(NamedTuple):
    """The place of an array's bytes in shared memory."""

    slab: int
    offset: int
    nbytes: int


@dataclass(frozen=True, slots=True, repr=False)
class Blob:
    """A pickled value, which only a worker may unpickle.

    Attributes:
        data: its pickle.
        type_name: the name of its type, for messages.
    """

    data: bytes
    type_name: str


@dataclass(frozen=True, slots=True)
class Stored:
    """Stands for a value whose octets are in an external store.

    Those of equal heads are equal: requests with values of the same type and shape share a batch.

    Attributes:
        key: under which they are stored.
        number: of the value, among those with this key.
        head: of an array, as in the module; empty for octets.
        nbytes: how many octets they are.
    """

    key: str = field(compare=False)
    number: int = field(compare=False)
    head: bytes
    nbytes: int = field(compare=False)

    @classmethod
    def array(
        cls, key: str, number: int, dtype: np.dtype[Any], shape: tuple[int, ...]
    ) -> Stored | None:
        """What stands for an array in C order; None if its dtype cannot be encoded."""
        head = _head(dtype, shape, False)
        if head is None:
            return None
        return cls(key, number, head, prod(shape) * dtype.itemsize)

    def form(self) -> tuple[np.dtype[Any], tuple[int, ...]] | None:
        """Dtype and shape of an array in C order; None for anything else."""
        if not self.head:
            return None
        dtype, shape, _, _, turned = _head_of(self.head)
        return None if turned else (dtype, shape)

    def value(self, octets: bytearray) -> Array | bytes:
        """The value; an array is writable, and keeps ``octets``.

        Raises:
            FrameError: these are not its octets.
        """
        if len(octets) != self.nbytes:
            raise FrameError(f"{len(octets)} octets are stored, and not {self.nbytes}")
        if not self.head:
            return bytes(octets)
        dtype, shape, _, _, turned = _head_of(self.head)
        array: Array = np.ndarray(shape, dtype, octets)
        return array.T if turned else array


def storable(value: object, key: str, number: int, least: int) -> tuple[Stored, memoryview] | None:
    """What stands for a value in an external store, and its octets; None if it has fewer than
    ``least``, or is neither an array of numbers or texts nor octets.
    """
    if type(value) is bytes:
        if len(value) < least:
            return None
        return Stored(key, number, b"", len(value)), memoryview(value)
    if type(value) is not np.ndarray or value.nbytes < max(1, least):
        return None
    turned = value.ndim > 1 and value.flags.fnc
    laid = value.T if turned else value
    head = _head(value.dtype, laid.shape, turned)
    if head is None:
        return None
    octets = np.ascontiguousarray(laid).reshape(-1).view(np.uint8).data
    return Stored(key, number, head, laid.nbytes), octets


Place: TypeAlias = Callable[[Array], Ref | None]
"""Copies an array of at least LARGE bytes into shared memory; or returns None: it is sent
inline."""
Fetch: TypeAlias = Callable[[Ref], tuple[Any, int]]
"""Returns the memory and offset of an array's bytes, which are checked to exist."""


def encode(
    value: object,
    *,
    place: Place | None = None,
    pickle: Callable[[Any], bytes] | None = None,
    blobs: bool = True,
) -> list[bytes | memoryview]:
    """Write a value.

    Args:
        value: must not change before the pieces have been sent: they have views of large arrays.
        place: see Place.
        pickle: pickles a value of any other type, which becomes a Blob.
        blobs: whether blobs are allowed.

    Returns:
        The pieces of a body, in order.

    Raises:
        OnlyPickledError: a value has another type, and ``pickle`` is None.
        FrameError: pickling failed, a blob is not allowed, or the value cannot be encoded.
    """
    writer = _Writer(place, pickle, blobs=blobs)
    try:
        plain = writer.pack(value)
        return [_LENGTH.pack(len(plain)), plain, *writer.parts]
    except FrameError:
        raise
    except StructError as error:
        raise FrameError("the value has too many bytes") from error
    except Exception as error:  # it changed meanwhile, or there is no memory
        raise FrameError(f"the value cannot be read: {_text_of(error)}") from error


class _Writer:
    """Writes one value; ``parts`` are its large arrays."""

    __slots__ = ("_blobs", "_error", "_pickle", "_place", "parts")

    def __init__(
        self, place: Place | None, pickle: Callable[[Any], bytes] | None, *, blobs: bool
    ) -> None:
        self.parts: list[memoryview] = []
        self._blobs = blobs
        self._place = place
        self._pickle = pickle
        self._error: Exception | None = None

    def pack(self, value: object) -> bytes:
        """The plain part of the body."""
        try:
            return ormsgpack.packb(value, self._other, _OPTIONS)
        except ormsgpack.MsgpackEncodeError:
            if self._error is not None:  # which the library drops
                raise self._error from None
        self.parts.clear()
        try:  # keys that are no texts take a slower path
            return ormsgpack.packb(value, self._other, _OPTIONS | _ANY_KEYS)
        except ormsgpack.MsgpackEncodeError as error:
            raise self._error or FrameError(f"a value cannot be sent: {error}") from None

    def _other(self, value: Any) -> Any:
        """Encode a value that the library cannot."""
        try:
            return self._extension(value)
        except Exception as error:
            self._error = error
            raise

    def _extension(self, value: Any) -> Any:
        kind = type(value)
        if kind is np.ndarray:
            return self._array(value)
        if kind is tuple:
            return Ext(TUPLE, self.pack(list(value)))
        if kind is int:
            octets = value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)
            return Ext(BIG_INT, octets)
        if kind is np.str_:
            return Ext(NUMPY_STR, str.encode(value))  # str(value) would lose trailing zeros
        if kind is np.bytes_:
            return Ext(NUMPY_BYTES, bytes(value))
        if isinstance(value, np.generic) and kind is value.dtype.type:
            name = _name_of(value.dtype)
            if name is not None:
                return Ext(SCALAR, bytes((len(name),)) + name + value.tobytes())
        if kind is Stored:
            parts = [value.key, value.number, value.head, value.nbytes]
            return Ext(STORED, self.pack(parts))
        return self._blob(value if kind is Blob else self._pickled(value))

    def _array(self, value: Array) -> Ext:
        dtype = value.dtype
        if dtype.kind == "O":
            items = value.reshape(-1).tolist()
            if type(dtype) is _OBJECT and _SCALARS.issuperset(map(type, items)):
                return Ext(OBJECTS, self.pack([list(value.shape), items]))
        turned = value.ndim > 1 and value.flags.fnc  # in Fortran order, and not also in C order
        laid = value.T if turned else value
        head = _head(dtype, laid.shape, turned)
        if head is None:
            return self._blob(self._pickled(value))
        if laid.nbytes < LARGE:
            return Ext(ARRAY, head + laid.tobytes())
        if self._place is not None:
            ref = self._place(laid)
            if ref is not None:
                return Ext(SLAB_ARRAY, head + _REF.pack(*ref))
        self.parts.append(np.ascontiguousarray(laid).reshape(-1).view(np.uint8).data)
        return Ext(PART_ARRAY, head)

    def _pickled(self, value: Any) -> Blob:
        kind = type(value)
        name = kind.__qualname__
        if kind.__module__ != "builtins":
            name = f"{kind.__module__}.{name}"
        if self._pickle is None:
            of = f" of {value.dtype}" if kind is np.ndarray else ""
            raise OnlyPickledError(f"a value of type {name}{of} cannot be sent")
        try:
            return Blob(self._pickle(value), name)
        except BaseException as error:  # pickling runs user code
            text = f"a value of type {name} cannot be pickled: {text_of(error)}"
            raise FrameError(text) from error

    def _blob(self, blob: Blob) -> Ext:
        if not self._blobs:
            raise FrameError(f"a value of type {blob.type_name} cannot be sent here")
        name = blob.type_name.encode(errors="replace")
        return Ext(BLOB, _LENGTH.pack(len(name)) + name + blob.data)


class Decoder:
    """Decodes values from a sender that may be hostile.

    Memory is allocated only for data that has arrived; the library for the plain part does the
    same, and limits the depth.

    Args:
        fetch: see Fetch; an array in shared memory is a view, and as writable as that memory.
            Inline arrays belong to the receiver, and are writable.
        open_blob: unpickles a blob; without it the blob itself is the value.
        stored: returns the value for one that is in an external store; without it such values are
            refused.
    """

    def __init__(
        self,
        fetch: Fetch | None = None,
        open_blob: Callable[[Blob], Any] | None = None,
        stored: Callable[[Stored], Any] | None = None,
    ) -> None:
        self._fetch = fetch
        self._open_blob = open_blob
        self._stored = stored
        self._parts = _NOTHING
        self._part_at = 0
        self._error: Exception | None = None

    def decode(self, body: Buffer) -> Any:
        """Decode the value in ``body``, which may be freed afterwards.

        Raises:
            FrameError: the bytes are no value.
        """
        view = memoryview(body)
        self._error = None
        try:
            end = _LENGTH.size + _LENGTH.unpack_from(view)[0]
            self._parts, self._part_at = view[end:], 0
            value = self._unpack(view[_LENGTH.size : end])
            if self._part_at != len(self._parts):
                raise FrameError("bytes are missing, or follow the value")
        except FrameError:
            raise
        except Exception as error:  # an invalid number, name or shape
            raise FrameError("the bytes are no value") from error
        finally:
            self._parts = _NOTHING  # the body may be large
        return value

    def _unpack(self, plain: Buffer) -> Any:
        try:
            return ormsgpack.unpackb(plain, ext_hook=self._extension, option=_ANY_KEYS)
        except (ValueError, TypeError) as error:
            raise self._error or error from None  # the library drops the hook's exception

    def _extension(self, code: int, data: bytes) -> Any:
        try:
            return self._value(code, data)
        except Exception as error:
            self._error = self._error or error
            raise

    def _value(self, code: int, data: bytes) -> Any:
        if code == ARRAY:
            dtype, shape, _, at, turned = _head_of(data)
            array = _own(dtype, shape, data, at)
        elif code == SLAB_ARRAY:
            dtype, shape, _, at, turned = _head_of(data)
            if self._fetch is None:
                raise FrameError("no array can be in shared memory here")
            array = np.ndarray(shape, dtype, *self._fetch(Ref(*_REF.unpack_from(data, at))))
        elif code == PART_ARRAY:
            dtype, shape, size, _, turned = _head_of(data)
            array = _own(dtype, shape, self._parts, self._part_at)
            self._part_at += size
        else:
            return self._rare(code, data)
        return array.T if turned else array

    def _rare(self, code: int, data: bytes) -> Any:
        if code in (TUPLE, OBJECTS):
            items = self._unpack(data)
            return tuple(items) if code == TUPLE else _objects(*items)
        if code == BIG_INT:
            return int.from_bytes(data, "little", signed=True)
        if code == NUMPY_STR:
            return np.str_(data.decode())
        if code == NUMPY_BYTES:
            return np.bytes_(data)
        if code == SCALAR:
            dtype, at = _dtype_in(data)
            return _own(dtype, (), data, at)[()]
        if code == BLOB:
            end = _LENGTH.size + _LENGTH.unpack_from(data)[0]
            blob = Blob(data[end:], data[_LENGTH.size : end].decode())
            return blob if self._open_blob is None else self._open_blob(blob)
        if code == STORED and self._stored is not None:
            return self._stored(_stored_of(*self._unpack(data)))
        raise FrameError(f"values of kind {code} are not known")


def decode(body: Buffer) -> Any:
    """Decode the value in ``body``, without shared memory; see Decoder."""
    return Decoder().decode(body)


def _text_of(error: BaseException) -> str:
    return f"{type(error).__name__}: {text_of(error)}"


def _name_of(dtype: np.dtype[Any]) -> bytes | None:
    """The encoded name of a dtype; None if it cannot be encoded."""
    known = _DTYPE_NAMES.get(dtype)
    if known is not None:
        return known
    name = dtype.str.encode()
    return name if _SIZED.fullmatch(name) and np.dtype(dtype.str) == dtype else None


@lru_cache(maxsize=256)
def _head(dtype: np.dtype[Any], shape: tuple[int, ...], turned: bool) -> bytes | None:
    """The head of an array; None if its dtype cannot be encoded."""
    name = _name_of(dtype)
    if name is None:
        return None
    axes = len(shape)
    sizes = Struct(f"<B{axes}Q").pack(axes + _TURNED if turned else axes, *shape)
    return bytes((len(name),)) + name + sizes


def _dtype_in(data: bytes) -> tuple[np.dtype[Any], int]:
    """Decode the leading dtype; returns it and its end."""
    end = 1 + data[0]
    name = data[1:end]
    known = _DTYPES.get(name)
    if known is not None:
        return known, end
    if len(name) > _MAX_NAME or not _SIZED.fullmatch(name):
        raise FrameError("a dtype is not known")
    return np.dtype(name.decode()), end


def _head_of(data: bytes) -> tuple[np.dtype[Any], tuple[int, ...], int, int, bool]:
    """Decode an array's head: dtype, shape, number of bytes, the head's end, whether it is
    transposed.
    """
    axes_at = 1 + data[0]
    return _read_head(data[: axes_at + 1 + 8 * (data[axes_at] % _TURNED)])


@lru_cache(maxsize=256)
def _read_head(head: bytes) -> tuple[np.dtype[Any], tuple[int, ...], int, int, bool]:
    """Cached, because the heads of a batch, and of successive batches, are mostly equal."""
    dtype, axes_at = _dtype_in(head)
    shape = unpack_from(f"<{head[axes_at] % _TURNED}Q", head, axes_at + 1)
    return dtype, shape, prod(shape) * dtype.itemsize, len(head), head[axes_at] >= _TURNED


def _own(dtype: np.dtype[Any], shape: tuple[int, ...], data: Buffer, at: int) -> Array:
    """A writable array; numpy checks that its bytes exist."""
    return np.ndarray(shape, dtype, data, at).copy()


def _stored_of(key: str, number: int, head: bytes, nbytes: int) -> Stored:
    if (type(key), type(number), type(head), type(nbytes)) != (str, int, bytes, int):
        raise FrameError("what stands for a stored value does not say which")
    if number < 0 or nbytes < 0 or (head and _head_of(head)[2:4] != (nbytes, len(head))):
        raise FrameError("what stands for a stored value contradicts itself")
    return Stored(key, number, head, nbytes)


def _objects(shape: list[int], items: list[Any]) -> Array:
    """An array of plain Python scalars."""
    if type(items) is not list or not _SCALARS.issuperset(map(type, items)):
        raise FrameError("an array holds what does not belong there")
    array = np.empty(len(items), object)
    array[:] = items
    return array.reshape(shape)
