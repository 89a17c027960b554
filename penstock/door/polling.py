"""Decides how long an idle loop polls before it sleeps. Pure."""

from __future__ import annotations

from typing import Final

_WEIGHT: Final = 1 / 8
"""Weight of the last cycle in the moving average: one long cycle among short ones has no effect."""

_MAX_CYCLE: Final = 3.0
"""Maximum length of a counted cycle, in limits, so that a few short cycles outweigh a long one."""


class BusyPolling:
    """Decides how long an idle loop polls for the next request before it sleeps.

    Waking up costs more than polling: the scheduler's latency, and cold caches. For one client that
    sends its next request at once, a polling loop answers a gRPC echo in two thirds of the time. A
    loop with few requests must not use a core for that, so the length of recent cycles decides, as
    in KVM's halt polling (``Documentation/virt/kvm/halt-polling.rst``). Reads no clock.

    Args:
        limit: maximum seconds of polling. The loop polls only if recent cycles, from one idle time
            to the next, were shorter on average. 0 disables polling.
    """

    def __init__(self, limit: float) -> None:
        self._limit = limit
        self._mean = _MAX_CYCLE * limit
        self._last_idle = 0.0

    def until(self, now: float) -> float:
        """Return when a loop that is idle at ``now`` stops polling; ``now`` for no polling."""
        limit = self._limit
        cycle = min(now - self._last_idle, _MAX_CYCLE * limit)
        self._last_idle = now
        self._mean += (cycle - self._mean) * _WEIGHT
        return now + limit if self._mean < limit else now
