"""Large JSON, taken apart before anything is built of it.

A parsed document takes up to thirty times its bytes, and the parser holds the interpreter until it
is done. A ``Span`` is a value that has not been parsed: where it stands in the body. Lists and
objects are cut at their commas by numpy, in blocks, so that other threads get their turns; what
nobody asks for is never built. Of that, brackets and quotes are checked, and nothing more.

Source: RFC 8259. Pure; safe from any thread.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import orjson

from penstock.errors import Undecodable
from penstock.protocols.protobuf import grown_text

MAX_DEPTH: Final = 64
MAX_NUMBER: Final = 1000
"""Characters of a number."""
LARGE: Final = 256 << 10
"""Bytes of a body from which on it is not parsed as a whole."""

_BLOCK = 64 << 10
_EDGE = 256
_LONGEST_NAME = 4096
_BLANK = b" \t\r\n"
_NAME = re.compile(rb'[ \t\r\n]*+("[^"\\]*+(?:\\.[^"\\]*+)*+")[ \t\r\n]*+:')
_TEXT = re.compile(
    rb'(?:[^"\\]++|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[0-9a-fA-F]{4}'
    rb"|\\u(?![dD][89abAB])[0-9a-fA-F]{4}|\\[^u])*+"
)
"""As much of a text as may be cut off: no part of an escape, nor half of a surrogate pair."""
_FLAT = b"0123456789+-.eE, \t\r\n"

_STEPS = np.zeros(256, np.int8)
_STEPS[[ord("["), ord("{")]] = 1
_STEPS[[ord("]"), ord("}")]] = -1
_QUOTE, _COMMA = ord('"'), ord(",")

_KINDS = {
    ord("t"): "a truth value",
    ord("f"): "a truth value",
    ord("n"): "null",
    ord("{"): "an object",
    ord("["): "a list",
    _QUOTE: "a text",
}


class Span:
    """A JSON value that has not been parsed.

    Args:
        body: the document.
        start: where it begins, or blanks before it.
        end: where it ends, or blanks behind it.
        depth: lists and objects around it.

    Raises:
        Undecodable: there is nothing but blanks.
    """

    __slots__ = ("_body", "_depth", "_end", "_start")

    def __init__(self, body: bytes, start: int, end: int, depth: int = 0) -> None:
        first, end = _stripped(body, start, end)
        if first == end:
            raise _broken(start)
        self._start = first
        self._body = body
        self._end = end
        self._depth = depth

    def __repr__(self) -> str:
        return f"<Span of {self.kind}, {self._end - self._start} bytes>"

    @property
    def kind(self) -> str:
        """What it is, or would be if it were legal."""
        return _KINDS.get(self._body[self._start], "a number")

    def load(self) -> Any:
        """The value, built."""
        try:
            return orjson.loads(memoryview(self._body)[self._start : self._end])
        except orjson.JSONDecodeError:
            raise _broken(self._start) from None

    def scalar(self) -> Any:
        """The value of what is neither a list nor an object; a long text is built in pieces.

        Raises:
            Undecodable: it is no JSON value, or a number that is too long.
        """
        size = self._end - self._start
        if self._body[self._start] != _QUOTE:
            if size > MAX_NUMBER:
                raise Undecodable(f"a number has more than {MAX_NUMBER} characters")
        elif size > _BLOCK:
            return grown_text(self._text_pieces())
        return self.load()

    def _text_pieces(self) -> Iterator[str]:
        body, at, end = self._body, self._start + 1, self._end - 1
        if body[end] != _QUOTE:
            raise _broken(end)
        while at < end:
            found = _TEXT.match(body, at, min(end, at + _BLOCK))
            stop = at if found is None else found.end()
            while stop > at and body[stop] & 0xC0 == 0x80:  # within the bytes of one character
                stop -= 1
            if stop == at:
                raise _broken(at)
            yield Span(b'"%b"' % body[at:stop], 0, stop - at + 2).load()
            at = stop

    def items(self, most: int, where: str) -> list[Span]:
        """The elements of a list.

        Raises:
            Undecodable: there are more than ``most``, or brackets or quotes do not match.
        """
        return [Span(self._body, *place, self._depth + 1) for place in self._places(most, where)]

    def members(self, most: int, where: str) -> list[tuple[str, Span]]:
        """The members of an object, which may have equal names; raises as ``items`` does."""
        body = self._body
        members = []
        for start, end in self._places(most, where):
            found = _NAME.match(body, start, min(end, start + _LONGEST_NAME))
            if found is None:
                raise _broken(start)
            name = Span(body, *found.span(1)).load()
            members.append((name, Span(body, found.end(), end, self._depth + 1)))
        return members

    def count(self) -> int:
        """How many elements a flat list has."""
        start, end = self._start + 1, self._end - 1
        if _is_blank(self._body, start, end):
            return 0
        return 1 + sum(
            self._body.count(b",", at, min(end, at + _BLOCK)) for at in range(start, end, _BLOCK)
        )

    def pieces(self, where: str) -> Iterator[list[Any]]:
        """The elements of a flat list, some thousands at a time.

        Raises:
            Undecodable: it is no list, or has texts with commas, or numbers that are too long.
        """
        body, at, end = self._body, self._start + 1, self._end - 1
        if body[end] != ord("]"):
            raise _broken(end)
        if _is_blank(body, at, end):
            return
        while at <= end:
            stop = body.find(b",", min(end, at + _BLOCK), end)
            if stop < 0:
                stop = end
            if stop - at > _BLOCK + 2 * MAX_NUMBER:
                raise Undecodable(f"{where} has an element that is too long for a number")
            piece = body[at:stop]
            if not piece.strip(_BLANK):
                raise _broken(at)
            check_numbers(piece)
            try:
                yield orjson.loads(b"[%b]" % piece)
            except orjson.JSONDecodeError:
                raise _broken(at) from None
            at = stop + 1

    def _places(self, most: int, where: str) -> Iterator[tuple[int, int]]:
        """Where the elements of this list, or the members of this object, begin and end."""
        body, start, end = self._body, self._start, self._end
        if body[end - 1] != body[start] + 2:  # "]" and "}" stand two places behind their opening
            raise _broken(end)
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
        """The commas between its elements."""
        body, at, end = self._body, self._start, self._end
        level, quoted = 0, False
        while at < end:
            if level > 1 and not quoted:
                block = body[at : min(end, at + _BLOCK)]
                if not block.translate(None, _FLAT):  # numbers in a list further inside
                    at += len(block)
                    continue
            stop = min(end, at + _BLOCK)
            block = body[at:stop]
            if b"\\" in block:
                if (len(block) - len(block.rstrip(b"\\"))) % 2 and stop < end:
                    stop += 1  # what the last one of them escapes
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
                raise _broken(at)
            commas = np.flatnonzero((octets == _COMMA) & (levels == 1) & ~within)
            for comma in commas.tolist():
                yield at + comma
            level, quoted = int(levels[-1]), bool(within[-1])
            at = stop
        if level or quoted:
            raise _broken(end)


def check_numbers(body: bytes | bytearray) -> None:
    """Refuse a number of over 1,000 characters; the same characters inside a text are legal."""
    # A number that long covers a whole block, so looking where blocks start is enough to acquit.
    if not any(_NUMBER_BLOCK.match(body, start) for start in range(0, len(body), _NUMBER_STEP)):
        return
    for token in _STRING_OR_NUMBER.finditer(body):
        if token.end() - token.start() > MAX_NUMBER and body[token.start()] != _QUOTE:
            raise Undecodable(f"a number has more than {MAX_NUMBER} characters")


_NUMBER_STEP = MAX_NUMBER // 2
_NUMBER_BLOCK = re.compile(rb"[-+.0-9eE]{%d}" % _NUMBER_STEP)
_STRING_OR_NUMBER = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"|[-+.0-9eE]++', re.DOTALL)


def _stripped(body: bytes, start: int, end: int) -> tuple[int, int]:
    """The same places without blanks at both sides; equal ones when there are only blanks."""
    while start < end:
        block = body[start : min(end, start + _EDGE)]
        blanks = len(block) - len(block.lstrip(_BLANK))
        start += blanks
        if blanks < len(block):
            break
    while start < end:
        block = body[max(start, end - _EDGE) : end]
        blanks = len(block) - len(block.rstrip(_BLANK))
        end -= blanks
        if blanks < len(block):
            break
    return start, end


def _is_blank(body: bytes, start: int, end: int) -> bool:
    start, end = _stripped(body, start, end)
    return start == end


def _broken(at: int) -> Undecodable:
    return Undecodable(f"the body is not a JSON document (near byte {at})")
