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

from collections.abc import Callable, Iterator
from math import copysign, inf, isfinite
from typing import Any, Literal, TypeAlias

import numpy as np
import orjson
from numpy.typing import NDArray

Array: TypeAlias = NDArray[Any]
Writer: TypeAlias = Callable[[Array], list[str]]

_PRECISION = 8
_FIXED = f"%.{_PRECISION}f"
_FEW = 64
"""Numbers that are looked at one by one, which is quicker than with arrays."""
_AT_ONCE = 4096
"""Numbers that one step writes, in a few milliseconds: other threads wait for it."""


def word_writer(array: Array) -> Writer | None:
    """What writes the words of an array, some of its elements at a time; None for a dtype that is
    not ours to write.

    How one is written depends on all: they are looked at first, in blocks, so that other threads
    get their turns. All words but texts are equally wide.

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
    facts = _Facts(flat)
    left = right = digits = longest = 0
    scientific = _needs_exponent(facts, dtype)
    kept: list[tuple[str, str]] | None = None
    if facts.numbers:
        for block in _blocks(flat):
            numbers = _finite(block) if facts.strangers else block.tolist()
            shortest = _shortest(numbers, dtype)
            if scientific:
                digits = max(digits, _fraction_digits(numbers, shortest))
                if digits == _PRECISION:
                    break
            elif numbers:
                kept = _parts(numbers, shortest, plus)
                left = max(left, max(len(whole) for whole, _ in kept))
                right = max(right, max(len(fraction) for _, fraction in kept))
        if scientific:
            longest = max(
                len(_exponent(f"{n:.{digits}e}")) for n in (facts.largest, facts.smallest)
            )
            left = 2 if plus or facts.negative else 1
            right = longest + 2 + digits
    if flat.size > _AT_ONCE:
        kept = None

    def write(block: Array) -> list[str]:
        numbers = _finite(block) if facts.strangers else block.tolist()
        if scientific:
            words = _scientific(numbers, digits, longest, left + 1 + right, plus)
        else:
            parts = kept if kept is not None else _parts(numbers, _shortest(numbers, dtype), plus)
            words = [f"{whole.rjust(left)}.{fraction.ljust(right)}" for whole, fraction in parts]
        if facts.strangers:
            sign = plus or facts.minus_infinity
            return _with_strangers(block.tolist(), words, left, right, plus, sign)
        return words

    return write


class _Facts:
    """What decides how all floats of an array are written.

    Attributes:
        numbers: whether there is any that is finite.
        strangers: whether there is any that is not.
        negative: whether a finite one has a sign.
        largest, smallest: magnitudes of the finite ones; the smallest but zero.
    """

    __slots__ = ("largest", "minus_infinity", "negative", "numbers", "smallest", "strangers")

    def __init__(self, flat: Array) -> None:
        self.numbers = self.strangers = self.negative = self.minus_infinity = False
        self.largest, self.smallest = 0.0, inf
        if flat.size <= _FEW:
            self._look(flat.tolist())
            return
        for block in _blocks(flat):
            finite = np.isfinite(block)
            if not finite.all():
                self.strangers = True
                self.minus_infinity |= bool((block == -inf).any())
                block = block[finite]
            if not block.size:
                continue
            self.numbers = True
            self.negative |= bool(np.signbit(block).any())
            magnitudes = np.abs(block.astype(np.float64))
            self.largest = max(self.largest, float(magnitudes.max()))
            nonzero = magnitudes[magnitudes > 0]
            if nonzero.size:
                self.smallest = min(self.smallest, float(nonzero.min()))
        if self.smallest == inf:
            self.smallest = 0.0

    def _look(self, values: list[float]) -> None:
        """The same for a few, without arrays."""
        numbers = [value for value in values if isfinite(value)]
        self.numbers = bool(numbers)
        self.strangers = len(numbers) < len(values)
        self.minus_infinity = self.strangers and -inf in values
        self.negative = any(copysign(1.0, number) < 0 for number in numbers)
        magnitudes = [abs(number) for number in numbers if number]
        if magnitudes:
            self.largest, self.smallest = max(magnitudes), min(magnitudes)
        else:
            self.smallest = 0.0


def _finite(block: Array) -> list[float]:
    return [value for value in block.tolist() if isfinite(value)]


def _blocks(flat: Array) -> Iterator[Array]:
    return (flat[at : at + _AT_ONCE] for at in range(0, flat.size, _AT_ONCE))


def _needs_exponent(facts: _Facts, dtype: np.dtype[Any]) -> bool:
    largest, smallest = facts.largest, facts.smallest
    if not largest:
        return False
    # Compared as doubles: float32(0.0001) lies below 0.0001, and numpy 1.x saw it so.
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
    if kind == "d":
        return [*map(repr, numbers)]
    octets = orjson.dumps(np.array(numbers, dtype), option=orjson.OPT_SERIALIZE_NUMPY)
    return octets[1:-1].decode().split(",") if numbers else []


def _parts(numbers: list[float], shortest: list[str], plus: bool) -> list[tuple[str, str]]:
    """What stands before and behind the point, in fixed notation."""
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
    # One call for many of them takes half the time of one call for each.
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
    values: list[float], words: list[str], left: int, right: int, plus: bool, sign: bool
) -> list[str]:
    """The words with ``nan`` and ``inf`` put in between, all widened where those need it."""
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
