"""The Open Inference Protocol: each graph as a model, over HTTP (``/v2/...``) and gRPC.

A graph with a name is a model; its inputs and outputs are those of its model, or the declared ones.
Errors over HTTP are ``{"error": "..."}``.

Source: the Open Inference Protocol, version 2, with Triton's extensions for binary tensor data,
statistics, streams and model configuration.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Any, Final, TypeAlias
from urllib.parse import quote

import orjson
from google.protobuf.json_format import ParseDict
from google.protobuf.message import DecodeError

from penstock.api.application import Applications, Route, Section
from penstock.api.body import LARGE, SMALL
from penstock.api.call import OfStream
from penstock.api.compression import send_packed
from penstock.api.decoding import decode_body
from penstock.api.errors import http_status, text_for_caller
from penstock.api.graph_call import GraphCall
from penstock.api.grpc import Grpc, GrpcCall
from penstock.api.health import Health
from penstock.api.http import JSON, Http, HttpCall, Whole
from penstock.api.oip_description import (
    CONFIG,
    MODEL,
    REQUEST,
    RESPONSE,
    SERVER,
    STATISTICS,
    TRUTH,
    answers,
    example,
    request_of,
)
from penstock.api.oip_statistics import ModelStatistics
from penstock.api.operation import Contents
from penstock.api.threads import run_aside
from penstock.door.budget import Reservation
from penstock.door.exchange import HttpReply
from penstock.engine.engine import Engine
from penstock.engine.graph import GraphState, ServedGraph
from penstock.errors import PackageError, RequestError, UnknownService
from penstock.protocols import oip, oip_json, oip_message
from penstock.protocols import standard_messages as messages
from penstock.protocols.heads import Headers
from penstock.protocols.oip import InferRequest
from penstock.protocols.protobuf import varint
from penstock.protocols.status import GrpcCode, reply_fields
from penstock.request import Feed, Outcome
from penstock.tensor import Signature, TensorSpec
from penstock.typed.tensors import TypedTensors
from penstock.version import VERSION

_Decoded: TypeAlias = tuple[ServedGraph, InferRequest, bool]
"""A decoded request: its graph, the request, and whether it has raw bytes over gRPC."""

PLATFORM: Final = "penstock"
EXTENSIONS: Final = ("binary_tensor_data", "schedule_policy", "statistics", "model_configuration")
GROUP: Final = "Open Inference Protocol"

_JSON_SIZE = b"inference-header-content-length"
_OCTETS: Headers = ((b"content-type", b"application/octet-stream"),)
_AT_ONCE: Final = 4 << 10
"""Bytes of a request up to which it is decoded on the loop without an estimate."""
_MOST_STREAMED: Final = 64
"""Most requests of one stream in flight."""


class OpenInferenceApplication:
    """The routes of the protocol. Belongs to the engine's loop.

    Args:
        engine: answers requests.
        health: the readiness of the service.
        applications: those of the service, whose graphs are not models here; None if there are no
            others.
        typed: the tensors of typed functions by the names of their graphs, or why they have none.
    """

    def __init__(
        self,
        engine: Engine,
        health: Health,
        applications: Applications | None = None,
        typed: Mapping[str, TypedTensors | str] = MappingProxyType({}),
    ) -> None:
        self._engine = engine
        self._health = health
        self._applications = applications
        self._typed = typed
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
            "/v2/models/stats", self._all_stats, "The statistics of every model.", STATISTICS
        )
        for path in ("/v2/models/{model}", "/v2/models/{model}/versions/{version}"):
            yield self._facts(path, self._model, "Inputs and outputs of {}.", MODEL)
            yield self._facts(f"{path}/ready", self._model_ready, "Whether {} is ready.", TRUTH)
            yield self._facts(f"{path}/config", self._config, "The configuration of {}.", CONFIG)
            yield self._facts(f"{path}/stats", self._stats, "The statistics of {}.", STATISTICS)
            yield self._of_model("POST", f"{path}/infer", self._infer, "Run {}.", RESPONSE, REQUEST)
        service = f"/{messages.INFERENCE}/"
        facts: dict[str, Callable[[Any], dict[str, Any]]] = {
            "ServerLive": lambda _: {"live": self._health.live()[0]},
            "ServerReady": lambda _: {"ready": self._health.ready()[0]},
            "ServerMetadata": lambda _: _server_metadata(),
            "ModelReady": self._is_ready,
            "ModelMetadata": lambda request: self._model(self._named(request)),
            "ModelConfig": lambda request: {"config": self._config(self._named(request))},
            "ModelStatistics": lambda request: (
                self._stats(self._named(request)) if request.name else self._stats_of_all()
            ),
        }
        for name, answer in facts.items():
            request, response = messages.inference_messages(name)
            handler = partial(_simple, request, response, answer)
            probe = name in ("ServerLive", "ServerReady")
            always = name.startswith("Server")
            yield Grpc(f"{service}{name}", handler, always=always, open=probe)
        yield Grpc(f"{service}ModelInfer", self._grpc_infer)
        yield Grpc(f"{service}ModelStreamInfer", stream=self._grpc_stream, of_messages=True)

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

    def _graph(
        self, name: str, version: str | None = None, *, for_request: bool = False
    ) -> ServedGraph:
        find = self._engine.choose if for_request else self._engine.graph
        graph = find(name, version or None) if name else None
        if graph is None or not self._is_model(graph):
            what = f"model {name[:64]!r}" + (f", version {version[:64]!r}" if version else "")
            why = None if graph is None else self._typed.get(graph.name or "")
            if isinstance(why, str):
                raise UnknownService(f"{what} is a typed function, and {why}: call its route")
            if graph is not None and self._has_name(graph):
                raise UnknownService(f"{what} does not declare its inputs: see Signature")
            raise UnknownService(f"there is no {what}")
        return graph

    def _is_served(self, values: tuple[str, ...]) -> bool:
        try:
            self._graph(*values)
        except UnknownService:
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
            failed=_failed,
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
                _failed(call, error)
            else:
                _send_json(call, *value if type(value) is tuple else (200, value))

        return self._of_model("GET", path, handler, summary, schema)

    def _of_model(
        self,
        method: str,
        path: str,
        handler: Whole,
        summary: str,
        schema: Contents,
        request: Contents | None = None,
    ) -> Http:
        """A route with the model's name in its path; OpenAPI lists it for each model."""

        def route(path: str, name: str, request: Contents | None, **more: Any) -> Http:
            return Http(
                method,
                path,
                handler,
                failed=_failed,
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
                    if request is None or signature is None:
                        yield route(place, name, request)
                    else:
                        body = example(signature)
                        yield route(place, name, request_of(signature), examples=[(body, None)])

        return route(path, "a model", request, listed=listed, there=self._is_served)

    # Over HTTP.

    def _live(self, call: HttpCall, _body: bytes) -> None:
        good, _ = self._health.live()
        _send_json(call, 200 if good else 400, {"live": good})

    def _ready(self, call: HttpCall, _body: bytes) -> None:
        good, _ = self._health.ready()
        _send_json(call, 200 if good else 400, {"ready": good})

    def _server(self, call: HttpCall, _body: bytes) -> None:
        _send_json(call, 200, _server_metadata())

    def _model(self, graph: ServedGraph) -> dict[str, Any]:
        signature = self._signature(graph)
        same = [each for each in self._models() if each.name == graph.name]
        versions = [each.version for each in same if each.state is GraphState.SERVING]
        return {
            "name": graph.name,
            "versions": versions,
            "platform": PLATFORM,
            "inputs": [] if signature is None else [*map(_metadata, signature.inputs)],
            "outputs": [] if signature is None else [*map(_metadata, signature.outputs)],
        }

    def _config(self, graph: ServedGraph) -> dict[str, Any]:
        # Without a batch axis of its own: the shapes have all dimensions, as in the metadata.
        signature = self._signature(graph)
        inputs, outputs = ((), ()) if signature is None else (signature.inputs, signature.outputs)
        return {
            "name": graph.name,
            "platform": PLATFORM,
            "backend": PLATFORM,
            "max_batch_size": 0,
            "input": [*map(_configured, inputs)],
            "output": [*map(_configured, outputs)],
        }

    def _model_ready(self, graph: ServedGraph) -> tuple[int, dict[str, Any]]:
        good, _ = self._health.ready(graph)
        return 200 if good else 400, {"name": graph.name, "ready": good}

    def _stats(self, graph: ServedGraph) -> dict[str, Any]:
        self._count()
        return {"model_stats": [self._statistics.of(graph)]}

    def _all_stats(self, call: HttpCall, _body: bytes) -> None:
        _send_json(call, 200, self._stats_of_all())

    def _stats_of_all(self) -> dict[str, Any]:
        self._count()
        return {"model_stats": [*map(self._statistics.of, self._models())]}

    def _infer(self, call: HttpCall, body: bytes) -> None:
        try:
            graph = self._graph(*call.values, for_request=True)
            header = _header_size(call)
        except RequestError as error:
            _failed(call, error)
            return
        json_bytes = len(body) if header is None else header
        decode_body(
            call,
            len(body),
            partial(
                _decoded, graph, self._signature(graph), *call.values[1:], body=body, header=header
            ),
            partial(self._submit, call, _HttpInfer),
            _failed,
            aside=len(body) > LARGE or json_bytes > _AT_ONCE,
        )

    def _submit(
        self, call: Any, kind: type[_Infer], decoded: _Decoded, timeout: float | None
    ) -> None:
        self._infer_call(kind, decoded, timeout).run(call)

    def _infer_call(self, kind: type[_Infer], decoded: _Decoded, timeout: float | None) -> _Infer:
        graph, request, raw = decoded
        queue_timeout: float | None = None
        if request.timeout:
            queue_timeout = request.timeout / 1_000_000
            if not self._engine.queue_policies:
                timeout = queue_timeout if timeout is None else min(timeout, queue_timeout)
        if not self._counts:
            self._count()
        typed = self._tensors(graph) if self._typed else None
        feed = request.feed if typed is None else typed.members(request.feed)
        one = kind(graph, feed, timeout, random.getrandbits(63))
        one.typed = typed
        one.queue_timeout = queue_timeout
        one.pinned = bool(request.version)
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
            partial(self._grpc_decoded, message),
            partial(self._submit, call, _GrpcInfer),
            GrpcCall.fail_with,
            aside=len(message) > LARGE,
        )

    def _grpc_decoded(self, message: bytes) -> _Decoded:
        request, raw = oip_message.decode(message)
        graph = self._graph(request.model, request.version, for_request=True)
        oip.fit(request, self._signature(graph))
        return graph, request, raw

    async def _grpc_stream(self, call: GrpcCall) -> None:
        """Run the requests concurrently; send their answers in the requests' order.

        Raises:
            RequestError: the caller is not admitted any more; the requests before are answered.
        """
        readmit = None if self._applications is None else self._applications.readmit
        waiting: asyncio.Queue[_Streamed | None] = asyncio.Queue(_MOST_STREAMED)
        in_flight: set[_Streamed] = set()
        writer = asyncio.create_task(self._write_in_order(call, waiting, in_flight))
        try:
            while (message := await call.read()) is not None:
                if readmit is not None:
                    try:
                        call.exchange.caller = readmit(call.route, call.exchange)
                    except RequestError:
                        await waiting.put(None)
                        await writer
                        raise
                one = _Streamed(call.exchange.another())
                in_flight.add(one)
                await waiting.put(one)
                await self._stream_one(call, message, one)
            await waiting.put(None)
            await writer
        finally:
            writer.cancel()
            for each in in_flight:
                each.drop()

    async def _stream_one(self, call: GrpcCall, message: bytes, one: _Streamed) -> None:
        size = len(message)
        try:
            if size > SMALL:
                one.held.take(2 * size)
            if size > LARGE:
                found = await run_aside(call.shared.threads, self._grpc_decoded, message)
            else:
                found = self._grpc_decoded(message)
        except RequestError as error:
            # Not the error itself, whose traceback refers to the message.
            one.outcome.set_result(_stream_error("", error, None))
            return
        one.infer = infer = self._infer_call(_GrpcInfer, found, call.timeout)
        infer.reply_within(one.held, call.shared.threads)
        infer.call = OfStream(call.caller, call)
        infer.start(one.answered)

    async def _write_in_order(
        self, call: GrpcCall, waiting: asyncio.Queue[_Streamed | None], in_flight: set[_Streamed]
    ) -> None:
        while (one := await waiting.get()) is not None:
            answer = await one.outcome
            if isinstance(answer, Outcome):
                answer = await self._stream_answer(one, answer)
            await call.write(answer)
            in_flight.discard(one)
            one.held.release()

    async def _stream_answer(self, one: _Streamed, outcome: Outcome) -> bytes:
        infer, error = one.infer, outcome.error
        assert infer is not None, "only the engine gives outcomes"
        if error is None:
            value = outcome.value or {}
            try:
                large = infer.is_large(value)
                reply: bytes = await infer.encode_aside(value) if large else infer.encoded(value)
                return b"\x12" + varint(len(reply)) + reply
            except RequestError as wrong:
                error = wrong
        return _stream_error(infer.request.id, error, infer.log_id)


