"""gRPC through grpc.aio: raw bytes in and out, with the time and number limits it lacks.

Nothing above this file knows grpc. The pipeline's unary method is served by a stream handler on raw
bytes, because only that lets us bound the time a message takes to arrive: grpc.aio waits for a
unary message for ever. Measured against its unary handler, this costs 3 to 8 % of throughput.
"""

from __future__ import annotations

import asyncio
import logging
import os
from typing import Any, NoReturn

# Callers could make the C core write to standard error, as much as they like.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from penstock.engine.budget import ByteBudget, Reservation
from penstock.errors import RequestError, ServiceBusy
from penstock.frontends.grpc_accept import grpc_server
from penstock.frontends.grpc_health import HealthService
from penstock.frontends.health import Health
from penstock.frontends.pipeline import PipelineProtocol
from penstock.protocols import paddle
from penstock.protocols.pb import pipeline_service_pb2
from penstock.protocols.status import GrpcCode, status_of

_log = logging.getLogger(__name__)

_CODES = {GrpcCode(code.value[0]): code for code in grpc.StatusCode}
_RETRY_LATER = (("grpc-retry-pushback-ms", "1000"),)
_SERVICE = pipeline_service_pb2.DESCRIPTOR.services_by_name["PipelineService"].full_name


class GrpcPort:
    """The gRPC port.

    Args:
        protocol: answers calls.
        budget: bytes in flight, shared with the HTTP port.
        health: what the health service says.
        max_calls: open at once, those included whose message has not arrived.
        max_message_bytes: of a request, after decompression.
        read_timeout: seconds for a call's message to arrive.
    """

    def __init__(
        self,
        protocol: PipelineProtocol,
        budget: ByteBudget,
        health: Health,
        *,
        max_calls: int,
        max_message_bytes: int,
        read_timeout: float = 30.0,
    ) -> None:
        self._protocol = protocol
        self._budget = budget
        self._read_timeout = read_timeout
        # Calls whose message has not come, in two generations: those still in the old one when the
        # timer rings again have waited for at least one whole period.
        self._young: dict[asyncio.Task[Any], None] = {}
        self._old: dict[asyncio.Task[Any], None] = {}
        self._swept: set[asyncio.Task[Any]] = set()
        self._sweeping: asyncio.TimerHandle | None = None
        self._max_calls = max_calls
        self._calls = 0
        self._server = grpc_server(
            [
                ("grpc.so_reuseport", 0),
                ("grpc.max_receive_message_length", max_message_bytes),
                ("grpc.max_send_message_length", -1),
                ("grpc.max_metadata_size", 8 << 10),
                ("grpc.absolute_max_metadata_size", 16 << 10),
                ("grpc.server_handshake_timeout_ms", 10_000),
                ("grpc.max_concurrent_streams", 128),
            ]
        )
        methods = {"inference": grpc.stream_unary_rpc_method_handler(self._inference)}
        # Both, as grpc's generated code does: its older versions know generic handlers only.
        self._server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(_SERVICE, methods),)
        )
        self._server.add_registered_method_handlers(_SERVICE, methods)  # type: ignore[attr-defined]
        health_pb2_grpc.add_HealthServicer_to_server(
            HealthService(health, (_SERVICE,)), self._server
        )
        reflection.enable_server_reflection(
            (_SERVICE, health_pb2.DESCRIPTOR.services_by_name["Health"].full_name),
            self._server,
        )

    async def start(self, address: str) -> int:
        """Listen; returns the port.

        Raises:
            OSError: the address cannot be bound.
        """
        try:
            port = self._server.add_insecure_port(address)
        except RuntimeError as error:
            raise OSError(f"cannot listen on {address}") from error
        await self._server.start()
        return port

    async def stop(self, timeout: float) -> None:
        """Refuse new calls, let open ones finish for ``timeout`` seconds, close."""
        if self._sweeping is not None:
            self._sweeping.cancel()
        await self._server.stop(timeout)

    async def _inference(self, _: Any, context: grpc.aio.ServicerContext[bytes, bytes]) -> bytes:
        """One call. The iterator is not used: reading through the context costs less."""
        if self._calls >= self._max_calls:
            # Its message is not waited for: calls that never send one are what this is against.
            context.set_trailing_metadata(_RETRY_LATER)
            too_many = "too many calls are open; try again later"
            await _abort(context, grpc.StatusCode.RESOURCE_EXHAUSTED, too_many)
        self._calls += 1
        held = Reservation(self._budget)
        try:
            data = await self._read(context)
            if not isinstance(data, bytes):
                await _abort(context, grpc.StatusCode.INVALID_ARGUMENT, "the call has no message")
            try:
                held.take(len(data))
                call = paddle.decode_message(data, self._protocol.options.name or "")
                if call.tensors:
                    held.take(len(data))
                reply = await self._protocol.answer(call, _time_left(context))
                return paddle.encode_message(reply)
            except RequestError as error:
                return await self._failure(error, context)
            except Exception:  # noqa: BLE001 - a promise is broken; the caller gets no traceback
                _log.exception("a call failed inside penstock; please report this")
            await _abort(context, grpc.StatusCode.INTERNAL, "internal error")
        finally:
            held.release()
            self._calls -= 1

    async def _read(self, context: grpc.aio.ServicerContext[bytes, bytes]) -> Any:
        task = asyncio.current_task()
        assert task is not None
        self._young[task] = None
        if self._sweeping is None:
            self._arm()
        try:
            return await context.read()
        except asyncio.CancelledError:
            if task not in self._swept:
                raise
            self._swept.discard(task)
            task.uncancel()
            late = "no message arrived in time"
            await _abort(context, grpc.StatusCode.DEADLINE_EXCEEDED, late)
        finally:
            if task in self._young:
                del self._young[task]
            else:
                self._old.pop(task, None)

    def _arm(self) -> None:
        # Half the limit, so that a call is ended between one half and the whole of it.
        delay = self._read_timeout / 2
        self._sweeping = asyncio.get_running_loop().call_later(delay, self._sweep)

    def _sweep(self) -> None:
        for task in self._old:
            self._swept.add(task)
            task.cancel()
        self._old, self._young = self._young, {}
        self._sweeping = None
        if self._old:
            self._arm()

    async def _failure(
        self, error: RequestError, context: grpc.aio.ServicerContext[bytes, bytes]
    ) -> bytes:
        """The answer to what ends the call itself."""
        reply = self._protocol.as_reply(error)
        if reply is None:
            if isinstance(error, ServiceBusy):
                context.set_trailing_metadata(_RETRY_LATER)
            await _abort(context, _CODES[status_of(error).grpc], str(error))
        return paddle.encode_message(reply)


async def _abort(
    context: grpc.aio.ServicerContext[bytes, bytes], code: grpc.StatusCode, text: str
) -> NoReturn:
    """Fail the call. When the caller leaves at this moment, grpc would log an error of ours."""
    try:
        await context.abort(code, text)
    except grpc.aio.InternalError as error:
        raise asyncio.CancelledError("the caller has left") from error
    raise AssertionError("abort does not return")


def _time_left(context: grpc.aio.ServicerContext[bytes, bytes]) -> float | None:
    """Seconds the caller's deadline leaves; asked once, since grpc counts by the wall clock."""
    left: float | None = context.time_remaining()
    return left
