"""``auc``: the area under the ROC curve of a binary classifier."""

from typing import Any

import numpy as np

__all__ = ["auc"]


def auc(actual: Any, posterior: Any) -> float:
    """Return the area under the ROC curve: the share of pairs of an example of class 1 and one of
    class 0 in which the first has the higher score. Equal scores count half.

    Args:
        actual: the true classes, 0 or 1, one for each example.
        posterior: their scores, of the same length.

    Raises:
        ValueError: the lengths differ, or a class has no example.
    """
    positive, scores = np.ravel(actual) == 1, np.ravel(posterior)
    ones = int(np.count_nonzero(positive))
    zeros = positive.size - ones
    if positive.shape != scores.shape or not ones or not zeros:
        raise ValueError(
            f"auc needs a score for each example and both classes, got {scores.size} scores,"
            f" {ones} examples of class 1 and {zeros} of class 0"
        )
    _, group, counts = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[group]  # from 1; equal scores share theirs
    return float((ranks[positive].sum() - ones * (ones + 1) / 2) / (ones * zeros))
