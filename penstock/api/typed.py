"""Routes of typed functions: they pass bytes; the function's worker decodes and encodes them."""

from __future__ import annotations

import random
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from urllib.parse import parse_qsl

from penstock.api.application import Example, Route, Section, sections_of
from penstock.api.compression import send_packed
from penstock.api.conditional import NO_SNIFFING, send
from penstock.api.descriptions import (
    ANY,
    engine_errors,
    error_answer,
    members_of,
    parameters_of,
    phrase,
    stream_answer,
    typed_answer,
    typed_request,
)
from penstock.api.errors import fail, failed, refusal
from penstock.api.graph_call import GraphCall
from penstock.api.http import Http, HttpCall
from penstock.api.operation import Answer, Contents, Parameter
from penstock.api.stream_call import BodyStream
from penstock.engine.engine import Engine
from penstock.engine.gathered import RESULT
from penstock.engine.graph import ServedGraph
from penstock.engine.submission import Submission
from penstock.errors import HttpError, InvalidInput, RequestError, UnknownService
from penstock.protocols import media
from penstock.protocols.heads import Headers
from penstock.protocols.pieces import format_for, list_of
from penstock.request import Feed
from penstock.typed.op import ANSWER, BODY, HEAD, KIND
from penstock.typed.parameters import FIELDS, PATH, QUERY
from penstock.typed.response import BODILESS
from penstock.typed.signature import Schema, Signature

