"""Changes pydantic's core schemas."""

from __future__ import annotations

from collections.abc import Callable
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
