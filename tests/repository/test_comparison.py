"""Answers of two versions are the same within a tolerance, or by the labels they choose."""

from typing import Any

import numpy as np
import pytest

from penstock.repository.comparison import LABEL, Comparison, NotComparable

NAN = float("nan")


def array(*values: Any, dtype: Any = np.float32) -> Any:
    return np.array(values, dtype)


def difference(value: Any, other: Any, by: str = "tolerance") -> str | None:
    comparison = Comparison(by=by, relative=0.01, absolute=0.001)
    return comparison.difference({"y": value}, {"y": other})


@pytest.mark.parametrize(
    ("value", "other"),
    [
        (array(1.0, 2.0), array(1.009, 2.0)),
        (array(0.0), array(0.0009)),
        (array(NAN, 1.0), array(NAN, 1.0)),
        (array(1, 2, dtype=np.int64), array(1, 2, dtype=np.int64)),
        (array("a", "b", dtype="U1"), array("a", "b", dtype="U5")),
        (array("2026-11-27", "NaT", dtype="M8[s]"), array("2026-11-27", "NaT", dtype="M8[s]")),
        (array(), array()),
        (array("cat", 1.0, dtype=object), array("cat", 1.001, dtype=object)),
        ([1.0, [2, "a"]], (1.001, [2, "a"])),
        ({"a": 1.0, "b": None}, {"b": None, "a": 1.0001}),
        (NAN, NAN),
        (np.float32(1.0), 1.0),
        (1, 1.0),
        (np.True_, True),
        ("text", np.str_("text")),
        (b"bytes", b"bytes"),
    ],
)
def test_equal_within_the_tolerance(value: Any, other: Any) -> None:
    assert difference(value, other) is None


@pytest.mark.parametrize(
    ("value", "other", "why"),
    [
        (array(1.0, 2.0), array(1.02, 2.0), "y: 1 of 2 values differ"),
        (array(1.0, 2.0), array(NAN, 2.0), "y: 1 of 2 values differ"),
        (array(1, 2, dtype=np.int64), array(1, 3, dtype=np.int64), "y: 1 of 2 values differ"),
        (array(1.0), array(1.0, dtype=np.float64), "y: float64 [1] instead of float32 [1]"),
        (array(1.0), array(1.0, 1.0), "y: float32 [2] instead of float32 [1]"),
        (array(1.0), [1.0], "y: [1.0] instead of float32 [1]"),
        ([1.0], array(1.0), "y: float32 [1] instead of [1.0]"),
        ("cat", "dog", "y: 'dog' instead of 'cat'"),
        ("1", 1, "y: 1 instead of '1'"),
        (True, 1, "y: 1 instead of True"),
        (1, True, "y: True instead of 1"),
        (1.0, None, "y: None instead of 1.0"),
        ([1, 2], [1], "y: [1] instead of [1, 2]"),
        ({"a": 1}, {"b": 1}, "y: {'b': 1} instead of {'a': 1}"),
        ("a" * 99, "b", "y: 'b' instead of '" + "a" * 59 + " …"),
    ],
)
def test_differences(value: Any, other: Any, why: str) -> None:
    assert difference(value, other) == why


def test_by_label_the_chosen_class_counts() -> None:
    scores = array([0.1, 0.9], [0.8, 0.2])
    assert difference(scores, array([0.4, 0.6], [0.5, 0.1]), LABEL) is None
    why = difference(scores, array([0.6, 0.4], [0.5, 0.1]), LABEL)
    assert why == "y: 1 of 2 values differ"
    assert difference([0.1, 0.9], [0.4, 0.6], LABEL) is None
    assert difference([0.1, 0.9], [0.6, 0.4], LABEL) == "y: 1 of 1 values differ"
    assert difference("cat", "dog", LABEL) == "y: 'dog' instead of 'cat'"


def test_by_label_a_score_without_classes_is_compared_within_the_tolerance() -> None:
    assert difference(array([0.9]), array([0.901]), LABEL) is None
    assert difference(array([0.9]), array([0.2]), LABEL) == "y: 1 of 1 values differ"
    assert difference(np.float32(0.9), np.float32(0.2), LABEL) is not None


def test_other_names_are_a_difference() -> None:
    why = Comparison().difference({"y": 1}, {"y": 1, "z": 2})
    assert why == "it has y, z instead of y"


def test_what_is_not_known_is_not_compared() -> None:
    with pytest.raises(NotComparable, match="a object"):
        difference(object(), object())
