"""Transforms for detectors, which take and return a picture and what happened to its size.

``DetectionSequential`` begins with a path and ends with both. What happened is a dict of
``im_shape``, height and width, and ``scale_factor``, of y and x, each float32 ``[2]``. Pictures are
``[height, width, 3]``, red first. Neither picture nor dict is changed; steps return new ones.
Every step also works with a picture alone, and then returns ``None`` for the dict.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paddle_serving_app.reader import functional
from paddle_serving_app.reader.arrays import numbers, picture
from paddle_serving_app.reader.libraries import opencv
from paddle_serving_app.reader.transforms import Transform, check_deviations, decoded

Info = dict[str, Any]
LINEAR = 1  # OpenCV's number for bilinear interpolation


class DetectionSequential(Transform):
    """Applies the steps in turn.

    Returns:
        The picture and the dict.
    """

    def __init__(
        self, transforms: Sequence[Callable[[Any, Info | None], tuple[Any, Info | None]]]
    ) -> None:
        self.transforms = transforms

    def __call__(self, im: Any) -> tuple[Any, Info | None]:
        """What the last step returned; the first gets the dict with factors of 1."""
        info: Info | None = {"scale_factor": np.ones(2, dtype=np.float32), "im_shape": None}
        for transform in self.transforms:
            im, info = transform(im, info)
        return im, info


class DetectionFile2Image(Transform):
    """The path of a picture file, as a picture of uint8, red first.

    Raises:
        OSError: the file cannot be read.
        ValueError: OpenCV does not read its bytes.
    """

    def __init__(self) -> None:
        opencv("DetectionFile2Image")

    def __call__(
        self, img_path: str | os.PathLike[str], im_info: Info | None = None
    ) -> tuple[NDArray[np.uint8], Info | None]:
        """The picture, ``[height, width, 3]``, and the dict with its size and factors of 1."""
        blue_first = decoded("DetectionFile2Image", Path(img_path).read_bytes())
        im = np.ascontiguousarray(blue_first[:, :, ::-1])
        return im, _with(im_info, im, 1.0, 1.0)


class DetectionBGR2RGB(Transform):
    """Reverses the channels, which are on the last axis; a view."""

    def __call__(
        self, img: NDArray[Any], img_info: Info | None = None
    ) -> tuple[NDArray[Any], Info | None]:
        """``[height, width, channels]`` of any dtype, to the same; the dict as it was."""
        return numbers("DetectionBGR2RGB", img, 3)[:, :, ::-1], img_info


class DetectionResize(Transform):
    """Scales a picture to a size, of the same dtype, and writes down the factors.

    Args:
        target_size: two sides, or one number for both.
        keep_ratio: the short side becomes the smaller of the two, but the long one at most the
            larger. Otherwise the size is exactly ``(height, width)``.
        interpolation: one of OpenCV's; 1 is bilinear.

    Raises:
        TypeError: not an array of numbers.
        ValueError: sides that are not positive, or a dtype that OpenCV does not resize.
    """

    def __init__(
        self,
        target_size: int | Sequence[int],
        keep_ratio: bool = True,
        interpolation: int = LINEAR,
    ) -> None:
        opencv("DetectionResize")
        sides = [target_size] * 2 if isinstance(target_size, int) else list(target_size)
        if len(sides) != 2 or min(sides) < 1:
            raise ValueError(f"DetectionResize takes one or two sides, got {target_size!r}")
        self.target_size = sides
        self.keep_ratio = keep_ratio
        self.interpolation = interpolation

    def __call__(
        self, im: NDArray[Any], im_info: Info | None = None
    ) -> tuple[NDArray[Any], Info | None]:
        """``[height, width, channels]``, to the same dtype; the dict with size and factors."""
        array = picture("DetectionResize", im)
        y_scale, x_scale = self._scales(*array.shape[:2])
        result = functional.scaled_by(
            "DetectionResize", array, x_scale, y_scale, self.interpolation
        )
        return result, _with(im_info, result, y_scale, x_scale)

    def _scales(self, height: int, width: int) -> tuple[float, float]:
        if not self.keep_ratio:
            return self.target_size[0] / height, self.target_size[1] / width
        longest = max(height, width)
        scale = min(self.target_size) / min(height, width)
        if np.round(scale * longest) > max(self.target_size):
            scale = max(self.target_size) / longest
        return scale, scale


class DetectionNormalize(Transform):
    """``(img / 255 - mean) / std`` for each channel, in float32.

    Args:
        mean: one number for each channel, which is on the last axis.
        std: likewise, none of them 0.
        is_scale: divide by 255 first.

    Raises:
        TypeError: not an array of numbers.
        ValueError: another number of channels than of means.
    """

    def __init__(self, mean: Sequence[float], std: Sequence[float], is_scale: bool = True) -> None:
        check_deviations("DetectionNormalize", mean, std)
        self.mean = mean
        self.std = std
        self.is_scale = is_scale

    def __call__(
        self, im: NDArray[Any], im_info: Info | None = None
    ) -> tuple[NDArray[np.float32], Info | None]:
        """``[height, width, channels]`` of any dtype, to float32; the dict as it was."""
        array = numbers("DetectionNormalize", im, 3).astype(np.float32)
        if self.is_scale:
            array = array / np.float32(255)
        result = functional.normalize(array, self.mean, self.std, False, "DetectionNormalize")
        return result, im_info


class DetectionTranspose(Transform):
    """Puts the axes into another order, such as ``(2, 0, 1)`` for channels first; a view.

    Raises:
        ValueError: the order does not name every axis once.
    """

    def __init__(self, transpose_target: Sequence[int]) -> None:
        self.transpose_target = transpose_target

    def __call__(
        self, im: NDArray[Any], im_info: Info | None = None
    ) -> tuple[NDArray[Any], Info | None]:
        """An array of as many axes as there are places; the dict as it was."""
        return functional.transpose(im, self.transpose_target), im_info


class DetectionPadStride(Transform):
    """Pads ``[channels, height, width]`` with zeros, below and to the right, to multiples.

    Returns:
        float32; with a stride of 0 the array itself.
    """

    def __init__(self, stride: int = 0) -> None:
        self.coarsest_stride = max(stride, 0)

    def __call__(
        self, im: NDArray[Any], im_info: Info | None = None
    ) -> tuple[NDArray[Any], Info | None]:
        """``[channels, height, width]`` of any dtype; the dict as it was."""
        return functional.padded("DetectionPadStride", im, self.coarsest_stride), im_info


def _with(info: Info | None, im: NDArray[Any], y_scale: float, x_scale: float) -> Info | None:
    if info is None:
        return None
    return {
        **info,
        "im_shape": np.array(im.shape[:2], dtype=np.float32),
        "scale_factor": np.array([y_scale, x_scale], dtype=np.float32),
    }
