"""Numbers in JSON, by one rule for every protocol: NaN, infinities, and exact integers.

JSON has no NaN and no infinities. As elements of float arrays are read: the bare words ``NaN``,
``Infinity`` and ``-Infinity``; the same words as texts; and null as NaN. Sent are NaN as null, and
infinities as texts, which every JSON reader takes. (Paddle's protocols answer in their own forms.)

Integers are exact or refused: an element of an integer array is a whole number in the dtype's
range, or a float without a fraction below 2**53. Elements of float arrays are rounded to the
nearest value of the dtype, as numpy does; those beyond its range are refused.

Source: RFC 8259, section 6; the protocol buffers language guide, "JSON mapping"; ``docs/http.md``.
Pure; safe from any thread.
"""

from __future__ import annotations

import base64
import dataclasses
import re
from collections.abc import Iterator
from functools import partial
from math import isinf
from typing import Any, Final, TypeAlias

import numpy as np
import orjson
from numpy.typing import NDArray
from pydantic_core import from_json

Array: TypeAlias = NDArray[Any]

WORDS: Final = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf")}
"""The numbers that JSON lacks, by their names."""
MOST_EXACT: Final = 2**53 - 1
"""Whole numbers up to this are exact as floats; 9007199254740993.0 is read as 2**53."""

_OPTIONS: Final = orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS
_WORD: Final = re.compile(rb"[\[,:\s-](?:NaN|Infinity)(?![\w])|\A(?:NaN|Infinity)")
_LARGE: Final = re.compile(rb"[0-9.][eE]\+?0*[1-9][0-9]{2}|[0-9]{308}")
_TOKEN: Final = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"|[-+.0-9eE]++', re.DOTALL)
_FLOAT: Final = re.compile(rb"[.eE]")
_QUOTE: Final = b'"'
_SHAPES: Final = bytes.maketrans(b"123456789+E", b"0000000000e")
_MOST_DIGITS: Final = b"0" * 308  # of numbers that float64 surely holds
_ZEROS: Final = bytes.maketrans(b"123456789", b"000000000")
_LONG: Final = b"0" * 19  # digits of the shortest integer that may have more than 64 bits
_INT64: Final = range(-(2**63), 2**64)
_DEEPEST: Final = 200


# Reading.


def loads(data: bytes | bytearray | memoryview) -> Any:
    """Parse a JSON document, in which the bare words of ``WORDS`` are floats.

    Raises:
        orjson.JSONDecodeError: it is none, or has a number beyond the range of float64.
    """
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError:
        body = bytes(data)
        if _WORD.search(body) is None or _is_too_large(body):
            raise
        try:
            return from_json(body)
        except ValueError:
            pass
        raise


def loads_exactly(body: bytes) -> Any:
    """The same; integers of more than 64 bits stay integers, instead of becoming floats."""
    value = loads(body)
    if _LONG in body.translate(_ZEROS):
        try:
            return from_json(body)
        except ValueError:  # more digits than Python reads
            pass
    return value


def has_too_large_float(body: bytes) -> bool:
    """Whether a number with a fraction or an exponent exceeds the range of float64.

    Pydantic reads it as an infinity.
    """
    shape = body.translate(_SHAPES)  # of many texts, an expression takes ten times as long
    if b"e000" not in shape and (len(body) < len(_MOST_DIGITS) or _MOST_DIGITS not in shape):
        return False
    return _is_too_large(body, integers=False)


def _is_too_large(body: bytes, *, integers: bool = True) -> bool:
    """Whether a number outside of texts exceeds the range of float64.

    Args:
        body: a JSON document.
        integers: whether integers count, which have neither a fraction nor an exponent.
    """
    if integers and _LARGE.search(body) is None:
        return False
    for token in _TOKEN.finditer(body):
        text = token[0]
        if text.startswith(_QUOTE) or not (integers or _FLOAT.search(text)):
            continue
        if _LARGE.search(text):
            try:
                if isinf(float(text)):
                    return True
            except ValueError:
                return True
    return False


