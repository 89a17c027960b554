"""A JSON Schema in one line, for people: ``{width: number, height?: number} -> number``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

_LONGEST: Final = 100
"""Maximum characters of a line: a terminal's width, less a path."""


def outline(schema: Mapping[str, Any]) -> str:
    """Format a schema: the members of an object with their types, or a type.

    Args:
        schema: from ``Schema.describe``, with plain names as references.
    """
    top = schema.get("$defs", {}).get(schema.get("$ref"), schema)
    members = top.get("properties")
    if members is None:
        return _clipped(_type(top))
    required = top.get("required", ())
    listed = [
        f"{name}{'' if name in required else '?'}: {_type(each)}" for name, each in members.items()
    ]
    return _clipped(f"{{{', '.join(listed)}}}")


def _type(schema: Mapping[str, Any]) -> str:
    if "$ref" in schema:
        return str(schema["$ref"])
    described = str(schema.get("description", ""))
    if described.startswith("array of "):  # our description is clearer than nested lists
        return described
    for key in ("anyOf", "oneOf"):
        if key in schema:
            return " | ".join(map(_type, schema[key]))
    if "const" in schema or "enum" in schema:
        return " | ".join(map(repr, schema.get("enum", [schema.get("const")])))
    if "contentMediaType" in schema:
        return str(schema["contentMediaType"])
    kind = schema.get("type")
    if "prefixItems" in schema:
        return f"[{', '.join(map(_type, schema['prefixItems']))}]"
    if kind == "array":
        return f"[{_type(schema.get('items', {}))}]"
    if kind == "object" and isinstance(schema.get("additionalProperties"), dict):
        return f"{{text: {_type(schema['additionalProperties'])}}}"
    if kind == "string":
        binary = "contentEncoding" in schema or schema.get("format") in ("binary", "base64")
        return "bytes" if binary else "text"
    return str(kind or "anything")


def _clipped(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 2]} …"
