"""Functions over one picture. None of them changes the array that it is given.

A picture is ``[height, width, channels]`` or ``[height, width]``, of any dtype that OpenCV takes.
The order of the arithmetic is that of Paddle Serving 0.9, so that the numbers are equal bit by bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paddle_serving_app.reader.arrays import numbers, picture
from paddle_serving_app.reader.libraries import opencv

UNLIMITED = 2147483647  # the original's default for the longest side


def transpose(img: NDArray[Any], transpose_target: Sequence[int]) -> NDArray[Any]:
    """A view of the array with its axes in the order ``transpose_target``.

    Raises:
        ValueError: the order does not name every axis once.
    """
    array = numbers("Transpose", img)
    if sorted(transpose_target) != list(range(array.ndim)):
        raise ValueError(
            f"Transpose({tuple(transpose_target)}) does not fit an array of shape {array.shape}"
        )
    return array.transpose(transpose_target)


def normalize(
    img: NDArray[Any],
    mean: Sequence[float],
    std: Sequence[float],
    channel_first: bool,
    user: str = "Normalize",
) -> NDArray[np.float32]:
    """``(img - mean) / std`` for each channel, in float32.

    Args:
        img: ``[height, width, channels]``, or ``[channels, height, width]`` if ``channel_first``.
        mean: one number for each channel.
        std: likewise.
        channel_first: where the channels are.
        user: the reader that errors name.

    Raises:
        TypeError: not an array of numbers.
        ValueError: another number of channels than of means.
    """
    result = np.array(numbers(user, img, 3), dtype=np.float32)
    if result.shape[0 if channel_first else 2] != len(mean):
        where = "first" if channel_first else "last"
        raise ValueError(
            f"{user} takes {len(mean)} channels on the {where} axis, got shape {result.shape}"
        )
    shape = (-1, 1, 1) if channel_first else (1, 1, -1)
    # Mean and deviation in double precision, and a rounding after each step.
    result -= np.array(mean, dtype=np.float64).reshape(shape)
    result /= np.array(std, dtype=np.float64).reshape(shape)
    return result


def crop(img: NDArray[Any], target_size: int, center: bool) -> NDArray[Any]:
    """A view of a square of ``target_size`` pixels: the centre, or a random place.

    Raises:
        ValueError: the picture is smaller than the square.
    """
    array = picture("CenterCrop", img)
    height, width = array.shape[:2]
    spare_rows, spare_columns = height - target_size, width - target_size
    if min(spare_rows, spare_columns) < 0:
        raise ValueError(
            f"CenterCrop({target_size}) takes a picture of at least that size,"
            f" got shape {array.shape}"
        )
    if center:
        top, left = spare_rows // 2, spare_columns // 2
    else:
        left, top = np.random.randint(spare_columns + 1), np.random.randint(spare_rows + 1)
    return array[top : top + target_size, left : left + target_size]


def resize(
    img: NDArray[Any],
    target_size: int | Sequence[int],
    max_size: int = UNLIMITED,
    interpolation: int | None = None,
) -> NDArray[Any]:
    """The picture at another size, of the same dtype and number of axes.

    Args:
        img: ``[height, width, channels]`` or ``[height, width]``.
        target_size: a pair ``(width, height)``; or the length of the short side, where the long one
            follows in proportion.
        max_size: the longest that a side may become.
        interpolation: one of OpenCV's; ``None`` is bilinear. So is 0, OpenCV's number for the
            nearest neighbour, because the original takes it for ``None``.

    Raises:
        TypeError: not an array of numbers.
        ValueError: a size below one pixel, or a dtype that OpenCV does not resize.
    """
    array = picture("Resize", img)
    height, width = array.shape[:2]
    if isinstance(target_size, Sequence):
        new_width, new_height = (min(side, max_size) for side in target_size)
    else:
        longest = max(height, width)
        scale = target_size / min(height, width)
        if np.round(scale * longest) > max_size:
            scale = max_size / longest
        new_width, new_height = round(width * scale), round(height * scale)
    return scaled("Resize", array, new_width, new_height, interpolation)


def scaled(
    user: str, array: NDArray[Any], width: int, height: int, interpolation: int | None = None
) -> NDArray[Any]:
    """The picture at exactly ``width`` and ``height``; errors name the reader ``user``."""
    if width < 1 or height < 1:
        raise ValueError(
            f"{user} would make a picture of {width} x {height} pixels of shape {array.shape}"
        )
    cv2 = opencv(user)
    try:
        result = cv2.resize(array, (width, height), interpolation=interpolation or cv2.INTER_LINEAR)
    except cv2.error as error:
        raise _not_resized(user, array) from error
    return _with_channels(result, array)


def scaled_by(
    user: str, array: NDArray[Any], x_scale: float, y_scale: float, interpolation: int
) -> NDArray[Any]:
    """The picture scaled by factors, which OpenCV also samples with; errors name ``user``."""
    cv2 = opencv(user)
    try:
        result = cv2.resize(array, None, None, fx=x_scale, fy=y_scale, interpolation=interpolation)
    except cv2.error as error:
        raise _not_resized(user, array) from error
    return _with_channels(result, array)


def padded(user: str, img: NDArray[Any], stride: int) -> NDArray[Any]:
    """``[channels, height, width]`` with zeros below and to the right, sides multiples of a stride.

    Returns:
        float32; the array itself, whatever its dtype, if ``stride`` is 0.
    """
    array = numbers(user, img, 3)
    if not stride:
        return array
    channels, height, width = array.shape
    padded_height, padded_width = (-(-side // stride) * stride for side in (height, width))
    result = np.zeros((channels, padded_height, padded_width), dtype=np.float32)
    result[:, :height, :width] = array
    return result


def _with_channels(result: NDArray[Any], original: NDArray[Any]) -> NDArray[Any]:
    # OpenCV drops the axis of a single channel.
    return result if result.ndim == original.ndim else result[:, :, np.newaxis]


def _not_resized(user: str, array: NDArray[Any]) -> ValueError:
    return ValueError(f"{user}: OpenCV does not resize {array.dtype} of shape {array.shape}")
