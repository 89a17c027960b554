"""Picture files to arrays and back, by Pillow; only the formats that the caller lists.

A file is untrusted: its pixels are bounded before they are decoded, and every failure of a decoder
is the file's fault. Decoding releases the GIL, or has few enough pixels to hold it shortly, so that
an engine's loop goes on while a thread decodes.
"""

from __future__ import annotations

import ctypes
import io
import re
import struct
from collections.abc import Collection
from contextlib import suppress
from functools import cache
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from penstock.errors import ServiceBusy
from penstock.typed.decoded import DECODED, NeverFits

if TYPE_CHECKING:
    from PIL.Image import Image

DEFAULT_FORMATS: Final = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF")
MEDIA: Final = {
    "PNG": "image/png",
    "JPEG": "image/jpeg",
    "WEBP": "image/webp",
    "GIF": "image/gif",
    "BMP": "image/bmp",
    "TIFF": "image/tiff",
    "AVIF": "image/avif",
    "JPEG2000": "image/jp2",
}
"""The media types of the formats that a route may list, by Pillow's names. Each was tried: none of
them starts a program, as EPS does, and each is bounded in time and memory."""

MODES: Final = {
    "RGB": (3, "uint8"),
    "RGBA": (4, "uint8"),
    "L": (None, "uint8"),
    "I;16": (None, "uint16"),
    "F": (None, "float32"),
}
"""Channels and dtype of the modes of arrays; without an axis of channels: None."""

_LOCKED: Final = {"AVIF": 16_000_000, "JPEG2000": 2_000_000, "WEBP": 8_000_000}
"""Maximum pixels of formats that Pillow decodes with the GIL held: at most a quarter of a second.
Of WebP these are animations."""

_STRIP: Final = 1 << 20  # pixels that are converted at a time, so that no copy of all is needed
_EACH: Final = 12  # bytes of a pixel while it is decoded: file's image, its turned copy, the array
_PROGRESSIVE: Final = 6  # more of them for the coefficients of a progressive JPEG
_MOST_SCANS: Final = 100
_MOST_SCANNED: Final = 1_000_000_000
"""Pixels of all scans of a progressive JPEG, each of which takes time for the whole picture: about
six seconds. Encoders write ten scans or so."""
_MOST_MARKERS: Final = 100_000
"""Bytes that may be markers before a JPEG's first scan: a second for Pillow's loop in Python."""
_MOST_CHUNKS: Final = 1 << 16
"""Chunks of a PNG: two seconds for Pillow. libpng writes one for each 8 KiB."""
_MOST_EXIF: Final = 16
"""Blocks of EXIF in a JPEG, of 64 KiB each; embedded previews may have some of their own."""
_MOST_TAGGED: Final = 1_000_000
"""Numbers in the tags of a TIFF, which become Python objects: two for each strip or tile."""
_BYTES: Final = (1, 2, 6, 7)  # TIFF's types of tags that stay bytes
_SHORT: Final = 3
_TILE_WIDTH: Final = 322
_TILE_LENGTH: Final = 323
_MOST_OF_TILE: Final = 1 << 24  # pixels of one tile of a TIFF, which may exceed the picture
_MOST_RUNS: Final = 1_000_000  # pixels of a BMP in runs, which Pillow decodes in Python

_EIGHT: Final = 0xFF
_SIXTEEN: Final = 0xFFFF
_SCAN: Final = b"\xff\xda\x00"  # a marker, and the begin of a length below 256
_ORIENTATION: Final = 0x0112
_XMP: Final = re.compile(rb'tiff:Orientation(?:="|>)([1-8])')
_TURNS: Final = {2: 0, 3: 3, 4: 1, 5: 5, 6: 4, 7: 6, 8: 2}
"""EXIF's orientations as Pillow's ``Transpose``."""


def prepare() -> None:
    """Import Pillow's decoders, so that the first request does not wait for that."""
    from PIL import Image as pillow

    pillow.init()


