"""Transforms of one picture, to be chained by ``Sequential``.

Unless said otherwise, a picture is ``[height, width, 3]``, as OpenCV reads it: uint8 from 0 to 255,
blue first. No transform changes the array that it is given; some return a view of it.
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
from paddle_serving_app.reader.arrays import numbers, picture
from paddle_serving_app.reader.libraries import opencv


class Transform:
    """A step with arguments; it shows them."""

    def __repr__(self) -> str:
        arguments = ", ".join(f"{name}={value!r}" for name, value in vars(self).items())
        return f"{type(self).__name__}({arguments})"


class Sequential(Transform):
    """Applies callables in turn, each to what the one before returned."""

    def __init__(self, transforms: Sequence[Callable[[Any], Any]]) -> None:
        self.transforms = transforms

    def __call__(self, img: Any) -> Any:
        """What the last callable returned."""
        for transform in self.transforms:
            img = transform(img)
        return img


class String2Image(Transform):
    """The bytes of a picture file, as a picture.

    Raises:
        TypeError: not bytes.
        ValueError: OpenCV does not read them.
    """

    def __init__(self) -> None:
        opencv("String2Image")

    def __call__(self, img_buffer: bytes) -> NDArray[np.uint8]:
        """The picture, ``[height, width, 3]`` uint8, blue first."""
        return decoded("String2Image", img_buffer)


class File2Image(Transform):
    """The path of a picture file, as a picture.

    Raises:
        OSError: the file cannot be read.
        ValueError: OpenCV does not read its bytes.
    """

    def __init__(self) -> None:
        opencv("File2Image")

    def __call__(self, img_path: str | os.PathLike[str]) -> NDArray[np.uint8]:
        """The picture, ``[height, width, 3]`` uint8, blue first."""
        return decoded("File2Image", Path(img_path).read_bytes())


class URL2Image(Transform):
    """Does not fetch: whoever calls a service must not choose what the service connects to.

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
    """The bytes of a picture file in base64, text or bytes, as a picture.

    Raises:
        TypeError: neither text nor bytes.
        ValueError: not base64, or OpenCV does not read the bytes.
    """

    def __init__(self) -> None:
        opencv("Base64ToImage")

    def __call__(self, img_base64: str | bytes) -> NDArray[np.uint8]:
        """The picture, ``[height, width, 3]`` uint8, blue first."""
        if not isinstance(img_base64, str | bytes):
            raise TypeError(f"Base64ToImage takes text or bytes, got {type(img_base64).__name__}")
        try:
            data = base64.b64decode(img_base64)
        except (binascii.Error, ValueError) as error:
            raise ValueError(f"Base64ToImage got what is not base64: {error}") from error
        return decoded("Base64ToImage", data)


class RGB2BGR(Transform):
    """Reverses the channels, which are on the last axis; a view."""

    def __call__(self, img: NDArray[Any]) -> NDArray[Any]:
        """``[height, width, channels]`` of any dtype, to the same."""
        return numbers(type(self).__name__, img, 3)[:, :, ::-1]


class BGR2RGB(RGB2BGR):
    """Reverses the channels, which are on the last axis; a view."""


