"""A pipeline protocol without an engine: it records the calls, which the test answers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Container
from functools import partial
from typing import Any

from penstock.api.pipeline import Port
from penstock.errors import RequestError
from penstock.protocols import paddle


class HeldProtocol:
    """See the module; the part of ``PipelineProtocol`` that its routes use.

    Attributes:
        names: of the services.
        calls: all of them, in their order.
        timeouts: those of their callers, in seconds.
        arrived: released by each call.
        dropped: number of calls whose callers have disconnected.
    """

    prepare = staticmethod(paddle.prepare)
    threads = None

    def __init__(self, names: Container[str] = ()) -> None:
        self.names = names
        self.calls: list[paddle.Call] = []
        self.timeouts: list[float | None] = []
        self.arrived = asyncio.Semaphore(0)
        self.dropped = 0
        self._held: list[tuple[Port, Any]] = []
        self._answer: tuple[paddle.Reply | None, RequestError | None] | None = None

    def start(
        self, call: paddle.Call, timeout: float | None, port: Port, context: Any
    ) -> Callable[[], None]:
        """Hold a call; after ``answer``, answer it."""
        self.calls.append(call)
        self.timeouts.append(timeout)
        self.arrived.release()
        held = port, context
        if self._answer is None:
            self._held.append(held)
        else:
            port.done(context, *self._answer)
        return partial(self._drop, held)

    def answer(self, answer: paddle.Reply | RequestError) -> None:
        """Answer the held calls, and later ones at once."""
        self._answer = (None, answer) if isinstance(answer, RequestError) else (answer, None)
        while self._held:
            port, context = self._held.pop(0)
            port.done(context, *self._answer)

    def own_fields(self, name: str) -> tuple[str, ...]:
        """No message has fields of its author's own."""
        return ()

    def as_reply(self, error: RequestError) -> None:
        """Errors are those of the transport."""

    def _drop(self, held: tuple[Port, Any]) -> None:
        if held in self._held:
            self._held.remove(held)
            self.dropped += 1
