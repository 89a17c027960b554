"""The pipeline's own gRPC service: messages to calls, replies to messages."""

from __future__ import annotations

import asyncio
import time
from functools import partial

from penstock.api.body import LARGE, SMALL
from penstock.api.grpc_call import GrpcCall
from penstock.api.grpc_service import Method
from penstock.api.pipeline import Answer, PipelineProtocol
from penstock.api.replies import decode_aside, encoded, what_is_left
from penstock.door.exchange import Limit
from penstock.errors import RequestError, ServiceBusy, TooLarge
from penstock.protocols import paddle
from penstock.protocols.pb import pipeline_service_pb2

SERVICE = pipeline_service_pb2.DESCRIPTOR.services_by_name["PipelineService"].full_name


class PipelineService:
    """``PipelineService/inference``; a port of the protocol. Belongs to the engine's loop."""

    write = staticmethod(paddle.write_texts)

    def __init__(self, protocol: PipelineProtocol) -> None:
        self._protocol = protocol

    def methods(self) -> dict[str, Method]:
        """What to serve."""
        return {f"/{SERVICE}/inference": Method(unary=self._inference, failed=self._failed)}

    def _inference(self, call: GrpcCall, message: bytes) -> None:
        exchange = call.exchange
        size = len(message)
        if size > LARGE:
            task = asyncio.get_running_loop().create_task(self._large(call, message))
            exchange.on_gone = task.cancel
            return
        try:
            if size > SMALL:
                exchange.decode(size)
            decoded = paddle.decode_message(message, self._protocol.names)
            if size > SMALL:
                exchange.decoded(size, decoded.held())
        except RequestError as error:
            self._refuse(call, error)
            return
        exchange.on_gone = self._protocol.start(decoded, call.timeout, self, call)

    async def _large(self, call: GrpcCall, message: bytes) -> None:
        """A message that others do not wait for."""
        begun = time.monotonic()
        try:
            decode = partial(paddle.decode_message, message, self._protocol.names)
            decoded = await decode_aside(self._protocol, call.exchange, len(message), decode)
        except RequestError as error:
            self._refuse(call, error)
            return
        left = what_is_left(call.timeout, begun)
        call.exchange.on_gone = self._protocol.start(decoded, left, self, call)

    def _refuse(self, call: GrpcCall, error: RequestError) -> None:
        """The message is not taken."""
        if isinstance(error, ServiceBusy):
            call.exchange.count_refusal(Limit.BUDGET)
        elif isinstance(error, TooLarge):
            call.exchange.count_refusal(Limit.BODY)
        self._failed(call, error)

    def done(self, call: GrpcCall, answer: Answer | None, error: RequestError | None, /) -> None:
        """Answer a call; see Port."""
        if answer is not None:
            if not isinstance(answer, bytes):
                answer = encoded(paddle.encode_message, answer)
            call.reply(answer)
        elif error is not None:
            self._failed(call, error)

    def _failed(self, call: GrpcCall, error: RequestError) -> None:
        """The answer to what ends the call itself, which may be a reply after all."""
        reply = self._protocol.as_reply(error)
        if reply is None:
            call.fail_with(error)
        else:
            call.reply(paddle.encode_message(reply))
