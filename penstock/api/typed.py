"""Routes of typed functions: they pass bytes; the function's worker decodes and encodes them."""

from __future__ import annotations

import random
from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any
from urllib.parse import parse_qsl

from penstock.api.application import Route, Section, sections_of
from penstock.api.compression import send_packed
from penstock.api.descriptions import engine_errors, members_of, typed_answer, typed_request
from penstock.api.errors import error_reply, failed, refusal
from penstock.api.graph_call import GraphCall
from penstock.api.http import Http, HttpCall
from penstock.api.operation import Answer, Contents
from penstock.engine.engine import Engine
from penstock.engine.graph import ServedGraph
from penstock.errors import InvalidInput, RequestError, UnknownService
from penstock.protocols import media
from penstock.protocols.heads import Headers
from penstock.request import Feed
from penstock.typed.op import ANSWER, BODY, KIND
from penstock.typed.signature import Signature

HEADERS: dict[str, Headers] = {
    kind: ((b"content-type", kind.encode()),) for kind in (media.JSON, media.MSGPACK)
}
_NO_SNIFFING: Headers = ((b"x-content-type-options", b"nosniff"),)


@dataclass(frozen=True, slots=True, kw_only=True)
class TypedRoute:
    """One function behind one path.

    Attributes:
        path: such as ``/predict``.
        graph: the name of its graph.
        signature: its request and answer types.
        summary: a line of text.
        description: more than that, in Markdown.
        examples: request bodies as plain values, each with its expected answer or None; by default
            those of the request's schema.
    """

    path: str
    graph: str
    signature: Signature
    summary: str = ""
    description: str = ""
    examples: tuple[tuple[Any, Any], ...] = ()


class TypedApplication:
    """The typed routes of a service. Belongs to the engine's loop.

    Args:
        engine: answers requests.
        routes: what to serve.
        title: of the service, for its description.
    """

    def __init__(self, engine: Engine, routes: Iterable[TypedRoute], title: str = "") -> None:
        self._engine = engine
        self.typed_routes = list(routes)
        self._members = {
            each.graph: members_of(each.signature.request) for each in self.typed_routes
        }
        self.title = title

    def routes(self) -> Iterator[Route | Section]:
        """What to serve."""
        yield from sections_of(each.path for each in self.typed_routes)
        for each in self.typed_routes:
            graph = self._engine.graph(each.graph)
            kind = None if graph is None else media_of(graph)
            taken = typed_request(each.signature.request, each.signature.files)
            given = typed_answer(each.signature.response)
            good = Answer(text="The result.", contents=_only(given, kind, files=False))
            yield Http(
                "POST",
                each.path,
                # Workers with one media type answer in that.
                partial(
                    self._answer, each.graph, each.signature.response.files if kind is None else ()
                ),
                failed=failed,
                refusal=refusal,
                summary=each.summary or each.graph,
                description=each.description,
                group=self.title or "Routes",
                request=_only(taken, kind),
                bodiless=each.signature.request.optional,
                answers={200: good, **engine_errors()},
                examples=each.examples,
                graph=each.graph,
            )

    def _answer(self, name: str, files: tuple[str, ...], call: HttpCall, body: bytes) -> None:
        graph = self._engine.choose(name)
        if graph is None:
            failed(call, UnknownService(f"{name} is not served now"))
            return
        if call.exchange.head.query:
            problem = in_query(call.exchange.head.query, self._members[name])
            if problem is not None:
                failed(call, problem)
                return
        fields = call.exchange.head.fields
        kind = fields.get(b"content-type", b"").decode("latin-1")
        accept = fields.get(b"accept")
        accepted = None if accept is None else accept.decode("latin-1")
        answer = media.answer_kind(accepted, kind, files)
        feed = {BODY: body, KIND: kind, ANSWER: answer}
        _TypedCall(graph, feed, call.timeout, random.getrandbits(63), answer).run(call)


class _TypedCall(GraphCall):
    """See ``GraphCall``; its context is the media type of the answer."""

    __slots__ = ()

    call: HttpCall

    def is_large(self, value: Feed) -> bool:
        return False  # the worker has encoded it

    def encode(self, value: Feed) -> Feed:
        return value

    def send(self, reply: Feed) -> None:
        kind = reply.get(KIND, self.context)
        headers = HEADERS.get(kind)
        if headers is not None:
            send_packed(self.call, 200, headers, reply[BODY])
        else:  # a file, which is compressed already
            headers = ((b"content-type", kind.encode()), *_NO_SNIFFING)
            self.call.exchange.reply(200, headers, reply[BODY])

    def fail(self, error: RequestError) -> None:
        self.call.send(error_reply(error, self.log_id))


def in_query(query: bytes, members: Container[str]) -> InvalidInput | None:
    """The error of a request with members of its body in the query, as FastAPI has them.

    They would be ignored otherwise. Names that the body does not have are left to caches and
    proxies.

    Args:
        query: the raw query.
        members: of the route's body.
    """
    names = [name for name, _ in parse_qsl(query.decode("latin-1"), keep_blank_values=True)]
    text = "parameters are members of the body: it was sent in the query"
    details = [
        {"loc": ["query", name], "msg": text, "type": "in_query"}
        for name in dict.fromkeys(names)
        if name in members
    ]
    return InvalidInput(details) if details else None


def media_of(graph: ServedGraph) -> str | None:
    """The only media type of a typed function's workers; None: all supported ones."""
    found: str | None = getattr(graph.stages[0].executor, "media", None)
    return found


def _only(contents: Contents, kind: str | None, *, files: bool = True) -> Contents:
    """Without the types that such workers do not read or write.

    Args:
        contents: the types with their schemas.
        kind: the workers' media type; None: all.
        files: types of files are left to the workers.
    """
    others = (media.JSON, media.MSGPACK, media.FORM)
    return {
        each: schema
        for each, schema in contents.items()
        if kind is None or each == kind or (files and each not in others)
    }
