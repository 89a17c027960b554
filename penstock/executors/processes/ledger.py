"""What one worker was given and has not answered, and what comes of it.

Batches have numbers, in the order of their being sent; none is ever given twice, as the board
compares them. Nothing that the worker says of them is trusted.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final

from penstock.executors.executor import Work
from penstock.executors.processes.answers import simple_answers
from penstock.executors.processes.crossing import outcomes_in
from penstock.executors.processes.frame import Frame, FrameError, Kind
from penstock.executors.processes.handed import Handed
from penstock.request import Batch

_DONE: Final = Kind.DONE
_NOT_SIMPLE: Final = 64
"""Batches, a guess: after answers that were not simple, so many are read one by one."""


class Ledger:
    """See the module.

    Args:
        worker: its number within the op.
        decode: reads an answer.
        done: called when all batches of a Work are answered, the longest out first.

    Attributes:
        sent: the batches that are not answered, frame by frame.
        next: the number of the next batch.
        finished: how many batches it has run and answered.
        has_begun: whether it has begun one.
    """

    def __init__(
        self, worker: int, decode: Callable[[bytes | memoryview], Any], done: Callable[[], None]
    ) -> None:
        self.sent: deque[Handed] = deque()
        self.next = 1
        self.finished = 0
        self.has_begun = False
        self._worker = worker
        self._decode = decode
        self._done = done
        self._simple_from = 0  # batches finished: from then on answers may be simple

    def __repr__(self) -> str:
        return f"<Ledger {self.finished} finished, {len(self)} not answered>"

    def __len__(self) -> int:
        """How many batches are not answered."""
        return sum([len(each.batches) for each in self.sent])

    def add(self, batches: Sequence[Batch], work: Work, *, alone: bool) -> None:
        """These are sent now; ``alone``, whether each has one sample."""
        self.sent.append(Handed(self.next, batches, work, alone=alone))
        self.next += len(batches)

    def begin(self, at: int) -> None:
        """It has begun everything that is wanted up to this number."""
        for handed in self.sent:
            handed.begin(at)
            self.has_begun |= handed.begun >= handed.number

    def begin_first(self) -> None:
        """It may have begun the first one that is wanted; more is not known."""
        first = next((each for each in self.sent if each.number < each.unwanted), None)
        if first is not None:
            first.begin(first.number)
            self.has_begun = True

    def running(self) -> list[tuple[Work, Batch]]:
        """What it has begun and not answered."""
        return [(each.work, batch) for each in self.sent for batch in each.running]

    def answered_at_once(self, frames: Sequence[Frame]) -> int:
        """Take in answers from the first one on where that can be done at once; how many."""
        if not self.sent or self.finished < self._simple_from:
            return 0
        handed = self.sent[0]
        number = handed.number
        count = min(len(frames), len(handed.batches), handed.unwanted - number)
        if not handed.alone or count < 2:
            return 0
        kinds, numbers, bodies = zip(*frames[:count], strict=True)
        if kinds.count(_DONE) != count or numbers != tuple(range(number, number + count)):
            return 0
        answers = simple_answers(bodies)
        if answers is None:
            self._simple_from = self.finished + _NOT_SIMPLE
            return 0
        worker, results = self._worker, handed.work.results
        for batch, (ran, outcome) in zip(handed.finish_several(count), answers, strict=True):
            batch.worker = worker
            batch.ran = ran
            batch.started = None
            results.append((batch, [outcome]))
        self.has_begun = True
        self.finished += count
        self._let_go(handed)
        return count

    def answered(self, number: int, body: bytes | memoryview) -> None:
        """Take in the answer to a batch.

        Raises:
            FrameError: it is none, or none that may come now.
        """
        if not self.sent or self.sent[0].number != number:
            raise FrameError("the worker answers what it was not asked")
        handed = self.sent[0]
        value = self._decode(body)
        if value is None:  # it was taken back
            if number < handed.skippable:
                raise FrameError("the worker did not run what it was to run")
            handed.skip()
        elif number >= handed.unwanted:
            raise FrameError("the worker ran what was taken back")
        else:
            ran, outcomes = outcomes_in(value, len(handed.batches[0].samples))
            batch = handed.finish()
            batch.worker = self._worker
            batch.ran = ran
            batch.started = None
            self.has_begun = True
            self.finished += 1
            handed.work.results.append((batch, outcomes))
        self._let_go(handed)

    def _let_go(self, handed: Handed) -> None:
        if not handed.batches:
            self.sent.popleft()
            if not self.sent or self.sent[0].work is not handed.work:
                self._done()
