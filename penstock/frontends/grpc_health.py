"""The gRPC health service: the same answers as ``/readyz``, to probes and to watchers.

Source: the gRPC health checking protocol, version 1.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from penstock.frontends.health import Health

_Reply = health_pb2.HealthCheckResponse


class HealthService(health_pb2_grpc.HealthServicer):  # type: ignore[misc]
    """Answers for the server as a whole, whose name is empty, and for ``services``."""

    def __init__(self, health: Health, services: Collection[str]) -> None:
        self._health = health
        self._known = frozenset(("", *services))

    async def Check(self, request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> Any:
        """One probe."""
        if request.service not in self._known:
            await context.abort(grpc.StatusCode.NOT_FOUND, "no such service")
        ready, _ = self._health.ready()
        return _Reply(status=self._status(request.service, ready))

    async def Watch(
        self, request: Any, context: grpc.aio.ServicerContext[Any, Any]
    ) -> AsyncIterator[Any]:
        """The state now, and each one after it, until the caller leaves."""
        told = None
        async for ready in self._health.changes():
            status = self._status(request.service, ready)
            if status != told:
                told = status
                yield _Reply(status=status)

    def _status(self, service: str, ready: bool) -> Any:
        if service not in self._known:
            return _Reply.SERVICE_UNKNOWN
        return _Reply.SERVING if ready else _Reply.NOT_SERVING
