"""Which replicas are ejected, and when they are tried again."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.client.errors import CallFailed
from penstock.client.outliers import INTERVAL, LEAST_CALLS, Outliers, Verdict, verdict_of
from penstock.protocols.status import GrpcCode

GOOD, FAULT, LATE, NOTHING = Verdict.GOOD, Verdict.FAULT, Verdict.LATE, Verdict.NOTHING
MIDDLE = 0.5  # a chance that leaves pauses as they are


def feed(made: Outliers, replica: int, *verdicts: Verdict, now: float = 0.0) -> None:
    for each in verdicts:
        made.ended(replica, each, now, MIDDLE)


def out(made: Outliers, now: float, count: int = 3) -> list[int]:
    return [at for at in range(count) if made.is_out(at, now)]


@pytest.mark.parametrize("verdict", [FAULT, LATE])
def test_five_failures_in_a_row_eject_for_a_second(verdict: Verdict) -> None:
    made = Outliers(3)
    feed(made, 1, *[verdict] * 4, GOOD, *[verdict] * 4, NOTHING)
    assert out(made, 0.0) == []
    assert made.ended(1, verdict, 0.0, MIDDLE) == (1, None)
    assert out(made, 0.0) == [1]
    assert out(made, 0.99) == [1]
    assert out(made, 1.0) == []


def test_one_call_tries_it_after_the_pause_and_decides() -> None:
    made = Outliers(3)
    feed(made, 0, *[FAULT] * 5)
    feed(made, 0, GOOD, now=0.5)  # it began before
    assert out(made, 0.5) == [0]
    made.chosen(0, 1.5)
    assert out(made, 1.6) == [0]  # the others wait for the outcome
    feed(made, 0, FAULT, now=2.0)
    assert out(made, 3.9) == [0]  # two seconds now
    made.chosen(0, 4.1)
    feed(made, 0, GOOD, now=4.2)
    assert out(made, 4.2) == []
    # The next pause is longer still, unless it has worked for some time.
    feed(made, 0, *[FAULT] * 5, now=4.3)
    assert out(made, 8.2) == [0]
    assert out(made, 8.4) == []


def test_pauses_have_an_end_and_shrink_while_it_works() -> None:
    made = Outliers(1)
    now = 0.0
    for _ in range(30):
        made.chosen(0, now)
        feed(made, 0, *[FAULT] * 5, now=now)
        now += 40.0
        assert out(made, now, 1) == []
    made.chosen(0, now)
    for _ in range(20):
        feed(made, 0, GOOD, now=now)
        now += INTERVAL + 1
    feed(made, 0, *[FAULT] * 5, now=now)
    assert out(made, now + 0.9, 1) == [0]
    assert out(made, now + 1.1, 1) == []


def shares(made: Outliers, faults: dict[int, float], calls: int, begin: float) -> None:
    """Calls over one interval, of which these shares fail, never five in a row."""
    for number in range(calls):
        now = begin + number * (INTERVAL - 1) / calls
        for at, share in faults.items():
            fails = int(number * share) != int((number + 1) * share)
            made.ended(at, FAULT if fails else GOOD, now, MIDDLE)
    made.ended(min(faults), GOOD, begin + INTERVAL, MIDDLE)


def test_an_ejection_by_a_share_is_told_with_it() -> None:
    made = Outliers(2)
    made.ended(0, GOOD, 100.0, MIDDLE)
    for number in range(200):
        made.ended(0, GOOD, 101.0, MIDDLE)
        made.ended(1, FAULT if number % 4 == 0 else GOOD, 101.0, MIDDLE)
    assert made.ended(0, GOOD, 110.0, MIDDLE) == (1, 0.25)


def test_a_larger_share_of_failures_than_of_the_others_ejects_the_worst() -> None:
    made = Outliers(3)
    shares(made, {0: 0.0, 1: 0.2, 2: 0.25}, 2 * LEAST_CALLS, 100.0)
    assert out(made, 110.1) == [2]
    shares(made, {0: 0.0, 1: 0.2}, 2 * LEAST_CALLS, 110.2)
    assert out(made, 120.3) == [1]


@pytest.mark.parametrize(
    ("faults", "calls"),
    [
        ({0: 0.3, 1: 0.3, 2: 0.3}, 1000),  # all are in trouble
        ({0: 0.0, 1: 0.03, 2: 0.0}, 3000),  # too little to matter
        ({0: 0.0, 1: 0.3, 2: 0.0}, LEAST_CALLS - 1),  # too few calls
        ({0: 0.10, 1: 0.2, 2: 0.12}, LEAST_CALLS + 10),  # perhaps by chance
    ],
)
def test_what_says_nothing_ejects_none(faults: dict[int, float], calls: int) -> None:
    made = Outliers(3)
    shares(made, faults, calls, 100.0)
    assert out(made, 110.1) == []


def test_calls_of_long_ago_do_not_count() -> None:
    made = Outliers(2)
    for number in range(400):
        made.ended(0, GOOD, 100.0, MIDDLE)
        made.ended(1, FAULT if number % 4 == 0 else GOOD, 100.0, MIDDLE)
    made.ended(0, GOOD, 130.0, MIDDLE)
    assert out(made, 130.0, 2) == []


def test_equally_bad_replicas_are_hardly_ever_ejected_by_their_shares() -> None:
    chance, ejected = random.Random(7), 0
    for _run in range(300):
        made = Outliers(3)
        made.ended(0, GOOD, 100.0, MIDDLE)
        for number in range(150):
            for at in range(3):
                fails = chance.random() < 0.1
                made.ended(at, FAULT if fails else GOOD, 101.0 + number / 150, MIDDLE)
        before = len(out(made, 109.0))
        made.ended(0, GOOD, 110.5, MIDDLE)
        ejected += len(out(made, 110.5)) - before
    assert ejected <= 1


@given(st.lists(st.tuples(st.integers(0, 2), st.sampled_from([*Verdict, None]), st.floats(0, 3))))
def test_after_the_longest_pause_every_replica_may_be_tried(
    steps: list[tuple[int, Verdict | None, float]],
) -> None:
    made, now = Outliers(3), 0.0
    for at, verdict, later in steps:
        now += later
        if verdict is None:
            made.chosen(at, now)
        else:
            made.ended(at, verdict, now, 1.0)
    assert out(made, now + 36.1) == []


@pytest.mark.parametrize(
    ("failed", "verdict"),
    [
        (CallFailed(GrpcCode.UNAVAILABLE, "lost", retryable=True), FAULT),
        (CallFailed(GrpcCode.DEADLINE_EXCEEDED, "late", retryable=True), FAULT),
        (CallFailed(GrpcCode.INTERNAL, "garbage", retryable=True), FAULT),
        (CallFailed(GrpcCode.INTERNAL, "the model fails"), GOOD),
        (CallFailed(GrpcCode.INVALID_ARGUMENT, "no such input"), GOOD),
        (CallFailed(GrpcCode.UNAVAILABLE, "stopping", retryable=True, retry_after=1.0), NOTHING),
        (CallFailed(GrpcCode.UNAVAILABLE, "not reached", retryable=True, sent=False), NOTHING),
        (CallFailed(GrpcCode.CANCELLED, "cancelled"), NOTHING),
    ],
)
def test_what_a_failure_says_about_its_replica(failed: CallFailed, verdict: Verdict) -> None:
    assert verdict_of(failed) is verdict
