"""JSON Schemas of requests and answers for OpenAPI: of typed functions, of graphs with tensors, and
of errors.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from http import HTTPStatus
from typing import Any, Final

from penstock.api.operation import ITEM, Answer, Contents, Parameter
from penstock.protocols import media
from penstock.protocols.pieces import EVENTS, LINES
from penstock.tensor import Signature, TensorSpec
from penstock.typed.arrays import nested
from penstock.typed.parameters import Parameters, top_of
from penstock.typed.signature import Schema

BYTES: Final = "application/octet-stream"
ANY: Final = "*/*"
"""Of a body whose media type the function chooses."""

_REFS = "#/$defs/{model}"

ERROR: Final[dict[str, Any]] = {
    "title": "Error",
    "type": "object",
    "description": "What went wrong.",
    "required": ["error", "message"],
    "properties": {
        "error": {"type": "string", "description": "An error code, for programs."},
        "message": {"type": "string", "description": "A text for people."},
        "details": {
            "type": "array",
            "description": "With status 422: each invalid value.",
            "items": {
                "type": "object",
                "required": ["loc", "msg", "type"],
                "properties": {
                    "loc": {
                        "type": "array",
                        "description": "The path to it, from the body or the query on, for"
                        " example: names and indexes.",
                        "items": {"type": ["string", "integer"]},
                    },
                    "msg": {"type": "string", "description": "What is wrong with it."},
                    "type": {"type": "string", "description": "The same as a code, for programs."},
                },
            },
        },
        "number": {
            "type": "integer",
            "description": "The number of an error that the service declares.",
        },
        "id": {"type": "string", "description": "The id of the error in the service's log."},
    },
}
"""The error format of our own routes; see ``penstock.api.errors``."""

GATEWAY_ERROR: Final[dict[str, Any]] = {
    "title": "GatewayError",
    "type": "object",
    "description": "An error of the call, in the format of the pipeline protocol's gateway.",
    "required": ["error", "code", "message", "details"],
    "properties": {
        "error": {"type": "string"},
        "code": {"type": "integer", "description": "The gRPC status code."},
        "message": {"type": "string"},
        "details": {"type": "array"},
    },
}

_RETRY: Final = {"Retry-After": "Seconds after which to retry."}

_HEAD: Final = {
    400: "A header, the path or the body cannot be read.",
    408: "The request did not arrive in time.",
    413: "The request is too large.",
    414: "The path is too long.",
    415: "The media type or the content encoding of the body is not supported.",
    429: "Too many requests are waiting.",
    431: "The header fields are too large.",
    500: "The service failed to answer.",
    503: "The service accepts no requests now: it is shutting down, or too many are open.",
    504: "The caller's timeout passed before the answer.",
}
"""Answers that are possible before a handler is called."""

_ENGINE: Final = {
    400: "The body, a header or the path cannot be read, or the service refused the input, maybe"
    " with an error `number` of its own.",
    404: "There is no such service now.",
    408: "The request did not arrive in time, or its deadline passed before it was answered.",
    422: "The body does not match the schema; `details` lists the invalid values.",
    500: "The service failed to answer; its log has the reason under the answer's `id`. Or it"
    " declared an error, with a `number` of its own.",
    503: "The service accepts no requests now: it is shutting down, or too many requests are open."
    " Or the process that ran this request died.",
    504: "The caller's timeout passed, or an op of the service exceeded its own.",
}
"""Answers that are possible for every route that runs a graph."""


def errors(*statuses: int, form: Mapping[str, Any] = ERROR) -> dict[int, Answer]:
    """The answers to requests that reach no handler.

    Args:
        statuses: further ones; each is one of ``_HEAD``.
        form: of the body.
    """
    found = (400, 408, 414, 431, 500, 503, 504, *statuses)
    return {each: _error(each, _HEAD[each], form) for each in sorted(set(found))}


def engine_errors(*, body: bool = True, form: Mapping[str, Any] = ERROR) -> dict[int, Answer]:
    """The answers of a route that runs a graph, other than 200.

    Args:
        body: whether its requests have bodies.
        form: of the errors.
    """
    texts = {status: text for status, text in (_HEAD | _ENGINE).items() if body or status != 413}
    return {each: _error(each, texts[each], form) for each in sorted(texts)}


def error_answer(status: int) -> Answer:
    """The answer of an error with a status that an op chose, in our format."""
    return _error(status, phrase(status), ERROR)


def phrase(status: int) -> str:
    """The meaning of a status in words."""
    try:
        return f"{HTTPStatus(status).phrase}."
    except ValueError:
        return f"The status {status}."


def _error(status: int, text: str, form: Mapping[str, Any]) -> Answer:
    headers = _RETRY if status in (429, 503) else {}
    return Answer(text=text, contents={media.JSON: form}, headers=headers)


def typed_request(request: Schema, files: Sequence[str]) -> Contents:
    """The request bodies of a typed route.

    Args:
        request: the schema of requests.
        files: members whose values may be the bytes of files; the first of them may be the whole
            body.
    """
    schema = request.describe(refs=_REFS)
    found: dict[str, Any] = {media.JSON: schema, media.MSGPACK: schema}
    members = top_of(schema).get("properties", {})
    kinds = {name: _file_of(members.get(name, {})).get("contentMediaType", BYTES) for name in files}
    if kinds:
        found[media.FORM] = _as_form(schema, kinds)
        if set(top_of(schema).get("required", ())) <= {files[0]}:
            found[kinds[files[0]]] = {}
    return found


def members_of(request: Schema) -> frozenset[str]:
    """The names of the members of a body."""
    return frozenset(top_of(request.describe(refs=_REFS)).get("properties", {}))


def typed_answer(response: Schema) -> Contents:
    """The bodies that it gives."""
    schema = response.describe(refs=_REFS)
    if response.responds and not response.files and response.annotation in (Any, bytes, str):
        return {ANY: {}, media.JSON: schema, media.MSGPACK: schema}
    return {**{each: {} for each in response.files}, media.JSON: schema, media.MSGPACK: schema}


def stream_answer(piece: Schema) -> Contents:
    """The bodies of an answer that comes in pieces."""
    return {**{each: {} for each in piece.files}, **_in_pieces(piece.describe(refs=_REFS))}


def graph_stream_answer(piece: Schema | None, signature: Signature | None) -> Contents:
    """The same for a graph of ops; without a schema a piece is what the signature says."""
    if piece is not None:
        return stream_answer(piece)
    return _in_pieces(graph_answer(signature)[media.JSON])


def _in_pieces(piece: Mapping[str, Any]) -> Contents:
    schema = {**piece}
    definitions = {name: schema.pop(name) for name in ("$defs",) if name in schema}
    data = {"type": "string", "contentMediaType": media.JSON, "contentSchema": schema}
    event = {
        "type": "object",
        "properties": {
            "data": data,
            "event": {
                "const": "error",
                "description": "At the end of an answer that has failed: `data` is the error.",
            },
        },
        "required": ["data"],
    }
    return {
        EVENTS: {
            "description": "Events, each with a piece as JSON in `data`.",
            ITEM: {**event, **definitions},
        },
        LINES: {
            "type": "string",
            "description": "Lines, each with a piece as JSON.",
            ITEM: piece,
        },
        media.JSON: {"type": "array", "items": schema, **definitions},
    }


def parameters_of(parameters: Parameters, examples: Sequence[Any]) -> list[Parameter]:
    """The parameters of a typed route that are outside of the body.

    Args:
        parameters: of the route's function.
        examples: dicts of all parameters; the first is shown.
    """
    shown = parameters.parts(examples[0])[0] if examples else {}
    found = []
    for place in parameters.places.values():
        schema = place.schema.describe(refs=_REFS)
        required = top_of(schema).get("required", ())
        for name, member in top_of(schema).get("properties", {}).items():
            example = shown.get(place.name, {}).get(name)
            more = {key: member[key] for key in ("description", "deprecated") if key in member}
            if example is not None:
                more["example"] = example
            form = _without_null({key: member[key] for key in member if key not in more})
            if "$defs" in schema:
                form["$defs"] = schema["$defs"]
            found.append(
                Parameter(
                    name=place.wire[name],
                    place=place.name,
                    schema=form,
                    required=name in required,
                    more=more,
                )
            )
    return found


def _without_null(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema of a text, which is never null."""
    if "anyOf" not in schema:
        return schema
    kinds = [each for each in schema["anyOf"] if each.get("type") != "null"]
    rest = {key: each for key, each in schema.items() if key != "anyOf"}
    if rest.get("default", ...) is None:
        del rest["default"]
    return {**kinds[0], **rest} if len(kinds) == 1 else {**rest, "anyOf": kinds}


