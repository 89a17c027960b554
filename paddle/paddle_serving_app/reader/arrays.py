"""Validates the arrays that readers are given."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def numeric_array(user: str, value: object, *axes: int) -> NDArray[Any]:
    """Return the value as a numeric array. An array is not copied.

    Args:
        user: the reader's name, with which errors begin.
        value: an array, or anything that numpy converts to one.
        axes: the accepted numbers of axes; any number if none is given.

    Raises:
        TypeError: the value is not numeric.
        ValueError: the number of axes is not accepted.
    """
    array = np.asarray(value)
    if array.dtype.kind not in "biuf":
        raise TypeError(f"{user} takes an array of numbers, got {type(value).__name__}")
    if axes and array.ndim not in axes:
        wanted = " or ".join(map(str, axes))
        raise ValueError(f"{user} takes an array of {wanted} axes, got shape {array.shape}")
    return array


def image_array(user: str, value: object) -> NDArray[Any]:
    """Return the value as ``[height, width, channels]`` or ``[height, width]``, not empty.

    Raises:
        TypeError: the value is not numeric.
        ValueError: the number of axes differs, or the image has no pixels.
    """
    array = numeric_array(user, value, 2, 3)
    if not array.size:
        raise ValueError(f"{user} takes an image, got shape {array.shape}, which has no pixels")
    return array
