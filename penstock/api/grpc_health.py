"""The gRPC health service: the same answers as ``/readyz``, to probes and to watchers.

Source: the gRPC health checking protocol, version 1.
"""

from __future__ import annotations

from collections.abc import Collection

from google.protobuf.message import DecodeError

from penstock.api.grpc_call import GrpcCall
from penstock.api.grpc_service import Method
from penstock.api.health import Health
from penstock.protocols import standard_messages as messages
from penstock.protocols.grpc import GrpcError
from penstock.protocols.status import GrpcCode


class HealthService:
    """Answers for the server as a whole, whose name is empty, and for ``services``."""

    def __init__(self, health: Health, services: Collection[str]) -> None:
        self._health = health
        self._known = frozenset(("", *services))

    def methods(self) -> dict[str, Method]:
        """What to serve."""
        return {
            f"/{messages.HEALTH}/Check": Method(unary=self._check, always=True),
            f"/{messages.HEALTH}/Watch": Method(stream=self._watch, always=True),
        }

    def _check(self, call: GrpcCall, message: bytes) -> None:
        """One probe."""
        try:
            service = _service(message)
        except GrpcError as error:
            call.fail(error.code, error.text)
            return
        if service not in self._known:
            call.fail(GrpcCode.NOT_FOUND, "no such service")
            return
        ready, _ = self._health.ready()
        call.reply(self._reply(service, ready))

    async def _watch(self, call: GrpcCall) -> None:
        """The state now, and each one after it, until the caller leaves."""
        message = await call.read()
        if message is None:
            raise GrpcError(GrpcCode.INVALID_ARGUMENT, "the call has no message")
        service = _service(message)
        told = None
        async for ready in self._health.changes():
            reply = self._reply(service, ready)
            if reply != told:
                told = reply
                await call.write(reply)

    def _reply(self, service: str, ready: bool) -> bytes:
        status = messages.SERVING if ready else messages.NOT_SERVING
        if service not in self._known:
            status = messages.SERVICE_UNKNOWN
        reply: bytes = messages.HealthCheckResponse(status=status).SerializeToString()
        return reply


def _service(message: bytes) -> str:
    try:
        name: str = messages.HealthCheckRequest.FromString(message).service
    except DecodeError as error:
        text = "the bytes are not a HealthCheckRequest"
        raise GrpcError(GrpcCode.INVALID_ARGUMENT, text) from error
    return name