HEADERS: dict[str, Headers] = {
    kind: ((b"content-type", kind.encode()),) for kind in (media.JSON, media.MSGPACK)
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TypedRoute:
    """One function behind one path.

    Attributes:
        path: such as ``/predict``, or ``/items/{id:int}``.
        graph: the name of its graph.
        signature: its request and answer types.
        status: of its answers.
        answers: the further statuses that it declares, each with the schema of its value; None
            without a body, ``HttpError`` for an error in our format.
        method: the HTTP method.
        summary: a line of text.
        description: more than that, in Markdown.
        examples: request bodies as plain values, each with its expected answer or None; by default
            those of the request's schema. If the function has parameters outside of the body, they
            are dicts of these and the body's members.
    """

    path: str
    graph: str
    signature: Signature
    status: int = 200
    answers: Mapping[int, Schema | type[HttpError] | None] = field(default_factory=dict)
    method: str = "POST"
    summary: str = ""
    description: str = ""
    examples: tuple[tuple[Any, Any], ...] = ()


class TypedApplication:
    """The typed routes of a service. Belongs to the engine's loop.

    Args:
        engine: answers requests.
        routes: what to serve.
        title: of the service, for its description.
        errors: the statuses of the functions' exceptions, for the description.
    """

    def __init__(
        self,
        engine: Engine,
        routes: Iterable[TypedRoute],
        title: str = "",
        errors: Iterable[int] = (),
    ) -> None:
        self._engine = engine
        self._errors = frozenset(errors)
        self.typed_routes = list(routes)
        self._members = {
            each.graph: members_of(each.signature.request) for each in self.typed_routes
        }
        self._parameters = {each.graph: each.signature.parameters for each in self.typed_routes}
        self.title = title

    def routes(self) -> Iterator[Route | Section]:
        """What to serve."""
        yield from sections_of(each.path for each in self.typed_routes)
        yield from map(self._route, self.typed_routes)

    def example_requests(self) -> Iterator[Example]:
        """See ``HasExamples``."""
        for route in self.typed_routes:
            for number, (request, wanted) in enumerate(route.examples, 1):
                yield Example(
                    path=route.path,
                    graph=route.graph,
                    number=number,
                    submission=partial(_example, route.signature, request),
                    answer=_answer_to_example,
                    wanted=wanted,
                )

    def _route(self, route: TypedRoute) -> Http:
        graph = self._engine.graph(route.graph)
        kind = None if graph is None else media_of(graph)
        signature = route.signature
        taken: Contents = {}
        if signature.has_body:
            taken = _only(typed_request(signature.request, signature.files), kind)
        parameters, examples = signature.parameters, route.examples
        shown: Sequence[Parameter] = ()
        if parameters is not None:
            shown = parameters_of(parameters, [request for request, _ in examples])
            examples = tuple((parameters.parts(given)[1], wanted) for given, wanted in examples)
        return Http(
            route.method,
            route.path,
            # Workers with one media type answer in that.
            partial(
                self._answer,
                route.graph,
                signature.response.files if kind is None else (),
                route.status,
                signature.streams,
            ),
            failed=failed,
            refusal=refusal,
            summary=route.summary or route.graph,
            description=route.description,
            group=self.title or "Routes",
            parameters=shown,
            request=taken,
            bodiless=signature.request.optional,
            answers=self._described(route, kind),
            examples=examples,
            graph=route.graph,
        )

    def _described(self, route: TypedRoute, kind: str | None) -> dict[int, Answer]:
        """Every answer of a route.

        Args:
            route: the route.
            kind: the media type of its workers; None: all.
        """
        declared = {**dict.fromkeys(self._errors, HttpError), **route.answers}
        response = declared[route.status] = route.signature.response
        found = engine_errors(body=route.method != "GET")
        for status, schema in declared.items():
            if schema is HttpError:
                found.setdefault(status, error_answer(status))
                continue
            assert schema is None or isinstance(schema, Schema)
            contents = {} if schema is None or status in BODILESS else typed_answer(schema)
            contents = _only(contents, kind, files=False)
            if schema is response and route.signature.streams:
                contents = stream_answer(schema)
            text = "The result." if status == route.status else phrase(status)
            other = found.get(status)
            if response.responds and status == 200 and route.method == "GET":
                found[304] = Answer(text="Not changed, as the request's fields ask.")
                if ANY in contents:  # it may be a File
                    found[206] = Answer(text="The requested part.", contents={ANY: {}})
                    found[416] = Answer(text="There is no such part.")
            found[status] = (
                Answer(text=text, contents=contents) if other is None else other.or_(contents)
            )
        return found

    def _answer(
        self,
        name: str,
        files: tuple[str, ...],
        status: int,
        streams: bool,
        call: HttpCall,
        body: bytes,
    ) -> None:
        graph = self._engine.choose(name, call=call)
        if graph is None:
            failed(call, UnknownService(f"{name} is not served now"))
            return
        head = call.exchange.head
        parameters = self._parameters[name]
        if head.query and (parameters is None or "query" not in parameters.places):
            problem = in_query(head.query, self._members[name], others=True)
            if problem is not None:
                failed(call, problem)
                return
        fields = head.fields
        kind = fields.get(b"content-type", b"").decode("latin-1")
        accept = fields.get(b"accept")
        accepted = None if accept is None else accept.decode("latin-1")
        form = format_for(accepted, files) if streams else None
        if form is None:
            answer = media.answer_kind(accepted, kind, files)
        else:
            answer = form.kind if form.kind in files else media.JSON
        feed: Feed = {BODY: body, KIND: kind, ANSWER: answer}
        if parameters is not None:
            feed[PATH] = list(call.values)
            feed[QUERY] = head.query
            wanted = parameters.fields
            feed[FIELDS] = [[*field] for field in head.headers if field[0] in wanted]
        one: BodyStream | _TypedCall
        if form is None:
            one = _TypedCall(graph, feed, call.timeout, random.getrandbits(63), answer)
        else:
            one = BodyStream(graph, feed, call.timeout, random.getrandbits(63), form)
        one.status = status
        one.run(call)


class _TypedCall(GraphCall):
    """See ``GraphCall``; its context is the media type of the answer, its status the route's."""

    __slots__ = ("status",)

    call: HttpCall
    status: int

    def is_large(self, value: Feed) -> bool:
        return False  # the worker has encoded it

    def encode(self, value: Feed) -> Feed:
        return value

    def send(self, reply: Feed) -> None:
        kind = reply.get(KIND, self.context)
        own = reply.get(HEAD)
        if own is not None:
            status, fields = own
            sent = tuple((name.encode(), value.encode("latin-1")) for name, value in fields)
            send(self.call, status, sent, reply[BODY], kind, as_it_is=kind not in HEADERS)
            return
        headers = HEADERS.get(kind)
        if self.status in BODILESS:
            self.call.reply(self.status, (), b"")
        elif headers is not None:
            send_packed(self.call, self.status, headers, reply[BODY])
        else:  # a file, which is compressed already
            headers = ((b"content-type", kind.encode()), NO_SNIFFING)
            self.call.reply(self.status, headers, reply[BODY])

    def fail(self, error: RequestError) -> None:
        fail(self.call, error, self.log_id)


def _example(
    signature: Signature, request: Any, graph: ServedGraph, timeout: float, log_id: int
) -> Submission:
    """The submission of an example; its context is the media type of the answer."""
    kind = media_of(graph) or media.JSON
    outside = Feed()
    if signature.parameters is not None:
        outside, request = signature.parameters.feed(request)
    feed = {BODY: media.encode(request, kind), KIND: kind, ANSWER: kind, **outside}
    return Submission(graph, feed, timeout, log_id, kind)


def _answer_to_example(submission: Submission, value: Feed) -> tuple[bytes, str]:
    if submission.graph.streams:
        body = list_of([piece[BODY] for piece in value[RESULT]])
    else:
        body = value[BODY]
    return body, value.get(KIND) or submission.context


def in_query(query: bytes, members: Container[str], *, others: bool = False) -> InvalidInput | None:
    """The error of a request with parameters in the query, of which the route has none.

    Args:
        query: the raw query.
        members: of the route's body: in the query, where FastAPI has them, they would be ignored.
        others: refuse any other name as well; else they are left to caches and proxies.
    """
    names = [name for name, _ in parse_qsl(query.decode("latin-1"), keep_blank_values=True)]
    text = "parameters are members of the body: it was sent in the query"
    details = [
        {"loc": ["query", name], "msg": text, "type": "in_query"}
        if name in members
        else {"loc": ["query", name], "msg": "the route has no such parameter", "type": "unknown"}
        for name in dict.fromkeys(names)
        if others or name in members
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
