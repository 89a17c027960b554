"""Turning lines that stand on their heads."""

from __future__ import annotations

from collections.abc import Sequence

import cv2
import numpy as np
from numpy.typing import NDArray
from strips import Picture, by_shape, padded_strips

WIDTH = 192
UPSIDE_DOWN = 1  # the classifier's second class; the first is "upright"
SURE = 0.9  # turning a line by mistake loses it, so the classifier must be this sure


def classifier_inputs(crops: Sequence[Picture]) -> list[NDArray[np.float32]]:
    """The crops as batches ``[n, 3, 48, 192]``, in the order of ``by_shape``."""
    return [padded_strips([crops[i] for i in batch], WIDTH) for batch in by_shape(crops)]


def turned_upright(
    crops: Sequence[Picture], probabilities: Sequence[NDArray[np.float32]]
) -> list[Picture]:
    """The crops, those that surely stand on their heads turned by 180 degrees.

    Args:
        crops: those given to ``classifier_inputs``; not changed.
        probabilities: per batch ``[n, 2]``.
    """
    upright = list(crops)
    for batch, scores in zip(by_shape(crops), probabilities, strict=True):
        for i, score in zip(batch, scores, strict=True):
            if score[UPSIDE_DOWN] > SURE:
                upright[i] = cv2.rotate(crops[i], cv2.ROTATE_180)
    return upright
