"""Line crops as the models take them: strips of one height, padded to one width, in batches.

How wide a batch is padded changes the recognised probabilities a little, so the rule that groups
crops is part of the result: six at a time, sorted by shape, narrow ones first.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import cv2
import numpy as np
from numpy.typing import NDArray

HEIGHT = 48
BATCH = 6
PIXEL_VALUES = (np.arange(256) / 127.5 - 1).astype(np.float32)
"""What the models want for each pixel value 0 to 255: the range from -1 to 1."""

Picture = NDArray[np.uint8]


def aspect(crop: Picture) -> float:
    """Width over height."""
    return crop.shape[1] / crop.shape[0]


def by_shape(crops: Sequence[Picture]) -> list[list[int]]:
    """Positions of the crops in batches of up to six, from the narrowest to the widest."""
    order = np.argsort(np.array([aspect(crop) for crop in crops])).tolist()
    return [order[start : start + BATCH] for start in range(0, len(order), BATCH)]


def padded_strips(crops: Sequence[Picture], width: int) -> NDArray[np.float32]:
    """Crops scaled to the strip height and padded on the right with zeros.

    Returns:
        ``[n, 3, 48, width]`` from -1 to 1. A crop that would be wider is squeezed.
    """
    strips = np.zeros((len(crops), 3, HEIGHT, width), dtype=np.float32)
    for strip, crop in zip(strips, crops, strict=True):
        filled = min(width, math.ceil(HEIGHT * aspect(crop)))
        pixels = cv2.resize(crop, (filled, HEIGHT))
        strip[:, :, :filled] = PIXEL_VALUES[pixels].transpose(2, 0, 1)
    return strips
