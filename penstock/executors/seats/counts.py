"""Counts of a worker's steps: how many requests ran in them, and how long they took. Pure.

They are whole numbers in one array, so that a worker process can have them in shared memory, where
the engine reads them when it is asked: a step costs no message.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, MutableSequence, Sequence
from typing import Any, Final

RUNNING: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
"""Upper bounds of the histogram buckets of the requests in a step; a last bucket has more."""
SECONDS: Final = (
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0,
    10.0,
)  # fmt: skip
"""The same for the duration of a step."""

SECONDS_AT: Final = len(RUNNING) + 1
"""Where the numbers begin that are of durations: their buckets, the sum of all requests, and the
sum of all durations in nanoseconds.
"""
SIZE: Final = SECONDS_AT + len(SECONDS) + 1 + 2


class StepCounts:
    """See the module.

    Args:
        numbers: where they are counted, SIZE numbers; anything that takes whole numbers by index.

    Attributes:
        numbers: the same.
    """

    __slots__ = ("numbers",)

    def __init__(self, numbers: MutableSequence[int] | Any = None) -> None:
        self.numbers: Any = [0] * SIZE if numbers is None else numbers

    def add(self, running: int, seconds: float) -> None:
        """A step of so many requests has taken so long."""
        numbers = self.numbers
        numbers[bisect_left(RUNNING, running)] += 1
        numbers[SECONDS_AT + bisect_left(SECONDS, seconds)] += 1
        numbers[SIZE - 2] += running
        numbers[SIZE - 1] += int(1e9 * seconds)


def added(counts: Iterable[Sequence[int]]) -> list[int]:
    """The sum of several workers' numbers."""
    return [sum(each) for each in zip([0] * SIZE, *counts, strict=True)]
