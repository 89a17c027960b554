"""How long a call may take, all of its attempts together."""

from __future__ import annotations

import math
import time


def deadline_after(timeout: float | None) -> float | None:
    """Monotonic seconds at which the timeout ends; None when there is none.

    Raises:
        ValueError: zero, negative, infinite or not a number.
    """
    if timeout is None:
        return None
    if not (math.isfinite(timeout) and timeout > 0):
        raise ValueError(f"timeout must be a positive number of seconds or None, got {timeout}")
    return time.monotonic() + timeout


def time_left(deadline: float | None) -> float | None:
    """Seconds from now, never negative; None without a deadline."""
    return None if deadline is None else max(0.0, deadline - time.monotonic())