def own_examples(schema: Mapping[str, Any]) -> list[Any]:
    """The examples that a request's own schema has."""
    found = top_of(schema)
    if "examples" in found:
        return list(found["examples"])
    return [found["example"]] if "example" in found else []


def graph_request(signature: Signature | None) -> Contents:
    """The request bodies of a graph of any ops."""
    schema: dict[str, Any] = {"type": "object"}
    if signature is not None:
        schema = _tensors(signature.inputs)
    form = {"type": "object", "description": "Files, and fields with texts or JSON."}
    return {media.JSON: schema, media.MSGPACK: schema, media.FORM: form, BYTES: {}}


def graph_answer(signature: Signature | None) -> Contents:
    """The bodies that it gives."""
    schema: dict[str, Any] = {"type": "object"}
    if signature is not None and signature.outputs:
        schema = _tensors(signature.outputs)
    return {media.JSON: schema, media.MSGPACK: schema}


def _tensors(specs: Iterable[TensorSpec]) -> dict[str, Any]:
    found = {
        each.alias: nested(each.dtype, None if each.shape_is_hint else each.shape) for each in specs
    }
    return {"type": "object", "required": list(found), "properties": found}


def _file_of(member: Mapping[str, Any]) -> Mapping[str, Any]:
    """The schema of a file, or of one in a list, behind ``None``."""
    inner = [*member.get("anyOf", ()), member.get("items")]
    for each in filter(None, inner):
        if "contentEncoding" in (found := _file_of(each)):
            return found
    return member


def _is_list(member: Mapping[str, Any]) -> bool:
    return member.get("type") == "array" or any(map(_is_list, member.get("anyOf", ())))


def _as_form(schema: Mapping[str, Any], files: Mapping[str, str]) -> dict[str, Any]:
    """The members as fields of a form, some of which are files."""
    top = top_of(schema)
    properties = dict(top.get("properties", {}))
    for name, kind in files.items():
        member = properties.get(name, {})
        described = {key: member[key] for key in ("title", "description") if key in member}
        file = {"type": "string", "format": "binary", "contentMediaType": kind}
        several = {"type": "array", "items": file}
        # Nested lists of numbers are one file.
        is_array = "contentEncoding" not in _file_of(member)
        properties[name] = {**described, **(several if _is_list(member) and not is_array else file)}
    title = f"{top.get('title', '')}Form"
    found = {**top, "title": title, "properties": properties}
    return {**found, "$defs": schema["$defs"]} if "$defs" in schema else found
