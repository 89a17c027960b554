"""The JSON route of every graph: ``POST /{service}`` takes and returns a plain object.

The request's dict has numbers and nested lists unchanged, the bytes of files, and ``.npy`` files as
arrays; the last op's dict is sent as JSON or msgpack, with arrays as nested lists. A route may have
schemas of its requests and answers, which are then checked here.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final
from urllib.parse import quote

from penstock.api.application import Applications, Example, Section, sections_of
from penstock.api.body import LARGE
from penstock.api.compression import send_packed
from penstock.api.decoding import decode_body
from penstock.api.descriptions import (
    engine_errors,
    error_answer,
    graph_answer,
    graph_request,
    graph_stream_answer,
    members_of,
    typed_answer,
    typed_request,
)
from penstock.api.errors import error_reply, fail, failed, refusal
from penstock.api.graph_call import GraphCall
from penstock.api.http import Http, HttpCall
from penstock.api.operation import Answer
from penstock.api.plain_stream import PlainStream, encode
from penstock.api.typed import HEADERS, in_query, media_of
from penstock.engine.engine import Engine
from penstock.engine.graph import ServedGraph
from penstock.errors import InvalidInput, RequestError
from penstock.protocols import media, npy
from penstock.protocols.pieces import format_for, list_of
from penstock.request import Feed
from penstock.typed.signature import Schema

_RAW = "data"
"""The name of a raw body if the graph has no schema."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainRoute:
    """A route to a graph.

    Attributes:
        path: of the route; ``{name}`` stands for the graph's name.
        graph: the graph's name; None if it is in the path.
        request, response: schemas; None accepts anything.
        files: members that may be the bytes of files. A body that is neither JSON, msgpack nor a
            form is the first of them.
        summary: a line of text.
        group: its group in OpenAPI.
        examples: bodies of requests, as plain values, each with the answer that is expected (None
            where none is).
    """

    path: str
    graph: str | None = None
    request: Schema | None = None
    response: Schema | None = None
    files: tuple[str, ...] = ()
    summary: str = ""
    group: str = "Graphs"
    examples: tuple[tuple[Any, Any], ...] = ()

    @property
    def raw(self) -> str | None:
        """The member for a body that is a file."""
        return next(iter(self.files), None)


ANY: Final = PlainRoute(path="/{name}", summary="Run the service of this name on a plain object.")


class PlainApplication:
    """Routes to graphs. Belongs to the engine's loop.

    Args:
        engine: answers requests.
        routes: by default one for any graph by its name.
        applications: those of the service, whose graphs are not served by name; None if there are
            no others.
        errors: the statuses of the ops' exceptions, for the description.
    """

    def __init__(
        self,
        engine: Engine,
        routes: Sequence[PlainRoute] = (ANY,),
        applications: Applications | None = None,
        errors: Iterable[int] = (),
    ) -> None:
        self._engine = engine
        self._errors = {each: error_answer(each) for each in errors}
        self.plain_routes = routes
        self._members = {
            each.path: members_of(each.request) for each in routes if each.request is not None
        }
        self._applications = applications

    def routes(self) -> Iterator[Http | Section]:
        """What to serve."""
        yield from sections_of(each.path for each in self.plain_routes if each.graph)
        yield from map(self._route, self.plain_routes)

    def example_requests(self) -> Iterator[Example]:
        """See ``HasExamples``."""
        for route in self.plain_routes:
            if route.graph is None:
                continue
            for number, (request, wanted) in enumerate(route.examples, 1):
                yield Example(
                    path=route.path,
                    graph=route.graph,
                    number=number,
                    submission=partial(_example, route, request),
                    answer=_answer_to_example,
                    wanted=wanted,
                )

    def _route(
        self, route: PlainRoute, graph: ServedGraph | None = None, *, listed: bool = False
    ) -> Http:
        """The route, or what OpenAPI lists for it: its description for one of its graphs."""
        signature = None if graph is None else graph.signature
        request, response = graph_request(signature), graph_answer(signature)
        if route.request is not None:
            request = typed_request(route.request, route.files)
        if route.response is not None:
            response = typed_answer(route.response)
        if graph is not None and graph.streams:
            response = graph_stream_answer(route.response, signature)
        name = graph and graph.name
        path = route.path.replace("{name}", quote(name)) if name else route.path
        return Http(
            "POST",
            path,
            partial(self._request, route),
            failed=failed,
            refusal=refusal,
            summary=route.summary or f"Run {route.graph}.",
            group=route.group,
            request=request,
            answers={
                200: Answer(text="The result.", contents=response),
                **(self._errors if route.graph is not None else {}),
                **engine_errors(),
            },
            examples=route.examples,
            listed=None if listed else partial(self._listed, route),
            there=self._is_served if route.graph is None else None,
            graph=route.graph,
        )

    def _is_served(self, values: tuple[str, ...]) -> bool:
        graph = self._engine.graph(*values)
        return graph is not None and graph.name is not None

    def _listed(self, route: PlainRoute) -> Iterator[Http]:
        """One route for each graph that is served by name, as it is now."""
        if route.graph is not None:
            yield self._route(route, self._engine.graph(route.graph), listed=True)
            return
        others = self._applications
        for name, graph in self._engine.names.items():
            if others is None or name not in others.graphs:
                yield self._route(route, graph, listed=True)

    def _request(self, route: PlainRoute, call: HttpCall, body: bytes) -> None:
        name = route.graph
        if name is None:
            (name,) = call.values
        others = self._applications if route.graph is None else None
        taken = others is not None and name in others.graphs
        graph = None if taken else self._engine.choose(name, call=call)
        # A graph without a name accepts every name in the pipeline protocol, and none here.
        if graph is None or graph.name is None:
            missing = None if others is None else others.no_route(f"/{name}")
            call.send(
                missing or error_reply(self._engine.no_graph(name, f"there is no service {name!r}"))
            )
            return
        if call.exchange.head.query:
            members = self._members.get(route.path, ())
            own = route.graph is not None
            problem = in_query(call.exchange.head.query, members, others=own)
            if problem is not None:
                failed(call, problem)
                return
        fields = call.exchange.head.fields
        kind = fields.get(b"content-type", b"").decode("latin-1")
        decode_body(
            call,
            len(body),
            partial(decode, body, kind, graph, route),
            partial(self._submit, route, call, graph, kind),
            failed,
            engine=self._engine,
            # A file may take long to decode, whatever its size; an image in JSON as well.
            aside=len(body) > LARGE
            or (route.raw is not None and not media.is_json(kind))
            or (route.request is not None and route.request.has_images),
        )

    def _submit(
        self,
        route: PlainRoute,
        call: HttpCall,
        graph: ServedGraph,
        kind: str,
        feed: Feed,
        timeout: float | None,
    ) -> None:
        accept = call.exchange.head.fields.get(b"accept")
        accepted = None if accept is None else accept.decode("latin-1")
        log_id = random.getrandbits(63)
        if graph.streams:
            stream = PlainStream(graph, feed, timeout, log_id, format_for(accepted))
            stream.status, stream.piece_schema = 200, route.response
            stream.run(call)
            return
        one = PlainCall(graph, feed, timeout, log_id)
        one.route = route
        one.kind = media.answer_kind(accepted, kind)
        one.run(call)


