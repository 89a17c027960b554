"""Checked readings of parsed JSON values by the rules of proto3 JSON.

Each reader takes a parsed value or a ``Span``, and where the value stands (``tensors[0].shape``);
it names that place when it refuses. Source: the protocol buffers language guide, "JSON mapping";
``docs/compatibility.md``.
"""

from __future__ import annotations

import re
from binascii import Error as Base64Error
from binascii import a2b_base64
from math import isinf
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.errors import Undecodable
from penstock.protocols.json_span import MAX_DEPTH, MAX_NUMBER, Span
from penstock.protocols.tensors import DecodeBudget

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


def wrong(where: str, wanted: str, got: Any) -> Undecodable:
    """The error for a value of the wrong JSON type."""
    kind = got.kind if type(got) is Span else _KINDS[type(got)]
    return Undecodable(f"{where} must be {wanted}, got {kind}")


def built(value: Any, where: str, wanted: str) -> Any:
    """The value itself, of a span that is neither a list nor an object."""
    if type(value) is Span:
        if value.kind in ("a list", "an object"):
            raise wrong(where, wanted, value)
        return value.scalar()
    return value


def is_null(value: Any) -> bool:
    """Whether it is ``null``, which means absent."""
    return value is None or (type(value) is Span and value.kind == "null" and value.load() is None)


def as_list(value: Any, where: str, most: int) -> list[Any]:
    """The value, which must be a list of no more than ``most`` elements."""
    if type(value) is Span and value.kind == "a list":
        return value.items(most, where)
    if type(value) is not list:
        raise wrong(where, "a list", value)
    if len(value) > most:
        raise Undecodable(f"{where} has more than {most} elements")
    return value


def members_of(value: Any, where: str, most: int) -> list[tuple[str, Any]]:
    """The members of the value, which must be an object with no more than ``most`` of them; of
    equal names the last counts.
    """
    if type(value) is Span and value.kind == "an object":
        return [*dict(value.members(most, where)).items()]
    if type(value) is not dict:
        raise wrong(where, "an object", value)
    if len(value) > most:
        raise Undecodable(f"{where} has more than {most} members")
    return [*value.items()]


def as_text(value: Any, where: str) -> str:
    """The value, which must be a text; numbers are not coerced."""
    text = built(value, where, "a text")
    if type(text) is not str:
        raise wrong(where, "a text", text)
    return text


def as_texts(value: Any, where: str, most: int) -> list[str]:
    """The value, which must be a list of texts."""
    texts = as_list(value, where, most)
    return [as_text(item, f"{where}[{index}]") for index, item in enumerate(texts)]


def as_array(value: Any, where: str, dtype: np.dtype[Any], budget: DecodeBudget) -> NDArray[Any]:
    """A list of numbers or truth values as an array, each within the range of its type."""
    if type(value) is Span and value.kind == "a list":
        count, pieces = value.count(), value.pieces(where)
    elif type(value) is list:
        count, pieces = len(value), iter([value])
    else:
        raise wrong(where, "a list", value)
    array = budget.array(count, dtype)
    done = 0
    for piece in pieces:
        stop = done + len(piece)
        if stop > count:
            break
        array[done:stop] = _READ[dtype.kind](piece, where, done, dtype)
        done = stop
    if done != count:
        raise Undecodable(f"{where} must be a list of numbers")
    return array


def as_integer(value: Any, where: str, low: int, high: int) -> int:
    """A whole number from ``low`` to ``high``, given as number or decimal text."""
    value = number = built(value, where, "a whole number")
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


def _truths(piece: list[Any], where: str, first: int, dtype: np.dtype[Any]) -> Any:
    if set(map(type, piece)) <= {bool}:
        return piece
    index = next(index for index, item in enumerate(piece) if type(item) is not bool)
    raise wrong(f"{where}[{first + index}]", "true or false", piece[index])


def _integers(piece: list[Any], where: str, first: int, dtype: np.dtype[Any]) -> Any:
    low, high = int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)
    if set(map(type, piece)) <= {int} and (not piece or (low <= min(piece) and max(piece) <= high)):
        return piece
    return [as_integer(item, f"{where}[{first + i}]", low, high) for i, item in enumerate(piece)]


def _floats(piece: list[Any], where: str, first: int, dtype: np.dtype[Any]) -> Any:
    """Each may be a text, also ``NaN``, ``Infinity`` or ``-Infinity``."""
    if not set(map(type, piece)) <= {float, int}:
        piece = [_as_float(item, f"{where}[{first + i}]") for i, item in enumerate(piece)]
    wide = np.array(piece, np.float64)
    if dtype.itemsize == 8:
        return wide
    with np.errstate(over="ignore"):
        array = wide.astype(np.float32)
    overflown = np.isinf(array) & np.isfinite(wide)
    if overflown.any():
        index = first + int(overflown.argmax())
        raise Undecodable(f"{where}[{index}] is too large for a float32")
    return array


_READ = {"b": _truths, "i": _integers, "u": _integers, "f": _floats}


def _as_float(value: Any, where: str) -> float:
    if type(value) is float or type(value) is int:
        return float(value)
    if type(value) is not str:
        raise wrong(where, "a number", value)
    special = _SPECIAL_FLOATS.get(value)
    if special is not None:
        return special
    if len(value) > MAX_NUMBER or _FLOAT.fullmatch(value) is None:
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
    if type(value) is Span:
        return  # it was looked at when what is around it was taken apart
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
