"""Cheap batches that have had company wait for more of it, as long as every turn brings some."""

from __future__ import annotations

from penstock.request import Outcome
from tests.engine.test_engine import House, house


def in_company(h: House, of: int = 8) -> None:
    """Its batches were cheap, and many travelled together."""
    for _ in range(50):
        h.engine.stages[0]._hand_over.learn(1e-6)
        h.engine.stages[0]._hand_over.carried(of)


def submit(h: House, count: int = 1) -> None:
    for _ in range(count):
        got: list[Outcome] = []
        h.answers[h.submit(got.append).data_id] = got


def in_turns(h: House, *arrivals: int) -> None:
    """So many requests come in one turn of the loop after the other, then no more."""
    left = list(arrivals)

    def turn() -> None:
        submit(h, left.pop(0))
        if left:
            h.clock.soon(turn)

    h.clock.soon(turn)
    h.clock.run()


def handed_over(h: House) -> list[int]:
    """How many batches each Work carries."""
    return [1 + len(work.pending) for work, _ in h.workers["op"].running]


def test_what_comes_in_the_turns_that_follow_goes_along() -> None:
    h = house()
    in_company(h)
    in_turns(h, 2, 3, 1)
    assert handed_over(h) == [6]
    h.workers["op"].finish()
    h.clock.run()
    assert all(len(got) == 1 for got in h.answers.values())


def test_a_turn_that_brings_nothing_ends_it() -> None:
    h = house()
    in_company(h)
    in_turns(h, 2, 3, 0, 0, 4)
    assert handed_over(h) == [5]


def test_without_company_the_first_turn_hands_over() -> None:
    h = house()
    in_company(h, of=1)
    in_turns(h, 2, 3)
    assert handed_over(h) == [2]


def test_as_many_as_may_travel_together_do_not_wait() -> None:
    h = house()
    in_company(h)
    in_turns(h, 40, 5)
    assert handed_over(h) == [32]


def test_whoever_leaves_meanwhile_is_not_handed_over() -> None:
    h = house()
    in_company(h)
    got: list[Outcome] = []
    asked = h.submit(got.append)
    submit(h)
    h.clock.soon(lambda: h.engine.cancel(asked))
    h.clock.run()
    assert handed_over(h) == [1]


def test_a_service_that_drains_meanwhile_answers_them_all() -> None:
    h = house()
    in_company(h)
    submit(h, 2)
    rested: list[bool] = []
    h.engine.drain(lambda: rested.append(True))
    h.clock.run()
    assert handed_over(h) == [2]
    h.workers["op"].finish()
    h.clock.run()
    assert rested == [True]