class _Streamed:
    """One request of a stream.

    Attributes:
        outcome: its outcome; or the answer itself if it cannot be decoded.
        held: reserved bytes of it and its answer, until that is written.
        infer: None before it is decoded.
    """

    __slots__ = ("held", "infer", "outcome")

    def __init__(self, held: Reservation) -> None:
        self.outcome: asyncio.Future[Outcome | bytes] = asyncio.get_running_loop().create_future()
        self.held = held
        self.infer: _Infer | None = None

    def answered(self, _: _Infer, outcome: Outcome) -> None:
        """The engine has finished it."""
        if not self.outcome.done():
            value = outcome.value or {}
            self.held.add(sum(getattr(each, "nbytes", 0) for each in value.values()))
            self.outcome.set_result(outcome)

    def drop(self) -> None:
        """Cancel it: the caller has disconnected."""
        self.held.release()
        if self.infer is not None:
            self.infer.cancel()


def _stream_error(request_id: str, error: RequestError, log_id: int | None) -> bytes:
    _, response = messages.inference_messages("ModelStreamInfer")
    answer = response(error_message=text_for_caller(error, log_id))
    if request_id:
        answer.infer_response.id = request_id
    encoded: bytes = answer.SerializeToString()
    return encoded


def _decoded(
    graph: ServedGraph,
    signature: Signature | None,
    version: str = "",
    *,
    body: bytes,
    header: int | None,
) -> _Decoded:
    request = oip_json.decode(body, header)
    request.version = version
    oip.fit(request, signature)
    return graph, request, False


