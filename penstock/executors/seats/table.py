"""Seats: decides which requests of one worker join, run in the next step, and leave.

Pure: it calls no user code and knows no threads, sockets or clocks.

    ask -> next -> joined -> (fits) -> run -> ready, step after step -> left

Guarantees:
    - requests join in the order in which they asked; one that does not fit yet waits, and none
      overtakes it;
    - never more than ``count`` have joined at once, and none waits beside a free seat unless an
      earlier one does not fit;
    - a request runs in each step, in the order of joining, unless its reader is slow;
    - a request that is not wanted any more is given out by ``leaving`` once, and never runs again.
"""

from __future__ import annotations

from collections import deque
from typing import Generic, Protocol, TypeVar


class Asking(Protocol):
    """A request, as its table sees it."""

    @property
    def unwanted(self) -> bool:
        """Whether no further piece of it is wanted."""

    @property
    def held_up(self) -> bool:
        """Whether its reader is slow, so that it must not run now."""


A = TypeVar("A", bound=Asking)


class Seats(Generic[A]):
    """See the module.

    Args:
        count: the number of seats.

    Attributes:
        running: those that run, in the order of joining.
        fitting: one that has joined, and does not fit yet; None: there is none.
    """

    __slots__ = ("_count", "_waiting", "fitting", "running")

    def __init__(self, count: int) -> None:
        self._count = count
        self._waiting: deque[A] = deque()
        self.running: list[A] = []
        self.fitting: A | None = None

    @property
    def joined(self) -> list[A]:
        """All that have a seat."""
        return self.running if self.fitting is None else [*self.running, self.fitting]

    def ask(self, one: A) -> None:
        """A request asks for a seat."""
        self._waiting.append(one)

    def next(self) -> A | None:
        """The request that joins now; None if none can."""
        if self.fitting is not None or len(self.running) >= self._count or not self._waiting:
            return None
        return self._waiting.popleft()

    def sit(self, one: A, *, runs: bool = True) -> None:
        """A request has joined, and runs from the next step on, or does not fit yet."""
        if runs:
            self.running.append(one)
        else:
            self.fitting = one

    def fit(self) -> None:
        """The one that did not fit does now."""
        assert self.fitting is not None
        self.running.append(self.fitting)
        self.fitting = None

    def leaving(self) -> list[A]:
        """Take out those that have joined and are not wanted any more."""
        found = [one for one in self.running if one.unwanted]
        for one in found:
            self.running.remove(one)
        if self.fitting is not None and self.fitting.unwanted:
            found.append(self.fitting)
            self.fitting = None
        return found

    def withdrawn(self) -> list[A]:
        """Take out those that wait and are not wanted any more."""
        found = [one for one in self._waiting if one.unwanted]
        for one in found:
            self._waiting.remove(one)
        return found

    def ready(self) -> list[A]:
        """Those that run in the next step; not those that were cancelled while others joined."""
        return [one for one in self.running if not (one.unwanted or one.held_up)]

    def leave(self, one: A) -> None:
        """A request has ended, or failed."""
        if one is self.fitting:
            self.fitting = None
        else:
            self.running.remove(one)

    def empty(self) -> tuple[list[A], list[A]]:
        """Take out all: those that have joined, and those that wait."""
        joined, waiting = [*self.joined], [*self._waiting]
        self.running.clear()
        self._waiting.clear()
        self.fitting = None
        return joined, waiting

    @property
    def has_work(self) -> bool:
        """Whether there is something to do without a further event."""
        fitting, waiting = self.fitting, self._waiting
        if fitting is None:
            joins = bool(waiting) and len(self.running) < self._count
        else:
            joins = fitting.unwanted or not self.running
        return (
            joins
            or any(one.unwanted or not one.held_up for one in self.running)
            or any(one.unwanted for one in waiting)
        )
