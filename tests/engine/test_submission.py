"""A submission: deadline, refusal, cancellation, exactly one outcome, its end."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from penstock.engine.engine import EngineOptions
from penstock.engine.submission import Submission
from penstock.errors import DeadlineExceeded, ServiceBusy, ServiceClosed
from penstock.request import Outcome
from tests.engine.test_engine import EngineHarness, make_harness


class Client:
    """A protocol that records its outcomes."""

    def __init__(self, h: EngineHarness, timeout: float | None = None) -> None:
        self.outcomes: list[Outcome] = []
        self.submission = Submission(h.engine.graphs[0], {"x": 1}, timeout, 7, self)
        self.ends = 0
        self.submission.at_end(self._ended)

    def start(self) -> None:
        self.submission.start(Client.answered)

    def _ended(self) -> None:
        assert self.submission.over
        self.ends += 1

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


def test_a_submission_has_one_outcome_and_ends_then() -> None:
    h = make_harness()
    client = Client(h)
    client.start()
    h.clock.run()
    assert (client.outcomes, client.ends) == ([], 0)
    h.workers["op"].finish()
    (outcome,) = client.outcomes
    assert outcome.value == {"x": 1}
    assert client.ends == 1
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
    assert busy.ends == 1
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
        assert client.ends == 1
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


def _answered(h: EngineHarness, client: Client) -> None:
    client.start()
    h.clock.run()
    h.workers["op"].finish()


def _refused(h: EngineHarness, client: Client) -> None:
    h.engine.drain(lambda: None)
    client.start()


def _cancelled_before_its_start(h: EngineHarness, client: Client) -> None:
    client.submission.cancel()
    client.start()


def _cancelled_later(h: EngineHarness, client: Client) -> None:
    client.start()
    client.submission.cancel()


def _late(h: EngineHarness, client: Client) -> None:
    client.start()
    h.clock.advance(61.0)


def _closed(h: EngineHarness, client: Client) -> None:
    client.start()
    h.engine.close()


ENDS = [_answered, _refused, _cancelled_before_its_start, _cancelled_later, _late, _closed]


@pytest.mark.parametrize("end", ENDS)
def test_every_end_calls_what_was_added_once_and_in_order(
    end: Callable[[EngineHarness, Client], None], caplog: pytest.LogCaptureFixture
) -> None:
    h = make_harness()
    client = Client(h)
    called: list[str] = []

    def failing() -> None:
        called.append("failing")
        raise LookupError("no such key")

    def adding() -> None:
        called.append(f"adding {len(client.outcomes)}")
        client.submission.at_end(lambda: called.append("added"))

    for each in (failing, adding, lambda: called.append("last")):
        client.submission.at_end(each)
    end(h, client)
    client.submission.cancel()
    h.engine.close()
    h.clock.advance(100.0)
    outcomes = 0 if "cancelled" in end.__name__ else 1
    assert called == ["failing", f"adding {outcomes}", "last", "added"]
    assert (client.ends, len(client.outcomes)) == (1, outcomes)
    assert "no such key" in caplog.text
    client.submission.at_end(lambda: called.append("late"))
    assert called[-1] == "late"


def test_a_callback_for_the_answer_that_raises_does_not_keep_the_end_from_coming() -> None:
    h = make_harness(options=EngineOptions(max_requests=1))
    admitted, refused = Client(h), Client(h)

    def failing(submission: Submission, outcome: Outcome) -> None:
        raise LookupError

    admitted.submission.start(failing)
    with pytest.raises(LookupError):
        refused.submission.start(failing)
    h.clock.run()
    h.workers["op"].finish()
    assert (admitted.ends, refused.ends) == (1, 1)
