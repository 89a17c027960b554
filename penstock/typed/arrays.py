"""``Array`` and ``Image``: annotations of parameters for types that JSON lacks.

    x: Annotated[np.ndarray, Array("float32", (None, 3))]
    picture: Annotated[np.ndarray, Image()]

A request has an array as nested lists of numbers, or as the bytes of an ``.npy`` file; an answer
has nested lists. A request has an image as the bytes of a file (PNG, JPEG, WebP, GIF, BMP, TIFF),
which are Base64 in JSON. ``penstock.protocols.json_numbers`` has the rule for NaN, infinities and
large integers.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar, Final

import numpy as np
from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic_core import CoreSchema, core_schema

from penstock.protocols import json_numbers, npy
from penstock.protocols.array_text import parse_array
from penstock.typed import pictures
from penstock.typed.base64_bytes import binary, text

_MOST_PIXELS = 64_000_000
"""Default maximum of an image's pixels: 192 MB as RGB."""

IMAGE: Final = "image/*"
"""The media type of an ``Image`` in schemas."""

AS_FILES: Final = {"images": "files"}
"""Pydantic's context in which images are written as the bytes of files."""


@dataclass(frozen=True, slots=True)
class Array:
    """Annotates a numpy array with its dtype and shape.

    Args:
        dtype: the numpy dtype: bool, integers and floats, whose range numbers must not exceed; or
            ``str``.
        shape: the dimensions; None or a name for any size. Without a shape: any shape.

    A function gets an array that it may change.
    """

    takes_file: ClassVar = True
    dtype: str
    shape: Sequence[int | str | None] | None = None

    def __post_init__(self) -> None:
        try:
            kind = np.dtype(self.dtype).kind
        except TypeError:
            raise ValueError(
                f"the dtype of an array is such as 'float32', not {self.dtype!r}"
            ) from None
        if kind not in "biufU":
            instead = _INSTEAD.get(kind, "write a list of another type")
            raise ValueError(
                f"an array of {self.dtype} cannot be sent: the dtype is one of bool, integers,"
                f" floats, or 'str'; {instead}"
            )
        for size in self.shape or ():
            if isinstance(size, int) and size < 0:
                raise ValueError(
                    f"the shape of an array has no size {size}: write None for any size, as in"
                    f" {tuple(None if size == each else each for each in self.shape or ())}"
                )

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(
            self._validated,
            serialization=core_schema.plain_serializer_function_ser_schema(
                json_numbers.listed, when_used="json"
            ),
        )

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        return nested(np.dtype(self.dtype), self.shape)

    def _validated(self, value: Any) -> np.ndarray[Any, Any]:
        try:
            if _dtype(self.dtype).kind == "U":
                array = _texts(value, _dtype(self.dtype))
            elif type(value) is list:
                array = json_numbers.array(value, _dtype(self.dtype))
            elif isinstance(value, bytes):
                array = npy.read(value)
            elif isinstance(value, str):  # arrays as text, from clients of the pipeline protocol
                array = parse_array(value)
            else:
                array = np.asarray(value)
            dtype = _dtype(self.dtype)
            if array.dtype != dtype and dtype.kind != "U":
                array = _cast(array, dtype)
            elif not array.flags.writeable:  # the bytes of a request are shared
                array = array.copy()
        except (ValueError, TypeError, OverflowError) as error:
            raise ValueError(f"no array of {self.dtype}: {_brief(error)}") from None
        if array.shape != self.shape:
            self._check_shape(array.shape)
        return array

    def _check_shape(self, found: tuple[int, ...]) -> None:
        shape = self.shape
        if shape is None:
            return
        fits = len(found) == len(shape) and all(
            not isinstance(want, int) or want == size
            for want, size in zip(shape, found, strict=True)
        )
        if not fits:
            wanted = ", ".join("any" if size is None else str(size) for size in shape)
            raise ValueError(f"an array of shape ({wanted}) is wanted, got {found}")


