"""``acc``: the accuracy of a binary classifier."""

from typing import Any

import numpy as np

__all__ = ["acc"]


def acc(prob: Any, label: Any, threshold: float) -> float:
    """Return the share of examples that are classified correctly.

    Args:
        prob: the probabilities of class 1, one number for each example.
        label: the true classes, 0 or 1, of the same length.
        threshold: a probability above it means class 1.

    Raises:
        ValueError: the lengths differ, or there is no example.
    """
    found, wanted = np.ravel(prob), np.ravel(label)
    if found.shape != wanted.shape or not found.size:
        raise ValueError(
            f"acc needs as many labels as probabilities, got {wanted.size} labels"
            f" and {found.size} probabilities"
        )
    return float(np.mean((found > threshold) == (wanted == 1)))
