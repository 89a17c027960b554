"""What readers accept as an array, and what they say of anything else."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def numbers(user: str, value: object, *axes: int) -> NDArray[Any]:
    """The value as an array of numbers, not copied if it is one.

    Args:
        user: the reader that was given the value; errors begin with its name.
        value: an array, or anything that numpy makes one of.
        axes: the numbers of axes that are accepted; without any, all are.

    Raises:
        TypeError: not numbers.
        ValueError: another number of axes.
    """
    array = np.asarray(value)
    if array.dtype.kind not in "biuf":
        raise TypeError(f"{user} takes an array of numbers, got {type(value).__name__}")
    if axes and array.ndim not in axes:
        wanted = " or ".join(map(str, axes))
        raise ValueError(f"{user} takes an array of {wanted} axes, got shape {array.shape}")
    return array


def picture(user: str, value: object) -> NDArray[Any]:
    """The value as ``[height, width, channels]`` or ``[height, width]``, with pixels in it.

    Raises:
        TypeError: not numbers.
        ValueError: another number of axes, or no pixels.
    """
    array = numbers(user, value, 2, 3)
    if not array.size:
        raise ValueError(f"{user} takes a picture, got shape {array.shape}, which has no pixels")
    return array
