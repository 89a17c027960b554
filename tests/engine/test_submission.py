"""A submission: deadline, refusal, cancellation, reservation, exactly one outcome."""

import pytest

from penstock.engine.engine import EngineOptions
from penstock.engine.submission import Submission
from penstock.errors import DeadlineExceeded, ServiceBusy, ServiceClosed
from penstock.request import Outcome
from tests.engine.test_engine import EngineHarness, make_harness


class Reservation:
    def __init__(self) -> None:
        self.released = 0

    def release(self) -> None:
        self.released += 1


class Client:
    """A protocol that records its outcomes."""

    def __init__(self, h: EngineHarness, timeout: float | None = None) -> None:
        self.outcomes: list[Outcome] = []
        self.reservation = Reservation()
        self.submission = Submission(h.engine.graphs[0], {"x": 1}, timeout, 7, self)
        self.submission.reservation = self.reservation

    def start(self) -> None:
        self.submission.start(Client.answered)

    @staticmethod
    def answered(submission: Submission, outcome: Outcome) -> None:
        assert submission.over
        submission.context.outcomes.append(outcome)


@pytest.mark.parametrize(
    ("timeout", "seconds", "by_client"),
    [(None, 60.0, False), (61.0, 60.0, False), (60.0, 60.0, True), (0.5, 0.5, True)],
)
def test_a_client_may_lower_the_time_limit_and_cannot_raise_it(
    timeout: float | None, seconds: float, by_client: bool
) -> None:
    h = make_harness()
    submission = Submission(h.engine.graphs[0], {}, timeout)
    assert submission.deadline == h.clock.now() + seconds
    assert submission.deadline_by_client is by_client


def test_a_submission_has_one_outcome_and_releases_its_bytes_then() -> None:
    h = make_harness()
    client = Client(h)
    client.start()
    h.clock.run()
    assert (client.outcomes, client.reservation.released) == ([], 0)
    h.workers["op"].finish()
    (outcome,) = client.outcomes
    assert outcome.value == {"x": 1}
    assert client.reservation.released == 1
    client.submission.cancel()
    assert h.engine.statistics().cancelled == 0


def test_a_refusal_is_reported_at_once() -> None:
    h = make_harness(options=EngineOptions(max_requests=1))
    Client(h).start()
    late, busy = Client(h, 0.0), Client(h)
    busy.start()
    (outcome,) = busy.outcomes
    assert isinstance(outcome.error, ServiceBusy)
    assert outcome.error.__traceback__ is None
    assert busy.submission.refused
    assert busy.reservation.released == 1
    h.clock.run()
    h.workers["op"].finish()
    late.start()
    (outcome,) = late.outcomes
    assert isinstance(outcome.error, DeadlineExceeded)
    assert h.engine.statistics().refused == 2


def test_a_submission_cancelled_before_or_after_its_start_has_no_outcome() -> None:
    h = make_harness()
    for started in (False, True):
        client = Client(h)
        if started:
            client.start()
        client.submission.cancel()
        client.submission.cancel()
        client.start() if not started else None
        h.clock.run()
        assert client.outcomes == []
        assert client.reservation.released == 1
    stats = h.engine.statistics()
    assert (stats.admitted, stats.cancelled, stats.inside) == (1, 1, 0)


def test_an_outcome_at_the_engine_s_close_is_no_refusal() -> None:
    h = make_harness()
    client = Client(h)
    client.start()
    h.engine.close()
    (outcome,) = client.outcomes
    assert isinstance(outcome.error, ServiceClosed)
    assert not client.submission.refused
