"""Checked readings of parsed JSON values by the rules of proto3 JSON.

Each reader takes where the value stands (``tensors[0].shape``) and names that place when it
refuses. Source: the protocol buffers language guide, "JSON mapping"; ``docs/compatibility.md``.
"""

from __future__ import annotations

import re
from binascii import Error as Base64Error
from binascii import a2b_base64
from math import isinf
from typing import Any

from penstock.errors import Undecodable

MAX_DEPTH = 64
_MAX_NUMBER = 1000  # characters
_MAX_EXACT = 2**53  # whole numbers up to here survived being parsed as a float64

_KINDS = {
    bool: "a truth value",
    dict: "an object",
    float: "a number",
    int: "a number",
    list: "a list",
    str: "a text",
    type(None): "null",
}
_SPECIAL_FLOATS = {
    "NaN": float("nan"),
    "Infinity": float("inf"),
    "-Infinity": float("-inf"),
}
_WHOLE = re.compile(r"-?(?:0|[1-9][0-9]{0,19})")
_FLOAT = re.compile(r"-?(?:0|[1-9][0-9]*+)(?:\.[0-9]++)?(?:[eE][-+]?[0-9]++)?")
_URL_SAFE = str.maketrans("-_", "+/")

_BLOCK = _MAX_NUMBER // 2
_NUMBER_BLOCK = re.compile(rb"[-+.0-9eE]{%d}" % _BLOCK)
_STRING_OR_NUMBER = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"|[-+.0-9eE]++', re.DOTALL)


def wrong(where: str, wanted: str, got: Any) -> Undecodable:
    """The error for a value of the wrong JSON type."""
    return Undecodable(f"{where} must be {wanted}, got {_KINDS[type(got)]}")


def as_list(value: Any, where: str) -> list[Any]:
    """The value, which must be a list."""
    if type(value) is not list:
        raise wrong(where, "a list", value)
    return value


def as_text(value: Any, where: str) -> str:
    """The value, which must be a text; numbers are not coerced."""
    if type(value) is not str:
        raise wrong(where, "a text", value)
    return value


def as_texts(value: Any, where: str) -> list[str]:
    """The value, which must be a list of texts."""
    for index, item in enumerate(as_list(value, where)):
        if type(item) is not str:
            raise wrong(f"{where}[{index}]", "a text", item)
    return value  # type: ignore[no-any-return]


def as_truths(value: Any, where: str) -> list[bool]:
    """The value, which must be a list of truth values."""
    for index, item in enumerate(as_list(value, where)):
        if type(item) is not bool:
            raise wrong(f"{where}[{index}]", "true or false", item)
    return value  # type: ignore[no-any-return]


def as_integer(value: Any, where: str, low: int, high: int) -> int:
    """A whole number from ``low`` to ``high``, given as number or decimal text."""
    number = value
    if type(value) is str:
        if _WHOLE.fullmatch(value) is None:
            raise Undecodable(f"{where} must be a whole number, got another text")
        number = int(value)
    elif type(value) is float:
        if not value.is_integer() or abs(value) > _MAX_EXACT:
            raise Undecodable(f"{where} must be a whole number from {low} to {high}")
        number = int(value)
    elif type(value) is not int:
        raise wrong(where, "a whole number", value)
    if not low <= number <= high:
        raise Undecodable(f"{where} must be a whole number from {low} to {high}")
    return number  # type: ignore[no-any-return]


def as_integers(value: Any, where: str, low: int, high: int) -> list[int]:
    """A list of whole numbers from ``low`` to ``high``."""
    numbers = as_list(value, where)
    if set(map(type, numbers)) <= {int} and (
        not numbers or (low <= min(numbers) and max(numbers) <= high)
    ):
        return numbers
    return [as_integer(item, f"{where}[{index}]", low, high) for index, item in enumerate(numbers)]


def as_floats(value: Any, where: str) -> list[float]:
    """A list of numbers; each may be a text, also ``NaN``, ``Infinity`` or ``-Infinity``."""
    numbers = as_list(value, where)
    if set(map(type, numbers)) <= {float, int}:
        return numbers
    return [_as_float(item, f"{where}[{index}]") for index, item in enumerate(numbers)]


def _as_float(value: Any, where: str) -> float:
    if type(value) is float or type(value) is int:
        return float(value)
    if type(value) is not str:
        raise wrong(where, "a number", value)
    special = _SPECIAL_FLOATS.get(value)
    if special is not None:
        return special
    if len(value) > _MAX_NUMBER or _FLOAT.fullmatch(value) is None:
        raise Undecodable(f"{where} must be a number, got another text")
    number = float(value)
    if isinf(number):
        raise Undecodable(f"{where} is too large")
    return number


def as_bytes(value: Any, where: str) -> bytes:
    """The bytes of a base64 text, of either alphabet, with or without padding."""
    text = as_text(value, where)
    if "-" in text or "_" in text:
        text = text.translate(_URL_SAFE)
    try:
        return a2b_base64(text + "=" * (-len(text) % 4), strict_mode=True)
    except (Base64Error, ValueError) as error:
        raise Undecodable(f"{where} must be a base64 text") from error


def check_depth(value: Any, taken: int) -> None:
    """Refuse containers nested deeper than 64 levels, ``taken`` of which lie around the value."""
    level = [value]
    while containers := [item for item in level if type(item) is list or type(item) is dict]:
        if taken == MAX_DEPTH:
            raise Undecodable(f"the body is nested deeper than {MAX_DEPTH} levels")
        taken += 1
        level = [
            child
            for container in containers
            for child in (container.values() if type(container) is dict else container)
        ]


def check_numbers(body: bytes | bytearray) -> None:
    """Refuse a number of over 1,000 characters; the same characters inside a text are legal."""
    # A number that long covers a whole block, so looking where blocks start is enough to acquit.
    if not any(_NUMBER_BLOCK.match(body, start) for start in range(0, len(body), _BLOCK)):
        return
    for token in _STRING_OR_NUMBER.finditer(body):
        if token.end() - token.start() > _MAX_NUMBER and body[token.start()] != ord('"'):
            raise Undecodable(f"a number has more than {_MAX_NUMBER} characters")
