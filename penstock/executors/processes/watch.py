"""Whether a worker hangs. Pure: it is told what the worker does and how much time has passed.

A call that somebody waits for may take as long as it likes. Two things are a hang: a batch that an
idle worker does not begin, and one that goes on long after the last who waited for it has left. A
start is one when it takes longer than it may, and is told of long before.

Time is told in steps, none longer than the usual one: an engine that was stopped together with its
workers, or got no processor for a while, does not take its own absence for their hanging.
"""

from __future__ import annotations

from typing import Final, NamedTuple

BEGIN_LIMIT: Final = 5.0
"""Seconds within which a worker begins a batch that it could run, unless a shorter ``hang_limit``
says so; a guess far above the milliseconds that it takes on a machine that is under load."""
BEGIN_LEAST: Final = 1.0
"""Seconds that it is given for that however short ``hang_limit`` is: several looks, so that the one
after a time in which nobody ran, we or it, does not decide alone. Fresh workers that were ended too
early would give the op up."""

TOLD_AFTER: Final = 30.0
"""Seconds after which a start that goes on is told of for the first time; a guess at what makes
people wonder."""


class Doing(NamedTuple):
    """What a worker has at hand.

    Attributes:
        number: of the batch.
        begun: whether it runs.
        wanted: whether somebody still waits for it.
    """

    number: int
    begun: bool
    wanted: bool


class Start:
    """One worker's start.

    Args:
        limit: seconds that it may take; None for ever.

    Attributes:
        taken: seconds so far.
    """

    __slots__ = ("_limit", "_tell_at", "taken")

    def __init__(self, limit: float | None) -> None:
        self.taken = 0.0
        self._limit = limit
        self._tell_at = TOLD_AFTER

    @property
    def is_too_long(self) -> bool:
        """Whether it has taken longer than it may."""
        return self._limit is not None and self.taken >= self._limit

    def look(self, passed: float) -> bool:
        """Whether it is time to tell that it goes on: each time after twice as long.

        Args:
            passed: seconds since the last look.
        """
        self.taken += passed
        if self.taken < self._tell_at:
            return False
        self._tell_at *= 2
        return True


class Watch:
    """One worker's.

    Args:
        hang_limit: seconds that a batch may go on after nobody waits for it; None for ever. One
            that is not begun may not, beyond BEGIN_LIMIT.
    """

    __slots__ = ("_begin_limit", "_doing", "_for", "_hang_limit")

    def __init__(self, hang_limit: float | None) -> None:
        self._hang_limit = hang_limit
        self._begin_limit = min(BEGIN_LIMIT, max(BEGIN_LEAST, hang_limit or BEGIN_LIMIT))
        self._doing: Doing | None = None
        self._for = 0.0

    def look(self, doing: Doing | None, passed: float) -> str | None:
        """What the worker does wrong, in words; None when that is nothing.

        Args:
            doing: None when it is idle.
            passed: seconds since the last look.
        """
        if doing != self._doing:
            self._doing = doing
            self._for = 0.0
            return None
        self._for += passed
        limit = self._hang_limit
        if doing is None:
            return None
        if not doing.begun:
            if self._for >= self._begin_limit:
                return f"was idle, and has not begun a batch within {self._begin_limit:g} s"
        elif not doing.wanted and limit is not None and self._for >= limit:
            return f"runs a call that nobody has waited for these {limit:g} s"
        return None
