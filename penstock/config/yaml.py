"""A bounded YAML reader that keeps the line of every key.

The library only composes nodes; scalars become values here, by the core schema of YAML 1.2: null,
booleans, integers, floats, and text for everything else. No other tag is known, so nothing is ever
constructed or evaluated. Size, depth and the number of values are bounded, and values repeated by
aliases count each time, so that a small file cannot grow large.

Source: YAML 1.2.2, chapter 10.3; the merge key ``<<`` of YAML 1.1.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from math import inf, nan
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode
from ruamel.yaml.resolver import VersionedResolver
from ruamel.yaml.tag import Tag

from penstock.config.problems import KeyPath, Problem, clipped
from penstock.errors import ConfigError

MAX_BYTES = 1 << 20
"""Most bytes of a file; a thousand ops with every key are below half of it."""
MAX_DEPTH = 32
"""Deepest nesting; the schema needs five levels."""
MAX_VALUES = 20_000
"""Most values, those repeated by aliases included."""

_CORE = "tag:yaml.org,2002:"
_PLAIN = "plain"
"""The tag of an unquoted scalar without a tag."""
_WORDS: dict[str, Any] = {"": None, "~": None, ".nan": nan, ".NaN": nan, ".NAN": nan}
for _word, _value in {
    "null": None, "true": True, "false": False, ".inf": inf, "+.inf": inf, "-.inf": -inf
}.items():  # fmt: skip
    _WORDS |= dict.fromkeys((_word, _word.title(), _word.upper()), _value)
_INT = re.compile(r"[-+]?[0-9]+")
_BASED = re.compile(r"0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
MAX_DIGITS = 300
"""Most digits of a number; longer ones stay text, which numeric keys refuse."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """A parsed file.

    Attributes:
        data: the top mapping; its inner values may be shared and must not be modified.
        lines: key path -> line, from 1.
        problems: problems of a readable file, such as duplicate keys.
    """

    data: dict[str, Any]
    lines: dict[KeyPath, int]
    problems: tuple[Problem, ...] = ()


def read_file(path: Path) -> str:
    """Read the text of a file.

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
        ConfigError: it is not YAML, or exceeds the bounds. The message begins with ``source``.
    """
    if len(text) > MAX_BYTES:
        raise ConfigError([f"{source}: is larger than {MAX_BYTES} bytes"])
    try:
        yaml = YAML(typ="safe", pure=True)
        yaml.Resolver = _Resolver
        yaml.composer.warn_double_anchors = False  # an anchor may be redefined
        return _Reader().document(yaml.compose(text))
    except _Refused as refused:
        raise ConfigError([f"{source}:{refused.line}: {refused.text}"]) from refused
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"{source}:{mark.line + 1}" if mark is not None else source
        reason = clipped(", ".join(filter(None, (error.context, error.problem))))
        raise ConfigError([f"{where}: is not valid YAML: {reason}"]) from error
    except RecursionError as error:
        raise ConfigError([f"{source}: nested deeper than {MAX_DEPTH} levels"]) from error
    # For some malformed texts (bad escapes, odd directives) the parser raises internal exceptions;
    # they all mean that the file is invalid.
    except Exception as error:
        reason = clipped(str(error).partition("\n")[0])
        raise ConfigError([f"{source}: is not valid YAML: {reason}"]) from error


class _Refused(Exception):
    """Reading cannot continue."""

    def __init__(self, node: Node, text: str) -> None:
        super().__init__(text)
        self.line = _line(node)
        self.text = text


class _Resolver(VersionedResolver):
    """Leaves plain scalars to ``resolved``, which implements the core schema."""

    def resolve(self, kind: type[Node], value: object, implicit: Any) -> Tag:
        if kind is ScalarNode:
            return Tag(suffix=_PLAIN if implicit[0] else _CORE + "str")
        return Tag(suffix=_CORE + ("seq" if kind is SequenceNode else "map"))


def _line(node: Node) -> int:
    return int(node.start_mark.line) + 1


class _Reader:
    """Converts the nodes of one text to values."""

    def __init__(self) -> None:
        self.lines: dict[KeyPath, int] = {}
        self.problems: list[Problem] = []
        self.values = 0

    def document(self, node: Node | None) -> Document:
        top = None if node is None else self.value(node, ())
        if node is not None and top is not None and not isinstance(top, dict):
            raise _Refused(node, "the top of the file must be a mapping of keys")
        return Document(data=top or {}, lines=self.lines, problems=tuple(self.problems))

    def value(self, node: Node, path: KeyPath) -> Any:
        self.values += 1
        if self.values > MAX_VALUES:
            raise _Refused(node, f"more than {MAX_VALUES} values, aliases included")
        if len(path) > MAX_DEPTH:
            raise _Refused(node, f"nested deeper than {MAX_DEPTH} levels")
        if isinstance(node, ScalarNode):
            return self.scalar(node)
        if str(node.tag) not in (_CORE + "seq", _CORE + "map", "!"):
            raise _Refused(node, f"the tag {clipped(str(node.tag))} is not known here")
        if isinstance(node, MappingNode):
            return self.mapping(node, path)
        items: list[Any] = []
        for item in node.value:
            here = (*path, len(items))
            self.lines[here] = _line(item)
            items.append(self.value(item, here))
        return items

    def scalar(self, node: ScalarNode) -> Any:
        tag = str(node.tag)
        if tag in (_CORE + "str", "!"):
            return node.value
        value = resolved(node.value)
        kinds = {"int": int, "float": float, "bool": bool, "null": type(None)}
        if tag != _PLAIN and type(value) is not kinds.get(tag.removeprefix(_CORE), object):
            raise _Refused(node, f"the tag {clipped(tag)} is not known here, or not of this")
        return value

    def mapping(self, node: MappingNode, path: KeyPath) -> dict[str, Any]:
        own: dict[str, Any] = {}
        merged: list[tuple[dict[str, Any], int]] = []
        for key_node, value_node in node.value:
            if not isinstance(key_node, ScalarNode):
                raise _Refused(key_node, "a key must be plain text")
            key, line = str(key_node.value), _line(key_node)
            if key == "<<" and str(key_node.tag) == _PLAIN:
                value = self.value(value_node, (*path, "<<"))
                values = value if isinstance(value, list) else [value]
                if not all(isinstance(each, dict) for each in values):
                    raise _Refused(key_node, "<< must be given mappings")
                merged += [(each, line) for each in values]
                continue
            here = (*path, key)
            if not isinstance(self.scalar(key_node), str):
                text = f"the key {clipped(key) or 'without a name'} is not text: put it in quotes"
                self.problems.append(Problem(path=path, text=text, line=line))
            if key in own:
                text = f"is given twice, first on line {self.lines[here]}"
                self.problems.append(Problem(path=here, text=text, line=line))
            else:
                self.lines[here] = line
            own[key] = self.value(value_node, here)
        for each, line in merged:
            for key, value in each.items():
                if key not in own:
                    own[key] = value
                    self.lines[(*path, key)] = line
        return own


def resolved(text: str) -> str | int | float | bool | None:
    """The value of an unquoted scalar."""
    if text in _WORDS:
        word: bool | float | None = _WORDS[text]
        return word
    if len(text) <= MAX_DIGITS:
        if _INT.fullmatch(text):
            return int(text)
        if _BASED.fullmatch(text):
            return int(text, 0)
        if _FLOAT.fullmatch(text):
            return float(text)
    return text
