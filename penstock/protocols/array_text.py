"""Encodes and decodes arrays in the text format of numpy 1.x, which deployed clients parse.

A text reply carries ``repr`` of each array without summarising, such as
``array([[18.901152]], dtype=float32)``. ``format_array`` gives the same bytes whatever numpy is
installed and whatever its print options say. Its rules are those of ``numpy.core.arrayprint`` 1.26
under default options (precision 8, ``floatmode='maxprec'``), determined by comparison; the method
is our own. An element's text is a *word*. All words of a numeric array are padded to one width, and
all floats of an array together determine the notation and the number of digits. Shortest round-trip
digits come from orjson (float32) and Python (float64), correctly rounded ones from ``%e`` and
``%f``: several times faster than numpy itself.

``parse_array`` reads such a text, which old clients send. Old ops evaluated it, which runs a
caller's code; this parser knows only numbers, brackets and dtype names. Its time is linear in the
length of the text, its memory bounded by ``max_elements``.

Pure; safe from any thread. Source: ``docs/compatibility.md`` (text replies).
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from itertools import chain
from math import copysign, inf, isfinite, prod
from typing import Any, Literal, TypeAlias

import numpy as np
import orjson
from numpy.typing import NDArray

from penstock.protocols.protobuf import join_text

Array: TypeAlias = NDArray[Any]
Writer: TypeAlias = Callable[[Array], list[str]]

_LINE_WIDTH = 75
_CLASS = "array("
_INDENT = len(_CLASS) + 1
_ROW_WIDTH = _LINE_WIDTH - _INDENT - 2
"""Columns of a line for the words of a row."""
_AT_ONCE = 4096
"""Numbers that are formatted in one step, in a few milliseconds."""

# Arrays of these dtypes, which Python's own types have, are written without a dtype.
_IMPLIED = (np.dtype(np.int64), np.dtype(np.float64), np.dtype(np.complex128), np.dtype(np.bool_))

_PRECISION = 8
_FIXED = f"%.{_PRECISION}f"
_FEW = 64
"""Maximum numbers for which a Python loop is faster than numpy."""

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
_JSON_WORD = re.compile(r'null|"NaN"|NaN|"(-?)Infinity"|Infinity')
_MAX_DIGITS = 400  # enough for every float64; bounds the time of parsing a number


def format_array(array: Array | np.generic) -> str:
    """Format an array as ``repr`` of numpy 1.26 does, without a print threshold.

    Args:
        array: any dtype and shape; only read. A numpy scalar gives its bare number.
    """
    if isinstance(array, np.generic):
        return _scalar_text(array)
    return join_text(_array_pieces(np.asarray(array)))


def _array_pieces(array: Array) -> Iterator[str]:
    column = 0
    if array.size:
        for piece in chain((_CLASS,), _body(array)):
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
    """Return the approximate maximum characters of one element."""
    if dtype.kind in "iub":
        return 5 if dtype.kind == "b" else (4, 6, 11, 20)[dtype.itemsize.bit_length() - 1]
    if dtype.kind in "fc":
        return 17 if dtype.kind == "f" else 36
    return 4 * dtype.itemsize + 4


def format_value(value: Any) -> str:
    """Format a value of a text reply as ``repr`` does, including arrays inside lists."""
    if isinstance(value, np.ndarray | np.generic):
        return format_array(value)
    if type(value) is list:
        return f"[{', '.join(map(format_value, value))}]"
    return repr(value)


def _body(array: Array) -> Iterator[str]:
    """Yield the brackets and their contents in pieces."""
    if array.dtype.kind == "O":
        words = [
            f"list({format_value(item)})" if isinstance(item, list) else format_value(item)
            for item in array.reshape(-1).tolist()
        ]
    elif (write := _word_writer(array)) is None:
        # Dates, records and long doubles are rare in replies, so numpy formats them, with all
        # options, so that global settings have no effect.
        yield np.array2string(
            array,
            max_line_width=_LINE_WIDTH,
            precision=8,
            suppress_small=False,
            separator=", ",
            prefix=_CLASS,
            suffix=")",
            threshold=sys.maxsize,
            sign="-",
            floatmode="maxprec",
        )
        return
    elif array.ndim and array.dtype.kind not in "US":
        yield from _numbers(array.reshape(-1), write, array.shape)
        return
    else:
        words = write(array.reshape(-1))
    if array.ndim:
        yield from _texts(words, array.shape)
    else:
        yield words[0]


def _numbers(flat: Array, write: Writer, shape: tuple[int, ...]) -> Iterator[str]:
    """Yield lines of words of equal width, some thousands at a time."""
    few = flat.size <= _AT_ONCE
    words = write(flat if few else flat[:1])
    count, last = shape[-1], len(shape) - 1
    # Every line has the same number of words, at least one.
    wide = len(words[0])
    per_line = min(count, max(_ROW_WIDTH - 2 * last - wide, 0) // (wide + 2) + 1)
    lines = -(-count // per_line)  # of a row
    all_lines = flat.size // count * lines
    yield "[" * (last + 1)
    if all_lines == 1 and few:
        yield ", ".join(words) + "]" * (last + 1)
        return
    line_break = _line_break(last)
    row_break = _row_breaks(shape)
    at_once = all_lines if few else max(1, _AT_ONCE // per_line)
    for first in range(0, all_lines, at_once):
        row, nth = divmod(first, lines)
        parts = []
        at = 0
        if not few:
            begin = row * count + nth * per_line
            words = write(flat[begin : begin + at_once * per_line])
        for _ in range(first, min(first + at_once, all_lines)):
            if nth:
                parts.append(line_break)
            elif row:
                parts.append(row_break(row))
            nth += 1
            size = per_line
            if nth == lines:
                size = count - (lines - 1) * per_line
                row, nth = row + 1, 0
            parts.append(", ".join(words[at : at + size]))
            at += size
        yield "".join(parts)
    yield "]" * (last + 1)


def _texts(words: Sequence[str], shape: tuple[int, ...]) -> Iterator[str]:
    """Yield lines of words of any width, as many as fit."""
    count, last = shape[-1], len(shape) - 1
    width = _ROW_WIDTH - 2 * last
    line_break = _line_break(last)
    row_break = _row_breaks(shape)
    yield "[" * (last + 1)
    for first in range(0, len(words), count):
        if first:
            yield row_break(first // count)
        begin, column = first, 0
        for index in range(first, first + count):
            # The first word of a line is never wrapped.
            if column + len(words[index]) > width and index > begin:
                yield ", ".join(words[begin:index]) + line_break
                begin, column = index, 0
            column += len(words[index]) + 2
        yield ", ".join(words[begin : first + count])
    yield "]" * (last + 1)


def _line_break(last: int) -> str:
    """Return the separator of two lines of a row, which is nested in ``last`` brackets."""
    return ",\n" + " " * (_INDENT + last)


def _row_breaks(shape: tuple[int, ...]) -> Callable[[int], str]:
    """Return the function that makes the separator before a row: closing and opening brackets."""
    last = len(shape) - 1
    sizes = [prod(shape[axis:last]) for axis in range(1, last)]
    breaks = [
        "]" * ended + "," + "\n" * ended + " " * (_INDENT + last - ended) + "[" * ended
        for ended in range(1, last + 1)
    ]
    if not sizes:
        return lambda row: breaks[0]
    return lambda row: breaks[sum(not row % size for size in sizes)]


@lru_cache(maxsize=64)
def _dtype_text(dtype: np.dtype[Any]) -> str:
    if dtype.names is not None:
        return str(dtype)
    if dtype.kind in "USV" or not dtype.isnative:
        return repr(dtype.str if dtype.kind in "US" else str(dtype))
    # numpy 1.x and 2.x have the same names, except for bool.
    name = "bool" if dtype.kind == "b" else dtype.name
    return name if name.isalnum() else repr(name)


def _word_writer(array: Array) -> Writer | None:
    """Return the function that formats elements of an array; None for an unsupported dtype.

    The format depends on all elements: they are scanned first, in blocks, so that other threads can
    run. All words except texts have equal width.

    Args:
        array: any shape with at least one element.
    """
    kind = array.dtype.kind
    flat = array.reshape(-1)
    if kind == "f" and array.dtype.itemsize <= 8:
        return _float_writer(flat)
    if kind in "iu":
        width = max(len(str(int(flat.max()))), len(str(int(flat.min()))))
        word = f"%{width}d"
        return lambda block: [word % value for value in block.tolist()]
    if kind == "b":
        true = " True" if array.ndim else "True"
        return lambda block: [true if value else "False" for value in block.tolist()]
    if kind in "US":
        return lambda block: [repr(value) for value in block.tolist()]
    if kind == "c" and array.dtype.itemsize <= 16:
        return _complex_writer(flat)
    return None


def _scalar_text(value: np.generic) -> str:
    """Format a numpy scalar as in numpy 1.x: without its type."""
    if isinstance(value, np.float32 | np.float16):
        return _short_float(value)
    if isinstance(value, np.complex64):
        real, imag = np.float32(value.real), np.float32(value.imag)
        sign = "" if np.signbit(imag) or np.isnan(imag) else "+"
        tail = f"{_short_float(imag, '-')}j"
        if real == 0 and not np.signbit(real):
            return tail
        return f"({_short_float(real, '-')}{sign}{tail})"
    return repr(value.item())


def _short_float(value: np.floating[Any], trim: Literal["0", "-"] = "0") -> str:
    if not np.isfinite(value):
        return str(float(value))
    if value == 0 or 1e-4 <= abs(float(value)) < 1e16:
        return np.format_float_positional(value, unique=True, trim=trim)
    return np.format_float_scientific(value, unique=True, trim="-")


def _complex_writer(flat: Array) -> Writer:
    real, imag = _float_writer(flat.real), _float_writer(flat.imag, plus=True)

    def write(block: Array) -> list[str]:
        words = []
        for left, right in zip(real(block.real), imag(block.imag), strict=True):
            number = right.rstrip()
            words.append(f"{left}{number}j{' ' * (len(right) - len(number))}")
        return words

    return write


def _float_writer(flat: Array, *, plus: bool = False) -> Writer:
    dtype = flat.dtype.newbyteorder("=")
    stats = _FloatStats(flat)
    left = right = digits = longest = 0
    scientific = _needs_exponent(stats, dtype)
    kept: list[tuple[str, str]] | None = None
    if stats.numbers:
        for block in _blocks(flat):
            numbers = _finite(block) if stats.has_nonfinite else block.tolist()
            shortest = _shortest(numbers, dtype)
            if scientific:
                digits = max(digits, _fraction_digits(numbers, shortest))
                if digits == _PRECISION:
                    break
            elif numbers:
                kept = _split_at_point(numbers, shortest, plus)
                left = max(left, max(len(whole) for whole, _ in kept))
                right = max(right, max(len(fraction) for _, fraction in kept))
        if scientific:
            longest = max(
                len(_exponent(f"{n:.{digits}e}")) for n in (stats.largest, stats.smallest)
            )
            left = 2 if plus or stats.has_negative else 1
            right = longest + 2 + digits
    if flat.size > _AT_ONCE:
        kept = None

    def write(block: Array) -> list[str]:
        numbers = _finite(block) if stats.has_nonfinite else block.tolist()
        if scientific:
            words = _scientific(numbers, digits, longest, left + 1 + right, plus)
        else:
            parts = (
                kept
                if kept is not None
                else _split_at_point(numbers, _shortest(numbers, dtype), plus)
            )
            words = [f"{whole.rjust(left)}.{fraction.ljust(right)}" for whole, fraction in parts]
        if stats.has_nonfinite:
            sign = plus or stats.has_minus_infinity
            return _with_nonfinite(block.tolist(), words, left, right, plus, sign)
        return words

    return write


class _FloatStats:
    """The properties of an array that determine the format of its floats.

    Attributes:
        numbers: whether there are finite numbers.
        has_nonfinite: whether there are NaN or infinities.
        has_negative: whether a finite number is negative.
        largest, smallest: magnitudes of the finite numbers, without zeros.
    """

    def __init__(self, flat: Array) -> None:
        self.numbers = self.has_nonfinite = self.has_negative = self.has_minus_infinity = False
        self.largest, self.smallest = 0.0, inf
        if flat.size <= _FEW:
            self._scan_few(flat.tolist())
            return
        for block in _blocks(flat):
            finite = np.isfinite(block)
            if not finite.all():
                self.has_nonfinite = True
                self.has_minus_infinity |= bool((block == -inf).any())
                block = block[finite]
            if not block.size:
                continue
            self.numbers = True
            self.has_negative |= bool(np.signbit(block).any())
            magnitudes = np.abs(block.astype(np.float64))
            self.largest = max(self.largest, float(magnitudes.max()))
            nonzero = magnitudes[magnitudes > 0]
            if nonzero.size:
                self.smallest = min(self.smallest, float(nonzero.min()))
        if self.smallest == inf:
            self.smallest = 0.0

    def _scan_few(self, values: list[float]) -> None:
        """Scan a few numbers, without numpy."""
        numbers = [value for value in values if isfinite(value)]
        self.numbers = bool(numbers)
        self.has_nonfinite = len(numbers) < len(values)
        self.has_minus_infinity = self.has_nonfinite and -inf in values
        self.has_negative = any(copysign(1.0, number) < 0 for number in numbers)
        magnitudes = [abs(number) for number in numbers if number]
        if magnitudes:
            self.largest, self.smallest = max(magnitudes), min(magnitudes)
        else:
            self.smallest = 0.0


def _finite(block: Array) -> list[float]:
    return [value for value in block.tolist() if isfinite(value)]


def _blocks(flat: Array) -> Iterator[Array]:
    return (flat[at : at + _AT_ONCE] for at in range(0, flat.size, _AT_ONCE))


def _needs_exponent(stats: _FloatStats, dtype: np.dtype[Any]) -> bool:
    largest, smallest = stats.largest, stats.smallest
    if not largest:
        return False
    # Compared as doubles, as in numpy 1.x: float32(0.0001) is below 0.0001.
    if largest >= 1e8 or smallest < 1e-4:
        return True
    # The quotient, as in numpy 1.x, is rounded to the array's dtype before it is compared.
    ratio = largest / smallest
    return ratio > 1001.0 or (ratio > 999.0 and float(dtype.type(ratio)) > 1000.0)


def _shortest(numbers: list[float], dtype: np.dtype[Any]) -> list[str]:
    """Return the shortest round-trip digits of each number, in any notation."""
    kind = dtype.char  # comparing dtypes takes longer than formatting a few numbers
    if kind not in "df":
        array = np.array(numbers, dtype)
        return [np.format_float_positional(number, unique=True, trim="0") for number in array]
    if kind == "d":
        return [*map(repr, numbers)]
    octets = orjson.dumps(np.array(numbers, dtype), option=orjson.OPT_SERIALIZE_NUMPY)
    return octets[1:-1].decode().split(",") if numbers else []


def _split_at_point(numbers: list[float], shortest: list[str], plus: bool) -> list[tuple[str, str]]:
    """Return the digits before and after the point, in fixed notation."""
    parts = []
    for text, number in zip(shortest, numbers, strict=True):
        whole, _, fraction = text.partition(".")
        if len(fraction) > _PRECISION or "e" in text:
            whole, _, fraction = (_FIXED % number).partition(".")
        elif fraction == "0":
            whole = f"{number:.0f}"  # the shortest digits of 37382392 end in 0 for a float32
        parts.append((f"+{whole}" if plus and whole[0] != "-" else whole, fraction.rstrip("0")))
    return parts


def _scientific(
    numbers: list[float], digits: int, longest: int, width: int, plus: bool
) -> list[str]:
    word = f"%{'+' if plus else ''}#.{digits}e"
    # One formatting call for all numbers takes half the time of separate calls.
    words = (f"{word} " * len(numbers) % tuple(numbers)).split()
    if longest > 2:
        words = [
            text[: len(text) - len(exponent)] + exponent.zfill(longest)
            for text in words
            for exponent in (_exponent(text),)
        ]
    return [text.rjust(width) for text in words]


def _exponent(text: str) -> str:
    return text[text.rindex("e") + 2 :]


def _fraction_digits(numbers: list[float], shortest: list[str]) -> int:
    """Return the maximum number of digits after the point, at most the precision."""
    most = 0
    for text, number in zip(shortest, numbers, strict=True):
        digits = text.partition("e")[0].lstrip("-").replace(".", "").strip("0")
        needed = len(digits) - 1
        if needed > _PRECISION:
            rounded = f"{number:.{_PRECISION}e}".partition("e")[0]
            needed = len(rounded.rstrip("0").partition(".")[2])
        if needed > most:
            most = needed
            if most == _PRECISION:
                break
    return most


def _with_nonfinite(
    values: list[float], words: list[str], left: int, right: int, plus: bool, sign: bool
) -> list[str]:
    """Insert ``nan`` and ``inf`` between the words, and widen all to fit."""
    behind_point = right + 1
    width = behind_point + max(left, 3 - behind_point, 3 + sign - behind_point)
    following = iter(words)
    mixed = []
    for value in values:
        if isfinite(value):
            word = next(following)
        else:
            word = f"{value:+}" if plus else f"{value}"
        mixed.append(word.rjust(width))
    return mixed


def parse_array(text: str, *, max_elements: int = MAX_ELEMENTS) -> Array:
    """Parse the text of an array.

    Without a dtype, whole numbers are int64, truth values bool and other numbers float64. NaN and
    infinities may also be written as in JSON, see ``json_numbers``.

    Args:
        text: such as ``array([[1., nan]], dtype=float32)``, ``array(3)`` or ``[[1, 2], [3, 4]]``.
        max_elements: maximum number of elements.

    Returns:
        A new writable array.

    Raises:
        ValueError: the text has anything else: other names, ``...``, rows of unequal length, more
            than 16 axes, numbers outside the dtype's range.
    """
    text = text.strip()
    if "N" in text or "I" in text or "null" in text:
        text = _JSON_WORD.sub(_as_numpy, text)
    dtype, shape = None, None
    if text.startswith("array("):
        text, dtype, shape = _unwrap(text)
    elif not text.startswith("["):
        raise ValueError("the text is neither array(...) nor a list in brackets")
    if text.count(",") >= max_elements:
        raise ValueError(f"the text has more than {max_elements} elements")
    if text.startswith("["):
        sizes, words = _parse_nested(text)
    else:
        sizes, words = [], _parse_row(text)
        if len(words) != 1:
            raise ValueError("the text is not one number")
    if shape is not None:
        if words or 0 not in shape or len(shape) > MAX_AXES:
            raise ValueError("a shape is stated for empty arrays only")
        sizes = shape
    return _convert(words, dtype).reshape(sizes)


def _as_numpy(word: re.Match[str]) -> str:
    return f"{word[1] or ''}inf" if "I" in word[0] else "nan"


def _unwrap(text: str) -> tuple[str, np.dtype[Any] | None, list[int] | None]:
    """Return body, dtype and shape of ``array(body, shape=(...), dtype=...)``."""
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


def _parse_nested(text: str) -> tuple[list[int], list[str]]:
    """Return the sizes of the axes, and the texts of the numbers, of evenly nested brackets."""
    opening = _OPENING.match(text)
    depth = opening[0].count("[") if opening else 0
    if depth > MAX_AXES:
        raise ValueError(f"the text has more than {MAX_AXES} axes")
    words: list[str] = []
    sizes = [-1] * depth  # -1: not known yet
    counts = [0] * depth
    level = end = 0
    after_row = False  # a bracket was closed inside the current one
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
            row = _parse_row(between)
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


def _parse_row(text: str) -> list[str]:
    if _ROW.fullmatch(text) is None:
        raise ValueError("an element is not a number")
    words = text.replace(",", " ").split()
    if words and max(map(len, words)) > _MAX_DIGITS:
        raise ValueError("a number has too many digits")
    return words


def _convert(words: list[str], dtype: np.dtype[Any] | None) -> Array:
    """Convert numbers to the dtype; overflow and lost fractions are refused."""
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
