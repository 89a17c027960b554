"""Validated access to JSON values by the rules of proto3 JSON, parsed or not parsed yet.

A parsed document takes up to thirty times the memory of its bytes, and the parser holds the GIL
until it has finished. So a large body is split before it is parsed: a ``Span`` is the position of a
value in the body. Lists and objects are split at their commas by numpy, block by block, so that
other threads can run. Unused values are never parsed; only their brackets and quotes are checked.

Each function takes a parsed value or a ``Span``, and the value's place (``tensors[0].shape``) for
errors.

Source: RFC 8259; the protocol buffers language guide, "JSON mapping"; ``docs/compatibility.md``.
Pure; safe from any thread.
"""

from __future__ import annotations

import re
from binascii import Error as Base64Error
from binascii import a2b_base64
from collections.abc import Iterator
from math import isfinite, isinf
from typing import Any, Final

import numpy as np
import orjson
from numpy.typing import NDArray

from penstock.errors import Undecodable
from penstock.protocols.json_numbers import MOST_EXACT, WORDS, loads
from penstock.protocols.protobuf import join_text
from penstock.protocols.tensors import DecodeBudget

MAX_DEPTH: Final = 64
MAX_NUMBER: Final = 1000
"""Maximum characters of a number."""
LARGE: Final = 256 << 10
"""Bytes of a body above which it is not parsed as a whole."""

_BLOCK = 64 << 10
_EDGE = 256
_LONGEST_NAME = 4096
BLANK = b" \t\r\n"
_NAME = re.compile(rb'[ \t\r\n]*+("[^"\\]*+(?:\\.[^"\\]*+)*+")[ \t\r\n]*+:')
_TEXT = re.compile(
    rb'(?:[^"\\]++|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[0-9a-fA-F]{4}'
    rb"|\\u(?![dD][89abAB])[0-9a-fA-F]{4}|\\[^u])*+"
)
"""Whole characters of a text: no parts of escapes or surrogate pairs."""
_FLAT = b"0123456789+-.eE, \t\r\n"

_STEPS = np.zeros(256, np.int8)
_STEPS[[ord("["), ord("{")]] = 1
_STEPS[[ord("]"), ord("}")]] = -1
_QUOTE, _COMMA = ord('"'), ord(",")

_KINDS = {
    bool: "a truth value",
    dict: "an object",
    float: "a number",
    int: "a number",
    list: "a list",
    str: "a text",
    type(None): "null",
}
_TYPES: dict[str, type] = {"t": bool, "f": bool, "n": type(None), "{": dict, "[": list, '"': str}
"""JSON type of a value by its first character; any other character begins a number."""
_WHOLE = re.compile(r"-?(?:0|[1-9][0-9]{0,19})")
_FLOAT = re.compile(r"-?(?:0|[1-9][0-9]*+)(?:\.[0-9]++)?(?:[eE][-+]?[0-9]++)?")
_URL_SAFE = str.maketrans("-_", "+/")


