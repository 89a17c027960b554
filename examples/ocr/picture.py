"""From the base64 text of a request to the pixels of a picture, or a reason why not.

The size is read from the file's header and judged before anything is decoded, because a few
kilobytes can claim any number of pixels.
"""

from __future__ import annotations

import base64
import io
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

MAX_PIXELS = 64_000_000  # about 200 MB once decoded
MAX_ASPECT = 100  # enlarging a longer sliver until a letter could be read takes gigabytes
FORMATS = ("PNG", "JPEG", "BMP", "GIF", "PPM", "TIFF", "WEBP")


class PictureError(ValueError):
    """The value cannot be read as a picture; the text says why, fit for the caller."""


class NotAPictureError(PictureError):
    """The value is no base64 text, or its bytes are in none of ``FORMATS``."""


class TooLargeError(PictureError):
    """The picture has more than ``MAX_PIXELS``."""


class TooNarrowError(PictureError):
    """One side is more than ``MAX_ASPECT`` times the other."""


def decode_picture(value: Any) -> NDArray[np.uint8]:
    """The picture in a request's value.

    Transparent pixels show white. The first frame of several counts. Turning marks in photos'
    metadata are not followed: the boxes belong to the pixels as they are stored.

    Args:
        value: base64 text of an encoded picture; white space in it is ignored.

    Returns:
        ``[height, width, 3]`` uint8, blue first.

    Raises:
        PictureError: one of its three kinds.
    """
    with _open(_encoded(value)) as image:
        _check_size(*image.size)
        try:
            rgb = _rgb(image)
        except Exception as error:
            # Pillow's decoders raise whatever the broken bytes happen to cause.
            raise NotAPictureError(f"the picture is damaged: {error}") from error
    return np.ascontiguousarray(rgb[:, :, ::-1])


def _encoded(value: Any) -> bytes:
    if not isinstance(value, str):
        raise NotAPictureError('the key "image" must hold a picture as base64 text')
    try:
        return base64.b64decode("".join(value.split()), validate=True)
    except ValueError as error:
        raise NotAPictureError(f'the value of "image" is not base64 text: {error}') from error


def _open(encoded: bytes) -> Image.Image:
    try:
        return Image.open(io.BytesIO(encoded), formats=FORMATS)
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        # Pillow's own limits are higher than ours, so this is always too large for us.
        raise TooLargeError(_too_large("far more")) from error
    except Exception as error:
        # Headers, too, can break a decoder in any way.
        known = ", ".join(FORMATS)
        raise NotAPictureError(f"the bytes are not a picture ({known} are read)") from error


def _check_size(width: int, height: int) -> None:
    if width * height > MAX_PIXELS:
        raise TooLargeError(_too_large(f"{width} x {height}"))
    if max(width, height) > MAX_ASPECT * min(width, height):
        raise TooNarrowError(
            f"the picture has {width} x {height} pixels; one side may be at most "
            f"{MAX_ASPECT} times the other"
        )


def _too_large(size: str) -> str:
    return f"the picture has {size} pixels; at most {MAX_PIXELS // 1_000_000} million are read"


def _rgb(image: Image.Image) -> NDArray[np.uint8]:
    if image.mode.startswith("I;16"):
        # Pillow would clip sixteen bits to eight instead of scaling them.
        grey = (np.asarray(image, dtype=np.uint16) >> 8).astype(np.uint8)
        return np.repeat(grey[:, :, np.newaxis], 3, axis=2)
    if image.has_transparency_data:
        layer = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", layer.size, "white"), layer)
    return np.asarray(image.convert("RGB"))
