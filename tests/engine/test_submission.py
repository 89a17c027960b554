"""A submission: the deadline's rule, refusal, cancellation, reservation, one answer."""

import pytest

from penstock.engine.engine import EngineOptions
from penstock.engine.submission import Submission
from penstock.errors import DeadlineExceeded, ServiceBusy, ServiceClosed
from penstock.request import Outcome
from tests.engine.test_engine import House, house


class Held:
    def __init__(self) -> None:
        self.released = 0

    def release(self) -> None:
        self.released += 1


class Caller:
    """A protocol that keeps what it is told."""

    def __init__(self, h: House, timeout: float | None = None) -> None:
        self.told: list[Outcome] = []
        self.held = Held()
        self.asked = Submission(h.engine.graphs[0], {"x": 1}, timeout, 7, self)
        self.asked.reservation = self.held

    def start(self) -> None:
        self.asked.start(Caller.answered)

    @staticmethod
    def answered(asked: Submission, outcome: Outcome) -> None:
        assert asked.over
        asked.context.told.append(outcome)


@pytest.mark.parametrize(
    ("asked", "seconds", "by_client"),
    [(None, 60.0, False), (61.0, 60.0, False), (60.0, 60.0, True), (0.5, 0.5, True)],
)
def test_a_caller_may_lower_the_time_limit_and_never_raise_it(
    asked: float | None, seconds: float, by_client: bool
) -> None:
    h = house()
    submission = Submission(h.engine.graphs[0], {}, asked)
    assert submission.deadline == h.clock.now() + seconds
    assert submission.deadline_by_client is by_client


def test_it_is_answered_once_and_its_bytes_are_released_then() -> None:
    h = house()
    caller = Caller(h)
    caller.start()
    h.clock.run()
    assert (caller.told, caller.held.released) == ([], 0)
    h.workers["op"].finish()
    (outcome,) = caller.told
    assert outcome.value == {"x": 1}
    assert caller.held.released == 1
    caller.asked.cancel()
    assert h.engine.statistics().cancelled == 0


def test_a_refusal_is_an_answer_at_once() -> None:
    h = house(options=EngineOptions(max_requests=1))
    Caller(h).start()
    late, busy = Caller(h, 0.0), Caller(h)
    busy.start()
    (outcome,) = busy.told
    assert isinstance(outcome.error, ServiceBusy)
    assert outcome.error.__traceback__ is None
    assert busy.asked.refused
    assert busy.held.released == 1
    h.clock.run()
    h.workers["op"].finish()
    late.start()
    (outcome,) = late.told
    assert isinstance(outcome.error, DeadlineExceeded)
    assert h.engine.statistics().refused == 2


def test_a_caller_who_leaves_is_told_nothing_before_the_start_or_after_it() -> None:
    h = house()
    for started in (False, True):
        caller = Caller(h)
        if started:
            caller.start()
        caller.asked.cancel()
        caller.asked.cancel()
        caller.start() if not started else None
        h.clock.run()
        assert caller.told == []
        assert caller.held.released == 1
    stats = h.engine.statistics()
    assert (stats.admitted, stats.cancelled, stats.inside) == (1, 1, 0)


def test_an_answer_at_the_end_of_the_engine_is_no_refusal() -> None:
    h = house()
    caller = Caller(h)
    caller.start()
    h.engine.close()
    (outcome,) = caller.told
    assert isinstance(outcome.error, ServiceClosed)
    assert not caller.asked.refused
