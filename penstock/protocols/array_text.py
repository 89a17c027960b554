"""Arrays as the text of numpy 1.x: what deployed clients parse.

A text reply carries ``repr`` of each array without summarising, such as
``array([[18.901152]], dtype=float32)``. These functions give the same bytes whatever numpy is
installed and whatever its print options say. The reverse, ``parse_array``, reads such a text
strictly and never evaluates it.

Pure; safe from any thread. Source: ``docs/compatibility.md`` (text replies).
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import chain
from math import prod
from typing import Any

import numpy as np

from penstock.protocols.array_parse import parse_array
from penstock.protocols.array_words import Array, Writer, scalar_text, word_writer
from penstock.protocols.protobuf import grown_text

__all__ = ["array_str", "format_array", "format_value", "parse_array"]

_LINE_WIDTH = 75
_CLASS = "array("
_AT_ONCE = 4096
"""Numbers that one step writes, in a few milliseconds: other threads wait for it."""

# Python's own types hold these, so their arrays are written without a dtype.
_IMPLIED = (np.dtype(np.int64), np.dtype(np.float64), np.dtype(np.complex128), np.dtype(np.bool_))


def format_array(array: Array | np.generic) -> str:
    """``repr`` of numpy 1.26 with the print threshold removed.

    Args:
        array: any dtype and shape; read, never kept. A numpy scalar gives its bare number.
    """
    if isinstance(array, np.generic):
        return scalar_text(array)
    return grown_text(_array_pieces(np.asarray(array)))


def _array_pieces(array: Array) -> Iterator[str]:
    column = 0
    if array.size:
        for piece in chain((_CLASS,), _body(array, ", ", _CLASS, ")")):
            yield piece
            line = piece.rfind("\n") + 1
            column = len(piece) - line + (0 if line else column)
        if array.dtype in _IMPLIED:
            yield ")"
            return
    else:
        text = f"{_CLASS}[]" if array.shape == (0,) else f"{_CLASS}[], shape={array.shape!r}"
        column = len(text)
        yield text
    dtype = f"dtype={_dtype_text(array.dtype)})"
    if column + 1 + len(dtype) + 1 > _LINE_WIDTH:
        yield f",\n{' ' * len(_CLASS)}{dtype}"
    else:
        yield f", {dtype}"


def text_width(dtype: np.dtype[Any]) -> int:
    """Characters that the text of one element takes at most, roughly."""
    if dtype.kind in "iub":
        return 5 if dtype.kind == "b" else (4, 6, 11, 20)[dtype.itemsize.bit_length() - 1]
    if dtype.kind in "fc":
        return 17 if dtype.kind == "f" else 36
    return 4 * dtype.itemsize + 4


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
    return grown_text(_body(array, " ", "", "")) if array.size else "[]"


def _body(array: Array, separator: str, prefix: str, suffix: str) -> Iterator[str]:
    """The brackets and what is in them, in pieces."""
    indent, width = len(prefix) + 1, _LINE_WIDTH - len(suffix)
    if array.dtype.kind == "O":
        words = _object_words(array)
    else:
        write = word_writer(array)
        if write is None:
            # Dates, records and long doubles: rare in replies, so numpy may write them; every
            # option that a global setting could change is given.
            yield np.array2string(
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
            return
        flat = array.reshape(-1)
        if flat.size > _AT_ONCE and array.dtype.kind not in "US":
            yield from _large(flat, write, array.shape, separator, indent, width)
            return
        words = write(flat)
    yield _lay_out(words, array.shape, separator, indent, width) if array.ndim else words[0]


def _large(
    flat: Array, write: Writer, shape: tuple[int, ...], separator: str, indent: int, width: int
) -> Iterator[str]:
    """What ``_lay_out`` gives for words that are equally wide, some thousands at a time."""
    count, last = shape[-1], len(shape) - 1
    wide = len(write(flat[:1])[0])
    per_line = _words_a_line(wide, count, separator, indent + last, width - last - 1)
    between = separator.rstrip() + "\n" + " " * (indent + last)
    # Before a row: what closes and opens as many outer brackets as end there.
    leads = [
        "]" * ended + separator.rstrip() + "\n" * (ended + 1)
        + " " * (indent + last - 1 - ended) + "[" * ended
        for ended in range(max(last, 1))
    ]  # fmt: skip
    sizes = [prod(shape[axis:last]) for axis in range(1, last)]
    yield "[" * last
    at_once = max(1, _AT_ONCE // count)
    for first in range(0, flat.size // count, at_once):
        rows = range(first, min(first + at_once, flat.size // count))
        if count > _AT_ONCE:
            yield leads[_ended(first, sizes)] if first else ""
            yield from _long_row(flat[first * count :][:count], write, separator, per_line, between)
            continue
        words = write(flat[rows.start * count : rows.stop * count])
        parts = []
        for row in rows:
            if row:
                parts.append(leads[_ended(row, sizes)])
            at = (row - first) * count
            parts.append(f"[{between.join(_lines(words[at : at + count], separator, per_line))}]")
        yield "".join(parts)
    yield "]" * last


def _ended(row: int, sizes: list[int]) -> int:
    return sum(not row % size for size in sizes)


def _long_row(
    flat: Array, write: Writer, separator: str, per_line: int, between: str
) -> Iterator[str]:
    at_once = max(1, _AT_ONCE // per_line) * per_line
    yield "["
    for at in range(0, flat.size, at_once):
        over = at + at_once >= flat.size
        lines = _lines(write(flat[at : at + at_once]), separator, per_line)
        if separator == " " and not over:
            lines[-1] = lines[-1].rstrip()
        yield between.join(lines) + ("" if over else between)
    yield "]"


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
    per_line = _words_a_line(widest, count, separator, indent, width)
    between = separator.rstrip() + "\n" + " " * indent
    return [
        f"[{between.join(_lines(words[start : start + count], separator, per_line))}]"
        for start in starts
    ]


def _words_a_line(wide: int, count: int, separator: str, indent: int, width: int) -> int:
    """Numbers are padded to one width, so every line takes the same count of them, one at least."""
    if indent + wide * count + len(separator) * (count - 1) <= width:
        return count
    return max(width - indent - wide, 0) // (wide + len(separator)) + 1


def _lines(words: Sequence[str], separator: str, per_line: int) -> list[str]:
    lines = [separator.join(words[at : at + per_line]) for at in range(0, len(words), per_line)]
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
