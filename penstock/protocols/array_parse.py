"""A strict reader of ``array([...], dtype=...)`` text and of plain nested bracket lists.

Old clients send arrays as the text of numpy's ``repr``, and old ops evaluated it. Evaluating what a
stranger sends runs his code, so this reader knows numbers, brackets and dtype names, nothing else.
Its time grows with the length of the text, its memory with ``max_elements`` at most.
"""

from __future__ import annotations

import re
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Array: TypeAlias = NDArray[Any]

MAX_AXES = 16
MAX_ELEMENTS = 1_000_000

_DTYPES = {
    name: np.dtype(name)
    for name in (
        *("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
        *("float16", "float32", "float64", "bool"),
    )
}

_NUMBER = r"(?:[-+]?(?:(?:[0-9]++\.?[0-9]*+|\.[0-9]++)(?:[eE][-+]?[0-9]{1,5})?|inf|nan)|True|False)"
_ROW = re.compile(rf"\s*+(?:{_NUMBER}\s*+(?:,\s*+{_NUMBER}\s*+)*+)?+")
_TAIL = re.compile(
    r"(?:\s*,\s*shape\s*=\s*\((?P<shape>[0-9, ]*)\))?"
    r"(?:\s*,\s*dtype\s*=\s*(?P<quote>['\"]?)(?P<dtype>[a-z]+[0-9]*)(?P=quote))?"
    r"\s*\)"
)
_BRACKET = re.compile(r"[\[\]]")
_OPENING = re.compile(r"(?:\[\s*+)+")
_MAX_DIGITS = 400  # every float64 fits, and no number takes long to read


def parse_array(text: str, *, max_elements: int = MAX_ELEMENTS) -> Array:
    """The array that a text stands for.

    Without a dtype, whole numbers give int64, truth values bool and everything else float64.

    Args:
        text: such as ``array([[1., nan]], dtype=float32)``, ``array(3)`` or ``[[1, 2], [3, 4]]``.
        max_elements: more than so many elements are refused.

    Returns:
        A new writable array.

    Raises:
        ValueError: for anything else: other names, ``...``, rows of unequal length, more than 16
            axes, numbers outside of the dtype.
    """
    text = text.strip()
    dtype, shape = None, None
    if text.startswith("array("):
        text, dtype, shape = _unwrapped(text)
    elif not text.startswith("["):
        raise ValueError("the text is neither array(...) nor a list in brackets")
    if text.count(",") >= max_elements:
        raise ValueError(f"the text has more than {max_elements} elements")
    if text.startswith("["):
        sizes, words = _nested(text)
    else:
        sizes, words = [], _row(text)
        if len(words) != 1:
            raise ValueError("the text is not one number")
    if shape is not None:
        if words or 0 not in shape or len(shape) > MAX_AXES:
            raise ValueError("a shape is stated for empty arrays only")
        sizes = shape
    return _converted(words, dtype).reshape(sizes)


def _unwrapped(text: str) -> tuple[str, np.dtype[Any] | None, list[int] | None]:
    """Body, dtype and shape of ``array(body, shape=(...), dtype=...)``."""
    start = len("array(")
    end = text.rfind("]") + 1
    if not end:
        end = start + min(len(part) for part in (text[start:].partition(mark)[0] for mark in ",)"))
    tail = _TAIL.fullmatch(text, end)
    if tail is None:
        raise ValueError("the text does not end like array(..., dtype=...)")
    dtype, shape = tail["dtype"], tail["shape"]
    if dtype is not None and dtype not in _DTYPES:
        raise ValueError("the dtype is unknown")
    sizes = None
    if shape is not None:
        sizes = [int(size) if len(size) < 10 else 2**31 for size in shape.replace(",", " ").split()]
    return text[start:end].strip(), _DTYPES.get(dtype or ""), sizes


def _nested(text: str) -> tuple[list[int], list[str]]:
    """Sizes of the axes, and the numbers as they are written, of evenly nested brackets."""
    opening = _OPENING.match(text)
    depth = opening[0].count("[") if opening else 0
    if depth > MAX_AXES:
        raise ValueError(f"the text has more than {MAX_AXES} axes")
    words: list[str] = []
    sizes = [-1] * depth  # -1: not known yet
    counts = [0] * depth
    level = end = 0
    after_row = False  # something was closed inside of the bracket that is open now
    for bracket in _BRACKET.finditer(text):
        between = text[end : bracket.start()]
        end = bracket.end()
        if bracket[0] == "[":
            if level == depth or between.strip() != ("," if after_row else ""):
                raise ValueError("brackets are not nested evenly")
            if level:
                counts[level - 1] += 1
            counts[level] = 0
            level, after_row = level + 1, False
            continue
        if after_row and between.strip():
            raise ValueError("rows and numbers are mixed")
        if not after_row:
            if level != depth:
                raise ValueError("brackets are not nested evenly")
            row = _row(between)
            counts[level - 1] = len(row)
            words += row
        level, after_row = level - 1, True
        if sizes[level] not in (-1, counts[level]):
            raise ValueError("rows have unequal lengths")
        sizes[level] = counts[level]
        if not level:
            break
    if level or end != len(text):
        raise ValueError("brackets do not match")
    return sizes, words


def _row(text: str) -> list[str]:
    if _ROW.fullmatch(text) is None:
        raise ValueError("an element is not a number")
    words = text.replace(",", " ").split()
    if words and max(map(len, words)) > _MAX_DIGITS:
        raise ValueError("a number has too many digits")
    return words


def _converted(words: list[str], dtype: np.dtype[Any] | None) -> Array:
    """The numbers in the dtype, without wrapping, overflow or cutting of fractions."""
    truths = words.count("True") + words.count("False")
    if truths and truths != len(words):
        raise ValueError("numbers and truth values are mixed")
    whole = words and not any(mark in word for word in words for mark in ".eEni")
    if dtype is None:
        dtype = _DTYPES["bool" if truths else "int64" if whole else "float64"]
    if dtype.kind == "f" and not truths:
        with np.errstate(over="ignore"):
            array = np.array([float(word) for word in words], dtype=dtype)
        if np.count_nonzero(np.isinf(array)) != sum("inf" in word for word in words):
            raise ValueError("a number is too large for the dtype")
        return array
    if not words:
        return np.empty(0, dtype)
    if (dtype.kind == "b") != bool(truths):
        raise ValueError("numbers and truth values are mixed")
    if truths:
        return np.array([word == "True" for word in words])
    if not whole:
        raise ValueError("a fraction is given for whole numbers")
    numbers, limits = [int(word) for word in words], np.iinfo(dtype)
    if min(numbers) < limits.min or max(numbers) > limits.max:
        raise ValueError("a number is outside of the dtype")
    return np.array(numbers, dtype=dtype)
