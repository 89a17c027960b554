"""Health of endpoints: which are skipped, and which is tried first. Pure: time and chance are
arguments.

An endpoint that cannot be reached is skipped for a pause that doubles (``Backoff``). One whose
calls fail ``MOST_FAILURES`` times in a row is ejected for such a pause (``Health``); then a single
call tries it, and its success readmits it. Ejected endpoints are tried last, so that they are used
if all are ejected. Source: gRPC's connection backoff, Envoy's
outlier detection.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum

FIRST_PAUSE = 0.1
"""Seconds; a restarted service is back within a few of these."""

LONGEST_PAUSE = 5.0
"""Seconds; so long may calls fail after the server is back."""

MOST_FAILURES = 5
"""Consecutive failed calls; Envoy's default."""

FIRST_EJECTION, LONGEST_EJECTION = 1.0, 30.0
"""Seconds; a hanging server is detected and restarted between the two."""

TRIAL = 1.0
"""Seconds after which another call may try an ejected endpoint, even if the last one has not
ended."""


class Backoff:
    """The pauses between failures to reach one endpoint. Pure: time and chance are arguments.

    The pause doubles with every consecutive failure and varies by a fifth, so that the clients of a
    restarted server do not all reconnect at the same time.

    Attributes:
        until: monotonic seconds; no attempt before.
    """

    def __init__(self, first: float = FIRST_PAUSE, longest: float = LONGEST_PAUSE) -> None:
        self._first = self._pause = first
        self._longest = longest
        self.until = 0.0

    def failed(self, now: float, chance: float) -> None:
        """Pause from ``now`` on; ``chance`` is 0 to 1."""
        self.until = now + self._pause * (0.8 + 0.4 * chance)
        self._pause = min(2 * self._pause, self._longest)

    def succeeded(self) -> None:
        """Reset the failures: the endpoint answers."""
        self._pause = self._first
        self.until = 0.0


class Health:
    """Whether the calls to one endpoint succeed."""

    def __init__(self) -> None:
        self._failures = 0
        self._on_trial = False
        self._backoff = Backoff(FIRST_EJECTION, LONGEST_EJECTION)

    def takes(self, now: float) -> bool:
        """Whether calls may be sent: it is not ejected, or may be tried again."""
        return self._failures < MOST_FAILURES or now >= self._backoff.until

    def chosen(self, now: float) -> None:
        """A call is sent to it; if the endpoint is ejected, other calls wait for the outcome."""
        if self._failures >= MOST_FAILURES:
            self._on_trial = True
            self._backoff.until = now + TRIAL

    def answered(self) -> None:
        """A call was answered: the endpoint works."""
        if self._failures:
            self._failures = 0
            self._on_trial = False
            self._backoff.succeeded()

    def failed(self, now: float, chance: float) -> bool:
        """A call failed. Returns whether the endpoint is ejected by that; a call that began before
        the ejection does not make it longer.
        """
        if self._failures < MOST_FAILURES:
            self._failures += 1
            if self._failures < MOST_FAILURES:
                return False
        elif not self._on_trial:
            return False
        self._on_trial = False
        self._backoff.failed(now, chance)
        return True


class State(IntEnum):
    """The state of an endpoint; lower numbers are tried first."""

    READY = 0
    """Connected, and its calls succeed."""
    APART = 1
    """Not connected, for no known reason."""
    OUT = 2
    """Ejected, or it could not be reached a moment ago."""


def in_order(states: Sequence[State], turn: int) -> list[int]:
    """The order in which a call tries the endpoints, as long as none can have processed it.

    Args:
        states: of the endpoints.
        turn: number of calls before: endpoints of equal state take turns.
    """
    size = len(states)
    return sorted(range(size), key=lambda at: (states[at], (at - turn) % size))
