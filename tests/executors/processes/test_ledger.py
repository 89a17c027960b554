"""What one worker was given, what it answers, and what is refused of that."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.executors.executor import Work
from penstock.executors.processes.frame import (
    LENGTH,
    Frame,
    FrameError,
    Kind,
    decode,
    encode,
    listed,
)
from penstock.executors.processes.ledger import Ledger
from penstock.request import Batch
from tests.executors.house import batch_of

WORKER = 3


class Open:
    """A ledger, what it has reported, and how many bodies it had read in the general way."""

    def __init__(self) -> None:
        self.done = 0
        self.decoded = 0
        self.ledger = Ledger(WORKER, self._decode, self._done)

    def _decode(self, body: bytes | memoryview) -> Any:
        self.decoded += 1
        return decode(body)

    def _done(self) -> None:
        self.done += 1

    def send(self, count: int, *, alone: bool = True) -> Work:
        work = Work([batch_of(n) for n in range(count)])
        self.ledger.add(list(work.pending), work, alone=alone)
        return work

    def hear(self, frames: list[Frame]) -> bool:
        """One by one if it is one, else together; whether it was in the simple way."""
        before = self.decoded
        if len(frames) > 1:
            self.ledger.answered_several(frames[0].number, together(frames))
        else:
            self.ledger.answered(frames[0].number, frames[0].body)
        return self.decoded == before

    def foresee(self, frames: list[Frame]) -> None:
        self.ledger.foresee(frames[0].number, together(frames))


def together(frames: list[Frame]) -> bytes:
    """The body of a frame with all of their answers, which have plain parts only."""
    plain = listed(len(frames), b"".join(bytes(body[LENGTH.size :]) for _, _, body in frames))
    return LENGTH.pack(len(plain)) + plain


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
    for at_once in (True, False):
        each = Open()
        work = each.send(5)
        batches = list(work.pending)
        frames = [answer(number) for number in range(1, 6)]
        simply = [each.hear(group) for group in ([frames] if at_once else [[f] for f in frames])]
        assert simply == ([True] if at_once else [False] * 5)
        results = told(work)
        assert [batch for batch, *_ in results] == batches
        heard.append([rest for _, *rest in results])
        assert (each.ledger.finished, len(each.ledger), each.done) == (5, 0, 1)
        assert work.current is batches[-1]
        assert not work.pending
    assert heard[0] == heard[1] == [[WORKER, 0.5, {"n": n}] for n in range(1, 6)]


def test_the_last_number_that_was_run_is_known(open_: Open) -> None:
    assert open_.ledger.ran == 0
    open_.send(5)
    open_.hear([answer(1)])
    assert open_.ledger.ran == 1
    open_.hear([answer(2), answer(3)])
    assert open_.ledger.ran == 3
    open_.ledger.sent[0].skippable = 4
    open_.ledger.sent[0].take_back()
    open_.hear([skipped(4)])
    assert open_.ledger.ran == 3


def test_that_nothing_was_begun_is_believed_once_of_each_batch() -> None:
    first, other = batch_of(1), batch_of(2)
    for batch, begun in ((first, []), (other, []), (first, [first]), (other, [other])):
        each = Open()
        work = Work([batch])
        each.ledger.add([batch], work, alone=True)
        each.ledger.doubt()
        assert [running for _, running in each.ledger.running()] == begun
    each = Open()
    work = each.send(2)
    each.ledger.begin(1)
    each.ledger.doubt()  # there is nothing to doubt
    assert [running.deaths for _, running in each.ledger.running()] == [0]
    assert [batch.deaths for batch in work.pending] == [0]


def test_a_work_is_reported_when_the_last_of_it_is_answered(open_: Open) -> None:
    first, second = open_.send(2), open_.send(2)
    open_.hear([answer(1)])
    assert open_.done == 0
    open_.hear([answer(2)])
    assert open_.done == 1
    open_.hear([answer(3), answer(4)])
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
        [answer(0), answer(1)],
        [answer(1), answer(2), answer(3), answer(4)],
        [skipped(1)],
        [answer(1), skipped(2)],
        [answer(1), answer(2)._replace(body=b"\1\0\0\0\xc1")],
        [answer(1), answer(2)._replace(body=b"\1\0\0\0\1")],
        [answer(2)],
    ],
    ids=["late", "early", "too many", "unasked skip", "one of them", "no value", "none", "alone"],
)
def test_what_was_not_asked_is_refused_in_company_too(open_: Open, frames: list[Frame]) -> None:
    open_.send(3)
    with pytest.raises(FrameError):
        open_.hear(frames)


@pytest.mark.parametrize("body", [b"".join(encode(value)) for value in ({}, None, 1, "list")])
def test_what_is_no_list_is_refused(open_: Open, body: bytes) -> None:
    open_.send(3)
    with pytest.raises(FrameError):
        open_.ledger.answered_several(1, body)


def test_an_empty_list_answers_nothing(open_: Open) -> None:
    open_.send(3)
    open_.ledger.answered_several(1, b"".join(encode([])))
    assert (open_.ledger.finished, len(open_.ledger)) == (0, 3)


def test_answers_reach_no_further_than_one_frame(open_: Open) -> None:
    open_.send(2)
    open_.send(2)
    with pytest.raises(FrameError, match="more than"):
        open_.hear([answer(number) for number in range(1, 5)])


def test_what_was_taken_back_may_not_be_answered_in_company_either(open_: Open) -> None:
    open_.send(4)
    open_.ledger.begin(2)
    handed = open_.ledger.sent[0]
    handed.skippable = 3
    assert len(handed.take_back()) == 2
    open_.hear([answer(1), answer(2), skipped(3)])
    with pytest.raises(FrameError, match="taken back"):
        open_.hear([answer(4)])
    assert open_.ledger.finished == 2


def test_simple_answers_to_what_was_taken_back_are_refused(open_: Open) -> None:
    open_.send(4)
    open_.ledger.begin(2)
    handed = open_.ledger.sent[0]
    handed.skippable = 3
    handed.take_back()
    with pytest.raises(FrameError, match="taken back"):
        open_.hear([answer(number) for number in range(1, 5)])


def test_batches_of_several_samples_are_read_in_the_general_way(open_: Open) -> None:
    open_.send(2, alone=False)
    assert not open_.hear([answer(1), answer(2)])
    assert open_.done == 1


def test_after_answers_that_are_not_simple_it_is_tried_again_later(open_: Open) -> None:
    open_.send(200)
    assert not open_.hear([answer(1), answer(2, {"x": ["a"]})])
    assert not open_.hear([answer(3), answer(4)])
    for number in range(5, 90):
        open_.hear([answer(number)])
    assert open_.hear([answer(90), answer(91)])


def test_what_is_foreseen_is_taken_once(open_: Open) -> None:
    work = open_.send(6)
    everything = [answer(number) for number in range(1, 7)]
    for count in (2, 2, 4):
        open_.foresee(everything[:count])
        assert open_.ledger.finished == count
    open_.hear(everything[:5])
    assert open_.ledger.finished == 5
    open_.foresee(everything[:5])  # not cleared yet
    assert open_.ledger.finished == 5
    open_.hear(everything[5:])
    assert [value for *_, value in told(work)] == [{"n": number} for number in range(1, 7)]
    assert open_.done == 1


def test_what_follows_others_that_are_not_read_yet_is_not_foreseen(open_: Open) -> None:
    open_.send(2)
    open_.send(3)
    open_.foresee([answer(3), answer(4)])
    assert open_.ledger.finished == 0
    open_.hear([answer(1), answer(2)])
    open_.foresee([answer(3), answer(4)])
    assert open_.ledger.finished == 4


def test_while_nothing_is_out_nothing_is_foreseen(open_: Open) -> None:
    open_.foresee([answer(1)])
    assert open_.ledger.finished == 0


def test_the_last_answer_of_a_frame_is_not_kept_but_sent(open_: Open) -> None:
    open_.send(2)
    with pytest.raises(FrameError, match="more than"):
        open_.foresee([answer(1), answer(2)])


def test_what_was_foreseen_is_sent(open_: Open) -> None:
    open_.send(4)
    open_.foresee([answer(1), answer(2), answer(3)])
    with pytest.raises(FrameError, match="kept"):
        open_.hear([answer(1), answer(2)])


def test_what_was_foreseen_is_sent_once(open_: Open) -> None:
    open_.send(5)
    open_.foresee([answer(1), answer(2)])
    open_.hear([answer(1), answer(2)])
    with pytest.raises(FrameError, match="not asked"):
        open_.hear([answer(1), answer(2)])


@given(
    st.lists(st.tuples(st.sampled_from(["foresee", "begin", "send"]), st.integers(0, 9))),
    st.lists(st.booleans(), min_size=10, max_size=10),
)
def test_however_often_one_looks_each_answer_is_taken_once_and_in_order(
    steps: list[tuple[str, int]], simple: list[bool]
) -> None:
    each = Open()
    work = each.send(10)
    values = [{"n": n} if simple[n] else {"n": [n]} for n in range(10)]
    frames = [answer(n + 1, values[n]) for n in range(10)]
    kept = ran = 0  # the first that is kept, and the first that has not run
    for step, upto in steps:
        ran = max(ran, upto)
        if step == "begin":
            each.ledger.begin(ran + 1)
        elif ran > kept:
            each.foresee(frames[kept:ran])
            assert each.ledger.finished == ran
            if step == "send":
                each.ledger.answered_several(kept + 1, together(frames[kept:ran]))
                kept = ran
    each.ledger.answered_several(kept + 1, together(frames[kept:]))
    assert [value for *_, value in told(work)] == values
    assert (each.done, each.ledger.finished) == (1, 10)


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
