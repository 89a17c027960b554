"""How long each hook of an op took for one request."""

from __future__ import annotations

from time import perf_counter


class Stopwatch:
    """Milliseconds from lap to lap, the first from its making.

    Attributes:
        laps: name of the lap -> milliseconds.
    """

    __slots__ = ("_last", "laps")

    def __init__(self) -> None:
        self._last = perf_counter()
        self.laps: dict[str, float] = {}

    def lap(self, name: str) -> None:
        """End the running lap under this name and begin the next one."""
        now = perf_counter()
        self.laps[name] = round((now - self._last) * 1000, 3)
        self._last = now
