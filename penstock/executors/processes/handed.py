"""The batches of one frame at a worker, from their being sent until each is answered.

Their numbers follow each other, and they are begun and answered in that order; those that are taken
back are the last ones.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final

from penstock.executors.executor import Work
from penstock.request import Batch

_NONE: Final = 1 << 64
"""Above every number."""


class Handed:
    """See the module.

    Args:
        number: the first batch's.
        batches: at least one.
        work: what they belong to.
        alone: whether each of them has one sample.

    Attributes:
        number: of the first batch that is not answered.
        batches: those that are not answered.
        begun: the last number that is known to have begun.
        skippable: the first number that we have tried to take back.
        unwanted: the first number that we have taken back.
    """

    __slots__ = ("alone", "batches", "begun", "number", "skippable", "unwanted", "work")

    def __init__(
        self, number: int, batches: Sequence[Batch], work: Work, *, alone: bool = False
    ) -> None:
        self.number = number
        self.batches = deque(batches)
        self.work = work
        self.alone = alone
        self.begun = number - 1
        self.skippable = self.unwanted = _NONE

    def __repr__(self) -> str:
        waiting = len(self.batches) - len(self.running)
        return f"<Handed {self.number}: {len(self.running)} begun, {waiting} not>"

    @property
    def running(self) -> list[Batch]:
        """Those that have begun: one, unless the worker breaks the rules."""
        return list(self.batches)[: max(0, self.begun - self.number + 1)]

    def begin(self, at: int) -> None:
        """The worker has begun everything up to this number, but what was taken back."""
        last = min(at, self.unwanted - 1, self.number + len(self.batches) - 1)
        if self.begun < last:
            work, pending = self.work, self.work.pending
            for _ in range(last - self.begun):
                work.current = pending.popleft()
            self.begun = last
            assert work.current is self.batches[last - self.number]

    def waiting(self) -> range:
        """The numbers of those that can be taken back: wanted, and not begun as far as we know."""
        first = max(self.begun + 1, self.number)
        return range(first, min(self.unwanted, self.number + len(self.batches)))

    def take_back(self) -> list[Batch]:
        """Those that can be taken back; they are not wanted any more."""
        numbers = self.waiting()
        if numbers:
            self.unwanted = numbers[0]
        return [self.batches[number - self.number] for number in numbers]

    def finish(self) -> Batch:
        """The first has run, and is answered."""
        number = self.number
        batch = self.batches.popleft()
        if self.begun < number:
            self.begun = number
            work = self.work
            work.current = work.pending.popleft()
            assert work.current is batch
        self.number = number + 1
        return batch

    def finish_several(self, count: int) -> list[Batch]:
        """So many, all of them wanted, have run and are answered."""
        self.begin(self.number + count - 1)
        self.number += count
        pop = self.batches.popleft
        return [pop() for _ in range(count)]

    def skip(self) -> None:
        """The first was not run, and is answered; if it is wanted yet it is not begun after all."""
        number, work = self.number, self.work
        batch = self.batches.popleft()
        if number < self.unwanted and number <= self.begun:
            work.pending.appendleft(batch)
            work.current = None
            batch.started = None
        self.begun = max(self.begun, number)
        self.number = number + 1