class Resize(Transform):
    """Scales a picture to a size, of the same dtype.

    Args:
        size: a pair ``(width, height)``, or the length of the short side.
        max_size: the longest that a side may become.
        interpolation: one of OpenCV's, bilinear if ``None`` or 0.

    Raises:
        TypeError: not an array of numbers.
        ValueError: a size below one pixel, or a dtype that OpenCV does not resize.
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
        """``[height, width, channels]`` or ``[height, width]``, to the same axes and dtype."""
        return functional.resize(img, self.size, self.max_size, self.interpolation)


class ResizeByFactor(Transform):
    """Scales a picture so that the network's strides divide its sides.

    A picture whose long side is above ``max_side_len`` is scaled down to it. Then a side stays if
    it is a multiple of ``factor``; one below two factors becomes ``factor``; every other becomes
    one multiple less than fits into it. For the height that multiple is of 32 whatever ``factor``
    is, as it was in the original.

    Raises:
        TypeError: not an array of numbers.
        ValueError: nothing would be left of a side, or OpenCV does not resize the dtype.
    """

    def __init__(self, factor: int = 32, max_side_len: int = 2400) -> None:
        opencv("ResizeByFactor")
        self.factor = factor
        self.max_side_len = max_side_len

    def __call__(self, img: NDArray[Any]) -> NDArray[Any]:
        """``[height, width, channels]`` or ``[height, width]``, to the same axes and dtype."""
        array = picture("ResizeByFactor", img)
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
    """Cuts a square of ``size`` pixels out of the centre; a view.

    Raises:
        ValueError: the picture is smaller.
    """

    def __init__(self, size: int) -> None:
        if not isinstance(size, int) or size < 1:
            raise ValueError(f"CenterCrop takes a number of pixels, got {size!r}")
        self.size = size

    def __call__(self, img: NDArray[Any]) -> NDArray[Any]:
        """``[height, width, channels]`` or ``[height, width]``, to ``size`` for both sides."""
        return functional.crop(img, self.size, True)


class Transpose(Transform):
    """Puts the axes into another order, such as ``(2, 0, 1)`` for channels first; a view.

    Raises:
        ValueError: the order does not name every axis once.
    """

    def __init__(self, transpose_target: Sequence[int]) -> None:
        self.transpose_target = transpose_target

    def __call__(self, img: NDArray[Any]) -> NDArray[Any]:
        """An array of as many axes as there are places, of any dtype, to the same."""
        return functional.transpose(img, self.transpose_target)


class Div(Transform):
    """Divides by a number, in float32."""

    def __init__(self, value: float) -> None:
        if not value:
            raise ValueError("Div cannot divide by zero")
        self.value = value

    def __call__(self, img: NDArray[Any]) -> NDArray[np.float32]:
        """An array of any shape and dtype, to float32 of the same shape."""
        return numbers("Div", img).astype(np.float32) / np.float32(self.value)


class Normalize(Transform):
    """``(img - mean) / std`` for each channel, in float32.

    Args:
        mean: one number for each channel, in the unit of the picture.
        std: likewise, none of them 0.
        channel_first: the channels are on the first axis instead of the last.

    Raises:
        TypeError: not an array of numbers.
        ValueError: another number of channels than of means.
    """

    def __init__(
        self, mean: Sequence[float], std: Sequence[float], channel_first: bool = False
    ) -> None:
        check_deviations("Normalize", mean, std)
        self.mean = mean
        self.std = std
        self.channel_first = channel_first

    def __call__(self, img: NDArray[Any]) -> NDArray[np.float32]:
        """``[height, width, channels]`` or channels first, of any dtype, to float32."""
        return functional.normalize(img, self.mean, self.std, self.channel_first)


class PadStride(Transform):
    """Pads ``[channels, height, width]`` with zeros, below and to the right, to multiples.

    Returns:
        float32; with a stride of 0 the array itself.
    """

    def __init__(self, stride: int) -> None:
        if stride < 0:
            raise ValueError(f"PadStride takes a stride of 0 or more, got {stride}")
        self.coarsest_stride = stride

    def __call__(self, img: NDArray[Any]) -> NDArray[Any]:
        """``[channels, height, width]`` of any dtype."""
        return functional.padded("PadStride", img, self.coarsest_stride)


class ImageReader:
    """The bytes of a picture file to what classifiers take.

    Args:
        image_shape: channels, height and width; a square of its height is cut out, unless it is 0.
        image_mean: of red, green and blue, from 0 to 1.
        image_std: likewise.
        resize_short_size: to what length the short side is scaled before.
        interpolation: one of OpenCV's, bilinear if ``None`` or 0.
        crop_center: cut the centre out, instead of a random place.
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
        """``[3, height, width]`` float32, red first; ``None`` if OpenCV does not read the bytes."""
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
    """The bytes of a picture file, as a picture; errors name the reader ``user``."""
    img = _read(user, data)
    if img is None:
        raise ValueError(f"{user}: OpenCV reads no picture from these {len(data)} bytes")
    return img


def check_deviations(user: str, mean: Sequence[float], std: Sequence[float]) -> None:
    """Refuse means and deviations of unlike numbers, and deviations of 0."""
    if len(mean) != len(std):
        raise ValueError(f"{user} got {len(mean)} means and {len(std)} deviations")
    if 0 in std:
        raise ValueError(f"{user} got a deviation of 0: {list(std)}")


def _read(user: str, data: bytes) -> NDArray[np.uint8] | None:
    if not isinstance(data, bytes | bytearray | memoryview):
        raise TypeError(f"{user} takes bytes, got {type(data).__name__}")
    if not data:  # OpenCV raises for these, and returns nothing for all others
        return None
    cv2 = opencv(user)
    img: NDArray[np.uint8] | None = cv2.imdecode(
        np.frombuffer(data, dtype=np.uint8), cv2.IMREAD_COLOR
    )
    return img
