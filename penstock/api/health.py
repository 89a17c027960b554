"""Health probes: alive while the loop runs, ready while requests are accepted."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection

from google.protobuf.message import DecodeError

from penstock.api.descriptions import errors
from penstock.api.errors import failed, refusal
from penstock.api.grpc import Grpc, GrpcCall
from penstock.api.http import Http, HttpCall, Whole, text_reply
from penstock.api.operation import Answer, Contents
from penstock.engine.graph import ServedGraph
from penstock.protocols import standard_messages as messages
from penstock.protocols.grpc import GrpcError
from penstock.protocols.status import GrpcCode

LOOK = 0.5
"""Interval in seconds of checks for watchers: a stuck engine does not report itself."""


class Health:
    """The common state of ``/livez``, ``/readyz`` and the gRPC health service."""

    def __init__(self) -> None:
        self._why_not_ready: str | None = "starting"
        self._why_stuck: Callable[[], str | None] = lambda: None
        self._turned = asyncio.Event()

    def watch(self, why_stuck: Callable[[], str | None]) -> None:
        """Call this at each probe; a text means that requests cannot be answered now."""
        self._why_stuck = why_stuck

    def set_ready(self) -> None:
        """Every worker of every op is up."""
        self._why_not_ready = None
        self._notify()

    def set_unready(self, why: str) -> None:
        """Stop sending requests here; ``why`` is shown to the prober."""
        self._why_not_ready = why
        self._notify()

    def live(self) -> tuple[bool, str]:
        """Whether the process is alive."""
        return True, "ok"

    def ready(self, graph: ServedGraph | None = None) -> tuple[bool, str]:
        """Whether requests are accepted, and the reason when they are not.

        Args:
            graph: one version; None for the requests that name no version.
        """
        why = self._why_not_ready or (self._why_stuck() if graph is None else graph.why_stuck())
        return why is None, why or "ok"

    async def changes(self) -> AsyncIterator[bool]:
        """Yields whether requests are accepted: now, and after each change.

        Does not end. Changes by the service are reported at once, a stuck engine within ``LOOK``.
        """
        yielded: bool | None = None
        while True:
            turned = self._turned
            ready, _ = self.ready()
            if ready is not yielded:
                yielded = ready
                yield ready
            try:
                async with asyncio.timeout(LOOK):
                    await turned.wait()
            except TimeoutError:
                continue

    def _notify(self) -> None:
        turned, self._turned = self._turned, asyncio.Event()
        turned.set()


class HealthApplication:
    """The probes over HTTP, and the gRPC health service (Check and Watch) with the same answers.
    The latter answers for the whole server (an empty name), and for ``services``.

    Source: the gRPC health checking protocol, version 1.
    """

    def __init__(self, health: Health, services: Collection[str]) -> None:
        self._health = health
        self._known = frozenset(("", *services))

    def routes(self) -> list[Http | Grpc]:
        """What to serve."""
        return [
            _probe("/livez", self._live, "Whether the process is alive."),
            _probe("/readyz", self._ready, "Whether requests are accepted."),
            Grpc(f"/{messages.HEALTH}/Check", self._check, always=True, open=True),
            Grpc(f"/{messages.HEALTH}/Watch", stream=self._watch, always=True, open=True),
        ]

    def _live(self, call: HttpCall, _body: bytes) -> None:
        good, why = self._health.live()
        call.send(text_reply(200 if good else 503, why))

    def _ready(self, call: HttpCall, _body: bytes) -> None:
        good, why = self._health.ready()
        call.send(text_reply(200 if good else 503, why))

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
        """Send the current state, and each change, until the caller disconnects."""
        message = await call.read()
        if message is None:
            raise GrpcError(GrpcCode.INVALID_ARGUMENT, "the call has no message")
        service = _service(message)
        sent = None
        async for ready in self._health.changes():
            reply = self._reply(service, ready)
            if reply != sent:
                sent = reply
                await call.write(reply)

    def _reply(self, service: str, ready: bool) -> bytes:
        status = messages.SERVING if ready else messages.NOT_SERVING
        if service not in self._known:
            status = messages.SERVICE_UNKNOWN
        reply: bytes = messages.HealthCheckResponse(status=status).SerializeToString()
        return reply


def _probe(path: str, handler: Whole, summary: str) -> Http:
    text: Contents = {"text/plain": {"type": "string"}}
    no = Answer(text="No; the text has the reason.", contents=text)
    return Http(
        "GET",
        path,
        handler,
        failed=failed,
        refusal=refusal,
        always=True,
        open=True,
        summary=summary,
        group="Operation",
        answers={**errors(415), 200: Answer(text="Yes.", contents=text), 503: no},
    )


def _service(message: bytes) -> str:
    try:
        name: str = messages.HealthCheckRequest.FromString(message).service
    except DecodeError as error:
        text = "the bytes are not a HealthCheckRequest"
        raise GrpcError(GrpcCode.INVALID_ARGUMENT, text) from error
    return name