class _Infer(GraphCall):
    """A request in progress.

    Attributes:
        request: the decoded request.
        raw: whether it has raw bytes over gRPC.
        typed: the tensors of a typed function; None for other graphs.
    """

    __slots__ = ("raw", "request", "typed")

    typed: TypedTensors | None

    request: InferRequest
    raw: bool

    @property
    def priority(self) -> int:
        return self.request.priority

    def tensors(self, value: Feed) -> list[oip.OutTensor]:
        """The outputs.

        Raises:
            RequestError: a requested one is missing, or has the wrong type.
        """
        if self.typed is not None:
            return oip.answered(self.request, self.typed.signature, self.typed.outputs(value))
        return oip.answered(self.request, self.graph.signature, value)


class _HttpInfer(_Infer):
    """Answers as JSON, followed by raw bytes."""

    __slots__ = ()

    def encode(self, value: Feed) -> tuple[bytes, int | None]:
        """The body, and the size of its JSON if raw bytes follow."""
        graph = self.graph
        tensors = self.tensors(value)
        return oip_json.encode(self.request, graph.name or "", graph.version, tensors)

    def send(self, reply: tuple[bytes, int | None]) -> None:
        body, header = reply
        if header is None:
            send_packed(self.call, 200, (JSON,), body)
        else:
            sizes = (_JSON_SIZE, str(header).encode())
            send_packed(self.call, 200, (*_OCTETS, sizes), body)

    def fail(self, error: RequestError) -> None:
        self.call.send(_error(error, self.log_id))


