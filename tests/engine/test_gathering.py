"""Short batches that were handed over together wait for more, while every turn brings some."""

from __future__ import annotations

from penstock.request import Outcome
from tests.engine.test_engine import EngineHarness, make_harness


def after_common_hand_overs(h: EngineHarness, batches: int = 8) -> None:
    """A history of short batches, of which ``batches`` were handed over together."""
    for _ in range(50):
        h.engine.stages[0]._hand_over.learn(1e-6)
        h.engine.stages[0]._hand_over.carried(batches)


def submit(h: EngineHarness, count: int = 1) -> None:
    for _ in range(count):
        outcomes: list[Outcome] = []
        h.answers[h.submit(outcomes.append).data_id] = outcomes


def arrive_in_turns(h: EngineHarness, *arrivals: int) -> None:
    """Submits these numbers of requests in consecutive turns of the loop."""
    remaining = list(arrivals)

    def turn() -> None:
        submit(h, remaining.pop(0))
        if remaining:
            h.clock.soon(turn)

    h.clock.soon(turn)
    h.clock.run()


def batches_per_hand_over(h: EngineHarness) -> list[int]:
    """The number of batches in each running Work."""
    return [1 + len(work.pending) for work, _ in h.workers["op"].running]


def test_requests_of_the_following_turns_join_the_hand_over() -> None:
    h = make_harness()
    after_common_hand_overs(h)
    arrive_in_turns(h, 2, 3, 1)
    assert batches_per_hand_over(h) == [6]
    h.workers["op"].finish()
    h.clock.run()
    assert all(len(outcomes) == 1 for outcomes in h.answers.values())


def test_a_turn_without_requests_ends_the_wait() -> None:
    h = make_harness()
    after_common_hand_overs(h)
    arrive_in_turns(h, 2, 3, 0, 0, 4)
    assert batches_per_hand_over(h) == [5]


def test_with_a_history_of_single_batches_the_first_turn_hands_over() -> None:
    h = make_harness()
    after_common_hand_overs(h, batches=1)
    arrive_in_turns(h, 2, 3)
    assert batches_per_hand_over(h) == [2]


def test_a_full_hand_over_does_not_wait() -> None:
    h = make_harness()
    after_common_hand_overs(h)
    arrive_in_turns(h, 40, 5)
    assert batches_per_hand_over(h) == [32]


def test_a_request_cancelled_during_the_wait_is_not_handed_over() -> None:
    h = make_harness()
    after_common_hand_overs(h)
    outcomes: list[Outcome] = []
    submission = h.submit(outcomes.append)
    submit(h)
    h.clock.soon(lambda: h.engine.cancel(submission))
    h.clock.run()
    assert batches_per_hand_over(h) == [1]


def test_a_drain_during_the_wait_answers_all_requests() -> None:
    h = make_harness()
    after_common_hand_overs(h)
    submit(h, 2)
    drained: list[bool] = []
    h.engine.drain(lambda: drained.append(True))
    h.clock.run()
    assert batches_per_hand_over(h) == [2]
    h.workers["op"].finish()
    h.clock.run()
    assert drained == [True]