class Span:
    """A JSON value that has not been parsed.

    Args:
        body: the document.
        start: where the value, or blanks before it, begins.
        end: where the value, or blanks behind it, ends.
        depth: number of lists and objects around it.

    Raises:
        Undecodable: there are only blanks.
    """

    __slots__ = ("_body", "_depth", "_end", "_start")

    def __init__(self, body: bytes, start: int, end: int, depth: int = 0) -> None:
        first, end = _strip_blanks(body, start, end)
        if first == end:
            raise _malformed(start)
        self._start = first
        self._body = body
        self._end = end
        self._depth = depth

    @property
    def kind(self) -> str:
        """The JSON type, by the first byte."""
        return _KINDS[_TYPES.get(chr(self._body[self._start]), int)]

    @property
    def nbytes(self) -> int:
        """Its length."""
        return self._end - self._start

    @property
    def holds_lists(self) -> bool:
        """Whether it is a list whose first element is a list, by their first bytes."""
        body, start = self._body, self._start
        if body[start] != ord("["):
            return False
        first, end = _strip_blanks(body, start + 1, self._end)
        return first < end and body[first] == ord("[")

    def load(self) -> Any:
        """Parse the value."""
        try:
            return loads(memoryview(self._body)[self._start : self._end])
        except orjson.JSONDecodeError:
            raise _malformed(self._start) from None

    def scalar(self) -> Any:
        """Parse a value that is neither a list nor an object; a long text in pieces.

        Raises:
            Undecodable: it is not a JSON value, or a number is too long.
        """
        size = self._end - self._start
        if self._body[self._start] != _QUOTE:
            if size > MAX_NUMBER:
                raise Undecodable(f"a number has more than {MAX_NUMBER} characters")
        elif size > _BLOCK:
            return join_text(self._text_pieces())
        return self.load()

    def _text_pieces(self) -> Iterator[str]:
        body, at, end = self._body, self._start + 1, self._end - 1
        if body[end] != _QUOTE:
            raise _malformed(end)
        while at < end:
            found = _TEXT.match(body, at, min(end, at + _BLOCK))
            stop = at if found is None else found.end()
            while stop > at and body[stop] & 0xC0 == 0x80:  # inside a UTF-8 character
                stop -= 1
            if stop == at:
                raise _malformed(at)
            yield Span(b'"%b"' % body[at:stop], 0, stop - at + 2).load()
            at = stop

    def items(self, most: int, where: str) -> list[Span]:
        """Split a list into its elements.

        Raises:
            Undecodable: there are more than ``most``, or brackets or quotes do not match.
        """
        return [
            Span(self._body, *place, self._depth + 1) for place in self._element_bounds(most, where)
        ]

    def members(self, most: int, where: str) -> list[tuple[str, Span]]:
        """Split an object into its members, which may have equal names; errors as in ``items``."""
        body = self._body
        members = []
        for start, end in self._element_bounds(most, where):
            found = _NAME.match(body, start, min(end, start + _LONGEST_NAME))
            if found is None:
                raise _malformed(start)
            name = Span(body, *found.span(1)).load()
            members.append((name, Span(body, found.end(), end, self._depth + 1)))
        return members

    def count(self) -> int:
        """The number of elements of a list without lists or objects in it."""
        start, end = self._start + 1, self._end - 1
        if _is_blank(self._body, start, end):
            return 0
        return 1 + sum(
            self._body.count(b",", at, min(end, at + _BLOCK)) for at in range(start, end, _BLOCK)
        )

    def pieces(self, where: str) -> Iterator[list[Any]]:
        """Parse the elements of a flat list, some thousands at a time.

        Raises:
            Undecodable: it is not a list, or has texts with commas, or numbers that are too long.
        """
        body, at, end = self._body, self._start + 1, self._end - 1
        if body[end] != ord("]"):
            raise _malformed(end)
        if _is_blank(body, at, end):
            return
        while at <= end:
            stop = body.find(b",", min(end, at + _BLOCK), end)
            if stop < 0:
                stop = end
            if stop - at > _BLOCK + 2 * MAX_NUMBER:
                raise Undecodable(f"{where} has an element that is too long for a number")
            piece = body[at:stop]
            if not piece.strip(BLANK):
                raise _malformed(at)
            check_numbers(piece)
            try:
                yield loads(b"[%b]" % piece)
            except orjson.JSONDecodeError:
                raise _malformed(at) from None
            at = stop + 1

    def _element_bounds(self, most: int, where: str) -> Iterator[tuple[int, int]]:
        """Yield start and end of each element of this list, or member of this object."""
        body, start, end = self._body, self._start, self._end
        if body[end - 1] != body[start] + 2:  # "]" is "[" + 2, "}" is "{" + 2
            raise _malformed(end)
        if _is_blank(body, start + 1, end - 1):
            return
        begin = start + 1
        for count, comma in enumerate(self._commas(), 2):
            if count > most:
                raise Undecodable(f"{where} has more than {most} elements")
            yield begin, comma
            begin = comma + 1
        yield begin, end - 1

    def _commas(self) -> Iterator[int]:
        """Yield the positions of the commas between its elements."""
        body, at, end = self._body, self._start, self._end
        level, quoted = 0, False
        while at < end:
            if level > 1 and not quoted:
                block = body[at : min(end, at + _BLOCK)]
                if not block.translate(None, _FLAT):  # only numbers of an inner list
                    at += len(block)
                    continue
            stop = min(end, at + _BLOCK)
            block = body[at:stop]
            if b"\\" in block:
                if (len(block) - len(block.rstrip(b"\\"))) % 2 and stop < end:
                    stop += 1  # keep the last backslash with the character it escapes
                    block = body[at:stop]
                block = block.replace(b"\\\\", b"__").replace(b'\\"', b"__")
            octets = np.frombuffer(block, np.uint8)
            within = np.logical_xor.accumulate(octets == _QUOTE)
            if quoted:
                within = ~within
            steps = _STEPS[octets]
            steps[within] = 0
            levels = np.cumsum(steps, dtype=np.int32)
            levels += level
            if int(levels.max()) + self._depth > MAX_DEPTH:
                raise Undecodable(f"the body is nested deeper than {MAX_DEPTH} levels")
            if (levels[:-1] < 1).any() or levels[-1] < (stop < end):
                raise _malformed(at)
            commas = np.flatnonzero((octets == _COMMA) & (levels == 1) & ~within)
            for comma in commas.tolist():
                yield at + comma
            level, quoted = int(levels[-1]), bool(within[-1])
            at = stop
        if level or quoted:
            raise _malformed(end)


