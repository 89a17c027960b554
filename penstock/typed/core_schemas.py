"""Changes pydantic's core schemas."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

_COLLECTIONS: Final = frozenset(("list", "tuple", "set", "frozenset", "dict"))


def failing_fast(schema: Any) -> Any:
    """Return a core schema whose collections stop at their first fault."""

    def change(found: dict[str, Any]) -> dict[str, Any]:
        return {**found, "fail_fast": True} if found["type"] in _COLLECTIONS else found

    return _changed(schema, change)


def eager(schema: Any) -> tuple[Any, bool]:
    """Return a core schema whose iterables are lists, and whether there were some.

    Pydantic validates the elements of an ``Iterable`` when they are taken: in the user's function,
    where a caller's error would look like one of the function.
    """
    lazy = False

    def change(found: dict[str, Any]) -> dict[str, Any]:
        nonlocal lazy
        if found["type"] != "generator":
            return found
        lazy = True
        # The serialization of a generator would fail for a list.
        return {**{key: found[key] for key in found if key != "serialization"}, "type": "list"}

    changed = _changed(schema, change)
    return (changed, True) if lazy else (schema, False)


def named_as_sent(schema: Any) -> tuple[Any, bool]:
    """Return a core schema whose members are read by the alias with which they are sent as well,
    and whether there are such members.

    Without it, a dict with that alias would silently get the member's default.
    """
    found = False

    def change(part: dict[str, Any]) -> dict[str, Any]:
        nonlocal found
        fields = part.get("fields")
        if part["type"] not in _WITH_MEMBERS or fields is None:
            return part
        members = fields if isinstance(fields, dict) else {each["name"]: each for each in fields}
        changed = {name: _read_as_sent(name, each, members) for name, each in members.items()}
        if changed == members:
            return part
        found = True
        return {**part, "fields": changed if fields is members else [*changed.values()]}

    changed = _changed(schema, change)
    return (changed, True) if found else (schema, False)


_WITH_MEMBERS: Final = ("model-fields", "dataclass-args", "typed-dict")


def _read_as_sent(name: str, field: dict[str, Any], members: Mapping[str, Any]) -> dict[str, Any]:
    sent, read = field.get("serialization_alias"), field.get("validation_alias", name)
    taken = [*members, *(each.get("validation_alias") for each in members.values())]
    if sent is None or sent in taken:
        return field
    paths = [[read]] if isinstance(read, str) else read
    paths = paths if isinstance(paths[0], list) else [paths]
    return {**field, "validation_alias": [*paths, [sent]]}


def _changed(schema: Any, change: Callable[[dict[str, Any]], dict[str, Any]]) -> Any:
    """Return a core schema with each schema in it changed."""
    if isinstance(schema, (list, tuple)):
        return type(schema)(_changed(each, change) for each in schema)
    if not isinstance(schema, dict):
        return schema
    kind = schema.get("type")  # that of a member, if the dict is of members, one named "type"
    if not isinstance(kind, str):
        return {key: _changed(value, change) for key, value in schema.items()}
    kept = ("default", "metadata") if kind == "default" else ("metadata",)
    return change(
        {key: value if key in kept else _changed(value, change) for key, value in schema.items()}
    )
