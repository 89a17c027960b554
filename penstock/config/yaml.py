"""YAML text to plain data, with the line of every key.

The parser gives events only; texts become values here, by the core schema of YAML 1.2: null,
booleans, integers, floats, and text for everything else. No other tag is known, so nothing is ever
constructed or evaluated. Size, depth and the number of values are bounded, and what an alias
repeats counts each time, so that a small file cannot grow large.

Source: YAML 1.2.2, chapter 10.3; the merge key ``<<`` of YAML 1.1.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError
from ruamel.yaml.events import (
    AliasEvent,
    DocumentStartEvent,
    Event,
    MappingEndEvent,
    MappingStartEvent,
    ScalarEvent,
    SequenceEndEvent,
    SequenceStartEvent,
)

from penstock.config.problems import KeyPath, Problem, clipped
from penstock.errors import ConfigError

MAX_BYTES = 1 << 20
"""Largest file; a thousand ops with every key written stay below half of it."""
MAX_DEPTH = 32
"""Deepest nesting; the schema needs five levels."""
MAX_VALUES = 20_000
"""Most values, those repeated by aliases included."""

_CORE = "tag:yaml.org,2002:"
_NULL = re.compile(r"~|null|Null|NULL|")
_TRUE = re.compile(r"true|True|TRUE")
_FALSE = re.compile(r"false|False|FALSE")
_INT = re.compile(r"[-+]?[0-9]+")
_BASED = re.compile(r"0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_INF = re.compile(r"([-+]?)\.(inf|Inf|INF)")
_NAN = re.compile(r"\.(nan|NaN|NAN)")
MAX_DIGITS = 300
"""Longest number; longer ones stay text, which no key of a number accepts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """A read file.

    Attributes:
        data: the top mapping; its inner values may be shared and must not be modified.
        lines: key path -> line, from 1.
        problems: what is wrong although it could be read, such as keys given twice.
    """

    data: dict[str, Any]
    lines: dict[KeyPath, int]
    problems: tuple[Problem, ...] = ()


def read_file(path: Path) -> str:
    """The text of a file.

    Raises:
        ConfigError: it cannot be read, is too large, or is not UTF-8.
    """
    try:
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        reason = getattr(error, "strerror", None) or str(error)
        raise ConfigError([f"{path}: cannot be read: {reason}"]) from error
    if len(content) > MAX_BYTES:
        raise ConfigError([f"{path}: is larger than {MAX_BYTES} bytes"])
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise ConfigError([f"{path}:{line}: is not UTF-8"]) from error


def read_text(text: str, source: str = "configuration") -> Document:
    """Read one YAML document whose top is a mapping; an empty text is an empty mapping.

    Raises:
        ConfigError: it is not YAML, or more than the bounds allow. ``source`` opens the message.
    """
    if len(text) > MAX_BYTES:
        raise ConfigError([f"{source}: is larger than {MAX_BYTES} bytes"])
    try:
        return _Reader(text).document()
    except _Refused as refused:
        raise ConfigError([f"{source}:{refused.line}: {refused.text}"]) from refused
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"{source}:{mark.line + 1}" if mark is not None else source
        raise ConfigError([f"{where}: is not valid YAML: {clipped(str(error.problem))}"]) from error
    # The parser answers some malformed texts (bad escapes, odd directives) with whatever its
    # internals raise; for the writer of the file they all mean the same.
    except Exception as error:
        reason = clipped(str(error).partition("\n")[0])
        raise ConfigError([f"{source}: is not valid YAML: {reason}"]) from error


class _Refused(Exception):
    """Reading cannot go on."""

    def __init__(self, line: int, text: str) -> None:
        super().__init__(text)
        self.line = line
        self.text = text


def _line(event: Event) -> int:
    return int(event.start_mark.line) + 1