def nested(dtype: np.dtype[Any], shape: Sequence[int | str | None] | None) -> dict[str, Any]:
    """Return the JSON Schema of an array as nested lists.

    Args:
        dtype: the numpy dtype; ``object`` for texts.
        shape: the dimensions; None or a name for any size. Without a shape: any shape.
    """
    name = "str" if dtype.kind == "U" else dtype
    if shape is None:
        return {"description": f"array of {name}, of any shape"}
    kind = {"b": "boolean", "U": "string", "O": "string"}
    found: dict[str, Any] = {"type": kind.get(dtype.kind, "integer")}
    if dtype.kind == "f":
        found = {
            "description": "a number; null is NaN",
            "anyOf": [
                {"type": "number"},
                {"type": "null"},
                {"enum": ["NaN", "Infinity", "-Infinity"]},
            ],
        }
    for size in reversed(shape):
        found = {"type": "array", "items": found}
        if isinstance(size, int):
            found |= {"minItems": size, "maxItems": size}
    sizes = " × ".join("any" if size is None else str(size) for size in shape) or "scalar"
    return {**found, "description": f"array of {name}, {sizes}"}


_INSTEAD: Final = {
    "O": "for texts write 'str', else a list of a type",
    "M": "for times write list[datetime]",
    "m": "for times write list[timedelta]",
    "S": "for bytes write list[bytes]",
    "c": "for complex numbers write an array of floats with an axis of two",
}
"""What to write instead of these kinds of dtypes."""

_MOST_TEXTS: Final = 256 << 20
"""Bytes of an array of texts, each of which takes as many as the longest."""


