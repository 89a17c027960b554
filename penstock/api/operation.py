"""The OpenAPI description of a route or a method."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeAlias

Contents: TypeAlias = Mapping[str, Mapping[str, Any]]
"""Media types of a body, each with its JSON Schema, whose references point into its own ``$defs``.
The schema of plain bytes is empty. Under ITEM a schema may have that of each item of the body."""

ITEM: Final = "x-oai-itemSchema"
"""The key, beside the others of a schema, for the schema of the items of which a body consists:
events or lines. Source: ``itemSchema`` of Media Type Objects in OpenAPI 3.2, which has this name in
earlier versions, by the OpenAPI Initiative's registry of extensions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """The OpenAPI description of a parameter.

    Attributes:
        name: as callers send it.
        place: ``path``, ``query``, ``header`` or ``cookie``.
        schema: its JSON Schema, whose references point into its own ``$defs``.
        required: whether it must be sent.
        more: further members, such as ``description`` and ``example``.
    """

    name: str
    place: str
    schema: Mapping[str, Any]
    required: bool
    more: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The OpenAPI description of the answers with one status.

    Attributes:
        text: when it is given.
        contents: its bodies; empty for an answer without a body.
        headers: its header fields, each with a description.
    """

    text: str
    contents: Contents = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)

    def or_(self, contents: Contents) -> Answer:
        """The same answer, whose bodies may be these as well."""
        found = dict(self.contents)
        for kind, schema in contents.items():
            first = found.get(kind)
            found[kind] = schema if first is None else _either(first, schema)
        return replace(self, contents=found)


def _either(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    """The schema of values of either schema; the definitions of one of them have other names."""
    defs = {**first.get("$defs", {}), **second.get("$defs", {})}
    sides = [{key: each[key] for key in each if key != "$defs"} for each in (first, second)]
    return {"anyOf": sides, **({"$defs": defs} if defs else {})}


@dataclass(frozen=True, slots=True, kw_only=True)
class Described:
    """The OpenAPI description of a route or a method.

    Attributes:
        summary: one line.
        description: more than that, in Markdown.
        group: its group in the list.
        query: the JSON Schema of each query parameter; all are optional.
        parameters: those with more than that. Placeholders of the path that are not listed are
            texts.
        request: request bodies.
        bodiless: whether the body may be empty.
        answers: all possible answers, by status.
        examples: request bodies as plain values, each with its expected answer or None.
        always: answered even beyond the door's limit of open requests; for probes.
        admin: for operators of the service: not for pages of other websites.
        open: also for unknown callers, in a service that asks who calls.
    """

    summary: str = ""
    description: str = ""
    group: str = ""
    query: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    parameters: Sequence[Parameter] = ()
    request: Contents = field(default_factory=dict)
    bodiless: bool = False
    answers: Mapping[int, Answer] = field(default_factory=dict)
    examples: Sequence[tuple[Any, Any]] = ()
    always: bool = False
    admin: bool = False
    open: bool = False
