"""Reading lines: crops become the recogniser's batches, its probabilities become text."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from strips import HEIGHT, Picture, aspect, by_shape, padded_strips

NARROWEST = 320  # batches are at least this wide, as the recogniser was trained
BLANK = 0  # the class that separates letters


def recogniser_inputs(crops: Sequence[Picture]) -> list[NDArray[np.float32]]:
    """The crops as batches ``[n, 3, 48, width]``, in the order of ``by_shape``.

    Each batch is as wide as its widest crop needs.
    """
    batches = [[crops[i] for i in batch] for batch in by_shape(crops)]
    return [padded_strips(batch, _width(batch)) for batch in batches]


def read_lines(
    crops: Sequence[Picture], probabilities: Sequence[NDArray[np.float32]], characters: str
) -> list[tuple[str, float]]:
    """Text and confidence of every crop.

    Args:
        crops: those given to ``recogniser_inputs``.
        probabilities: per batch ``[n, steps, classes]``.
        characters: the recogniser's dictionary, one letter per class after the blank.
    """
    lines = [("", 0.0)] * len(crops)
    for batch, scores in zip(by_shape(crops), probabilities, strict=True):
        for i, steps in zip(batch, scores, strict=True):
            lines[i] = read_line(steps, characters)
    return lines


def read_line(steps: NDArray[np.float32], characters: str) -> tuple[str, float]:
    """The most likely text of one line, and the mean probability of its letters.

    The best class of each step is taken; repeats are one letter, blanks are none.

    Args:
        steps: ``[steps, classes]``.
        characters: one letter per class after the blank.
    """
    best = steps.argmax(axis=1)
    kept = best != BLANK
    kept[1:] &= best[1:] != best[:-1]
    if not kept.any():
        return "", 0.0
    text = "".join(characters[i - 1] for i in best[kept])
    return text, float(steps.max(axis=1)[kept].mean(dtype=np.float64))


def _width(batch: Sequence[Picture]) -> int:
    return int(HEIGHT * max(NARROWEST / HEIGHT, *(aspect(crop) for crop in batch)))
