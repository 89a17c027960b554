"""How numpy 1.x writes the single elements of an array: its *words*.

All words of a numeric array are padded to one width, and how a float is written depends on the
others around it: fixed or scientific notation, how many digits. The rules are those of
``numpy.core.arrayprint`` 1.26 under its default options (precision 8, ``floatmode='maxprec'``),
found out by comparing; the method is our own. Shortest round-trip digits come from orjson (float32)
and Python (float64), correctly rounded ones from ``%e`` and ``%f``. That is several times faster
than numpy itself and does not change with the installed numpy.

Source: ``docs/compatibility.md`` (text replies).
"""

from __future__ import annotations

from collections.abc import Iterator
from math import inf, isfinite
from typing import Any, Literal, TypeAlias

import numpy as np
import orjson
from numpy.typing import NDArray

Array: TypeAlias = NDArray[Any]

_PRECISION = 8
_FIXED = f"%.{_PRECISION}f"
_AT_ONCE = 4096
"""Numbers, which take a few milliseconds."""


def element_words(array: Array) -> list[str] | None:
    """The words of an array in C order; None for a dtype that is not ours to write.

    Args:
        array: any shape with at least one element.
    """
    kind = array.dtype.kind
    flat = array.reshape(-1)
    if kind == "f" and array.dtype.itemsize <= 8:
        return _float_words(flat)
    if kind in "iu":
        return _integer_words(flat)
    if kind == "b":
        true = " True" if array.ndim else "True"
        return [true if value else "False" for value in flat.tolist()]
    if kind in "US":
        return [repr(value) for value in flat.tolist()]
    if kind == "c" and array.dtype.itemsize <= 16:
        return _complex_words(flat)
    return None


def scalar_text(value: np.generic) -> str:
    """``repr`` of a numpy scalar as numpy 1.x writes it: without its type."""
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


def _integer_words(flat: Array) -> list[str]:
    width = max(len(str(int(flat.max()))), len(str(int(flat.min()))))
    word = f"%{width}d"
    return [word % value for value in flat.tolist()]


def _complex_words(flat: Array) -> list[str]:
    words = []
    for left, right in zip(
        _float_words(flat.real), _float_words(flat.imag, plus=True), strict=True
    ):
        number = right.rstrip()
        words.append(f"{left}{number}j{' ' * (len(right) - len(number))}")
    return words


def _float_words(flat: Array, *, plus: bool = False) -> list[str]:
    dtype = flat.dtype.newbyteorder("=")
    values: list[float] = flat.tolist()
    numbers = [value for value in values if isfinite(value)]
    left = right = 0
    words: list[str] = []
    if numbers:
        write = _scientific if _needs_exponent(numbers, dtype) else _positional
        words, left, right = write(numbers, _shortest(numbers, dtype), plus)
    if len(numbers) != len(values):
        return _with_strangers(values, words, left, right, plus)
    return words


def _needs_exponent(numbers: list[float], dtype: np.dtype[Any]) -> bool:
    magnitudes = [abs(number) for number in numbers if number]
    if not magnitudes:
        return False
    # Compared as doubles: float32(0.0001) lies below 0.0001, and numpy 1.x saw it so.
    largest, smallest = max(magnitudes), min(magnitudes)
    if largest >= 1e8 or smallest < 1e-4:
        return True
    # The quotient, however, was rounded to the array's own type before it was compared.
    ratio = largest / smallest
    return ratio > 1001.0 or (ratio > 999.0 and float(dtype.type(ratio)) > 1000.0)


def _shortest(numbers: list[float], dtype: np.dtype[Any]) -> list[str]:
    """The shortest digits that tell each number from its neighbours, in any notation."""
    kind = dtype.char  # comparing types takes longer than writing a few numbers
    if kind not in "df":
        array = np.array(numbers, dtype)
        return [np.format_float_positional(number, unique=True, trim="0") for number in array]
    words: list[str] = []
    for piece in _pieces(numbers):
        if kind == "d":
            words += map(repr, piece)
        else:
            octets = orjson.dumps(np.array(piece, dtype), option=orjson.OPT_SERIALIZE_NUMPY)
            words += octets[1:-1].decode().split(",")
    return words


def _pieces(numbers: list[float]) -> Iterator[list[float]]:
    """What one call may write: other threads wait for it, and large arrays are written in one."""
    return (numbers[at : at + _AT_ONCE] for at in range(0, len(numbers), _AT_ONCE))


def _positional(
    numbers: list[float], shortest: list[str], plus: bool
) -> tuple[list[str], int, int]:
    wholes: list[str] = []
    fractions: list[str] = []
    for text, number in zip(shortest, numbers, strict=True):
        whole, _, fraction = text.partition(".")
        if len(fraction) > _PRECISION or "e" in text:
            whole, _, fraction = (_FIXED % number).partition(".")
        elif fraction == "0":
            whole = f"{number:.0f}"  # the shortest digits of 37382392 end in 0 for a float32
        wholes.append(f"+{whole}" if plus and whole[0] != "-" else whole)
        fractions.append(fraction.rstrip("0"))
    left, right = max(map(len, wholes)), max(map(len, fractions))
    words = [
        f"{whole.rjust(left)}.{fraction.ljust(right)}"
        for whole, fraction in zip(wholes, fractions, strict=True)
    ]
    return words, left, right


def _scientific(
    numbers: list[float], shortest: list[str], plus: bool
) -> tuple[list[str], int, int]:
    digits = _fraction_digits(numbers, shortest)
    word = f"%{'+' if plus else ''}#.{digits}e"
    # One call for many of them takes half the time of one call for each.
    words: list[str] = []
    for piece in _pieces(numbers):
        words += (f"{word} " * len(piece) % tuple(piece)).split()
    longest = 2
    if not all(number == 0 or 1e-99 <= abs(number) < 1e99 for number in numbers):
        exponents = [text[text.rindex("e") + 2 :] for text in words]
        longest = max(map(len, exponents))
        words = [
            text[: len(text) - len(exponent)] + exponent.zfill(longest)
            for text, exponent in zip(words, exponents, strict=True)
        ]
    # Of all that a word may begin with, the signs come first in order.
    left = 2 if plus or min(words) < "0" else 1
    right = longest + 2 + digits
    return [text.rjust(left + 1 + right) for text in words], left, right


def _fraction_digits(numbers: list[float], shortest: list[str]) -> int:
    """How many digits after the point the neediest number asks for, at most the precision."""
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


def _with_strangers(
    values: list[float], words: list[str], left: int, right: int, plus: bool
) -> list[str]:
    """The words with ``nan`` and ``inf`` put in between, all widened where those need it."""
    sign = plus or -inf in values
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
