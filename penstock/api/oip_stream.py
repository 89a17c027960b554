"""ModelStreamInfer: a stream of requests, and a stream of their responses.

Requests run concurrently. Those to models that answer at once are answered in the requests' order;
pieces of the other models' answers are sent when they are made, and hold up nobody. A reader that
is slow holds up the generators of its own stream, once for each of them.

Thread: the engine's loop. Source: Triton's ``stream_infer_handler.cc``, and its document on
decoupled models, for the parameters of requests and responses.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Any, Final

from penstock.api.body import LARGE, SMALL
from penstock.api.call import OfStream
from penstock.api.encoded_pieces import EncodedPieces, Waiting
from penstock.api.errors import text_for_caller
from penstock.api.grpc import GrpcCall
from penstock.api.oip_call import Decoded, GrpcInfer, InferCall
from penstock.api.threads import run_aside
from penstock.door.budget import Reservation
from penstock.door.exchange import WRITABLE
from penstock.errors import RequestError
from penstock.protocols import grpc, oip_message
from penstock.request import Feed, Outcome

_MOST: Final = 64
"""Most requests of one stream in flight: of those that are answered at once, and of the others."""
_CLOSES: Final = b"triton_grpc_error"
"""The header with which a caller wants the first error to end the stream."""


class RequestStream:
    """One call of ModelStreamInfer.

    Args:
        call: the call.
        decode: decodes a message, in any thread; raises RequestError.
        make: makes a request of a kind, with the caller's timeout in seconds.
        readmit: admits the caller of a further message; None if all are admitted.
    """

    def __init__(
        self,
        call: GrpcCall,
        decode: Callable[[bytes], Decoded],
        make: Callable[[type[InferCall], Decoded, float | None], Any],
        readmit: Callable[[Any, Any], Any] | None,
    ) -> None:
        self._call = call
        self._decode = decode
        self._make = make
        self._readmit = readmit
        self._closes = call.exchange.head.fields.get(_CLOSES) == b"true"
        self._waiting: asyncio.Queue[_Request | None] = asyncio.Queue(_MOST)
        self._in_flight: set[_Request] = set()
        self._streaming = 0
        self._one_ended = asyncio.Event()

    async def run(self) -> None:
        """Read requests until the caller sends no more, and then wait for the last response.

        Raises:
            RequestError: the caller is not admitted any more; the requests before are answered.
        """
        call = self._call
        writer = asyncio.create_task(self._write_in_order())
        refusal = None
        try:
            while refusal is None and (message := await call.read()) is not None:
                if self._readmit is not None:
                    try:
                        call.exchange.caller = self._readmit(call.route, call.exchange)
                    except RequestError as error:
                        refusal = error
                        continue
                await self._begin(message)
            await self._waiting.put(None)
            await writer
            await self._until_streaming(0)
        finally:
            writer.cancel()
            self._drop_all()
        if refusal is not None:
            raise refusal

    async def _begin(self, message: bytes) -> None:
        """Run a request."""
        call, size = self._call, len(message)
        one = _Request(call.exchange.another())
        self._in_flight.add(one)
        try:
            if size > SMALL:
                one.held.take(2 * size)
            if size > LARGE:
                found = await run_aside(call.shared.threads, self._decode, message)
            else:
                found = self._decode(message)
        except RequestError as error:
            # Not the error itself, whose traceback refers to the message.
            one.refused = oip_message.id_of(message), error.with_text(str(error))
            one.outcome.set_result(Outcome(None, one.refused[1]))
            await self._waiting.put(one)
            return
        graph, _, _ = found
        kind: type[_InOrder | _InPieces] = _InPieces if graph.streams else _InOrder
        if graph.streams:
            await self._until_streaming(_MOST - 1)
            self._streaming += 1
        one.infer = infer = self._make(kind, found, call.timeout)
        infer.reply_within(one.held, call.shared.threads)
        infer.call = OfStream(call.caller, call)
        infer.requests, infer.one = self, one
        if not graph.streams:
            await self._waiting.put(one)
        infer.start(kind.on_outcome)

    async def _write_in_order(self) -> None:
        while (one := await self._waiting.get()) is not None:
            outcome = await one.outcome
            answer = await self._encoded(one, outcome)
            if answer is None:
                return
            await self._call.write(answer)
            self._end(one)

    async def _encoded(self, one: _Request, outcome: Outcome) -> bytes | None:
        """The response to a request that is answered at once; None if the stream has ended."""
        infer, error = one.infer, outcome.error
        if error is None:
            assert infer is not None, "only the engine gives results"
            value = outcome.value or {}
            try:
                large = infer.is_large(value)
                reply: bytes = await infer.encode_aside(value) if large else infer.encoded(value)
                return oip_message.in_stream(reply)
            except RequestError as wrong:
                error = wrong
        return self.error(one, error)

    def error(self, one: _Request, error: RequestError) -> bytes | None:
        """The response with an error; None if it ends the stream."""
        infer = one.infer
        text = text_for_caller(error, None if infer is None else infer.log_id)
        if self._closes:
            self._call.stop()
            self._drop_all()
            self._call.fail_with(error.with_text(text))
            return None
        if infer is None:
            assert one.refused is not None, "it was not decoded"
            return oip_message.stream_error(text, one.refused[0], "", "")
        request, graph = infer.request, infer.graph
        return oip_message.stream_error(text, request.id, graph.name or "", graph.version)

    def send(self, response: bytes) -> bool:
        """Send a response; returns whether the caller has read enough for a further one."""
        call = self._call
        call.start()
        call.exchange.send(grpc.encode_message(response))
        return call.exchange.unsent <= WRITABLE

    def go_on(self, one: _Request) -> None:
        """Let the next pieces of an answer come, once the caller has read enough."""
        if not one.waits:
            one.waits = True
            self._call.when_writable(one.go_on)

    def end_streaming(self, one: _Request) -> None:
        """The last piece of an answer has been sent."""
        self._streaming -= 1
        self._end(one)
        self._one_ended.set()

    def _end(self, one: _Request) -> None:
        self._in_flight.discard(one)
        one.held.release()

    async def _until_streaming(self, most: int) -> None:
        """Wait until at most so many requests are answered in pieces."""
        while self._streaming > most:
            self._one_ended.clear()
            await self._one_ended.wait()

    def _drop_all(self) -> None:
        """Cancel all requests: the caller has disconnected, or the stream has ended."""
        for one in self._in_flight:
            one.held.release()
            if one.infer is not None:
                one.infer.cancel()
        self._in_flight.clear()


class _Request:
    """One request of a stream.

    Attributes:
        outcome: its outcome, if it is answered at once, or refused before it runs.
        head: what the pieces of its answer begin with; empty before the first one.
        held: reserved bytes of it and its answer, until that is written.
        infer: None before it is decoded.
        refused: its id, and why it was refused before it was decoded.
        waits: whether its pieces wait for the reader.
    """

    __slots__ = ("head", "held", "infer", "outcome", "refused", "waits")

    def __init__(self, held: Reservation) -> None:
        self.outcome: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        self.held = held
        self.infer: _InOrder | _InPieces | None = None
        self.refused: tuple[str, RequestError] | None = None
        self.head = b""
        self.waits = False

    def go_on(self) -> None:
        """The caller has read enough."""
        self.waits = False
        if self.infer is not None:
            self.infer.resume()


class _InOrder(GrpcInfer):
    """A request that is answered at once, in its turn."""

    __slots__ = ("one", "requests")

    requests: RequestStream
    one: _Request
    final = True

    def answered(self, outcome: Outcome) -> None:
        """The engine has finished it."""
        one = self.one
        if not one.outcome.done():
            value = outcome.value or {}
            one.held.add(sum(getattr(each, "nbytes", 0) for each in value.values()))
            one.outcome.set_result(outcome)


class _InPieces(EncodedPieces, GrpcInfer):
    """A request whose answer is sent in pieces."""

    __slots__ = ("one", "requests", "waiting")

    requests: RequestStream
    one: _Request

    def reply_within(self, held: Reservation, threads: Executor | None) -> None:
        """See ``GraphCall``."""
        super().reply_within(held, threads)
        self.waiting = Waiting()

    def encode(self, value: Feed) -> bytes:
        """Encode the response with a piece."""
        one = self.one
        if not one.head:
            one.head = self.head(final=False)
        body = oip_message.encode_with(one.head, self.raw, self.outputs(value))
        return oip_message.in_stream(body)

    def send_piece(self, body: bytes) -> bool:
        """See ``EncodedPieces``."""
        requests = self.requests
        if requests.send(body):
            return True
        requests.go_on(self.one)
        return False

    def whole(self, outcome: Outcome) -> Outcome:
        """See ``Submission``: the pieces have been sent."""
        return outcome

    def end(self, outcome: Outcome) -> None:
        """Send the end, if the caller asks for it, or the error."""
        if outcome.error is not None:
            self.fail(outcome.error)
            return
        requests = self.requests
        if self.request.empty_final:
            requests.send(oip_message.in_stream(self.head(final=True)))
        requests.end_streaming(self.one)

    def fail(self, error: RequestError) -> None:
        """See ``GraphCall``."""
        requests = self.requests
        response = requests.error(self.one, error)
        if response is not None:
            requests.send(response)
            requests.end_streaming(self.one)
