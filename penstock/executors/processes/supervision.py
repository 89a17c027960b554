"""How the workers of one op are looked after."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Supervision:
    """See the module.

    Attributes:
        kill_late: whether a call beyond its time-out is ended with its worker, rather than left to
            return.
        hang_limit: seconds that a call may go on after nobody waits for it; None for ever.
    """

    kill_late: bool = False
    hang_limit: float | None = 60.0
