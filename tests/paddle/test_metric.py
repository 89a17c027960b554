"""Metrics of binary classifiers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paddle_serving_client.metric import acc, auc

CLASSES = st.lists(st.integers(0, 1), min_size=2, max_size=20).filter(
    lambda given: len({*given}) == 2
)


@given(st.data(), CLASSES)
def test_auc_is_the_share_of_pairs_in_the_right_order(
    data: st.DataObject, actual: list[int]
) -> None:
    score = st.integers(0, 4).map(lambda number: number / 4)
    scores = data.draw(st.lists(score, min_size=len(actual), max_size=len(actual)))
    ones = [score for each, score in zip(actual, scores, strict=True) if each]
    zeros = [score for each, score in zip(actual, scores, strict=True) if not each]
    pairs = [(one > zero) + (one == zero) / 2 for one in ones for zero in zeros]
    assert auc(actual, scores) == pytest.approx(sum(pairs) / len(pairs))


def test_acc_is_the_share_of_right_classes() -> None:
    assert acc([0.9, 0.2, 1.0, 0.6], [1, 0, 1, 0], 0.5) == 0.75
    assert acc(np.float32([[0.9], [0.2]]), np.int64([[0], [1]]), 0.5) == 0.0


@pytest.mark.parametrize("arguments", [([1, 1], [0.1, 0.2]), ([1, 0], [0.1]), ([], [])])
def test_auc_needs_both_classes_and_a_score_for_each_example(arguments: Any) -> None:
    with pytest.raises(ValueError, match="auc needs a score for each example and both classes"):
        auc(*arguments)


def test_acc_needs_as_many_labels_as_probabilities() -> None:
    with pytest.raises(ValueError, match="got 1 labels and 2 probabilities"):
        acc([0.1, 0.2], [1], 0.5)
