"""The Open Inference Protocol: each graph as a model, over HTTP (``/v2/...``) and gRPC.

A graph with a name is a model; its inputs and outputs are those of its model, or the declared ones.
Errors over HTTP are ``{"error": "..."}``.

Source: the Open Inference Protocol, version 2, with Triton's extensions for binary tensor data,
statistics, streams and model configuration.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Any, Final
from urllib.parse import quote

import orjson
from google.protobuf.json_format import ParseDict
from google.protobuf.message import DecodeError

from penstock.api.application import Applications, Route, Section
from penstock.api.body import LARGE
from penstock.api.decoding import decode_body
from penstock.api.grpc import Grpc, GrpcCall
from penstock.api.health import Health
from penstock.api.http import JSON, Http, HttpCall, Whole
from penstock.api.oip_call import (
    JSON_SIZE,
    Decoded,
    GrpcInfer,
    HttpInfer,
    InferCall,
    failed,
    send_json,
)
from penstock.api.oip_description import (
    CONFIG,
    EVENT,
    GENERATE,
    GENERATED,
    INFER,
    MODEL,
    RESPONSE,
    SERVER,
    STATISTICS,
    TRUTH,
    Bodies,
    answers,
)
from penstock.api.oip_generate import Generate, GenerateStream
from penstock.api.oip_statistics import ModelStatistics, Rows, summed
from penstock.api.oip_stream import RequestStream
from penstock.api.operation import Contents
from penstock.door.exchange import HttpReply
from penstock.engine.engine import Engine
from penstock.engine.graph import GraphState, ServedGraph
from penstock.errors import PackageError, RequestError, UnknownService
from penstock.protocols import oip, oip_generate, oip_json, oip_message
from penstock.protocols import standard_messages as messages
from penstock.protocols.status import GrpcCode
from penstock.tensor import Signature, TensorSpec
from penstock.typed.tensors import TypedTensors
from penstock.version import VERSION

PLATFORM: Final = "penstock"
EXTENSIONS: Final = ("binary_tensor_data", "schedule_policy", "statistics", "model_configuration")
GROUP: Final = "Open Inference Protocol"

_NO_MESSAGE: Final = "the bytes are not the method's message"

_AT_ONCE: Final = 4 << 10
"""Bytes of a request up to which it is decoded on the loop without an estimate."""


class OpenInferenceApplication:
    """The routes of the protocol. Belongs to the engine's loop.

    Args:
        engine: answers requests.
        health: the readiness of the service.
        applications: those of the service, whose graphs are not models here; None if there are no
            others.
        typed: the tensors of typed functions by the names of their graphs, or why they have none.
        extensions: names of extensions that other applications have.
        ask_all: the answers of ``statistics`` of all engines of the service; None if there are no
            others.
    """

    def __init__(
        self,
        engine: Engine,
        health: Health,
        applications: Applications | None = None,
        typed: Mapping[str, TypedTensors | str] = MappingProxyType({}),
        extensions: Sequence[str] = (),
        ask_all: Callable[[str, str], Awaitable[list[Rows]]] | None = None,
    ) -> None:
        self._engine = engine
        self._health = health
        self._applications = applications
        self._typed = typed
        self._extensions = (*EXTENSIONS, *extensions)
        self._ask_all = ask_all
        self._statistics = ModelStatistics(engine)
        self._counts = False

    def routes(self) -> Iterator[Route | Section]:
        """What to serve."""
        yield Section("/v2", _no_route, _refusal)
        # The protocol's text has one, its OpenAPI description the other.
        for path in ("/v2", "/v2/"):
            yield self._get(path, self._server, "The metadata of this server.", SERVER)
        yield self._get(
            "/v2/health/live", self._live, "Whether the process is alive.", TRUTH, probe=True
        )
        yield self._get(
            "/v2/health/ready", self._ready, "Whether requests are accepted.", TRUTH, probe=True
        )
        yield self._get(
            "/v2/models/stats", self._stats, "The statistics of every model.", STATISTICS
        )
        for path in ("/v2/models/{model}", "/v2/models/{model}/versions/{version}"):
            yield self._facts(path, self._model, "Inputs and outputs of {}.", MODEL)
            yield self._facts(f"{path}/ready", self._model_ready, "Whether {} is ready.", TRUTH)
            yield self._facts(f"{path}/config", self._config, "The configuration of {}.", CONFIG)
            yield self._of_model(
                "GET", f"{path}/stats", self._stats, "The statistics of {}.", STATISTICS
            )
            yield self._of_model("POST", f"{path}/infer", self._infer, "Run {}.", RESPONSE, INFER)
            for kind, name, summary, contents in (
                (Generate, "generate", "Run {} by its inputs' names.", GENERATED),
                (GenerateStream, "generate_stream", "Run {}, with an event for each piece.", EVENT),
            ):
                handler = partial(self._generate, kind)
                yield self._of_model("POST", f"{path}/{name}", handler, summary, contents, GENERATE)
        service = f"/{messages.INFERENCE}/"
        facts: dict[str, Callable[[Any], dict[str, Any]]] = {
            "ServerLive": lambda _: {"live": self._health.live()[0]},
            "ServerReady": lambda _: {"ready": self._health.ready()[0]},
            "ServerMetadata": lambda _: self._server_facts(),
            "ModelReady": self._is_ready,
            "ModelMetadata": lambda request: self._model(self._named(request)),
            "ModelConfig": lambda request: {"config": self._config(self._named(request))},
        }
        for name, answer in facts.items():
            request, response = messages.inference_messages(name)
            handler = partial(_simple, request, response, answer)
            probe = name in ("ServerLive", "ServerReady")
            always = name.startswith("Server")
            yield Grpc(f"{service}{name}", handler, always=always, open=probe)
        yield Grpc(f"{service}ModelStatistics", self._grpc_stats)
        yield Grpc(f"{service}ModelInfer", self._grpc_infer)
        yield Grpc(f"{service}ModelStreamInfer", stream=self._stream, of_messages=True)

    def _count(self) -> None:
        """Start to count: services without this protocol do not pay for it."""
        if not self._counts:
            self._counts = True
            self._engine.instruments.install(self._statistics)

    # Metadata.

    def _models(self) -> Iterator[ServedGraph]:
        """Every version of every model."""
        for graph in self._engine.graphs:
            if self._is_model(graph):
                yield graph

    def _has_name(self, graph: ServedGraph) -> bool:
        others = self._applications
        return graph.name is not None and (others is None or graph.name not in others.graphs)

    def _is_model(self, graph: ServedGraph) -> bool:
        if graph.name in self._typed:
            return self._signature(graph) is not None
        return self._has_name(graph) and graph.signature is not None

    def _tensors(self, graph: ServedGraph) -> TypedTensors | None:
        """Those of a typed function; None for other graphs."""
        found = self._typed.get(graph.name or "")
        return found if isinstance(found, TypedTensors) else None

    def _signature(self, graph: ServedGraph) -> Signature | None:
        tensors = self._tensors(graph)
        return graph.signature if tensors is None else tensors.signature

    def _graph(self, name: str, version: str | None = None, *, call: Any = None) -> ServedGraph:
        """The graph of a model: for a request, if there is a call, else for descriptions of it."""
        engine, version = self._engine, version or None
        found = engine.graph(name, version) if call is None else engine.choose(name, version, call)
        graph = found if name else None
        if graph is None or not self._is_model(graph):
            what = f"model {name[:64]!r}" + (f", version {version[:64]!r}" if version else "")
            why = None if graph is None else self._typed.get(graph.name or "")
            if isinstance(why, str):
                raise UnknownService(f"{what} is a typed function, and {why}: call its route")
            if graph is not None and self._has_name(graph):
                raise UnknownService(f"{what} does not declare its inputs: see Signature")
            raise engine.no_graph(name, f"there is no {what}")
        return graph

    def _is_served(self, values: tuple[str, ...]) -> bool:
        try:
            self._graph(*values)
        except RequestError:
            return False
        return True

    def _get(
        self, path: str, handler: Whole, summary: str, schema: Contents, *, probe: bool = False
    ) -> Http:
        """A route of the whole server; described if there may be a model."""
        route = Http(
            "GET",
            path,
            handler,
            failed=failed,
            refusal=_refusal,
            summary=summary,
            group=GROUP,
            answers=answers(schema),
            always=probe,
            open=probe,
        )

        def listed() -> list[Http]:
            return [route] if any(map(self._has_name, self._engine.graphs)) else []

        return replace(route, listed=listed)

    def _facts(
        self, path: str, answer: Callable[[ServedGraph], Any], summary: str, schema: Contents
    ) -> Http:
        def handler(call: HttpCall, _body: bytes) -> None:
            try:
                value = answer(self._graph(*call.values))
            except RequestError as error:
                failed(call, error)
            else:
                send_json(call, *value if type(value) is tuple else (200, value))

        return self._of_model("GET", path, handler, summary, schema)

    def _of_model(
        self,
        method: str,
        path: str,
        handler: Whole,
        summary: str,
        schema: Contents,
        bodies: Bodies | None = None,
    ) -> Http:
        """A route with the model's name in its path; OpenAPI lists it for each model."""
        any_body = None if bodies is None else bodies.any

        def route(path: str, name: str, request: Contents | None, **more: Any) -> Http:
            return Http(
                method,
                path,
                handler,
                failed=failed,
                refusal=_refusal,
                summary=summary.format(name),
                group=GROUP,
                request=request or {},
                answers=answers(schema),
                **more,
            )

        def listed() -> Iterator[Http]:
            if "{version}" not in path:
                for name, graph in self._engine.names.items():
                    if not self._is_model(graph) or name in self._typed:
                        continue  # typed functions have a route of their own
                    place = path.replace("{model}", quote(name))
                    signature = graph.signature
                    if bodies is None or signature is None:
                        yield route(place, name, any_body)
                    else:
                        examples = [(bodies.example(signature), None)]
                        yield route(place, name, bodies.of(signature), examples=examples)

        return route(path, "a model", any_body, listed=listed, there=self._is_served)

    # Over HTTP.

    def _live(self, call: HttpCall, _body: bytes) -> None:
        good, _ = self._health.live()
        send_json(call, 200 if good else 400, {"live": good})

    def _ready(self, call: HttpCall, _body: bytes) -> None:
        good, _ = self._health.ready()
        send_json(call, 200 if good else 400, {"ready": good})

    def _server(self, call: HttpCall, _body: bytes) -> None:
        send_json(call, 200, self._server_facts())

    def _server_facts(self) -> dict[str, Any]:
        return {"name": "penstock", "version": VERSION, "extensions": [*self._extensions]}

    def _model(self, graph: ServedGraph) -> dict[str, Any]:
        signature = self._signature(graph)
        same = [each for each in self._models() if each.name == graph.name]
        versions = [each.version for each in same if each.state is GraphState.SERVING]
        return {
            "name": graph.name,
            "versions": versions,
            "platform": (graph.configuration or {}).get("platform", PLATFORM),
            "inputs": [] if signature is None else [*map(_metadata, signature.inputs)],
            "outputs": [] if signature is None else [*map(_metadata, signature.outputs)],
        }

    def _config(self, graph: ServedGraph) -> dict[str, Any]:
        signature = self._signature(graph)
        inputs, outputs = ((), ()) if signature is None else (signature.inputs, signature.outputs)
        # If no repository says: no batch axis, and shapes with all dimensions, as in the metadata.
        given = graph.configuration or {"platform": PLATFORM, "backend": PLATFORM}
        batched = given.get("max_batch_size", 0) > 0
        return {
            "max_batch_size": 0,
            "input": [_configured(each, batched=batched) for each in inputs],
            "output": [_configured(each, batched=batched) for each in outputs],
            "model_transaction_policy": {"decoupled": graph.streams},
            **given,
            "name": graph.name,
        }

    def _model_ready(self, graph: ServedGraph) -> tuple[int, dict[str, Any]]:
        good, _ = self._health.ready(graph)
        return 200 if good else 400, {"name": graph.name, "ready": good}

    # Statistics: those of all engines together.

    def statistics(self, name: str, version: str) -> Rows:
        """Those of this engine.

        Args:
            name: of a model; empty for all.
            version: of the model; empty for all that it has.
        """
        self._count()
        graphs = {
            graph.key: graph
            for graph in self._models()
            if name in ("", graph.name) and version in ("", graph.version)
        }
        return [*map(self._statistics.of, graphs.values())]

    async def _all_statistics(self, name: str, version: str) -> dict[str, Any]:
        """Those of the service; arguments as for ``statistics``."""
        if self._ask_all is None:
            return {"model_stats": self.statistics(name, version)}
        return {"model_stats": summed(await self._ask_all(name, version))}

    def _which(self, name: str = "", version: str = "") -> tuple[str, str]:
        """The name, and the version if the request names one or has its label."""
        graph = self._graph(name, version) if name else None
        return name, graph.version if graph is not None and version else ""

    def _stats(self, call: HttpCall, _body: bytes) -> None:
        try:
            which = self._which(*call.values)
        except RequestError as error:
            failed(call, error)
        else:
            call.aside(self._send_stats(call, *which))

    async def _send_stats(self, call: HttpCall, *which: str) -> None:
        send_json(call, 200, await self._all_statistics(*which))

    def _grpc_stats(self, call: GrpcCall, message: bytes) -> None:
        request_class, response_class = messages.inference_messages("ModelStatistics")
        try:
            request = request_class.FromString(message)
            which = self._which(request.name, request.version)
        except DecodeError:
            call.fail(GrpcCode.INVALID_ARGUMENT, _NO_MESSAGE)
        except RequestError as error:
            call.fail_with(error)
        else:
            call.aside(self._reply_stats(call, response_class, *which))

    async def _reply_stats(self, call: GrpcCall, response_class: Any, *which: str) -> None:
        response = ParseDict(await self._all_statistics(*which), response_class())
        call.reply(response.SerializeToString())

    def _infer(self, call: HttpCall, body: bytes) -> None:
        try:
            graph = self._graph(*call.values, call=call)
            header = _header_size(call)
        except RequestError as error:
            failed(call, error)
            return
        json_bytes = len(body) if header is None else header
        decode_body(
            call,
            len(body),
            partial(
                _decoded, graph, self._signature(graph), *call.values[1:], body=body, header=header
            ),
            partial(self._submit, call, HttpInfer),
            failed,
            engine=self._engine,
            aside=len(body) > LARGE or json_bytes > _AT_ONCE,
        )

    def _generate(self, kind: type[Any], call: HttpCall, body: bytes) -> None:
        try:
            graph = self._graph(*call.values, call=call)
        except RequestError as error:
            failed(call, error)
            return
        decode_body(
            call,
            len(body),
            partial(_decoded_members, graph, self._signature(graph), *call.values[1:], body=body),
            partial(self._submit, call, kind),
            failed,
            engine=self._engine,
            aside=len(body) > _AT_ONCE,
        )

    def _submit(self, call: Any, kind: type[Any], decoded: Decoded, timeout: float | None) -> None:
        self.infer_call(kind, decoded, timeout).run(call)

    def infer_call(
        self, kind: type[InferCall], decoded: Decoded, timeout: float | None
    ) -> InferCall:
        """Make a request of this kind, with the caller's timeout in seconds."""
        graph, request, raw = decoded
        queue_timeout: float | None = None
        if request.timeout:
            queue_timeout = request.timeout / 1_000_000
            if not graph.queue_policies:
                timeout = queue_timeout if timeout is None else min(timeout, queue_timeout)
        if not self._counts:
            self._count()
        typed = self._tensors(graph) if self._typed else None
        feed = request.feed if typed is None else typed.members(request.feed)
        one = kind(graph, feed, timeout, random.getrandbits(63))
        one.typed = typed
        one.queue_timeout = queue_timeout
        one.asked = request.version or None
        one.request = request
        one.raw = raw
        return one

    # Over gRPC.

    def _named(self, request: Any) -> ServedGraph:
        return self._graph(request.name, request.version)

    def _is_ready(self, request: Any) -> dict[str, Any]:
        try:
            graph = self._named(request)
        except UnknownService:  # as Triton: its clients wait until a model is ready
            return {"ready": False}
        return {"ready": self._health.ready(graph)[0]}

    def _grpc_infer(self, call: GrpcCall, message: bytes) -> None:
        decode_body(
            call,
            len(message),
            partial(self.decode_message, call, message),
            partial(self._submit, call, GrpcInfer),
            GrpcCall.fail_with,
            engine=self._engine,
            aside=len(message) > LARGE,
        )

    def decode_message(self, call: GrpcCall, message: bytes) -> Decoded:
        """Decode the message of a request. Any thread.

        Raises:
            RequestError: it is none, or there is no such model.
        """
        request, raw = oip_message.decode(message)
        graph = self._graph(request.model, request.version, call=call)
        oip.fit(request, self._signature(graph))
        return graph, request, raw

    def _stream(self, call: GrpcCall) -> Awaitable[None]:
        readmit = None if self._applications is None else self._applications.readmit
        return RequestStream(
            call, partial(self.decode_message, call), self.infer_call, readmit
        ).run()


