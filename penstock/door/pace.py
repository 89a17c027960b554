"""Whether a client takes what waits for it fast enough.

A client has a while to begin, and what it takes buys it more at a pace, but never more than that
while from now on: so neither one that stops nor one that takes a byte now and then goes on for
long, and one that was quick before has no advantage of it.
"""

from __future__ import annotations


class Pace:
    """One client's taking.

    Args:
        taken: bytes until now.
        now: monotonic seconds.
        patience: seconds that it has.
    """

    __slots__ = ("_patience", "_taken", "_until")

    def __init__(self, taken: int, now: float, patience: float) -> None:
        self._taken = taken
        self._patience = patience
        self._until = now + patience

    def is_late(self, taken: int, now: float, pace: float) -> bool:
        """Whether its time is over.

        Args:
            taken: bytes until now.
            now: not before that of the last call.
            pace: bytes that buy a second.
        """
        until = self._until + max(taken - self._taken, 0) / pace
        self._taken = taken
        self._until = min(until, now + self._patience)
        return now >= self._until
