"""Triton's ``generate`` and ``generate_stream``: an answer of a model, whole or in pieces, as JSON.

An error after the first piece is an event like the others, and ends the answer in the middle.
"""

from __future__ import annotations

from penstock.api.compression import send_packed
from penstock.api.encoded_pieces import EncodedPieces, Waiting
from penstock.api.http import JSON, HttpCall
from penstock.api.oip_call import PIECES, InferCall, error_reply, outputs_of
from penstock.api.stream_call import StreamCall
from penstock.engine.gathered import Gathered
from penstock.errors import RequestError
from penstock.protocols import oip_generate
from penstock.protocols.oip import InferRequest
from penstock.protocols.pieces import OF_GENERATE
from penstock.request import Feed, Outcome
from penstock.typed.tensors import TypedTensors


class Generate(InferCall):
    """A request whose answer is one object."""

    __slots__ = ()

    as_text = True

    def encode(self, value: Feed) -> bytes:
        request, graph, signature = self.request, self.graph, self.signature
        name, version = graph.name or "", graph.version
        if not graph.streams:
            return oip_generate.encode(request, name, version, self.outputs(value))
        assert signature is not None, "it is a model"
        pieces = [*map(self.outputs, value[PIECES])]
        return oip_generate.encode_joined(request, name, version, signature, pieces)

    def send(self, reply: bytes) -> None:
        send_packed(self.call, 200, (JSON,), reply)

    def fail(self, error: RequestError) -> None:
        self.call.send(error_reply(error, self.log_id))


class GenerateStream(EncodedPieces, StreamCall):
    """A request whose answer is an event for each piece; one event if the model does not stream.

    Attributes:
        request, raw, typed: see ``InferCall``.
    """

    __slots__ = ("raw", "request", "typed", "waiting")

    as_text = True
    form = staticmethod(error_reply)
    request: InferRequest
    raw: bool
    typed: TypedTensors | None

    @property
    def priority(self) -> int:
        return self.request.priority

    def run(self, call: HttpCall) -> None:
        """See ``StreamCall``."""
        self.status, self.context = 200, OF_GENERATE
        self.waiting = Waiting()
        super().run(call)

    def encode(self, value: Feed) -> bytes:
        """The object of a piece."""
        request, graph = self.request, self.graph
        outputs = outputs_of(request, graph, self.typed, value)
        return oip_generate.encode(request, graph.name or "", graph.version, outputs)

    def answered(self, outcome: Outcome) -> None:
        """See ``StreamCall``."""
        if outcome.error is None and not self.graph.streams:
            self.stream, self.gathered = None, Gathered()
            try:
                self.piece(outcome.value or {})
            except RequestError as error:
                outcome = Outcome(None, error)
        super().answered(outcome)
