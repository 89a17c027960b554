"""Transforms of one image, to be chained by ``Sequential``.

By default an image is as OpenCV reads it: uint8 ``[height, width, 3]`` in BGR order. No transform
changes its argument; some return a view of it.
"""

from __future__ import annotations

import base64
import binascii
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from paddle_serving_app.reader import functional
from paddle_serving_app.reader.arrays import image_array, numeric_array
from paddle_serving_app.reader.libraries import opencv


class Transform:
    """Base class of transforms; ``repr`` shows the arguments."""

    def __repr__(self) -> str:
        arguments = ", ".join(f"{name}={value!r}" for name, value in vars(self).items())
        return f"{type(self).__name__}({arguments})"


class Sequential(Transform):
    """Applies callables one after another, each to the previous one's result."""

    def __init__(self, transforms: Sequence[Callable[[Any], Any]]) -> None:
        self.transforms = transforms

    def __call__(self, img: Any) -> Any:
        """Return the last callable's result."""
        for transform in self.transforms:
            img = transform(img)
        return img


class String2Image(Transform):
    """Decodes the bytes of an image file.

    Raises:
        TypeError: the argument is not bytes.
        ValueError: OpenCV cannot decode the bytes.
    """

    def __init__(self) -> None:
        opencv("String2Image")

    def __call__(self, img_buffer: bytes) -> NDArray[np.uint8]:
        """Return the image: uint8 ``[height, width, 3]`` in BGR order."""
        return decoded("String2Image", img_buffer)


class File2Image(Transform):
    """Reads an image file.

    Raises:
        OSError: the file cannot be read.
        ValueError: OpenCV cannot decode the file.
    """

    def __init__(self) -> None:
        opencv("File2Image")

    def __call__(self, img_path: str | os.PathLike[str]) -> NDArray[np.uint8]:
        """Return the image: uint8 ``[height, width, 3]`` in BGR order."""
        return decoded("File2Image", Path(img_path).read_bytes())


class URL2Image(Transform):
    """Not available: callers of a service must not choose the hosts to which it connects.

    Raises:
        NotImplementedError: always.
    """

    def __call__(self, img_url: str) -> NoReturn:
        """Raise."""
        raise NotImplementedError(
            "URL2Image does not fetch: fetch the bytes in code of your own, from hosts that you"
            " trust, and give them to paddle_serving_app.reader.image_reader.String2Image"
        )


class Base64ToImage(Transform):
    """Decodes an image file in base64.

    Raises:
        TypeError: the argument is neither text nor bytes.
        ValueError: the argument is not base64, or OpenCV cannot decode the image.
    """

    def __init__(self) -> None:
        opencv("Base64ToImage")

    def __call__(self, img_base64: str | bytes) -> NDArray[np.uint8]:
        """Return the image: uint8 ``[height, width, 3]`` in BGR order."""
        if not isinstance(img_base64, str | bytes):
            raise TypeError(f"Base64ToImage takes text or bytes, got {type(img_base64).__name__}")
        try:
            data = base64.b64decode(img_base64)
        except (binascii.Error, ValueError) as error:
            raise ValueError(f"Base64ToImage got what is not base64: {error}") from error
        return decoded("Base64ToImage", data)


class RGB2BGR(Transform):
    """Reverses the channels, which are on the last axis. The result is a view."""

    def __call__(self, img: NDArray[Any]) -> NDArray[Any]:
        """Convert ``[height, width, channels]`` of any dtype."""
        return numeric_array(type(self).__name__, img, 3)[:, :, ::-1]


class BGR2RGB(RGB2BGR):
    """Reverses the channels, which are on the last axis. The result is a view."""


