"""Arrays as the text of numpy 1.x: what deployed clients parse.

A text reply carries ``repr`` of each array without summarising, such as
``array([[18.901152]], dtype=float32)``. These functions give the same bytes whatever numpy is
installed and whatever its print options say. The reverse, ``parse_array``, reads such a text
strictly and never evaluates it.

Pure; safe from any thread. Source: ``docs/compatibility.md`` (text replies).
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from penstock.protocols.array_parse import parse_array
from penstock.protocols.array_words import Array, element_words, scalar_text

__all__ = ["array_str", "format_array", "format_value", "parse_array"]

_LINE_WIDTH = 75
_CLASS = "array("

# Python's own types hold these, so their arrays are written without a dtype.
_IMPLIED = (np.dtype(np.int64), np.dtype(np.float64), np.dtype(np.complex128), np.dtype(np.bool_))


def format_array(array: Array | np.generic) -> str:
    """``repr`` of numpy 1.26 with the print threshold removed.

    Args:
        array: any dtype and shape; read, never kept. A numpy scalar gives its bare number.
    """
    if isinstance(array, np.generic):
        return scalar_text(array)
    array = np.asarray(array)
    if array.size:
        text = _CLASS + _body(array, ", ", _CLASS, ")")
        if array.dtype in _IMPLIED:
            return text + ")"
    elif array.shape == (0,):
        text = f"{_CLASS}[]"
    else:
        text = f"{_CLASS}[], shape={array.shape!r}"
    text += ","
    dtype = f"dtype={_dtype_text(array.dtype)})"
    last_line = len(text) - (text.rfind("\n") + 1)
    if last_line + len(dtype) + 1 > _LINE_WIDTH:
        return f"{text}\n{' ' * len(_CLASS)}{dtype}"
    return f"{text} {dtype}"


def format_value(value: Any) -> str:
    """``repr`` of a value as a text reply carries it; arrays inside of lists included."""
    if isinstance(value, np.ndarray | np.generic):
        return format_array(value)
    if type(value) is list:
        return f"[{', '.join(map(format_value, value))}]"
    return repr(value)


def array_str(array: Array | np.generic) -> str:
    """``str`` of numpy 1.x, but never summarised: ``[[18.901152]]``."""
    array = np.asarray(array)
    if not array.ndim:
        scalar: Any = array[()]
        return str(scalar) if array.dtype.kind in "USO" else scalar_text(scalar)
    return _body(array, " ", "", "") if array.size else "[]"


def _body(array: Array, separator: str, prefix: str, suffix: str) -> str:
    words = _object_words(array) if array.dtype.kind == "O" else element_words(array)
    if words is None:
        # Dates, records and long doubles: rare in replies, so numpy may write them; every option
        # that a global setting could change is given.
        return np.array2string(
            array,
            max_line_width=_LINE_WIDTH,
            precision=8,
            suppress_small=False,
            separator=separator,
            prefix=prefix,
            suffix=suffix,
            threshold=sys.maxsize,
            sign="-",
            floatmode="maxprec",
        )
    if not array.ndim:
        return words[0]
    return _lay_out(words, array.shape, separator, len(prefix) + 1, _LINE_WIDTH - len(suffix))


def _object_words(array: Array) -> list[str]:
    return [
        f"list({format_value(item)})" if isinstance(item, list) else format_value(item)
        for item in array.reshape(-1).tolist()
    ]


def _lay_out(
    words: Sequence[str], shape: tuple[int, ...], separator: str, indent: int, width: int
) -> str:
    """Brackets around the words; ``indent`` is the column where the second line starts."""
    last = len(shape) - 1
    rows = _rows(words, shape[-1], separator, indent + last, width - last - 1)
    comma = separator.rstrip()
    for axis in range(last - 1, -1, -1):
        between = comma + "\n" * (last - axis) + " " * (indent + axis)
        count = shape[axis]
        rows = [
            f"[{between.join(rows[start : start + count])}]" for start in range(0, len(rows), count)
        ]
    return rows[0]


def _rows(words: Sequence[str], count: int, separator: str, indent: int, width: int) -> list[str]:
    """The innermost brackets, ``count`` words each, wrapped at ``width`` columns."""
    lengths = set(map(len, words))
    widest = max(lengths)
    needed = widest * count + len(separator) * (count - 1)
    starts = range(0, len(words), count)
    if indent + needed <= width:
        return [f"[{separator.join(words[start : start + count])}]" for start in starts]
    if len(lengths) > 1:
        return [
            _wrapped(words[start : start + count], separator, indent, width) for start in starts
        ]
    # Numbers are padded to one width, so every line takes the same count of them, one at least.
    room = max(width - indent - widest, 0) // (widest + len(separator)) + 1
    between = separator.rstrip() + "\n" + " " * indent
    return [
        f"[{between.join(_lines(words[start : start + count], separator, room))}]"
        for start in starts
    ]


def _lines(words: Sequence[str], separator: str, room: int) -> list[str]:
    lines = [separator.join(words[at : at + room]) for at in range(0, len(words), room)]
    if separator == " ":  # blanks that fill up a number go with the one behind it
        lines[:-1] = [line.rstrip() for line in lines[:-1]]
    return lines


def _wrapped(words: Sequence[str], separator: str, indent: int, width: int) -> str:
    lines = []
    start, column = 0, indent
    for index, word in enumerate(words):
        # The first word of a line stays where it is: moving it would not help.
        if column + len(word) > width and index > start:
            lines.append((separator.join(words[start:index]) + separator).rstrip())
            start, column = index, indent
        column += len(word) + len(separator)
    lines.append(separator.join(words[start:]))
    return f"[{(chr(10) + ' ' * indent).join(lines)}]"


@lru_cache(maxsize=64)
def _dtype_text(dtype: np.dtype[Any]) -> str:
    if dtype.names is not None:
        return str(dtype)
    if dtype.kind in "USV" or not dtype.isnative:
        return repr(dtype.str if dtype.kind in "US" else str(dtype))
    # numpy 1.x and 2.x agree on these names, but for the flag of truth.
    name = "bool" if dtype.kind == "b" else dtype.name
    return name if name.isalnum() else repr(name)