def _decoded(
    graph: ServedGraph,
    signature: Signature | None,
    version: str = "",
    *,
    body: bytes,
    header: int | None,
) -> Decoded:
    request = oip_json.decode(body, header)
    request.version = version
    oip.fit(request, signature)
    return graph, request, False


def _decoded_members(
    graph: ServedGraph, signature: Signature | None, version: str = "", *, body: bytes
) -> Decoded:
    assert signature is not None, "it is a model"
    request = oip_generate.decode(body, signature)
    request.version = version
    oip.fit(request, signature)
    return graph, request, False


def _simple(
    request_class: Any,
    response_class: Any,
    answer: Callable[[Any], dict[str, Any]],
    call: GrpcCall,
    message: bytes,
) -> None:
    """A method for metadata."""
    try:
        request = request_class.FromString(message)
        response = ParseDict(answer(request), response_class())
    except DecodeError:
        call.fail(GrpcCode.INVALID_ARGUMENT, _NO_MESSAGE)
    except RequestError as error:
        call.fail_with(error)
    else:
        call.reply(response.SerializeToString())


def _metadata(spec: TensorSpec) -> dict[str, Any]:
    return {
        "name": spec.alias,
        "datatype": oip.datatype_of(spec),
        "shape": oip.dimensions(spec),
    }


def _configured(spec: TensorSpec, *, batched: bool) -> dict[str, Any]:
    datatype = oip.datatype_of(spec)
    kind = f"TYPE_{'STRING' if datatype == oip.BYTES else datatype or 'INVALID'}"
    dims = oip.dimensions(spec)[batched:]
    found = {"name": spec.alias, "data_type": kind, "dims": dims}
    return {**found, "optional": True} if spec.optional else found


def _header_size(call: HttpCall) -> int | None:
    raw = call.exchange.head.fields.get(JSON_SIZE)
    if raw is None:
        return None
    if not raw.isdigit() or len(raw) > 18:
        raise PackageError("inference-header-content-length is no number of bytes")
    return int(raw)


def _no_route(path: str) -> HttpReply:
    return HttpReply(404, (JSON,), orjson.dumps({"error": f"there is no route {path[:200]}"}))


def _refusal(status: int, text: str) -> HttpReply:
    return HttpReply(status, (JSON,), orjson.dumps({"error": text}), close=True)