class Resize(Transform):
    """Resizes an image; its dtype stays.

    Args:
        size: ``(width, height)``, or the length of the short side.
        max_size: the maximum length of a side.
        interpolation: a flag of OpenCV; bilinear if ``None`` or 0.

    Raises:
        TypeError: the image is not a numeric array.
        ValueError: a side would have no pixel, or OpenCV does not resize the dtype.
    """

    def __init__(
        self,
        size: int | Sequence[int],
        max_size: int = functional.UNLIMITED,
        interpolation: int | None = None,
    ) -> None:
        opencv("Resize")
        if isinstance(size, Sequence) and len(size) != 2:
            raise ValueError(f"Resize takes a number or a pair (width, height), got {size!r}")
        self.size = size
        self.max_size = max_size
        self.interpolation = interpolation

    def __call__(self, img: NDArray[Any]) -> NDArray[Any]:
        """Resize ``[height, width, channels]`` or ``[height, width]``."""
        return functional.resize(img, self.size, self.max_size, self.interpolation)


class ResizeByFactor(Transform):
    """Resizes an image so that its sides are multiples of the network's stride.

    An image whose long side exceeds ``max_side_len`` is scaled down to it. Then a side that is a
    multiple of ``factor`` stays, a side below 2 * ``factor`` becomes ``factor``, and every other
    side becomes (side // ``factor`` - 1) * ``factor``. In the last case the height is a multiple of
    32 instead of ``factor``, as in the original.

    Raises:
        TypeError: the image is not a numeric array.
        ValueError: a side would have no pixel, or OpenCV does not resize the dtype.
    """

    def __init__(self, factor: int = 32, max_side_len: int = 2400) -> None:
        opencv("ResizeByFactor")
        self.factor = factor
        self.max_side_len = max_side_len

    def __call__(self, img: NDArray[Any]) -> NDArray[Any]:
        """Resize ``[height, width, channels]`` or ``[height, width]``."""
        array = image_array("ResizeByFactor", img)
        height, width = array.shape[:2]
        longest = max(height, width)
        ratio = self.max_side_len / longest if longest > self.max_side_len else 1.0
        new_width = self._side(int(width * ratio), self.factor)
        new_height = self._side(int(height * ratio), 32)
        return functional.scaled("ResizeByFactor", array, new_width, new_height)

    def _side(self, side: int, step: int) -> int:
        if side % self.factor == 0:
            return side
        if side // self.factor <= 1:
            return self.factor
        return (side // step - 1) * step


class CenterCrop(Transform):
    """Crops a square with sides of ``size`` pixels from the centre. The result is a view.

    Raises:
        ValueError: the image is smaller.
    """

    def __init__(self, size: int) -> None:
        if not isinstance(size, int) or size < 1:
            raise ValueError(f"CenterCrop takes a number of pixels, got {size!r}")
        self.size = size

    def __call__(self, img: NDArray[Any]) -> NDArray[Any]:
        """Crop ``[height, width, channels]`` or ``[height, width]``."""
        return functional.crop(img, self.size, True)


class Transpose(Transform):
    """Reorders the axes: ``(2, 0, 1)`` puts channels first. The result is a view.

    Raises:
        ValueError: ``transpose_target`` does not name every axis once.
    """

    def __init__(self, transpose_target: Sequence[int]) -> None:
        self.transpose_target = transpose_target

    def __call__(self, img: NDArray[Any]) -> NDArray[Any]:
        """Reorder the axes of an array of any dtype."""
        return functional.transpose(img, self.transpose_target)


class Div(Transform):
    """Divides by a number, in float32."""

    def __init__(self, value: float) -> None:
        if not value:
            raise ValueError("Div cannot divide by zero")
        self.value = value

    def __call__(self, img: NDArray[Any]) -> NDArray[np.float32]:
        """Convert an array of any shape and dtype to float32."""
        return numeric_array("Div", img).astype(np.float32) / np.float32(self.value)


class Normalize(Transform):
    """``(img - mean) / std`` for each channel, in float32.

    Args:
        mean: one number for each channel, in the unit of the image.
        std: standard deviations, one for each channel, not 0.
        channel_first: the channels are on the first axis instead of the last.

    Raises:
        TypeError: the image is not a numeric array.
        ValueError: the numbers of channels and means differ.
    """

    def __init__(
        self, mean: Sequence[float], std: Sequence[float], channel_first: bool = False
    ) -> None:
        check_deviations("Normalize", mean, std)
        self.mean = mean
        self.std = std
        self.channel_first = channel_first

    def __call__(self, img: NDArray[Any]) -> NDArray[np.float32]:
        """Convert an image of any dtype to float32."""
        return functional.normalize(img, self.mean, self.std, self.channel_first)


class PadStride(Transform):
    """Zero-pads height and width, at the bottom and right, to multiples of the stride.

    The result is float32; with a stride of 0 it is the array itself.
    """

    def __init__(self, stride: int) -> None:
        if stride < 0:
            raise ValueError(f"PadStride takes a stride of 0 or more, got {stride}")
        self.coarsest_stride = stride

    def __call__(self, img: NDArray[Any]) -> NDArray[Any]:
        """Pad ``[channels, height, width]`` of any dtype."""
        return functional.padded("PadStride", img, self.coarsest_stride)


class ImageReader:
    """Converts the bytes of an image file to the input of a classifier.

    Args:
        image_shape: channels, height and width; a square of this height is cropped, unless it is 0.
        image_mean: means of red, green and blue, from 0 to 1.
        image_std: standard deviations of red, green and blue.
        resize_short_size: length of the short side before cropping.
        interpolation: a flag of OpenCV; bilinear if ``None`` or 0.
        crop_center: crop the centre, not a random place.
    """

    def __init__(
        self,
        image_shape: Sequence[int] = (3, 224, 224),
        image_mean: Sequence[float] = (0.485, 0.456, 0.406),
        image_std: Sequence[float] = (0.229, 0.224, 0.225),
        resize_short_size: int = 256,
        interpolation: int | None = None,
        crop_center: bool = True,
    ) -> None:
        opencv("ImageReader")
        check_deviations("ImageReader", image_mean, image_std)
        self.image_mean = image_mean
        self.image_std = image_std
        self.image_shape = image_shape
        self.resize_short_size = resize_short_size
        self.interpolation = interpolation
        self.crop_center = crop_center

    def process_image(self, sample: bytes) -> NDArray[np.float32] | None:
        """Return float32 ``[3, height, width]`` in RGB order; ``None`` if decoding fails."""
        img = _read("ImageReader", sample)
        if img is None:
            return None
        side = self.image_shape[1]
        if side > 0:
            img = functional.resize(img, self.resize_short_size, interpolation=self.interpolation)
            img = functional.crop(img, side, self.crop_center)
        scaled = img[:, :, ::-1].transpose(2, 0, 1).astype(np.float32) / np.float32(255)
        return functional.normalize(scaled, self.image_mean, self.image_std, True, "ImageReader")


def decoded(user: str, data: bytes) -> NDArray[np.uint8]:
    """Decode the bytes of an image file. Errors name the reader ``user``."""
    img = _read(user, data)
    if img is None:
        raise ValueError(f"{user}: OpenCV reads no image from these {len(data)} bytes")
    return img


def check_deviations(user: str, mean: Sequence[float], std: Sequence[float]) -> None:
    """Check that mean and std have the same length, and that no standard deviation is 0."""
    if len(mean) != len(std):
        raise ValueError(f"{user} got {len(mean)} means and {len(std)} deviations")
    if 0 in std:
        raise ValueError(f"{user} got a deviation of 0: {list(std)}")


def _read(user: str, data: bytes) -> NDArray[np.uint8] | None:
    if not isinstance(data, bytes | bytearray | memoryview):
        raise TypeError(f"{user} takes bytes, got {type(data).__name__}")
    if not data:  # OpenCV raises for empty bytes; for other invalid bytes it returns None
        return None
    cv2 = opencv(user)
    img: NDArray[np.uint8] | None = cv2.imdecode(
        np.frombuffer(data, dtype=np.uint8), cv2.IMREAD_COLOR
    )
    return img