def wrong_type(where: str, wanted: str, got: Any) -> Undecodable:
    """Make the error for a value of the wrong JSON type."""
    kind = got.kind if type(got) is Span else _KINDS[type(got)]
    return Undecodable(f"{where} must be {wanted}, got {kind}")


def scalar_of(value: Any, where: str, wanted: str) -> Any:
    """Return a scalar value, parsed if it is a span; lists and objects are refused."""
    if type(value) is Span:
        if value.kind in ("a list", "an object"):
            raise wrong_type(where, wanted, value)
        return value.scalar()
    return value


def is_null(value: Any) -> bool:
    """Whether a value is ``null``, which means absent."""
    return value is None or (type(value) is Span and value.kind == "null" and value.load() is None)


def as_list(value: Any, where: str, most: int) -> list[Any]:
    """Return the elements of a list of at most ``most`` elements."""
    if type(value) is Span and value.kind == "a list":
        return value.items(most, where)
    if type(value) is not list:
        raise wrong_type(where, "a list", value)
    if len(value) > most:
        raise Undecodable(f"{where} has more than {most} elements")
    return value


def members_of(value: Any, where: str, most: int) -> list[tuple[str, Any]]:
    """Return the members of an object, at most ``most``; of equal names the last one counts."""
    if type(value) is Span and value.kind == "an object":
        return [*dict(value.members(most, where)).items()]
    if type(value) is not dict:
        raise wrong_type(where, "an object", value)
    if len(value) > most:
        raise Undecodable(f"{where} has more than {most} members")
    return [*value.items()]


def as_text(value: Any, where: str) -> str:
    """Return a text; numbers are not coerced."""
    text = scalar_of(value, where, "a text")
    if type(text) is not str:
        raise wrong_type(where, "a text", text)
    return text


def as_texts(value: Any, where: str, most: int) -> list[str]:
    """Return a list of texts."""
    texts = as_list(value, where, most)
    return [as_text(item, f"{where}[{index}]") for index, item in enumerate(texts)]


def as_array(value: Any, where: str, dtype: np.dtype[Any], budget: DecodeBudget) -> NDArray[Any]:
    """Read a list of numbers or truth values as an array; each must fit the dtype."""
    if type(value) is Span and value.kind == "a list":
        count, pieces = value.count(), value.pieces(where)
    elif type(value) is list:
        count, pieces = len(value), iter([value])
    else:
        raise wrong_type(where, "a list", value)
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
    """Return a whole number from ``low`` to ``high``, given as number or decimal text."""
    value = number = scalar_of(value, where, "a whole number")
    if type(value) is str:
        if _WHOLE.fullmatch(value) is None:
            raise Undecodable(f"{where} must be a whole number, got a text that is no number")
        number = int(value)
    elif type(value) is float:
        if not value.is_integer() or abs(value) > MOST_EXACT:
            raise Undecodable(f"{where} must be a whole number from {low} to {high}")
        number = int(value)
    elif type(value) is not int:
        raise wrong_type(where, "a whole number", value)
    if not low <= number <= high:
        raise Undecodable(f"{where} must be a whole number from {low} to {high}")
    return number  # type: ignore[no-any-return]


def _booleans(piece: list[Any], where: str, first: int, dtype: np.dtype[Any]) -> Any:
    if set(map(type, piece)) <= {bool}:
        return piece
    index = next(index for index, item in enumerate(piece) if type(item) is not bool)
    raise wrong_type(f"{where}[{first + index}]", "true or false", piece[index])


