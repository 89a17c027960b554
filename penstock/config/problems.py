"""Problems of a configuration, and their texts for its author.

A Problem belongs to a key path; where that path was written (file and line, variable, flag) is
added by the code that reports it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, TypeAlias

from pydantic import ValidationError

from penstock.config.op import OpConfig
from penstock.config.schema import ServiceConfig, entries_of, section_at, section_of
from penstock.config.section import BLANK, Section, keys_of
from penstock.ops.words import KEYS

KeyPath: TypeAlias = tuple[str | int, ...]
"""Keys and list positions from the top of the file."""

SHOWN = 60
"""Most characters of a value that a message repeats."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One thing to correct.

    Attributes:
        path: the key; empty for the whole file.
        text: the problem, starting in lower case.
        line: the line, if the path is not enough.
        involves: further keys that are part of the problem.
        unknown: whether the key is unknown, and may be ignored.
    """

    path: KeyPath
    text: str
    line: int | None = None
    involves: tuple[KeyPath, ...] = ()
    unknown: bool = False


def dotted(path: KeyPath) -> str:
    """``op.uci.fetch_list[1]`` for ``("op", "uci", "fetch_list", 1)``."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{clipped(part)}"
    return text.removeprefix(".")


def in_words(problem: Problem) -> str:
    """The key and the problem as text."""
    key = dotted(problem.path)
    return f"{key}: {problem.text}" if key else problem.text


def clipped(text: str) -> str:
    """The text on one line, truncated."""
    line = text if text.isprintable() else ascii(text)[1:-1]
    return line if len(line) <= SHOWN else line[:SHOWN] + "…"


def shown(value: object) -> str:
    """The value as text; a large one only by its type."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int) and value.bit_length() > 64:
        return "a huge number"
    if isinstance(value, int | float):
        return str(value)
    if isinstance(value, str):
        return f"the text '{clipped(value)}'"
    if value is None:
        return "nothing"
    if isinstance(value, Mapping):
        return "a mapping"
    if isinstance(value, list | tuple):
        return "a list"
    return f"a {type(value).__name__}"


AT_KEY = "[key]"
"""The last element of pydantic's path to an invalid key."""


def explain(error: ValidationError) -> list[Problem]:
    """The schema's errors, as Problems."""
    return [
        _problem(tuple(each["loc"]), each["type"], each["input"], each.get("ctx", {}))
        for each in error.errors(include_url=False)
    ]


def _problem(path: KeyPath, kind: str, value: object, context: Mapping[str, Any]) -> Problem:
    if kind == "extra_forbidden":
        hint = _nearest(path)
        # A service without a rule of `security` admits those whom the rule is to refuse.
        ignorable = "security" not in (path[0], *hint.strip("?").split())
        return Problem(path=path, text=f"is not a known key{hint}", unknown=ignorable)
    if kind == "invalid_key":
        return Problem(path=path[:-1], text=f"the key {shown(value)} is not text")
    if path[-1:] == (AT_KEY,):
        text = f"the name {shown(value)} is not text: put it in quotes"
        if kind == "value_error":
            text = f"the name {value!a} {context['error']}"
        return Problem(path=path[:-2], text=text)
    if kind == "missing":
        return Problem(path=path, text="must be set")
    if value is BLANK:
        return Problem(path=path, text="is left blank: give it a value or leave the key out")
    return Problem(path=path, text=_sentence(kind, value, context, secret=_is_secret(path)))


_WANTED = {
    "int_type": "must be an integer",
    "float_type": "must be a number",
    "finite_number": "must be a finite number",
    "bool_type": "must be true or false",
    "string_type": "must be text",
    "string_too_short": "must not be empty",
    "tuple_type": "must be a list, such as [a, b]",
    "list_type": "must be a list, such as [a, b]",
    "dict_type": "must be a mapping of keys to values",
    "model_type": "must be a mapping of keys to values",
}
_LIMITS = {
    "greater_than_equal": ("must be at least", "ge"),
    "greater_than": ("must be more than", "gt"),
    "less_than_equal": ("must be at most", "le"),
}


def _is_secret(path: KeyPath) -> bool:
    """Whether a value at this path may be, or contain, that of a secret key."""
    section, home = section_at(path), section_at(path[:-1])
    of_home = home is not None and bool(path) and path[-1] in home.secret
    return of_home or (section is not None and bool(section.secret))


def _sentence(kind: str, value: object, context: Mapping[str, Any], *, secret: bool) -> str:
    if kind == "value_error":
        wanted = str(context["error"])
    elif kind == "literal_error":
        wanted = f"must be {context['expected']}"
    elif kind in _LIMITS:
        words, name = _LIMITS[kind]
        limit = context[name]
        wanted = f"{words} {int(limit) if int(limit) == limit else limit}"
    else:
        wanted = _WANTED.get(kind, f"is invalid ({kind})")
    if secret:
        return f"{wanted}, got another value, which is not repeated here"
    return f"{wanted}, got {shown(value)}{_hint(kind, value)}"


def _hint(kind: str, value: object) -> str:
    if kind == "string_type" and isinstance(value, bool | int | float):
        return f': put it in quotes, "{shown(value)}"'
    if kind in ("int_type", "float_type") and isinstance(value, str):
        return ": write the number without quotes and without a unit"
    if kind == "bool_type" and isinstance(value, str | int):
        return ": yes, no, on, off, 0 and 1 are not booleans here"
    return ""


def _nearest(path: KeyPath) -> str:
    """A hint with the nearest known key; empty if none is near."""
    section, key = section_at(path[:-1]) or ServiceConfig, str(path[-1])
    if section is OpConfig and key in KEYS:  # the word of code in a file
        return f"; it is called {KEYS[key]} here"
    homes = [where for name, where in _PLACES_OF_KEYS if name == key]
    if homes:
        return f"; {key} belongs under {' or '.join(homes)}"
    near = get_close_matches(key, list(keys_of(section)), n=1) or get_close_matches(
        key.lower().replace("-", "_"), list(keys_of(section)), n=1
    )
    return f"; did you mean {near[0]}?" if near else ""


def _places_of_keys(section: type[Section], where: str) -> Iterable[tuple[str, str]]:
    for key, annotation in keys_of(section).items():
        yield key, where or "the top of the file"
        inner, entries = section_of(annotation), entries_of(annotation)
        if inner is not None:
            yield from _places_of_keys(inner, f"{where}.{key}".removeprefix("."))
        elif entries is not None:
            yield from _places_of_keys(entries, f"{where}.{key}.<name>".removeprefix("."))


_PLACES_OF_KEYS: Sequence[tuple[str, str]] = tuple(_places_of_keys(ServiceConfig, ""))
"""Every key and its section."""
