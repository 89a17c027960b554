"""OpenAPI: the document of every HTTP route at ``/openapi.json``, and a page that shows it at
``/docs``.

The document is built once, from the routes that exist when the door opens.
Source: the OpenAPI Specification 3.1.1, JSON Schema draft 2020-12.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from http import HTTPStatus
from types import MappingProxyType
from typing import Any, Final
from urllib.parse import quote

from pydantic_core import to_json

from penstock.api.baidu_std import BaiduStd
from penstock.api.compression import send_packed
from penstock.api.descriptions import errors
from penstock.api.errors import failed, refusal
from penstock.api.grpc import Grpc
from penstock.api.html import page
from penstock.api.http import Http, HttpCall
from penstock.api.operation import ITEM, Answer, Contents
from penstock.api.path_pattern import PathPattern
from penstock.protocols.heads import Headers
from penstock.protocols.media import JSON

_UNQUOTED: Final = "/{}%:@!$&'()*+,;="
"""Characters of a path that need no percent-encoding, and braces of placeholders."""

_DEFS: Final = "#/$defs/"
_SCHEMAS: Final = "#/components/schemas/"
_LAST: Final = ("Pages", "Graphs", "Open Inference Protocol", "Pipeline protocol", "Operation")
"""Groups that are listed last."""
_OPERATION: Final = _LAST[-1]

_DESCRIPTION: Final = (
    "Every route accepts the caller's timeout in seconds in the header `Penstock-Timeout`, such as"
    " `1.5`, and bodies compressed with gzip, deflate or zstd (`Content-Encoding`). Answers are"
    " JSON or msgpack, as `Accept` says, or in the request's format."
)


class OpenApiApplication:
    """The description of a service.

    Args:
        routes: of all other applications.
        title: the service's name.
        schemes: how callers say who they are; empty if the service does not ask.
        open_paths: patterns of routes whose callers need not.
    """

    def __init__(
        self,
        routes: Iterable[Http | Grpc | BaiduStd],
        title: str,
        schemes: Mapping[str, Any] | None = None,
        open_paths: Collection[str] = (),
        epoch: Callable[[], int] = lambda: 0,
    ) -> None:
        described = [each for each in routes if isinstance(each, Http)]
        self._routes = [*described, *self.routes()]
        self._make = partial(document, title=title, schemes=schemes or {}, open_paths=open_paths)
        self._epoch = epoch
        self._seen = -1
        self._document = b""
        self._current()
        self._page, self._page_headers = page("docs/page.html")

    def routes(self) -> Iterator[Http]:
        """What to serve."""
        yield Http(
            "GET",
            "/openapi.json",
            self._give_document,
            failed=failed,
            refusal=refusal,
            summary="This description.",
            group=_OPERATION,
            answers={
                200: Answer(text="An OpenAPI document.", contents={JSON: {"type": "object"}}),
                **errors(415),
            },
        )
        yield Http(
            "GET",
            "/docs",
            self._give_page,
            failed=failed,
            refusal=refusal,
            open=True,
            summary="A page for people, on which routes can be tried.",
            group=_OPERATION,
            answers={
                200: Answer(text="The page.", contents={"text/html": {"type": "string"}}),
                **errors(415),
            },
        )

    def _give_document(self, call: HttpCall, _body: bytes) -> None:
        send_packed(call, 200, _DOCUMENT_HEADERS, self._current())

    def _current(self) -> bytes:
        """The document of the graphs that are served now."""
        if self._seen != self._epoch():
            self._seen = self._epoch()
            self._document = to_json(self._make(self._routes), inf_nan_mode="null")
        return self._document

    def _give_page(self, call: HttpCall, _body: bytes) -> None:
        send_packed(call, 200, self._page_headers, self._page)


_DOCUMENT_HEADERS: Final[Headers] = (
    (b"content-type", b"application/json"),
    (b"cache-control", b"no-cache"),
)


BEARER: Final = {"bearer": {"type": "http", "scheme": "bearer"}}
API_KEY: Final = {"key": {"type": "apiKey", "in": "header", "name": "X-API-Key"}}
CERTIFICATE: Final = {"certificate": {"type": "mutualTLS"}}
REFUSALS: Final = {
    "401": {"description": "No valid key, token or certificate."},
    "403": {"description": "The caller has not the scope that this needs."},
    "429": {"description": "Too many failed attempts, or the service is at capacity."},
}
"""Answers that are possible where a service asks who calls."""


def document(
    routes: Sequence[Http],
    title: str,
    schemes: Mapping[str, Any] = MappingProxyType({}),
    open_paths: Collection[str] = (),
) -> dict[str, Any]:
    """The OpenAPI document of routes; see ``OpenApiApplication``."""
    parts = _Components()
    listed = _listed(routes)
    paths: dict[str, dict[str, Any]] = {}
    for route in listed:
        found = _operation(route, parts)
        if schemes and (route.open or route.pattern in open_paths):
            found["security"] = []
        elif schemes:
            found["responses"] = dict(sorted({**REFUSALS, **found["responses"]}.items()))
        template = quote(PathPattern(route.pattern).template, safe=_UNQUOTED)
        # Of two with other converters, OpenAPI can have one.
        paths.setdefault(template, {}).setdefault(route.method.lower(), found)
    groups = dict.fromkeys(route.group for route in listed if route.group)
    components = {"schemas": parts.schemas, "responses": parts.responses}
    if schemes:
        components["securitySchemes"] = dict(schemes)
    asked: dict[str, Any] = {"security": [{name: []} for name in schemes]} if schemes else {}
    return {
        "openapi": "3.1.0",
        "info": {"title": title, "version": "1", "description": _DESCRIPTION},
        "servers": [{"url": "."}],  # relative to the document, for mounted services
        "tags": [{"name": each} for each in groups],
        "paths": paths,
        **asked,
        "components": components,
    }


def _listed(routes: Sequence[Http]) -> list[Http]:
    """One route for each operation, in the order of the document."""
    literal = [each for each in routes if "{" not in each.pattern or each.listed is None]
    taken = {each.pattern for each in literal if "{" not in each.pattern}
    found = {
        (each.method, each.pattern): each
        for route in literal
        for each in ([route] if route.listed is None else route.listed())
    }
    for route in routes:
        for each in route.listed() if route.listed else ():
            if each.pattern not in taken:  # else it is never reached: see ``penstock.api.router``
                found.setdefault((each.method, each.pattern), each)
    places = {name: index for index, name in enumerate(_LAST, 1)}
    return sorted(found.values(), key=lambda each: places.get(each.group, 0))


def _operation(route: Http, parts: _Components) -> dict[str, Any]:
    pattern = PathPattern(route.pattern)
    found: dict[str, Any] = {
        "operationId": "_".join(re.findall(r"[^\W_]+", f"{route.method} {pattern.template}")),
        "summary": route.summary,
    }
    if route.group:
        found["tags"] = [route.group]
    if route.description:
        found["description"] = route.description
    described = {(each.place, each.name): each for each in route.parameters}
    parameters: list[dict[str, Any]] = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        for name in pattern.names
        if ("path", name) not in described
    ]
    parameters += [
        {"name": name, "in": "query", "schema": schema} for name, schema in route.query.items()
    ]
    parameters += [
        {
            "name": each.name,
            "in": each.place,
            **({"required": True} if each.required else {}),
            **each.more,
            "schema": parts.place(each.schema),
        }
        for each in route.parameters
    ]
    if parameters:
        found["parameters"] = parameters
    if route.request:
        requests = [request for request, _ in route.examples]
        content = parts.content(route.request, requests)
        found["requestBody"] = {"required": not route.bodiless, "content": content}
    found["responses"] = {
        str(status): _response(status, answer, route, parts)
        for status, answer in sorted(route.answers.items())
    } or {"default": {"description": "As the application answers."}}
    return found


def _response(status: int, answer: Answer, route: Http, parts: _Components) -> dict[str, Any]:
    given = [wanted for _, wanted in route.examples if wanted is not None] if status == 200 else []
    found: dict[str, Any] = {"description": answer.text}
    if answer.headers:
        found["headers"] = {
            name: {"description": text, "schema": {"type": "string"}}
            for name, text in answer.headers.items()
        }
    if answer.contents:
        found["content"] = parts.content(answer.contents, given)
    return found if status < 400 else parts.shared_response(status, found)


class _Components:
    """The shared components of operations.

    Attributes:
        schemas, responses: by their names in the document.
    """

    def __init__(self) -> None:
        self.schemas: dict[str, Any] = {}
        self.responses: dict[str, Any] = {}
        self._names: dict[tuple[str, str], str] = {}
        self._placed: dict[int, tuple[Mapping[str, Any], dict[str, Any]]] = {}

    def content(self, contents: Contents, examples: Sequence[Any]) -> dict[str, Any]:
        """Media types with their schemas, and examples for JSON."""
        found: dict[str, Any] = {}
        for kind, schema in contents.items():
            found[kind] = {}
            whole = schema
            if ITEM in schema:
                found[kind][ITEM] = self.place(schema[ITEM])
                whole = {key: each for key, each in schema.items() if key != ITEM}
            if whole:
                found[kind]["schema"] = self.place(whole)
            if examples and kind == JSON:
                found[kind]["examples"] = {
                    str(number): {"value": each} for number, each in enumerate(examples, 1)
                }
        return found

    def shared_response(self, status: int, response: dict[str, Any]) -> dict[str, Any]:
        """A reference to a shared response."""
        name = "".join(re.findall("[A-Za-z]+", HTTPStatus(status).phrase.title()))
        name = self._name(f"responses/{name}", response)
        self.responses[name] = response
        return {"$ref": f"#/components/responses/{name}"}

    def place(self, schema: Mapping[str, Any]) -> dict[str, Any]:
        """The schema of an operation, with references to named schemas.

        Different schemas with the same name get distinct names.
        """
        # Most answers have one and the same object, the schema of errors. It is kept alive here, as
        # its id would be reused.
        known = self._placed.get(id(schema))
        if known is not None:
            return known[1]
        defs = dict(schema.get("$defs", {}))
        top = {key: each for key, each in schema.items() if key != "$defs"}
        title = re.sub(r"[^A-Za-z0-9._-]", "_", top.get("title", ""))
        if title and top.get("type") == "object" and defs.setdefault(title, top) == top:
            top = {"$ref": _DEFS + title}
        names = {name: self._name(f"schemas/{name}", _closure(name, defs)) for name in defs}
        for name, public in names.items():
            self.schemas[public] = _renamed(defs[name], names)
        placed: dict[str, Any] = _renamed(top, names)
        self._placed[id(schema)] = schema, placed
        return placed

    def _name(self, wanted: str, meaning: Any) -> str:
        """A unique name; the same one for an equal schema."""
        kind, _, name = wanted.partition("/")
        key = wanted, json.dumps(meaning, sort_keys=True)  # orjson has no integers above 64 bits
        if key not in self._names:
            taken = {each for (other, _), each in self._names.items() if other.startswith(kind)}
            number, found = 1, name
            while found in taken:
                number += 1
                found = f"{name}{number}"
            self._names[key] = found
        return self._names[key]


def _closure(name: str, defs: Mapping[str, Any]) -> dict[str, Any]:
    """A definition with all definitions that it refers to."""
    found: dict[str, Any] = {}
    open_ = [name]
    while open_:
        each = open_.pop()
        if each in found or each not in defs:
            continue
        found[each] = defs[each]
        open_ += [text.removeprefix(_DEFS) for text in _references(defs[each])]
    return {"of": name, "defs": found}


def _references(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        if value.startswith(_DEFS):
            yield value
    elif isinstance(value, Mapping):
        for each in value.values():
            yield from _references(each)
    elif isinstance(value, list):
        for each in value:
            yield from _references(each)


def _renamed(value: Any, names: Mapping[str, str]) -> Any:
    """A schema with references into the document's components."""
    if isinstance(value, str) and value.startswith(_DEFS):
        return _SCHEMAS + names[value.removeprefix(_DEFS)]
    if isinstance(value, Mapping):
        return {key: _renamed(each, names) for key, each in value.items()}
    if isinstance(value, list):
        return [_renamed(each, names) for each in value]
    return value
