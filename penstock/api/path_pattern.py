"""Patterns of paths: literal segments and placeholders, such as ``/items/{id:int}``.

A placeholder has a name and a converter: ``str`` (the default) is any segment, ``int``, ``float``
and ``uuid`` are segments of that form, and ``path`` is the rest of the path with its slashes. A
value is percent-decoded. It is never a part that a file system reads as something else: empty,
``.``, ``..``, or with a slash (but in a ``path``), a backslash or a control character.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final
from urllib.parse import unquote_to_bytes

CONVERTERS: Final = {
    "int": re.compile(r"[0-9]+"),
    "uuid": re.compile(r"[0-9a-fA-F]{8}-?([0-9a-fA-F]{4}-?){3}[0-9a-fA-F]{12}"),
    "float": re.compile(r"[0-9]+(\.[0-9]+)?"),
    "str": None,
    "path": None,
}
"""The forms of segments; None for any. The earlier ones have precedence, after literal segments."""

_RANKS: Final = {name: rank for rank, name in enumerate(CONVERTERS, 1)}
_PLACEHOLDER: Final = re.compile(r"\{([^{}:/]*)(?::([^{}/]*))?\}")
_BAD: Final = re.compile(r"[/\\\x00-\x1f\x7f]")


class PathPattern:
    """A pattern, compiled.

    Args:
        text: such as ``/items/{id:int}``; without a placeholder it is one path.

    Attributes:
        names: of the placeholders, in order.
        template: the text without converters, as OpenAPI has it.
        shape: equal for patterns that match the same paths.
        order: patterns that sort first take precedence: those with earlier literal segments.

    Raises:
        ValueError: the text is no pattern; the message says why.
    """

    __slots__ = ("_forms", "_literals", "_rest", "_size", "names", "order", "shape", "template")

    def __init__(self, text: str) -> None:
        segments = text.split("/")
        self._size = len(segments)
        self._literals: list[tuple[int, bytes]] = []
        self._forms: list[tuple[int, re.Pattern[str] | None]] = []
        self._rest: int | None = None
        names, template, shape, order = [], [], [], []
        for index, segment in enumerate(segments):
            found = _PLACEHOLDER.fullmatch(segment)
            if found is None:
                if "{" in segment or "}" in segment:
                    raise ValueError(
                        f"a placeholder is a whole segment, such as {{id}} or {{id:int}}, not"
                        f" {segment!r}"
                    )
                self._literals.append((index, unquote_to_bytes(segment)))
                template.append(segment)
                shape.append(segment)
                order.append(0)
                continue
            name, kind = found[1], found[2] or "str"
            if kind not in CONVERTERS:
                known = ", ".join(CONVERTERS)
                raise ValueError(f"the converter of {segment} is one of {known}")
            if name in names:
                raise ValueError(f"two placeholders are called {name}")
            if kind == "path":
                if index != len(segments) - 1:
                    raise ValueError(f"{segment} is the rest of the path: put it at the end")
                self._rest = index
            else:
                self._forms.append((index, CONVERTERS[kind]))
            names.append(name)
            template.append(f"{{{name}}}")
            shape.append("{}" if kind == "str" else f"{{{kind}}}")
            order.append(_RANKS[kind])
        self.names = tuple(names)
        self.template = "/".join(template)
        self.shape = tuple(shape)
        self.order = tuple(order)

    def match(
        self, segments: Sequence[bytes], values: Sequence[str | None]
    ) -> tuple[str, ...] | None:
        """Return the values of the placeholders; None if the path does not match.

        Args:
            segments: of the path, percent-decoded, but for those without a value.
            values: see ``segment_value``, of the segments after the first, which is empty.
        """
        if len(segments) != self._size and (self._rest is None or len(segments) < self._size):
            return None
        if any(segments[index] != literal for index, literal in self._literals):
            return None
        taken = []
        for index, form in self._forms:
            value = values[index - 1]
            if value is None or (form is not None and form.fullmatch(value) is None):
                return None
            taken.append(value)
        if self._rest is not None:
            rest = _rest(segments[self._rest :], values[self._rest - 1 :])
            if rest is None:
                return None
            taken.append(rest)
        return tuple(taken)


def segment_value(raw: bytes) -> str | None:
    """Percent-decode a segment; None if it is not a plain name."""
    try:
        text = unquote_to_bytes(raw).decode()
    except UnicodeDecodeError:
        return None
    return text if _is_plain(text) else None


def _is_plain(text: str) -> bool:
    return text not in ("", ".", "..") and _BAD.search(text) is None


def _rest(segments: Sequence[bytes], values: Sequence[str | None]) -> str | None:
    """Join segments, in which ``%2F`` is a slash as well; only the last part may be empty."""
    try:
        texts = [
            unquote_to_bytes(raw).decode() if value is None else value
            for raw, value in zip(segments, values, strict=True)
        ]
    except UnicodeDecodeError:
        return None
    text = "/".join(texts)
    *parts, last = text.split("/")
    plain = all(map(_is_plain, parts)) and (not last or _is_plain(last))
    return text if plain else None
