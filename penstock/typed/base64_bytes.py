"""Bytes as Base64 in texts: one rule for ``bytes`` and images, wherever they are in a value.

Read: the standard and the URL-safe alphabet, with or without padding, and data URLs. Written: the
standard alphabet, with padding. Bytes that are not in a text, as in msgpack and forms' files, stay
as they are.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable
from typing import Any, Final

from pydantic import EncodedBytes
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema

_MARK: Final = "penstock_base64"
"""In the metadata of core schemas of bytes that follow the rule."""
_OTHERS: Final = ("utf8", "hex")
"""Pydantic's configuration of a model that has another rule for its bytes."""
_KEYS: Final = ("ser_json_bytes", "val_json_bytes")
_URL_SAFE: Final = bytes.maketrans(b"-_", b"+/")


def binary(value: Any) -> bytes:
    """Return bytes unchanged; decode a text as Base64.

    Raises:
        ValueError: the value is neither.
    """
    if isinstance(value, bytes):
        return value
    if not isinstance(value, str):
        raise ValueError("the bytes of one file are expected, as Base64 in JSON")
    if value.startswith("data:"):  # a data URL, as browsers encode files
        head, _, value = value.partition(",")
        if not head.endswith(";base64"):
            raise ValueError("a data URL with Base64 is expected: data:...;base64,...")
    try:
        data = value.encode("ascii").translate(_URL_SAFE)
        return base64.b64decode(data + b"=" * (-len(data) % 4), validate=True)
    except (binascii.Error, ValueError):
        raise ValueError("not valid Base64") from None


def text(data: bytes) -> str:
    """Encode bytes."""
    return base64.b64encode(data).decode()


def _decoded(value: Any) -> Any:
    return binary(value) if isinstance(value, str) else value


def _refused(value: Any) -> Any:
    if isinstance(value, str):
        raise ValueError("a text, where texts are no bytes")
    return value


def with_base64(schema: Any, *, of_answers: bool) -> tuple[Any, bool]:
    """Return a core schema in which all bytes follow the rule, and whether it has such bytes.

    Excepted are bytes of pydantic's ``EncodedBytes``, such as ``Base64Bytes``, and of models that
    are configured otherwise. Where a type is ``str | bytes``, a text is a ``str``.

    Args:
        schema: pydantic's core schema.
        of_answers: values are written, not read.
    """
    walk = _Walk(of_answers)
    changed = walk.changed(schema, other=False)
    return (changed, True) if walk.found else (schema, False)


class _Walk:
    def __init__(self, of_answers: bool) -> None:
        self.found = False
        self._key = "ser_json_bytes" if of_answers else "val_json_bytes"
        self._of_answers = of_answers

    def changed(self, schema: Any, *, other: bool, texts: bool = True) -> Any:
        """Return a part of a core schema.

        Args:
            schema: the part.
            other: its model has another rule.
            texts: bytes may be sent as texts.
        """
        if isinstance(schema, (list, tuple)):
            return type(schema)(self.changed(each, other=other, texts=texts) for each in schema)
        if not isinstance(schema, dict):
            return schema
        kind = schema.get("type")  # that of a member, if the dict is of members, one named "type"
        if not isinstance(kind, str):
            return {key: self.changed(each, other=other) for key, each in schema.items()}
        config = schema.get("config")
        if isinstance(config, dict):
            other = config.get(self._key) in _OTHERS
        if kind == "bytes":
            return schema if other else self._bytes(schema, _decoded if texts else _refused)
        if kind == "function-after" and _is_encoded(schema["function"]):
            return schema
        kept = ("default", "metadata", "config")
        found = {
            key: each if key in kept else self.changed(each, other=other)
            for key, each in schema.items()
        }
        if kind == "union":
            choices = schema["choices"]
            texts = not any(map(_is_str, choices))
            found["choices"] = self.changed(choices, other=other, texts=texts)
        return found

    def _bytes(self, schema: dict[str, Any], before: Callable[[Any], Any]) -> Any:
        self.found = True
        marked = {**schema, "metadata": {**schema.get("metadata", {}), _MARK: True}}
        if not self._of_answers:
            return core_schema.no_info_before_validator_function(before, marked)
        written = core_schema.plain_serializer_function_ser_schema(text, when_used="json")
        return {"serialization": written, **marked}


def _is_str(choice: Any) -> bool:
    """Whether a choice of a union is ``str``."""
    schema = choice[0] if isinstance(choice, tuple) else choice
    return bool(schema.get("type") == "str")


def _is_encoded(function: Any) -> bool:
    called = function.get("function") if isinstance(function, dict) else None
    return isinstance(getattr(called, "__self__", None), EncodedBytes)


class DescribeBase64(GenerateJsonSchema):
    """JSON Schemas of these core schemas."""

    def bytes_schema(self, schema: core_schema.BytesSchema) -> JsonSchemaValue:
        """Describe bytes."""
        if schema.get("metadata", {}).get(_MARK):
            return {"type": "string", "contentEncoding": "base64"}
        return super().bytes_schema(schema)

    def encode_default(self, dft: Any) -> Any:
        """Write a default as in a body."""
        config = self._config.config_dict
        if isinstance(dft, bytes) and not {config.get(each) for each in _KEYS} & {*_OTHERS}:
            return text(dft)
        return super().encode_default(dft)
