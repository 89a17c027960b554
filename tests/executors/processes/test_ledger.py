"""What one worker was given, what it answers, and what is refused of that."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.executors.executor import Work
from penstock.executors.processes.frame import Frame, FrameError, Kind, decode, encode
from penstock.executors.processes.ledger import Ledger
from penstock.request import Batch
from tests.executors.house import batch_of

WORKER = 3


class Open:
    """A ledger, and what it has reported."""

    def __init__(self) -> None:
        self.done = 0
        self.ledger = Ledger(WORKER, decode, self._done)

    def _done(self) -> None:
        self.done += 1

    def send(self, count: int, *, alone: bool = True) -> Work:
        work = Work([batch_of(n) for n in range(count)])
        self.ledger.add(list(work.pending), work, alone=alone)
        return work

    def hear(self, frames: list[Frame]) -> int:
        """All of them; how many were taken in at once."""
        count = self.ledger.answered_at_once(frames) if len(frames) > 1 else 0
        for _, number, body in frames[count:]:
            self.ledger.answered(number, body)
        return count


@pytest.fixture
def open_() -> Open:
    return Open()


def answer(number: int, value: Any = None) -> Frame:
    return Frame(Kind.DONE, number, b"".join(encode([0.5, value or {"n": number}, None, False])))


def skipped(number: int) -> Frame:
    return Frame(Kind.DONE, number, b"".join(encode(None)))


def told(work: Work) -> list[tuple[Batch, int, float, Any]]:
    taken = work.take_results()
    return [(batch, batch.worker, batch.ran, outcome.value) for batch, (outcome,) in taken]


def test_answers_that_come_together_are_those_that_come_one_by_one() -> None:
    heard = []
    for together in (True, False):
        each = Open()
        work = each.send(5)
        batches = list(work.pending)
        frames = [answer(number) for number in range(1, 6)]
        counts = each.hear(frames) if together else [each.hear([frame]) for frame in frames]
        assert counts == (5 if together else [0] * 5)
        results = told(work)
        assert [batch for batch, *_ in results] == batches
        heard.append([rest for _, *rest in results])
        assert (each.ledger.finished, len(each.ledger), each.done) == (5, 0, 1)
        assert work.current is batches[-1]
        assert not work.pending
    assert heard[0] == heard[1] == [[WORKER, 0.5, {"n": n}] for n in range(1, 6)]


def test_a_work_is_reported_when_the_last_of_it_is_answered(open_: Open) -> None:
    first, second = open_.send(2), open_.send(2)
    assert open_.hear([answer(1)]) == 0
    assert open_.done == 0
    open_.hear([answer(2), answer(3)])
    assert open_.done == 1
    open_.hear([answer(4)])
    assert open_.done == 2
    assert (len(told(first)), len(told(second))) == (2, 2)


def test_a_work_in_several_frames_is_reported_once(open_: Open) -> None:
    work = Work([batch_of(n) for n in range(2)])
    for batch in list(work.pending):
        open_.ledger.add([batch], work, alone=True)
    open_.hear([answer(1)])
    assert open_.done == 0
    open_.hear([answer(2)])
    assert open_.done == 1


@pytest.mark.parametrize(
    "frames",
    [
        [answer(2), answer(3)],
        [answer(1), answer(3)],
        [answer(1), answer(1)],
        [answer(1), answer(2), answer(3), answer(4)],
        [skipped(1)],
        [answer(1), skipped(2)],
        [answer(1), answer(2)._replace(body=b"\1\0\0\0\xc1")],
    ],
    ids=["late", "gap", "twice", "too many", "unasked skip", "one of them", "no value"],
)
def test_what_was_not_asked_is_refused_in_company_too(open_: Open, frames: list[Frame]) -> None:
    open_.send(3)
    with pytest.raises(FrameError):
        open_.hear(frames)


def test_what_was_taken_back_may_not_be_answered_in_company_either(open_: Open) -> None:
    open_.send(4)
    open_.ledger.begin(2)
    handed = open_.ledger.sent[0]
    handed.skippable = 3
    assert len(handed.take_back()) == 2
    assert open_.hear([answer(1), answer(2), skipped(3)]) == 2
    with pytest.raises(FrameError, match="taken back"):
        open_.hear([answer(4)])


def test_batches_of_several_samples_are_read_one_by_one(open_: Open) -> None:
    open_.send(2, alone=False)
    assert open_.hear([answer(1), answer(2)]) == 0
    assert open_.done == 1


def test_after_answers_that_are_not_simple_it_is_tried_again_later(open_: Open) -> None:
    open_.send(200)
    array = {"x": np.zeros(2)}
    assert open_.hear([answer(1), answer(2, array)]) == 0
    assert open_.hear([answer(3), answer(4)]) == 0
    for number in range(5, 90):
        open_.hear([answer(number)])
    assert open_.hear([answer(90), answer(91)]) == 2


@given(st.integers(1, 12), st.lists(st.integers(1, 5), max_size=12))
def test_however_answers_are_grouped_what_runs_has_begun_and_the_rest_is_pending(
    count: int, groups: list[int]
) -> None:
    each = Open()
    work = each.send(count)
    everyone = list(work.pending)
    number = 1
    for group in groups:
        upto = min(number + group, count + 1)
        if upto > number:
            each.hear([answer(n) for n in range(number, upto)])
        number = upto
        each.ledger.begin(min(number, count))
        assert list(work.pending) == everyone[number:]
        assert each.ledger.running() == [(work, batch) for batch in everyone[number - 1 : number]]
    assert each.done == (number > count)