def _integers(piece: list[Any], where: str, first: int, dtype: np.dtype[Any]) -> Any:
    low, high = int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)
    if set(map(type, piece)) <= {int} and (not piece or (low <= min(piece) and max(piece) <= high)):
        return piece
    return [as_integer(item, f"{where}[{first + i}]", low, high) for i, item in enumerate(piece)]


def _floats(piece: list[Any], where: str, first: int, dtype: np.dtype[Any]) -> Any:
    """Convert numbers; null is NaN, and each may be a text, also one of ``WORDS``."""
    if not set(map(type, piece)) <= _FLOATS:
        piece = [_as_float(item, f"{where}[{first + i}]") for i, item in enumerate(piece)]
    try:
        wide = np.array(piece, np.float64)
    except OverflowError:
        raise Undecodable(f"{where} has an integer that is too large") from None
    if dtype.itemsize == 8:
        return wide
    with np.errstate(over="ignore"):
        array = wide.astype(dtype)
    overflown = np.isinf(array) & np.isfinite(wide)
    if overflown.any():
        index = first + int(overflown.argmax())
        raise Undecodable(f"{where}[{index}] is too large for a {dtype.name}")
    return array


_FLOATS = frozenset((float, int, type(None)))


_READ = {"b": _booleans, "i": _integers, "u": _integers, "f": _floats}


def _as_float(value: Any, where: str) -> float:
    if type(value) is float or type(value) is int:
        return value
    if value is None:
        return WORDS["NaN"]
    if type(value) is not str:
        raise wrong_type(where, "a number", value)
    special = WORDS.get(value)
    if special is not None:
        return special
    if len(value) > MAX_NUMBER or _FLOAT.fullmatch(value) is None:
        raise Undecodable(f"{where} must be a number, got a text that is no number")
    number = float(value)
    if isinf(number):
        raise Undecodable(f"{where} is too large")
    return number


def as_bytes(value: Any, where: str) -> bytes:
    """Decode a base64 text, of either alphabet, with or without padding."""
    text = as_text(value, where)
    if "-" in text or "_" in text:
        text = text.translate(_URL_SAFE)
    try:
        return a2b_base64(text + "=" * (-len(text) % 4), strict_mode=True)
    except (Base64Error, ValueError) as error:
        raise Undecodable(f"{where} must be a base64 text") from error


def check_depth(value: Any, taken: int) -> None:
    """Check a value that is not used: its containers are nested at most 64 levels deep, ``taken``
    of them around it, and no number is a bare NaN or Infinity.
    """
    if type(value) is Span:
        return  # its depth was checked when the value around it was split
    level = [value]
    while True:
        if any(type(item) is float and not isfinite(item) for item in level):
            raise Undecodable("NaN and Infinity are legal as elements of arrays only")
        containers = [item for item in level if type(item) is list or type(item) is dict]
        if not containers:
            return
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
    # A number that long covers a whole block, so if no block starts with digits there is none.
    if not any(_NUMBER_BLOCK.match(body, start) for start in range(0, len(body), _NUMBER_STEP)):
        return
    for token in _STRING_OR_NUMBER.finditer(body):
        if token.end() - token.start() > MAX_NUMBER and body[token.start()] != _QUOTE:
            raise Undecodable(f"a number has more than {MAX_NUMBER} characters")


_NUMBER_STEP = MAX_NUMBER // 2
_NUMBER_BLOCK = re.compile(rb"[-+.0-9eE]{%d}" % _NUMBER_STEP)
_STRING_OR_NUMBER = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"|[-+.0-9eE]++', re.DOTALL)


def _strip_blanks(body: bytes, start: int, end: int) -> tuple[int, int]:
    """Return start and end without surrounding blanks; equal if there are only blanks."""
    while start < end and body[start] in BLANK:
        block = body[start : min(end, start + _EDGE)]
        start += len(block) - len(block.lstrip(BLANK))
    while start < end and body[end - 1] in BLANK:
        block = body[max(start, end - _EDGE) : end]
        end -= len(block) - len(block.rstrip(BLANK))
    return start, end


def _is_blank(body: bytes, start: int, end: int) -> bool:
    start, end = _strip_blanks(body, start, end)
    return start == end


def _malformed(at: int) -> Undecodable:
    return Undecodable(f"the body is not a JSON document (near byte {at})")