def decode(
    data: bytes, mode: str, formats: Collection[str], max_pixels: int
) -> np.ndarray[Any, Any]:
    """Decode a picture file: upright, and converted.

    Args:
        data: the file's bytes.
        mode: of ``MODES``. Pictures of 16 bits and of floats are scaled to it: 0 is black, and
            the largest value white, which is 1.0, 255 or 65535 for floats. ``F`` keeps all values.
        formats: the formats that may be decoded, of ``MEDIA``.
        max_pixels: larger pictures are refused before they are decoded.

    Returns:
        A writable array: height × width × channels, or height × width; see ``MODES``.

    Raises:
        ValueError: the bytes are not a readable picture of these formats, or it is too large.
        ServiceBusy: its pixels do not fit into the bytes in flight now.
    """
    try:
        return _decoded(data, mode, formats, max_pixels)
    except ServiceBusy:
        raise
    except Exception as error:  # noqa: BLE001 - decoders raise any class for a malformed file
        text = str(error).splitlines()[0][:200] if str(error) else type(error).__name__
        problem = (
            text
            if isinstance(error, (_Unreadable, NeverFits))
            else f"no image that can be read: {text}"
        )
    raise ValueError(problem)


class _Unreadable(ValueError):
    """A refusal with a text of ours."""


def _decoded(
    data: bytes, mode: str, formats: Collection[str], max_pixels: int
) -> np.ndarray[Any, Any]:
    from PIL import Image as pillow
    from PIL import UnidentifiedImageError

    _check_structure(data)
    try:
        opened = pillow.open(io.BytesIO(data), formats=tuple(formats))
    except UnidentifiedImageError:
        raise _Unreadable(
            f"no image that can be read: it is none of {', '.join(formats)}"
        ) from None
    with opened as image:
        pixels = image.width * image.height
        if pixels > max_pixels:
            raise _Unreadable(f"an image of {pixels} pixels, more than {max_pixels}")
        if not pixels:
            raise _Unreadable("an image without pixels")
        if image.info.get("progressive") and data.count(_SCAN) * pixels > _MOST_SCANNED:
            raise _Unreadable(f"a JPEG whose scans have more than {_MOST_SCANNED} pixels together")
        each = _EACH + (_PROGRESSIVE if image.info.get("progressive") else 0)
        with DECODED.decoding(each * pixels):
            return DECODED.keep(_array(_upright(_loaded(image, data)), mode))


def _loaded(image: Any, data: bytes) -> Image:
    """Decode the pixels."""
    found = _webp(image, data) if image.format == "WEBP" else None
    if found is not None:
        return found
    if image.tile and image.tile[0][0] == "bmp_rle" and image.width * image.height > _MOST_RUNS:
        raise _Unreadable(f"a BMP in runs of more than {_MOST_RUNS} pixels")
    most = _LOCKED.get(image.format)
    if most is not None and image.width * image.height > most:
        kind = "an animation" if image.format == "WEBP" else "an image"
        raise _Unreadable(f"{kind} in {image.format} of more than {most} pixels")
    image.load()
    return image  # type: ignore[no-any-return]


def _webp(image: Any, data: bytes) -> Image | None:
    """Decode a still WebP with Pillow's own library, but without the GIL, which Pillow holds.

    Returns:
        The picture; None if it is an animation, or not readable in this way.
    """
    from PIL import Image as pillow

    library = _libwebp()
    if library is None or image.n_frames > 1 or image.mode not in ("RGB", "RGBA"):
        return None
    width, height = ctypes.c_int(), ctypes.c_int()
    known = library.WebPGetInfo(data, len(data), ctypes.byref(width), ctypes.byref(height))
    if not known or (width.value, height.value) != image.size:
        return None
    array = np.empty((image.height, image.width, len(image.mode)), np.uint8)
    read = getattr(library, f"WebPDecode{image.mode}Into")
    if not read(data, len(data), array.ctypes.data, array.nbytes, array.strides[0]):
        raise _Unreadable("no image that can be read: the WebP data is damaged")
    found = pillow.fromarray(array)
    found.info = image.info
    return found


@cache
def _libwebp() -> Any:
    """The library that Pillow's module is linked with; None if its functions are not found."""
    from PIL import _webp

    try:
        library = ctypes.CDLL(_webp.__file__)
        sizes = [ctypes.POINTER(ctypes.c_int)] * 2
        library.WebPGetInfo.argtypes = [ctypes.c_char_p, ctypes.c_size_t, *sizes]
        for name in ("WebPDecodeRGBInto", "WebPDecodeRGBAInto"):
            function = getattr(library, name)
            function.restype = ctypes.c_void_p
            function.argtypes = [
                ctypes.c_char_p,
                ctypes.c_size_t,
                ctypes.c_void_p,
                ctypes.c_size_t,
                ctypes.c_int,
            ]
    except (OSError, AttributeError):
        return None
    return library