class _GrpcInfer(_Infer):
    """Answers as messages."""

    __slots__ = ()

    def encode(self, value: Feed) -> bytes:
        graph = self.graph
        tensors = self.tensors(value)
        return oip_message.encode(self.request, self.raw, graph.name or "", graph.version, tensors)

    def send(self, reply: bytes) -> None:
        self.call.reply(reply)

    def fail(self, error: RequestError) -> None:
        self.call.fail_with(error.with_text(text_for_caller(error, self.log_id)))


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
        call.fail(GrpcCode.INVALID_ARGUMENT, "the bytes are not the method's message")
    except RequestError as error:
        call.fail_with(error)
    else:
        call.reply(response.SerializeToString())


def _server_metadata() -> dict[str, Any]:
    return {"name": "penstock", "version": VERSION, "extensions": [*EXTENSIONS]}


def _metadata(spec: TensorSpec) -> dict[str, Any]:
    return {
        "name": spec.alias,
        "datatype": oip.datatype_of(spec),
        "shape": oip.dimensions(spec),
    }


def _configured(spec: TensorSpec) -> dict[str, Any]:
    datatype = oip.datatype_of(spec)
    kind = f"TYPE_{'STRING' if datatype == oip.BYTES else datatype or 'INVALID'}"
    return {"name": spec.alias, "data_type": kind, "dims": oip.dimensions(spec)}


def _header_size(call: HttpCall) -> int | None:
    raw = call.exchange.head.fields.get(_JSON_SIZE)
    if raw is None:
        return None
    if not raw.isdigit() or len(raw) > 18:
        raise PackageError("inference-header-content-length is no number of bytes")
    return int(raw)


def _send_json(call: HttpCall, status: int, value: Any) -> None:
    call.reply(status, (JSON,), orjson.dumps(value))


def _error(error: RequestError, log_id: int | None = None) -> HttpReply:
    status = http_status(error)
    body = orjson.dumps({"error": text_for_caller(error, log_id)}, default=str)
    return HttpReply(status, (JSON, *reply_fields(error, status)), body, close=status == 413)


def _failed(call: HttpCall, error: RequestError) -> None:
    call.send(_error(error))


def _no_route(path: str) -> HttpReply:
    return HttpReply(404, (JSON,), orjson.dumps({"error": f"there is no route {path[:200]}"}))


def _refusal(status: int, text: str) -> HttpReply:
    return HttpReply(status, (JSON,), orjson.dumps({"error": text}), close=True)
