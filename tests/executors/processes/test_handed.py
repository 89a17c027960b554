"""The batches of one frame, from their being sent until each is answered."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.executors.executor import Work
from penstock.executors.processes.handed import Handed
from tests.executors.house import batch_of


@pytest.fixture
def handed() -> Handed:
    return handed_of(3)


def handed_of(count: int) -> Handed:
    batches = [batch_of(n) for n in range(count)]
    return Handed(5, batches, Work(batches))


def test_what_is_answered_has_begun_though_nobody_saw_it_begin(handed: Handed) -> None:
    first, second, third = handed.batches
    assert handed.finish() is first
    assert handed.work.current is first
    assert list(handed.work.pending) == [second, third]
    assert (handed.number, handed.running) == (6, [])


def test_what_was_seen_to_begin_is_begun_once(handed: Handed) -> None:
    first, second, third = handed.batches
    handed.begin(5)
    handed.begin(5)
    assert handed.running == [first]
    handed.finish()
    handed.begin(6)
    assert (handed.running, list(handed.work.pending)) == ([second], [third])


def test_a_batch_of_a_later_frame_says_that_all_of_this_one_have_begun(handed: Handed) -> None:
    everyone = list(handed.batches)
    handed.begin(100)
    assert handed.running == everyone
    assert not handed.work.pending


def test_what_has_not_begun_is_taken_back_and_never_begins(handed: Handed) -> None:
    first, second, third = handed.batches
    handed.begin(5)
    assert list(handed.waiting()) == [6, 7]
    assert handed.take_back() == [second, third]
    handed.begin(7)
    assert handed.running == [first]
    assert not handed.waiting()
    assert handed.take_back() == []
    assert handed.unwanted == 6


def test_what_is_skipped_by_the_worker_though_it_is_wanted_is_pending_again(
    handed: Handed,
) -> None:
    first, *others = handed.batches
    handed.begin(5)
    handed.skip()
    assert list(handed.work.pending) == [first, *others]
    assert handed.work.current is None
    assert handed.number == 6


def test_what_was_taken_back_and_is_skipped_is_nobodys(handed: Handed) -> None:
    handed.take_back()
    handed.work.pending.clear()
    for _ in range(3):
        handed.skip()
    assert not handed.work.pending
    assert not handed.batches


@given(st.integers(1, 6), st.lists(st.sampled_from(["look", "answer", "take back"]), max_size=20))
def test_every_batch_has_begun_or_is_pending_or_was_taken_back(
    count: int, steps: list[str]
) -> None:
    handed = handed_of(count)
    work, everyone = handed.work, list(handed.batches)
    begun, taken = 0, 0  # by the worker, and by us
    for step in steps:
        left = count - taken
        if step == "look" and begun < left:
            begun += 1
            handed.begin(4 + begun)
        elif step == "answer" and handed.number < 5 + left:
            begun = max(begun, handed.number - 4)
            assert handed.finish() is everyone[handed.number - 6]
        elif step == "take back":
            back = handed.take_back()
            for batch in back:
                work.pending.remove(batch)
            assert back == everyone[begun:left]
            taken += len(back)
        assert list(work.pending) == everyone[begun : count - taken]
        assert handed.running == everyone[handed.number - 5 : begun]
