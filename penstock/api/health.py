"""What probes are told: alive while the loop turns, ready while requests are accepted."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

LOOK = 0.5
"""Seconds between looks for whoever watches: what is stuck does not say so by itself."""


class Health:
    """The state behind ``/livez``, ``/readyz`` and the gRPC health service, so that all agree."""

    def __init__(self) -> None:
        self._why_not_ready: str | None = "starting"
        self._why_stuck: Callable[[], str | None] = lambda: None
        self._turned = asyncio.Event()

    def watch(self, why_stuck: Callable[[], str | None]) -> None:
        """Ask this at each probe; a text means that requests cannot be answered now."""
        self._why_stuck = why_stuck

    def __repr__(self) -> str:
        return f"<Health {self._why_not_ready or 'ready'}>"

    def set_ready(self) -> None:
        """Every worker of every op is up."""
        self._why_not_ready = None
        self._tell()

    def set_unready(self, why: str) -> None:
        """Stop sending requests here; ``why`` is shown to the prober."""
        self._why_not_ready = why
        self._tell()

    def live(self) -> tuple[bool, str]:
        """Whether the process works at all."""
        return True, "ok"

    def ready(self) -> tuple[bool, str]:
        """Whether requests are accepted, and the reason when they are not."""
        why = self._why_not_ready or self._why_stuck()
        return why is None, why or "ok"

    async def changes(self) -> AsyncIterator[bool]:
        """Whether requests are accepted: now, and again each time that it has changed.

        Has no end. What the service itself decides is told at once, what is stuck within ``LOOK``.
        """
        told: bool | None = None
        while True:
            turned = self._turned
            ready, _ = self.ready()
            if ready is not told:
                told = ready
                yield ready
            try:
                async with asyncio.timeout(LOOK):
                    await turned.wait()
            except TimeoutError:
                continue

    def _tell(self) -> None:
        turned, self._turned = self._turned, asyncio.Event()
        turned.set()
