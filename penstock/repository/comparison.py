"""Whether two versions gave the same answer to a request: within a tolerance, or by its labels.

Answers are compared name by name. Arrays have the same shape and dtype; NaN equals NaN. By label,
only the place of the largest number along the last axis of an array of floats counts, or in a list
of floats: the class that a model chose. What has no such axis, as a single score, is compared
within the tolerance.

Pure: numbers, texts, bytes, arrays, lists and dicts of them are compared; what else an answer has
is not known to be equal or not.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from penstock.request import Feed

TOLERANCE: Final = "tolerance"
LABEL: Final = "label"

_MOST_TEXT: Final = 60
_NUMBERS: Final = (int, float, np.integer, np.floating)
_EXACT: Final = ((bool, np.bool_), str, bytes, type(None))  # before numbers, as a bool is an int


class NotComparable(Exception):
    """An answer has a value that cannot be compared."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """How answers are compared.

    Attributes:
        by: ``TOLERANCE`` or ``LABEL``.
        relative: numbers may differ by this part of the first version's number.
        absolute: they may differ by so much in any case.
    """

    by: str = TOLERANCE
    relative: float = 1e-3
    absolute: float = 1e-5

    def difference(self, answer: Feed, other: Feed) -> str | None:
        """The first difference of two answers, as a phrase; None if there is none.

        Args:
            answer: of the version whose callers get it.
            other: of the other version.

        Raises:
            NotComparable: that is not known.
        """
        if answer.keys() != other.keys():
            return f"it has {_names(other)} instead of {_names(answer)}"
        for name, value in answer.items():
            found = self._value(value, other[name])
            if found is not None:
                return f"{name}: {found}"
        return None

    def _value(self, value: Any, other: Any) -> str | None:
        if isinstance(value, np.ndarray) or isinstance(other, np.ndarray):
            return self._arrays(value, other)
        for kind in _EXACT:
            if isinstance(value, kind):
                same = isinstance(other, kind) and bool(value == other)
                return None if same else _unlike(value, other)
        if isinstance(value, _NUMBERS):
            return self._numbers(value, other)
        if isinstance(value, Mapping):
            return self._mappings(value, other)
        if isinstance(value, list | tuple):
            return self._sequences(value, other)
        raise NotComparable(f"a {type(value).__name__} cannot be compared")

    def _arrays(self, value: Any, other: Any) -> str | None:
        if not (isinstance(value, np.ndarray) and isinstance(other, np.ndarray)):
            return _unlike(value, other)
        kind = value.dtype.kind
        alike = kind == other.dtype.kind if kind in "SU" else value.dtype == other.dtype
        if not alike or value.shape != other.shape:
            return f"{_described(other)} instead of {_described(value)}"
        if kind == "O":
            return self._sequences(value.ravel().tolist(), other.ravel().tolist())
        if kind in "mM":  # by its bits, as NaT differs from itself
            different = value.view(np.int64) != other.view(np.int64)
        elif kind not in "fc":
            different = value != other
        elif self.by == LABEL and kind == "f" and value.ndim and value.shape[-1] > 1:
            different = value.argmax(axis=-1) != other.argmax(axis=-1)  # NaN counts as the largest
        else:
            close = np.isclose(other, value, self.relative, self.absolute, equal_nan=True)
            different = ~close
        if not np.any(different):
            return None
        return f"{np.count_nonzero(different)} of {np.size(different)} values differ"

    def _numbers(self, value: Any, other: Any) -> str | None:
        if isinstance(other, bool) or not isinstance(other, _NUMBERS):
            return _unlike(value, other)
        if isinstance(value, int | np.integer) and isinstance(other, int | np.integer):
            same = value == other
        else:
            same = math.isclose(value, other, rel_tol=self.relative, abs_tol=self.absolute) or (
                math.isnan(value) and math.isnan(other)
            )
        return None if same else _unlike(value, other)

    def _mappings(self, value: Mapping[Any, Any], other: Any) -> str | None:
        if not isinstance(other, Mapping) or value.keys() != other.keys():
            return _unlike(value, other)
        found = (self._value(each, other[key]) for key, each in value.items())
        return next((each for each in found if each is not None), None)

    def _sequences(self, value: Sequence[Any], other: Any) -> str | None:
        if not isinstance(other, list | tuple) or len(value) != len(other):
            return _unlike(value, other)
        if self.by == LABEL and _are_scores(value) and _are_scores(other):
            return self._arrays(np.array(value), np.array(other))
        found = (self._value(each, its) for each, its in zip(value, other, strict=True))
        return next((each for each in found if each is not None), None)


def _are_scores(values: Sequence[Any]) -> bool:
    return len(values) > 1 and all(type(each) is float for each in values)


def _unlike(value: Any, other: Any) -> str:
    return f"{_brief(other)} instead of {_brief(value)}"


def _names(answer: Feed) -> str:
    return ", ".join(map(str, answer)) or "nothing"


def _described(array: np.ndarray[Any, Any]) -> str:
    return f"{array.dtype} {[*array.shape]}"


def _brief(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return _described(value)
    text = repr(value)
    return text if len(text) <= _MOST_TEXT else f"{text[:_MOST_TEXT]} …"