def array(value: Any, dtype: np.dtype[Any]) -> Array:
    """Convert nested lists of numbers to an array, without losing what its dtype can hold.

    Args:
        value: nested lists, as of a JSON document, or anything else that numpy converts.
        dtype: the dtype that the array shall be cast to.

    Returns:
        An array of the dtype, or of numpy's choice where the lists have only numbers and a cast
        to the dtype is exact, or rounds as numpy does.

    Raises:
        ValueError, TypeError, OverflowError: the lists are ragged, or have other elements than
            numbers of the dtype.
    """
    found = np.asarray(value)
    theirs, ours = found.dtype.kind, dtype.kind
    if theirs in "biuf":
        if theirs != "f" or ours not in "iu" or not _may_be_rounded(found):
            return found
    elif theirs not in "OU" or ours not in "iuf":
        return found
    items = np.array(value, object)
    numbers = map(_float if ours == "f" else _integer, items.reshape(-1).tolist())
    if ours == "f":
        return np.array([*numbers], np.float64).reshape(items.shape)
    whole = [*numbers]
    limits = np.iinfo(dtype)
    if min(whole) < limits.min or max(whole) > limits.max:
        raise ValueError(f"an integer is outside of {limits.min} to {limits.max}")
    return np.array(whole, dtype).reshape(items.shape)


def _may_be_rounded(found: Array) -> bool:
    # NaN compares false; it is refused with the cast.
    return bool((np.abs(found) > MOST_EXACT).any())


def _float(value: Any) -> float:
    kind = type(value)
    if kind is float or kind is int:
        return float(value)
    if value is None:
        return WORDS["NaN"]
    if kind is str and value in WORDS:
        return WORDS[value]
    raise TypeError(f"{_shown(value)} is not a number")


def _integer(value: Any) -> int:
    kind = type(value)
    if kind is int:
        return int(value)
    if kind is float and value.is_integer() and abs(value) <= MOST_EXACT:
        return int(value)
    raise TypeError(f"{_shown(value)} is not an exact integer")


def _shown(value: Any) -> str:
    return "null" if value is None else repr(value)[:64]


# Writing.


def listed(array: Array) -> Any:
    """Return an array as nested lists for JSON: NaN as None, infinities as texts."""
    if array.dtype.kind != "f" or np.isfinite(array).all():
        return array.tolist()
    wide = array.astype(np.float64)
    items = wide.astype(object)
    items[np.isnan(wide)] = None
    items[wide == np.inf] = "Infinity"
    items[wide == -np.inf] = "-Infinity"
    return items.tolist()


def numbers_text(flat: Array) -> bytes:
    """Encode a flat, native and contiguous array of numbers as the inside of a JSON list."""
    text = orjson.dumps(flat, option=orjson.OPT_SERIALIZE_NUMPY)[1:-1]
    if b"null" in text and (infinite := np.flatnonzero(np.isinf(flat))).size:
        words = text.split(b",")
        for index in infinite.tolist():
            words[index] = b'"Infinity"' if flat[index] > 0 else b'"-Infinity"'
        return b",".join(words)
    return text


def dumps(value: Any) -> bytes:
    """Encode a plain value: dicts, lists, numbers, texts, None, bytes (Base64) and arrays.

    Raises:
        TypeError: it holds something else, or an integer of more than 64 bits; the text has the
            place.
    """
    try:
        body = orjson.dumps(value, plain, _OPTIONS)
    except TypeError:
        return orjson.dumps(sendable(value, words=True), plain, _OPTIONS)
    # orjson writes infinities as null, too.
    if b"null" in body and has_infinities(value):
        return orjson.dumps(sendable(value, words=True), plain, _OPTIONS)
    return body


