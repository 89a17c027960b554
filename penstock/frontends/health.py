"""What probes are told: alive while the loop turns, ready while requests are accepted."""

from __future__ import annotations

from collections.abc import Callable


class Health:
    """The state behind ``/livez``, ``/readyz`` and the gRPC health service."""

    def __init__(self) -> None:
        self._why_not_ready: str | None = "starting"
        self._why_stuck: Callable[[], str | None] = lambda: None

    def watch(self, why_stuck: Callable[[], str | None]) -> None:
        """Ask this at each probe; a text means that requests cannot be answered now."""
        self._why_stuck = why_stuck

    def __repr__(self) -> str:
        return f"<Health {self._why_not_ready or 'ready'}>"

    def set_ready(self) -> None:
        """Every worker of every op is up."""
        self._why_not_ready = None

    def set_unready(self, why: str) -> None:
        """Stop sending requests here; ``why`` is shown to the prober."""
        self._why_not_ready = why

    def live(self) -> tuple[bool, str]:
        """Whether the process works at all."""
        return True, "ok"

    def ready(self) -> tuple[bool, str]:
        """Whether requests are accepted, and the reason when they are not."""
        why = self._why_not_ready or self._why_stuck()
        return why is None, why or "ok"
