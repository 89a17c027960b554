"""Functions of one image. No function changes its arguments.

An image is ``[height, width, channels]`` or ``[height, width]``, of any dtype that OpenCV takes.
The order of arithmetic operations is that of Paddle Serving 0.9, so that results are bit-identical.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paddle_serving_app.reader.arrays import image_array, numeric_array
from paddle_serving_app.reader.libraries import opencv

UNLIMITED = 2147483647  # the original's default for the longest side


def transpose(img: NDArray[Any], transpose_target: Sequence[int]) -> NDArray[Any]:
    """Return a view of the array with its axes in the order ``transpose_target``.

    Raises:
        ValueError: ``transpose_target`` does not name every axis once.
    """
    array = numeric_array("Transpose", img)
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
    """Compute ``(img - mean) / std`` for each channel, in float32.

    Args:
        img: ``[height, width, channels]``, or ``[channels, height, width]`` if ``channel_first``.
        mean: one number for each channel.
        std: standard deviations, one for each channel.
        channel_first: whether channels are on the first axis instead of the last.
        user: the reader's name, for errors.

    Raises:
        TypeError: the image is not a numeric array.
        ValueError: the numbers of channels and means differ.
    """
    result = np.array(numeric_array(user, img, 3), dtype=np.float32)
    if result.shape[0 if channel_first else 2] != len(mean):
        where = "first" if channel_first else "last"
        raise ValueError(
            f"{user} takes {len(mean)} channels on the {where} axis, got shape {result.shape}"
        )
    shape = (-1, 1, 1) if channel_first else (1, 1, -1)
    # As in the original: float64 means and deviations, rounded to float32 after each operation.
    result -= np.array(mean, dtype=np.float64).reshape(shape)
    result /= np.array(std, dtype=np.float64).reshape(shape)
    return result


def crop(img: NDArray[Any], target_size: int, center: bool) -> NDArray[Any]:
    """Return a view of a square with sides of ``target_size`` pixels, from the centre or at random.

    Raises:
        ValueError: the image is smaller than the square.
    """
    array = image_array("CenterCrop", img)
    height, width = array.shape[:2]
    spare_rows, spare_columns = height - target_size, width - target_size
    if min(spare_rows, spare_columns) < 0:
        raise ValueError(
            f"CenterCrop({target_size}) takes an image of at least that size,"
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
    """Resize an image; dtype and number of axes stay.

    Args:
        img: ``[height, width, channels]`` or ``[height, width]``.
        target_size: ``(width, height)``, or the length of the short side, which keeps the aspect
            ratio.
        max_size: the maximum length of a side.
        interpolation: a flag of OpenCV; ``None`` is bilinear. 0, OpenCV's nearest neighbour, is
            bilinear too, because the original treats it as ``None``.

    Raises:
        TypeError: the image is not a numeric array.
        ValueError: a side would have no pixel, or OpenCV does not resize the dtype.
    """
    array = image_array("Resize", img)
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
    """Resize an image to ``width`` and ``height``. Errors name the reader ``user``."""
    if width < 1 or height < 1:
        raise ValueError(
            f"{user} would make an image of {width} x {height} pixels of shape {array.shape}"
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
    """Resize an image by factors, which OpenCV also samples with. Errors name ``user``."""
    cv2 = opencv(user)
    try:
        result = cv2.resize(array, None, None, fx=x_scale, fy=y_scale, interpolation=interpolation)
    except cv2.error as error:
        raise _not_resized(user, array) from error
    return _with_channels(result, array)


def padded(user: str, img: NDArray[Any], stride: int) -> NDArray[Any]:
    """Zero-pad ``[channels, height, width]``, at the bottom and right, to multiples of a stride.

    Returns:
        float32; if ``stride`` is 0, the array itself.
    """
    array = numeric_array(user, img, 3)
    if not stride:
        return array
    channels, height, width = array.shape
    padded_height, padded_width = (-(-side // stride) * stride for side in (height, width))
    result = np.zeros((channels, padded_height, padded_width), dtype=np.float32)
    result[:, :height, :width] = array
    return result


def _with_channels(result: NDArray[Any], original: NDArray[Any]) -> NDArray[Any]:
    # OpenCV drops the axis of channels if there is one channel.
    return result if result.ndim == original.ndim else result[:, :, np.newaxis]


def _not_resized(user: str, array: NDArray[Any]) -> ValueError:
    return ValueError(f"{user}: OpenCV does not resize {array.dtype} of shape {array.shape}")