class PlainCall(GraphCall):
    """See ``GraphCall``.

    Attributes:
        route: the called route.
        kind: the answer's media type.
    """

    __slots__ = ("kind", "route")

    call: HttpCall
    route: PlainRoute
    kind: str
    as_text = True

    def is_large(self, value: Feed) -> bool:
        """See ``GraphCall``; pictures are always encoded in a thread."""
        response = self.route.response
        return super().is_large(value) or (response is not None and response.has_images)

    def encode(self, value: Feed) -> bytes:
        return encode(value, self.route.response, self.kind)

    def send(self, reply: bytes) -> None:
        send_packed(self.call, 200, HEADERS[self.kind], reply)

    def fail(self, error: RequestError) -> None:
        fail(self.call, error, self.log_id)


def _example(
    route: PlainRoute, request: Any, graph: ServedGraph, timeout: float, log_id: int
) -> PlainCall:
    """The submission of an example."""
    kind = media_of(graph) or media.JSON
    feed = decode(media.encode(request, kind), kind, graph, route)
    found = _ExampleCall(graph, feed, timeout, log_id)
    found.route = route
    found.kind = kind
    return found


class _ExampleCall(PlainCall):
    """A call of nobody, which takes nothing of callers' budget of bytes."""

    __slots__ = ()

    def take(self, size: int) -> None:
        """See ``GraphCall``."""


def _answer_to_example(submission: PlainCall, value: Feed) -> tuple[bytes, str]:
    if submission.graph.streams:
        pieces, schema = submission.gathered.pieces, submission.route.response
        return list_of([encode(each, schema, media.JSON) for each in pieces]), media.JSON
    return submission.encoded(value), submission.kind


def decode(body: bytes, kind: str, graph: ServedGraph, route: PlainRoute = ANY) -> Feed:
    """The request's dict.

    Raises:
        RequestError: the body is invalid.
    """
    if route.request is not None:
        given = route.request.plain(route.request.read(body, kind, route.raw))
        return given if isinstance(given, dict) else {_RAW: given}
    signature = graph.signature
    raw = _RAW
    if signature is not None and len(signature.inputs) == 1:
        raw = signature.inputs[0].alias
    # A signature's arrays refuse the floats that large integers have become.
    value = media.decode(body, kind, raw, exact=signature is None)
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
        where = {"loc": ["body"], "msg": "Input should be an object", "type": "dict_type"}
        raise InvalidInput([where])
    for key, each in value.items():
        if isinstance(each, bytes) and each.startswith(b"\x93NUMPY"):
            try:
                value[key] = npy.read(each)
            except ValueError as error:
                problem = {"loc": ["body", key], "msg": str(error), "type": "npy"}
                raise InvalidInput([problem]) from None
    return value
