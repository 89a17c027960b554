"""Bounds how often unions of a type make pydantic validate the same part of a body.

Without a discriminator pydantic validates a value as each member of its union. If members contain
the union again, as in a tree, each level multiplies these attempts: some hundred bytes, nested 30
deep, would take hours. The attempts at each level follow from the type; those of a body are summed
before pydantic runs.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Self

from penstock.errors import InvalidInput

_MOST: Final = 30_000
"""Most attempts of a body, times the members of each object: a quarter of a second."""
_LEVELS: Final = 64
"""Most nesting of JSON."""
_FREE: Final = 8
"""Attempts that are not counted: they cost little more than reading the body."""
_A_SCALAR: Final = 8  # usual bytes of JSON of a number or a short text

_MARK: Final = re.compile(rb'["\[\]{}]')
_TEXT: Final = re.compile(rb'"(?:[^"\\]|\\.)*+"', re.DOTALL)

_SKIPPED: Final = {
    "json-or-python": "json_schema",
    "lax-or-strict": "lax_schema",
    "call": "arguments_schema",
}
"""Schemas that stand for another one at the same level, by the key of that; by default it is
``schema``."""
_EITHER: Final = frozenset(("arguments", "named-tuple"))
_OBJECTS: Final = _EITHER | {"model-fields", "dataclass-args", "typed-dict", "dict"}
_ARRAYS: Final = _EITHER | {"list", "set", "frozenset", "tuple", "generator"}
_ANY: Final = ""  # a member, or an element, without a schema of its own


@dataclass(frozen=True, slots=True)
class Attempts:
    """The attempts of a type.

    Attributes:
        at: the most attempts at a value of each level.
        width: most members of an object in the type.
        multiply: whether the attempts grow with each level.
    """

    at: tuple[int, ...]
    width: int
    multiply: bool

    @classmethod
    def of(cls, schema: Mapping[str, Any]) -> Self:
        """Return those of a core schema of pydantic."""
        kinds = _Kinds(schema)
        at = [0]
        best: dict[frozenset[int], Counter[int]] = {}
        states = [kinds.starts(schema)]
        while states and len(at) <= _LEVELS:
            grown: dict[frozenset[int], Counter[int]] = {}
            for state in states:
                kind = frozenset(state)
                if not state <= best.get(kind, Counter()):
                    best[kind] = best.get(kind, Counter()) | state
                    grown[kind] = best[kind]
            at.append(max([at[-1], *(each.total() for each in grown.values())]))
            states = [below for state in grown.values() for below in kinds.below(state) if below]
        return cls(tuple(at[1:]), kinds.width, multiply=bool(states))

    def check_json(self, body: bytes) -> None:
        """Sum the attempts of JSON, which need not be valid.

        Raises:
            InvalidInput: there are too many.
        """
        level, left, position = 0, _MOST, 0
        while (mark := _MARK.search(body, position)) is not None:
            before, position = position, mark.end()
            if level and (each := self._of(level - 1)) > _FREE:
                left -= each * ((position - before) // _A_SCALAR)
            match mark[0]:
                case b'"':
                    text = _TEXT.match(body, mark.start())
                    if text is None:
                        return
                    position = text.end()
                case b"[" | b"{":
                    each = self._of(level)
                    left -= each * self.width if each > _FREE else 0
                    level += 1
                case _:
                    level -= 1
            if left < 0:
                _refuse()

    def check(self, value: Any) -> None:
        """Sum the attempts of a plain value.

        Raises:
            InvalidInput: there are too many.
        """
        level, left = 0, _MOST
        values = [value]
        while values:
            each = self._of(level)
            below: list[Any] = []
            for one in values:
                if isinstance(one, (dict, list)):
                    left -= each * max(len(one), self.width) if each > _FREE else 0
                    below += one.values() if isinstance(one, dict) else one
            if left < 0:
                _refuse()
            values = below
            level += 1

    def _of(self, level: int) -> int:
        return self.at[min(level, len(self.at) - 1)]


def _refuse() -> None:
    text = (
        "it is nested too deeply for a type whose unions have no discriminator: each level"
        " multiplies the attempts to validate it"
    )
    raise InvalidInput([{"loc": ["body"], "msg": text, "type": "too_many_attempts"}])


class _Kinds:
    """The objects and arrays of a type, each by its id, and what their members may be.

    A state is what one value is validated as, with the number of attempts.
    """

    def __init__(self, schema: Mapping[str, Any]) -> None:
        self.width = 1
        self._named: dict[str, Mapping[str, Any]] = {}
        self._objects: dict[int, dict[str, Counter[int]]] = {}
        self._arrays: dict[int, dict[str, Counter[int]]] = {}
        self._name(schema)

    def _name(self, schema: Any) -> None:
        if isinstance(schema, Mapping):
            if "ref" in schema:
                self._named[schema["ref"]] = schema
            for each in schema.values():
                self._name(each)
        elif isinstance(schema, (list, tuple)):
            for each in schema:
                self._name(each)

    def starts(self, schema: Mapping[str, Any]) -> Counter[int]:
        """Return what a value of a schema is validated as."""
        kind = schema["type"]
        if kind in _OBJECTS or kind in _ARRAYS or kind == "tagged-union":
            return self._known(schema)
        if kind == "union":
            choices = (each[0] if isinstance(each, tuple) else each for each in schema["choices"])
            return sum(map(self.starts, choices), Counter())
        if kind == "definition-ref":
            return self.starts(self._named[schema["schema_ref"]])
        if kind == "chain":
            return self.starts(schema["steps"][0])
        inner = schema.get(_SKIPPED.get(kind, "schema"))
        return Counter() if inner is None else self.starts(inner)

    def below(self, state: Counter[int]) -> Iterator[Counter[int]]:
        """Yield what a member of a value in this state may be validated as."""
        for kinds in (self._objects, self._arrays):
            members = [(kinds[each], count) for each, count in state.items() if each in kinds]
            for name in {name for each, _ in members for name in each} | {_ANY}:
                found: Counter[int] = Counter()
                for each, count in members:
                    for kind, times in each.get(name, each.get(_ANY, {})).items():
                        found[kind] += count * times
                yield found

    def _known(self, schema: Mapping[str, Any]) -> Counter[int]:
        """Learn the members of an object or an array, once."""
        kind, key = schema["type"], id(schema)
        if key in self._objects or key in self._arrays:
            return Counter((key,))
        if kind == "tagged-union":  # only one of them is tried
            objects: dict[str, Counter[int]] = {}
            arrays: dict[str, Counter[int]] = {}
            self._objects[key], self._arrays[key] = objects, arrays
            for choice in schema["choices"].values():
                chosen = self.starts(choice)
                for known, own in ((self._objects, objects), (self._arrays, arrays)):
                    _add(own, *(known[each] for each in chosen if each in known and each != key))
            return Counter((key,))
        members: dict[str, Counter[int]] = {}
        if kind in _OBJECTS:
            self._objects[key] = members
        if kind in _ARRAYS:
            self._arrays[key] = members
        listed = [*_members(schema)]
        self.width = max(self.width, len(listed))
        for name, inner in listed:
            _add(members, {name: self.starts(inner)})
            if kind in _EITHER:
                _add(members, {_ANY: self.starts(inner)})
        return Counter((key,))


def _add(members: dict[str, Counter[int]], *more: Mapping[str, Counter[int]]) -> None:
    """Add alternatives: of each member the most attempts."""
    for each in more:
        for name, state in each.items():
            members[name] = members.get(name, Counter()) | state


def _members(schema: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the members of an object with their names in bodies, or the elements of an array."""
    fields = schema.get("fields", schema.get("arguments_schema", ()))
    for field in _named(fields):
        for name in _names(field[1].get("validation_alias", field[1].get("alias"))) | {field[0]}:
            yield name, field[1]["schema"]
    items = schema.get("items_schema", ())
    for item in items if isinstance(items, (list, tuple)) else (items,):
        yield _ANY, item
    for key in ("values_schema", "extras_schema"):
        if key in schema:
            yield _ANY, schema[key]


def _named(fields: Any) -> Iterable[tuple[str, Mapping[str, Any]]]:
    return fields.items() if isinstance(fields, Mapping) else [(x["name"], x) for x in fields]


def _names(alias: Any) -> set[str]:
    """Return the first names of an alias: a text, a path, or a list of these."""
    if alias is None:
        return set()
    if isinstance(alias, str):
        return {alias}
    return {str(path if isinstance(path, str) else path[0]) for path in alias}
