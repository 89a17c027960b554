"""The protocol of the original's model server: ``GeneralModelService``, over HTTP, gRPC and
baidu_std.

``inference`` and ``debug`` do the same. The only graph answers; if there are several, the one in
the path (``/GeneralModelService/{model}/inference``) or in the request's ``model``. An answer over
HTTP has the request's format, JSON or protobuf. An error is an answer with ``err_no``, ``err_msg``
and an HTTP status; over gRPC a status, with ``err-no`` in the metadata, over baidu_std an error
code.

Source: ``docs/compatibility.md`` (the model server's protocol).
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Final, NamedTuple, TypeAlias
from urllib.parse import quote

from penstock.api.application import WHOLE, Route, Section
from penstock.api.baidu_std import BaiduStd, BaiduStdCall
from penstock.api.body import LARGE
from penstock.api.compression import send_packed
from penstock.api.decoding import decode_body
from penstock.api.descriptions import engine_errors
from penstock.api.errors import http_status, text_for_caller
from penstock.api.graph_call import GraphCall
from penstock.api.grpc import Grpc, GrpcCall
from penstock.api.http import JSON, Http, HttpCall
from penstock.api.operation import Answer, Contents
from penstock.door.exchange import HttpReply
from penstock.engine.engine import Engine
from penstock.engine.graph import ServedGraph
from penstock.errors import (
    RequestError,
    Undecodable,
    UnknownMediaType,
    UnknownService,
)
from penstock.protocols import general_model as rules
from penstock.protocols import general_model_json, general_model_message, media
from penstock.protocols.general_model import METHODS, SERVICE, GeneralRequest, GeneralResponse
from penstock.protocols.heads import Headers
from penstock.protocols.standard_messages import GENERAL_MODEL
from penstock.protocols.status import err_no_of, reply_fields, reply_metadata, status_of
from penstock.protocols.tensors import DecodeBudget
from penstock.request import Feed

GROUP: Final = "Model server of Paddle Serving"
PROTO: Final = "application/proto"

_PROTOS: Final = frozenset((PROTO, "application/protobuf", "application/x-protobuf"))
_PACKED_FROM: Final = 512
"""Bytes of an answer from which on it is compressed, if the caller accepts that."""
_AT_ONCE: Final = 4 << 10
"""Bytes of a request up to which it is decoded on the loop without an estimate."""

_KINDS: Final = {"b": "boolean", "i": "integer", "u": "integer", "f": "number"}
_TENSOR: Final = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "alias_name": {"type": "string"},
        "elem_type": {"enum": [*rules.TYPES]},
        "shape": {"type": "array", "items": {"type": "integer", "minimum": 0}},
        "lod": {"type": "array", "items": {"type": "integer", "minimum": 0}},
        **{
            name: {"type": "array", "items": {"type": _KINDS[dtype.kind]}}
            for name, dtype in rules.NUMBERS.items()
        },
        rules.TEXTS: {"type": "array", "items": {"type": "string"}},
        rules.RAW: {"type": "string", "contentEncoding": "base64"},
    },
}
_CONTENTS: Final[Contents] = {
    media.JSON: {
        "title": "GeneralModelRequest",
        "type": "object",
        "required": ["tensor"],
        "properties": {
            "tensor": {"type": "array", "items": _TENSOR},
            "fetch_var_names": {"type": "array", "items": {"type": "string"}},
            "profile_server": {"type": "boolean"},
            "log_id": {"type": "integer", "minimum": 0},
            "model": {"type": "string"},
        },
    },
    PROTO: {},
}
_ANSWER: Final[Contents] = {
    media.JSON: {
        "title": "GeneralModelResponse",
        "type": "object",
        "required": ["outputs", "log_id", "err_no", "err_msg"],
        "properties": {
            "outputs": {"type": "array", "items": {"type": "object"}},
            "log_id": {"type": "integer"},
            "err_no": {"type": "integer"},
            "err_msg": {"type": "string"},
        },
    },
    PROTO: {},
}


Call: TypeAlias = HttpCall | GrpcCall | BaiduStdCall

Choice: TypeAlias = str | Mapping[str, str] | None
"""The graph of a service: its name, or names by the request's ``model``; None: any graph that the
request names."""
Services: TypeAlias = Mapping[str, str | Mapping[str, str]]


class _Form(NamedTuple):
    """JSON or protobuf."""

    decode: Callable[[bytes, DecodeBudget], GeneralRequest]
    encode: Callable[[GeneralResponse], bytes]
    header: tuple[bytes, bytes]


_JSON: Final = _Form(general_model_json.decode, general_model_json.encode, JSON)
_PROTO: Final = _Form(
    general_model_message.decode,
    general_model_message.encode,
    (b"content-type", PROTO.encode()),
)


_Decoded: TypeAlias = tuple[ServedGraph, GeneralRequest, Feed]
"""A decoded request: its graph, the request, and its feed."""


class GeneralModelApplication:
    """The routes of the protocol. Belongs to the engine's loop.

    Args:
        engine: answers requests.
        services: further services by name, each with its graph's name, or several by the request's
            ``model``. GeneralModelService itself, unless it is one of them, serves all graphs by
            name.
        ensembles: names of graphs with the outputs of several engines, each prefixed with its
            engine's name and a slash.
    """

    def __init__(
        self,
        engine: Engine,
        services: Services | None = None,
        ensembles: frozenset[str] = frozenset(),
    ) -> None:
        self._engine = engine
        self._services: Services = services or {}
        self._ensembles = ensembles

    def routes(self) -> Iterator[Route | Section]:
        """What to serve."""
        yield Section(WHOLE)
        failures = {
            status: Answer(text=each.text, contents=_ANSWER, headers=each.headers)
            for status, each in engine_errors().items()
        }
        paths: dict[str, Choice] = {f"/{each}": to for each, to in self._services.items()}
        if SERVICE not in self._services:
            paths |= {f"/{SERVICE}": None, f"/{SERVICE}/{{model}}": None}
        for method in METHODS:
            for path, choice in paths.items():
                route = Http(
                    "POST",
                    f"{path}/{method}",
                    partial(self._http, choice),
                    failed=_failed,
                    refusal=_refusal,
                    summary="Run a model by the protocol of Paddle Serving's model server.",
                    group=GROUP,
                    request=_CONTENTS,
                    answers={**failures, 200: Answer(text="The answer.", contents=_ANSWER)},
                    there=self._is_served,
                )
                listed = partial(self._listed, route) if "{model}" in path else None
                yield replace(route, listed=listed)
            yield Grpc(f"/{GENERAL_MODEL}/{method}", self._rpc, failed=_failed_rpc)
            yield BaiduStd(GENERAL_MODEL, method, self._rpc, failed=_failed_rpc)

    def _listed(self, route: Http) -> Iterator[Http]:
        for name, graph in self._engine.names.items():
            if graph.signature is not None and not graph.streams:
                yield replace(route, pattern=route.pattern.replace("{model}", quote(name)))

    def _is_served(self, values: tuple[str, ...]) -> bool:
        return not values or self._engine.graph(values[0]) is not None

    def _graph(self, choice: Choice, name: str, call: Call, log_id: int) -> ServedGraph:
        if isinstance(choice, str):
            name, choice = choice, None
        elif choice is not None:
            if name not in choice:
                raise UnknownService(f"`model` is one of {_shown(choice)}, got {name[:64]!r}")
            name = choice[name]
        graph = self._engine.choose(name, None, call, log_id)
        if graph is None:
            if name:
                raise self._engine.no_graph(name, f"there is no model {name[:64]!r}")
            names = _shown(dict.fromkeys(each.name or "" for each in self._engine.graphs))
            raise UnknownService(f"which model? Name one of {names} in the path or as `model`")
        if graph.name is None or graph.signature is None:
            raise UnknownService(f"model {name[:64]!r} does not declare its inputs: see Signature")
        if graph.streams:
            why = "answers in pieces, which this protocol has not: call its route"
            raise UnknownService(f"model {graph.name!r} {why}")
        return graph

    def _http(self, choice: Choice, call: HttpCall, body: bytes) -> None:
        try:
            form = _form_of(call)
        except RequestError as error:
            _failed(call, error)
            return
        self._take(call, form, choice, "".join(call.values), body, _failed)

    def _rpc(self, call: GrpcCall | BaiduStdCall, message: bytes) -> None:
        self._take(call, _PROTO, self._services.get(SERVICE), "", message, _failed_rpc)

    def _take(
        self,
        call: Call,
        form: _Form,
        choice: Choice,
        name: str,
        body: bytes,
        failed: Callable[[Any, RequestError], None],
    ) -> None:
        size = len(body)
        decode_body(
            call,
            size,
            partial(self._decoded, form, choice, name, call, body),
            partial(self._submit, call, form, _now()),
            failed,
            engine=self._engine,
            aside=size > LARGE or (size > _AT_ONCE and form is _JSON),
        )

    def _decoded(self, form: _Form, choice: Choice, name: str, call: Call, body: bytes) -> _Decoded:
        budget = DecodeBudget(len(body))
        request = form.decode(body, budget)
        graph = self._graph(choice, name or request.model, call, request.log_id)
        signature = graph.signature
        assert signature is not None, "_graph gives no other"
        return graph, request, rules.feed_of(request, signature, budget)

    def _submit(
        self,
        call: Call,
        form: _Form,
        started: int,
        decoded: _Decoded,
        timeout: float | None,
    ) -> None:
        graph, request, feed = decoded
        # The engine's ids are signed; the caller's id is returned unchanged.
        log_id = request.log_id or (call.log_id if isinstance(call, BaiduStdCall) else 0)
        log_id = log_id % 2**63 or random.getrandbits(63)
        one = _GeneralCall(graph, feed, timeout, log_id)
        one.form = form
        one.request = request
        one.begun = (started, _now())
        one.engine = "" if graph.name in self._ensembles else graph.plan.names[graph.plan.last]
        one.run(call)


class _GeneralCall(GraphCall):
    """See ``GraphCall``.

    Attributes:
        form: format of the request, and of its answer.
        request: the decoded request.
        begun: start and end of its decoding, in microseconds.
        engine: the engine that is named in the answer.
    """

    __slots__ = ("begun", "engine", "form", "request")

    call: Call
    form: _Form
    request: GeneralRequest
    begun: tuple[int, int]
    engine: str

    def encode(self, value: Feed) -> bytes:
        request, signature = self.request, self.graph.signature
        assert signature is not None, "_graph gives no other"
        response = GeneralResponse(
            outputs=rules.outputs_of(request, signature, self.engine, value),
            profile=[*self.begun, self.begun[1], _now()] if request.profile else None,
            log_id=request.log_id,
        )
        return self.form.encode(response)

    def send(self, reply: bytes) -> None:
        if isinstance(self.call, HttpCall):
            send_packed(self.call, 200, (self.form.header,), reply, _PACKED_FROM)
        else:
            self.call.reply(reply)

    def fail(self, error: RequestError) -> None:
        _fail(self.call, self.form, error, self.request, self.log_id)


def _shown(names: Iterable[str]) -> str:
    return ", ".join(map(repr, names))


def _now() -> int:
    return time.monotonic_ns() // 1000


def _form_of(call: HttpCall) -> _Form:
    kind = call.exchange.head.fields.get(b"content-type", b"").decode("latin-1")
    if media.is_json(kind):
        return _JSON
    if media.essence(kind) in _PROTOS:
        return _PROTO
    raise UnknownMediaType(f"a body here is {media.JSON} or {PROTO}")


def _failed(call: HttpCall, error: RequestError) -> None:
    """Answer an error before the request is decoded."""
    try:
        form = _form_of(call)
    except UnknownMediaType:
        form = _JSON
    _fail(call, form, error)


def _failed_rpc(call: GrpcCall | BaiduStdCall, error: RequestError) -> None:
    _fail(call, _PROTO, error)


def _fail(
    call: Call,
    form: _Form,
    error: RequestError,
    request: GeneralRequest | None = None,
    log_id: int | None = None,
) -> None:
    """Answer with an error.

    Args:
        call: the failed call.
        form: format of the answer over HTTP.
        error: the error.
        request: the decoded request, if any.
        log_id: its id in the log.
    """
    text, number = text_for_caller(error, log_id), err_no_of(error)
    if isinstance(call, GrpcCall):
        beside: Headers = ((b"err-no", str(number).encode()), *reply_metadata(error))
        call.fail(status_of(error).grpc, text, beside)
        return
    if isinstance(call, BaiduStdCall):
        call.fail_with(error, text)
        return
    response = GeneralResponse(
        err_no=number, err_msg=text, log_id=0 if request is None else request.log_id
    )
    status_code = http_status(error)
    body = form.encode(response)
    headers = (form.header, *reply_fields(error, status_code))
    call.reply(status_code, headers, body, close=status_code == 413)


def _refusal(status: int, text: str) -> HttpReply:
    number = err_no_of(Undecodable(text))
    body = general_model_json.encode(GeneralResponse(err_no=number, err_msg=text))
    return HttpReply(status, (JSON,), body, close=True)
