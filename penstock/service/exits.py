"""How a process has ended; a status below 0 is the number of the signal that killed it."""

from __future__ import annotations

import signal


def as_shell(status: int) -> int:
    """The status that a shell shows: 128 and more for a signal."""
    return status if status >= 0 else 128 - status


def told_of(status: int) -> str:
    """In words."""
    if status >= 0:
        return f"exit status {status}"
    try:
        return f"killed by {signal.Signals(-status).name}"
    except ValueError:
        return f"killed by signal {-status}"
