"""When to try an endpoint again. Pure: time and chance are arguments.

The pause doubles with every failure in a row and is blurred, so that the clients of a server that
comes back do not all come back in the same instant.
"""

from __future__ import annotations

FIRST_SECONDS = 0.1
"""A guess: a service that is restarted is back within some of these."""

MOST_SECONDS = 5.0
"""A guess: as long as a caller should be refused after the server is back."""

_BLUR = 0.2


class Backoff:
    """The pauses between failures to reach one endpoint.

    Attributes:
        until: monotonic seconds before which nothing is tried.
    """

    __slots__ = ("_pause", "until")

    def __init__(self) -> None:
        self._pause = FIRST_SECONDS
        self.until = 0.0

    def failed(self, now: float, chance: float) -> None:
        """Pause from ``now`` on; ``chance`` is 0 to 1 and moves the pause by a fifth at most."""
        self.until = now + self._pause * (1 - _BLUR + 2 * _BLUR * chance)
        self._pause = min(2 * self._pause, MOST_SECONDS)

    def succeeded(self) -> None:
        """Forget the failures: the endpoint answers."""
        self._pause = FIRST_SECONDS
        self.until = 0.0

    def __repr__(self) -> str:
        return f"<Backoff until {self.until:.3f}, then {self._pause:.1f} s>"