def _texts(value: Any, dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """Return an array of texts, which must be texts already, and not change in numpy."""
    if isinstance(value, (bytes, str)):
        value = npy.read(value) if isinstance(value, bytes) else parse_array(value)
    array = np.array(value, dtype=object)
    if not all(isinstance(each, str) for each in array.flat):
        raise TypeError("its elements are not all texts, or its lists differ in length")
    longest = max(map(len, array.flat), default=1)
    if dtype.itemsize and 4 * longest > dtype.itemsize:
        raise TypeError(f"it has texts of more than {dtype.itemsize // 4} characters")
    if 4 * longest * array.size > _MOST_TEXTS:
        raise TypeError(f"its texts take more than {_MOST_TEXTS >> 20} MiB, as one is long")
    if any(each.endswith("\0") for each in array.flat):
        raise TypeError("it has a text that ends with U+0000, which numpy removes")
    return array.astype(dtype if dtype.itemsize else f"U{max(longest, 1)}")


_DOUBLE = 8  # bytes of a float that can hold every JSON number
_FEW = 1024
_MOST_SQUARED = float(np.finfo(np.float32).max) ** 2
_dtype = lru_cache(maxsize=64)(np.dtype)


def _cast(array: np.ndarray[Any, Any], dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """Cast an array; numbers outside the dtype's range are refused."""
    theirs, ours = array.dtype.kind, dtype.kind
    if array.size == 0:
        return array.astype(dtype)
    if theirs not in "biuf" or ours not in "biuf":
        raise TypeError(f"its elements are of {array.dtype}")
    if ours == "f":
        if dtype.itemsize == _DOUBLE or _surely_fits(array, dtype):
            return array.astype(dtype)
        try:
            with np.errstate(over="raise"):
                return array.astype(dtype)
        except FloatingPointError:
            raise TypeError("it has numbers that are too large") from None
    if ours == "b" and theirs != "b":
        raise TypeError("its elements are numbers")
    with np.errstate(invalid="ignore"):
        cast = array.astype(dtype)
    if not np.array_equal(cast, array):
        raise TypeError("it has numbers that are no such integers")
    return cast


def _surely_fits(array: np.ndarray[Any, Any], dtype: np.dtype[Any]) -> bool:
    """Whether a cheap test shows that all numbers are in range.

    For small arrays numpy's own check costs four times the cast. The sum of squares is an upper
    bound of each square; with NaN or overflow, the comparison is false.
    """
    return (
        array.size <= _FEW
        and array.dtype == np.float64
        and dtype == np.float32
        and bool(np.vdot(array, array) < _MOST_SQUARED)
    )


def _brief(error: Exception) -> str:
    return str(error).splitlines()[0][:200] if str(error) else type(error).__name__


@dataclass(frozen=True, slots=True)
class Image:
    """Annotates a numpy array that is decoded from an image file: height × width × channels.

    Args:
        mode: ``RGB`` or ``RGBA`` (uint8), ``L`` (grey, uint8, height × width), ``I;16`` (grey,
            uint16, height × width) or ``F`` (grey, float32, height × width, with the file's own
            values). The image is rotated by its EXIF data, and converted; pictures of 16 bits and
            of floats are scaled.
        max_pixels: larger images are refused before they are decoded.
        formats: the formats that are decoded, by Pillow's names; ``AVIF`` and ``JPEG2000`` can be
            added.

    Needs the package Pillow (``pip install 'penstock-serving[images]'``).
    """

    takes_file: ClassVar = True
    mode: str = "RGB"
    max_pixels: int = _MOST_PIXELS
    formats: Sequence[str] = pictures.DEFAULT_FORMATS

    def __post_init__(self) -> None:
        if self.mode not in pictures.MODES:
            raise ValueError(f"the mode of an image is one of {', '.join(pictures.MODES)}")
        formats = (self.formats,) if isinstance(self.formats, str) else tuple(self.formats)
        for each in formats:
            if each not in pictures.MEDIA:
                raise ValueError(
                    f"{each!r} is no format of images that is decoded: they are"
                    f" {', '.join(pictures.MEDIA)}; for another, take bytes, and decode them"
                )
        object.__setattr__(self, "formats", formats)

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(
            self.decode,
            serialization=core_schema.plain_serializer_function_ser_schema(
                self._written, info_arg=True
            ),
        )

    @property
    def media_types(self) -> tuple[str, ...]:
        """The media types of an answer that is an image; the first is the default."""
        return tuple(pictures.MEDIA[each] for each in self.formats)

    def file(self, value: np.ndarray[Any, Any], kind: str) -> bytes:
        """Encode an image as a file.

        Args:
            value: the image.
            kind: of ``media_types``.

        Raises:
            ValueError: the array is no image.
        """
        form = next(each for each in self.formats if pictures.MEDIA[each] == kind)
        return pictures.encode(value, form)

    def _written(self, value: np.ndarray[Any, Any], info: core_schema.SerializationInfo) -> Any:
        """A file, in Base64 in JSON; an array for ops."""
        if info.mode != "json" and info.context is not AS_FILES:
            return value
        data = self.file(value, self.media_types[0])
        return text(data) if info.mode == "json" else data

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        return {
            "type": "string",
            "contentEncoding": "base64",
            "contentMediaType": IMAGE,
            "description": "an image file",
        }

    def decode(self, value: Any) -> np.ndarray[Any, Any]:
        """Decode a file's bytes, or their Base64; an array, or an image of Pillow, is not decoded.

        Raises:
            ValueError: the bytes are not a readable image, or it is too large.
            ServiceBusy: its pixels do not fit into the bytes in flight now.
        """
        if isinstance(value, np.ndarray):
            return value
        if (
            not isinstance(value, (bytes, str))
            and (picture := pictures.of_pillow(value)) is not None
        ):
            return picture
        return pictures.decode(binary(value), self.mode, self.formats, self.max_pixels)


_MEDIA_TYPE: Final = re.compile(r"[a-z]+/[a-z0-9.+-]+")


@dataclass(frozen=True, slots=True)
class Media:
    """Annotates bytes with their media type.

        def speak(text: str) -> Annotated[bytes, Media("audio/wav")]

    An answer that is such bytes as a whole is sent as they are, with this type, unless ``Accept``
    asks for JSON or msgpack. A request may be such bytes as a whole.

    Args:
        kind: such as ``audio/wav``.
    """

    kind: str

    def __post_init__(self) -> None:
        if not _MEDIA_TYPE.fullmatch(self.kind):
            raise ValueError(f"a media type is such as 'audio/wav', not {self.kind!r}")

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        return {**handler(schema), "contentMediaType": self.kind}

    @property
    def media_types(self) -> tuple[str, ...]:
        """The media type of an answer."""
        return (self.kind,)

    def file(self, value: bytes | str, kind: str) -> bytes:
        """Return the bytes; a text in UTF-8."""
        return value.encode() if isinstance(value, str) else value
