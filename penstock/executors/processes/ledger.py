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
from penstock.executors.processes.frame import FrameError
from penstock.executors.processes.handed import Handed
from penstock.request import Batch, Outcome

_NONE: Final = -1
"""Below every number."""
_DENIED: Final = 2
"""Deaths of workers which say that they had not begun a batch."""
_NOT_SIMPLE: Final = 64
"""Batches, a guess: after answers that were not simple, so many are read in the general way."""


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
        ran: the number of the last batch that it has run and answered.
        has_begun: whether it has begun one.
    """

    def __init__(
        self, worker: int, decode: Callable[[bytes | memoryview], Any], done: Callable[[], None]
    ) -> None:
        self.sent: deque[Handed] = deque()
        self.next = 1
        self.finished = 0
        self.ran = 0
        self.has_begun = False
        self._worker = worker
        self._decode = decode
        self._done = done
        self._simple_from = 0  # batches finished: from then on answers may be simple
        self._foreseen = _NONE  # the last number whose answer was taken before it was sent

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

    def doubt(self) -> None:
        """It has died. If by its word it had begun nothing of what is here, that is not believed
        when it is said of the same batch again: one that wipes the board would be run for ever.
        """
        first = self._first_wanted()
        if first is not None and not first.running:
            first.batches[0].deaths += 1
            if first.batches[0].deaths >= _DENIED:
                self.begin_first()

    def begin_first(self) -> None:
        """It may have begun the first one that is wanted; more is not known."""
        first = self._first_wanted()
        if first is not None:
            first.begin(first.number)
            self.has_begun = True

    def _first_wanted(self) -> Handed | None:
        return next((each for each in self.sent if each.number < each.unwanted), None)

    def running(self) -> list[tuple[Work, Batch]]:
        """What it has begun and not answered."""
        return [(each.work, batch) for each in self.sent for batch in each.running]

    def answered_several(self, number: int, body: bytes | memoryview) -> None:
        """Take in the answers to batches in a row, but those that were ``foreseen``.

        Raises:
            FrameError: they are none, or none that may come now.
        """
        known = 0
        if number <= self._foreseen:
            known, self._foreseen = self._foreseen - number + 1, _NONE
        if self._take_several(number, body, known) < known:
            raise FrameError("the worker did not send what it had kept")

    def foresee(self, number: int, body: bytes | memoryview) -> None:
        """Take in answers, as far as they are new, which will be sent again if the worker lives.

        Raises:
            FrameError: they are none, or none that may come now.
        """
        first = self.sent[0].number if self.sent else 0
        if number > first:  # they follow others, which were sent and are not read yet
            return
        count = self._take_several(number, body, first - number, most=len(self.sent[0].batches) - 1)
        self._foreseen = number + count - 1

    def _take_several(
        self, number: int, body: bytes | memoryview, known: int, most: int | None = None
    ) -> int:
        """Take in all but so many, which are known; how many there are."""
        handed = self.sent[0] if self.sent else None
        simple = self._simple(handed, number, body)
        values = self._decode(body) if simple is None else simple
        if type(values) is not list:
            raise FrameError("the worker's answers are no list")
        count = len(values)
        if count <= known:
            return count
        if handed is None or handed.number != number + known:
            raise FrameError("the worker answers what it was not asked")
        if count - known > (len(handed.batches) if most is None else most):
            raise FrameError("the worker answers more than it was asked")
        if simple is not None:
            self._take_simple(handed, simple[known:] if known else simple)
        else:
            for at in range(known, count):
                self._take(handed, number + at, values[at])
        self._let_go(handed)
        return count

    def _simple(
        self, handed: Handed | None, number: int, body: bytes | memoryview
    ) -> list[tuple[float, Outcome]] | None:
        """The answers, where all are simple and wanted."""
        if handed is None or not handed.alone or self.finished < self._simple_from:
            return None
        simple = simple_answers(body)
        if simple is None:
            self._simple_from = self.finished + _NOT_SIMPLE
        elif number + len(simple) > handed.unwanted:
            return None
        return simple

    def _take_simple(self, handed: Handed, answers: list[tuple[float, Outcome]]) -> None:
        worker, results = self._worker, handed.work.results
        count = len(answers)
        for batch, (ran, outcome) in zip(handed.finish_several(count), answers, strict=True):
            batch.worker = worker
            batch.ran = ran
            batch.started = None
            results.append((batch, [outcome]))
        self.has_begun = True
        self.ran = handed.number - 1
        self.finished += count

    def answered(self, number: int, body: bytes | memoryview) -> None:
        """Take in the answer to a batch.

        Raises:
            FrameError: it is none, or none that may come now.
        """
        if not self.sent or self.sent[0].number != number:
            raise FrameError("the worker answers what it was not asked")
        handed = self.sent[0]
        self._take(handed, number, self._decode(body))
        self._let_go(handed)

    def _take(self, handed: Handed, number: int, value: Any) -> None:
        """The answer to the first batch of these."""
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
            self.ran = number
            self.finished += 1
            handed.work.results.append((batch, outcomes))

    def _let_go(self, handed: Handed) -> None:
        if not handed.batches:
            self.sent.popleft()
            if not self.sent or self.sent[0].work is not handed.work:
                self._done()
