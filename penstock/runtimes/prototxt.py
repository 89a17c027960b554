"""Reads ``serving_server_conf.prototxt``: a model's inputs and outputs with their aliases.

The file is the protobuf text form of one message, ``GeneralModelConfig``: ``feed_var`` and
``fetch_var``, repeated, each with name, alias_name, is_lod_tensor, feed_type or fetch_type, shape.
Reading two messages of five fields needs no generated code; this reader is pure, takes bounded
input, knows no other field, and names the line of whatever it refuses.

Source: ``docs/compatibility.md`` (model folders); the Protocol Buffers text format specification.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from penstock.errors import ModelError

MAX_TEXT = 1 << 20  # characters; real files have a few hundred
MAX_VARIABLES = 4096  # a guess far above any real model
MAX_DIMENSIONS = 16  # as everywhere else in the protocol

# The numbers of ``feed_type`` and ``fetch_type``. 6 is bfloat16, for which numpy has no dtype.
DTYPE_OF_TYPE: dict[int, np.dtype[Any]] = {
    0: np.dtype(np.int64),
    1: np.dtype(np.float32),
    2: np.dtype(np.int32),
    3: np.dtype(np.float64),
    4: np.dtype(np.int16),
    5: np.dtype(np.float16),
    7: np.dtype(np.uint8),
    8: np.dtype(np.int8),
    9: np.dtype(np.bool_),
    10: np.dtype(np.complex64),
    11: np.dtype(np.complex128),
    20: np.dtype(object),
}
_BFLOAT16 = 6
_UNKNOWN_TYPE = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Variable:
    """One input or output as the file describes it.

    Attributes:
        name: the name inside the model.
        alias: the public name; ``name`` where the file gives none.
        is_lod: whether its rows are cut into sequences.
        type_number: 0 to 11 or 20 as on the wire; -1 when the converter did not know.
        shape: a hint without the batch axis, in which unknown dimensions were left out when the
            file was written; real ranks come from the model.
    """

    name: str
    alias: str
    is_lod: bool = False
    type_number: int = 0
    shape: tuple[int, ...] = ()

    @property
    def dtype(self) -> np.dtype[Any] | None:
        """The numpy dtype of ``type_number``; None where numpy has none or none was known."""
        return DTYPE_OF_TYPE.get(self.type_number)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConf:
    """The whole file, in its order; ``source`` is what errors call it."""

    feeds: tuple[Variable, ...]
    fetches: tuple[Variable, ...]
    source: str


def parse_model_conf(text: str, source: str = "prototxt") -> ModelConf:
    """Read the text form of ``GeneralModelConfig``.

    Raises:
        ModelError: names ``source`` and the line.
    """
    return _Reader(text, source).conf()


_TOKEN = re.compile(
    r"""
    (?P<space>[ \t\r\n\f\v]+|\#[^\n]*)
  | (?P<word>[A-Za-z_][A-Za-z0-9_]*)
  | (?P<number>-?(?:0[xX][0-9A-Fa-f]+|[0-9]+)(?![A-Za-z0-9_.]))
  | (?P<string>"(?:[^"\\\n]|\\[^\n])*"|'(?:[^'\\\n]|\\[^\n])*')
  | (?P<mark>[{}<>\[\]:,;])
    """,
    re.VERBOSE,
)
_ESCAPE = re.compile(rb"\\(?:([0-7]{1,3})|[xX]([0-9A-Fa-f]{1,2})|(.))", re.DOTALL)
_SIMPLE_ESCAPES = {
    b"a": b"\a",
    b"b": b"\b",
    b"f": b"\f",
    b"n": b"\n",
    b"r": b"\r",
    b"t": b"\t",
    b"v": b"\v",
    b"\\": b"\\",
    b"'": b"'",
    b'"': b'"',
    b"?": b"?",
}
_BOOLS = {"true": True, "True": True, "t": True, "1": True}
_BOOLS |= {"false": False, "False": False, "f": False, "0": False}


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str
    text: str
    line: int


class _Reader:
    """Recursive descent over the tokens; one token of lookahead, depth one."""

    def __init__(self, text: str, source: str) -> None:
        self.source = source
        if len(text) > MAX_TEXT:
            raise ModelError(f"{source}: {len(text)} characters, at most {MAX_TEXT} are read")
        self.tokens = self._tokens(text)
        self.next = next(self.tokens)

    def _tokens(self, text: str) -> Iterator[_Token]:
        position, line = 0, 1
        while position < len(text):
            match = _TOKEN.match(text, position)
            if match is None or match.lastgroup is None:
                end = text.find("\n", position)
                rest = text[position : min(position + 20, end if end >= 0 else len(text))]
                raise self._error(line, f"cannot read {rest!r}")
            if match.lastgroup != "space":
                yield _Token(match.lastgroup, match.group(), line)
            line += match.group().count("\n")
            position = match.end()
        yield _Token("end", "end of the file", line)

    def _error(self, line: int, text: str) -> ModelError:
        return ModelError(f"{self.source}, line {line}: {text}")

    def _take(self) -> _Token:
        token = self.next
        if token.kind != "end":
            self.next = next(self.tokens)
        return token

    def _expect(self, wanted: str, *kinds: str) -> _Token:
        token = self._take()
        if token.kind not in kinds:
            raise self._error(token.line, f"expected {wanted}, found {token.text!r}")
        return token

    def _skip(self, *marks: str) -> bool:
        if self.next.kind == "mark" and self.next.text in marks:
            self._take()
            return True
        return False

    def conf(self) -> ModelConf:
        found: dict[str, list[Variable]] = {"feed_var": [], "fetch_var": []}
        while self.next.kind != "end":
            field = self._expect("feed_var or fetch_var", "word")
            if field.text not in found:
                raise self._error(
                    field.line, f"unknown field {field.text!r}, expected feed_var or fetch_var"
                )
            variables = found[field.text]
            if len(variables) == MAX_VARIABLES:
                raise self._error(field.line, f"more than {MAX_VARIABLES} of {field.text}")
            kind = "feed_type" if field.text == "feed_var" else "fetch_type"
            variables.append(self._variable(kind))
            self._skip(",", ";")
        return ModelConf(
            feeds=tuple(found["feed_var"]), fetches=tuple(found["fetch_var"]), source=self.source
        )

    def _variable(self, type_field: str) -> Variable:
        self._skip(":")
        opening = self._expect("'{'", "mark")
        closing = {"{": "}", "<": ">"}.get(opening.text)
        if closing is None:
            raise self._error(opening.line, f"expected '{{', found {opening.text!r}")
        given: dict[str, str | bool | int] = {}
        shape: list[int] = []
        while not self._skip(closing):
            field = self._expect(f"a field or {closing!r}", "word")
            name = field.text
            self._expect_colon(name)
            if name == "shape":
                self._dimensions(shape)
            elif name in given:
                raise self._error(field.line, f"{name} is given twice")
            elif name in ("name", "alias_name"):
                given[name] = self._string(name)
            elif name == "is_lod_tensor":
                given[name] = self._bool()
            elif name == type_field:
                given[name] = self._type_number(name)
            else:
                known = f"name, alias_name, is_lod_tensor, {type_field}, shape"
                raise self._error(field.line, f"unknown field {name!r}, expected one of {known}")
            self._skip(",", ";")
        own = str(given.get("name", ""))
        if not own:
            raise self._error(opening.line, "a variable without a name")
        return Variable(
            name=own,
            alias=str(given.get("alias_name") or own),
            is_lod=bool(given.get("is_lod_tensor", False)),
            type_number=int(given.get(type_field, 0)),
            shape=tuple(shape),
        )

    def _expect_colon(self, name: str) -> None:
        token = self._take()
        if token.text != ":":
            raise self._error(token.line, f"expected ':' after {name}, found {token.text!r}")

    def _dimensions(self, shape: list[int]) -> None:
        if not self._skip("["):
            shape.append(self._int("shape"))
        elif not self._skip("]"):
            shape.append(self._int("shape"))
            while self._skip(","):
                shape.append(self._int("shape"))
            token = self._take()
            if token.text != "]":
                raise self._error(token.line, f"expected ']', found {token.text!r}")
        if len(shape) > MAX_DIMENSIONS:
            raise self._error(self.next.line, f"more than {MAX_DIMENSIONS} dimensions")

    def _int(self, name: str) -> int:
        token = self._expect(f"a number for {name}", "number")
        digits = token.text.lstrip("-")
        base = 16 if digits[:2].lower() == "0x" else 8 if digits.startswith("0") else 10
        try:
            value = int(token.text, base)
        except ValueError:
            raise self._error(token.line, f"{token.text!r} is no number") from None
        if not -(1 << 31) <= value < 1 << 31:
            raise self._error(token.line, f"{token.text} does not fit 32 bits")
        return value

    def _type_number(self, name: str) -> int:
        line = self.next.line
        value = self._int(name)
        if value not in DTYPE_OF_TYPE and value not in (_BFLOAT16, _UNKNOWN_TYPE):
            raise self._error(line, f"{name} {value} is unknown")
        return value

    def _bool(self) -> bool:
        token = self._expect("true or false", "word", "number")
        value = _BOOLS.get(token.text)
        if value is None:
            raise self._error(token.line, f"expected true or false, found {token.text!r}")
        return value

    def _string(self, name: str) -> str:
        token = self._expect(f"a quoted text for {name}", "string")
        raw = self._unescaped(token)
        while self.next.kind == "string":  # adjacent texts are one text
            raw += self._unescaped(self._take())
        try:
            return raw.decode()
        except UnicodeDecodeError:
            raise self._error(token.line, f"{name} is not UTF-8") from None

    def _unescaped(self, token: _Token) -> bytes:
        def one(match: re.Match[bytes]) -> bytes:
            octal, hexadecimal, letter = match.groups()
            if letter is None:
                number = int(octal, 8) if octal else int(hexadecimal, 16)
                if number <= 255:
                    return bytes((number,))
            elif letter in _SIMPLE_ESCAPES:
                return _SIMPLE_ESCAPES[letter]
            raise self._error(
                token.line, f"unknown escape {match.group().decode(errors='replace')!r}"
            )

        return _ESCAPE.sub(one, token.text[1:-1].encode("utf-8", "surrogatepass"))
