"""Transforms for detectors: they take and return an image and a dict about its size.

The dict has ``im_shape`` (height, width) and ``scale_factor`` (y, x), both float32 ``[2]``. Images
are ``[height, width, 3]`` in RGB order. No transform changes its arguments. Given an image without
a dict, a transform returns ``None`` for the dict. ``DetectionSequential`` is called with a path.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paddle_serving_app.reader import functional
from paddle_serving_app.reader.arrays import image_array, numeric_array
from paddle_serving_app.reader.libraries import opencv
from paddle_serving_app.reader.transforms import Transform, check_deviations, decoded

Info = dict[str, Any]
LINEAR = 1  # bilinear interpolation in OpenCV


class DetectionSequential(Transform):
    """Applies transforms one after another."""

    def __init__(
        self, transforms: Sequence[Callable[[Any, Info | None], tuple[Any, Info | None]]]
    ) -> None:
        self.transforms = transforms

    def __call__(self, im: Any) -> tuple[Any, Info | None]:
        """Return the last transform's image and dict. The first one gets scale factors of 1."""
        info: Info | None = {"scale_factor": np.ones(2, dtype=np.float32), "im_shape": None}
        for transform in self.transforms:
            im, info = transform(im, info)
        return im, info


class DetectionFile2Image(Transform):
    """Reads an image file as uint8 in RGB order.

    Raises:
        OSError: the file cannot be read.
        ValueError: OpenCV cannot decode the file.
    """

    def __init__(self) -> None:
        opencv("DetectionFile2Image")

    def __call__(
        self, img_path: str | os.PathLike[str], im_info: Info | None = None
    ) -> tuple[NDArray[np.uint8], Info | None]:
        """Return the image ``[height, width, 3]``, and its size with scale factors of 1."""
        blue_first = decoded("DetectionFile2Image", Path(img_path).read_bytes())
        im = np.ascontiguousarray(blue_first[:, :, ::-1])
        return im, _with(im_info, im, 1.0, 1.0)


class DetectionBGR2RGB(Transform):
    """Reverses the channels, which are on the last axis. The result is a view."""

    def __call__(
        self, img: NDArray[Any], img_info: Info | None = None
    ) -> tuple[NDArray[Any], Info | None]:
        """Convert ``[height, width, channels]`` of any dtype; the dict is returned unchanged."""
        return numeric_array("DetectionBGR2RGB", img, 3)[:, :, ::-1], img_info


class DetectionResize(Transform):
    """Resizes an image, keeps its dtype, and sets the scale factors.

    Args:
        target_size: ``(height, width)``, or one number for both.
        keep_ratio: keep the aspect ratio: the short side becomes the smaller number, unless the
            long side would exceed the larger one. Otherwise the size is exactly ``target_size``.
        interpolation: a flag of OpenCV; 1 is bilinear.

    Raises:
        TypeError: the image is not a numeric array.
        ValueError: a side is not positive, or OpenCV does not resize the dtype.
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
        """Resize ``[height, width, channels]``; the returned dict has the size and the factors."""
        array = image_array("DetectionResize", im)
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
        mean: one number for each channel; channels are on the last axis.
        std: standard deviations, one for each channel, not 0.
        is_scale: divide by 255 first.

    Raises:
        TypeError: the image is not a numeric array.
        ValueError: the numbers of channels and means differ.
    """

    def __init__(self, mean: Sequence[float], std: Sequence[float], is_scale: bool = True) -> None:
        check_deviations("DetectionNormalize", mean, std)
        self.mean = mean
        self.std = std
        self.is_scale = is_scale

    def __call__(
        self, im: NDArray[Any], im_info: Info | None = None
    ) -> tuple[NDArray[np.float32], Info | None]:
        """Convert ``[height, width, channels]`` to float32; the dict is returned unchanged."""
        array = numeric_array("DetectionNormalize", im, 3).astype(np.float32)
        if self.is_scale:
            array = array / np.float32(255)
        result = functional.normalize(array, self.mean, self.std, False, "DetectionNormalize")
        return result, im_info


class DetectionTranspose(Transform):
    """Reorders the axes: ``(2, 0, 1)`` puts channels first. The result is a view.

    Raises:
        ValueError: ``transpose_target`` does not name every axis once.
    """

    def __init__(self, transpose_target: Sequence[int]) -> None:
        self.transpose_target = transpose_target

    def __call__(
        self, im: NDArray[Any], im_info: Info | None = None
    ) -> tuple[NDArray[Any], Info | None]:
        """Reorder the axes of an array; the dict is returned unchanged."""
        return functional.transpose(im, self.transpose_target), im_info


class DetectionPadStride(Transform):
    """Zero-pads height and width, at the bottom and right, to multiples of the stride.

    The result is float32; with a stride of 0 it is the array itself.
    """

    def __init__(self, stride: int = 0) -> None:
        self.coarsest_stride = max(stride, 0)

    def __call__(
        self, im: NDArray[Any], im_info: Info | None = None
    ) -> tuple[NDArray[Any], Info | None]:
        """Pad ``[channels, height, width]`` of any dtype; the dict is returned unchanged."""
        return functional.padded("DetectionPadStride", im, self.coarsest_stride), im_info


def _with(info: Info | None, im: NDArray[Any], y_scale: float, x_scale: float) -> Info | None:
    if info is None:
        return None
    return {
        **info,
        "im_shape": np.array(im.shape[:2], dtype=np.float32),
        "scale_factor": np.array([y_scale, x_scale], dtype=np.float32),
    }
