"""Requests of the Open Inference Protocol in progress, over HTTP and gRPC.

An answer in pieces is one answer here, whose tensors have a first axis of pieces; ``oip_stream``
and ``oip_generate`` send the pieces one by one.
"""

from __future__ import annotations

from typing import Any, ClassVar, Final, TypeAlias

import orjson

from penstock.api.body import LARGE
from penstock.api.compression import send_packed
from penstock.api.errors import http_status, text_for_caller
from penstock.api.graph_call import GraphCall
from penstock.api.http import JSON, HttpCall
from penstock.door.exchange import HttpReply
from penstock.engine.graph import ServedGraph
from penstock.errors import RequestError, ServiceClosed
from penstock.protocols import oip, oip_json, oip_message
from penstock.protocols.heads import Headers
from penstock.protocols.oip import InferRequest
from penstock.protocols.status import reply_fields
from penstock.request import Feed, Outcome
from penstock.tensor import Signature
from penstock.typed.tensors import TypedTensors

Decoded: TypeAlias = tuple[ServedGraph, InferRequest, bool]
"""A decoded request: its graph, the request, and whether it has raw bytes over gRPC."""

JSON_SIZE: Final = oip_json.JSON_SIZE.encode()
_OCTETS: Final[Headers] = ((b"content-type", b"application/octet-stream"),)
PIECES: Final = "pieces"
"""Key of all pieces of an answer."""


class InferCall(GraphCall):
    """A request in progress.

    Attributes:
        request: the decoded request.
        raw: whether it has raw bytes over gRPC.
        typed: the tensors of a typed function; None for other graphs.
    """

    __slots__ = ("raw", "request", "typed")

    request: InferRequest
    raw: bool
    typed: TypedTensors | None

    @property
    def priority(self) -> int:
        return self.request.priority

    @property
    def signature(self) -> Signature | None:
        """That of the model, or of one piece of its answers."""
        return self.graph.signature if self.typed is None else self.typed.signature

    def whole(self, outcome: Outcome) -> Outcome:
        """See ``Submission``: ``tensors`` joins the pieces."""
        return Outcome({PIECES: self.gathered.pieces}) if outcome.error is None else outcome

    def is_large(self, value: Feed) -> bool:
        """See ``GraphCall``."""
        return self.gathered.bytes > LARGE if self.graph.streams else super().is_large(value)

    def tensors(self, value: Feed) -> list[oip.OutTensor]:
        """The outputs.

        Raises:
            RequestError: a requested one is missing, or has the wrong type; pieces are not one
                tensor.
        """
        if self.graph.streams:
            pieces = [*map(self.outputs, value[PIECES])]
            return oip.joined(self.request, self.signature, pieces)
        return self.outputs(value)

    def outputs(self, value: Feed) -> list[oip.OutTensor]:
        """The outputs of one answer, or of one piece.

        Raises:
            RequestError: a requested one is missing, or has the wrong type.
        """
        return outputs_of(self.request, self.graph, self.typed, value)


def outputs_of(
    request: InferRequest, graph: ServedGraph, typed: TypedTensors | None, value: Feed
) -> list[oip.OutTensor]:
    """The same, of any request; ``typed`` as in ``InferCall``."""
    if typed is None:
        return oip.answered(request, graph.signature, value)
    return oip.answered(request, typed.signature, typed.outputs(value))


class HttpInfer(InferCall):
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
            sizes = (JSON_SIZE, str(header).encode())
            send_packed(self.call, 200, (*_OCTETS, sizes), body)

    def fail(self, error: RequestError) -> None:
        self.call.send(error_reply(error, self.log_id))


class GrpcInfer(InferCall):
    """Answers as messages."""

    __slots__ = ()

    final: ClassVar[bool | None] = None
    """See ``oip_message.encode``."""

    def encode(self, value: Feed) -> bytes:
        return oip_message.encode_with(self.head(self.final), self.raw, self.tensors(value))

    def head(self, final: bool | None) -> bytes:
        """See ``oip_message.head_of``."""
        return oip_message.head_of(
            self.request.id, self.graph.name or "", self.graph.version, final
        )

    def send(self, reply: bytes) -> None:
        self.call.reply(reply)

    def fail(self, error: RequestError) -> None:
        self.call.fail_with(error.with_text(text_for_caller(error, self.log_id)))


def error_reply(error: RequestError, log_id: int | None = None) -> HttpReply:
    """An error over HTTP.

    ``Retry-After`` is for requests that were refused before they ran, as over gRPC the push-back:
    clients repeat them, also those that must not run twice.
    """
    status = http_status(error)
    body = error_body(error, log_id)
    refused = type(error) is ServiceClosed and not error.admitted
    fields = reply_fields(error, status if refused else None)
    return HttpReply(status, (JSON, *fields), body, close=status == 413)


def error_body(error: RequestError, log_id: int | None = None) -> bytes:
    """An error as JSON."""
    return orjson.dumps({"error": text_for_caller(error, log_id)}, default=str)


def failed(call: HttpCall, error: RequestError) -> None:
    """Answer with an error."""
    call.send(error_reply(error))


def send_json(call: HttpCall, status: int, value: Any) -> None:
    """Answer with a value."""
    call.reply(status, (JSON,), orjson.dumps(value))
