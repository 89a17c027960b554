"""The pipeline protocol's routes: ``POST /{name}/{method}``, and ``PipelineService/inference`` by
gRPC or baidu_std.

Each decodes a call, passes it to the protocol, and encodes the reply. Errors over HTTP have the
format of the original's gateway. Source: ``docs/compatibility.md``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from time import monotonic
from typing import Any

from penstock.api.application import WHOLE, Applications, Route, Section
from penstock.api.baidu_std import BaiduStd, BaiduStdCall
from penstock.api.body import SMALL
from penstock.api.call import Call
from penstock.api.decoding import what_is_left
from penstock.api.descriptions import ERROR, GATEWAY_ERROR, errors
from penstock.api.graph_call import as_request_error
from penstock.api.grpc import Grpc, GrpcCall
from penstock.api.http import JSON, Http, HttpCall, failure, gateway_failure, text_reply
from penstock.api.operation import Answer
from penstock.api.pipeline import Answer as PipelineAnswer
from penstock.api.pipeline import PipelineProtocol, encoded
from penstock.api.threads import run_aside
from penstock.errors import PackageError, RequestError
from penstock.protocols import paddle, paddle_json, paddle_message
from penstock.protocols.heads import Headers
from penstock.protocols.media import JSON as JSON_KIND
from penstock.protocols.pb import pipeline_service_pb2

SERVICE = pipeline_service_pb2.DESCRIPTOR.services_by_name["PipelineService"].full_name

_HEADERS: Headers = (JSON,)

_DESCRIPTION = (
    "The JSON form of the protocol whose clients call `PipelineService/inference`: texts under"
    " `key` and `value`, or `tensors`. Any second part of the path is accepted."
)
_OF_EITHER = errors(429, form={"anyOf": [GATEWAY_ERROR, ERROR]})
_GOOD = "The reply; an `err_no` other than 0 means that the service failed."
_NO_NAME = "A part of the path cannot be a name."
_TEXTS = {"type": "array", "items": {"type": "string"}}
_TENSORS = {
    "type": "array",
    "items": {"type": "object", "description": "`name`, `elem_type`, `shape`, `lod` and data."},
}
_REQUEST = {
    "title": "PipelineRequest",
    "type": "object",
    "properties": {
        "key": {**_TEXTS, "description": "Names of the texts."},
        "value": {**_TEXTS, "description": "The texts, in the order of their names."},
        "tensors": _TENSORS,
        "logid": {
            "type": ["integer", "string"],
            "pattern": "^-?[0-9]{1,18}$",
            "minimum": -(2**63),
            "maximum": 2**63 - 1,
            "description": "The caller's id of the request.",
        },
        "clientip": {"type": "string"},
    },
    "examples": [{"key": ["x"], "value": ["1.0"]}],
}
_REPLY = {
    "title": "PipelineReply",
    "type": "object",
    "required": ["err_no", "err_msg", "key", "value", "tensors"],
    "properties": {
        "err_no": {"type": "integer"},
        "err_msg": {"type": "string"},
        "key": _TEXTS,
        "value": _TEXTS,
        "tensors": _TENSORS,
    },
}

_AT_ONCE = 4 << 10
"""Bytes of a request up to which it is decoded on the loop without an estimate: it takes at most 4
milliseconds."""


class PaddleApplication:
    """The routes of the pipeline protocol. Belongs to the engine's loop.

    Args:
        protocol: answers calls.
        applications: those of the service, whose paths are not calls of this protocol; None if
            there are no others.
    """

    def __init__(
        self, protocol: PipelineProtocol, applications: Applications | None = None
    ) -> None:
        self._protocol = protocol
        self._applications = applications
        self._http = HttpPort(protocol)
        self._grpc = GrpcPort(protocol)
        self._decode_json = partial(paddle_json.decode, own_fields=protocol.own_fields)
        self._decode_message = partial(paddle_message.decode, own_fields=protocol.own_fields)

    def routes(self) -> list[Route | Section]:
        """What to serve."""
        return [
            Section(WHOLE, lambda _: text_reply(404, "Not Found"), failure, takes=self._takes),
            Http(
                "POST",
                "/{name}/{method}",
                self._request,
                failed=self._http.failed,
                takes=self._takes,
                summary="Run the service of this name by the pipeline protocol.",
                description=_DESCRIPTION,
                group="Pipeline protocol",
                request={JSON_KIND: _REQUEST},
                answers={
                    200: Answer(text=_GOOD, contents={JSON_KIND: _REPLY}),
                    **errors(413, 415, form=GATEWAY_ERROR),
                    # An App or a model server answers for names that it does not serve.
                    429: _OF_EITHER[429],
                    503: _OF_EITHER[503],
                    404: Answer(
                        text=_NO_NAME,
                        contents={"text/plain": {"type": "string"}, JSON_KIND: {"type": "object"}},
                    ),
                },
            ),
            Grpc(f"/{SERVICE}/inference", self._call, failed=self._grpc.failed),
            BaiduStd(SERVICE, "inference", self._call, failed=self._grpc.failed),
        ]

    def _takes(self, segments: Sequence[bytes]) -> bool:
        """Whether a path is a call of this protocol."""
        if len(segments) != 3 or b"" in segments[1:]:
            return False
        others = self._applications
        if others is None:
            return True
        name, front = segments[1].decode(errors="replace"), others.front
        if name not in self._protocol.names:
            return front is None and not others.is_taken(segments[1])
        # The usual method; other paths below the name of a route are more likely misspelt routes.
        return name not in others.graphs or front is None or segments[2] == b"prediction"

    def _request(self, call: HttpCall, body: bytes) -> None:
        name, method = call.values
        if len(body) > _AT_ONCE:
            decode = partial(self._decode_json, body, name=name, method=method)
            self._larger(call, len(body), decode, self._http)
            return
        try:
            decoded = self._decode_json(body, name=name, method=method)
        except RequestError as error:
            self._http.failed(call, error)
            return
        call.exchange.on_gone = self._protocol.start(decoded, call.timeout, self._http, call)

    def _call(self, call: GrpcCall | BaiduStdCall, message: bytes) -> None:
        if len(message) > _AT_ONCE:
            decode = partial(self._decode_message, message, self._protocol.names)
            self._larger(call, len(message), decode, self._grpc)
            return
        try:
            decoded = self._decode_message(message, self._protocol.names)
        except RequestError as error:
            self._grpc.failed(call, error)
            return
        call.exchange.on_gone = self._protocol.start(decoded, call.timeout, self._grpc, call)

    def _larger(self, call: Any, size: int, decode: Callable[..., paddle.Call], port: Any) -> None:
        """Decode a larger body: here, or in a thread if it may take long.

        Beyond ``SMALL`` bytes the decoded form is counted as well.
        """
        exchange = call.exchange
        try:
            if size > SMALL:
                exchange.decode(size)
            decoded = decode(briefly=True)
            if size > SMALL:
                exchange.decoded(size, decoded.decoded_bytes())
        except paddle.TakesLong:
            call.aside(self._aside(call, size, decode, port))
        except RequestError as error:
            call.count_refusal(error)
            port.failed(call, error)
        else:
            exchange.on_gone = self._protocol.start(decoded, call.timeout, port, call)

    async def _aside(
        self, call: Any, size: int, decode: Callable[[], paddle.Call], port: Any
    ) -> None:
        """Decode a large body in a thread, including its feed."""
        begun = monotonic()
        exchange, protocol = call.exchange, self._protocol

        def prepared() -> paddle.Call:
            decoded = decode()
            protocol.prepare(decoded)
            return decoded

        try:
            exchange.decode(size)
            exchange.arrive(size)  # it is being decoded
            decoded = await run_aside(protocol.threads, prepared)
            exchange.decoded(size, decoded.decoded_bytes())
        except Exception as failure:  # noqa: BLE001 - the request must get an answer
            error = as_request_error(failure)
            call.count_refusal(error)
            port.failed(call, error)
        else:
            left = what_is_left(call.timeout, begun)
            exchange.on_gone = protocol.start(decoded, left, port, call)


def _reserve(call: Call, size: int) -> None:
    """Reserve bytes for a reply; see ``Port``."""
    limit = call.exchange.limit
    if size > limit:
        raise PackageError(
            f"the reply would take about {size >> 20} MiB, and no more than {limit >> 20} MiB may "
            f"be in flight (max_inflight_bytes): return fewer numbers, or tensors instead of texts"
        )
    call.exchange.take(size)


class HttpPort:
    """Replies as JSON; see ``Port``."""

    write = staticmethod(paddle_json.write_texts)
    encode = staticmethod(paddle_json.encode)
    reserve = staticmethod(_reserve)

    def __init__(self, protocol: PipelineProtocol) -> None:
        self._protocol = protocol

    def done(self, call: Any, answer: PipelineAnswer | None, error: RequestError | None, /) -> None:
        if answer is not None:
            if not isinstance(answer, bytes):
                answer = encoded(self.encode, answer)
            self.reply(call, answer)
        elif error is not None:
            self.failed(call, error)

    def failed(self, call: Any, error: RequestError) -> None:
        """The answer to an error of the call itself, which may be a reply."""
        reply = self._protocol.as_reply(error)
        if reply is None:
            self.fail(call, error)
        else:
            self.reply(call, self.encode(reply))

    @staticmethod
    def reply(call: Any, body: bytes) -> None:
        """Answer with an encoded reply."""
        call.exchange.reply(200, _HEADERS, body)

    @staticmethod
    def fail(call: Any, error: RequestError) -> None:
        """End the call with a transport error."""
        call.send(gateway_failure(error))


class GrpcPort(HttpPort):
    """Replies as messages; see ``Port``."""

    write = staticmethod(paddle_message.write_texts)
    encode = staticmethod(paddle_message.encode)

    @staticmethod
    def reply(call: GrpcCall | BaiduStdCall, body: bytes) -> None:
        """Answer with an encoded reply."""
        call.reply(body)

    @staticmethod
    def fail(call: GrpcCall | BaiduStdCall, error: RequestError) -> None:
        """End the call with a status, or an error code."""
        call.fail_with(error)