def _check_structure(data: bytes) -> None:
    """Refuse files whose structure would take time or memory beyond that of their pixels."""
    if data.startswith(b"\xff\xd8"):
        # These bytes are rare elsewhere.
        if data.count(_SCAN) > _MOST_SCANS:
            raise _Unreadable(f"a JPEG of more than {_MOST_SCANS} scans")
        if data.count(b"Exif\0\0") > _MOST_EXIF:
            raise _Unreadable("a JPEG with too much EXIF data")
        if data.count(b"\xff", 0, data.find(_SCAN) + 1 or None) > _MOST_MARKERS:
            raise _Unreadable("a JPEG with too many segments")
    elif data.startswith(b"\x89PNG"):
        _check_chunks(data)
    elif data[:4] in (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+"):
        _check_tags(data)


def _check_chunks(data: bytes) -> None:
    """Refuse a PNG of too many chunks."""
    at, chunks = 8, 0
    while at + 8 <= len(data):
        at += 12 + int.from_bytes(data[at : at + 4], "big")
        chunks += 1
        if chunks > _MOST_CHUNKS:
            raise _Unreadable(f"a PNG of more than {_MOST_CHUNKS} chunks")


def _check_tags(data: bytes) -> None:
    """Refuse a TIFF whose first directory has too many numbers."""
    order = "<" if data[:2] == b"II" else ">"
    if b"+" in data[2:4]:  # BigTIFF
        (at,) = struct.unpack_from(f"{order}Q", data, 8)
        head, entry, value_at = f"{order}Q", struct.Struct(f"{order}HHQQ"), 12
    else:
        (at,) = struct.unpack_from(f"{order}L", data, 4)
        head, entry, value_at = f"{order}H", struct.Struct(f"{order}HHLL"), 8
    (count,) = struct.unpack_from(head, data, at)
    at += struct.calcsize(head)
    room = max(0, len(data) - at) // entry.size
    numbers = 0
    tile = {_TILE_WIDTH: 1, _TILE_LENGTH: 1}
    for index in range(min(count, room)):
        place = at + index * entry.size
        tag, kind, size, value = entry.unpack_from(data, place)
        numbers += 0 if kind in _BYTES else size
        if tag in tile:
            if kind == _SHORT:
                (value,) = struct.unpack_from(f"{order}H", data, place + value_at)
            tile[tag] = max(tile[tag], value)
    if max(count, numbers) > _MOST_TAGGED:
        raise _Unreadable("a TIFF with too many numbers in its tags")
    if tile[_TILE_WIDTH] * tile[_TILE_LENGTH] > _MOST_OF_TILE:
        raise _Unreadable(f"a TIFF with tiles of more than {_MOST_OF_TILE} pixels")


def _upright(image: Image) -> Image:
    """Turn a picture as its EXIF or XMP data says. (Pillow does so for TIFF.)"""
    info = image.info
    exif = info.get("exif") or b""
    raw = info.get("Raw profile type exif")  # ImageMagick's, in a PNG
    if not exif and raw is not None:
        exif = bytes.fromhex("".join(raw.split("\n")[3:]))
    found = _orientation(exif)
    if found is None:
        xmp = info.get("XML:com.adobe.xmp") or info.get("xmp") or b""
        match = _XMP.search(xmp.encode() if isinstance(xmp, str) else xmp)
        found = None if match is None else int(match[1])
    turn = _TURNS.get(found or 1)
    return image if turn is None else image.transpose(turn)  # type: ignore[arg-type]


def _orientation(exif: bytes) -> int | None:
    """The orientation in EXIF data; None if it has none.

    Only this tag is read: others may claim gigabytes.
    """
    exif = exif.removeprefix(b"Exif\0\0").removeprefix(b"Exif\0\0")
    order = {b"II": "<", b"MM": ">"}.get(exif[:2])
    if order is None:
        return None
    with suppress(struct.error):
        (at,) = struct.unpack_from(f"{order}L", exif, 4)
        (count,) = struct.unpack_from(f"{order}H", exif, at)
        for index in range(count):
            tag, _, _, value = struct.unpack_from(f"{order}HHLH", exif, at + 2 + 12 * index)
            if tag == _ORIENTATION:
                return int(value)
    return None


def _array(image: Image, mode: str) -> np.ndarray[Any, Any]:
    """Convert a picture to an array, strip by strip."""
    width, height = image.size
    channels, dtype = MODES[mode]
    array = np.empty((height, width) if channels is None else (height, width, channels), dtype)
    rows = max(1, _STRIP // width)
    strips = [
        (slice(top, top + rows), (0, top, width, min(top + rows, height)))
        for top in range(0, height, rows)
    ]
    deep = image.mode in ("I", "F") or image.mode.startswith("I;16")
    if not deep and mode != "RGBA":
        image.info.pop("transparency", None)  # Pillow warns that it drops it
    top_value = _EIGHT if not deep else _top_value(image, mode, [box for _, box in strips])
    for place, box in strips:
        strip = image.crop(box) if len(strips) > 1 else image
        if deep:
            values = _scaled(np.asarray(strip), mode, top_value)
            array[place] = values if channels is None else values[..., None]
        elif channels is not None or mode == "L":
            array[place] = np.asarray(strip if strip.mode == mode else strip.convert(mode))
        else:
            values = np.asarray(strip.convert("L"))
            array[place] = values if mode == "F" else values * np.uint16(257)
    if deep and mode == "RGBA":
        array[..., 3] = _EIGHT
    return array


def _top_value(image: Image, mode: str, boxes: list[tuple[int, int, int, int]]) -> float:
    """The value of white in a picture of more than 8 bits.

    Raises:
        ValueError: its values do not say which that is.
    """
    if mode == "F" or image.mode.startswith("I;16"):
        return _SIXTEEN
    ranges = [(strip.min(), strip.max()) for strip in (np.asarray(image.crop(b)) for b in boxes)]
    low, high = min(low for low, _ in ranges), max(high for _, high in ranges)
    tops = (_SIXTEEN,) if image.mode == "I" else (1, _EIGHT, _SIXTEEN)
    found = next((each for each in tops if low >= 0 and high <= each), None)
    if found is None or any(np.isnan(each).any() for each in ranges):
        numbers = "integers" if image.mode == "I" else "floats"
        wanted = "0 to 65535" if image.mode == "I" else "0 to 1, 0 to 255 or 0 to 65535"
        raise _Unreadable(
            f"an image of {numbers} from {low} to {high}: which of them is white is only known for"
            f" {wanted}"
        )
    return found


def _scaled(values: np.ndarray[Any, Any], mode: str, top_value: float) -> np.ndarray[Any, Any]:
    """Scale values of 16 or 32 bits to those of a mode."""
    if mode == "F":
        return values
    if top_value == _SIXTEEN and mode == "I;16":
        return values
    if top_value == _SIXTEEN and values.dtype.kind != "f":
        return values >> 8  # as Pillow does for 16 bits of each colour
    most = _SIXTEEN if mode == "I;16" else _EIGHT
    return np.rint(values * (most / top_value))


def of_pillow(value: Any) -> np.ndarray[Any, Any] | None:
    """The array of an image of Pillow; None for any other value."""
    from PIL import Image as pillow

    if not isinstance(value, pillow.Image):
        return None
    mode = value.mode
    if mode not in MODES:
        mode = "RGBA" if "A" in mode or "transparency" in value.info else "RGB"
    return np.array(value if mode == value.mode else value.convert(mode))


def encode(array: np.ndarray[Any, Any], form: str) -> bytes:
    """Encode a picture as a file.

    Args:
        array: uint8, height × width, or height × width × 3 or 4; or uint16, height × width.
        form: of ``MEDIA``. Formats that cannot have the array's channels get it without
            transparency, or with 8 bits.

    Raises:
        ValueError: the array has another dtype or shape.
    """
    from PIL import Image as pillow

    shape = array.shape
    grey = array.ndim == 2 and array.dtype in (np.uint8, np.uint16)
    colour = array.ndim == 3 and array.dtype == np.uint8 and shape[2] in (3, 4)
    if not array.size or not (grey or colour):
        raise ValueError(
            f"a picture is uint8, height × width or height × width × 3 or 4, or uint16, height ×"
            f" width; not {array.dtype} of shape {shape}"
        )
    if array.dtype == np.uint16 and form not in ("PNG", "TIFF", "JPEG2000"):
        array = (array >> 8).astype(np.uint8)
    elif colour and form in ("JPEG", "BMP"):
        array = array[..., :3]
    out = io.BytesIO()
    image = pillow.fromarray(np.ascontiguousarray(array))
    image.save(out, form, **_OPTIONS.get(form, {}))
    return out.getvalue()


_OPTIONS: Final[dict[str, dict[str, Any]]] = {"WEBP": {"lossless": True}, "JPEG": {"quality": 90}}