class _Reader:
    """One pass over the events of one text."""

    def __init__(self, text: str) -> None:
        self.events: Iterator[Event] = iter(YAML(typ="safe", pure=True).parse(text))
        self.lines: dict[KeyPath, int] = {}
        self.problems: list[Problem] = []
        self.anchors: dict[str, tuple[Any, int]] = {}  # value, number of values in it
        self.values = 0

    def document(self) -> Document:
        top: Any = None
        documents = 0
        for event in self.events:
            if not isinstance(event, DocumentStartEvent):
                continue
            documents += 1
            if documents > 1:
                raise _Refused(_line(event), "a second document starts here; one is expected")
            first = next(self.events)
            top = self.value(first, ())
            if top is not None and not isinstance(top, dict):
                raise _Refused(_line(first), "the top of the file must be a mapping of keys")
        return Document(data=top or {}, lines=self.lines, problems=tuple(self.problems))

    def value(self, event: Event, path: KeyPath) -> Any:
        self.count(event, 1)
        if len(path) > MAX_DEPTH:
            raise _Refused(_line(event), f"nested deeper than {MAX_DEPTH} levels")
        if isinstance(event, AliasEvent):
            return self.repeated(event)
        before = self.values - 1
        if isinstance(event, ScalarEvent):
            value = self.scalar(event)
        elif isinstance(event, SequenceStartEvent):
            value = self.sequence(event, path)
        elif isinstance(event, MappingStartEvent):
            value = self.mapping(event, path)
        else:
            raise _Refused(_line(event), "a value is missing")
        if event.anchor is not None:
            self.anchors[event.anchor] = (value, self.values - before)
        return value

    def count(self, event: Event, more: int) -> None:
        self.values += more
        if self.values > MAX_VALUES:
            raise _Refused(_line(event), f"more than {MAX_VALUES} values, aliases included")

    def repeated(self, event: AliasEvent) -> Any:
        if event.anchor not in self.anchors:
            raise _Refused(
                _line(event), f"the alias *{clipped(event.anchor)} has no anchor before it"
            )
        value, size = self.anchors[event.anchor]
        self.count(event, size)
        return value

    def scalar(self, event: ScalarEvent) -> Any:
        tag = str(event.tag) if event.tag is not None else None
        if tag is None or tag == "!":
            plain = bool(event.implicit[0]) and tag is None
            return resolved(event.value) if plain else event.value
        if tag == _CORE + "str":
            return event.value
        value = resolved(event.value)
        kinds = {"int": int, "float": float, "bool": bool, "null": type(None)}
        if type(value) is not kinds.get(tag.removeprefix(_CORE), object):
            raise _Refused(
                _line(event), f"the tag {clipped(tag)} is not known here, or not of this"
            )
        return value

    def sequence(self, event: SequenceStartEvent, path: KeyPath) -> list[Any]:
        self.known_tag(event, "seq")
        items: list[Any] = []
        while not isinstance(item := next(self.events), SequenceEndEvent):
            here = (*path, len(items))
            self.lines[here] = _line(item)
            items.append(self.value(item, here))
        return items

    def mapping(self, event: MappingStartEvent, path: KeyPath) -> dict[str, Any]:
        self.known_tag(event, "map")
        own: dict[str, Any] = {}
        merged: list[tuple[dict[str, Any], int]] = []
        while not isinstance(key_event := next(self.events), MappingEndEvent):
            line = _line(key_event)
            if isinstance(key_event, ScalarEvent) and _is_merge(key_event):
                value = self.value(next(self.events), (*path, "<<"))
                merged += [(each, line) for each in self.mergeable(key_event, value)]
                continue
            key = self.key(key_event, path)
            here = (*path, key)
            if key in own:
                text = f"is given twice, first on line {self.lines[here]}"
                self.problems.append(Problem(path=here, text=text, line=line))
            else:
                self.lines[here] = line
            own[key] = self.value(next(self.events), here)
        for each, line in merged:
            for key, value in each.items():
                if key not in own:
                    own[key] = value
                    self.lines[(*path, key)] = line
        return own

    def key(self, event: Event, path: KeyPath) -> str:
        if not isinstance(event, ScalarEvent):
            raise _Refused(_line(event), "a key must be plain text")
        text = str(event.value)
        if not isinstance(self.scalar(event), str):
            name = clipped(text) or "without a name"
            problem = f"the key {name} is not text: put it in quotes"
            self.problems.append(Problem(path=path, text=problem, line=_line(event)))
        return text

    def mergeable(self, event: Event, value: Any) -> list[dict[str, Any]]:
        values = value if isinstance(value, list) else [value]
        if not all(isinstance(each, dict) for each in values):
            raise _Refused(_line(event), "<< must be given mappings")
        return values

    def known_tag(self, event: SequenceStartEvent | MappingStartEvent, kind: str) -> None:
        if event.tag is not None and str(event.tag) not in (_CORE + kind, "!"):
            raise _Refused(_line(event), f"the tag {clipped(str(event.tag))} is not known here")


def _is_merge(event: ScalarEvent) -> bool:
    return event.value == "<<" and bool(event.implicit[0]) and event.tag is None


def resolved(text: str) -> str | int | float | bool | None:
    """The value of an unquoted scalar."""
    if _NULL.fullmatch(text):
        return None
    if _TRUE.fullmatch(text):
        return True
    if _FALSE.fullmatch(text):
        return False
    if len(text) <= MAX_DIGITS:
        if _INT.fullmatch(text):
            return int(text)
        if _BASED.fullmatch(text):
            return int(text, 0)
        if _FLOAT.fullmatch(text):
            return float(text)
    if inf := _INF.fullmatch(text):
        return float(f"{inf[1]}inf")
    if _NAN.fullmatch(text):
        return float("nan")
    return text