def plain(value: Any) -> Any:
    """Convert an array, a numpy scalar or bytes for JSON.

    Raises:
        TypeError: the value is something else.
    """
    if isinstance(value, (bytes, bytearray, memoryview)):
        return base64.b64encode(value).decode()
    return plain_parts(value)


def plain_parts(value: Any) -> Any:
    """Convert an array, a numpy scalar, a tuple or a set.

    Raises:
        TypeError: the value is something else.
    """
    if isinstance(value, (np.ndarray, np.generic)):
        return _as_native(value).tolist()
    if isinstance(value, (set, frozenset, tuple)):
        return list(value)
    raise TypeError(f"{type(value).__name__} is no plain value")


def _as_native(value: Any) -> Any:
    """An array or numpy scalar of a dtype whose elements are Python's own.

    Raises:
        TypeError: there is none, or a long double is beyond the range of float64.
    """
    kind, dtype = value.dtype.kind, value.dtype
    if kind == "f" and dtype.itemsize > 8:
        try:
            with np.errstate(over="raise"):
                return value.astype(np.float64)
        except FloatingPointError:
            raise TypeError(f"a {dtype} is beyond the range of float64") from None
    if dtype.name == "bfloat16":
        return value.astype(np.float32)
    if kind in "cV":
        raise TypeError(f"an array of {dtype} cannot be sent")
    return value


def sendable(value: Any, *, words: bool, where: str = "", depth: int = 0) -> Any:
    """Return a plain value in which every part can be encoded as JSON or msgpack.

    Args:
        value: a plain value.
        words: whether infinities become texts, and NaN None.
        where: its place, for errors.
        depth: number of dicts and lists around it.

    Raises:
        TypeError: some part cannot be sent; the text has its place.
    """
    if depth > _DEEPEST:
        raise TypeError(f"the value is nested deeper than {_DEEPEST} levels")
    inner = partial(sendable, words=words, depth=depth + 1)
    if isinstance(value, dict):
        return {
            _key(key, where): inner(each, where=f"{where}.{key}" if where else str(key))
            for key, each in value.items()
        }
    if isinstance(value, (list, tuple, set, frozenset)):
        return [inner(each, where=f"{where}[{index}]") for index, each in enumerate(value)]
    if isinstance(value, (np.ndarray, np.generic)):
        try:
            native = np.asarray(_as_native(value))
        except TypeError as error:
            raise _at(where, error) from None
        if native.dtype.kind == "O":
            return inner(native.tolist(), where=where)
        return listed(native) if words else native.tolist()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {each.name: getattr(value, each.name) for each in dataclasses.fields(value)}
        return inner(fields, where=where)
    if words and type(value) is float and isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    if type(value) is int and value not in _INT64:
        raise _at(where, "an integer of more than 64 bits cannot be sent: send it as a text")
    try:
        orjson.dumps(value, plain, _OPTIONS)
    except TypeError as error:
        raise _at(where, error) from None
    return value


def _key(key: Any, where: str) -> Any:
    """The key of a dict as orjson takes it."""
    if isinstance(key, np.generic):
        key = key.item()
    if type(key) is int and key not in _INT64:
        return str(key)
    if isinstance(key, (tuple, bytes)):
        raise _at(where, f"a key of type {type(key).__name__} cannot be sent")
    return key


def _at(where: str, problem: Any) -> TypeError:
    return TypeError(f"{where}: {problem}" if where else str(problem))


def has_infinities(value: Any) -> bool:
    """Whether a plain value, or a part of it, is an infinity."""
    if type(value) is float:
        return isinf(value)
    if isinstance(value, (np.ndarray, np.generic)):
        if value.dtype.kind == "O":
            return has_infinities(value.tolist())
        return value.dtype.kind == "f" and bool(np.isinf(value).any())
    return any(map(has_infinities, _parts(value)))


def _parts(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        return iter(value.values())
    if isinstance(value, (list, tuple, set, frozenset)):
        return iter(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return iter([getattr(value, each.name) for each in dataclasses.fields(value)])
    return iter(())
